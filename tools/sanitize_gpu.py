#!/usr/bin/env python3
"""Runs tests of operators under NVIDIA's compute-sanitizer, shared out over many processes, as its tools slow kernels
down by up to a thousand times. What racecheck says of cuBLASLt's and cuDNN's kernels is counted and does not matter: they
hand stages of shared memory over in ways that it does not follow.

  tools/sanitize_gpu.py build/cuda/tests/test_ops                       # memcheck, then racecheck
  tools/sanitize_gpu.py build/cuda/tests/test_ops --tools racecheck --shards 28 --gpus 2

Prints what was found and which tests failed. Exit code 1 if there was any of it, or a process did not end in time. About
14 processes fit one H200; with 28 over two GPUs racecheck takes four minutes."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

# Tensors above 2^31 elements and many threads, too slow here: they run without the tools.
LEFT_OUT = "LargeTensors.*:Matmul.ManyThreads*"
TOOLS = {"memcheck": [], "racecheck": ["--racecheck-report", "analysis"]}
# All that was found is printed: else a library's findings would hide others behind them.
ALL = ["--print-limit", "0"]
LIBRARY = re.compile(r"(void )?(nvjet|cudnn|cublas|cutlass)")
FINDING = re.compile(r"^=========\s+(?:Error: (?!process)|Warning: |Invalid |Program hit )")
SUMMARY = {"memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
           "racecheck": re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")}


def find_sanitizer():
    for path in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"):
        if path and pathlib.Path(path).exists():
            return path
    sys.exit("sanitize_gpu: no compute-sanitizer in PATH or /usr/local/cuda/bin; it comes with the CUDA toolkit")


def run_shard(args, sanitizer, tool, shard):
    env = dict(os.environ, GTEST_TOTAL_SHARDS=str(args.shards), GTEST_SHARD_INDEX=str(shard),
               CUDA_VISIBLE_DEVICES=str(shard % args.gpus), MOEWRIGHT_TEST_DEVICE="gpu", OMP_NUM_THREADS="1")
    command = [sanitizer, "--tool", tool, *TOOLS[tool], *ALL, args.binary, f"--gtest_filter={args.filter}:-{LEFT_OUT}"]
    # The tests run in a process that the tool starts: both end together.
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True)
    try:
        return process.communicate(timeout=args.seconds)[0], None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], f"not done after {args.seconds} s"


def findings_of(output):
    """Each finding as its lines."""
    found = []
    for line in output.splitlines():
        if not line.startswith("========="):
            continue
        if FINDING.match(line):
            found.append([line])
        elif found and line.startswith("=========  "):
            found[-1].append(line)
    return found


def is_of_library(tool, finding):
    kernels = [kernel for line in finding for kernel in re.findall(r" at (\S.*?)\+0x", line)]
    return tool == "racecheck" and bool(kernels) and all(LIBRARY.match(kernel) for kernel in kernels)


def report(tool, shard, output, late):
    """Prints what is wrong with a shard. True if nothing is."""
    if "Running 0 tests" in output:
        return True
    wrong = [late] if late else []
    summary = SUMMARY[tool].search(output)
    if not late and summary is None:
        wrong.append("the tool gave no summary")
    wrong += re.findall(r"^\[  FAILED  \] \S+ \(.*$", output, re.M)
    wrong += re.findall(r"^========= (?:Error: process|Target application returned).*$", output, re.M)
    if summary and int(summary.group(1)) > 0 and not (tool == "racecheck" and findings_of(output)):
        wrong.append(f"the tool counts {summary.group(1)} findings")
    own = [finding for finding in findings_of(output) if not is_of_library(tool, finding)]
    wrong += [line.strip("= ") for finding in own[:3] for line in finding[:4]]
    if len(own) > 3:
        wrong.append(f"and {len(own) - 3} findings more")
    if not wrong:
        return True
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    print(f"{tool}, process {shard}, " + (f"which began {begun[-1]} last:" if begun else "which began no test:"))
    for line in wrong if begun else wrong + output.splitlines()[-20:]:
        print(f"  {line}")
    sys.stdout.flush()
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="a GoogleTest binary of a CUDA build")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--shards", type=int, default=14, help="processes at a time")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to share them out over")
    parser.add_argument("--filter", default="*", help="as --gtest_filter")
    parser.add_argument("--seconds", type=int, default=600, help="time limit of a process")
    args = parser.parse_args()
    sanitizer = find_sanitizer()
    clean = 0
    for tool in args.tools:
        with concurrent.futures.ThreadPoolExecutor(args.shards) as pool:
            outputs = list(pool.map(lambda shard: run_shard(args, sanitizer, tool, shard), range(args.shards)))
        good = [report(tool, shard, *output) for shard, output in enumerate(outputs)]
        tests = sum(len(re.findall(r"^\[       OK \]", output, re.M)) for output, _ in outputs)
        of_libraries = sum(is_of_library(tool, finding) for output, _ in outputs for finding in findings_of(output))
        print(f"{tool}: {tests} tests passed, {sum(good)} of {args.shards} processes clean; {of_libraries} findings in "
              "kernels of libraries", flush=True)
        if tests == 0:
            print(f"{tool}: no test was run: is --filter right, and a GPU visible?")
        clean += all(good) and tests > 0
    return 0 if clean == len(args.tools) else 1


if __name__ == "__main__":
    sys.exit(main())
