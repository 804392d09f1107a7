"""Cross entropy of rows: a label for each row of a sample, or for each place of an image, trained again in numpy over rank
counts and micro-batches, some shares of which are empty, or have no label that counts."""
import json

import h5py
import numpy as np

from harness import main
from line import FLOAT, Sgd, log_softmax
from harness import Case

CONFIG = """
name: rows
seed: 5
output: {out}
data:
  train: {{path: rows.h5, inputs: {kind}, labels: {kind}_y, weights: w}}
  eval: {{path: rows.h5, inputs: {kind}e, labels: {kind}_ye, weights: we}}
  shuffle: false
model:
  input: {input}
  layers: [{layer}]
  loss: {{cross_entropy: {{ignore_index: -100, class_weights: [1, 2, 0.5, 1, 1, 3, 0.25]}}}}
train:
  steps: 12
  batch: 3
  micro_batch: {micro}
  log_every: 1
  optimizer: {{sgd: {{lr: 0.1}}}}
  metrics: [accuracy, f1]
  eval: {{every_steps: 12}}
  checkpoint: {{every_steps: 1000}}
"""
CLASSES = np.array([1, 2, 0.5, 1, 1, 3, 0.25])
LAYERS = {"x": ("[4, 5]", "linear: {out: 7, name: head}"), "p": ("[5, 2, 2]", "conv2d: {out: 7, kernel: 1, name: head}")}
SAMPLES, EVAL, IGNORED = 10, 7, -100


class Rows(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        n = SAMPLES + EVAL
        self.x = rng.normal(size=(n, 4, 5)).astype(np.float32)
        labels = (self.x @ rng.normal(size=(5, 7))).argmax(axis=2)
        self.y = np.where(rng.random((n, 4)) < 0.3, IGNORED, labels)
        self.y[4] = IGNORED  # a whole sample
        self.w = rng.integers(1, 5, n) / 2
        places = self.x.transpose(0, 2, 1).reshape(n, 5, 2, 2)
        with h5py.File(self.dir / "rows.h5", "w") as f:
            for key, array in (("x", self.x), ("p", places), ("x_y", self.y), ("p_y", self.y.reshape(n, 2, 2)), ("w", self.w)):
                name = key + "e" if "_" in key or key == "w" else key + "e"
                f[key], f[name] = array[:SAMPLES], array[SAMPLES:]

    def run_rows(self, kind, ranks, micro):
        name = f"{kind}{ranks}{micro}"
        shape, layer = LAYERS[kind]
        (self.dir / f"{name}.yaml").write_text(
            CONFIG.format(out=self.dir / name, kind=kind, input=shape, layer=layer, micro=micro))
        self.run_trainer(self.dir / f"{name}.yaml", ranks=ranks)
        return name

    def of(self, w, b, at):
        """Loss, its divisor, gradients, logits of samples."""
        x, y = self.x[at].reshape(-1, 5).astype(np.float64), self.y[at].reshape(-1)
        each = np.repeat(self.w[at], 4) * (y >= 0)
        z = x @ w.T + b
        logp, target = log_softmax(z), np.eye(7)[np.maximum(y, 0)]
        each = each * CLASSES[np.maximum(y, 0)]
        dz = (np.exp(logp) - target) * each[:, None]
        return -(logp * target).sum(axis=1) @ each, each.sum(), dz.T @ x, dz.sum(axis=0), z

    def again(self, w, b):
        w, b, losses, one, two = w.astype(np.float64), b.astype(np.float64), [], Sgd(), Sgd()
        for step in range(12):
            at = np.arange(step % 4 * 3, min(step % 4 * 3 + 3, SAMPLES))
            loss, by, dw, db, _ = self.of(w, b, at)
            losses.append(loss / by)
            w, b = one.step(w, dw / by, True), two.step(b, db / by, False)
        return w, b, losses

    def first(self):
        """The initial weights, by taking back the only step's update of a training with a learning rate of 0."""
        (self.dir / "start.yaml").write_text(CONFIG.format(
            out=self.dir / "start", kind="x", input=LAYERS["x"][0], layer=LAYERS["x"][1], micro=3))
        self.run_trainer(self.dir / "start.yaml", "train.steps=1", "train.optimizer.lr=0", "train.eval.every_steps=1", ranks=0)
        a = self.arrays(self.dir / "start/model.h5")
        return a["model/params/head/weight"], a["model/params/head/bias"]

    def test_ranks_and_micro_batches(self):
        w, b, losses = self.again(*self.first())
        for kind, ranks, micro in (("x", 0, 3), ("x", 2, 1), ("x", 3, 1), ("x", 4, 1), ("p", 0, 1), ("p", 3, 1)):
            with self.subTest(kind=kind, ranks=ranks, micro=micro):
                name = self.run_rows(kind, ranks, micro)
                np.testing.assert_allclose([r["loss"] for r in self.records(name)], losses, **FLOAT)
                got = self.arrays(self.dir / name / "model.h5")
                np.testing.assert_allclose(got["model/params/head/weight"].reshape(7, 5), w, **FLOAT)
                np.testing.assert_allclose(got["model/params/head/bias"], b, **FLOAT)
                self.check_counts(name, w, b, ranks)

    def check_counts(self, name, w, b, ranks):
        sequences = name.startswith("x")
        for r in self.records(name):
            self.assertEqual("tokens_per_s" in r, sequences)
        epoch = self.records(name, "epoch")[0]
        self.assertEqual(epoch["samples"], SAMPLES)
        self.assertEqual(epoch["targets"], int((self.y[:SAMPLES] >= 0).sum()))
        self.assertEqual("tokens_per_s" in self.records(name, "end")[0], sequences)
        at = np.arange(SAMPLES, SAMPLES + EVAL)
        loss, by, _, _, z = self.of(w, b, at)
        y = self.y[at].reshape(-1)
        counts, said = y >= 0, z.argmax(axis=1)
        right = (said == y)[counts].mean()
        record = self.records(name, "eval")[-1]
        self.run_trainer("evaluate", f"{name}/model.h5", "-o", "full.json", "--force", "--quiet", ranks=ranks)
        full = json.loads((self.dir / "full.json").read_text())
        for got in (record, full):
            self.assertEqual((got["samples"], got["targets"]), (EVAL, int(counts.sum())))
            self.assertAlmostEqual(got["loss"], loss / by, delta=1e-5)
            self.assertAlmostEqual(got["accuracy"], right, delta=1e-9)
        confusion = np.zeros((7, 7), int)
        np.add.at(confusion, (y[counts], said[counts]), 1)
        np.testing.assert_array_equal(full["confusion"], confusion)
        np.testing.assert_array_equal(self.arrays(self.dir / name / "model.h5")["history/confusion"], confusion)

    def test_predict(self):
        """Probabilities and classes of each row as the model puts them out: classes last, or of an image first."""
        for kind in ("x", "p"):
            name = self.run_rows(kind, 0, 3)
            with h5py.File(self.dir / name / "model.h5") as f:
                w, b = f["model/params/head/weight"][:].reshape(7, 5), f["model/params/head/bias"][:]
            z = self.x[SAMPLES:].astype(np.float64) @ w.T + b  # samples, rows, classes
            p, order = np.exp(log_softmax(z.reshape(-1, 7))).reshape(z.shape), np.argsort(-z, axis=2)[:, :, :2]
            def laid(a):
                return a if kind == "x" else a.transpose(0, 2, 1).reshape(EVAL, -1, 2, 2)
            for ranks in (0, 2):
                self.run_trainer("predict", f"{name}/model.h5", "-o", f"{ranks}.h5", "--top", 2, "--raw", "--force", ranks=ranks)
            self.assertEqual((self.dir / "0.h5").read_bytes(), (self.dir / "2.h5").read_bytes())
            self.run_trainer("predict", f"{name}/model.h5", "-o", "p.npy", "--force", ranks=0)
            self.run_trainer("predict", f"{name}/model.h5", "-o", "one.h5", "--force", ranks=0)
            with h5py.File(self.dir / "0.h5") as f, h5py.File(self.dir / "one.h5") as one:
                np.testing.assert_allclose(f["raw"], laid(z), **FLOAT)
                np.testing.assert_allclose(f["probabilities"], laid(p), **FLOAT)
                np.testing.assert_array_equal(f["classes"], laid(order))
                np.testing.assert_allclose(f["class_probabilities"], laid(np.take_along_axis(p, order, 2)), **FLOAT)
                np.testing.assert_array_equal(one["classes"], laid(order[:, :, :1]))
                np.testing.assert_array_equal(np.load(self.dir / "p.npy"), f["probabilities"])

    def test_refused(self):
        """What has no meaning, or no format, for rows."""
        name = self.run_rows("x", 0, 3)
        out = self.run_trainer("predict", f"{name}/model.h5", "-o", "p.csv", ranks=0, status=2)
        self.assertIn("a class for each of 4 rows of a sample, which a .csv file has no columns for: expected .h5 or .npy", out)
        out = self.run_trainer("predict", f"{name}/model.h5", "-o", "p.h5", "--top", 8, ranks=0, status=2)
        self.assertIn("the model has 7 classes", out)
        out = self.run_trainer(self.dir / f"{name}.yaml", "--force", "train.metrics=[auc]", ranks=0, status=2)
        self.assertIn("auc is not measured", out)
        out = self.run_trainer(self.dir / f"{name}.yaml", "--force", "train.metrics=[perplexity]", ranks=0, status=2)
        self.assertIn("train.metrics.0: perplexity is of the plain cross entropy", out)
        out = self.run_trainer(self.dir / f"{name}.yaml", "--force", "data.train.labels=w", ranks=0, status=1)
        self.assertIn("expected (4)", out)
        taught = self.dir / "taught.yaml"
        taught.write_text((self.dir / f"{name}.yaml").read_text().replace(", weights: we", "").replace(", weights: w", "").replace("ignore_index: -100, ", "")
                          .replace("x_y", "x_z"))
        with h5py.File(self.dir / "rows.h5", "r+") as f:
            for key in ("x_y", "x_ye"):
                f[key.replace("y", "z")] = np.maximum(f[key][:], 0)
        out = self.run_trainer(taught, "--force", f"train.distill.teacher={name}/model.h5", f"output={self.dir}/t", ranks=0,
                               status=2)
        self.assertIn("cannot be distilled", out)


if __name__ == "__main__":
    main()
