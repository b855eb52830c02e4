#!/usr/bin/env python3
"""What overflow drops, and what saved routing keeps and avoids: two tables of short runs.

usage: scripts/overflow_table.py [RANKS [STEPS [CONFIG]]]    (default: 4 120 configs/demo.json)
Runs go to runs/overflow-table/NAME; the tables, in Markdown, to stdout.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20

FACTOR = {"policy": "factor", "factor": {"factor": 1.1}, "on_overflow": "drop"}
DROPS = {
    "worst case": {"capacity": {"policy": "worst_case"}},
    "tail": {"capacity": FACTOR, "ep.drop_order": "tail"},
    "fair": {"capacity": FACTOR, "ep.drop_order": "fair"},
    "random": {"capacity": FACTOR, "ep.drop_order": "random"},
    "score": {"capacity": FACTOR, "ep.drop_order": "score"},
    "score, renormalized": {"capacity": FACTOR, "ep.drop_order": "score",
                            "ep.renormalize_kept": True},
}
RECOMPUTE = {
    "none": {},
    "moe": {"recompute.region": "moe"},
    "moe, saves dispatch": {"recompute.region": "moe", "recompute.save": ["dispatch"]},
    "layer": {"recompute.region": "layer"},
    "layer, saves dispatch": {"recompute.region": "layer", "recompute.save": ["dispatch"]},
}


def train(ranks, config, folder, settings):
    """Metrics of a run by type of line."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(ROOT / "scripts/launch.sh"), str(ranks), config, "--run-dir", str(folder)]
    for path, value in settings.items():
        command += ["--set", f"{path}={json.dumps(value)}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    lines = {}
    for text in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        lines.setdefault(line["type"], []).append(line)
    return lines


def markdown(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def drop_row(name, lines):
    ep = lines["ep"]
    routed = sum(sum(line["recv_assignments"]) for line in ep)
    dropped = sum(sum(line["dropped_assignments"]) for line in ep)
    mass = sum(line["gate_mass"] for line in ep)
    lost = sum(line["dropped_gate_mass"] for line in ep)
    # Every MoE layer sees every token once.
    layers = len({line["layer"] for line in ep})
    tokens = layers * sum(line["tokens"] for line in lines["step"])
    alone = sum(sum(line["fully_dropped_tokens"]) for line in ep)
    return [name, f"{ep[0]['recv_buffer_bytes'] / MIB:.2f} MiB", f"{100 * dropped / routed:.2f} %",
            f"{100 * lost / mass:.2f} %", f"{100 * alone / tokens:.2f} %",
            f"{lines['eval'][-1]['loss']:.4f}"]


def recompute_row(name, lines):
    last, counters = lines["step"][-1], lines["counters"][-1]
    steps = sorted(line["step_ms"] for line in lines["step"])
    return [name, f"{last['mem_peak_by_purpose']['receive'] / MIB:.1f} MiB",
            f"{last['mem_peak_by_purpose']['activations'] / MIB:.1f} MiB",
            f"{last['saved_bytes']['dispatch'] / MIB:.1f} MiB",
            f"{counters['all_to_all_bytes'] / MIB:.1f} MiB",
            f"{counters['avoided']['all_to_all_bytes'] / MIB:.1f} MiB",
            f"{steps[len(steps) // 2]:.0f}", last["loss"]]


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    config = sys.argv[3] if len(sys.argv) > 3 else "configs/demo.json"
    common = {"parallel.ep": ranks, "train.steps": steps, "train.eval_every": 0,
              "checkpoint.every": 0, "log.every": 0}
    runs = ROOT / "runs" / "overflow-table"

    def run(name, settings, **more):
        folder = runs / name.replace(",", "").replace(" ", "-")
        return train(ranks, config, folder, {**common, **settings, **more})

    markdown(["kept by", "receive buffer of a layer", "assignments dropped", "gate mass dropped",
              "tokens that lost all", "held-out loss"],
             [drop_row(name, run(name, settings)) for name, settings in DROPS.items()])
    short = {"train.steps": min(steps, 10), "data.valid": [],
             "capacity": {"policy": "worst_case"}}
    markdown(["recompute", "receive buffers", "activations", "kept as `dispatch`",
              "all-to-all a step", "avoided", "ms a step", "loss"],
             [recompute_row(name, run(name, settings, **short))
              for name, settings in RECOMPUTE.items()])


if __name__ == "__main__":
    main()
