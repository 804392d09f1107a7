"""Losses through the trainer: trained again in numpy, over rank counts and micro-batches; `trainer evaluate` of
samples that do not count and of probabilities."""
import json

import h5py
import numpy as np

from harness import main
from line import EVAL, FLOAT, SAMPLES, LineCase, Model, Sgd, log_softmax

IGNORED = -100


def values_loss(curve, delta, slope):
    """A parabola up to delta, then lines; loss and gradient of a difference."""

    def of(d):
        far = np.abs(d)
        return (np.where(far < delta, curve / 2 * d * d, slope * (far - delta / 2)),
                np.where(far < delta, curve * d, slope * np.sign(d)))

    return of


def sigmoid_focal(gamma, alpha):
    def of(z, y):
        p = 1 / (1 + np.exp(-z))
        bce, wrong = np.logaddexp(0, z) - z * y, p * (1 - y) + (1 - p) * y
        counts = alpha * y + (1 - alpha) * (1 - y)
        slope = gamma * wrong ** (gamma - 1) * (1 - 2 * y) * p * (1 - p)
        return counts * wrong**gamma * bce, counts * (wrong**gamma * (p - y) + slope * bce)

    return of


def weighted_bce(pos):
    def of(z, y):
        p = 1 / (1 + np.exp(-z))
        return pos * y * np.logaddexp(0, -z) + (1 - y) * np.logaddexp(0, z), p * (1 - y) - pos * y * (1 - p)

    return of


class Any(Model):
    """A loss of one output and one target, and cross entropy of rows that count, or of probabilities."""

    def __init__(self, weight, bias, loss, of=None):
        super().__init__(weight, bias, loss)
        self.of = of

    def __call__(self, x, y):
        z = x.astype(np.float64) @ self.w.T + self.b
        if self.loss == "cross_entropy":
            target = np.eye(z.shape[1])[np.maximum(y, 0)] * (y >= 0)[:, None] if y.ndim == 1 else y
            counted = max((y >= 0).sum(), 1) if y.ndim == 1 else len(y)
            logp = log_softmax(z)
            value = -(target * logp).sum() / counted
            dz = (np.exp(logp) * target.sum(axis=1, keepdims=True) - target) / counted
        else:
            value, dz = (v / z.size for v in self.of(z, y))
            value = value.sum()
        return value, dz.T @ x, dz.sum(axis=0)


class Losses(LineCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(4)
        n = SAMPLES + EVAL
        self.some = np.where(rng.random(n) < 0.4, IGNORED, self.labels)
        self.some[8:16] = IGNORED  # a whole batch
        shares = rng.random((n, 7)) ** 4
        self.shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            for key, array in (("i", self.some), ("s", self.shares)):
                f[key], f[key + "e"] = array[:SAMPLES], array[SAMPLES:]
        self.targets.update(l1=self.targets["mse"], huber=self.targets["mse"], smooth_l1=self.targets["mse"],
                            focal=self.targets["bce"])

    def numpy(self, start, loss, targets, of=None, steps=20):
        model, optimizers, losses, norms = Any(*start, loss, of), (Sgd(), Sgd()), [], []
        for x, y in self.batches(steps, targets):
            value, dw, db = model(x, y)
            model.w, model.b = optimizers[0].step(model.w, dw, True), optimizers[1].step(model.b, db, False)
            losses.append(value)
            norms.append(np.sqrt((dw**2).sum() + (db**2).sum()))
        return losses, norms, (model.w, model.b)

    def test_values_and_logits(self):
        of_difference = {
            ("l1", "{}"): values_loss(0, 0, 1),
            ("huber", "{delta: 0.5}"): values_loss(1, 0.5, 0.5),
            ("smooth_l1", "{beta: 2}"): values_loss(0.5, 2, 1),
        }
        cases = {k: (lambda z, y, f=f: f(z - y)) for k, f in of_difference.items()}
        cases["bce", "{pos_weight: [2, 0.5, 1]}"] = weighted_bce(np.array([2, 0.5, 1]))
        cases["focal", "{gamma: 1.5, alpha: 0.3}"] = sigmoid_focal(1.5, 0.3)
        for i, ((loss, text), of) in enumerate(cases.items()):
            with self.subTest(loss=loss):
                start = self.start(loss)
                expected = self.numpy(start, loss, self.targets[loss][1], of)
                self.line("train.micro_batch=2", name=f"v{i}", loss=loss, options=text, ranks=3 if i % 2 else 2)
                self.compare(expected, f"v{i}")

    def test_labels_that_do_not_count(self):
        """Ignored samples, a whole batch of them, too: means over what counts, whatever rank and micro-batch it is in."""
        self.targets["cross_entropy"] = ("i", self.some, 7)
        start = self.start_ignoring()
        losses, norms, weights = self.numpy(start, "cross_entropy", self.some)
        for ranks, micro in ((0, 8), (2, 3), (3, 1)):
            name = f"i{ranks}"
            self.line(f"train.micro_batch={micro}", name=name, loss="cross_entropy", options="{ignore_index: -100}",
                      ranks=ranks, evaluate=20)
            got = [np.nan if r["loss"] is None else r["loss"] for r in self.records(name)]
            counted = np.array([(y >= 0).any() for _, y in self.batches(20, self.some)])
            np.testing.assert_allclose(np.array(got, float)[counted], np.array(losses)[counted], **FLOAT)
            self.assertTrue(np.isnan(np.array(got, float)[~counted]).all())
            for mine, want in zip(self.weights(f"{name}/model.h5"), weights):
                np.testing.assert_allclose(mine, want, **FLOAT)
            self.check_evaluation(name, ranks)

    def start_ignoring(self):
        self.line("--force", name="start", loss="cross_entropy", options="{ignore_index: -100}",
                  optimizer="{sgd: {lr: 0}}", steps=1, ranks=0)
        return self.weights("start/model.h5")

    def check_evaluation(self, name, ranks):
        y = self.some[SAMPLES:]
        x, y = self.x[SAMPLES:][y >= 0], y[y >= 0]
        w, b = self.weights(f"{name}/model.h5")
        logits = x @ w.T + b
        said = logits.argmax(axis=1)
        record = self.records(name, "eval")[-1]
        self.run_trainer("evaluate", f"{name}/model.h5", "-o", "full.json", "--force", "--quiet", ranks=ranks)
        full = json.loads((self.dir / "full.json").read_text())
        confusion = np.zeros((7, 7), int)
        np.add.at(confusion, (y, said), 1)
        np.testing.assert_array_equal(full["confusion"], confusion)
        np.testing.assert_array_equal(self.arrays(self.dir / name / "model.h5")["history/confusion"], confusion)
        for got in (record, full):
            self.assertEqual(got["samples"], len(y))
            self.assertAlmostEqual(got["loss"], -log_softmax(logits)[np.arange(len(y)), y].mean(), places=5)
            self.assertAlmostEqual(got["accuracy"], (said == y).mean(), places=9)
        for k, c in enumerate(full["classes"]):
            score = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True) - np.exp(logits))
            up, down = score[y == k, k][:, None], score[y != k, k][None, :]
            if up.size and down.size:
                self.assertAlmostEqual(c["auc"], np.mean((up > down) + 0.5 * (up == down)), places=9)

    def test_probabilities(self):
        self.targets["cross_entropy"] = ("s", self.shares, 7)
        self.line("--force", name="start", loss="cross_entropy", options="{targets: probabilities}",
                  optimizer="{sgd: {lr: 0}}", steps=1, ranks=0)
        expected = self.numpy(self.weights("start/model.h5"), "cross_entropy", self.shares)
        for ranks in (0, 3):
            name = f"s{ranks}"
            self.line("train.micro_batch=3", name=name, loss="cross_entropy", options="{targets: probabilities}",
                      ranks=ranks, evaluate=20)
            self.compare(expected, name)
            w, b = self.weights(f"{name}/model.h5")
            said, y = (self.x[SAMPLES:] @ w.T + b).argmax(axis=1), self.shares[SAMPLES:].argmax(axis=1)
            full = json.loads(self.tool("evaluate", f"{name}/model.h5", "--json"))
            for got in (self.records(name, "eval")[-1], full):
                self.assertEqual(got["samples"], EVAL)
                self.assertAlmostEqual(got["accuracy"], (said == y).mean(), places=9)
            self.assertEqual(np.trace(full["confusion"]), (said == y).sum())

    def test_probabilities_that_are_none(self):
        """The sample and its sum are named, with status 1."""
        self.targets["cross_entropy"] = ("s", self.shares, 7)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["s"][5] = 0.5
        said = self.line(loss="cross_entropy", options="{targets: probabilities}", status=1)
        self.assertRegex(said, r"line\.h5: dataset s: sample 5.*add up to 3\.5, expected 1")


class SampleWeights(LineCase):
    """sum(w * l) / sum(w) over the whole batch, whatever rank and micro-batch a sample is in; an evaluation likewise."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(6)
        self.counts = rng.choice([0, 0.25, 1, 3], SAMPLES + EVAL).astype(np.float32)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["n"], f["ne"] = self.counts[:SAMPLES], self.counts[SAMPLES:]

    def rows(self, z, y, loss, classes=None, smoothing=0.0):
        """Of each sample: loss, what it is divided by without weights, gradient."""
        if loss == "mse":
            return ((z - y) ** 2).sum(1), np.full(len(y), float(z.shape[1])), 2 * (z - y)
        if loss == "bce":
            p = 1 / (1 + np.exp(-z))
            return (np.logaddexp(0, z) - z * y).sum(1), np.full(len(y), float(z.shape[1])), p - y
        of = np.ones(z.shape[1]) if classes is None else np.array(classes, float)
        target = np.full(z.shape, smoothing / z.shape[1]) * of
        target[np.arange(len(y)), y] += (1 - smoothing) * of[y]
        logp = log_softmax(z)
        return -(target * logp).sum(1), of[y], np.exp(logp) * target.sum(1, keepdims=True) - target

    def value(self, w, b, x, y, counts, loss, **options):
        rows, divisors, _ = self.rows(x.astype(np.float64) @ w.T + b, y, loss, **options)
        return (counts * rows).sum() / (counts * divisors).sum()

    def numpy(self, start, loss, steps=20, **options):
        w, b = (v.astype(np.float64) for v in start)
        optimizers, losses = (Sgd(), Sgd()), []
        per_epoch = -(-SAMPLES // 8)
        for step, (x, y) in enumerate(self.batches(steps, self.targets[loss][1])):
            at = step % per_epoch * 8
            n = self.counts[at : at + len(y)].astype(np.float64) if at + len(y) <= SAMPLES else None
            rows, divisors, dz = self.rows(x.astype(np.float64) @ w.T + b, y, loss, **options)
            total = (n * divisors).sum()
            dz = dz * n[:, None] / total
            losses.append((n * rows).sum() / total)
            w, b = optimizers[0].step(w, dz.T @ x, True), optimizers[1].step(b, dz.sum(0), False)
        return losses, (w, b)

    def test_weighted(self):
        classes = [1, 2, 0.5, 3, 1, 1, 1]
        cases = [("mse", None, {}), ("bce", None, {}), ("cross_entropy", None, {}),
                 ("cross_entropy", f"{{label_smoothing: 0.1, class_weights: {classes}}}",
                  {"classes": classes, "smoothing": 0.1})]
        for i, (loss, text, options) in enumerate(cases):
            start = self.start(loss)
            losses, weights = self.numpy(start, loss, **options)
            for ranks, micro in ((0, 8), (2, 3), (3, 1)):
                with self.subTest(loss=loss, options=text, ranks=ranks):
                    name = f"w{i}{ranks}"
                    self.line("data.train.weights=n", "data.eval.weights=ne", f"train.micro_batch={micro}", name=name,
                              loss=loss, options=text, ranks=ranks, evaluate=20)
                    np.testing.assert_allclose(self.losses(name), losses, **FLOAT)
                    got = self.weights(f"{name}/model.h5")
                    for mine, want in zip(got, weights):
                        np.testing.assert_allclose(mine, want, **FLOAT)
                    value = self.value(*got, self.x[SAMPLES:], self.targets[loss][1][SAMPLES:], self.counts[SAMPLES:],
                                       loss, **options)
                    record = self.records(name, "eval")[-1]
                    self.assertAlmostEqual(record["loss"], value, places=5)
                    self.assertEqual(record["samples"], EVAL)
                    full = json.loads(self.tool("evaluate", f"{name}/model.h5", "--json"))
                    self.assertAlmostEqual(full["loss"], value, places=5)

    def test_table(self):
        """A column of a table; it is no input, and neither is it in the one that is predicted from."""
        header = "a,b,w,c\n"
        rows = [f"{i % 3},{i % 5},{0.5 + i % 2},{i % 2}\n" for i in range(24)]
        for name in ("t.csv", "e.csv"):
            (self.dir / name).write_text(header + "".join(rows))
        config = self.dir / "table.yaml"
        config.write_text(f"""
name: table
output: {self.dir / "run"}
data: {{train: {{path: t.csv, labels: c, weights: w}}, eval: {{path: e.csv, labels: c}}, shuffle: false}}
model: {{input: [2], layers: [linear: {{out: 2, name: head}}], loss: cross_entropy}}
train: {{steps: 1, batch: 24, log_every: 1, optimizer: {{sgd: {{lr: 0}}}}, eval: {{every_steps: 1}}}}
""")
        self.run_trainer(config, ranks=2)
        w, b = self.weights()
        x = np.array([[i % 3, i % 5] for i in range(24)], np.float32)
        y, n = np.arange(24) % 2, 0.5 + np.arange(24) % 2
        self.assertAlmostEqual(self.losses()[0], self.value(w, b, x, y, n, "cross_entropy"), places=5)
        self.assertAlmostEqual(self.records(event="eval")[0]["loss"], self.value(w, b, x, y, np.ones(24), "cross_entropy"),
                               places=5)  # data.eval names none

    def test_refused(self):
        """Weights that are none, with file and sample."""
        for bad, said in ((-1, r"sample 3.*weight -1, expected a finite float32 of at least 0"), (np.nan, "sample 3.*weight nan")):
            with h5py.File(self.dir / "line.h5", "r+") as f:
                f["n"][3] = bad
            self.assertRegex(self.line("--force", "data.train.weights=n", status=1), said)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["n"][...] = 0
            f["two"], f["few"] = np.ones((SAMPLES, 2), np.float32), np.ones(5, np.float32)
        for name, said in (("n", "all weights are 0"), ("two", r"a weight's shape is \(2\), expected one number a sample"),
                           ("few", f"has 5 samples, expected {SAMPLES}")):
            self.assertRegex(self.line("--force", f"data.train.weights={name}", status=1), said)


if __name__ == "__main__":
    main()
