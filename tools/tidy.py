#!/usr/bin/env python3
"""Runs clang-tidy with .clang-tidy on C++ files of src/ and bench/, each alone and without what builds precompile (preset
`tidy`), so that a file that lacks an include is found, too. Exit 1 on a finding.

  tools/tidy.py                 the changed files
  tools/tidy.py --part K/N      the changed files, and every N-th of the others from K on
  tools/tidy.py FILE...         these
  tools/tidy.py --minutes M     in an order drawn by commit; starts no file after M minutes, and says how many are left

Changed: against the merge base with origin/main, or main where there is no remote; on that commit itself, against the
commit before. Files that are not committed count. A changed header stands for the .cpp file of its name, or for the first
one that includes it. Tests are left out: half of what GoogleTest's macros expand to are findings."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATABASE = ROOT / "build/tidy/compile_commands.json"


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def changed_files():
    """Paths from the root, of files that exist."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main") or head
    if base == head:
        base = git("rev-parse", "--verify", "HEAD~1") or head
    names = git("diff", "--name-only", base).split() + git("ls-files", "--others", "--exclude-standard").split()
    return [name for name in dict.fromkeys(names) if (ROOT / name).exists()]


def source_of(header, sources):
    """A file of `sources` that compiles the header; None if there is none."""
    if (beside := header.removesuffix(".h") + ".cpp") in sources:
        return beside
    line = f'#include "{header.removeprefix("src/")}"'
    return next((source for source in sources if line in (ROOT / source).read_text()), None)


def select(changed, sources, part):
    """The files to check: of `sources`, a sorted list. part: (K, N) or None."""
    chosen = {name for name in changed if name in sources}
    chosen |= {source_of(name, sources) for name in changed if name.endswith(".h")}
    if part:
        chosen |= set(sources[part[0] % part[1] :: part[1]])
    return sorted(chosen - {None})


def findings(source):
    result = subprocess.run(["clang-tidy-14", "-quiet", "-p", DATABASE.parent, source], cwd=ROOT, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--part", help="K/N")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if not shutil.which("clang-tidy-14"):
        sys.exit("tidy: clang-tidy-14 is not installed\nhint: tools/setup.sh --ci installs it on Debian")
    configured = subprocess.run(["cmake", "--preset", "tidy"], cwd=ROOT, capture_output=True, text=True)
    if configured.returncode:
        sys.exit(f"tidy: cmake --preset tidy fails\n{configured.stderr}")
    compiled = {os.path.relpath(entry["file"], ROOT) for entry in json.loads(DATABASE.read_text())}
    sources = sorted(name for name in compiled if name.startswith(("src/", "bench/")))
    part = tuple(map(int, arguments.part.split("/"))) if arguments.part else None
    chosen = arguments.files or select(changed_files(), sources, part)
    if arguments.minutes < float("inf"):
        random.Random(git("rev-parse", "HEAD")).shuffle(chosen)
    start, checked = time.monotonic(), []

    def check(source):
        if time.monotonic() - start > 60 * arguments.minutes:
            return ""
        checked.append(source)
        return findings(source)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = 0
        for text in filter(None, pool.map(check, chosen)):
            print(text, flush=True)
            found += 1
    left = f"; no time for {len(chosen) - len(checked)} more" if len(checked) < len(chosen) else ""
    print(f"tidy: {len(checked)} of {len(sources)} files, {found} with findings, {time.monotonic() - start:.0f} s{left}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
