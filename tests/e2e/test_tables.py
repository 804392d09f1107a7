"""Tables of several columns of targets: the same bits as the same values in an HDF5 file; a config for them."""
import csv
import json

import h5py
import numpy as np

from harness import main
from line import EVAL, SAMPLES, LineCase


EVALUATED = "data.eval={path: te.csv, targets: [v0, v1, v2]}"


class Tables(LineCase):
    def setUp(self):
        """line.h5's numbers as t.csv and te.csv, columns in another order, weights among them."""
        super().setUp()
        rng = np.random.default_rng(2)
        self.counts = rng.choice([0.5, 1, 2], SAMPLES + EVAL).astype(np.float32)
        with h5py.File(self.dir / "line.h5", "r+") as f:
            f["n"], f["ne"] = self.counts[:SAMPLES], self.counts[SAMPLES:]
        for name, part in (("t", slice(0, SAMPLES)), ("te", slice(SAMPLES, None))):
            with open(self.dir / f"{name}.csv", "w", newline="") as f:
                out = csv.writer(f)
                out.writerow(["v2", "x0", "x1", "b0", "count", "x2", "v0", "b1", "x3", "x4", "v1", "b2"])
                for x, v, b, n in zip(self.x[part], self.values[part], self.bits[part], self.counts[part]):
                    row = [v[2], x[0], x[1], b[0], n, x[2], v[0], b[1], x[3], x[4], v[1], b[2]]
                    out.writerow([repr(float(value)) for value in row])

    def both(self, loss, columns, *arguments):
        """Trained on the file and on the table: one after the other."""
        inputs = "[x0, x1, x2, x3, x4]"
        for name, more in (("file", ()), ("table", (
                f"data.train={{path: t.csv, inputs: {inputs}, targets: {columns}, weights: count}}",
                f"data.eval={{path: te.csv, targets: {columns}, weights: count}}"))):
            self.line("data.train.weights=n", "data.eval.weights=ne", *arguments, *more, name=name, loss=loss, evaluate=10)
        for a, b in zip(self.weights("file/model.h5"), self.weights("table/model.h5")):
            np.testing.assert_array_equal(a, b)
        self.assertEqual(self.losses("file"), self.losses("table"))
        self.assertEqual([r["loss"] for r in self.records("file", "eval")], [r["loss"] for r in self.records("table", "eval")])

    def test_values(self):
        self.both("mse", "[v0, v1, v2]", "data.normalize_targets=auto")
        full = json.loads(self.tool("evaluate", "table/model.h5", "--json"))
        self.assertEqual(full["samples"], EVAL)
        self.run_trainer("predict", "table/model.h5", "data.predict={path: te.csv}", "-o", "p.npy", "--quiet")
        self.run_trainer("predict", "file/model.h5", "data.predict={path: line.h5, inputs: xe}", "-o", "q.npy", "--quiet")
        got = np.load(self.dir / "p.npy")
        self.assertEqual(got.shape, (EVAL, 3))
        np.testing.assert_array_equal(got, np.load(self.dir / "q.npy"))
        for name, header in (("table", "sample,output_v0,output_v1,output_v2"), ("file", "sample,output_0,output_1,output_2")):
            self.run_trainer("predict", f"{name}/model.h5", "--data", "eval", "-o", f"{name}.csv", "--quiet")
            self.assertEqual((self.dir / f"{name}.csv").read_text().splitlines()[0], header)

    def test_far_from_zero(self):
        """Milliseconds since 1970 as input and target, 100 s of them: in float32 they are all one, with a mean subtracted before
        they are not. Without one training says so, once a column."""
        t = 1.7e12 + 1e5 * np.random.default_rng(5).random(400).round(5)
        table = "".join(f"{int(v)},{int(v) + 3000}\n" for v in t)
        (self.dir / "far.csv").write_text("time,late\n" + table)
        np.save(self.dir / "far.npy", np.array([int(v) for v in t])[:, None])
        np.save(self.dir / "late.npy", np.array([[float(int(v) + 3000)] for v in t]))
        for form, data in (("table", "path: far.csv, inputs: [time], targets: [late]"),
                           ("npy", "inputs: far.npy, labels: late.npy")):
            config = self.dir / f"{form}.yaml"
            config.write_text(f"name: far\noutput: far-{form}\ndevice: cpu\ndata:\n  train: {{{data}}}\n  split: {{fraction: 0.2}}\n"
                              "  normalize: auto\n  normalize_targets: auto\nmodel:\n  input: [1]\n  layers:\n    - linear: {out: 1}\n"
                              "  loss: mse\ntrain: {epochs: 20, batch: 16, optimizer: {adamw: {lr: 0.05}}}\n")
            self.run_trainer(config.name)
            full = json.loads(self.tool("evaluate", f"far-{form}/model.h5", "--json"))
            self.assertGreater(full["all"]["r2"], 0.999)
            quiet = self.run_trainer("check", config.name, "--data", ranks=1)
            self.assertNotIn("steps of", quiet)
            said = self.run_trainer("check", config.name, "--data", "data.normalize=", "data.normalize_targets=", ranks=1)
            column = ("column \"time\"", "column \"late\"") if form == "table" else ("far.npy: value 0", "late.npy: value 0")
            for name, key in zip(column, ("data.normalize:", "data.normalize_targets:")):
                lines = [line for line in said.splitlines() if name in line]
                self.assertEqual(len(lines), 1, said)
                self.assertIn("steps of 131072", lines[0])
                self.assertIn(key, lines[0])

    def test_bits(self):
        self.both("bce", "[b0, b1, b2]")
        self.run_trainer("predict", "table/model.h5", "--data", "eval", "-o", "p.csv", "--quiet")
        self.assertEqual((self.dir / "p.csv").read_text().splitlines()[0], "sample,p_b0,p_b1,p_b2")

    def test_inputs_not_named(self):
        """All columns but those of targets and weights, which are no inputs."""
        said = self.line("data.train={path: t.csv, targets: [v0, v1, v2], weights: count}", EVALUATED, status=1, ranks=0)
        self.assertIn("a sample's shape is (8), expected (5)", said)

    def test_refused(self):
        for source, status, why in [
                ("{path: t.csv, targets: [v0, v9, v2]}", 1, 'no column "v9" (data.train); did you mean'),
                ("{path: t.csv, inputs: [x0, x1, x2, x3, x4], targets: [v0, v1]}", 1, "a target's shape is (2), expected (3)"),
                ("{path: t.csv, targets: [v0, v0]}", 2, 'data.train.targets: "v0" stands there twice'),
                ("{path: t.csv, targets: v0}", 2, 'data.train.targets: found "v0", expected a list of columns'),
                ("{path: t.csv, targets: [v0], labels: v1}", 2, "data.train.targets: labels is given too"),
                ("{path: line.h5, inputs: x, labels: v, targets: [v0]}", 2, "data.train.targets: only format csv takes it")]:
            said = self.line(f"data.train={source}", EVALUATED, status=status, ranks=0)
            self.assertIn(why, said)
        for key, rest in (("weights", "targets: [v0, v1, v2], weights: count"), ("targets", "targets: [v0, v1, count]")):
            said = self.line("data.train={path: t.csv, inputs: [x0, x1, x2, x3, x4], %s}" % rest, EVALUATED,
                             "data.table.categories={count: [few, many]}", status=2, ranks=0)
            self.assertIn(f'data.train.{key}: "count" is a column of texts (data.table.categories), expected one of numbers', said)
        said = self.line("data.train={path: t.csv, targets: [b0]}", EVALUATED, loss="cross_entropy", status=2, ranks=0)
        self.assertIn("data.train.targets: the loss takes one class label", said)

    def test_answers_among_inputs(self):
        """A column that is to be found is no input; but all inputs may be, of an autoencoder."""
        for source, evaluated, name in (
                ("inputs: [x0, v1, x1, x2, x3], targets: [v0, v1, v2]", EVALUATED, "v1"),
                ("inputs: {input: [x0, x1, x2, x3, v2]}, targets: [v0, v1, v2]", EVALUATED, "v2"),
                ("inputs: [x0, x1, x2, x3, x4], targets: [v0, v1, v2]", "data.eval={path: te.csv, targets: [x3, v1, v2]}", "x3")):
            said = self.line(f"data.train={{path: t.csv, {source}}}", evaluated, status=2, ranks=0)
            self.assertIn(f'data.train.inputs: column "{name}" is of the targets, too: a model that is given the answer', said)
        self.line("data.train={path: t.csv, inputs: [v0, v1, v2], targets: [v0, v1, v2]}", EVALUATED, "model.input=[3]", ranks=0)
        (self.dir / "c.yaml").write_text(
            "name: c\noutput: c\ndata:\n  train: {path: t.csv, labels: b0,\n    inputs: [b0, x1]}\n"
            "model: {input: [2], layers: [linear: {out: 2}], loss: cross_entropy}\ntrain: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n")
        for command in (("c.yaml",), ("check", "c.yaml", "--data")):
            self.assertIn('c.yaml:5:14: data.train.inputs: column "b0" is of the labels, too', self.run_trainer(*command, ranks=0, status=2))

    def test_memory(self):
        """What the plan counts is what is held; what does not fit is refused before it is read, with what would help."""
        columns = "[v0, v1, v2]"
        self.line("data.train={path: t.csv, inputs: [x0, x1, x2, x3, x4], targets: %s}" % columns, EVALUATED, name="m", ranks=0)
        end = self.records("m", "end")[-1]
        self.assertEqual(end["predicted_mb"], end["held_mb"])
        with open(self.dir / "long.csv", "w") as f:
            f.write("x0,x1,x2,x3,x4,v0,v1,v2\n" + "1,2,3,4,5,6,7,8\n" * 30000)
        said = self.line("data.train={path: long.csv, targets: %s}" % columns, EVALUATED, "data.cache_mb=1", status=1, ranks=2)
        self.assertRegex(said, r"long\.csv: 30000 lines of 80 bytes in memory each, .*raise data\.cache_mb, or store it as HDF5")

    def new(self, labels, status=0):
        return self.tool("new", "--data", "t.csv", "--labels", labels, "-o", "n.yaml", "--force", status=status)

    def test_new(self):
        """Several columns with commas: values, or 0 and 1 of each; it trains as it is."""
        self.new("v0,v1, v2")
        text = (self.dir / "n.yaml").read_text()
        for word in ("targets: ['v0', 'v1', 'v2']", "normalize_targets: auto", "linear: {out: 3, name: head}", "loss: mse"):
            self.assertIn(word, text)
        self.run_trainer("n.yaml", "train.epochs=1", "output=n")
        self.new("b0,b2")
        text = (self.dir / "n.yaml").read_text()
        for word in ("targets: ['b0', 'b2']", "linear: {out: 2, name: head}", "loss: bce"):
            self.assertIn(word, text)
        self.assertNotIn("normalize_targets", text)
        self.run_trainer("n.yaml", "train.epochs=1", "output=b")
        self.assertIn('no column "b9"', self.new("b0,b9", status=1))
        with open(self.dir / "large.csv", "wb") as f:
            f.truncate((1 << 30) + 1)  # a hole, of which no more than a window is read
        said = self.tool("new", "--data", "large.csv", "-o", "n.yaml", "--force", status=1)
        self.assertIn("large.csv: byte 0 is NUL: no text", said)
        self.assertIn("stands there twice", self.new("b0,b0", status=1))


if __name__ == "__main__":
    main()
