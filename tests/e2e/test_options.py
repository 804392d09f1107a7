"""The options of training have their effect, the same at several ranks: updates, losses and learning rates against
numpy, evaluations and checkpoints at their steps."""
import h5py
import numpy as np

from harness import main
from line import EVAL, FLOAT, SAMPLES, Adamw, LineCase, Lion, Model, Sgd, log_softmax


class Updates(LineCase):
    def test_optimizers(self):
        start = self.start()
        cases = {
            "{sgd: {lr: 0.1}}": lambda: Sgd(),
            "{sgd: {lr: 0.1, momentum: 0.9}}": lambda: Sgd(momentum=0.9),
            "{sgd: {lr: 0.05, momentum: 0.8, nesterov: true}}": lambda: Sgd(0.05, 0.8, True),
            "{sgd: {lr: 0.1, weight_decay: 0.2}}": lambda: Sgd(weight_decay=0.2),
            "{adamw: {lr: 0.1}}": lambda: Adamw(),
            "{adamw: {lr: 0.05, beta1: 0.7, beta2: 0.9, eps: 0.01, weight_decay: 0.5}}":
                lambda: Adamw(0.05, 0.7, 0.9, 0.01, 0.5),
            "{lion: {lr: 0.01}}": lambda: Lion(),
            "{lion: {lr: 0.02, beta1: 0.5, beta2: 0.8, weight_decay: 0.3}}": lambda: Lion(0.02, 0.5, 0.8, 0.3),
        }
        for i, (optimizer, make) in enumerate(cases.items()):
            with self.subTest(optimizer):
                self.line(name=f"o{i}", optimizer=optimizer, ranks=(2, 0, 3)[i % 3])
                self.compare(self.again(start, make), f"o{i}")

    def test_decay_all(self):
        start = self.start()
        for optimizer, make in (("{sgd: {lr: 0.1, weight_decay: 0.3, decay_all: true}}", lambda: Sgd(weight_decay=0.3)),
                                ("{adamw: {weight_decay: 0.9, lr: 0.1, decay_all: true}}",
                                 lambda: Adamw(weight_decay=0.9))):
            self.line("--force", optimizer=optimizer)
            self.compare(self.again(start, make, decay_all=True))

    def test_clip_norm(self):
        start = self.start()
        self.line("train.clip_norm=3.0")
        expected = self.again(start, Sgd, clip=3.0)
        self.assertTrue(min(expected[1]) < 3.0 < max(expected[1]), "both sides of the limit are met")
        self.compare(expected)

    def test_loss_scale_cancels(self):
        self.line(name="plain", ranks=0)
        self.line("train.loss_scale=1024", name="scaled", ranks=0)
        self.assertEqual(self.losses("plain"), self.losses("scaled"))
        self.assertEqual({r["loss_scale"] for r in self.records("scaled")}, {1024})

    def test_dynamic_loss_scale_grows(self):
        self.line("train.loss_scale=dynamic", "train.loss_scale_init=8", "train.loss_scale_window=6")
        self.assertEqual([r["loss_scale"] for r in self.records()], [8.0] * 5 + [16.0] * 6 + [32.0] * 6 + [64.0] * 3)

    def test_ema(self):
        start = self.start()
        self.line("train.ema=0.8", evaluate=20)
        losses, norms, weights, average = self.again(start, Sgd, ema=0.8)
        np.testing.assert_allclose(self.losses(), losses, **FLOAT)
        for got, want in zip(self.weights(), average):  # the trained model is the average
            np.testing.assert_allclose(got, want, **FLOAT)
        checkpoint = "run/checkpoints/step-00000020.h5"
        for got, want in zip(self.weights(checkpoint), weights):
            np.testing.assert_allclose(got, want, **FLOAT)
        for got, want in zip(self.weights(checkpoint, "optimizer/ema"), average):
            np.testing.assert_allclose(got, want, **FLOAT)
        value, _, _ = Model(*average, "mse")(self.x[SAMPLES:], self.values[SAMPLES:])
        self.assertAlmostEqual(self.records(event="eval")[-1]["loss"] / value, 1, places=5)


class Losses(LineCase):
    def test_losses(self):
        cases = {
            ("cross_entropy", None): {},
            ("cross_entropy", "{label_smoothing: 0.2}"): {"smoothing": 0.2},
            ("cross_entropy", "{class_weights: [1, 2, 0.5, 3, 1, 0, 1]}"): {"weights": [1, 2, 0.5, 3, 1, 0, 1]},
            ("cross_entropy", "{label_smoothing: 0.1, class_weights: [1, 2, 0.5, 3, 1, 1, 1]}"):
                {"smoothing": 0.1, "weights": [1, 2, 0.5, 3, 1, 1, 1]},
            ("bce", None): {},
        }
        for i, ((loss, text), options) in enumerate(cases.items()):
            with self.subTest(loss=loss, options=text):
                start = self.start(loss)
                self.line(name=f"l{i}", loss=loss, options=text, ranks=2 if i % 2 else 3)
                self.compare(self.again(start, Sgd, loss=loss, **options), f"l{i}")

    def test_evaluation(self):
        """Loss, accuracy, top-5 and confusion matrix of 19 samples over 1 and 3 ranks."""
        x, y = self.x[SAMPLES:], self.labels[SAMPLES:]
        for ranks in (0, 3):
            name = f"e{ranks}"
            self.line(name=name, loss="cross_entropy", ranks=ranks, evaluate=10)
            w, b = self.weights(f"{name}/model.h5")
            logits = x @ w.T + b
            order = np.argsort(-logits, axis=1)
            record = self.records(name, "eval")[-1]
            self.assertEqual((record["step"], record["samples"]), (20, EVAL))
            self.assertAlmostEqual(record["loss"], -log_softmax(logits)[np.arange(EVAL), y].mean(), places=5)
            self.assertAlmostEqual(record["accuracy"], (order[:, 0] == y).mean(), places=9)
            self.assertAlmostEqual(record["top5"], (order[:, :5] == y[:, None]).any(axis=1).mean(), places=9)
            confusion = np.zeros((7, 7), int)
            np.add.at(confusion, (y, order[:, 0]), 1)
            np.testing.assert_array_equal(self.arrays(self.dir / name / "model.h5")["history/confusion"], confusion)

    def test_bce_accuracy(self):
        self.line(loss="bce", evaluate=20)
        w, b = self.weights()
        right = ((self.x[SAMPLES:] @ w.T + b > 0) == (self.bits[SAMPLES:] > 0.5)).mean()
        self.assertAlmostEqual(self.records(event="eval")[-1]["accuracy"], right, places=6)

    def test_evaluation_batch(self):
        for name, batch in (("a", "auto"), ("b", 3), ("c", 100)):
            self.line(f"train.eval.batch={batch}", name=name, evaluate=10)
        losses = [[e["loss"] for e in self.records(n, "eval")] for n in "abc"]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
        np.testing.assert_allclose(losses[2], losses[0], rtol=1e-6)


class Schedules(LineCase):
    def lrs(self, schedule, *arguments, steps=20, lr=0.1, ranks=0, **options):
        self.line("--force", f"train.schedule={schedule}", *arguments, steps=steps,
                  optimizer="{sgd: {lr: %g}}" % lr, ranks=ranks, **options)
        return np.array([r["lr"] for r in self.records()])

    def test_schedules(self):
        t = np.arange(20)
        late = np.maximum(t - 4, 0) / 16  # after a warm-up of 4 steps, as a part of the rest
        warm = np.minimum((t + 1) / 4, 1)
        from_start = np.minimum(t / 3, 1)
        cases = {
            "constant": np.full(20, 0.1),
            "{constant: {warmup: 4, warmup_start: 0.2}}": 0.1 * (0.2 + 0.8 * from_start),
            "{step: {milestones: [1, 3], gamma: 0.5}}": 0.1 * 0.5 ** ((t >= 4) + (t >= 12).astype(int)),
            "{cosine: {warmup: 4, final: 0.1}}":
                np.where(t < 4, 0.1 * warm, 0.1 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * late)))),
            "{linear: {warmup: 4, final: 0.2}}": np.where(t < 4, 0.1 * warm, 0.1 * (1 - 0.8 * late)),
        }
        start = self.start()
        for schedule, expected in cases.items():
            with self.subTest(schedule):
                np.testing.assert_allclose(self.lrs(schedule), expected, rtol=1e-12)
                self.compare(self.again(start, Sgd, lrs=expected))

    def test_plateau(self):
        """A rate so small that nothing improves: it drops at every second evaluation after the first."""
        lrs = self.lrs("{plateau: {patience: 1, gamma: 0.5}}", steps=12, lr=1e-9, evaluate=2, ranks=2)
        np.testing.assert_allclose(lrs, 1e-9 * 0.5 ** np.array([0] * 6 + [1] * 4 + [2] * 2))
        lrs = self.lrs("{plateau: {patience: 1, gamma: 0.5}}", steps=12, lr=0.05, evaluate=2)
        np.testing.assert_allclose(lrs, 0.05)

    def test_early_stop(self):
        out = self.line("train.early_stop.patience=2", "train.early_stop.min_delta=0.01",
                        optimizer="{sgd: {lr: 1e-9}}", steps=100, evaluate=3)
        self.assertIn("early stop", out)
        self.assertEqual(len(self.losses()), 9)  # the best at 3, none better at 6 and 9
        self.assertTrue((self.dir / "run/model.h5").exists())
        self.assertTrue((self.dir / "run/checkpoints/step-00000009.h5").exists())
        self.line("--force", "train.early_stop.patience=2", "train.early_stop.min_delta=0.01", steps=9, evaluate=3)
        self.assertEqual(self.records(event="end")[-1]["reason"], "done")


class Files(LineCase):
    def test_keep_and_best(self):
        """A rate that overshoots: the loss goes up and down, and best.h5 is the lowest."""
        self.line("train.checkpoint.every_steps=3", "train.checkpoint.keep=2",
                  optimizer="{sgd: {lr: 0.9, momentum: 0.9}}", evaluate=2)
        folder = self.dir / "run/checkpoints"
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         ["best.h5", "step-00000018.h5", "step-00000020.h5"])
        evals = self.records(event="eval")
        best = min(evals, key=lambda e: e["loss"])
        self.assertLess(best["step"], 20)
        with h5py.File(folder / "best.h5", "r") as f:
            self.assertEqual(f.attrs["step"], best["step"])
        value, _, _ = Model(*self.weights("run/checkpoints/best.h5"), "mse")(self.x[SAMPLES:], self.values[SAMPLES:])
        self.assertAlmostEqual(value / best["loss"], 1, places=5)
        self.line("--force", "train.checkpoint.every_steps=6", "train.checkpoint.keep=all",
                  "train.checkpoint.best=false", evaluate=5)
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         [f"step-{s:08d}.h5" for s in (6, 12, 18, 20)])

    def test_by_epochs(self):
        for arguments, evals, saves in (
                (("train.epochs=4", "train.steps=none", "train.eval={every_epochs: 2}", "train.checkpoint={keep: all}"),
                 [8, 16], [4, 8, 12, 16]),
                (("train.steps=6", "train.eval=", "train.checkpoint={every_epochs: none}"), [4, 6], [6]),
                (("train.steps=6", "train.eval={every_epochs: none}", "train.checkpoint={every_epochs: none}"), [], [6])):
            self.line("--force", *arguments, ranks=0)
            self.assertEqual([e["step"] for e in self.records(event="eval")], evals)
            self.assertEqual(sorted(p.name for p in (self.dir / "run/checkpoints").glob("step-*")),
                             [f"step-{s:08d}.h5" for s in saves])

    def test_log_every(self):
        self.line("train.log_every=7")
        self.assertEqual([r["step"] for r in self.records()], [7, 14, 20])

    def test_hardly_meant(self):
        """Allowed, but warned of, once; not where it is meant."""
        keys = ("train.tf32=true", "run.benchmark=true", "run.cuda_graph=off", "run.workspace_mb=64")
        said = ["train.schedule: warmup: 50 steps, of a run of 2", "train.batch: 100 is more than the 28 samples",
                *(f"{key.split('=')[0]} is for GPUs" for key in keys)]
        out = self.line("device=cpu", "run.deterministic=auto", "train.batch=100", "train.schedule={linear: {warmup: 50}}", *keys, steps=2, ranks=2)
        for warning in said:
            self.assertEqual(out.count("warning: " + warning), 1, out)
        self.assertEqual(out.count("warning: train.batch"), 1, out)
        fits = "train.batch=28", "train.schedule={linear: {warmup: 1}}", "device=cpu", "run.deterministic=auto", "--force"
        for more in (("train.tf32=false", "run.benchmark=false", "run.cuda_graph=auto", "run.workspace_mb=256"),
                     ("run.level=high_throughput",), ("run.level=basic",)):  # what a level says is of all machines
            out = self.line(*fits, *more, steps=2)
            for warning in said:
                self.assertNotIn("warning: " + warning[:11], out)
            # what a run wrote down is not taken for what a user wrote
            self.assertNotIn("for GPUs", self.run_trainer(self.dir / "run/config.yaml", "device=cpu", "run.deterministic=auto", "--force", ranks=0))

    def test_schedules_behind_the_end(self):
        """20 steps, 4 an epoch."""
        for schedule, said in (("{step: {milestones: [2, 5, 9]}}", "milestones: at step 20, 36, of a run of 20: "),
                               ("{step: {milestones: [19 steps, 20 steps]}}", "milestones: at step 20, of a run of 20: "),
                               ("{cosine: {restart: [10, 40]}}", "restart: at step 40, of a run of 20: "),
                               ("{exponential: {gamma: 0.5, period: 5}}", "period: 20 steps, of a run of 20: ")):
            out = self.line("--force", f"train.schedule={schedule}", ranks=2)
            self.assertEqual(out.count("warning: train.schedule: "), 1, out)
            self.assertIn("warning: train.schedule: " + said, out)
        for schedule in ("{step: {milestones: [2, 4]}}", "{cosine: {restart: [10, 19]}}", "{exponential: {gamma: 0.5, period: 4}}"):
            self.assertNotIn("warning: train.schedule", self.line("--force", f"train.schedule={schedule}", ranks=0))


if __name__ == "__main__":
    main()
