#!/usr/bin/env python3
"""Plans a table of layouts and measures them, one after the other.

    bench/layout_table.py plan build/release/moewright bench/eight_gpus.json
    bench/layout_table.py measure build/cuda/moewright bench/eight_gpus.json --json FILE [--rows 0:4]

A table has `ranks` and `rows`; of each row `run` is a run file, `vocab` how many tokens its data is drawn from, and
`overrides` what the layout changes. `measure` keeps what it has after every row in FILE and goes on from there, and a
row that fails does not end the others.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TELL = 2000  # characters of what a failed run said last


def call(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def plan(binary, profile, ranks, row):
    done = call([binary, "plan", ROOT / row["run"], "--platform", profile, "--ranks", ranks, "--json", "--why", "",
                 f"plan.balance={row.get('balance', 1)}", *row["overrides"]])
    if done.returncode != 0:
        raise SystemExit(f"{row['layout']}: {done.stderr}")
    found = json.loads(done.stdout)
    return {**row, "planned_ms": 1e3 * found["step_s"], "planned_bytes": found["needed_bytes"], "fits": found["fits"],
            "planned_tflops_per_rank": found["tflops_per_rank"]}


def measure(binary, ranks, steps, row):
    """The row with what was measured, or with what a run that failed said last."""
    row = {key: value for key, value in row.items() if key != "failed"}  # of an earlier try
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        done = call([sys.executable, ROOT / "bench/train_step.py", binary, "--device", row.get("device", "cuda"),
                     "--ranks", ranks, "--random-tokens", row["vocab"], "--steps", steps, ROOT / row["run"],
                     *row["overrides"], "--json", result.name])
        if done.returncode != 0:
            return {**row, "failed": (done.stdout + done.stderr)[-TELL:]}
        step = json.loads(pathlib.Path(result.name).read_text())
    row = {**row, "measured_ms": step["step_ms"], "taken_bytes": step["mem_peak_bytes"],
           "tensor_bytes": step["mem_predicted_bytes"],
           **{key: step[key] for key in ("tokens_per_s", "tflops_per_rank")}}
    if "planned_ms" in row:
        row["error_percent"] = 100 * row["planned_ms"] / step["step_ms"] - 100
        row["memory_error_percent"] = 100 * row["planned_bytes"] / step["mem_peak_bytes"] - 100
    return row


def describe(row):
    text = f"{row.get('shape', ''):13} {row['layout']:95}"
    if "planned_ms" in row:
        text += f" planned {row['planned_ms']:8.1f} ms {row['planned_bytes'] / 2**30:6.1f} GiB"
    if not row.get("fits", True):
        text += " (does not fit)"
    if "failed" in row:
        return f"{text} FAILED\n{row['failed']}"
    if "measured_ms" in row:
        text += (f" measured {row['measured_ms']:8.1f} ms {row['taken_bytes'] / 2**30:6.1f} GiB "
                 f"{row['tflops_per_rank']:6.1f} TFLOP/s")
    return text


def keep(path, table, rows):
    if path:
        pathlib.Path(path).write_text(json.dumps({**table, "rows": rows}, indent=1) + "\n")


def measure_all(binary, table, steps, path, selection=slice(None)):
    """Rows that are measured already stay as they are; returns all of them."""
    rows = list(table["rows"])
    for i in range(len(rows))[selection]:
        if "measured_ms" not in rows[i]:
            rows[i] = measure(binary, table["ranks"], steps, rows[i])
            keep(path, table, rows)
        print(describe(rows[i]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["plan", "measure"])
    parser.add_argument("binary", help="moewright; to measure, built for the GPUs")
    parser.add_argument("table")
    parser.add_argument("--profile", default=ROOT / "profiles/h200x8.json")
    parser.add_argument("--rows", default=":", help="FROM:TO, counted from 0")
    parser.add_argument("--steps", type=int, default=8, help="of each layout, of which three do not count")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    table = json.loads(pathlib.Path(options.table).read_text())
    if options.json and pathlib.Path(options.json).exists():
        kept = json.loads(pathlib.Path(options.json).read_text())
        if [row["overrides"] for row in kept["rows"]] != [row["overrides"] for row in table["rows"]]:
            raise SystemExit(f"{options.json} is of another table than {options.table}; name another file")
        table = kept
    selection = slice(*(int(text) if text else None for text in options.rows.split(":")))
    table["rows"] = [row if "measured_ms" in row else plan(options.binary, options.profile, table["ranks"], row)
                     for row in table["rows"]]
    keep(options.json, table, table["rows"])
    if options.command == "plan":
        print(*map(describe, table["rows"][selection]), sep="\n")
        return
    rows = measure_all(options.binary, table, options.steps, options.json, selection)
    sys.exit(any("failed" in row for row in rows[selection]))


if __name__ == "__main__":
    main()
