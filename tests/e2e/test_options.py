"""Every training option has its effect, the same at several ranks: updates and losses against numpy, data
formats against each other, schedules against their formulas."""
import gzip
import struct

import h5py
import numpy as np

from harness import Case, main

# One linear layer: small enough to train again in numpy.
LINE = """
name: line
seed: 5
output: {out}
data:
  train: {{path: line.h5, inputs: x, labels: {labels}}}
  eval: {{path: line.h5, inputs: xe, labels: {labels}e}}
  shuffle: false
model:
  input: [5]
  layers: [linear: {{out: {outputs}, name: head}}]
  loss: {loss}
train:
  steps: {steps}
  batch: 8
  log_every: 1
  optimizer: {optimizer}
  eval: {{every_steps: {evaluate}}}
  checkpoint: {{every_steps: 1000}}
"""
IMAGES = """
name: images
seed: 2
output: {out}
data:
  train: {{path: images.h5, inputs: x, labels: y}}
model:
  input: {input}
  layers:
    - conv2d: {{out: 4, kernel: 3, stride: 2, padding: 1}}
    - relu
    - flatten
    - linear: {{out: 7, name: head}}
  loss: cross_entropy
train: {{steps: 8, batch: 10, log_every: 1, optimizer: {{adamw: {{lr: 0.003}}}}}}
"""
WORDS = """
name: words
seed: 4
data:
  train: {path: words.h5, inputs: x, labels: y}
  eval: {path: words.h5, inputs: xe, labels: ye}
model:
  input: [6]
  layers:
    - embedding: {num: 30, dim: 8, name: words}
    - linear: {out: 8, name: rows}
    - gelu
    - flatten
    - linear: {out: 4, name: head}
  loss: cross_entropy
train: {steps: 40, batch: 16, log_every: 1, optimizer: {adamw: {lr: 0.02}}, eval: {every_steps: 40}}
"""
FLOAT = dict(rtol=1e-5, atol=1e-6)
RANKS = dict(rtol=2e-5, atol=1e-5)  # other rank count: another order of sums
SAMPLES, EVAL = 28, 19  # batches of 8: the last of an epoch is short


def log_softmax(z):
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


class Model:
    """A linear layer and its losses: the mean over weights, and its gradient by the outputs."""

    def __init__(self, weight, bias, loss, smoothing=0.0, weights=None):
        self.w, self.b = weight.astype(np.float64), bias.astype(np.float64)
        self.loss, self.smoothing, self.weights = loss, smoothing, weights

    def __call__(self, x, y):
        z = x.astype(np.float64) @ self.w.T + self.b
        if self.loss == "mse":
            dz, value = 2 * (z - y) / z.size, ((z - y) ** 2).mean()
        elif self.loss == "bce":
            p = 1 / (1 + np.exp(-z))
            value, dz = (np.logaddexp(0, z) - z * y).mean(), (p - y) / z.size
        else:
            k, classes = len(y), z.shape[1]
            of_class = np.ones(classes) if self.weights is None else np.asarray(self.weights)
            target = np.full((k, classes), self.smoothing / classes) * of_class
            target[np.arange(k), y] += (1 - self.smoothing) * of_class[y]
            logp = log_softmax(z)
            total = of_class[y].sum()
            value = -(target * logp).sum() / total
            dz = (np.exp(logp) * target.sum(axis=1, keepdims=True) - target) / total
        return value, dz.T @ x, dz.sum(axis=0)


class Sgd:
    def __init__(self, lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0):
        self.lr, self.momentum, self.nesterov, self.decay, self.m = lr, momentum, nesterov, weight_decay, 0

    def step(self, w, g, decays):
        g = g + (self.decay * w if decays else 0)
        self.m = self.momentum * self.m + g
        return w - self.lr * (g + self.momentum * self.m if self.nesterov else self.m)


class Adamw:
    def __init__(self, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
        self.lr, self.b1, self.b2, self.eps, self.decay = lr, beta1, beta2, eps, weight_decay
        self.m = self.v = self.t = 0

    def step(self, w, g, decays):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        m, v = self.m / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return w * (1 - self.lr * self.decay * decays) - self.lr * m / (np.sqrt(v) + self.eps)


class Lion:
    def __init__(self, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.0):
        self.lr, self.b1, self.b2, self.decay, self.m = lr, beta1, beta2, weight_decay, 0

    def step(self, w, g, decays):
        c = self.b1 * self.m + (1 - self.b1) * g
        self.m = self.b2 * self.m + (1 - self.b2) * g
        return w * (1 - self.lr * self.decay * decays) - self.lr * np.sign(c)


class LineCase(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(8)
        n = SAMPLES + EVAL
        self.x = rng.normal(size=(n, 5)).astype(np.float32)
        truth = rng.normal(size=(5, 7))
        self.values = (self.x @ truth[:, :3] + 0.3 * rng.normal(size=(n, 3))).astype(np.float32)
        self.labels = (self.x @ truth + 0.5 * rng.normal(size=(n, 7))).argmax(axis=1)
        self.bits = (self.values > 0).astype(np.float32)
        self.targets = {"mse": ("v", self.values, 3), "bce": ("b", self.bits, 3),
                        "cross_entropy": ("c", self.labels, 7)}
        with h5py.File(self.dir / "line.h5", "w") as f:
            f["x"], f["xe"] = self.x[:SAMPLES], self.x[SAMPLES:]
            for key, array in (("v", self.values), ("b", self.bits), ("c", self.labels)):
                f[key], f[key + "e"] = array[:SAMPLES], array[SAMPLES:]

    def line(self, *arguments, name="run", loss="mse", optimizer="{sgd: {lr: 0.1}}", steps=20, ranks=2,
             evaluate=1000, status=0, options=None):
        labels, _, outputs = self.targets[loss]
        path = self.dir / f"{name}.yaml"
        text = loss if options is None else "{%s: %s}" % (loss, options)
        path.write_text(LINE.format(out=self.dir / name, labels=labels, outputs=outputs, loss=text,
                                    optimizer=optimizer, steps=steps, evaluate=evaluate))
        return self.run_trainer(path, *arguments, ranks=ranks, status=status)

    def weights(self, file="run/model.h5", group="model/params"):
        found = self.arrays(self.dir / file)
        return found[f"{group}/head/weight"], found[f"{group}/head/bias"]

    def start(self, loss="mse"):
        """The initial weights: a step with a learning rate of 0."""
        self.line("--force", name="start", loss=loss, optimizer="{sgd: {lr: 0}}", steps=1, ranks=0)
        return self.weights("start/model.h5")

    def batches(self, steps, targets):
        per_epoch = -(-SAMPLES // 8)
        for step in range(steps):
            at = step % per_epoch * 8
            yield self.x[at : min(at + 8, SAMPLES)], targets[at : min(at + 8, SAMPLES)]

    def again(self, start, make, steps=20, loss="mse", clip=None, decay_all=False, lrs=None, ema=None, **options):
        """The same training in numpy: losses, gradient norms, weights, their average."""
        model, losses, norms = Model(*start, loss, **options), [], []
        optimizers = make(), make()
        average = [model.w, model.b]
        for step, (x, y) in enumerate(self.batches(steps, self.targets[loss][1])):
            value, dw, db = model(x, y)
            norm = np.sqrt((dw**2).sum() + (db**2).sum())
            if clip and norm > clip:
                dw, db = dw * clip / norm, db * clip / norm
            if lrs is not None:
                optimizers[0].lr = optimizers[1].lr = lrs[step]
            model.w = optimizers[0].step(model.w, dw, True)
            model.b = optimizers[1].step(model.b, db, decay_all)
            if ema:
                average = [ema * a + (1 - ema) * p for a, p in zip(average, (model.w, model.b))]
            losses.append(value)
            norms.append(norm)
        return losses, norms, (model.w, model.b), average

    def compare(self, expected, name="run"):
        losses, norms, weights = expected[:3]
        np.testing.assert_allclose(self.losses(name), losses, **FLOAT)
        np.testing.assert_allclose([r["grad_norm"] for r in self.records(name)], norms, **FLOAT)
        for got, want in zip(self.weights(f"{name}/model.h5"), weights):
            np.testing.assert_allclose(got, want, **FLOAT)


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
        cases = {
            "constant": np.full(20, 0.1),
            "{constant: {warmup: 4, warmup_start: 0.2}}": 0.1 * (0.2 + 0.8 * warm),
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
                (("train.steps=6", "train.eval=", "train.checkpoint={every_epochs: none}"), [4, 6], [6])):
            self.line("--force", *arguments, ranks=0)
            self.assertEqual([e["step"] for e in self.records(event="eval")], evals)
            self.assertEqual(sorted(p.name for p in (self.dir / "run/checkpoints").glob("step-*")),
                             [f"step-{s:08d}.h5" for s in saves])

    def test_log_every(self):
        self.line("train.log_every=7")
        self.assertEqual([r["step"] for r in self.records()], [7, 14, 20])


class Machine(Case):
    """Recomputation, collectives, threads: how, never what."""

    def test_recompute(self):
        plans = {}
        for i, recompute in enumerate(("none", "blocks", "{every: 2}", "{every: 3}")):
            for ranks in (1, 2):
                config = self.config(f"r{i}-{ranks}", steps=6)
                self.run_trainer(config, f"train.recompute={recompute}", "train.micro_batch=5", ranks=ranks)
                self.assertEqual(self.losses(f"r{i}-{ranks}"), self.losses(f"r0-{ranks}"), recompute)
            text = self.tool("plan", config, f"train.recompute={recompute}")
            plans[recompute] = text.count(" conv2d ")
        self.assertGreater(plans["blocks"], plans["none"], "nothing is run again")
        self.assertGreater(plans["{every: 2}"], plans["none"])

    def test_recompute_saves_memory(self):
        block = "- residual: {body: [linear: {out: 64}, gelu, linear: {out: 64}, gelu]}"
        config = self.dir / "deep.yaml"
        config.write_text("data: {train: {format: synthetic, samples: 64, classes: 4}}\nname: deep\n"
                          "model:\n  input: [64]\n  loss: cross_entropy\n  layers:\n    - repeat: {times: 12, layers: ["
                          + block[2:] + "]}\n    - linear: {out: 4}\n"
                          "train: {steps: 4, batch: 64, log_every: 1, optimizer: {sgd: {lr: 0.01}}}\n")
        held, losses = {}, {}
        for recompute in ("none", "blocks"):
            self.run_trainer(config, f"train.recompute={recompute}", f"output={self.dir}/{recompute}", ranks=0)
            held[recompute] = self.records(recompute, "end")[0]["held_mb"]
            losses[recompute] = self.losses(recompute)
        self.assertEqual(losses["none"], losses["blocks"])
        self.assertLess(held["blocks"], held["none"] - 0.3)  # 12 blocks x 3 x 64 x 64 floats, most of them spared

    def test_collectives(self):
        for name, arguments in (("shared", ("run.collectives=shared",)), ("mpi", ("run.collectives=mpi",)),
                                ("small", ("run.bucket_mb=0.001",)),
                                ("threads", ("run.threads=2", "run.affinity=none"))):
            out = self.run_trainer(self.config(name, steps=12), *arguments, ranks=2)
            np.testing.assert_allclose(self.losses(name), self.losses("shared"), rtol=1e-4, err_msg=out)
        start = {n: self.records(n, "start")[0] for n in ("shared", "mpi", "threads")}
        self.assertIn("share", start["shared"]["collectives"])
        self.assertNotEqual(start["shared"]["collectives"], start["mpi"]["collectives"])
        self.assertEqual(start["threads"]["threads"], 2)

    def test_sync_batchnorm(self):
        for sync in ("true", "false"):
            for ranks in (1, 2):
                self.run_trainer(self.config(f"{sync}{ranks}", steps=8), f"train.sync_batchnorm={sync}", ranks=ranks)
        self.assertEqual(self.losses("true1"), self.losses("false1"))
        np.testing.assert_allclose(self.losses("true2"), self.losses("true1"), **RANKS)
        self.assertGreater(np.abs(np.subtract(self.losses("false2"), self.losses("true1"))).max(), 1e-3)

    def test_precision(self):
        for precision in ("fp32", "bf16"):
            self.run_trainer(self.config(precision, steps=20), f"train.precision={precision}", ranks=2)
        a, b = self.losses("fp32"), self.losses("bf16")
        self.assertNotEqual(a, b)
        np.testing.assert_allclose(b, a, rtol=0.1, atol=0.03)
        for name, array in self.arrays(self.dir / "bf16/model.h5").items():
            if name.startswith("model/"):
                self.assertEqual(array.dtype, np.float32)
        out = self.run_trainer(self.config("half"), "train.precision=fp16", status=2)
        self.assertIn("bf16", out)

    def test_init(self):
        bound = {"kaiming": lambda i, o: np.sqrt(1 / i), "xavier": lambda i, o: np.sqrt(6 / (i + o))}
        found = {}
        for init in ("kaiming", "xavier", "normal", "zeros"):
            self.run_trainer(self.config(init, steps=1), f"model.init={init}", "train.schedule=constant",
                             "train.optimizer={sgd: {lr: 0}}", ranks=2)
            found[init] = self.arrays(self.dir / init / "model.h5")["model/params/head/weight"]
        outputs, inputs = found["zeros"].shape
        self.assertFalse(found["zeros"].any())
        self.assertAlmostEqual(self.losses("zeros")[0], np.log(4), places=6)
        for init, of in bound.items():
            limit = of(inputs, outputs)
            self.assertTrue(0.97 * limit < np.abs(found[init]).max() <= limit, (init, np.abs(found[init]).max(), limit))
        self.assertGreater(np.abs(found["normal"]).max(), 3 * found["normal"].std())

    def test_seed(self):
        for name, seed in (("a", 3), ("b", 4)):
            self.run_trainer(self.config(name, steps=3), f"seed={seed}", ranks=1)
        self.assertNotEqual(self.losses("a"), self.losses("b"))


class Data(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(6)
        self.y = rng.integers(0, 7, 45)
        self.x = rng.integers(0, 256, (45, 3, 32, 32)).astype(np.uint8)
        self.x[np.arange(45), 0, self.y, :] = 255  # something to learn
        with h5py.File(self.dir / "images.h5", "w") as f:
            f["x"], f["y"] = self.x, self.y.astype(np.uint8)

    def images(self, name, *arguments, ranks=2, input="[3, 32, 32]", status=0):
        path = self.dir / f"{name}.yaml"
        path.write_text(IMAGES.format(out=self.dir / name, input=input))
        out = self.run_trainer(path, "data.normalize={mean: 127.5, std: 70}", *arguments, ranks=ranks, status=status)
        return self.losses(name) if status == 0 else out

    def test_formats(self):
        """The same samples from every format give the same losses, to the bit."""
        idx = {}
        for name, array in (("x", self.x), ("y", self.y.astype(np.uint8))):
            idx[name] = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            (self.dir / f"{name}-ubyte").write_bytes(idx[name])
            (self.dir / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx[name]))
            np.save(self.dir / f"{name}.npy", array)
        np.save(self.dir / "float.npy", self.x.astype(np.float32))
        np.save(self.dir / "long.npy", self.y.astype(np.int64))
        records = np.concatenate([self.y[:, None].astype(np.uint8), self.x.reshape(45, -1)], axis=1)
        (self.dir / "one.bin").write_bytes(records[:20].tobytes())
        (self.dir / "two.bin").write_bytes(records[20:].tobytes())
        coarse = np.concatenate([np.full((45, 1), 3, np.uint8), records], axis=1)
        (self.dir / "hundred.bin").write_bytes(coarse.tobytes())
        whole = self.images("hdf5")
        self.assertLess(whole[-1], whole[0])
        cases = {
            "idx": "{inputs: x-ubyte, labels: y-ubyte}",
            "gz": "{inputs: x-ubyte.gz, labels: y-ubyte.gz}",
            "idx-named": "{inputs: x-ubyte, labels: y-ubyte, format: idx}",
            "npy": "{inputs: x.npy, labels: y.npy}",
            "npy-wide": "{inputs: float.npy, labels: long.npy}",
            "cifar10": "{path: 'one.bin,two.bin', format: cifar10}",
            "cifar100": "{path: hundred.bin, format: cifar100}",
        }
        for name, source in cases.items():
            with self.subTest(name):
                self.assertEqual(self.images(name, f"data.train={source}"), whole)
                streamed = (f"{name}-streamed", f"data.train={source}", "data.cache_mb=0")
                if name == "gz":
                    self.assertIn("gzip cannot be streamed", self.images(*streamed, status=1))
                else:
                    self.assertEqual(self.images(*streamed), whole)

    def test_streamed(self):
        self.assertEqual(self.images("streamed", "data.cache_mb=0", "data.workers=2", "data.prefetch=3"),
                         self.images("cached"))
        self.assertEqual(self.images("inline", "data.workers=0"), self.losses("cached"))

    def test_normalize(self):
        """A mean and a deviation a channel, against data that was prepared beforehand."""
        mean, std = np.array([100, 120, 140]), np.array([50, 60, 80])
        prepared = ((self.x - mean[:, None, None]) / std[:, None, None]).astype(np.float32)
        with h5py.File(self.dir / "prepared.h5", "w") as f:
            f["x"], f["y"] = prepared, self.y
        np.testing.assert_allclose(
            self.images("here", "data.normalize={mean: [100, 120, 140], std: [50, 60, 80]}"),
            self.images("there", "data.train.path=prepared.h5", "data.normalize={mean: 0, std: 1}"), rtol=1e-5)
        self.assertIn("normalize", self.images("wrong", "data.normalize={mean: [1, 2], std: [1, 2]}", status=2))

    def test_augmentation(self):
        plain = self.images("plain")
        for kind in ("{crop: 4}", "{flip: true}", "{crop: 2, flip: true}"):
            one = self.images("one", f"data.augment={kind}", "--force", ranks=1)
            three = self.images("three", f"data.augment={kind}", "data.workers=2", "--force", ranks=3)
            np.testing.assert_allclose(three, one, err_msg=kind, **RANKS)
            self.assertGreater(np.abs(np.subtract(one, plain)).max(), 1e-3, kind)

    def test_order(self):
        shuffled, straight = self.images("shuffled"), self.images("straight", "data.shuffle=false")
        self.assertNotEqual(shuffled, straight)

    def test_drop_last_and_samples(self):
        for name, arguments, samples, per_epoch in (
                ("all", (), 45, 5), ("dropped", ("data.drop_last=true",), 45, 4),
                ("fewer", ("data.train.samples=21",), 21, 3)):
            self.images(name, "train.epochs=2", "train.steps=none", *arguments)
            start = self.records(name, "start")[0]
            self.assertEqual((start["samples"], start["steps_per_epoch"]), (samples, per_epoch))
            self.assertEqual(len(self.losses(name)), 2 * per_epoch)
        self.assertEqual(self.losses("all")[:4], self.losses("dropped")[:4])  # the 5th: a short batch, or a new epoch
        self.assertNotEqual(self.losses("all")[4], self.losses("dropped")[4])

    def test_named_inputs(self):
        """Two inputs, concatenated, are the one input that holds both."""
        rng = np.random.default_rng(3)
        x = rng.normal(size=(30, 7)).astype(np.float32)
        with h5py.File(self.dir / "named.h5", "w") as f:
            f["x"], f["left"], f["right"] = x, x[:, :4], x[:, 4:]
            f["y"] = x @ rng.normal(size=(7, 2)).astype(np.float32)
        text = """
data: {{train: {{path: named.h5, inputs: {data}, labels: y}}}}
name: named
model: {{{inputs}, layers: [{first}linear: {{out: 2, name: head}}], loss: mse}}
train: {{steps: 10, batch: 8, log_every: 1, optimizer: {{sgd: {{lr: 0.1}}}}}}
"""
        for name, ranks, data, inputs, first in (
                ("one", 1, "x", "input: [7]", ""),
                ("two", 1, "{a: left, b: right}", "inputs: {a: [4], b: [3]}", "{concat: {from: [a, b]}}, "),
                ("three", 3, "{b: right, a: left}", "inputs: {a: [4], b: [3]}", "{concat: {from: [a, b]}}, "),
                ("turned", 1, "{a: left, b: right}", "inputs: {a: [4], b: [3]}", "{concat: {from: [b, a]}}, ")):
            path = self.dir / f"{name}.yaml"
            path.write_text(text.format(data=data, inputs=inputs, first=first))
            self.run_trainer(path, f"output={self.dir}/{name}", ranks=ranks)
        self.assertEqual(self.losses("one"), self.losses("two"))
        np.testing.assert_allclose(self.losses("three"), self.losses("two"), **RANKS)
        self.assertNotEqual(self.losses("turned"), self.losses("two"))

    def words(self, name, *arguments, ranks=2, **keywords):
        path = self.dir / f"{name}.yaml"
        path.write_text(WORDS)
        return self.run_trainer(path, f"output={self.dir}/{name}", *arguments, ranks=ranks, **keywords)

    def test_embedding(self):
        """A classifier of words learns which of them belong to a class; the same however it is computed."""
        rng = np.random.default_rng(8)
        y = rng.integers(0, 4, 103)
        x = rng.integers(0, 30, (103, 6))
        own = rng.random((103, 6)) < 0.6
        x[own] = (x % 5 + 5 * y[:, None])[own]  # words 5y .. 5y + 4 are of class y, 20 .. 29 of none
        with h5py.File(self.dir / "words.h5", "w") as f:
            f["x"], f["y"], f["xe"], f["ye"] = x[:80].astype(np.int64), y[:80], x[80:].astype(np.uint8), y[80:]
        self.words("one", ranks=1)
        one = self.losses("one")
        self.assertLess(np.mean(one[-5:]), 0.3 * np.mean(one[:5]))
        self.assertGreater(self.records("one", "eval")[-1]["accuracy"], 0.6)
        table = self.arrays(self.dir / "one/model.h5")["model/params/words/weight"]
        self.assertEqual((table.shape, table.dtype), ((30, 8), np.float32))
        for name, arguments, ranks in (
                ("again", (), 1), ("two", (), 2), ("three", (), 3), ("micro", ("train.micro_batch=3",), 2),
                ("recompute", ("train.recompute={every: 2}",), 1), ("streamed", ("data.cache_mb=0",), 1)):
            self.words(name, *arguments, ranks=ranks)
            if name in ("again", "recompute", "streamed"):
                self.assertEqual(self.losses(name), one, name)
            else:
                np.testing.assert_allclose(self.losses(name), one, err_msg=name, **RANKS)
        self.words("bf16", "train.precision=bf16")
        self.assertNotEqual(self.losses("bf16"), one)
        np.testing.assert_allclose(self.losses("bf16"), one, rtol=0.1, atol=0.05)

    def test_embedding_input(self):
        """What is no id ends the run on all ranks; what would change ids is a config error."""
        for name, value, said in (("half", 3.5, "3.5"), ("below", -1, "-1"), ("above", 30, "30")):
            x = np.zeros((40, 6))
            x[17, 4] = value
            with h5py.File(self.dir / "words.h5", "w") as f:
                f["x"], f["y"], f["xe"], f["ye"] = x, np.zeros(40, np.int32), np.zeros((8, 6)), np.zeros(8, np.int32)
            out = self.words(name, status=1)
            self.assertRegex(out, rf"words.h5: dataset x: sample 17[^:]*: element 4 is {said}, "
                                  "expected an id: a whole number from 0 to 29")
        self.assertIn("data.normalize: all inputs of the model are ids",
                      self.words("normal", "data.normalize={mean: 1, std: 2}", status=2))
        self.words("made", "data.train={format: synthetic, samples: 60}", "data.eval={format: synthetic, samples: 30}")
        losses = self.losses("made")
        self.assertLess(np.mean(losses[-5:]), 0.7 * np.mean(losses[:5]))
        out = self.tool("plan", self.dir / "made.yaml", "data.train={format: synthetic, samples: 60}")
        for op in ("embedding", "embedding.grad"):
            self.assertIn(f" {op} ", out)
        self.assertIn("embedding", self.tool("check", self.dir / "made.yaml"))

    def test_synthetic(self):
        losses = {}
        for ranks in (1, 2):
            losses[ranks] = self.images(f"s{ranks}", "data.train={format: synthetic, samples: 60, classes: 7}",
                                        "data.normalize={}", "train.steps=30", ranks=ranks)
        np.testing.assert_allclose(losses[2], losses[1], rtol=1e-3, atol=1e-4)
        self.assertLess(np.mean(losses[1][-5:]), np.mean(losses[1][:5]))


if __name__ == "__main__":
    main()
