#!/usr/bin/env python3
"""Checks rules that a compiler does not: which room may include which (src/rooms.txt), who may name a vendor or a
library, no #ifdef, no long files, a comment that opens each header. Prints file:line: message; exit 1 on a violation."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_rooms(text):
    """{room: the rooms it may include, beside itself and base} and {"room/folder": the folders it may include, beside
    itself; "." is the room's own}, both in the order of src/rooms.txt."""
    lines = [line.split("#")[0] for line in text.splitlines()]
    entries = {name.strip(): names.split() for name, _, names in (line.partition(":") for line in lines if line.strip())}
    return [{name: names for name, names in entries.items() if ("/" in name) == folders} for folders in (False, True)]


ALLOWED, FOLDERS = read_rooms((ROOT / "src/rooms.txt").read_text())
VENDOR_FILES = {"src/ops/gpu/vendor.h", "src/ops/gpu/vendor_blas.h", "src/ops/gpu/capability.h"}
MAX_LINES = 500
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b")
VENDOR = re.compile(r"\b(?:cuda|hip)[A-Z]\w*\s*\(|__HIP|__CUDA_ARCH__")
CUDNN = re.compile(r"(^|/)cudnn[\w.]*\.h$")
NVTX = re.compile(r"(^|/)(nvToolsExt\w*|nvtx3)\.h(pp)?$")
ONEDNN = re.compile(r"(^|/)dnnl[\w.]*\.h(pp)?$")


def folder_of(path):
    """Of "room/file": ".", of "room/folder/file": "folder"."""
    return path.split("/")[1] if path.count("/") > 1 else "."


def check_folders(path, room, header, report):
    """The folders of a room have an order, too."""
    own, target = folder_of(path.removeprefix("src/")), folder_of(header)
    name = f"{room}/{own}"
    if own != target and name in FOLDERS and target not in FOLDERS[name]:
        report(f"{name} may not include {header} (allowed: {' '.join(FOLDERS[name]) or 'no other folder'})")


def check_include(path, room, quote, header, report):
    target = header.split("/")[0]
    if target == room:
        check_folders(path, room, header, report)
    if target in ALLOWED and "/" in header:
        if target not in {room, "base", *ALLOWED[room]}:
            allowed = " ".join(["base", *ALLOWED[room]])
            report(f"room {room} may not include {header} (allowed: {allowed})")
        if header.startswith("comm/mpi_") and room != "comm":
            report(f"{header} is private to the room comm")
    elif quote == '"':
        report(f'"{header}" is not named from src/, as "room/file.h"')
    if header == "mpi.h" and not re.fullmatch(r"src/comm/(.*_mpi\.cpp|mpi_[^/]*\.h)", path):
        report("mpi.h belongs in src/comm/*_mpi.cpp and src/comm/mpi_*.h only")
    if CUDNN.search(header) and path != "src/ops/gpu/graph_cudnn.h":
        report(f"{header} belongs in src/ops/gpu/graph_cudnn.h only")
    if NVTX.search(header) and path != "src/ops/gpu/ranges_nvtx.cu":
        report(f"{header} belongs in src/ops/gpu/ranges_nvtx.cu only")
    if header == "sodium.h" and path != "src/comm/bootstrap/mac.cpp":
        report("sodium.h belongs in src/comm/bootstrap/mac.cpp only")
    if ONEDNN.search(header):
        if not re.fullmatch(r"src/ops/cpu/[^/]*_onednn\.cpp", path):
            report(f"{header} belongs in one file src/ops/cpu/*_onednn.cpp only")
        return True
    return False


def check(files):
    """files: {path from the root: text}. Returns the violations as sorted lines "path:line: message"."""
    found = []
    onednn_files = set()
    for path, text in files.items():
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            found.append((path, MAX_LINES + 1, f"{len(lines)} lines, more than {MAX_LINES}: split it"))
        if not path.startswith("src/"):
            continue
        room = path.split("/")[1]
        if room not in ALLOWED:
            found.append((path, 1, f"src/{room} is not a room (known: {' '.join(ALLOWED)})"))
            continue
        if path.count("/") > 2 and f"{room}/{folder_of(path[4:])}" not in FOLDERS:
            found.append((path, 1, f"src/{room}/{folder_of(path[4:])} is not in src/rooms.txt"))
        if path.endswith(".h") and not any(line.lstrip().startswith(("//", "/*")) for line in lines[:3]):
            found.append((path, 1, "no comment in the first 3 lines says what this header is for"))
        for number, line in enumerate(lines, 1):
            report = lambda message: found.append((path, number, message))
            include = INCLUDE.match(line)
            if include and check_include(path, room, *include.groups(), report):
                onednn_files.add((path, number))
            if path in VENDOR_FILES:
                continue
            if CONDITIONAL.match(line):
                report("conditional compilation: choose by file name (*_mpi.cpp, *_no_mpi.cpp, ...) instead")
            vendor = VENDOR.search(line.split("//")[0])
            if vendor:
                report(f"vendor name {vendor.group().rstrip('( ')} outside {' and '.join(sorted(VENDOR_FILES))}")
    if len({path for path, _ in onednn_files}) > 1:
        found += [(path, number, "a second file includes oneDNN: one file knows it") for path, number in onednn_files]
    return [f"{path}:{number}: {message}" for path, number, message in sorted(set(found))]


def check_lists(cmake, architecture):
    """Compares the rooms of CMakeLists.txt and the table of docs/architecture.md with src/rooms.txt."""
    linked = re.findall(r"moewright_room\((\w+)", cmake)
    documented = {
        room: [] if rooms.strip() == "-" else rooms.split()
        for room, rooms in re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", architecture.split("\n## ")[1], re.M)
    }
    found = []
    for place, listed, rooms in (
        ("CMakeLists.txt", linked, [room for room in ALLOWED if room != "cli"]),  # which is the program itself
        ("docs/architecture.md", list(documented), list(ALLOWED)),
    ):
        found += [f"{place}:1: no room {room}, which src/rooms.txt has" for room in rooms if room not in listed]
        found += [f"{place}:1: {room} is not a room of src/rooms.txt" for room in listed if room not in rooms]
    for room, rooms in documented.items():
        if room in ALLOWED and set(rooms) != set(ALLOWED[room]):
            found.append(f"docs/architecture.md:1: {room} has \"{' '.join(rooms)}\", src/rooms.txt \"{' '.join(ALLOWED[room])}\"")
    return found


def self_test():
    """Each bad tree must give a violation that names the line and the reason; the good tree none."""
    good = {
        "src/core/view.h": "// Views.\n#pragma once\n#include <vector>\n#include \"base/dtype.h\"\n",
        "src/ops/cpu/gemm_onednn.cpp": '#include <dnnl.hpp>\n#include "core/view.h"\n',
        "src/comm/comm_mpi.cpp": '#include <mpi.h>\n#include "comm/mpi_types.h"\n',
        "src/comm/mpi_types.h": "// Types.\n#include <mpi.h>\n",
        "src/ops/gpu/graph_cudnn.h": "// Graphs.\n#include <cudnn.h>\n",
        "src/ops/gpu/vendor.h": "// Vendors.\n#ifdef __HIP__\nhipMalloc(&p, 1);\n#endif\n",
        "src/ops/gpu/gather.cu": "// cudaMalloc() is not used here\nint cuda_like(int);\n",
        "src/train/loop/step.cpp": '#include "model/stage.h"\n#include "planner/cost.h"\n#include "train/data/d.h"\n',
    }
    bad = [
        ({"src/core/a.cpp": '\n#include "ops/gemm.h"\n'}, "src/core/a.cpp:2: room core may not include"),
        ({"src/planner/a.cpp": '#include "core/view.h"\n'}, "src/planner/a.cpp:1: room planner may not include"),
        ({"src/train/data/a.cpp": '#include "train/loop/l.h"\n'}, "src/train/data/a.cpp:1: train/data may not include"),
        ({"src/comm/bootstrap/a.cpp": '#include "comm/c.h"\n'}, "src/comm/bootstrap/a.cpp:1: comm/bootstrap may not"),
        ({"src/train/attic/a.cpp": "\n"}, "src/train/attic/a.cpp:1: src/train/attic is not in src/rooms.txt"),
        ({"src/base/a.h": '// A.\n#include "config/model.h"\n'}, "src/base/a.h:2: room base may not include"),
        ({"src/train/loop/a.cpp": '#include "probe/p.h"\n'}, "src/train/loop/a.cpp:1: room train may not include"),
        ({"src/ops/a.cpp": '#include "view.h"\n'}, "src/ops/a.cpp:1: \"view.h\" is not named from src/"),
        ({"src/moe/a.cpp": '#include "comm/mpi_types.h"\n'}, "src/moe/a.cpp:1: comm/mpi_types.h is private"),
        ({"src/train/a_mpi.cpp": "#include <mpi.h>\n"}, "src/train/a_mpi.cpp:1: mpi.h belongs"),
        ({"src/comm/a.cpp": "#include <mpi.h>\n"}, "src/comm/a.cpp:1: mpi.h belongs"),
        ({"src/ops/cpu/a.cpp": "#include <oneapi/dnnl/dnnl.hpp>\n"}, "src/ops/cpu/a.cpp:1: oneapi/dnnl/dnnl.hpp belongs"),
        ({f"src/ops/cpu/{f}_onednn.cpp": "#include <dnnl.hpp>\n" for f in "ab"}, "src/ops/cpu/b_onednn.cpp:1: a second"),
        ({"src/ops/gpu/a_cudnn.cu": "#include <cudnn.h>\n"}, "src/ops/gpu/a_cudnn.cu:1: cudnn.h belongs"),
        ({"src/core/a.cpp": "#include <nvtx3/nvToolsExt.h>\n"}, "src/core/a.cpp:1: nvtx3/nvToolsExt.h belongs"),
        ({"src/comm/a.cpp": "#include <sodium.h>\n"}, "src/comm/a.cpp:1: sodium.h belongs"),
        ({"src/ops/gpu/a.cu": "\n  cudaMalloc(&p, 8);\n"}, "src/ops/gpu/a.cu:2: vendor name cudaMalloc"),
        ({"src/core/a.cpp": "hipFree(p);\n"}, "src/core/a.cpp:1: vendor name hipFree"),
        ({"src/core/a.cpp": "x = __CUDA_ARCH__;\n"}, "src/core/a.cpp:1: vendor name __CUDA_ARCH__"),
        ({"src/core/a.cpp": "# ifdef FOO\n"}, "src/core/a.cpp:1: conditional compilation"),
        ({"src/core/a.h": "// A.\n#if 1\n"}, "src/core/a.h:2: conditional compilation"),
        ({"src/core/a.h": "#pragma once\n"}, "src/core/a.h:1: no comment"),
        ({"src/attic/a.cpp": "\n"}, "src/attic/a.cpp:1: src/attic is not a room"),
        ({"tests/core/a.cpp": "\n" * 501}, "tests/core/a.cpp:501: 501 lines"),
    ]
    failures = [f"the good tree is refused: {line}" for line in check(good)]
    for files, expected in bad:
        lines = check(files)
        if not any(line.startswith(expected) for line in lines):
            failures.append(f"not reported: {expected} (got {lines})")
    cmake = "".join(f"moewright_room({room} LINKS x)\n" for room in ALLOWED if room != "cli")
    table = "# A\n## Rooms\n" + "".join(f"| `{room}` | it | {' '.join(rooms) or '-'} |\n" for room, rooms in ALLOWED.items())
    failures += [f"good lists are refused: {line}" for line in check_lists(cmake, table)]
    bad_lists = [
        (cmake.replace("moewright_room(planner LINKS x)", ""), table, "CMakeLists.txt:1: no room planner"),
        (cmake, table.replace("| `ops` | it | core |", "| `ops` | it | - |"), 'docs/architecture.md:1: ops has ""'),
        (cmake, table.replace("| `moe` | it", "| `attic` | it"), "docs/architecture.md:1: no room moe"),
        (cmake + "moewright_room(attic)\n", table, "CMakeLists.txt:1: attic is not a room"),
    ]
    for cmake_text, table_text, expected in bad_lists:
        lines = check_lists(cmake_text, table_text)
        if not any(line.startswith(expected) for line in lines):
            failures.append(f"not reported: {expected} (got {lines})")
    print("\n".join(failures) if failures else f"check_rooms: self-test of {len(bad) + len(bad_lists)} violations passed")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    paths = [p for folder in ("src", "tests", "bench", "tools", "cmake") for p in sorted((ROOT / folder).rglob("*"))]
    files = {p.relative_to(ROOT).as_posix(): p.read_text(errors="replace") for p in paths if p.suffix in SUFFIXES}
    violations = check(files)
    violations += check_lists(*((ROOT / name).read_text() for name in ("CMakeLists.txt", "docs/architecture.md")))
    print("\n".join(violations) if violations else f"check_rooms: {len(files)} files, no violation")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
