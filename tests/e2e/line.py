"""A linear layer and the data for it, small enough to train again in numpy: losses, optimizers, a whole training."""
import h5py
import numpy as np

from harness import Case

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
FLOAT = dict(rtol=1e-5, atol=1e-6)
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
