"""Sweeps: grids, lists and searches over a config's keys; trainings that are shared; killed, changed, failing ones."""
import csv
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

import namespaces
from harness import ENV, SOURCE, Case, main

sys.path.insert(0, str(SOURCE / "tests/report"))
import screenshots  # noqa: E402

GRID = """
config: run.yaml
output: sweep
set: {{pipeline: [train, fold, {{prune: {{amount: 0.1}}}}]}}
grid:
  train.optimizer.lr: [0.005, {second}]
  pipeline.prune.amount: [0.2, 0.5]
"""
MEASURED = ("latency_ms", "trained_latency_ms", "turns_latency_ms", "front")


class Sweep(Case):
    def setUp(self):
        super().setUp()
        self.config(steps=8, every=4)

    def sweep(self, text, *arguments, **run):
        (self.dir / "sweep.yaml").write_text(text)
        return self.run_trainer("sweep", "sweep.yaml", *arguments, **run)

    def rows(self, but=()):
        with open(self.dir / "sweep/sweep.csv", newline="") as f:
            return [{k: v for k, v in row.items() if k not in but} for row in csv.DictReader(f)]

    def model(self, trial):
        return self.dir / f"sweep/trial-{trial:03}/model.h5"

    def test_grid(self):
        """Every combination, the last key fastest; a training that is the same is done once; what is there stays."""
        out = self.sweep(GRID.format(second=0.01))
        rows = self.rows()
        self.assertEqual([(r["train.optimizer.lr"], r["pipeline.prune.amount"]) for r in rows],
                         [("0.005", "0.2"), ("0.005", "0.5"), ("0.01", "0.2"), ("0.01", "0.5")])
        self.assertEqual([r["trained_by"] for r in rows], ["0", "0", "2", "2"])
        self.assertEqual([os.stat(self.model(k)).st_ino == os.stat(self.model(k // 2 * 2)).st_ino for k in range(4)], [True] * 4)
        self.assertEqual(len(list(self.dir.glob("sweep/trial-*/metrics.jsonl"))), 2)
        self.assertLess(int(rows[1]["parameters"]), int(rows[0]["parameters"]))
        for k, row in enumerate(rows):
            shown = self.tool("inspect", self.dir / f"sweep/trial-{k:03}/stages/02-prune.h5", "--json")
            self.assertIn(f'"loss": {float(row["loss"]):.6g}'[:14], shown)
        # by the definition, from the table itself: who is not far behind another at first is timed in turns, if two are
        def beats(a, b):
            return a != b and all(x <= y for x, y in zip(a, b))

        points = [(float(r["latency_ms"]), float(r["bytes"]), 1 - float(r["accuracy"])) for r in rows]
        near = [not any(1.25 * p[0] < q[0] and (p[1:] == q[1:] or beats(p[1:], q[1:])) for p in points) for q in points]
        self.assertEqual([bool(r["turns_latency_ms"]) for r in rows], near if sum(near) > 1 else [False] * 4)
        timed = [(round(math.log(float(r["turns_latency_ms"] or r["latency_ms"])) / math.log(1.02)), *p[1:])  # told apart from 2 % on
                 for r, p in zip(rows, points)]
        front = [n and not any(m and beats(p, q) for m, p in zip(near, timed)) for n, q in zip(near, timed)]
        self.assertEqual([r["front"] for r in rows], [str(int(f)) for f in front])
        svg = xml.etree.ElementTree.parse(self.dir / "sweep/sweep.svg").getroot()
        self.assertEqual(sum("trial " in (t.text or "") for t in svg.iter("{http://www.w3.org/2000/svg}title")), 4)
        self.assertIn("| 0.005 |", (self.dir / "sweep/sweep.md").read_text())
        self.assertRegex(out, r"trial +lr +amount +latency, ms")
        before = self.contents("sweep")
        self.assertIn("already holds a sweep", self.run_trainer("sweep", "sweep.yaml", status=2))
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0)
        self.assertNotIn("stage", out)
        self.assertEqual(self.contents("sweep"), before)
        # another amount: its stages run again, no training does
        out = self.sweep(GRID.format(second=0.01).replace("0.5]", "0.4]"), "--resume", ranks=0)
        self.assertNotIn("throughput", out)
        changed = ["front", "turns_latency_ms"]  # with what they are held against
        self.assertEqual(self.rows(changed)[0], {k: v for k, v in rows[0].items() if k not in changed})
        self.assertEqual([(r["trial"], r["state"], r["pipeline.prune.amount"], r["trained_by"]) for r in self.rows()],
                         [("0", "done", "0.2", "0"), ("4", "done", "0.4", "0"), ("2", "done", "0.2", "2"), ("5", "done", "0.4", "2"),
                          ("1", "earlier", "0.5", ""), ("3", "earlier", "0.5", "")])
        # another training: in folders of its own
        out = self.sweep(GRID.format(second=0.02), "--resume")
        self.assertEqual(out.count("throughput"), 1)
        self.assertEqual([(r["trial"], r["trained_by"]) for r in self.rows() if r["state"] == "done"],
                         [("0", "0"), ("1", "0"), ("6", "6"), ("7", "6")])
        self.assertEqual(os.stat(self.model(7)).st_ino, os.stat(self.model(6)).st_ino)
        self.assertIn("throughput", self.run_trainer("sweep", "sweep.yaml", "--force", "list=[{}]", "grid=~", ranks=0))
        self.assertEqual(len(self.rows()), 1)

    def test_whose(self):
        """A folder without a mark holds somebody's files: none of a sweep's names is written over, whatever is asked for."""
        text = "# mine\nconfig: run.yaml\noutput: .\nlist: [{}]\n"
        for name in ("sweep.yaml", "sweep.csv", "sweep.md", "sweep.svg", "sweep.size.svg", "trial-000"):
            mine = self.dir / name
            given = self.dir / ("sweep.yaml" if name == "sweep.yaml" else "s.yaml")
            if mine != given:
                mine.symlink_to("nowhere") if name == "sweep.md" else mine.write_text("mine")
            given.write_text(text)
            before = self.contents()
            for more in ((), ("--force",), ("--resume",)):
                out = self.run_trainer("sweep", given.name, *more, status=2, ranks=0)
                self.assertIn(f"./{name} is there, and no sweep made it", out)
                self.assertEqual(self.contents(), before)
            mine.unlink()
            given.unlink(missing_ok=True)
        (self.dir / "mine").write_text("mine")
        (self.dir / ".sweep").symlink_to("mine")
        given.write_text(text)
        self.assertIn("./.sweep was made by no sweep", self.run_trainer("sweep", "s.yaml", "--force", status=2, ranks=0))
        (self.dir / ".sweep").unlink()
        # names that only begin like a sweep's are anybody's
        for name in ("trial-best", "trial-000.old", "trial-7"):
            (self.dir / name).write_text("mine")
        self.run_trainer("sweep", "s.yaml", ranks=0)
        self.run_trainer("sweep", "s.yaml", "--force", ranks=0)
        self.assertEqual({(self.dir / n).read_text() for n in ("mine", "trial-best", "trial-000.old", "trial-7")}, {"mine"})
        # what was asked for as the sweep wrote it down goes on; it is not written over by something else
        before = (self.dir / "sweep.yaml").read_bytes()
        self.assertIn("as recorded", self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0))
        self.assertEqual((self.dir / "sweep.yaml").read_bytes(), before)
        for more in ("--force", "--resume"):
            self.assertIn("./sweep.yaml is the sweep's own",
                          self.run_trainer("sweep", "sweep.yaml", more, "seed=9", status=2, ranks=0))
        (self.dir / "sweep.yaml").write_text(text)
        before = self.contents()
        for more in ("--force", "--resume"):
            self.assertIn("./sweep.yaml is the sweep's own", self.run_trainer("sweep", "sweep.yaml", more, status=2, ranks=0))
            self.assertEqual(self.contents(), before)
        # of a sweep from before there were marks
        (self.dir / ".sweep").unlink()
        self.assertIn("already holds a sweep", self.run_trainer("sweep", "s.yaml", status=2, ranks=0))
        self.assertIn("as recorded", self.run_trainer("sweep", "s.yaml", "--resume", ranks=0))
        self.assertTrue((self.dir / ".sweep").exists())

    def test_links(self):
        """Behind a link in the place of a trial's folder lies another's trial: it is refused, and nothing changes."""
        text = "config: run.yaml\noutput: sweep\nlist: [{}]\n"
        self.sweep(text, "output=a", ranks=0)
        for first in ((), ("output=b",)):
            if first:
                self.sweep(text, *first, ranks=0)
                shutil.rmtree(self.dir / "b/trial-000")
            (self.dir / "b").mkdir(exist_ok=True)
            (self.dir / "b/trial-000").symlink_to("../a/trial-000")
            before = self.contents()
            for more in (("--force",), ("--resume",)) if first else ((), ("--force",), ("--resume",)):
                out = self.run_trainer("sweep", "sweep.yaml", "output=b", "seed=99", *more, status=2, ranks=0)
                self.assertIn("b/trial-000: is a link, expected a folder" if first else "b/trial-000 is there, and no sweep", out)
                self.assertEqual(self.contents(), before)
            (self.dir / "b/trial-000").unlink()

    def kill_at(self, file, *arguments, **run):
        """Starts the sweep, and kills its ranks when it has made this file."""
        process = self.start("sweep", "sweep.yaml", *arguments, **run)
        while not (self.dir / "sweep" / file).exists() and process.poll() is None:
            time.sleep(0.002)
        for pid in self.rank_pids(process.pid):
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0, out)

    def test_killed(self):
        """Killed in a training, between a training and its stages, in a trial that shares it: what goes on ends alike."""
        text = GRID.format(second=0.01)
        self.sweep(text, "output=whole")
        (self.dir / "whole").rename(self.dir / "sweep")
        whole = self.rows(MEASURED)
        (self.dir / "sweep").rename(self.dir / "whole")
        self.kill_at("trial-000/metrics.jsonl")
        self.kill_at("trial-001/config.yaml", "--resume")
        self.kill_at("trial-002/model.h5", "--resume")
        self.run_trainer("sweep", "sweep.yaml", "--resume")
        self.assertEqual(self.rows(MEASURED), whole)
        self.assertEqual(len({os.stat(self.model(k)).st_ino for k in range(4)}), 2)
        for k in range(4):
            made = f"trial-{k:03}/stages/02-prune.h5"
            self.assert_same_model(self.dir / "whole" / made, self.dir / "sweep" / made)

    def test_left_open(self):
        """What a config leaves to data and device is found once: who takes a training over, and who goes on, has it as it is there."""
        left = ("data.normalize=auto", "model.loss={cross_entropy: {class_weights: balanced}}", "model.round_dims=16")
        self.sweep(GRID.format(second=0.01), *left)
        rows = self.rows(MEASURED)
        self.assertEqual([(r["state"], r["trained_by"]) for r in rows], [("done", str(k // 2 * 2)) for k in range(4)])
        self.assertEqual(len({os.stat(self.model(k)).st_ino for k in range(4)}), 2)
        found = [re.sub(r"(?m)^output: .*|amount: .*", "", (self.dir / f"sweep/trial-{k:03}/config.yaml").read_text()) for k in (0, 1)]
        self.assertEqual(*found)
        self.assertNotRegex(found[1], "auto *$|balanced|round_dims: 16")
        for k in range(4):
            (self.dir / f"sweep/trial-{k:03}/trial.yaml").unlink()
        out = self.run_trainer("sweep", "sweep.yaml", *left, "--resume", ranks=0)
        self.assertNotIn("throughput", out)
        self.assertEqual(self.rows(MEASURED), rows)
        # stopped in the training: its last checkpoint counts
        for k in (0, 1):
            (self.dir / f"sweep/trial-{k:03}/trial.yaml").unlink()
        for k in (0, 1):
            self.model(k).unlink()
        self.run_trainer("sweep", "sweep.yaml", *left, "--resume")
        self.assertEqual(len(self.records("sweep/trial-000", "start")), 2)
        self.assertEqual([r["loss"] for r in self.rows()], [r["loss"] for r in rows])
        # other stages behind it: what was found is taken over with the training
        out = self.sweep(GRID.format(second=0.01).replace("0.2, 0.5", "0.3"), *left, "--resume", ranks=0)
        self.assertNotIn("throughput", out)
        self.assertEqual([(r["trial"], r["trained_by"]) for r in self.rows()[:2]], [("4", "0"), ("5", "2")])
        # other widths are another training's
        self.sweep(GRID.format(second=0.01), *left[:2], "model.round_dims=8", "--resume")
        self.assertLess(int(self.rows()[0]["parameters"]), int(rows[0]["parameters"]))
        text = "config: run.yaml\noutput: other\nranks_per_trial: 1\ngrid: {pipeline: [[train], [train, fold]]}\n"
        self.assertNotIn("failed", self.sweep(text, *left))

    def test_side_by_side(self):
        """Two trials at a time are, to the bit, what they are alone on as many ranks; one that fails holds up nobody;
        killed, it goes on; what goes by the clock is refused."""
        text = (GRID.format(second=0.01) + "ranks_per_trial: 2\nlist:\n"
                "  - {data.normalize: {mean: 300000000, std: 1.0e-30}, train.on_nonfinite: stop}\n")
        self.sweep(text, "output=alone", ranks=2)
        (self.dir / "alone").rename(self.dir / "sweep")
        alone = self.rows(MEASURED)
        (self.dir / "sweep").rename(self.dir / "alone")
        self.kill_at("trial-001/model.h5", ranks=4)
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=4)
        self.assertIn("2 trials at a time, on 2 ranks each", out)
        self.assertEqual(self.rows(MEASURED), alone)
        self.assertEqual([r["state"] for r in alone], ["failed"] + 4 * ["done"])
        self.assertEqual([r["trained_by"] for r in alone], ["0", "1", "1", "3", "3"])
        self.assertEqual(len({os.stat(self.model(k)).st_ino for k in range(1, 5)}), 2)
        for k in range(1, 5):
            for made in (f"trial-{k:03}/model.h5", f"trial-{k:03}/stages/02-prune.h5"):
                self.assert_same_model(self.dir / "alone" / made, self.dir / "sweep" / made)
        before = self.contents("sweep")
        self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=4)
        self.assertEqual(self.contents("sweep"), before)
        for what, said in (("{prune: {amount: 0.2, measure: latency}}", "pipeline.1: stage prune: measure: latency goes by the clock"),
                           ("benchmark", "pipeline.1: stage benchmark: all that it finds goes by the clock"),
                           ("{fold: {budget: {speedup: 2}}}", "pipeline.1: stage fold: budget.speedup goes by the clock")):
            text = f"config: run.yaml\nranks_per_trial: 1\noutput: other\nlist: [{{pipeline: [train, {what}]}}]\n"
            self.assertIn(said, self.sweep(text, ranks=2, status=2))
        self.assertIn("sweep.yaml:2:18: ranks_per_trial: 1", self.sweep(text.replace("trial: 1", "trial: 3"), ranks=2, status=2)
                      .replace("trial: 3", "trial: 1"))

    def record(self, trial, **values):
        """Changes numbers in a trial's record: those of the last model, and the latency in turns."""
        path = self.dir / f"sweep/trial-{trial:03}/trial.yaml"
        head, last = path.read_text().split("last:")
        for key, value in values.items():
            last = re.sub(rf"(?m)^( *){key}: .*", rf"\g<1>{key}: {value}", last)
        path.write_text(head + "last:" + last)

    def test_last_timing(self):
        """Bounds on latency go by the timing in turns, where there is one; when that fails the tables say so."""
        self.sweep("config: run.yaml\noutput: sweep\nset: {pipeline: [train, {prune: {by: l1}}]}\nsearch:\n  minimize: size\n"
                   "  subject_to: {latency_ms: 1.0e6}\n  trials: 2\n  over: {pipeline.prune.amount: {from: 0.1, to: 0.9}}\n", ranks=0)
        self.record(0, latency_ms=5.5, turns_latency_ms=4.5)
        self.record(1, latency_ms=4.5, turns_latency_ms=5.5)
        bound = ("--resume", "search.subject_to.latency_ms=5")
        self.run_trainer("sweep", "sweep.yaml", *bound, ranks=0)
        self.assertEqual([(r["within"], r["front"]) for r in self.rows()], [("1", "1"), ("0", "0")])
        self.assertRegex((self.dir / "sweep/sweep.md").read_text(), r"outside \|\n")
        self.record(1, latency_ms=7)  # another timing would not turn that round
        self.run_trainer("sweep", "sweep.yaml", *bound, ranks=0)
        self.assertEqual([r["within"] for r in self.rows()], ["1", "0"])
        # what is held against the training's latency: both in turns
        self.record(0, latency_ms=4.5, turns_latency_ms=0)
        self.run_trainer("sweep", "sweep.yaml", "--resume", "search.subject_to.latency_ms=none",
                         "search.subject_to.speedup=0.001", ranks=0)
        self.assertRegex((self.dir / "sweep/trial-000/trial.yaml").read_text(), r"(?m)^trained_turns_latency_ms: (?!0$)[\d.e-]+$")
        self.record(0, turns_latency_ms=0)
        (self.dir / "sweep/trial-000/stages/01-prune.h5").unlink()
        for name in ("csv", "md", "svg"):
            (self.dir / f"sweep/sweep.{name}").unlink()
        out = self.run_trainer("sweep", "sweep.yaml", *bound, status=1, ranks=2)
        self.assertEqual([r["within"] for r in self.rows()], ["1", "0"])
        self.assertTrue((self.dir / "sweep/sweep.svg").exists())
        self.assertRegex((self.dir / "sweep/sweep.md").read_text(), "Missing: the timing in turns.*01-prune.h5")
        self.assertRegex(out, "trial +amount +latency, ms")

    def test_search_groups(self):
        """A search goes the same way on other numbers of groups: what was tried before it stopped counts.
        The first six are spread out; the others go from the best so far."""
        text = ("config: run.yaml\noutput: sweep\nranks_per_trial: 1\nset: {pipeline: [train, {prune: {by: l1}}]}\nsearch:\n"
                "  minimize: multiply_adds\n  trials: 8\n  over:\n    pipeline.prune.amount: {from: 0.1, to: 0.9}\n"
                "    pipeline.prune.by: [l1, random]\n")
        self.sweep(text, "search.trials=7", ranks=3)
        rows = self.rows(MEASURED)
        for ranks, said in ((1, ""), (4, "1 of 4 groups of ranks have nothing to do: search.together is 3")):
            out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=ranks)
            self.assertEqual(out.count("as recorded"), 7)
            self.assertIn(said, out)
            self.assertEqual(self.rows(MEASURED)[:7], rows)
            (self.dir / "sweep/trial-007/trial.yaml").unlink()
        last = self.rows(MEASURED)[7]
        self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=2)
        self.assertEqual(self.rows(MEASURED)[7], last)

    def test_stop_groups(self):
        """A signal to one rank stops all groups, whether ranks share memory or send messages."""
        for more in ((), ("run.collectives=mpi",)):
            (self.dir / "sweep.yaml").write_text("config: run.yaml\noutput: sweep\nranks_per_trial: 1\nset: {train.steps: 100000000}\n"
                                                 "grid: {seed: [1, 2]}\n")
            process = self.start("sweep", "sweep.yaml", "--force", *more, ranks=2)
            self.addCleanup(process.kill)
            while not all((self.dir / f"sweep/trial-{k:03}/metrics.jsonl").exists() for k in (0, 1)) and process.poll() is None:
                time.sleep(0.002)
            os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 75, out)
            for k in (0, 1):
                self.assertTrue(list(self.dir.glob(f"sweep/trial-{k:03}/checkpoints/step-*.h5")))
            shutil.rmtree(self.dir / "sweep")

    def test_wrong(self):
        """What is wrong in any trial is told with its place, before anything is written."""
        grid = GRID.format(second=0.01)
        search = "config: run.yaml\nsearch: {trials: 3, over: {train.batch: [16, 32]}}\n"
        before = self.contents()
        for text, said in (
                (grid.replace("prune.amount: [0.2", "prune.amuont: [0.2"),
                 'sweep.yaml:7:18: pipeline.2.prune: unknown key "amuont"; did you mean "amount"?'),
                (grid.replace("0.2, 0.5", "0.2, 1.5"), 'sweep.yaml:7:32: pipeline.2.prune.amount: found "1.5"'),
                (grid.replace("prune.amount: [0.2, 0.5]", "prune.keep: [[head], [haed]]"),
                 'sweep.yaml:7:34: pipeline.2.prune.keep: there is no layer "haed": did you mean "head"?'),
                (grid.replace("grid", "gird"), 'sweep.yaml:5:1: unknown key "gird"; did you mean "grid"?'),
                (grid.replace("[0.2, 0.5]", "0.2"), "sweep.yaml:7:26: grid.pipeline.prune.amount: expected a list"),
                (grid.replace("pipeline.prune", "pipeline.quantize"), '"pipeline" is a list: expected an index, found "quantize"'),
                (grid.replace("pipeline.prune.amount: [0.2, 0.5]", "run.timeout: [5, 6]"), "sweep.yaml:7:3: run.collectives"),
                (grid.replace("pipeline.prune.amount: [0.2, 0.5]", "model.layers.conv2d.out: [8, 7]"),
                 " (with train.optimizer.lr=0.005, model.layers.conv2d.out=7)"),
                (grid + "search: {trials: 3, over: {seed: [1]}}", "a search chooses its trials itself"),
                (search.replace("[16, 32]", "[16, x]"), 'sweep.yaml:2:46: train.batch: found "x"'),
                (search.replace("[16, 32]", "{from: 9, to: 2}"), "sweep.yaml:2:41: search.over.train.batch: `from`"),
                (search.replace("trials", "minimize: speed, trials"), 'search.minimize: found "speed"'),
                (grid.replace("pipeline.prune.amount: [0.2, 0.5]", "run.skip_passes: [[nonsense]]"), "nonsense"),
                (grid.replace("pipeline.prune.amount: [0.2, 0.5]", "data.split: [{fraction: 0.1}]"), "data.eval is given too"),
                ("config: run.yaml\nlist: [" + "{}, " * 100001 + "]", "more than 100000 trials"),
                ("config: run.yaml\nlist: [" + "{}, " * 100001 + "]\ngrid: {seed: [1]}", "more than 100000 trials"),
                ("config: run.yaml\n", "what shall trials try?"), ("config: away.yaml\nlist: [{}]", "away.yaml")):
            out = self.sweep(text, status=2, ranks=0)
            self.assertIn(said, out)
        self.assertIn("train.optimizer.lr is given on the command line, too",
                      self.sweep(grid, "train.optimizer.lr=0.1", status=2, ranks=0))
        (self.dir / "sweep.yaml").unlink()
        self.assertEqual(self.contents(), before)
        self.assertIn("| `search.minimize` | one of latency, size", self.tool("sweep", "--help"))

    def test_cells(self):
        """Values in the table for people: no `|` of theirs ends a cell, and what is long ends with a whole character."""
        names = ("a|b.h5", "x" + "é" * 60 + ".h5", "|" * 60 + ".h5")
        for name in names:
            (self.dir / name).symlink_to("data.h5")
        self.sweep("config: run.yaml\noutput: sweep\nset: {train.steps: 1}\nlist:\n"
                   + "".join(f"  - {{data.train.path: '{name}'}}\n" for name in names), ranks=0)
        text = (self.dir / "sweep/sweep.md").read_bytes().decode()  # fails where a character was cut
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        self.assertIn("a\\|b", rows[2])
        self.assertIn("x" + "é" * 22 + " ", rows[3])
        self.assertEqual(len({len(row) for row in rows[:1] + rows[2:]}), 1, text)
        self.assertEqual({len(re.findall(r"(?<!\\)\|", row)) for row in rows}, {10}, text)

    def test_failures(self):
        """A trial that fails is recorded with why, and the sweep goes on; resuming does not try it again."""
        text = ("config: run.yaml\noutput: sweep\nset: {pipeline: [train, {prune: {amount: 0.2}}]}\nlist:\n"
                "  - {data.normalize: &far {mean: 300000000, std: 1.0e-30}, train.on_nonfinite: stop}\n"
                "  - {data.normalize: *far, train.on_nonfinite: stop, pipeline.prune.amount: 0.3}\n"
                "  - {pipeline.prune.budget.size: 0.01}\n  - {}\n")
        self.sweep(text)
        rows = self.rows()
        self.assertEqual([r["state"] for r in rows], ["failed", "failed", "failed", "done"])
        self.assertIn("not finite", rows[0]["reason"])
        self.assertIn("the training is that of trial 0", rows[1]["reason"])
        self.assertRegex(rows[2]["reason"], "budget.size: .*at most 0.01")
        self.assertEqual(rows[3]["trained_by"], "2")
        self.assertIn("Trial 2 failed: stage 01-prune", (self.dir / "sweep/sweep.md").read_text())
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0)
        self.assertEqual(self.rows(), rows)
        self.assertNotIn("stage 0", re.sub("failed: .*", "", out))
        out = self.run_trainer("sweep", "sweep.yaml", "--resume",
                               "list=[{pipeline.prune.budget.size: 0.01}, {pipeline.prune.budget.size: 0.02}, {}]",
                               "on_failure=stop", status=1, ranks=0)
        self.assertIn("budget.size: ", out)
        self.assertEqual([(r["trial"], r["state"]) for r in self.rows()], [("2", "failed"), ("4", "failed"), ("3", "done")])
        self.sweep(text.split("  - {pipeline")[0], "--force", status=1, ranks=0)
        # who takes over a training is held to its own budget for it
        self.sweep("config: run.yaml\noutput: sweep\nlist:\n  - {pipeline: [train]}\n"
                   "  - {pipeline: [{train: {budget: {size_mb: 0.000001}}}]}\n", "--force", ranks=0)
        self.assertEqual([r["state"] for r in self.rows()], ["done", "failed"])

    def test_copied(self):
        """Where no link leads to, a training is copied: the second trial's folder is on a disk of its own."""
        if why := namespaces.why_not():
            self.skipTest(why)
        self.sweep("config: run.yaml\noutput: sweep\nset: {pipeline: [train, fold]}\nlist: [{}, {pipeline.fold.budget.size: 9}]\n", ranks=0)
        row = self.rows(MEASURED)[1]
        shutil.rmtree(self.dir / "sweep/trial-001")
        (self.dir / "sweep/trial-001").mkdir()
        mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none sweep/trial-001 && "$@" && cp -r sweep/trial-001 copied', "sh"]
        done = subprocess.run([*mounted, *self.command("sweep", "sweep.yaml", "--resume", ranks=0)], cwd=self.dir, env=ENV,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("throughput", done.stdout)
        self.assertEqual((self.dir / "copied/model.h5").read_bytes(), self.model(0).read_bytes())
        self.assertEqual(self.rows(MEASURED)[1], row)

    def check_plot(self, rows):
        """Each trial is a mark that names it, with all that was found; those of the front, and no others, are filled, in its
        color. Of the second plot the marks lie by size."""
        for name in ("sweep.svg", "sweep.size.svg"):
            root = xml.etree.ElementTree.parse(self.dir / "sweep" / name).getroot()
            kinds, places = {}, []
            for mark in root.iter("{http://www.w3.org/2000/svg}circle"):
                for title in mark:
                    trial = int(re.match(r"trial (\d+): ", title.text)[1])
                    kinds.setdefault(mark.get("class"), set()).add(trial)
                    row = rows[trial]
                    self.assertTrue(title.text.endswith(f"B, loss {float(row['loss']):.6g}, accuracy {100 * float(row['accuracy']):.2f}%"),
                                    title.text)
                    places.append((float(mark.get("cx")), int(row["bytes"])))
            of = {"l s1 p": lambda r: r["front"] == "1", "l s0": lambda r: r["within"] == "1" and r["front"] != "1",
                  "l s6": lambda r: r["within"] == "0"}
            wanted = {kind: {i for i, r in enumerate(rows) if chosen(r)} for kind, chosen in of.items()}
            self.assertEqual(kinds, {kind: trials for kind, trials in wanted.items() if trials})
            if "size" in name:
                self.assertEqual(sorted(p[1] for p in places), [p[1] for p in sorted(places)])

    @unittest.skipUnless(screenshots.CHROMIUM, "chromium is not installed")
    def test_looks(self):
        """Plots in a browser, light and dark: nothing is fetched or too wide, text is readable."""
        self.sweep(GRID.format(second=0.01))
        for name in ("sweep.svg", "sweep.size.svg"):
            page = self.dir / "page.html"
            page.write_text("<!DOCTYPE html><html><head><style>@media (prefers-color-scheme: dark) {body {background: #111}}</style></head>"
                            f"<body>{(self.dir / 'sweep' / name).read_text().split('?>')[-1]}</body></html>")
            for dark in (False, True):
                wrong, found = screenshots.measure(page, dark)
                self.assertEqual((wrong, found["svgs"]), ([], 1), name)
                self.assertGreater(found["texts"], 10)

    def test_search(self):
        """A search ends with a front; it is the same when resumed in the middle, at another number of ranks."""
        text = ("config: run.yaml\noutput: sweep\nset: {pipeline: [train, {prune: {by: l1}}]}\nsearch:\n  minimize: multiply_adds\n"
                "  subject_to: {accuracy_drop: 0.3}\n  trials: 7\n  seed: 5\n  over:\n"
                "    pipeline.prune.amount: {from: 0.1, to: 0.9}\n    pipeline.prune.by: [l1, random]\n")
        self.sweep(text, "search.trials=5", ranks=0)
        rows = self.rows(["front", "turns_latency_ms"])
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0)  # goes on where it was
        self.assertEqual(self.rows(["front", "turns_latency_ms"])[:5], rows)
        self.assertEqual(out.count("as recorded"), 5)
        rows = self.rows()
        self.assertEqual(len(rows), 7)
        self.assertEqual({r["trained_by"] for r in rows}, {"0"})
        within = [r for r in rows if r["within"] == "1"]
        self.check_plot(rows)
        drop = [float(r["trained_accuracy"]) - float(r["accuracy"]) for r in rows]
        self.assertEqual([r["within"] for r in rows], [str(int(d <= 0.3)) for d in drop])
        self.assertTrue(any(r["front"] == "1" for r in within))
        best = re.search(r"^\| +(\d+) .*best \|$", (self.dir / "sweep/sweep.md").read_text(), re.M)
        self.assertEqual(float(rows[int(best[1])]["multiply_adds"]), min(float(r["multiply_adds"]) for r in within))
        # the last trial once more: what is recorded, latencies too, decides which it is
        (self.dir / "sweep/trial-006/trial.yaml").unlink()
        self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=2)
        self.assertEqual(self.rows(MEASURED), [{k: v for k, v in r.items() if k not in MEASURED} for r in rows])
        # by latency, whatever it is: of those within the bound the fastest, by the times that the table shows
        self.sweep(text.replace("multiply_adds", "latency").replace("0.3", "0.01").replace("trials: 7", "trials: 6"), "--force", ranks=0)
        rows = self.rows()
        self.assertEqual([r["within"] for r in rows], [str(int(float(r["trained_accuracy"]) - float(r["accuracy"]) <= 0.01)) for r in rows])
        front = [r for r in rows if r["front"] == "1"]
        self.assertTrue(front and all(float(r["latency_ms"]) > 0 for r in rows))
        self.assertEqual({r["within"] for r in front}, {"1"})
        self.check_plot(rows)
        table = (self.dir / "sweep/sweep.md").read_text()
        best = rows[int(re.search(r"^\| +(\d+) .*best \|$", table, re.M)[1])]
        self.assertIn("the one with the least latency", table)
        self.assertIn(best, front)
        took = [float(r["turns_latency_ms"] or r["latency_ms"]) for r in (best, *front)]
        self.assertEqual(took[0], min(took[1:]))
        for bound in ("accuracy: 1", "size_mb: 0", "loss: 0"):  # no trial keeps to these
            self.sweep(text.replace("accuracy_drop: 0.3", bound).replace("trials: 7", "trials: 2"), "--force", ranks=0)
            self.assertEqual({r["within"] for r in self.rows()}, {"0"})


if __name__ == "__main__":
    main()
