"""Losses and gradients that are not finite: what is skipped, taken back, or ends the run, and where it then goes on."""
import h5py
import numpy as np

from harness import Case, main

STEEP = """
name: steep
device: cpu
output: {out}
data: {{train: {{path: {data}, inputs: x, labels: y}}, workers: {workers}, shuffle: {shuffle}}}
model:
  input: [2, 6, 6]
  layers:
    - flatten
    - linear: {{out: 4}}
  loss: cross_entropy
train: {{steps: {steps}, batch: {batch}, log_every: 1, checkpoint: {{every_steps: {every}}}}}
"""


class NotFinite(Case):
    def test_not_finite(self):
        config = self.config(poison=20, shuffle="false", steps=12)
        out = self.run_trainer(config, "train.on_nonfinite=stop", status=1)
        self.assertIn("step 2", out)
        self.assertRegex(out, r"gradient of \w+\.\w+ is not finite")
        out = self.run_trainer(config, "--force", "train.on_nonfinite=skip")
        self.assertIn("the update is skipped", out)
        out = self.run_trainer(config, "--force", "train.on_nonfinite=rollback", "train.max_rollbacks=2",
                               "train.checkpoint.every_steps=1", status=1)
        rollbacks = self.records(event="rollback")
        self.assertEqual([(r["step"], r["to"]) for r in rollbacks], [(2, 1), (2, 1)])

    def learn_nothing(self, name, *more, ranks=1):
        """A run that fails after step 3; what it leaves, and that one goes on from its last sound checkpoint."""
        config = self.config(name, steps=40, every=1, shuffle="false")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][50:] = np.nan
        out = self.run_trainer(config, "train.eval.every_steps=100", *more, ranks=ranks, status=1)
        self.assertRegex(out, r"gradient of \w+\.\w+ is not finite")
        self.assertRegex(out, r"sample \d\d of data.train is not finite itself \(.*data\.h5.*sample \d\d.*\); the learning rate was 0.0")
        self.assertFalse((self.dir / name / "model.h5").exists())
        kept = sorted(p.name for p in (self.dir / name / "checkpoints").glob("step-*.h5"))
        self.assertEqual(kept[:3], [f"step-0000000{n}.h5" for n in (1, 2, 3)], "the last ones that updated")
        self.assertEqual(self.records(name, "end")[-1]["reason"], "not finite")
        said = self.run_trainer(self.config(name, every=1), "--resume", "train.steps=5", ranks=ranks)
        self.assertIn("step-00000003.h5 (step 3)", said)
        self.assertEqual([r["step"] for r in self.records(name)], [1, 2, 3, 4, 5])
        return out, kept, said

    def test_skips_in_a_row(self):
        out, kept, said = self.learn_nothing("row", "train.max_skips_in_a_row=3", ranks=2)
        self.assertIn("; 3 updates in a row were skipped (train.max_skips_in_a_row)", out)
        self.assertEqual(kept[3:], ["step-00000005.h5"], "the one before the end")
        self.assertIn("step-00000005.h5 is not sound", said)

    def test_skips_in_all(self):
        out, _, _ = self.learn_nothing("all", "train.max_skips=1")
        self.assertIn("--resume goes on from the last sound checkpoint", out)
        self.assertIn("; 2 of 5 updates were skipped (train.max_skips)", out)

    def test_learns_nothing(self):
        """Few steps, all of them skipped: by default no run that made no update is done; nor is a search for a scale."""
        config = self.config(steps=4, every=1)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][...] = np.nan
        out = self.run_trainer(config, status=1)
        self.assertIn("(train.max_skips)", out)
        out = self.run_trainer(config, "--force", "train.loss_scale=dynamic", status=1)
        self.assertIn("(train.max_skips)", out)  # the loss is not finite, whatever its scale
        self.assertIn("--resume starts over", out)
        out = self.run_trainer(config, "--force", "train.max_skips=9", status=1)
        self.assertIn("all 4 updates were skipped, 4 of them for losses or gradients", out)

    def test_absurd_rate(self):
        """Weights that were thrown away by a rate: it says where to look, and keeps what was made before."""
        config = self.config(steps=60, every=1)
        more = ("train.optimizer={adamw: {lr: 1e6}}", "train.eval.every_steps=1")
        out = self.run_trainer(config, *more, status=1)
        self.assertIn("the evaluation loss is not finite; the values of data.eval are finite: look at the weights (trainer inspect)", out)
        self.assertRegex(out, r"error: .*10 updates in a row were skipped.*; the values of its samples .* are finite; the learning rate was \d{6}")
        self.assertEqual(self.records(event="end")[-1]["reason"], "not finite")
        self.assertFalse((self.dir / "run/model.h5").exists())
        sound = {r["step"] for r in self.records(event="eval") if r["loss"] is not None}
        self.assertIn(1, sound)
        folder = self.dir / "run/checkpoints"
        self.assertTrue((folder / f"step-{max(sound):08}.h5").exists(), sorted(folder.iterdir()))
        self.tool("inspect", folder / "best.h5")
        with h5py.File(folder / "best.h5") as f:
            self.assertIn(f["train"].attrs["step"], sound)
        out = self.run_trainer(config, "--resume", "train.steps=5")
        self.assertIn(f"step-{max(sound):08}.h5 (step {max(sound)})", out)

    def test_search_for_a_loss_scale(self):
        """The skips with which a dynamic scale begins fail no run, however tight the limits, but one without an update."""
        config = self.config(text=STEEP, steps=40)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][...] *= np.float32(1e27)
        tight = ("train.loss_scale=dynamic", "train.loss_scale_init=1e12", "train.max_skips=1", "train.max_skips_in_a_row=1")
        out = self.run_trainer(config, *tight)
        skipped = [r["step"] for r in self.records() if r.get("skipped")]
        self.assertEqual(skipped[:3], [1, 2, 3], out)
        out = self.run_trainer(config, "--force", *tight, "train.steps=2", status=1)
        self.assertRegex(out, "all 2 updates were skipped.*, which was still sought")
        self.assertFalse((self.dir / "run/model.h5").exists())
        out = self.run_trainer(config, "--resume", *tight)  # more steps
        self.assertIn("step-00000002.h5 (step 2)", out)
        self.assertTrue((self.dir / "run/model.h5").exists())

    def test_rollback_of_an_evaluation_that_was_owed(self):
        """A checkpoint made before its step's evaluation, which then fails: the run goes back to an earlier one."""
        config = self.config(steps=5, every=1)
        self.run_trainer(config)
        (self.dir / "run/checkpoints/step-00000005.h5").unlink()
        (self.dir / "run/checkpoints/best.h5").unlink(missing_ok=True)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["xe"][3] = np.nan
        out = self.run_trainer(config, "--resume", "train.steps=4", "train.on_nonfinite=rollback", "train.max_rollbacks=2",
                               status=1)
        self.assertEqual([(r["step"], r["to"]) for r in self.records(event="rollback")], [(4, 3), (4, 3)], out)
        self.assertNotEqual(self.records(event="end")[-1]["reason"], "done")
        self.assertTrue((self.dir / "run/checkpoints/step-00000004.h5.unsound").exists())

    def test_nan_evaluations_never_improve(self):
        config = self.config(steps=30, every=1)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["xe"][3] = np.nan
        more = ("train.eval.every_steps=2", "train.early_stop={patience: 3}")
        out = self.run_trainer(config, *more, "train.on_nonfinite=stop", "output=stop", status=1)
        self.assertEqual(self.records("stop", "end")[-1]["steps"], 2, out)
        out = self.run_trainer(config, *more, status=1)
        self.assertNotIn("best so far", out)
        self.assertIn("step 2: evaluation loss not finite", out)
        self.assertNotRegex(out, r"loss -?nan")
        self.assertEqual([r["loss"] for r in self.records(event="eval")], [None] * 3)
        self.assertIn("the evaluation loss is not finite; sample 3 of data.eval is not finite itself", out)
        self.assertFalse((self.dir / "run/model.h5").exists())
        self.assertFalse((self.dir / "run/checkpoints/best.h5").exists())
        out = self.run_trainer(self.config(steps=4, every=1), "--resume", *more)  # of data that is mended
        self.assertIn("step-00000006.h5 is not sound", out)
        self.assertIn("step-00000001.h5 (step 1)", out)


if __name__ == "__main__":
    main()
