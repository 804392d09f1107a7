"""What decides over training survives stops and rollbacks: evaluations, plateau, early stop, learning rate."""
import os
import signal

import h5py
import numpy as np

from harness import Case, main

DIVERGING = """
name: diverging
seed: 1
output: {out}
data:
  train: {{format: synthetic, samples: 64}}
  eval: {{format: synthetic, samples: 64}}
model:
  input: [8]
  layers: [{{linear: {{out: 1}}}}]
  loss: mse
train:
  steps: {steps}
  batch: 64
  log_every: 1
  optimizer: {{sgd: {{lr: 8.0}}}}
  checkpoint: {{every_steps: 5}}
  eval: {{every_steps: 10}}
  on_nonfinite: rollback
  rollback_lr: 0.01
  max_rollbacks: 3
"""


class Continuity(Case):

    def try_trainer(self, config, *arguments, ranks):
        process = self.start(config, *arguments, ranks=ranks)
        self.output, _ = process.communicate(timeout=60)
        return process.returncode

    def curve(self, name):
        with h5py.File(self.dir / name / "model.h5") as f:
            return {n: f["history"][n][()] for n in ("eval_step", "eval_loss")}

    def test_stops_at_evaluations(self):
        """A stop on a step that evaluates: the evaluation is made up for, so plateau decides the same."""
        overrides = ("train.schedule={plateau: {patience: 0, threshold: 1.0, gamma: 0.5}}", "train.eval.every_steps=1",
                     "train.steps=6", "train.checkpoint.best=true")
        for name in ("whole", "stopped"):
            self.config(name, every=100)
        self.run_trainer(self.dir / "whole.yaml", *overrides)
        for _ in range(10):
            status = self.try_trainer(self.dir / "stopped.yaml", "--resume", "train.max_seconds=0.001", *overrides, ranks=2)
            if status != 75:
                break
        self.assertEqual(status, 0, self.output)
        self.assertEqual([r["lr"] for r in self.records("stopped")], [r["lr"] for r in self.records("whole")])
        self.assertEqual(self.losses("stopped"), self.losses("whole"))
        for key, values in self.curve("whole").items():
            np.testing.assert_array_equal(self.curve("stopped")[key], values)
        self.assert_same_model(self.dir / "stopped/model.h5", self.dir / "whole/model.h5")
        self.assert_same_model(self.dir / "stopped/checkpoints/best.h5", self.dir / "whole/checkpoints/best.h5")

    def test_early_stop_is_remembered(self):
        overrides = ("train.early_stop={patience: 2, min_delta: 100}", "train.eval.every_steps=2")
        config = self.config(steps=40, every=1)
        self.run_trainer(config, *overrides)
        steps = [r["step"] for r in self.records()]
        self.assertEqual(steps[-1], 6)  # the first evaluation counts, two more do not improve by 100
        first = self.contents("run")
        self.run_trainer(config, "--resume", *overrides)
        self.assertEqual(self.contents("run"), first)
        os.unlink(self.dir / "run/model.h5")
        self.run_trainer(config, "--resume", *overrides)
        end = self.records(event="end")[-1]
        self.assertIsNone(end["samples_per_s"])
        self.assertEqual(end["final_loss"], self.losses()[-1])

    def test_result(self):
        """model.h5 is the last step's, the best evaluation's or the average's, and it is said which."""
        for result, average in (("last", "0.9"), ("best", "0.9"), ("best", "none"), ("ema", "0.9")):
            out = self.run_trainer(self.config(steps=24, every=8), "--force", f"train.result={result}", f"train.ema={average}",
                                   "train.optimizer.lr=0.5", "train.eval.every_steps=4", ranks=0)
            evaluations = self.records(event="eval")
            best = min(evaluations, key=lambda e: e["loss"])["step"]
            self.assertLess(best, 24)  # else last and best are one
            self.assertIn(f"best evaluation  step {best}:", out)
            step = best if result == "best" else 24
            file = "best" if result == "best" else "step-00000024"
            with h5py.File(self.dir / "run/model.h5") as model, h5py.File(self.dir / f"run/checkpoints/{file}.h5") as of:
                self.assertEqual((model.attrs["step"], of.attrs["step"]), (step, step))
                group = "model/params" if result == "last" or average == "none" else "optimizer/ema"
                for array in ("head/weight", "batchnorm1/weight"):
                    np.testing.assert_array_equal(model[f"model/params/{array}"][()], of[f"{group}/{array}"][()])
                np.testing.assert_array_equal(model["model/state/batchnorm1/running_mean"][()],
                                              of["model/state/batchnorm1/running_mean"][()])
            self.assertIn(f"step {step}", next(line for line in out.splitlines() if "model.h5    " in line))

    def test_min_delta_adds_up(self):
        """Many small improvements are one: patience is measured against the loss it began with."""
        config = self.config(steps=40, every=100)
        self.run_trainer(config, "train.early_stop={patience: 3, min_delta: 0.02}", "train.eval.every_steps=1",
                         "train.optimizer={sgd: {lr: 0.003}}", "train.schedule=constant", "train.clip_norm=none")
        losses = [r["loss"] for r in self.records(event="eval")]
        reference, bad, stop = losses[0], 0, len(losses)
        for i, loss in enumerate(losses[1:], 2):
            reference, bad = (loss, 0) if loss < reference - 0.02 else (reference, bad + 1)
            if bad == 3:
                stop = i
                break
        self.assertEqual(len(losses), stop)
        self.assertGreater(len(losses), 4)

    def test_rollback_recovers(self):
        """A diverging run overflows, goes back with a lower rate, and gets through; nothing is lost of its curve."""
        config = self.config(text=DIVERGING, steps=80)
        self.run_trainer(config)
        rollbacks = self.records(event="rollback")
        self.assertGreaterEqual(len(rollbacks), 1)
        self.assertEqual(rollbacks[0]["to"] % 5, 0)
        self.assertAlmostEqual(rollbacks[0]["lr_factor"], 0.01)
        self.assertEqual(self.records()[-1]["step"], 80)
        self.assertLess(self.losses()[-1], max(l for l in self.losses() if l is not None) / 1e6)
        with h5py.File(self.dir / "run/model.h5") as f:
            np.testing.assert_array_equal(f["history/step"][()], np.arange(1, 81))
            np.testing.assert_array_equal(f["history/eval_step"][()], np.arange(10, 81, 10))
            self.assertEqual(f["train"].attrs["rollbacks"], len(rollbacks))

    def test_rollbacks_one_after_the_other(self):
        """Each checkpoint is told of once, also where no step between two of them counts."""
        config = self.config(text=DIVERGING, steps=80)
        self.run_trainer(config, "train.rollback_lr=0.999", "train.max_rollbacks=9", status=1)
        self.assertEqual(len(self.records(event="rollback")), 9)
        written = [r["seconds"] for r in self.records(event="checkpoint_written")]
        self.assertEqual(len(written), len(set(written)), written)

    def test_rollbacks_are_durable(self):
        """The count and the rate survive a kill as soon as the rollback is told."""
        config = self.config(text=DIVERGING, steps=10**6)
        process = self.start(config, ranks=2)
        self.wait_for_step("run", 5, process)
        while not self.records(event="rollback"):
            self.assertIsNone(process.poll())
        for pid in self.rank_pids(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)
        self.run_trainer(config, "--resume", "train.max_seconds=0.01", status=75)
        newest = sorted((self.dir / "run/checkpoints").glob("step-*.h5"))[-1]
        with h5py.File(newest) as f:
            self.assertGreaterEqual(f["train"].attrs["rollbacks"], 1)
            self.assertLessEqual(f["train"].attrs["lr_factor"], 0.01)

    def test_stop_during_an_evaluation(self):
        """A stop does not wait for a long evaluation: it is made up for on resume."""
        config = self.config(steps=4, every=100)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            x, y = f["xe"][()], f["ye"][()]
            del f["xe"], f["ye"]
            f["xe"], f["ye"] = np.tile(x, (2000, 1, 1, 1)), np.tile(y, 2000)
        overrides = ("train.eval.every_steps=2", "train.eval.batch=2")
        self.stop("run", 2, config, *overrides, ranks=2)
        self.assertEqual(self.records(event="eval"), [])
        self.run_trainer(config, "--resume", *overrides)
        self.assertEqual([(r["step"], r["samples"]) for r in self.records(event="eval")], [(2, 80000), (4, 80000)])

    def test_ranks_with_other_arguments(self):
        """An override, a flag, the config itself: told once, by the first that differs, and nothing is written."""
        config, other = self.config("run"), self.dir / "other.yaml"
        other.write_text(config.read_text().replace("lr: 0.005", "lr: 0.05"))
        self.assertNotEqual(other.read_text(), config.read_text())
        line = "the command line"
        for first, second, what, said in (((config, "train.steps=5"), (config,), line, ("train.steps=5", "")),
                                          ((config, "seed=1"), (config, "seed=2"), line, ("seed=1", "seed=2")),
                                          ((config,), (config, "--force"), line, ("", "--force")),
                                          ((config,), (other,), "the config", ("  optimizer: .*lr: 0.005}}", "  optimizer: .*lr: 0.05}}"))):
            with self.subTest(first=first, second=second):
                process = self.start(*first, ":", "-np", "1", os.environ["TRAINER"], *second, ranks=1)
                out, _ = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 2, out)
                ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
                self.assertEqual(len(ours), 1, out)
                self.assertRegex(ours[0], rf'{what} is not the same on all ranks: rank 0 \(.*\) has "{said[0]}", '
                                          rf'rank 1 \(.*\) has "{said[1]}"; unlike rank 0: 1 \(')
                self.assertFalse((self.dir / "run").exists())


if __name__ == "__main__":
    main()
