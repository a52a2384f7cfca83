#!/usr/bin/env python3
"""Draws the rooms of src/rooms.txt, lowest at the bottom, as SVG on stdout if graphviz is installed, else as DOT:

  tools/draw_rooms.py > docs/rooms.svg
  tools/draw_rooms.py --dot > rooms.dot
  tools/draw_rooms.py --check        # whether docs/rooms.svg shows these rooms and arrows

An arrow leads from a room to one that it may include. Arrows that follow from others are left out, and so is base, which
every room may include."""

import html
import re
import shutil
import subprocess
import sys

from check_rooms import ALLOWED, ROOT


def direct(room):
    """The rooms that `room` may include and that no other room of its list includes already."""
    return [low for low in ALLOWED[room] if not any(low in ALLOWED[other] for other in ALLOWED[room])]


def dot_text():
    rooms = [room for room in ALLOWED if room != "base"]
    edges = [f"  {room} -> {low};" for room in rooms for low in direct(room)]
    return "\n".join(
        [
            "digraph rooms {",
            "  rankdir=TB; nodesep=0.35; ranksep=0.4; bgcolor=white;",
            '  node [shape=box, style="rounded,filled", fillcolor="#eef2f7", color="#5b6b7f", fontname="Helvetica", fontsize=12];',
            '  edge [color="#5b6b7f", arrowsize=0.7];',
            *[f"  {room};" for room in rooms],
            *edges,
            "}",
            "",
        ]
    )


def check():
    titles = {html.unescape(title) for title in re.findall("<title>(.*?)</title>", (ROOT / "docs/rooms.svg").read_text())}
    rooms = [room for room in ALLOWED if room != "base"]
    if titles == {"rooms", *rooms, *(f"{room}->{low}" for room in rooms for low in direct(room))}:
        return 0
    print("docs/rooms.svg:1: does not show src/rooms.txt; draw it again: tools/draw_rooms.py > docs/rooms.svg")
    return 1


def main():
    if "--check" in sys.argv[1:]:
        return check()
    if "--dot" in sys.argv[1:] or shutil.which("dot") is None:
        sys.stdout.write(dot_text())
        return 0
    return subprocess.run(["dot", "-Tsvg"], input=dot_text(), text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
