"""The plot of simulated exchanges, as SVG."""
import math

PLATFORMS = {"dragonfly": "dragonfly, static routes", "frontier_ideal": "Frontier-like, ideal routes",
             "frontier_static": "Frontier-like, static routes"}
SIZES = (4, 64, 512)
LINES = {"flat": ("#c0392b", ""), "printed": ("#7f8c8d", "6 4"), "halo": ("#2471a3", ""), "bypass": ("#1e8449", "")}
NAMES = {"flat": "flat", "printed": "HALO as printed in Piper", "halo": "halo", "bypass": "bypass"}
WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 250, 170, 70, 66, 40, 52
LOW, HIGH = 0.5, 8


def times(rows, platform, kib):
    """By transport, {ranks: time over the least time of halo's bytes, which are flat's between nodes}; the faster of
    several chunk counts."""
    rows = [row for row in rows if row["platform"] == platform and row["kib_per_pair"] == kib and row["zipf"] is None
            and row["ep"] == row["ranks"] and not row["forward"]]
    least = {row["ranks"]: row["bound_us"] for row in rows if row["transport"] == "halo"}
    lines = {name: {} for name in LINES}
    for row in rows:
        if row["transport"] in lines and row["ranks"] in least:
            line, value = lines[row["transport"]], row["rows_us"] / least[row["ranks"]]
            line[row["ranks"]] = min(value, line.get(row["ranks"], value))
    return lines


def panel(x0, y0, title, lines):
    def x_of(ranks):
        return x0 + WIDTH * (math.log2(ranks) - 5.5) / 5

    def y_of(value):
        return y0 + HEIGHT * (1 - math.log(value / LOW) / math.log(HIGH / LOW))

    out = [f'<text x="{x0 + WIDTH / 2}" y="{y0 - 8}" text-anchor="middle" font-weight="bold">{title}</text>']
    for tick in (0.5, 1, 2, 4, 8):
        color = "#555" if tick == 1 else "#ddd"
        out.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y_of(tick):.1f}" y2="{y_of(tick):.1f}" stroke="{color}"/>')
        out.append(f'<text x="{x0 - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for ranks in (64, 256, 1024):
        out.append(f'<text x="{x_of(ranks):.1f}" y="{y0 + HEIGHT + 15}" text-anchor="middle">{ranks:,}</text>')
    for name, points in lines.items():
        color, dash = LINES[name]
        at = [(x_of(ranks), y_of(value)) for ranks, value in sorted(points.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in at]
    return out


def draw(rows):
    width = LEFT + len(SIZES) * (WIDTH + GAP_X)
    height = TOP + len(PLATFORMS) * (HEIGHT + GAP_Y) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    x = LEFT
    for name, (color, dash) in LINES.items():
        out.append(f'<line x1="{x}" x2="{x + 28}" y1="18" y2="18" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 34}" y="22">{NAMES[name]}</text>')
        x += 60 + 7 * len(NAMES[name])
    out.append(f'<text x="{LEFT}" y="40" fill="#555">Time of a dispatch over the least time in which the busiest link can carry '
               'the bytes of flat and halo, by ranks, which are one EP group</text>')
    for i, (platform, name) in enumerate(PLATFORMS.items()):
        for j, kib in enumerate(SIZES):
            title = f"{name}, {kib} KiB a pair" if j == 0 else f"{kib} KiB a pair"
            out += panel(LEFT + j * (WIDTH + GAP_X), TOP + i * (HEIGHT + GAP_Y) + 14, title, times(rows, platform, kib))
    return "\n".join([*out, "</svg>", ""])
