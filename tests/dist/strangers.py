"""Strangers who connect to the ports of a job neither get in nor get in the way: floods of noise and of silence, byte by
byte, with a guessed secret and with recorded messages; while ranks join, while they connect to one another, and at the
watchdog's port. A rank with a wrong secret, or without one, is told so."""

import hashlib
import hmac
import os
import pathlib
import resource
import secrets
import socket
import struct
import subprocess
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
import _join  # noqa: E402
from _join import SECRET, free_port, listeners, start  # noqa: E402
from _jobs import Checks, SOURCE, last_step, outputs, write_corpus, write_run_file  # noqa: E402

VERIFY = ["verify", SOURCE / "examples" / "verify.toml", "verify.steps=1", "train.threads=1"]
EACH = 1000  # connections of each kind
checks = Checks()
write_corpus("text")
RUN = write_run_file()


def expect(*arguments):
    _join.expect(checks, *arguments)


def connect(port, source=0):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that the near port is free at once
    s.settimeout(20)
    s.bind(("127.0.0.1", source))
    s.connect(("127.0.0.1", port))
    return s


def wait_for_listener(job):
    checks.expect(job.wait_until(lambda: listeners(job.process.pid)), "nobody listens", job.output())


def flood(port):
    """A third sends random bytes, a third closes at once, a third stays open and silent: those are returned."""
    silent = []
    for _ in range(EACH):
        with connect(port) as noisy:
            noisy.send(secrets.token_bytes(300))
        connect(port).close()
        silent.append(connect(port))
    return silent


def read(s, count):
    got = b""
    while len(got) < count and (part := s.recv(count - len(got))):
        got += part
    return got


class Stranger:
    """Speaks the protocol perfectly, as rank 1 of `size`, with the secret that it has."""

    HELLO = struct.Struct("=8sQIIiiiIIHHH70s32s")

    def __init__(self, port, secret, size, source=0):
        self.socket = connect(port, source)
        self.key = hashlib.blake2b(secret.encode(), key=b"moewright join secret", digest_size=32).digest()
        host, = struct.unpack("=I", socket.inet_aton("127.0.0.1"))
        near = self.socket.getsockname()[1]
        self.hello = self.HELLO.pack(b"MWHELLO2", 7, 1, 1, 1, 0, size, host, host, near, port, 1, b"stranger",
                                     secrets.token_bytes(32))

    def say_hello(self):
        """Returns the challenge, or a verdict that refuses."""
        self.socket.sendall(self.hello)
        return read(self.socket, 40)

    def prove(self, challenge):
        """Returns the verdict: 0 is admitted, 1 a wrong secret, 4 another address."""
        mac = hmac.new(self.key, b"guest" + self.hello + challenge, hashlib.sha512).digest()[:32]
        self.proof = b"MWPROOF2" + mac
        self.socket.sendall(self.proof)
        return self.verdict(read(self.socket, 48))

    @staticmethod
    def verdict(message):
        return struct.unpack_from("=I", message, 8)[0] if message[:8] == b"MWVERDI2" else None


def joined_after(port, first, label):
    """Starts rank 1 and returns after how many seconds rank 0 has left the join; both must end well."""
    begin = time.monotonic()
    jobs = first + start([1], 2, *VERIFY, "mesh.ep=2", port=port)
    checks.expect(first[0].wait_until(lambda: "layout: " in first[0].output()), f"{label}: did not start",
                  first[0].output() + jobs[1].output())
    seconds = time.monotonic() - begin
    expect(label, jobs, 0, "")
    return seconds


# A flood before rank 1 starts. Rank 0 may open 1024 files, this script more.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
port = free_port()
first = start([0], 2, *VERIFY, "mesh.ep=2", port=port)
wait_for_listener(first[0])
undisturbed = joined_after(port, first, "undisturbed")

port = free_port()
first = start([0], 2, *VERIFY, "mesh.ep=2", port=port)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
wait_for_listener(first[0])
slow = connect(port)
stop = threading.Event()


def drip():
    try:
        while not stop.wait(1):
            slow.send(b"M")
    except OSError:
        pass


dripping = threading.Thread(target=drip)
dripping.start()
silent = flood(port)
flooded = joined_after(port, first, "flooded")
print(f"joined after {undisturbed:.2f} s undisturbed, {flooded:.2f} s behind {3 * EACH} strangers", flush=True)
checks.expect(flooded < undisturbed + 2, f"the flood delays the start by {flooded - undisturbed:.1f} s",
              first[0].output())
warnings = [line for line in first[0].output().splitlines() if "refused" in line]
checks.expect(0 < len(warnings) < 10 and all("from 127.0.0.1: " in line for line in warnings),
              f"flooded: {len(warnings)} warnings", first[0].output())
stop.set()
dripping.join()
for one in [*silent, slow]:
    one.close()

# One that knows all but the secret; one that repeats what it has recorded; a rank with the secret of another job.
port = free_port()
three = [*VERIFY, "train.global_batch=12", "train.micro_batches=2"]
first = start([0], 3, *three, port=port)
wait_for_listener(first[0])
guessing = Stranger(port, "guessed guessed guessed", 3)
checks.expect(guessing.prove(guessing.say_hello()) == 1, "a guessed secret is not refused", first[0].output())
checks.expect(first[0].wait_until(lambda: "it does not know the join secret" in first[0].output()),
              "a guessed secret is not reported", first[0].output())
checks.expect("rank 0 refused a connection from 127.0.0.1: it does not know the join secret (it says that it is rank 1 "
              "on stranger)" in first[0].output(), "the stranger is not named", first[0].output())
honest = Stranger(port, SECRET, 3)
near = honest.socket.getsockname()[1]
checks.expect(honest.prove(honest.say_hello()) == 0, "a rank that knows the secret is not admitted", first[0].output())
honest.socket.close()
replay = Stranger(port, SECRET, 3, source=near)
replay.hello = honest.hello
challenge = replay.say_hello()
checks.expect(challenge[:8] == b"MWCHALL2", "the recorded hello gets no challenge", first[0].output())
replay.socket.sendall(honest.proof)
checks.expect(Stranger.verdict(read(replay.socket, 48)) == 1, "a recorded proof is not refused", first[0].output())
elsewhere = Stranger(port, SECRET, 3)
elsewhere.hello = honest.hello
checks.expect(Stranger.verdict(elsewhere.say_hello()) == 4, "a hello of another connection is not refused",
              first[0].output())
wrong = start([1], 3, *three, port=port, MOEWRIGHT_JOIN_SECRET=secrets.token_hex(32))
expect("wrong secret", wrong, 8, f"rank 1: rank 0 at localhost:{port} has another join secret than this rank")
without = start([1], 3, *three, port=port, MOEWRIGHT_JOIN_SECRET=None)
expect("no secret", without, 8, "has a join secret, and this rank has none")
expect("after strangers", first + start([1, 2], 3, *three, port=port), 0, "")
checks.expect("verify: passed" in first[0].output(), "after strangers: no verdict", first[0].output())

# Between ranks, and at the watchdog: rank 1 listens for rank 2 while a crowd waits at its door.
name, port = "links", free_port()
train = ["train", RUN, *outputs(name), "train.steps=100000", "train.global_batch=12", "watchdog.seconds=20"]
jobs = start([0, 1], 3, *train, port=port)
wait_for_listener(jobs[1])
pids = [job.process.pid for job in jobs]
for pid in pids:
    checks.expect({host for host, _ in listeners(pid)} == {"127.0.0.1"}, f"listens at {listeners(pid)}")
crowd = [connect(listeners(pids[1])[0][1]) for _ in range(300)]
crowd[0].send(secrets.token_bytes(300))
jobs += start([2], 3, *train, port=port)
checks.expect(jobs[0].wait_until(lambda: last_step(name) >= 2), "links: no step", "".join(j.output() for j in jobs))
checks.expect("rank 1 refused" in jobs[1].output(), "links: no warning of rank 1", jobs[1].output())
at = listeners(pids[0])
checks.expect(len(at) == 1 and at[0][0] == "127.0.0.1" and not listeners(pids[1]), f"in training: listens at {at}")
crowd += [connect(at[0][1]) for _ in range(300)]
crowd[-1].send(secrets.token_bytes(300))
checks.expect(jobs[0].wait_until(lambda: "rank 0 refused" in jobs[0].output()), "no warning of the watchdog",
              jobs[0].output())
step = last_step(name)
checks.expect(jobs[0].wait_until(lambda: last_step(name) > step + 2), "the job does not go on", jobs[0].output())
jobs[0].process.terminate()
expect(name, jobs[:1], 0, "stopped on request")
expect(name, jobs[1:], 0, "")
for one in crowd:
    one.close()

# Secrets in files, and jobs without one.
pathlib.Path("secret").write_text(SECRET + "\n")
os.chmod("secret", 0o600)
by_file = {"MOEWRIGHT_JOIN_SECRET": lambda rank: SECRET if rank == 0 else None,
           "MOEWRIGHT_JOIN_SECRET_FILE": lambda rank: "secret" if rank == 1 else None}
expect("secret in a file", start([0, 1], 2, *VERIFY, "mesh.ep=2", **by_file), 0, "")
os.chmod("secret", 0o644)
expect("secret that others can read", start([1], 2, *VERIFY, MOEWRIGHT_JOIN_SECRET=None,
                                            MOEWRIGHT_JOIN_SECRET_FILE="secret"), 8, "its mode is 644, expected 600")
for rank in 0, 1:
    expect("no secret beyond this machine", start([rank], 2, *VERIFY, MASTER_ADDR="192.0.2.1", MOEWRIGHT_JOIN_SECRET=None), 8,
           "export MOEWRIGHT_JOIN_SECRET=$(od")
jobs = start([0, 1], 2, *VERIFY, "mesh.ep=2", MOEWRIGHT_JOIN_SECRET=None)
expect("no secret", jobs, 0, "")
said = [job.output().count("there is no join secret") for job in jobs]
checks.expect(said == [1, 0], f"without a secret: {said} warnings", jobs[0].output())
made = subprocess.run("od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n'", shell=True, capture_output=True, text=True).stdout
checks.expect(len(made) == 64, f"the advice makes the secret {made!r}")
checks.finish()
