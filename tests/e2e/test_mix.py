"""Mixup and CutMix through the trainer: trained again in numpy, which draws the same numbers by the same keys."""
import math

import h5py
import numpy as np

from harness import main
from line import EVAL, FLOAT, SAMPLES, LineCase, Sgd, log_softmax

SEED, BATCH = 5, 8  # of line.py
MASK = (1 << 64) - 1


# ---- runtime/base/rng.c: keys by SplitMix64, Philox4x32-10, the permutation of an index


def scramble(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def key_of(seed, purpose, stream):
    return scramble(scramble(seed) ^ (purpose << 32 | stream))


def philox(key, index, block):
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c = [index & 0xFFFFFFFF, index >> 32, block, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def permute(seed, turn, n, i):
    if n < 2:
        return 0
    half = 1
    while 1 << 2 * half < n:
        half += 1
    mask, key = (1 << half) - 1, key_of(seed, SHUFFLE, 0)
    while True:
        left, right = i >> half, i & mask
        for r in range(4):
            left, right = right, left ^ (philox(key, turn * 4 + r, right)[0] & mask)
        i = left << half | right
        if i < n:
            return i


SHUFFLE, AUGMENT = 2, 4  # purposes
WHICH, SHARE, PARTNER = 5, 6, 7  # streams


def inside(bits):
    return (bits + 0.5) * 2.0**-32


def beta(alpha, step):
    """Joehnk's method up to 1, Cheng's BB beyond."""
    for attempt in range(1000):
        u, v = (inside(w) for w in philox(key_of(SEED, AUGMENT, SHARE), step, attempt)[:2])
        if alpha <= 1:
            x, y = u ** (1 / alpha), v ** (1 / alpha)
            if x + y <= 1:
                return x / (x + y)
        else:
            w = alpha * (u / (1 - u)) ** (1 / math.sqrt(alpha))
            s = (alpha + math.sqrt(alpha)) / math.sqrt(alpha) * math.log(u / (1 - u)) - math.log(4)
            if s + 2 * alpha * math.log(2 * alpha / (alpha + w)) >= math.log(u * u * v):
                return w / (alpha + w)


def draw(step, up, cut, h=0, w=0):
    """(kind, share, box); up, cut: (alpha, probability) or None."""
    words = philox(key_of(SEED, AUGMENT, WHICH), step, 0)
    cuts = cut and (not up or words[0] >> 31)
    alpha, probability = cut if cuts else up
    if inside(words[1]) >= probability:
        return "none", 1, None
    share = beta(alpha, step)
    if not cuts:
        return "mixup", share, None
    x, y, half = words[2] * w >> 32, words[3] * h >> 32, 0.5 * math.sqrt(1 - share)
    left, right = max(x - int(half * w), 0), min(x + int(half * w), w)
    top, bottom = max(y - int(half * h), 0), min(y + int(half * h), h)
    return "cutmix", 1 - (right - left) * (bottom - top) / (w * h), np.s_[:, :, top:bottom, left:right]


class Mixed(LineCase):
    CLASSES = 7

    def mixed(self, steps, x, labels, up, cut=None):
        """Batches with targets as probabilities. Samples are in the file's order."""
        kinds, per_epoch = set(), -(-SAMPLES // BATCH)
        for step in range(steps):
            at = step % per_epoch * BATCH
            a, y = x[at : min(at + BATCH, SAMPLES)], np.eye(self.CLASSES)[labels[at : min(at + BATCH, SAMPLES)]]
            kind, share, box = draw(step, up, cut, *x.shape[2:])
            partner = [permute(key_of(SEED, AUGMENT, PARTNER), step, len(a), i) for i in range(len(a))]
            kinds.add(kind)
            if kind == "mixup":
                a = np.float32(share) * a + np.float32(1 - share) * a[partner]
            if kind == "cutmix":
                a, whole = a.copy(), a
                a[box] = whole[partner][box]
            if kind != "none":
                y = share * y + (1 - share) * y[partner]
            yield a.reshape(len(a), -1), y
        self.assertEqual(kinds, self.kinds)

    def numpy(self, start, batches, smoothing=0.0, weights=None):
        """F.cross_entropy of probabilities: label_smoothing, weight, the mean over samples."""
        w, b = (v.astype(np.float64) for v in start)
        optimizers, losses, norms, right, seen = (Sgd(), Sgd()), [], [], 0, 0
        of_class = np.ones(self.CLASSES) if weights is None else np.array(weights)
        for x, y in batches:
            z = x.astype(np.float64) @ w.T + b
            logp, target = log_softmax(z), ((1 - smoothing) * y + smoothing / self.CLASSES) * of_class
            losses.append(-(target * logp).sum() / len(y))
            dz = (np.exp(logp) * target.sum(1, keepdims=True) - target) / len(y)
            dw, db = dz.T @ x, dz.sum(0)
            norms.append(np.sqrt((dw**2).sum() + (db**2).sum()))
            right, seen = right + (z.argmax(1) == y.argmax(1)).sum(), seen + len(y)
            w, b = optimizers[0].step(w, dw, True), optimizers[1].step(b, db, False)
        return losses, norms, (w, b)

    def test_mixup(self):
        """With smoothing and class weights, too, at any number of ranks and micro-batches; evaluations are of the samples as
        they are."""
        self.kinds = {"mixup", "none"}
        weights = [1, 2, 0.5, 3, 1, 1, 1]
        start = self.start("cross_entropy")
        for k, (alpha, text, options) in enumerate([
                (0.4, None, {}),
                (2.5, f"{{label_smoothing: 0.1, class_weights: {weights}}}", dict(smoothing=0.1, weights=weights))]):
            expected = self.numpy(start, self.mixed(20, self.x, self.labels, (alpha, 0.8)), **options)
            for ranks, micro in ((0, 8), (2, 3), (3, 1)):
                with self.subTest(alpha=alpha, ranks=ranks):
                    name = f"m{k}{ranks}"
                    self.line(f"data.augment.mixup={{alpha: {alpha}, probability: 0.8}}", f"train.micro_batch={micro}",
                              name=name, loss="cross_entropy", options=text, ranks=ranks, evaluate=20)
                    self.compare(expected, name)
                    w, b = self.weights(f"{name}/model.h5")
                    said = (self.x[SAMPLES:] @ w.T + b).argmax(axis=1)
                    self.assertAlmostEqual(self.records(name, "eval")[-1]["accuracy"],
                                           (said == self.labels[SAMPLES:]).mean(), places=9)

    def test_training_accuracy(self):
        """Counts against the larger share's label: the epoch's record."""
        self.kinds = {"mixup"}
        start = self.start("cross_entropy")
        w, b = (v.astype(np.float64) for v in start)
        right = seen = 0
        for x, y in self.mixed(4, self.x, self.labels, (1, 1)):
            right, seen = right + ((x @ w.T + b).argmax(1) == y.argmax(1)).sum(), seen + len(y)
        self.line("data.augment.mixup={}", name="a", loss="cross_entropy", optimizer="{sgd: {lr: 0}}", steps=4)
        self.assertEqual(seen, SAMPLES)
        self.assertAlmostEqual(self.records("a", "epoch")[0]["accuracy"], right / seen, places=9)

    def images(self):
        """Of the same file's numbers; a linear layer of them flattened."""
        rng = np.random.default_rng(3)
        self.pictures = rng.normal(size=(SAMPLES + EVAL, 2, 5, 6)).astype(np.float32)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["p"], f["pe"] = self.pictures[:SAMPLES], self.pictures[SAMPLES:]
        return ("model.input=[2, 5, 6]", "model.layers=[flatten, {linear: {out: 7, name: head}}]", "data.train.inputs=p",
                "data.eval.inputs=pe")

    def test_both(self):
        """A rectangle of another image or an average, drawn anew each step; a resume and other ranks take up the draws."""
        self.kinds = {"mixup", "cutmix", "none"}
        both = (*self.images(), "data.augment.mixup={alpha: 0.3}",
                "data.augment.cutmix={alpha: 1.5, probability: 0.7}")
        self.line(*both, name="start", loss="cross_entropy", optimizer="{sgd: {lr: 0}}", steps=1, ranks=0)
        expected = self.numpy(self.weights("start/model.h5"),
                              self.mixed(24, self.pictures, self.labels, (0.3, 1), (1.5, 0.7)))
        for ranks, micro in ((0, 8), (2, 3), (3, 2)):
            with self.subTest(ranks=ranks):
                self.line(*both, f"train.micro_batch={micro}", name=f"b{ranks}", loss="cross_entropy", ranks=ranks, steps=24)
                self.compare(expected, f"b{ranks}")
                end = self.records(f"b{ranks}", "end")[-1]  # with targets of all classes, and a partner of each sample
                self.assertEqual(end["held_mb"], end["predicted_mb"])
        self.line(*both, name="r", loss="cross_entropy", ranks=2, steps=11)
        self.line(*both, "--resume", name="r", loss="cross_entropy", ranks=2, steps=24)
        self.line(*both, name="whole", loss="cross_entropy", ranks=2, steps=24)
        for mine, want in zip(self.weights("r/model.h5"), self.weights("whole/model.h5")):
            np.testing.assert_array_equal(mine, want)
        self.line(*both, name="o", loss="cross_entropy", ranks=2, steps=11)
        self.line(*both, "--resume", name="o", loss="cross_entropy", ranks=3, steps=24)
        self.compare(expected, "whole")
        for mine, want in zip(self.weights("o/model.h5"), expected[2]):
            np.testing.assert_allclose(mine, want, **FLOAT)

    def test_probabilities(self):
        """Targets that are probabilities are mixed as they are."""
        self.kinds = {"mixup"}
        shares = np.random.default_rng(4).random((SAMPLES + EVAL, 7)) ** 4
        shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["s"], f["se"] = shares[:SAMPLES], shares[SAMPLES:]
        self.targets["cross_entropy"] = ("s", shares, 7)
        self.line(name="start", loss="cross_entropy", options="{targets: probabilities}", optimizer="{sgd: {lr: 0}}",
                  steps=1, ranks=0)

        def batches():
            for step, (x, y) in enumerate(self.batches(12, shares)):
                _, share, _ = draw(step, (1, 1), None)
                partner = [permute(key_of(SEED, AUGMENT, PARTNER), step, len(x), i) for i in range(len(x))]
                yield share * x + (1 - share) * x[partner], share * y + (1 - share) * y[partner]

        expected = self.numpy(self.weights("start/model.h5"), batches())
        self.line("data.augment.mixup={}", name="s", loss="cross_entropy", options="{targets: probabilities}", steps=12)
        self.compare(expected, "s")

    def test_refused(self):
        """What cannot be mixed, by its key, before anything starts."""
        for loss, options, key, why in [
                ("mse", None, "mixup", "the loss takes no classes"), ("bce", None, "mixup", "the loss takes no classes"),
                ("cross_entropy", "{ignore_index: 6}", "mixup", "model.loss has ignore_index"),
                ("cross_entropy", "{gamma: 2}", "mixup", "model.loss has gamma"),
                ("cross_entropy", None, "cutmix", '"input" is no image')]:
            said = self.line(f"data.augment.{key}={{}}", loss=loss, options=options, status=2, ranks=0)
            self.assertIn(f"data.augment.{key}: ", said)
            self.assertIn(why, said)
        for argument, why in [("data.train.weights=c", "data.train.weights is given"),
                              ("train.distill={teacher: model.h5}", "train.distill is given")]:
            said = self.line("data.augment.mixup={}", argument, loss="cross_entropy", status=2, ranks=0)
            self.assertIn(why, said)


if __name__ == "__main__":
    main()
