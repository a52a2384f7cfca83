#!/usr/bin/env python3
"""Draws the crossovers that bench/shaped_links.py measured, next to the tokens that bytes alone give:

    bench/crossover_plot.py bench/results/crossover_shaped_links.json docs/crossovers.svg
"""
import argparse
import json
import pathlib

PANELS = {"flat": "flat, (c + 1) E F / K tokens", "gather_tokens": "gather_tokens, (c + 1) E F / G tokens"}
COLORS = ["#c0392b", "#2471a3", "#1e8449", "#8e44ad", "#d68910", "#34495e"]
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 240, 60, 70, 80
FROM, TO, LOW, HIGH = 0.65, 1.35, 0.5, 1.6


def panel(x0, title, lines):
    def x_of(share):
        return x0 + WIDTH * (share - FROM) / (TO - FROM)

    def y_of(value):
        return TOP + HEIGHT * (1 - (value - LOW) / (HIGH - LOW))

    near = x_of(0.85), x_of(1.15) - x_of(0.85)
    out = [f'<text x="{x0 + WIDTH / 2}" y="{TOP - 10}" text-anchor="middle" font-weight="bold">{title}</text>',
           f'<rect x="{near[0]:.1f}" y="{TOP}" width="{near[1]:.1f}" height="{HEIGHT}" fill="#eef3f8"/>']
    for tick in (0.5, 0.75, 1, 1.25, 1.5):
        color = "#555" if tick == 1 else "#ddd"
        out.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y_of(tick):.1f}" y2="{y_of(tick):.1f}" stroke="{color}"/>')
        out.append(f'<text x="{x0 - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in (0.7, 0.85, 1, 1.15, 1.3):
        out.append(f'<text x="{x_of(tick):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<line x1="{x_of(1):.1f}" x2="{x_of(1):.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#555"/>')
    for i, (name, points) in enumerate(lines):
        at = [(x_of(share), y_of(ratio)) for share, ratio in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLORS[i % len(COLORS)]}"/>' for x, y in at]
        y = TOP + 18 + 16 * i
        out.append(f'<line x1="{x0 + 8}" x2="{x0 + 30}" y1="{y - 4}" y2="{y - 4}" stroke="{COLORS[i % len(COLORS)]}" '
                   'stroke-width="2"/>')
        out.append(f'<text x="{x0 + 36}" y="{y}">{name}</text>')
    return out


def draw(runs):
    lines = {transport: [] for transport in PANELS}
    for run in runs:
        for crossover in run["crossovers"]:
            expected, transport = crossover["expected_tokens"], crossover["transport"]
            points = [(point["tokens"] / expected, point[f"{transport}_ms"] / point["gather_weights_ms"])
                      for point in crossover["points"]]
            lines[transport].append((f"{run['nodes']} nodes, {run['rate'].replace('mbit', ' Mbit/s')}", points))
    width, height = LEFT + len(PANELS) * (WIDTH + GAP), TOP + HEIGHT + 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="20" fill="#555">Exchanges of a layer: time over that of gather_weights, by tokens of a rank'
           '</text>',
           f'<text x="{LEFT}" y="36" fill="#555">over the tokens where bytes are equal, which the title names; shaded: within '
           '15 %</text>']
    for i, (transport, title) in enumerate(PANELS.items()):
        out += panel(LEFT + i * (WIDTH + GAP), title, lines[transport])
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("svg", type=pathlib.Path)
    args = parser.parse_args()
    args.svg.write_text(draw(json.loads(args.results.read_text())["runs"]))


main()
