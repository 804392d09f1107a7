"""A sweep that is gone on with and asks for other trials, or for the same in another order: what is finished keeps its folder."""
import csv
import os
import re
import shutil

import h5py

from harness import Case, main

TEXT = "config: run.yaml\noutput: sweep\nset: {{pipeline: [train, {{prune: {{amount: 0.1}}}}]}}\n{}\n"


class Fewer(Case):
    def setUp(self):
        super().setUp()
        self.config(steps=4, every=4)

    def sweep(self, trials, *arguments, **run):
        (self.dir / "sweep.yaml").write_text(TEXT.format(trials))
        return self.run_trainer("sweep", "sweep.yaml", *arguments, **{"ranks": 0, **run})

    def list(self, trials, *arguments):
        return self.sweep(f"list: [{', '.join(trials)}]", *arguments)

    def grid(self, amounts, *arguments, lr="0.005", **run):
        return self.sweep(f"grid: {{train.optimizer.lr: [{lr}], pipeline.prune.amount: {amounts}}}", *arguments, **run)

    def rows(self):
        with open(self.dir / "sweep/sweep.csv", newline="") as f:
            return list(csv.DictReader(f))

    def told(self, *keys):
        return [tuple(r[k] for k in ("trial", "state", *keys)) for r in self.rows()]

    def amounts(self):
        return self.told("pipeline.prune.amount")

    def finished(self):
        """Of each trial that is done the bytes of its models."""
        folders = [p.parent for p in self.dir.glob("sweep/trial-*/trial.yaml") if "state: done" in p.read_text()]
        return {p: p.read_bytes() for f in folders for p in (f / "model.h5", *f.glob("stages/*.h5"), f / "config.yaml")}

    def assert_kept(self, before):
        self.assertEqual({p: p.read_bytes() for p in before}, before)

    def record(self, trial):
        return self.dir / f"sweep/trial-{trial:03}/trial.yaml"

    def forget_settings(self):
        """Records as earlier versions wrote them."""
        for path in self.dir.glob("sweep/trial-*/trial.yaml"):
            text = path.read_text()
            key = re.search(r"(?m)^key: (.*)\n", text)[1]
            rest = text[text.index("state:"):].replace(re.search(r"trained_by: .*\n", text)[0], "")
            path.write_text(f"settings: {key}\n{rest}")

    def test_lists(self):
        """Fewer, and all again; trials that are the same are that many. What a trial left as the config has it is said, too."""
        trials = ["{train.optimizer.lr: 0.005, pipeline.prune.amount: 0.2}", "{}", "{}"]
        self.assertNotIn("earlier", self.list(trials))
        before, kept = self.rows(), self.finished()
        out = self.list(trials[:1], "--resume")
        self.assertIn("warning: sweep holds 2 trials of before (1, 2) that this sweep does not have", out)
        rows = self.rows()
        self.assertEqual(self.told("pipeline.prune.amount", "train.optimizer.lr"),
                         [("0", "done", "0.2", "0.005"), ("1", "earlier", "0.1", "0.005"), ("2", "earlier", "0.1", "0.005")])
        for key in ("parameters", "bytes", "latency_ms", "loss", "accuracy", "trained_accuracy"):
            self.assertEqual([r[key] for r in rows], [r[key] for r in before])
        self.assertEqual([r["front"] for r in rows], ["1", "", ""])
        self.assertIn("Besides, there are 2 trials of before (1, 2), `earlier`", (self.dir / "sweep/sweep.md").read_text())
        self.assertEqual(self.list(trials, "--resume").count("as recorded"), 3)
        self.assertEqual([r["state"] for r in self.rows()], ["done"] * 3)
        out = self.list([trials[1]], "--resume")
        self.assertEqual(out.count("as recorded"), 1)
        self.assertEqual(self.told(), [("1", "done"), ("0", "earlier"), ("2", "earlier")] if "trial 1 done" in out
                         else [("2", "done"), ("0", "earlier"), ("1", "earlier")])
        self.assert_kept(kept)

    def test_grids(self):
        """Reordered, with a value before the others, without one in the middle: who is asked for is taken, wherever it stands."""
        self.grid("[0.2, 0.5, 0.6]")
        kept, before = self.finished(), self.rows()
        shutil.copytree(self.dir / "sweep", self.dir / "old")
        out = self.grid("[0.6, 0.2, 0.5]", "--resume")
        self.assertEqual((out.count("as recorded"), out.count("stage 0")), (3, 0), out)
        self.assertEqual(self.amounts(), [("2", "done", "0.6"), ("0", "done", "0.2"), ("1", "done", "0.5")])
        measured = ("parameters", "bytes", "latency_ms", "loss", "accuracy", "trained_by")
        self.assertEqual([[r[k] for k in measured] for r in self.rows()], [[before[i][k] for k in measured] for i in (2, 0, 1)])
        # before them, trained by nobody else than they were; one that did not end goes on in its folder
        self.record(1).write_text(self.record(1).read_text().replace("state: done", "state: open"))
        out = self.grid("[0.3, 0.2, 0.5, 0.6]", "--resume", ranks=2)
        self.assertEqual((out.count("as recorded"), out.count("throughput")), (2, 0), out)
        self.assertIn("trial 3 (1 of 4): train.optimizer.lr=0.005, pipeline.prune.amount=0.3", out)
        self.assertEqual(self.told("pipeline.prune.amount", "trained_by"),
                         [("3", "done", "0.3", "0"), ("0", "done", "0.2", "0"), ("1", "done", "0.5", "0"), ("2", "done", "0.6", "0")])
        self.assertEqual(len({os.stat(self.dir / f"sweep/trial-{k:03}/model.h5").st_ino for k in range(4)}), 1)
        text = (self.dir / "sweep/sweep.md").read_text()
        self.assertEqual(re.findall(r"(?m)^\| +(\d) \| +0.005 \| +([\d.]+) \|", text), [("3", "0.3"), ("0", "0.2"), ("1", "0.5"), ("2", "0.6")])
        self.assertIn("settings:\n  train.optimizer.lr: 0.005\n  pipeline.prune.amount: 0.3\n", self.record(3).read_text())
        # without the first of them, whose training they have
        self.grid("[0.3, 0.6]", "--resume")
        self.assertEqual(self.told("pipeline.prune.amount", "trained_by"),
                         [("3", "done", "0.3", "0"), ("2", "done", "0.6", "0"), ("0", "earlier", "0.2", ""), ("1", "earlier", "0.5", "")])
        self.assert_kept({p: b for p, b in kept.items() if "trial-001/stages" not in str(p)})
        # another one, of the training that those of before had; the tables have settings as they were written
        kept = self.finished()
        out = self.grid("[0.35]", "--resume", lr="5.0e-3")
        self.assertNotIn("throughput", out)
        self.assertEqual(self.told("pipeline.prune.amount", "train.optimizer.lr"),
                         [("4", "done", "0.35", "5.0e-3"), *((k, "earlier", a, "0.005") for k, a in zip("0123", ("0.2", "0.5", "0.6", "0.3")))])
        self.assertEqual(self.rows()[0]["trained_by"], "0")
        self.assert_kept(kept)
        # another training
        out = self.grid("[0.2]", "--resume", lr="0.01")
        self.assertEqual((out.count("as recorded"), out.count("throughput")), (0, 1), out)
        self.assertEqual(self.told("trained_by")[0], ("5", "done", "5"))
        self.assert_kept(kept)
        shutil.rmtree(self.dir / "sweep")
        (self.dir / "old").rename(self.dir / "sweep")
        self.check_before()

    def check_before(self):
        """Of records of earlier versions, which have no settings, configs say them; what cannot be read stays as it is; where no
        record is the number is free."""
        self.forget_settings()
        kept = self.finished()
        self.record(2).write_text("key: x\nstate: gone\n")
        (self.dir / "sweep/trial-0003").mkdir()
        (self.dir / "sweep/trial-0003/trial.yaml").write_text(self.record(0).read_text())
        out = self.grid("[0.6, 0.5]", "--resume")
        self.assertRegex(out, "trial-002/trial.yaml:2:8: state: found .*; what is in this folder stays")
        self.assertEqual((out.count("as recorded"), out.count("throughput")), (1, 0), out)
        self.assertEqual(self.told("pipeline.prune.amount", "train.optimizer.lr"),
                         [("3", "done", "0.6", "0.005"), ("1", "done", "0.5", "0.005"), ("0", "earlier", "0.2", "0.005")])
        self.assert_kept(kept)
        self.assertNotIn("  ", re.search("warning: .*trial-002/trial.yaml.*", out)[0])
        # runs without a record go by their configs; whose training is done lends it, and keeps its stages
        self.record(0).unlink()
        self.record(1).write_text(self.record(3).read_text().replace("state: done", "state: open"))
        out = self.grid("[0.6, 0.7, 0.2]", "--resume")
        self.assertNotIn("throughput", out)
        self.assertEqual(self.amounts(), [("3", "done", "0.6"), ("4", "done", "0.7"), ("0", "done", "0.2")])
        self.assert_kept(kept)

    def kill(self, trial):
        """As a trial is left that was killed in its training, after its first checkpoint."""
        folder = self.dir / f"sweep/trial-{trial:03}"
        text = self.record(trial).read_text()
        self.record(trial).write_text(text[:text.index("state:")] + "state: open\n")
        for name in ("model.h5", "stages"):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def test_killed(self):
        """A killed training is gone on with, wherever its trial stands, and by whichever of those that share it."""
        self.grid("[0.5]")
        self.kill(0)
        out = self.grid("[0.2, 0.5]", "--resume")
        self.assertEqual(self.told("pipeline.prune.amount", "trained_by"), [("1", "done", "0.2", "0"), ("0", "done", "0.5", "0")])
        self.assertEqual(len(self.records("sweep/trial-000", "start")), 2)
        self.assertFalse((self.dir / "sweep/trial-001/metrics.jsonl").exists())
        # of an earlier version: without a record; other trials let it be
        self.kill(0)
        self.record(0).unlink()
        shutil.rmtree(self.dir / "sweep/trial-001")
        self.grid("[0.3]", "--resume", lr="0.01")
        self.assertEqual(self.told(), [("1", "done")])
        out = self.grid("[0.2, 0.5]", "--resume")
        self.assertEqual([r[:2] for r in self.told("trained_by")], [("2", "done"), ("0", "done"), ("1", "earlier")])
        self.assertEqual(len(self.records("sweep/trial-000", "start")), 3)

    def test_helped(self):
        """What failed is tried again once its folder is gone; only the training's own failure is that of others, too."""
        fail = ["{data.normalize: &far {mean: 300000000, std: 1.0e-30}, train.on_nonfinite: stop}",
                "{data.normalize: *far, train.on_nonfinite: stop, pipeline.prune.amount: 0.3}"]
        self.sweep("list: [" + ", ".join(fail) + "]", status=1)
        self.assertEqual([r["state"] for r in self.rows()], ["failed", "failed"])
        self.assertIn("the training is that of trial 0", self.rows()[1]["reason"])
        shutil.rmtree(self.dir / "sweep/trial-001")
        out = self.sweep("list: [" + ", ".join(fail) + "]", "--resume", status=1)
        self.assertNotIn("the training is that of", self.rows()[1]["reason"])
        self.assertTrue(self.records("sweep/trial-001", "start"))
        # before there is a model it fails for itself alone, beside a model of another run
        shutil.rmtree(self.dir / "sweep")
        self.list(["{}"])
        (self.dir / "other").mkdir()
        stale = (self.dir / "sweep/trial-000/model.h5").read_bytes()
        self.assertIn("failed", self.list(["{seed: 9, run.memory_limit: 1MB}", "{seed: 9}"], "--force"))
        rows = self.rows()
        self.assertEqual([(r["state"], r["trained_by"]) for r in rows], [("failed", "0"), ("done", "1")])
        self.assertNotEqual((self.dir / "sweep/trial-001/model.h5").read_bytes(), stale)

    def test_data_away(self):
        """Whose data cannot be opened has not failed for good, wherever it stood: it is tried again. Wrong data fail it like all else."""
        self.grid("[0.5]")
        self.kill(0)
        data = self.dir / "data.h5"
        data.rename(self.dir / "away.h5")
        for _ in range(2):
            out = self.grid("[0.5]", "--resume", lr="0.005, 0.01", status=1)
            self.assertRegex(out, r"trial 1 failed: .*data.h5: cannot be opened.*; --resume tries it again")
            self.assertEqual(self.told(), [("0", "failed"), ("1", "failed")])
            self.assertEqual(["state: open" in self.record(k).read_text() for k in (0, 1)], [True, True])
        (self.dir / "away.h5").rename(data)
        out = self.grid("[0.5]", "--resume", lr="0.005, 0.01")
        self.assertEqual((out.count("as recorded"), self.told("trained_by")), (0, [("0", "done", "0"), ("1", "done", "1")]))
        self.assertEqual([len(self.records(f"sweep/trial-{k:03}", "start")) for k in (0, 1)], [2, 1])
        # killed behind its training; one that takes that training
        text = self.record(0).read_text()
        self.record(0).write_text(text[:text.index("state:")] + "state: open\n")
        shutil.rmtree(self.dir / "sweep/trial-000/stages")
        data.rename(self.dir / "away.h5")
        out = self.grid("[0.5, 0.2]", "--resume", status=1, ranks=2)
        self.assertEqual(out.count("; --resume tries it again"), 2, out)
        (self.dir / "away.h5").rename(data)
        out = self.grid("[0.5, 0.2]", "--resume")
        self.assertNotIn("throughput", out)
        self.assertEqual(self.told("trained_by")[:2], [("0", "done", "0"), ("2", "done", "0")])
        # other data than the model's
        with h5py.File(data, "r+") as f:
            f["y"][:] = 9
        for again in (False, True):
            out = self.grid("[0.5]", "--resume", lr="0.02", status=1)
            self.assertRegex(out, "trial 3 failed: .*data.h5")
            self.assertEqual((out.count("--resume tries"), out.count("trial 3 (")), (0, int(not again)), out)

    def test_search_data_away(self):
        """What a search found without its data is a failure: it goes its way again, and trains nothing anew."""
        late, data = self.dir / "late.h5", self.dir / "data.h5"
        text = ("search: {minimize: size, trials: 9, seed: 1, over: "
                f"{{data.train.path: [{data}, {late}], pipeline.prune.amount: {{from: 0.1, to: 0.9}}}}}}")
        out = self.sweep(text)
        self.assertNotIn("tries it again", out)
        rows = self.rows()
        self.assertEqual({r["state"] for r in rows}, {"done", "failed"})
        self.assertEqual({r["state"] for r in rows if r["data.train.path"] == str(late)}, {"failed"})
        shutil.copy(data, late)
        out = self.sweep(text, "--resume")
        self.assertEqual((len(re.findall(r"trial \d+ \(\d+ of 9\)", out)), out.count("as recorded")),
                         (0, sum(r["state"] == "done" for r in rows)), out)
        keys = ("trial", "state", "data.train.path", "pipeline.prune.amount", "loss")
        self.assertEqual([[r[k] for k in keys] for r in self.rows()], [[r[k] for k in keys] for r in rows])

    def test_force(self):
        """Killed before its first trial, a sweep that does all anew takes nothing from before; nor does it write into folders of others."""
        self.grid("[0.2, 0.5]")
        for k in (0, 1):
            self.record(k).write_text("state: replaced\n")
        out = self.grid("[0.2, 0.5]", "--resume")
        self.assertEqual((out.count("as recorded"), out.count("throughput")), (0, 1), out)
        self.assertEqual(len(self.records("sweep/trial-000", "start")), 1)
        self.assertEqual(self.told("trained_by"), [("0", "done", "0"), ("1", "done", "0")])
        mine = self.dir / "sweep/trial-002"
        mine.mkdir()
        (mine / "model.h5").write_text("mine")
        self.grid("[0.2, 0.5, 0.6]", "--resume")
        self.assertEqual([r[0] for r in self.told()], ["0", "1", "3"])
        self.grid("[0.2, 0.5, 0.6]", "--force", status=2)
        self.assertEqual([p.name for p in mine.iterdir()], ["model.h5"])
        self.assertIn("state: replaced", self.record(3).read_text())

    def test_damaged(self):
        """A model that is not whole is nobody's training; the next one that is whole is."""
        self.grid("[0.2, 0.5]")
        model = self.dir / "sweep/trial-000/model.h5"
        whole = model.read_bytes()
        model.unlink()
        model.write_bytes(whole[:-100])
        out = self.grid("[0.2, 0.5, 0.6]", "--resume")
        self.assertRegex(out, "warning: .*trial-000/model.h5")
        self.assertNotIn("throughput", out)
        self.assertEqual(self.rows()[2]["trained_by"], "0")  # as that of 1, whose link it is
        (self.dir / "sweep/trial-001/model.h5").unlink()
        (self.dir / "sweep/trial-002/model.h5").unlink()
        out = self.grid("[0.7]", "--resume")
        self.assertRegex(out, "warning: .*trial-000/model.h5")
        self.assertIn("throughput", out)
        self.assertEqual(self.told("trained_by")[0], ("3", "done", "3"))
        # a timing in turns is held against its like alone; both are near the front
        for k in (2, 3):
            self.record(k).write_text(re.sub("(?m)^  latency_ms: .*", "  latency_ms: 1", self.record(k).read_text()))
        self.grid("[0.6, 0.7]", "--resume")
        timed = [re.search("(?m)^turns: .*", self.record(k).read_text()) for k in (2, 3)]
        self.assertEqual(timed[0][0], timed[1][0])
        self.record(3).write_text(self.record(3).read_text().replace(timed[0][0], "turns: '0000000000000000'"))
        self.assertIn("timed once more", self.grid("[0.6, 0.7]", "--resume"))
        self.assertNotIn("timed once more", self.grid("[0.6, 0.7]", "--resume"))
        # who trained it is a trial that did
        for number in (77, 3):
            self.record(2).write_text(re.sub("trained_by: .*", f"trained_by: {number}", self.record(2).read_text()))
            self.grid("[0.6]", "--resume", lr="0.005")
            self.assertEqual(self.told("trained_by")[0], ("2", "done", "3" if number == 3 else ""))

    def test_search(self):
        """Another search takes what it proposes and is done; the one before, gone on with, goes its way again."""
        search = ("search: {{minimize: size, trials: {}, seed: {}, over: {{pipeline.prune.by: [l1, random], "
                  "pipeline.prune.amount: [0.2, 0.5]}}}}")
        self.sweep(search.format(3, 1))
        rows, kept = self.rows(), self.finished()
        out = self.sweep(search.format(4, 2), "--resume")
        self.assertEqual((out.count("as recorded"), out.count("throughput")), (3, 0), out)
        self.assertEqual(sorted(r["trial"] for r in self.rows()), list("0123"))
        self.assert_kept(kept)
        out = self.sweep(search.format(3, 1), "--resume")
        self.assertIn("sweep holds 1 trial of before (3)", out)
        keys = ("trial", "pipeline.prune.by", "pipeline.prune.amount", "loss", "latency_ms", "trained_by")
        self.assertEqual([[r[k] for k in keys] for r in self.rows()[:3]], [[r[k] for k in keys] for r in rows])


if __name__ == "__main__":
    main()
