"""What the tests of the trainer's program share: a folder with a text and configs, jobs in it, and
the documented face of the metrics."""

import copy
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "scripts" / "launch.sh"
WAIT_S = 60  # far beyond what a job takes here: only a hang reaches it
GONE_S = 10  # the contract: no process of a job is left after that

SEQ, MICRO, TOP_K, EXPERTS, LAYERS, STEPS, ALIGNMENT = 32, 1, 2, 8, 2, 4, 8

FIELDS = {
    "run": {"config", "git_commit", "world", "ep", "dp", "device", "threads", "parameters",
            "resumed_from"},
    "step": {"step", "loss", "aux_loss", "z_loss", "grad_norm", "lr", "tokens", "step_ms",
             "tokens_per_s", "tflops", "mfu", "mem_peak_bytes", "mem_peak_by_purpose", "saved_bytes",
             "skipped"},
    "ep": {"step", "micro_batch", "layer", "epoch", "capacity", "capacity_end",
           "total_recv_tokens", "recv_assignments", "slot_counts_sum", "dropped_assignments",
           "dropped_by_expert", "dropped_by_source", "fully_dropped_tokens", "padding_slots",
           "expert_tokens", "gate_mass", "dropped_gate_mass", "balanced_slots",
           "worst_case_slots", "max_over_balanced", "headroom", "recv_buffer_bytes",
           "capacity_sized_bytes"},
    "ep_step": {"step", "layer", "max_total_recv_tokens", "dropped_assignments", "capacity",
                "capacity_end", "grow_events"},
    "counters": {"step", "prepares", "fused_prepares", "forward_dispatches", "combines",
                 "backward_transports", "host_syncs", "all_to_all_bytes", "backward",
                 "avoided"},
    "reconfigure": {"step", "epoch", "layer", "kind", "group", "micro_batch", "old_capacity",
                    "new_capacity", "reason", "mode", "drain_ms", "finalize_ms", "init_ms",
                    "alloc_ms"},
    "eval": {"step", "loss", "tokens", "dropped_assignments"},
}

def merged(base, changes):
    """A copy of a nested dict with "a.b.c" keys set."""
    result = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, name = path.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return result


def read_metrics(folder):
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n"), "the last line is cut off"
    return [json.loads(line) for line in text.splitlines()]


def of_type(lines, kind):
    return [line for line in lines if line["type"] == kind]


class Workplace:
    """A folder with a text and a config, and the jobs that were started in it."""

    def __init__(self, build):
        self.build = build
        self.holder = tempfile.TemporaryDirectory(prefix="spillway_train_")
        self.folder = Path(self.holder.name)
        self.run_dir = self.folder / "run"
        rng = random.Random(7)
        words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(50)]
        (self.folder / "text.txt").write_text(" ".join(rng.choices(words, k=4000)))
        self.jobs = []

    def config(self, **changes):
        """Changes are given with __ for the dots of a path."""
        base = {
            "run": {"dir": str(self.run_dir), "seed": 1},
            "model": {"hidden": 16, "layers": LAYERS, "heads": 2, "kv_heads": 1, "max_seq": SEQ},
            "moe": {"experts": EXPERTS, "top_k": TOP_K, "ffn": 16, "alignment": ALIGNMENT},
            "data": {"train": [str(self.folder / "text.txt")], "seq": SEQ},
            "optim": {"lr": 0.002, "min_lr": 0.0002, "warmup_steps": 1},
            "train": {"steps": STEPS, "micro_batch": MICRO, "check_replicas": 1},
            "log": {"every": 1},
        }
        return merged(base, {path.replace("__", "."): value for path, value in changes.items()})

    def start(self, ranks, config, *options):
        text = config if isinstance(config, str) else json.dumps(config)
        path = self.folder / f"config{len(self.jobs)}.json"
        path.write_text(text)
        return self.start_file(ranks, path, *options)

    def start_file(self, ranks, path, *options):
        job = subprocess.Popen([LAUNCH, "--build", self.build, str(ranks), path, *options],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
        self.jobs.append(job)
        return job

    def finish(self, job):
        """Exit code, stdout, stderr, once no process of the job is left."""
        out, err = job.communicate(timeout=WAIT_S)
        end = time.monotonic() + GONE_S
        while self.processes():
            assert time.monotonic() < end, f"left after {GONE_S} s: {self.processes()}"
            time.sleep(0.05)
        return job.returncode, out, err

    def run(self, ranks, config, *options):
        return self.finish(self.start(ranks, config, *options))

    def processes(self):
        """(pid, command) of everything that was started with a config of this folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(str(self.folder).encode() in word for word in command):
                found.append((int(entry.name), command[0].decode()))
        return found

    def ranks(self):
        return [pid for pid, command in self.processes() if command.endswith("/bin/train")]

    def close(self):
        left = [job for job in self.jobs if job.poll() is None]
        for job in left:
            job.kill()
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for job in left:  # not before: processes of the job hold its pipes
            job.communicate()
        self.holder.cleanup()
