"""`trainer evaluate`: every number against its definition in numpy (those of scikit-learn), over rank counts."""
import json

import h5py
import numpy as np

import harness

MODEL = """
name: evaluate
device: cpu
output: {out}
data:
  train: {{path: {data}, inputs: x, labels: {y}, samples: 60}}
  eval: {{path: {data}, inputs: x, labels: {y}, samples: 20}}
model:
  input: [6]
  layers: [linear: {{out: {width}, name: head}}]
  loss: {loss}
train: {{steps: 12, batch: 16, optimizer: {{adamw: {{lr: 0.05}}}}, eval: {{every_epochs: none}}, checkpoint: {{every_epochs: none}}}}
"""


def auc(score, positive):
    """Pairs in order, ties half."""
    up, down = score[positive][:, None], score[~positive][None, :]
    return np.mean((up > down) + 0.5 * (up == down))


def rates(said, is_):
    """Precision, recall, F1, support; 0 / 0 is 0."""
    right = np.sum(said & is_)
    return [right / max(said.sum(), 1), right / max(is_.sum(), 1), 2 * right / max(said.sum() + is_.sum(), 1),
            is_.sum()]


class Evaluate(harness.Case):
    def make(self, loss, width, seed=1, samples=131):
        """Coarse inputs, so that scores tie; returns inputs, targets and the trained model's logits."""
        rng = np.random.default_rng(seed)
        x = np.round(rng.normal(size=(samples, 6))).astype(np.float32)
        noisy = x @ rng.normal(size=(6, width)) + rng.normal(size=(samples, width))
        y = {"cross_entropy": lambda: np.argmax(noisy, 1).astype(np.uint8), "bce": lambda: (noisy > 0).astype(np.uint8),
             "mse": lambda: noisy.astype(np.float32)}[loss]()
        with h5py.File(self.dir / "data.h5", "w") as f:
            f["x"], f["y"] = x, y
        path = self.dir / "run.yaml"
        path.write_text(MODEL.format(out=self.dir / "run", data=self.dir / "data.h5", y="y", width=width, loss=loss))
        self.run_trainer(path, "--quiet", "--force", ranks=0)
        with h5py.File(self.dir / "run/model.h5") as f:
            head = f["model/params/head"]
            logits = x @ np.array(head["weight"]).T + np.array(head["bias"])
        return y, logits.astype(np.float64)

    def evaluate(self, ranks=3):
        """The whole file, where the config has the first samples alone; the same bytes for one rank."""
        whole = ["data.eval.samples=all"]
        self.run_trainer("evaluate", "run/model.h5", *whole, "-o", "many.json", "--force", "--quiet", ranks=ranks)
        out = self.tool("evaluate", "run/model.h5", "--json", *whole)
        self.assertEqual(out, (self.dir / "many.json").read_text())
        return json.loads(out)

    def check_classes(self, got, said, is_, p):
        """said, is_: [samples, classes] of truth values; p: probabilities."""
        want = [rates(said[:, k], is_[:, k]) + [auc(p[:, k], is_[:, k])] for k in range(is_.shape[1])]
        keys = ["precision", "recall", "f1", "support", "auc"]
        np.testing.assert_allclose([[c[k] for k in keys] for c in got["classes"]], want, rtol=1e-12)
        mean, weights = np.array(want)[:, [0, 1, 2, 4]], is_.sum(0)
        occurs = (is_ | said).any(0)  # sklearn's mean without `labels`; of several outputs all are a class each
        np.testing.assert_array_equal([c["predicted"] for c in got["classes"]], said.sum(0))
        for name, average in (("macro", mean[occurs].mean(0)), ("weighted", weights @ mean / weights.sum())):
            np.testing.assert_allclose([got[name][k] for k in ("precision", "recall", "f1", "auc")], average, rtol=1e-12)

    def test_classes(self):
        for width in (7, 2):
            y, logits = self.make("cross_entropy", width)
            got = self.evaluate()
            p = np.exp(logits - logits.max(1, keepdims=True))
            p = (p / p.sum(1, keepdims=True)).astype(np.float32)
            said = np.eye(width, dtype=bool)[logits.argmax(1)]
            is_ = np.eye(width, dtype=bool)[y]
            self.assertEqual(got["samples"], len(y))
            self.assertAlmostEqual(got["loss"], -np.log(p[np.arange(len(y)), y]).mean(), places=5)
            self.assertAlmostEqual(got["accuracy"], np.mean(logits.argmax(1) == y), places=12)
            if width > 5:
                top = np.argsort(-logits, 1)[:, :5]
                self.assertAlmostEqual(got["top5"], np.mean((top == y[:, None]).any(1)), places=12)
            np.testing.assert_array_equal(got["confusion"], is_.T.astype(int) @ said)
            self.check_classes(got, said, is_, p)
            self.assertEqual(got["auc"], got["classes"][1]["auc"] if width == 2 else got["macro"]["auc"])

    def test_binary_outputs(self):
        for width in (1, 3):
            y, logits = self.make("bce", width)
            got = self.evaluate()
            p, said, is_ = (1 / (1 + np.exp(-logits))).astype(np.float32), logits > 0, y > 0
            self.assertAlmostEqual(got["accuracy"], np.mean(said == is_), places=12)
            if width == 1:  # classes 0 and 1
                p, said, is_ = np.hstack([-p, p]), np.hstack([~said, said]), np.hstack([~is_, is_])
                np.testing.assert_array_equal(got["confusion"], is_.T.astype(int) @ said)
            self.check_classes(got, said, is_, p)

    def test_values(self):
        y, out = self.make("mse", 3)
        got = self.evaluate()
        error, y = out - y, y.astype(np.float64)
        r2 = 1 - (error**2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
        want = np.array([np.abs(error).mean(0), (error**2).mean(0), np.sqrt((error**2).mean(0)), r2]).T
        keys = ["mae", "mse", "rmse", "r2"]
        np.testing.assert_allclose([[o[k] for k in keys] for o in got["outputs"]], want, rtol=1e-5)
        all_ = [np.abs(error).mean(), (error**2).mean(), np.sqrt((error**2).mean()), r2.mean()]
        np.testing.assert_allclose([got["all"][k] for k in keys], all_, rtol=1e-5)

    def test_places(self):
        """Outputs that have a value for each place of an image or a sequence: a row a channel, over all places."""
        rng = np.random.default_rng(8)
        for loss, width, shape in (("bce", 1, [3, 4, 5]), ("bce", 2, [3, 4, 5]), ("mse", 2, [3, 4, 5]), ("bce", 2, [6, 3]), ("mse", 3, [6, 3])):
            x = np.round(rng.normal(size=(43, *shape))).astype(np.float32)
            rows = np.moveaxis(x, 1, -1) if len(shape) == 3 else x  # the channels last
            noisy = rows @ rng.normal(size=(3, width)) + rng.normal(size=(*rows.shape[:-1], width))
            y = noisy if loss == "mse" else noisy > 0
            with h5py.File(self.dir / "data.h5", "w") as f:
                f["x"], f["y"] = x, (np.moveaxis(y, -1, 1) if len(shape) == 3 else y).astype(np.float32)
            text = MODEL.format(out=self.dir / "run", data=self.dir / "data.h5", y="y", width=width, loss=loss).replace("[6]", str(shape))
            if len(shape) == 3:
                text = text.replace("linear: {", "conv2d: {kernel: 1, ")
            metrics = "[f1, auc]" if loss == "bce" else "[mae, r2]"
            (self.dir / "run.yaml").write_text(text.replace("samples: 60", "samples: 43").replace("samples: 20", "samples: 43"))
            self.run_trainer("run.yaml", "--quiet", "--force", f"train.metrics={metrics}", "train.eval.every_epochs=1", ranks=2)
            got, record = self.evaluate(ranks=2), self.records(event="eval")[-1]
            with h5py.File(self.dir / "run/model.h5") as f:
                head = f["model/params/head"]
                z = rows @ np.array(head["weight"], np.float64).reshape(width, 3).T + np.array(head["bias"])
            z, y = z.reshape(-1, width), y.reshape(-1, width)
            with self.subTest(loss=loss, width=width, shape=shape):
                if loss == "mse":
                    r2 = 1 - ((z - y)**2).sum(0) / ((y - y.mean(0))**2).sum(0)
                    want = np.array([np.abs(z - y).mean(0), ((z - y)**2).mean(0), np.sqrt(((z - y)**2).mean(0)), r2]).T
                    np.testing.assert_allclose([[o[k] for k in ("mae", "mse", "rmse", "r2")] for o in got["outputs"]], want, rtol=1e-5)
                    np.testing.assert_allclose([record["mae"], record["r2"]], [got["all"]["mae"], got["all"]["r2"]], rtol=1e-6)
                    continue
                p, said, is_ = z.astype(np.float32), z > 0, y > 0
                self.assertAlmostEqual(got["accuracy"], np.mean(said == is_), places=12)
                if width == 1:  # classes 0 and 1
                    p, said, is_ = np.hstack([-p, p]), np.hstack([~said, said]), np.hstack([~is_, is_])
                    np.testing.assert_array_equal(got["confusion"], is_.T.astype(int) @ said)
                self.check_classes(got, said, is_, p)
                f1 = got["classes"][1]["f1"] if width == 1 else got["macro"]["f1"]
                np.testing.assert_allclose([record["f1"], record["auc"]], [f1, got["auc"]], rtol=1e-6)

    def test_rows_that_are_no_numbers(self):
        """They are of no class: neither right, nor predicted, nor in the confusion matrix."""
        for loss, width in (("cross_entropy", 3), ("bce", 1)):
            y, logits = self.make(loss, width)
            with h5py.File(self.dir / "data.h5", "r+") as f:
                f["x"][::5] = np.nan
            self.assertIn("the loss is not finite", self.run_trainer("evaluate", "run/model.h5", ranks=0))
            got = self.evaluate()
            said = (logits.argmax(1) if width > 1 else logits[:, 0] > 0).astype(int)
            right = np.sum((said == y.ravel())[np.arange(len(y)) % 5 > 0])
            self.assertAlmostEqual(got["accuracy"], right / len(y), places=12)
            self.assertEqual(np.trace(got["confusion"]), right)
            self.assertEqual(np.sum(got["confusion"]), np.sum(np.arange(len(y)) % 5 > 0))
            self.assertEqual(sum(c["support"] for c in got["classes"]), len(y))

    def test_while_training(self):
        """train.metrics are those of `trainer evaluate` after the last step, at any rank count."""
        for loss, width, names in (("cross_entropy", 7, ["top5", "f1", "auc"]), ("bce", 1, ["accuracy", "f1", "auc"]),
                                   ("bce", 3, ["f1"]), ("mse", 3, ["mae", "r2"])):
            self.make(loss, width)
            for ranks in (0, 3):
                self.run_trainer("run.yaml", "--quiet", "--force", f"train.metrics=[{','.join(names)}]", "data.eval.samples=131",
                                 "train.eval.every_epochs=1", "train.eval.batch=24", ranks=ranks)
                got = self.records(event="eval")[-1]
                self.assertEqual(sorted(set(got) - {"event", "step", "loss", "samples", "seconds"}), sorted(names))
                full = json.loads(self.tool("evaluate", "run/model.h5", "--json"))
                if loss == "mse":
                    full.update(full["all"])
                elif loss == "bce" and width == 1:
                    full["f1"] = full["classes"][1]["f1"]
                else:
                    full["f1"] = full["macro"]["f1"]
                np.testing.assert_allclose([got[n] for n in names], [full[n] for n in names], rtol=1e-6)
                with h5py.File(self.dir / "run/model.h5") as f:
                    self.assertEqual([f[f"history/eval_{n}"][-1] for n in names], [got[n] for n in names])

    def test_epochs(self):
        """Means over an epoch's samples: with weights that stay, those of an evaluation of the same samples; the same
        bits after a stop in the middle of it."""
        self.make("cross_entropy", 3)
        stay = ("--quiet", "train.optimizer={sgd: {lr: 0}}", "train.steps=none", "train.epochs=2", "data.eval.samples=60",
                "train.eval.every_epochs=1", "train.log_every=1")
        for ranks in (0, 3):
            self.run_trainer("run.yaml", "--force", *stay, ranks=ranks)
            epochs, evaluations = self.records(event="epoch"), self.records(event="eval")
            self.assertEqual([(e["epoch"], e["step"], e["samples"]) for e in epochs], [(0, 4, 60), (1, 8, 60)])
            for e, v in zip(epochs, evaluations):
                self.assertEqual(e["accuracy"], v["accuracy"])
                self.assertAlmostEqual(e["loss"], v["loss"], places=6)
        self.run_trainer("run.yaml", "--force", "--quiet", "train.log_every=1", ranks=0)
        whole = self.records(event="epoch")
        self.run_trainer("run.yaml", "--force", "--quiet", "train.log_every=1", "train.steps=6", ranks=0)
        self.assertEqual([e["samples"] for e in self.records(event="epoch")], [60, 32])  # the second one is not through
        out = self.run_trainer("run.yaml", "--resume", "train.log_every=1", ranks=0)
        self.assertRegex(out, r"epoch 2/3: .*\(60 samples, \d+\.\d\d s\)")  # of both starts
        self.assertRegex(out, r"epoch 3/3: .*\(60 samples, \d+\.\d\d s\)|epoch 3/3 \(up to step 4 of 4\).*")
        last = {e["epoch"]: e for e in self.records(event="epoch")}
        for k in last:
            seconds = sum(r["step_ms"] for r in self.records() if r["epoch"] == k) / 1e3
            self.assertAlmostEqual(last[k]["seconds"], seconds, delta=1e-4 * seconds)  # both of six digits
        self.assertEqual([last[k]["loss"] for k in range(3)], [e["loss"] for e in whole])
        self.assertEqual(last[1]["accuracy"], whole[1]["accuracy"])

    def named(self, text, target, loss, more=""):
        """A table with a model of it, and what `evaluate` says of it: text, and JSON."""
        (self.dir / "t.csv").write_text(text)
        (self.dir / "t.yaml").write_text(
            f"name: t\noutput: run\ndevice: cpu\ndata:\n  train: {{path: t.csv, inputs: [a, b], {target}}}\n  eval: {{path: t.csv, inputs: [a, b], {target}}}\n{more}"
            f"model:\n  input: [2]\n  layers: [linear: {{out: {loss[1]}}}]\n  loss: {loss[0]}\ntrain: {{steps: 40, batch: 16, optimizer: {{adamw: {{lr: 0.05}}}}}}\n")
        self.run_trainer("t.yaml", "--quiet", "--force", ranks=0)
        return self.tool("evaluate", "run/model.h5"), json.loads(self.tool("evaluate", "run/model.h5", "--json"))

    def test_names(self):
        """Classes and values go by the names that the table gave them, in rows of a width."""
        rng = np.random.default_rng(4)
        rows = [(x, y, "a long name of a bird, or so" if x > 0 else "größe" if y > 0 else "c") for x, y in rng.normal(size=(80, 2))]
        text = "a,b,y\n" + "".join(f'{x:.4f},{y:.4f},"{c}"\n' for x, y, c in rows)
        out, got = self.named(text, "labels: y", ("cross_entropy", 3), "  table: {categories: {y: auto}}\n")
        self.assertEqual([c["name"] for c in got["classes"]], ["a long name of a bird, or so", "c", "größe"])
        lines = out.splitlines()
        head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["class", "precision"])
        self.assertEqual([line[:24].strip() for line in lines[head + 1:head + 6]], ["a long name of a bird...", "c", "größe", "macro", "weighted"])
        self.assertEqual(len({len(line) for line in lines[head:head + 6]}), 1, out)
        matrix = next(i for i, line in enumerate(lines) if line.startswith("confusion matrix"))
        self.assertRegex(lines[matrix + 1], r"^ {25}a long na\.\.\. {12}c {8}größe$")
        self.assertEqual(len({len(line) for line in lines[matrix + 1:matrix + 5]}), 1, out)
        text = "a,b,price,days\n" + "".join(f"{x:.4f},{y:.4f},{x + y:.4f},{x - y:.4f}\n" for x, y, _ in rows)
        out, got = self.named(text, "targets: [price, days]", ("mse", 2))
        self.assertEqual([o["name"] for o in got["outputs"]], ["price", "days"])
        self.assertRegex(out, r"(?m)^ +price +\d.*\n +days +\d")
        self.tool("predict", "run/model.h5", "--data", "eval", "-o", "p.h5")
        with h5py.File(self.dir / "p.h5") as f:
            self.assertEqual(f["output_names"][:].tolist(), [b"price", b"days"])
        out, got = self.named(text, "labels: price", ("mse", 1))
        self.assertEqual(got["outputs"][0]["name"], "price")
        self.tool("predict", "run/model.h5", "--data", "eval", "-o", "p.csv")
        self.assertTrue((self.dir / "p.csv").read_text().startswith("sample,output_price\n"))

    def test_classes_that_do_not_occur(self):
        """Means are over labels of samples and predictions; others have no row, and it is said how many."""
        rng = np.random.default_rng(6)
        rows = [(x, y, (3 if x > 0 else 7) if i else 11) for i, (x, y) in enumerate(rng.normal(size=(80, 2)))]
        out, got = self.named("a,b,y\n" + "".join(f"{x:.4f},{y:.4f},{c}\n" for x, y, c in rows), "labels: y", ("cross_entropy", 40))
        occurs = [k for k, c in enumerate(got["classes"]) if c["support"] or c["predicted"]]
        self.assertEqual(set(occurs) & {3, 7, 11}, {3, 7, 11})
        self.assertEqual(got["absent"], 40 - len(occurs))
        for key in ("precision", "recall", "f1"):
            self.assertAlmostEqual(got["macro"][key], np.mean([got["classes"][k][key] for k in occurs]))
        lines = out.splitlines()
        head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["class", "precision"])
        self.assertEqual([line.split()[0] for line in lines[head + 1:head + 2 + len(occurs)]], [*map(str, occurs), "macro"])
        self.assertIn(f"left out: {40 - len(occurs)} of 40 classes", out)
        self.assertIn("confusion matrix", out)

    def test_folder(self):
        """A run's folder stands for its model.h5, or before there is one for its newest checkpoint; what stages make lies there."""
        self.make("cross_entropy", 3)
        for arguments in (["evaluate", "--json"], ["check"]):
            self.assertEqual(self.tool(arguments[0], "run", *arguments[1:]), self.tool(arguments[0], "run/model.h5", *arguments[1:]))
        self.assertIn("parameters", self.tool("plan", "run", "--summary"))
        self.run_trainer("predict", "run", "--data", "eval", "-o", "p.npy", ranks=2)
        self.assertEqual(np.load(self.dir / "p.npy").shape, (20, 3))
        self.run_trainer("fold", "run/", ranks=2)
        self.run_trainer("export", "run", "format=npz", ranks=0)
        self.assertTrue((self.dir / "run/model-fold.h5").exists() and (self.dir / "run/model-export.npz").exists())
        self.tool("import", "run/model-export.npz", "again.h5", "--config", "run")
        self.assertEqual(self.tool("evaluate", "again.h5", "--json"), self.tool("evaluate", "run", "--json"))
        (self.dir / "run/model.h5").unlink()
        newest = max((self.dir / "run/checkpoints").glob("step-*.h5"))
        self.assertEqual(self.tool("evaluate", "run", "--json"), self.tool("evaluate", newest, "--json"))
        (self.dir / "empty").mkdir()
        for command in ("evaluate", "fold", "check"):
            self.assertIn("empty: no run folder: neither model.h5 nor checkpoints", self.tool(command, "empty", status=1))

    def test_table_and_refusals(self):
        self.make("cross_entropy", 3)
        out = self.tool("evaluate", "run/model.h5")
        for word in ("samples    20", "loss", "accuracy", "auc", "precision", "macro", "weighted", "confusion matrix"):
            self.assertIn(word, out)
        (self.dir / "there.json").write_text("mine")
        self.assertIn("--force", self.tool("evaluate", "run/model.h5", "-o", "there.json", status=2))
        self.assertEqual((self.dir / "there.json").read_text(), "mine")
        self.assertIn("data.eval.pat", self.tool("evaluate", "run/model.h5", "data.eval.pat=x.h5", status=2))
        self.tool("evaluate", "run/model.h5", "data.eval.path=gone.h5", status=1)
        self.tool("evaluate", "nothing.h5", status=1)


if __name__ == "__main__":
    harness.main()
