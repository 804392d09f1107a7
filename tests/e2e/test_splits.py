"""data.split, auto normalization, balanced weights, tables: against the same sums in numpy, over rank counts and resumes."""
import csv
import json
import re

import h5py
import numpy as np
import yaml

import harness

MODEL = """
name: splits
device: cpu
seed: 4
output: {out}
data:
  train: {{path: {data}, inputs: x, labels: y}}
{more}
model:
  input: [{inputs}]
  layers: [linear: {{out: {width}, name: head}}]
  loss: {loss}
train: {{steps: {steps}, batch: 16, log_every: 1, optimizer: {{sgd: {{lr: 0.05}}}}, eval: {{every_steps: {steps}}}, checkpoint: {{every_steps: 5}}}}
"""


class Splits(harness.Case):
    def write(self, name="run", loss="cross_entropy", width=4, more="", steps=10, data="data.h5", inputs=6):
        path = self.dir / f"{name}.yaml"
        path.write_text(MODEL.format(out=self.dir / name, data=self.dir / data, loss=loss, width=width, more=more,
                                     steps=steps, inputs=inputs))
        return path

    def make(self, samples=203):
        """Coarse classes of unequal size, features far from 0, targets in the thousands."""
        rng = np.random.default_rng(8)
        x = (rng.normal(size=(samples, 6)) * [1, 10, 100, 1, 1, 1] + [0, 500, 3, 0, -7, 0]).astype(np.float32)
        y = np.minimum(rng.integers(0, 12, samples), 3)
        t = (x[:, :2] * 3 + 1000).astype(np.float32)
        with h5py.File(self.dir / "data.h5", "w") as f:
            f["x"], f["y"], f["t"] = x, y, t
        return x, y, t

    def held_out(self, name, *more):
        """The samples that are predicted on as data.eval, by their first feature."""
        self.run_trainer("predict", f"{name}/model.h5", "-o", f"{name}.npy", "--raw", "--quiet", *more, ranks=0)
        return np.load(self.dir / f"{name}.npy")

    def test_split(self):
        x, y, _ = self.make()
        more = "  split: {fraction: 0.2, seed: 3, stratify: true}\n"
        for ranks in (0, 3):
            path = self.write(f"r{ranks}", more=more)
            self.run_trainer(path, "--quiet", ranks=ranks)
        np.testing.assert_allclose(self.losses("r0"), self.losses("r3"), **harness.RANKS)
        self.assertEqual(self.records("r0", "eval")[-1]["samples"], 41)  # 0.2 * 203, rounded
        with h5py.File(self.dir / "r0/model.h5") as f:
            head = f["model/params/head"]
            z = x.astype(np.float64) @ np.array(head["weight"]).T + np.array(head["bias"])
        both = []
        for part in ("eval", "train"):
            out = self.held_out("r0", "--data", part, "--force")
            at = np.abs(out[:, None, :] - z[None]).max(2).argmin(1)
            np.testing.assert_allclose(out, z[at], rtol=1e-3, atol=1e-2)
            self.assertTrue((np.diff(at) > 0).all())  # in the file's order
            both.append(at)
        self.assertEqual(sorted(np.concatenate(both)), list(range(len(y))))
        want = np.bincount(y) * 41 / len(y)
        self.assertTrue((np.abs(np.bincount(y[both[0]]) - want) < 1).all())
        self.layout_is_trains("r0", "data.h5", "labels: y", "inputs: x")
        out = self.run_trainer(self.write("twice", more="  eval: {path: data.h5, inputs: x, labels: y, samples: 9}\n"), ranks=0)
        self.assertIn("9 samples of data.eval are samples of data.train", out)
        out = self.run_trainer(self.write("w", more="  shuffle: false\n"), "train.batch=300", "--force",
                               "train.eval.every_steps=none", "train.eval.every_epochs=none", ranks=0)
        self.assertIn("data.shuffle: false", out)
        self.assertIn("300 is more than the 203 samples", out)

    def test_auto(self):
        x, y, t = self.make()
        more = "  split: {fraction: 0.1}\n  normalize: auto\n  normalize_targets: auto\n"
        for ranks in (0, 2, 3, 4):
            self.run_trainer(self.write(f"r{ranks}", "mse", 2, more.replace("auto\n", "auto\n"), 10), "--quiet",
                             "data.train.labels=t", ranks=ranks)
        said = [yaml.safe_load((self.dir / f"r{r}/config.yaml").read_text())["data"] for r in (0, 2, 3, 4)]
        for other in said[1:]:
            self.assertEqual(other["normalize"], said[0]["normalize"])
            self.assertEqual(other["normalize_targets"], said[0]["normalize_targets"])
        self.assertLess(np.abs(said[0]["normalize"]["mean"] - x.mean(0)).max(), 20)
        n, s = said[0]["normalize"], said[0]["normalize_targets"]
        with h5py.File(self.dir / "r0/model.h5") as f:
            head = f["model/params/head"]
            w, b = np.array(head["weight"], np.float64), np.array(head["bias"])
        z = ((x - n["mean"]) / n["std"] @ w.T + b) * s["std"] + s["mean"]
        for part, count in (("train", 183), ("eval", 20)):
            out = self.held_out("r0", "--data", part, "--force")
            at = np.abs(out[:, None, :] - z[None]).max(2).argmin(1)
            np.testing.assert_allclose(out, z[at], rtol=1e-5)
            self.assertEqual(len(at), count)
            if part == "train":  # what the numbers are of
                np.testing.assert_allclose(n["mean"], x[at].mean(0, np.float64), rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(n["std"], x[at].std(0, dtype=np.float64), rtol=1e-12)
                np.testing.assert_allclose(s["std"], t[at].std(0, dtype=np.float64), rtol=1e-12)
        got = json.loads(self.tool("evaluate", "r0/model.h5", "--json"))
        error = z[at] - t[at]
        np.testing.assert_allclose([o["mae"] for o in got["outputs"]], np.abs(error).mean(0), rtol=1e-4)
        np.testing.assert_allclose([o["rmse"] for o in got["outputs"]], np.sqrt((error**2).mean(0)), rtol=1e-4)
        np.testing.assert_allclose(got["loss"], ((error / s["std"]) ** 2).mean(), rtol=1e-4)
        # a resumed run keeps its numbers
        path = self.write("r2", "mse", 2, more, 20)
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][::2] += 1
        out = self.run_trainer(path, "--resume", "data.train.labels=t", ranks=2)
        self.assertRegex(out, r"data\.normalize: as .*config\.yaml has it")
        again = yaml.safe_load((self.dir / "r2/config.yaml").read_text())["data"]
        self.assertEqual(again["normalize"], said[0]["normalize"])

    IMAGES = """name: images
data:
  train: {path: images.h5, inputs: x, labels: t}
  normalize_targets: auto
model:
  input: [1, 3, 4]
  layers: [conv2d: {out: 2, kernel: 1}]
  loss: mse
train: {steps: 20, batch: 8, optimizer: {sgd: {lr: 0.05}}}
"""

    def test_image_targets(self):
        """By channel, as inputs are: what is found, and what comes out in the file's units."""
        rng = np.random.default_rng(4)
        x = rng.normal(size=(40, 1, 3, 4)).astype(np.float32)
        t = (x * [[[5.0]], [[300.0]]] + [[[0.5]], [[1000.0]]]).astype(np.float32)
        with h5py.File(self.dir / "images.h5", "w") as f:
            f["x"], f["t"] = x, t
        (self.dir / "images.yaml").write_text(self.IMAGES)
        self.run_trainer("images.yaml", "output=run", "--quiet", ranks=2)
        said = yaml.safe_load((self.dir / "run/config.yaml").read_text())["data"]["normalize_targets"]
        np.testing.assert_allclose(said["mean"], t.mean((0, 2, 3), np.float64), rtol=1e-12)
        np.testing.assert_allclose(said["std"], t.std((0, 2, 3), dtype=np.float64), rtol=1e-12)
        with h5py.File(self.dir / "run/model.h5") as f:
            params = [v for v in f["model/params"].values()][0]
            w, b = np.array(params["weight"], np.float64).reshape(2, 1, 1), np.array(params["bias"]).reshape(2, 1, 1)
        column = np.reshape(said["mean"], (2, 1, 1)), np.reshape(said["std"], (2, 1, 1))
        want = (x * w + b) * column[1] + column[0]
        out = self.held_out("run", "--data", "train", "--force").reshape(want.shape)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-3)
        got = json.loads(self.tool("evaluate", "run/model.h5", "data.eval={path: images.h5, inputs: x, labels: t}", "--json"))
        np.testing.assert_allclose([o["mae"] for o in got["outputs"]], np.abs(want - t).mean((0, 2, 3)), rtol=1e-3)
        said = self.run_trainer("predict", "run/model.h5", "--data", "train", "-o", "p.npy", "data.normalize_targets={mean: [1, 2, 3, 4]}", ranks=0, status=2)
        self.assertIn("4 values, expected 1 or one for each of the 2 channels", said)

    def test_balanced(self):
        _, y, _ = self.make()
        path = self.write(loss="{cross_entropy: {class_weights: balanced}}")
        out = self.run_trainer(path, "train.eval.every_steps=none", "train.eval.every_epochs=none", ranks=2)
        self.assertIn("class_weights=[", out)
        said = yaml.safe_load((self.dir / "run/config.yaml").read_text())["model"]["loss"]["cross_entropy"]
        np.testing.assert_allclose(said["class_weights"], len(y) / (4 * np.bincount(y)))
        self.assertIn("balanced", self.tool("check", path, "train.eval.every_steps=none", "train.eval.every_epochs=none"))
        # a class that is ignored is none
        self.run_trainer(path, "model.loss.cross_entropy.ignore_index=1", "--force", "train.eval.every_steps=none", "train.eval.every_epochs=none")
        said = yaml.safe_load((self.dir / "run/config.yaml").read_text())["model"]["loss"]["cross_entropy"]
        kept = np.bincount(y[y != 1], minlength=4)
        np.testing.assert_allclose(said["class_weights"], [sum(kept) / (3 * n) if n else 0 for n in kept])

    def test_check_data(self):
        self.make()
        path = self.write(more="  split: {fraction: 0.2}\n")
        self.assertRegex(self.tool("check", path, "--data"), r"# .*data\.h5.*: 162 samples of float32 from ")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][77, 2] = np.nan
        said = self.tool("check", path, "--data", status=1)
        self.assertRegex(said, r"data\.h5.*sample 77.*element 2 is -?nan")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["y"][77] = 9
        self.assertRegex(self.tool("check", path, "--data", status=1), r"sample 77.*label 9")

    def test_sweep(self):
        """A trial is measured with what its training found, as the training evaluates."""
        self.make()
        self.write("run", "mse", 2, "  split: {fraction: 0.1}\n  normalize: auto\n  normalize_targets: auto\n")
        (self.dir / "sweep.yaml").write_text("config: run.yaml\noutput: sweep\nset: {data.train.labels: t}\n"
                                             "grid: {train.optimizer.lr: [0.05]}\n")
        self.run_trainer("sweep", "sweep.yaml", "--quiet", ranks=2)
        with open(self.dir / "sweep/sweep.csv", newline="") as f:
            row = next(csv.DictReader(f))
        self.assertAlmostEqual(float(row["loss"]), self.records("sweep/trial-000", "eval")[-1]["loss"], 5)

    TABLE = """  table: {{missing: {missing}, categories: {{colour: auto, kind: auto}}}}
  split: {{fraction: 0.25, stratify: true}}
  normalize: auto
"""

    def make_table(self, broken=False):
        rng = np.random.default_rng(2)
        kinds, colours = ["setosa", "a, \"b\"", "virginica"], ["red", "green"]
        rows = []
        for i in range(120):
            k = int(rng.integers(0, 3))
            rows.append([i, "" if broken and i % 7 == 3 else round(k + rng.normal() * 0.3, 3),
                         colours[int(rng.integers(0, 2))], kinds[k]])
        with open(self.dir / "t.csv", "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["id", "size", "colour", "kind"])
            out.writerows(rows)
        return rows

    def layout_is_trains(self, run, path, labels, inputs):
        """Another file than data.train, whose columns or datasets nobody names, is laid out as that one."""
        named = self.tool("evaluate", f"{run}/model.h5", f"data.eval={{path: {path}, {labels}, {inputs}}}", "--json")
        self.assertEqual(self.tool("evaluate", f"{run}/model.h5", f"data.eval.path={path}", "--json"), named)
        for k, more in enumerate(("", f", {inputs}")):
            self.tool("predict", f"{run}/model.h5", "-o", f"layout{k}.npy", f"data.predict={{path: {path}{more}}}")
        np.testing.assert_array_equal(np.load(self.dir / "layout0.npy"), np.load(self.dir / "layout1.npy"))

    def test_table(self):
        rows = self.make_table()
        more = self.TABLE.format(missing="error")
        columns = ["data.train.inputs=[colour, size]", "data.train.labels=kind"]
        path = self.write(data="t.csv", inputs=3, width=3, more=more, steps=60)
        self.run_trainer(path, "--quiet", *columns, ranks=2)
        data = yaml.safe_load((self.dir / "run/config.yaml").read_text())["data"]
        self.assertEqual(data["table"]["categories"], {"colour": ["green", "red"], "kind": ["a, \"b\"", "setosa", "virginica"]})
        self.assertGreater(self.records("run", "eval")[-1]["accuracy"], 0.7)
        self.run_trainer("predict", "run/model.h5", "-o", "out.csv", "data.predict.path=t.csv",
                         "data.predict.inputs=[colour, size]", "--quiet", ranks=3)
        with h5py.File(self.dir / "run/model.h5") as f:
            head = f["model/params/head"]
            w, b = np.array(head["weight"], np.float64), np.array(head["bias"])
        x = np.array([[r[2] == "green", r[2] == "red", r[1]] for r in rows], np.float64)
        z = (x - data["normalize"]["mean"]) / data["normalize"]["std"] @ w.T + b
        with open(self.dir / "out.csv", newline="") as f:
            got = list(csv.DictReader(f))
        self.assertEqual([g["class"] for g in got], [data["table"]["categories"]["kind"][k] for k in z.argmax(1)])
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        np.testing.assert_allclose([float(g["p_setosa"]) for g in got], p[:, 1], atol=1e-6)
        self.layout_is_trains("run", "t.csv", "labels: kind", "inputs: [colour, size]")
        self.assertIn("data.normalize: auto: training finds the values",
                      self.run_trainer("evaluate", "run/model.h5", "data.normalize=auto", ranks=2, status=2))

    def test_bad_tables(self):
        rows = self.make_table(broken=True)
        columns = ["data.train.inputs=[colour, size]", "data.train.labels=kind"]
        path = self.write(data="t.csv", inputs=3, width=3, more=self.TABLE.format(missing="error"))
        self.assertRegex(self.run_trainer(path, *columns, ranks=2, status=1), r't\.csv:5: column "size": found "", expected a value')
        self.run_trainer(path, *columns, "data.table.missing=drop", "--quiet", ranks=2)
        kept = sum(r[1] != "" for r in rows)
        self.assertEqual(self.records("run", "eval")[-1]["samples"], round(kept * 0.25))
        text = (self.dir / "t.csv").read_bytes().decode()
        for line, change, want in ((9, "7,x,red,setosa", r't\.csv:9: column "size": found "x", expected a number'),
                                   (9, "7,1", r"t\.csv:9: 2 fields, expected 4"),
                                   (121, '7,"1', r"t\.csv:121: the quote that begins here does not end")):
            lines = text.split("\r\n")
            lines[line - 1] = change
            (self.dir / "t.csv").write_bytes("\r\n".join(lines).encode())
            self.assertRegex(self.run_trainer(path, *columns, "data.table.missing=drop", "--force", ranks=2, status=1), want)
        (self.dir / "t.csv").write_text(text, newline="")
        self.assertRegex(self.run_trainer(path, "data.train.inputs=[color]", columns[1], "data.table.missing=drop", "--force",
                                          ranks=0, status=1), 'no column "color".*did you mean "colour"')


if __name__ == "__main__":
    harness.main()
