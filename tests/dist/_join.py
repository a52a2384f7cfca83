"""Processes that are started one by one and join over TCP, for the scripts of this folder. All traffic stays on 127.0.0.1."""

import os
import pathlib
import secrets
import socket
import sys

sys.path.insert(0, os.path.join(os.environ["MOEWRIGHT_SOURCE"], "tests", "support"))
from _jobs import Job  # noqa: E402

SECRET = secrets.token_hex(32)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(ranks, size, *arguments, port=None, local=True, **environment):
    """One process for each of `ranks`. A value of the environment may be a function of the rank; None: not set."""
    port, jobs = port or free_port(), []
    for rank in ranks:
        wanted = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank if local else None, "MASTER_ADDR": "localhost",
                  "MASTER_PORT": port, "MOEWRIGHT_JOIN_SECONDS": 60, "MOEWRIGHT_JOIN_SECRET": SECRET, **environment}
        for name, value in wanted.items():
            value = value(rank) if callable(value) else value
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = str(value)
        jobs.append(Job(1, *arguments))
    for name in wanted:
        os.environ.pop(name, None)
    return jobs


def expect(checks, label, jobs, code, words):
    """Every process ends so."""
    for i, job in enumerate(jobs):
        got = job.wait(120)
        checks.expect(got == code and words in job.output(), f"{label}, process {i}: exit {got}, expected {code} and "
                                                             f"\"{words}\"", job.output())


def tcp_table():
    """Connections and listeners of this machine: (near host, near port, state, inode). State 01: open, 0A: listening."""
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, at, _, state, *rest = line.split()
        host, port = at.split(":")
        yield socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16), state, rest[5]


def connections_at(port):
    """Open connections whose near end is that port."""
    return sum(at == port and state == "01" for _, at, state, _ in tcp_table())


def listeners(pid):
    """Where a process listens: (host, port)."""
    sockets = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except OSError:
            pass
    return sorted((host, port) for host, port, state, inode in tcp_table()
                  if state == "0A" and f"socket:[{inode}]" in sockets)
