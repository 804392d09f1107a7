"""Sweeps: grids, lists and searches over a config's keys; trainings that are shared; killed, changed, failing ones."""
import csv
import os
import re
import shutil
import signal
import tempfile
import time
import xml.etree.ElementTree

from harness import Case, main

GRID = """
config: run.yaml
output: sweep
set: {{pipeline: [train, fold, {{prune: {{amount: 0.1}}}}]}}
grid:
  train.optimizer.lr: [0.005, {second}]
  pipeline.prune.amount: [0.2, 0.5]
"""
MEASURED = ("latency_ms", "trained_latency_ms", "front")


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
        # by the definition, from the table itself
        points = [(float(r["latency_ms"]), float(r["bytes"]), 1 - float(r["accuracy"])) for r in rows]
        for p, row in zip(points, rows):
            beaten = any(q != p and all(a <= b for a, b in zip(q, p)) for q in points)
            self.assertEqual(row["front"], str(int(not beaten)))
        svg = xml.etree.ElementTree.parse(self.dir / "sweep/sweep.svg").getroot()
        self.assertEqual(sum("trial " in (t.text or "") for t in svg.iter("{http://www.w3.org/2000/svg}title")), 4)
        self.assertIn("| 0.005 |", (self.dir / "sweep/sweep.md").read_text())
        self.assertRegex(out, r"trial +lr +amount +latency, ms")
        before = self.contents("sweep")
        (self.dir / "sweep/sweep.yaml").rename(self.dir / "aside")  # then these are somebody's files
        self.assertIn("sweep.csv is there, and no sweep made it", self.run_trainer("sweep", "sweep.yaml", status=2, ranks=0))
        for name in ("csv", "md", "svg"):
            (self.dir / f"sweep/sweep.{name}").rename(self.dir / f"aside.{name}")
        self.assertIn("trial-000 is there, and no sweep made it", self.run_trainer("sweep", "sweep.yaml", "--resume", status=2, ranks=0))
        for name in ("csv", "md", "svg"):
            (self.dir / f"aside.{name}").rename(self.dir / f"sweep/sweep.{name}")
        (self.dir / "aside").rename(self.dir / "sweep/sweep.yaml")
        self.assertIn("already holds a sweep", self.run_trainer("sweep", "sweep.yaml", status=2))
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0)
        self.assertNotIn("stage", out)
        self.assertEqual(self.contents("sweep"), before)
        # another amount: its stages run again, no training does
        out = self.sweep(GRID.format(second=0.01).replace("0.5]", "0.4]"), "--resume", ranks=0)
        self.assertNotIn("throughput", out)
        self.assertEqual(self.rows(["front"])[0], {k: v for k, v in rows[0].items() if k != "front"})
        self.assertEqual(self.rows()[3]["pipeline.prune.amount"], "0.4")
        # another training in its place: nothing of the one before is left
        out = self.sweep(GRID.format(second=0.02), "--resume")
        self.assertEqual(out.count("throughput"), 1)
        self.assertEqual([r["trained_by"] for r in self.rows()], ["0", "0", "2", "2"])
        self.assertEqual(os.stat(self.model(3)).st_ino, os.stat(self.model(2)).st_ino)
        self.assertIn("throughput", self.run_trainer("sweep", "sweep.yaml", "--force", "list=[{}]", "grid=~", ranks=0))
        self.assertEqual(len(self.rows()), 1)

    def kill_at(self, file, *arguments):
        """Starts the sweep, and kills its ranks when it has made this file."""
        process = self.start("sweep", "sweep.yaml", *arguments)
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

    def test_wrong(self):
        """What is wrong in any trial is told with its place, before anything is written."""
        grid = GRID.format(second=0.01)
        search = "config: run.yaml\nsearch: {trials: 3, over: {train.batch: [16, 32]}}\n"
        before = self.contents()
        for text, said in (
                (grid.replace("prune.amount: [0.2", "prune.amuont: [0.2"),
                 'sweep.yaml:7:18: pipeline.2.prune: unknown key "amuont"; did you mean "amount"?'),
                (grid.replace("0.2, 0.5", "0.2, 1.5"), 'sweep.yaml:7:32: pipeline.2.prune.amount: found "1.5"'),
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
                ("config: run.yaml\n", "what shall trials try?"), ("config: away.yaml\nlist: [{}]", "away.yaml")):
            out = self.sweep(text, status=2, ranks=0)
            self.assertIn(said, out)
        self.assertIn("train.optimizer.lr is given on the command line, too",
                      self.sweep(grid, "train.optimizer.lr=0.1", status=2, ranks=0))
        (self.dir / "sweep.yaml").unlink()
        self.assertEqual(self.contents(), before)
        self.assertIn("| `search.minimize` | one of latency, size", self.tool("sweep", "--help"))

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
        # where no link leads to, a training is copied
        shm = tempfile.mkdtemp(prefix="trireme-e2e-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, shm)
        shutil.rmtree(self.dir / "sweep/trial-003")
        (self.dir / "sweep/trial-003").symlink_to(shm)
        self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=0)
        self.assertEqual(self.model(3).read_bytes(), self.model(2).read_bytes())
        self.assertNotEqual(os.stat(self.model(3)).st_dev, os.stat(self.model(2)).st_dev)
        self.assertEqual(self.rows(MEASURED)[3]["loss"], rows[3]["loss"])
        out = self.run_trainer("sweep", "sweep.yaml", "--resume", "list=[{pipeline.prune.budget.size: 0.01}, {}]",
                               "on_failure=stop", status=1, ranks=0)
        self.assertIn("budget.size", out)
        self.assertEqual(len(self.rows()), 1)
        self.sweep(text.split("  - {pipeline")[0], "--force", status=1, ranks=0)
        # who takes over a training is held to its own budget for it
        self.sweep("config: run.yaml\noutput: sweep\nlist:\n  - {pipeline: [train]}\n"
                   "  - {pipeline: [{train: {budget: {size_mb: 0.000001}}}]}\n", "--force", ranks=0)
        self.assertEqual([r["state"] for r in self.rows()], ["done", "failed"])

    def test_search(self):
        """A search ends with a front; it is the same when resumed in the middle, at another number of ranks."""
        text = ("config: run.yaml\noutput: sweep\nset: {pipeline: [train, {prune: {by: l1}}]}\nsearch:\n  minimize: multiply_adds\n"
                "  subject_to: {accuracy_drop: 0.3}\n  trials: 10\n  seed: 5\n  over:\n"
                "    pipeline.prune.amount: {from: 0.1, to: 0.9}\n    pipeline.prune.by: [l1, random]\n")
        self.sweep(text, ranks=0)
        rows = self.rows()
        self.assertEqual(len(rows), 10)
        self.assertEqual({r["trained_by"] for r in rows}, {"0"})
        within = [r for r in rows if r["within"] == "1"]
        drop = [float(r["trained_accuracy"]) - float(r["accuracy"]) for r in rows]
        self.assertEqual([r["within"] for r in rows], [str(int(d <= 0.3)) for d in drop])
        self.assertTrue(any(r["front"] == "1" for r in within))
        best = re.search(r"^\| +(\d+) .*best \|$", (self.dir / "sweep/sweep.md").read_text(), re.M)
        self.assertEqual(float(rows[int(best[1])]["multiply_adds"]), min(float(r["multiply_adds"]) for r in within))
        # the last trial once more: what is recorded, latencies too, decides which it is
        (self.dir / "sweep/trial-009/trial.yaml").unlink()
        self.run_trainer("sweep", "sweep.yaml", "--resume", ranks=2)
        self.assertEqual(self.rows(MEASURED), [{k: v for k, v in r.items() if k not in MEASURED} for r in rows])
        for bound in ("accuracy: 1", "size_mb: 0", "loss: 0"):  # no trial keeps to these
            self.sweep(text.replace("accuracy_drop: 0.3", bound).replace("trials: 10", "trials: 2"), "--force", ranks=0)
            self.assertEqual({r["within"] for r in self.rows()}, {"0"})


if __name__ == "__main__":
    main()
