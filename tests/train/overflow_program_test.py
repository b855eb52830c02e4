"""Overflow as a user meets it: `fail` ends a job of 8 ranks cleanly wherever it strikes, `grow` is
the worst-case run, `drop` keeps its ledger under every order.

usage: overflow_program_test.py BUILD_DIR [unittest options]
"""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from ep_identities import check_ep_line
from workplace import ROOT, Workplace, of_type, read_metrics

BUILD = ROOT / "build"  # replaced by the first argument
ORDERS = ("tail", "fair", "random", "score")
WORLD, STEPS, ACCUM = 8, 5, 2
LAYER, MICRO_BATCH = 2, 1  # the third MoE layer, the second micro-batch
FIRST_SEED = {8: 6, 4: 3}  # by ep: where a hit is near
MAX_SEEDS = 20  # of a search whose hits are about one in six
FAILED_OVERFLOW = 3  # exit code
LINE = re.compile(r"OverflowError: layer (\d+) rank (\d+) demand (\d+) slots capacity (\d+) slots, "
                  r"smallest that fits (\d+): set capacity\.fixed\.slots")


def losses(folder):
    return {line["step"]: line["loss"] for line in of_type(read_metrics(folder), "step")}


class OverflowCase(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)

    def run_job(self, ranks, config, name, *options, code=0):
        """The job's folder and what it said."""
        folder = self.place.folder / name
        got, _, err = self.place.run(ranks, config, "--run-dir", str(folder), *options)
        self.assertEqual(got, code, err)
        return folder, err


class FailTest(OverflowCase):
    """The first overflow of a run in a place of our choice: layer, micro-batch, group."""

    def config(self, ep, seed, **changes):
        # Nothing evens the load out, and weights move fast: demand climbs to new heights.
        return self.place.config(**{
            "run__seed": seed, "model__hidden": 32, "model__layers": 4, "moe__experts": 16,
            "moe__alignment": 1, "moe__router": {"aux_loss": "none"}, "parallel__ep": ep,
            "train__steps": STEPS, "train__grad_accum": ACCUM, "optim__lr": 0.02,
            "capacity__policy": "worst_case", "checkpoint__every": 1, "checkpoint__keep": STEPS,
            **changes})

    @staticmethod
    def chosen_step(lines, ep):
        """(step, demand, rank of the world) of the first record of all demands so far that falls
        into our layer and micro-batch, in one EP group only."""
        highest = 0
        for line in sorted(lines, key=lambda x: (x["step"], x["micro_batch"], x["layer"])):
            demand = line["total_recv_tokens"]
            groups = [max(demand[i:i + ep]) for i in range(0, len(demand), ep)]
            here = (line["layer"], line["micro_batch"]) == (LAYER, MICRO_BATCH)
            if here and line["step"] >= 2 and max(groups) > highest:
                if sum(group == max(groups) for group in groups) == 1:
                    return line["step"], max(demand), demand.index(max(demand))
            highest = max(highest, max(demand))
        return None

    def search(self, ep):
        for seed in range(FIRST_SEED[ep], FIRST_SEED[ep] + MAX_SEEDS):
            folder, _ = self.run_job(WORLD, self.config(ep, seed), f"worst{seed}")
            found = self.chosen_step(of_type(read_metrics(folder), "ep"), ep)
            if found:
                print(f"ep {ep}: seed {seed}, step {found[0]}, rank {found[2]}, "
                      f"demand {found[1]} slots", flush=True)
                return seed, folder, found
        self.fail(f"no such step in {MAX_SEEDS} seeds")

    def check(self, ep):
        seed, worst, (step, demand, rank) = self.search(ep)
        capacity = {"capacity__policy": "fixed", "capacity__fixed": {"slots": demand - 1}}
        config = self.config(ep, seed, capacity__on_overflow="fail", **capacity)
        folder, err = self.run_job(WORLD, config, "failed", code=FAILED_OVERFLOW)
        self.assertEqual(err.count("OverflowError"), 1, err)
        found = LINE.search(err)
        self.assertTrue(found, err)
        self.assertEqual([int(number) for number in found.groups()],
                         [LAYER, rank, demand, demand - 1, demand])
        self.check_bare_mpirun(config)
        expected = losses(worst)
        self.assertEqual(losses(folder), {s: expected[s] for s in range(1, step)})
        committed = sorted(path.parent.name for path in folder.glob("checkpoints/*/COMMITTED"))
        self.assertEqual(committed[-1], f"step-{step - 1:08d}")
        # It loads, and with room for what came the run is the one that never failed.
        room = self.config(ep, seed, capacity__on_overflow="grow", **capacity)
        self.run_job(WORLD, room, "failed", "--resume", "auto")
        self.assertEqual(losses(folder), expected)
        lines = read_metrics(folder)
        self.assertEqual(of_type(lines, "run")[-1]["resumed_from"], step - 1)
        grown = [line for line in of_type(lines, "reconfigure") if line["kind"] == "grow"]
        self.assertEqual((grown[0]["step"], grown[0]["layer"], grown[0]["micro_batch"],
                          grown[0]["group"]), (step, LAYER, MICRO_BATCH, rank // ep))

    def check_bare_mpirun(self, config):
        """The exit code and the one line do not come from the launcher."""
        path = self.place.folder / "bare.json"
        path.write_text(json.dumps(config))
        job = subprocess.run(
            ["mpirun", "-q", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
             "--mca", "mpi_yield_when_idle", "1", "-x", "OMP_NUM_THREADS=1", "-x",
             "OMP_WAIT_POLICY=passive", "-n", str(WORLD), str(BUILD / "bin" / "train"), "--config",
             str(path), "--run-dir", str(self.place.folder / "bare")],
            capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(job.returncode, FAILED_OVERFLOW, job.stderr)
        self.assertEqual(job.stderr.count("OverflowError"), 1, job.stderr)

    def test_one_group_of_eight(self):
        self.check(ep=8)

    def test_one_of_two_groups_of_four(self):
        self.check(ep=4)


class ActionTest(OverflowCase):
    """What else a config may ask for, on 4 ranks as 2 x 2."""

    def config(self, **changes):
        return self.place.config(parallel__ep=2, **changes)

    def dropping(self, **changes):
        return self.config(capacity__policy="factor", capacity__factor={"factor": 0.75},
                           capacity__on_overflow="drop", **changes)

    def test_every_drop_order_keeps_its_ledger(self):
        drops = {}
        for order in ORDERS:
            folder, _ = self.run_job(4, self.dropping(ep__drop_order=order), order)
            lines = of_type(read_metrics(folder), "ep")
            self.assertTrue(lines)
            for line in lines:
                with self.subTest(order=order, step=line["step"], layer=line["layer"]):
                    check_ep_line(self, line, 2, 2)
                    # Half of the balanced demand is above the capacity: someone drops.
                    self.assertGreater(sum(line["dropped_assignments"]), 0)
            # Before anything was learnt all orders see one routing: demand is that of all.
            drops[order] = [line for line in lines if line["step"] == 1 and line["layer"] == 0]
            values = list(losses(folder).values())
            self.assertLess(values[-1], values[0])
        for field in ("total_recv_tokens", "expert_tokens", "gate_mass"):
            for order in ORDERS[1:]:
                self.assertEqual([line[field] for line in drops[order]],
                                 [line[field] for line in drops["tail"]], (order, field))
        # What each gives up differs; by gate it is the least.
        lost = {order: sum(line["dropped_gate_mass"] / sum(line["dropped_assignments"])
                           for line in drops[order]) for order in ORDERS}
        self.assertEqual(len(set(lost.values())), len(ORDERS), lost)
        self.assertEqual(min(lost, key=lost.get), "score")

    def test_grow_is_the_worst_case_run(self):
        worst, _ = self.run_job(4, self.config(capacity__policy="worst_case"), "worst")
        grown, _ = self.run_job(4, self.config(
            capacity__policy="fixed", capacity__fixed={"slots": 8},
            capacity__on_overflow="grow"), "grown")
        self.assertEqual(losses(grown), losses(worst))
        records = [line for line in of_type(read_metrics(grown), "reconfigure")
                   if line["kind"] == "grow"]
        self.assertTrue(records, "nothing grew")

    def test_renormalised_kept_gates(self):
        results = {}
        for renormalise in (False, True):
            folder, _ = self.run_job(4, self.dropping(ep__renormalize_kept=renormalise),
                                     f"renormalised_{renormalise}")
            results[renormalise] = losses(folder)
            for line in of_type(read_metrics(folder), "ep"):
                check_ep_line(self, line, 2, 2)
        self.assertNotEqual(results[True][1], results[False][1])
        self.assertLess(results[True][max(results[True])], results[True][1])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
