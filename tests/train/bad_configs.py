"""Everything that the trainer refuses, in one table, through the program: exit code, one line of fewer
than 300 characters, and what the line names.

usage: bad_configs.py BUILD_DIR [unittest options]
"""

import json
import os
import struct
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from workplace import ROOT, SEQ, WAIT_S, Workplace, merged

BUILD = ROOT / "build"  # replaced by the first argument
MAX_LINE = 300
LEAST_ROWS = 60
CONFIG, DATA = 2, 4  # exit codes
CORES = 2


@dataclass
class Row:
    name: str
    changes: object  # of the good config {"a.b": value}, or the whole text of the file
    names: list  # what the line must name, the JSON path or file first
    options: list = field(default_factory=list)
    world: int = 1  # of --validate
    ranks: int = 0  # 0: --validate alone, without MPI; else a run of so many ranks
    code: int = CONFIG


def refused(name, changes, *names, **how):
    return Row(name, changes, list(names), **how)


def meant(name, changes, path, suggestion, **how):
    """A name that is nearly right: the right one is suggested."""
    return Row(name, changes, [path, f'did you mean "{suggestion}"?'], **how)


CONFIGS = [
    # run
    refused("empty_run_dir", {"run.dir": ""}, "run.dir", "directory"),
    refused("negative_seed", {"run.seed": -1}, "run.seed", "-1"),
    refused("unknown_dtype", {"run.dtype": "int4"}, "run.dtype", "f32, bf16"),
    refused("cuda_in_cpu_build", {"run.device": "cuda"}, "run.device", "auto, cpu", ranks=1),
    # model
    refused("small_vocabulary", {"model.vocab_size": 100}, "model.vocab_size", "258"),
    refused("no_vocabulary_of_ids", {"model.vocab_size": 0, "data.format": "u32"},
            "model.vocab_size", "at least 1"),
    refused("hidden", {"model.hidden": 0}, "model.hidden"),
    refused("hidden_over_heads", {"model.hidden": 15}, "model.hidden", "15"),
    refused("layers", {"model.layers": 0}, "model.layers"),
    refused("heads", {"model.heads": -2}, "model.heads", "-2"),
    refused("kv_heads", {"model.kv_heads": 3}, "model.kv_heads"),
    refused("odd_head_dim", {"model.head_dim": 7}, "model.head_dim", "even"),
    refused("max_seq", {"model.max_seq": 0}, "model.max_seq"),
    refused("rope_theta", {"model.rope_theta": 0}, "model.rope_theta"),
    refused("norm_eps", {"model.norm_eps": -1e-6}, "model.norm_eps"),
    refused("first_dense_layers", {"model.first_dense_layers": 99}, "model.first_dense_layers"),
    refused("more_than_64_bits", {"model.hidden": 2**40, "moe.ffn": 2**40}, "model.hidden"),
    # moe
    refused("negative_experts", {"moe.experts": -1}, "moe.experts"),
    refused("top_k_above_experts", {"moe.top_k": 9}, "moe.top_k"),
    refused("top_k_0", {"moe.top_k": 0}, "moe.top_k"),
    refused("ffn", {"moe.ffn": 0}, "moe.ffn"),
    refused("shared_experts", {"moe.shared_experts": -1}, "moe.shared_experts"),
    refused("alignment", {"moe.alignment": 12}, "moe.alignment", "power of two"),
    refused("aux_coef", {"moe.router.aux_coef": -0.1}, "moe.router.aux_coef"),
    refused("z_coef", {"moe.router.z_coef": -1}, "moe.router.z_coef"),
    refused("router_scale", {"moe.router.scale": 0}, "moe.router.scale"),
    refused("router_groups", {"moe.router.groups": 3, "moe.router.topk_groups": 1},
            "moe.router.groups"),
    refused("router_topk_groups", {"moe.router.groups": 4, "moe.router.topk_groups": 5},
            "moe.router.topk_groups"),
    refused("router_bias", {"moe.router.bias_update_rate": -0.1}, "moe.router.bias_update_rate"),
    # parallel, ep
    refused("ep_does_not_divide_world", {"parallel.ep": 3}, "parallel.ep", "world size 4", world=4),
    refused("ep_does_not_divide_experts", {"parallel.ep": 3}, "parallel.ep", "moe.experts",
            world=3),
    refused("ep_0", {"parallel.ep": 0}, "parallel.ep"),
    refused("self_in_a_world", {"parallel.transport": "self"}, "parallel.transport", world=2),
    refused("mpi_without_mpirun", {"parallel.transport": "mpi"}, "parallel.transport", ranks=1),
    refused("zero", {"parallel.zero": 2}, "parallel.zero", "0, 1"),
    refused("drop_order", {"ep.drop_order": "best"}, "ep.drop_order", "tail"),
    refused("drop_seed", {"ep.drop_seed": -1}, "ep.drop_seed"),
    # capacity
    refused("slots_not_aligned", {"capacity.policy": "fixed", "capacity.fixed": {"slots": 12}},
            "capacity.fixed.slots", "moe.alignment = 8"),
    refused("policy", {"capacity.policy": "magic"}, "capacity.policy", "worst_case, fixed"),
    refused("policy_of_the_simulator", {"capacity.policy": "oracle"}, "capacity.policy",
            "simulator"),
    refused("factor", {"capacity.factor": {"factor": 0}}, "capacity.factor.factor"),
    refused("window", {"capacity.peak": {"window_steps": 0}}, "capacity.peak.window_steps"),
    refused("on_overflow", {"capacity.on_overflow": "explode"}, "capacity.on_overflow",
            "fail, drop, grow, skip"),
    refused("initial", {"capacity.initial": {"factor": -1}}, "capacity.initial.factor"),
    refused("interval", {"capacity.interval": 0}, "capacity.interval"),
    refused("grow_margin", {"capacity.grow_margin": -0.5}, "capacity.grow_margin"),
    refused("max_bytes", {"capacity.max_bytes": 1}, "capacity.max_bytes"),
    # recompute, data
    refused("save_name", {"recompute.save": ["everything"]}, "recompute.save[0]", "dispatch"),
    refused("no_training_file", {"data.train": []}, "data.train"),
    refused("empty_path", {"data.valid": ["a", ""]}, "data.valid[1]"),
    refused("format", {"data.format": "parquet"}, "data.format", "text, u16, u32"),
    refused("seq_0", {"data.seq": 0}, "data.seq"),
    refused("sequence_above_max_seq", {"data.seq": SEQ + 1}, "data.seq", "model.max_seq"),
    # optim, train, checkpoint, log
    refused("learning_rate", {"optim.lr": 0}, "optim.lr"),
    refused("min_lr", {"optim.min_lr": 1.0}, "optim.min_lr"),
    refused("beta", {"optim.beta2": 1.0}, "optim.beta2"),
    refused("clip", {"optim.clip": -1}, "optim.clip"),
    refused("steps", {"train.steps": 0}, "train.steps"),
    refused("micro_batch", {"train.micro_batch": 0}, "train.micro_batch"),
    refused("grad_accum", {"train.grad_accum": -3}, "train.grad_accum", "-3"),
    refused("checkpoint_keep", {"checkpoint.keep": 0}, "checkpoint.keep"),
    refused("checkpoint_every", {"checkpoint.every": -1}, "checkpoint.every"),
    refused("metrics_name", {"log.metrics": "../metrics"}, "log.metrics"),
    refused("log_level", {"log.level": "loud"}, "log.level"),
    # types and syntax
    refused("string_for_integer", {"train.steps": "four"}, "train.steps", '"four"', "integer"),
    refused("point_in_integer", {"model.layers": 2.0}, "model.layers", "integer"),
    refused("number_for_boolean", {"data.shuffle": 1}, "data.shuffle", "boolean"),
    refused("string_for_list", {"data.train": "a.txt"}, "data.train", "a list"),
    refused("number_in_list", {"data.train": ["a", 7]}, "data.train[1]", "a string"),
    refused("list_for_section", {"moe": []}, "moe", "an object"),
    refused("duplicate_key", '{"train": {"steps": 1, "steps": 2}}', "train.steps", "twice"),
    refused("no_json", "{ steps: 4 }", "config", "line 1, column 3"),
    refused("empty_file", "", "config", "not JSON"),
    refused("cut_short", '{"train": {"steps": 4}', "config", "not JSON"),
    refused("very_long_value", {"run.dtype": "x" * 5000}, "run.dtype", "..."),
    refused("control_characters", {"run.dtype": "a\nb\x07"}, "run.dtype"),
    # a known name is near
    refused("unknown_key", {"train.tempo": 4}, "train.tempo", "no known key", "micro_batch"),
    meant("hiden", {"model.hiden": 64}, "model.hiden", "hidden"),
    meant("topk", {"moe.topk": 2}, "moe.topk", "top_k"),
    meant("on_overflw", {"capacity.on_overflw": "drop"}, "capacity.on_overflw", "on_overflow"),
    meant("router_key", {"moe.router.aux_los": "none"}, "moe.router.aux_los", "aux_loss"),
    meant("section", {"trian": {}}, "trian", "train"),
    meant("policy_key", {"capacity.peak": {"margins": 1}}, "capacity.peak.margins", "margin"),
    meant("near_choice", {"capacity.on_overflow": "dorp"}, "capacity.on_overflow", "drop"),
    meant("near_dtype", {"run.dtype": "bf-16"}, "run.dtype", "bf16"),
    meant("near_policy", {"capacity.policy": "worstcase"}, "capacity.policy", "worst_case"),
    meant("near_save", {"recompute.save": ["router", "dispach"]}, "recompute.save[1]", "dispatch"),
    meant("near_format", {"data.format": "txt"}, "data.format", "text"),
    meant("near_key_on_the_command_line", {}, "train.step ", "steps",
          options=["--set", "train.step=4"]),
    # the command line
    refused("bad_assignment", {}, "train.steps", options=["--set", "train.steps=0"]),
    refused("assignment_without_value", {}, "train.steps", "PATH=VALUE",
            options=["--set", "train.steps"]),
    refused("unknown_option", {}, "--frobnicate", options=["--frobnicate"]),
    refused("world_without_validate", {}, "--world", options=["--world", "4"], ranks=1),
    refused("world_no_number", {}, "--world", options=["--world", "four"]),
    refused("several_ranks_one_line", {"moe.top_k": 9}, "moe.top_k", ranks=2),
    refused("several_ranks_one_line_of_options", {}, "--frobnicate", options=["--frobnicate"],
            ranks=2),
]

# Files that `make_files` writes; a path without "/" in data.train or data.valid is one of them.
DATA_FILES = [
    refused("data_missing", {"data.train": ["nowhere.txt"]}, "nowhere.txt", "No such file"),
    refused("data_missing_valid", {"data.valid": ["nowhere.txt"]}, "nowhere.txt"),
    refused("data_second_missing", {"data.train": ["good.u16", "nowhere.u16"],
                                    "data.format": "u16"}, "nowhere.u16"),
    refused("data_directory", {"data.train": ["folder"]}, "folder", "directory"),
    refused("data_pipe", {"data.train": ["pipe"]}, "pipe", "regular file"),
    refused("data_below_a_file", {"data.train": ["good.u16/x"]}, "good.u16/x"),
    refused("data_link_to_itself", {"data.train": ["loop"]}, "loop", "cannot be opened"),
    refused("data_not_readable", {"data.train": ["secret.txt"]}, "secret.txt", "cannot be opened"),
    refused("data_empty", {"data.train": ["empty"]}, "empty", "is empty"),
    refused("data_empty_u32", {"data.train": ["empty"], "data.format": "u32"}, "is empty"),
    refused("data_too_short", {"data.train": ["short.txt"]}, "5 tokens", "data.seq"),
    refused("data_too_short_valid", {"data.valid": ["short.txt"]}, "5 tokens", "data.seq"),
    refused("data_no_global_batch", {"data.valid": ["one_sequence.txt"], "train.micro_batch": 2},
            "validation"),
    refused("data_odd_u16", {"data.train": ["odd"], "data.format": "u16"}, "odd", "1001 bytes",
            "u16"),
    refused("data_odd_u32", {"data.train": ["two_over"], "data.format": "u32"}, "two_over",
            "1002 bytes", "u32"),
    refused("data_id_u16", {"data.train": ["bad.u16"], "data.format": "u16",
                            "model.vocab_size": 300, "data.shuffle": False},
            "bad.u16", "token 40 ", "byte 80", "id 300;", "model.vocab_size 300"),
    refused("data_id_u32", {"data.train": ["good.u32", "bad.u32"], "data.format": "u32",
                            "model.vocab_size": 300, "data.shuffle": False, "train.steps": 40},
            "bad.u32", "token 7 ", "byte 28", "id 4000000000;", "model.vocab_size 300"),
    refused("data_id_valid", {"data.train": ["good.u16"], "data.valid": ["bad.u16"],
                              "data.format": "u16", "model.vocab_size": 300}, "bad.u16", "id 300;"),
    # Sequence 1 is that of the second rank: it alone has something to say.
    refused("data_id_of_one_rank", {"data.train": ["bad.u16"], "data.format": "u16",
                                    "model.vocab_size": 300, "data.shuffle": False},
            "[rank 1]", "bad.u16", "token 40 ", ranks=2),
    refused("data_missing_on_ranks", {"data.train": ["nowhere.txt"]}, "[rank ", "nowhere.txt",
            ranks=2),
]
for row in DATA_FILES:
    row.code = DATA
    row.ranks = max(row.ranks, 1)

# Bad checkpoints need a good one first: resume_program_test.py.
TABLE = CONFIGS + DATA_FILES


def make_files(folder):
    """What the rows of DATA_FILES name."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "secret.txt").write_text("x" * 1000)
    (folder / "secret.txt").chmod(0)
    (folder / "empty").write_bytes(b"")
    (folder / "short.txt").write_text("abc")
    (folder / "one_sequence.txt").write_text("x" * SEQ)
    (folder / "odd").write_bytes(bytes(1001))
    (folder / "two_over").write_bytes(bytes(1002))
    ids = [i % 300 for i in range(1000)]
    (folder / "good.u16").write_bytes(struct.pack("<1000H", *ids))
    (folder / "good.u32").write_bytes(struct.pack("<1000I", *ids))
    (folder / "bad.u16").write_bytes(struct.pack("<1000H", *ids[:40], 300, *ids[41:]))
    (folder / "bad.u32").write_bytes(struct.pack("<1000I", *ids[:7], 4_000_000_000, *ids[8:]))


class BadInputsTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)
        make_files(self.place.folder)

    def config_of(self, row):
        if isinstance(row.changes, str):
            return row.changes
        changes = {"log.level": "error", "run.dir": str(self.place.folder / f"run.{row.name}"),
                   **row.changes}
        for key in ("data.train", "data.valid"):
            if row.code == DATA and key in changes:
                changes[key] = [str(self.place.folder / path) for path in changes[key]]
        return merged(self.place.config(), changes)

    def run_row(self, row):
        """Exit code, stdout, stderr."""
        config = self.config_of(row)
        path = self.place.folder / f"{row.name}.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        if row.ranks > 1:
            job = self.place.start_file(row.ranks, path, *row.options)
            out, err = job.communicate(timeout=WAIT_S)
            return job.returncode, out, err
        command = [BUILD / "bin" / "train", "--config", path, *row.options]
        if row.ranks == 0:
            command += ["--validate"] + (["--world", str(row.world)] if row.world > 1 else [])
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        return done.returncode, done.stdout, done.stderr

    def check(self, row, code, out, err):
        self.assertEqual(code, row.code, err)
        self.assertEqual(out, "")
        lines = err.splitlines()
        self.assertEqual(len(lines), 1, err)
        self.assertLess(len(lines[0]), MAX_LINE)
        for name in row.names:
            self.assertIn(name, lines[0])
        if row.code == CONFIG:
            self.assertFalse((self.place.folder / f"run.{row.name}").exists(), "something was made")

    def test_every_row_is_refused_in_one_line(self):
        rows = [row for row in TABLE if row.name != "data_not_readable" or not self.reads_all()]
        with ThreadPoolExecutor(CORES) as pool:
            for row, result in zip(rows, pool.map(self.run_row, rows)):
                with self.subTest(row.name):
                    self.check(row, *result)

    def reads_all(self):
        """True for a user, root above all, whom file modes do not keep out."""
        return os.access(self.place.folder / "secret.txt", os.R_OK)

    def test_the_table_is_long_and_its_names_differ(self):
        names = [row.name for row in TABLE]
        self.assertGreaterEqual(len(names), LEAST_ROWS)
        self.assertEqual(len(names), len(set(names)))

    def test_the_config_that_the_rows_change_is_good(self):
        self.assertEqual(self.run_row(Row("good", {}, []))[0], 0)

    def test_token_files_train(self):
        for kind in ("u16", "u32"):
            with self.subTest(kind):
                file = str(self.place.folder / f"good.{kind}")
                changes = {"data.train": [file, file], "data.valid": [file], "data.format": kind,
                           "model.vocab_size": 300, "log.level": "info"}
                code, out, err = self.run_row(Row(kind, changes, [], ranks=1))
                self.assertEqual(code, 0, err)
                self.assertIn("Held-out loss", out)
                # The baseline counts bytes: it is that of text.
                self.assertNotIn("For comparison", out)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
