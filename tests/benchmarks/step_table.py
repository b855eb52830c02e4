#!/usr/bin/env python3
"""The table of scripts/bench_cpu.sh from a file of JSON lines.

usage: step_table.py FILE
"""

import json
import sys


def best_peer(lines, dtype):
    """The fastest kind of the other program, None when there is no time of it."""
    times = [line for line in lines if line["bench"] == "transformers_step"
             and line["dtype"] == dtype and "step_ms" in line]
    return min(times, key=lambda line: line["step_ms"]["median"], default=None)


def rows(lines):
    for step in (line for line in lines if line["bench"] == "step"):
        dtype = step["dtype"]
        plain = [line for line in lines if line["bench"] == "matmul" and line["dtype"] == dtype]
        peer = best_peer(lines, dtype)
        ms = step["step_ms"]["median"]
        yield [dtype, f"{ms:.1f}", f"{step['step_ms']['min']:.1f}",
               f"{step['tokens_per_s']:.0f}",
               f"{step['gflops']:.0f}", f"{step['gflops_without_attention']:.0f}",
               f"{plain[-1]['gflops']:.0f}" if plain else "-",
               f"{peer['step_ms']['median']:.1f} ({peer['kind']})" if peer else "-",
               f"{peer['step_ms']['median'] / ms:.2f}" if peer else "-"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    head = ["dtype", "step ms", "least ms", "tokens/s", "GFLOP/s", "without attention",
            "plain product", "transformers ms", "ratio"]
    table = [head, *rows(lines)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    for machine in sorted({(line["cpu"], line["threads"]) for line in lines if "cpu" in line}):
        print(f"{machine[0]}, {machine[1]} threads; ratio = transformers' best / ours, medians")


if __name__ == "__main__":
    main()
