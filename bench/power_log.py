"""The clock and the power of the first visible GPU while something runs, sampled by nvidia-smi."""
import os
import statistics
import subprocess

EVERY_MS = 20
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
QUERY = ["nvidia-smi", f"--id={GPU}", "--query-gpu=clocks.sm,power.draw.instant,power.limit", "--format=csv,noheader,nounits",
         "-lms", str(EVERY_MS)]


class PowerLog:
    """Inside `with`, samples are taken; afterwards `medians` holds clock_mhz and watt of those above half of the power
    limit. It is empty without nvidia-smi or without such samples."""

    def __enter__(self):
        self.medians = {}
        try:
            self.process = subprocess.Popen(QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.process.stdout.readline()  # it takes a while to start
        except OSError:
            self.process = None
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        samples = []
        for line in self.process.communicate()[0].splitlines():
            try:
                clock, watt, limit = map(float, line.split(","))
            except ValueError:  # a value that this GPU does not report, or a line cut off
                continue
            if watt > limit / 2:
                samples.append((clock, watt))
        if samples:
            clocks, watts = zip(*samples)
            self.medians = {"clock_mhz": statistics.median(clocks), "watt": statistics.median(watts)}
