"""ONNX files that PyTorch wrote (tests/golden/exported.py): what they are imported as answers as PyTorch does."""
import json
import re
import subprocess

import h5py
import numpy as np

from harness import SOURCE, Case, main

LAYERS = {"lstm": ("lstm_layer", 1), "gru": ("gru_layer", 1), "lstm_stacked": ("lstm_layer", 2), "gru_plain": ("gru_layer", 1),
          "lstm_both_ways": ("lstm_layer", 4), "gru_both_ways": ("gru_layer", 4), "rows_first": ("gru_layer", 1)}


class ImportOnnx(Case):
    def test_exported(self):
        with h5py.File(SOURCE / "tests/golden/exported.h5") as f:
            self.assertEqual(set(f), {*LAYERS, "mlp_classifier"})
            for name, (layer, count) in LAYERS.items():
                with self.subTest(name):
                    (self.dir / "m.onnx").write_bytes(f[name]["file"][()].tobytes())
                    with h5py.File(self.dir / "new.h5", "w") as new:
                        new["x"] = f[name]["x"][()]
                    self.tool("import", "m.onnx", "m.h5", "--force")
                    self.tool("predict", "m.h5", "data.predict.path=new.h5", "data.predict.inputs=x", "-o", "y.npy", "--raw", "--force")
                    np.testing.assert_allclose(np.load(self.dir / "y.npy"), f[name]["y"][()], rtol=1e-5, atol=1e-6)
                    with h5py.File(self.dir / "m.h5") as made:
                        self.assertEqual(made.attrs["config"].decode().count(f"- {layer}:"), count)

    def test_patterns(self):
        """Layers of several nodes each are counted: in the log, in the file, and what stages make of it."""
        with h5py.File(SOURCE / "tests/golden/exported_attention.h5") as f:
            (self.dir / "m.onnx").write_bytes(f["read/vit_script"]["file"][()].tobytes())
        done = subprocess.run([str(self.program), "import", "m.onnx", "m.h5", "data.train.samples=32"], cwd=self.dir, text=True,
                              env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout
        said = re.search(r"m.onnx: layers that it says with several of its (\d+) nodes each: (.*)\n", done)
        counts = {layer: int(count) for count, layer in (part.split() for part in said[2].split(", "))}
        self.assertEqual(counts["attention"], 2)
        self.run_trainer("fold", "m.h5", ranks=1)
        for file in ("m.h5", "m-fold.h5"):
            with h5py.File(self.dir / file) as f:
                stage = f["stages/00-import"]
                rows, column = stage["patterns"].attrs["rows"].decode().split(), stage["patterns/count"][()]
                self.assertEqual(dict(zip(rows, column)), counts)
                self.assertEqual(stage.attrs["nodes"], int(said[1]))
                self.assertEqual(stage.attrs["source"], b"m.onnx")
                self.assertEqual("latency_ms" in stage.attrs, file == "m-fold.h5")
        self.assertRegex(self.tool("inspect", "m.h5"), r"Found by 00-import\n(.*\n)*  patterns\n +count\n(.*\n)*  attention +2\n")
        self.assertIn("01-fold", self.tool("inspect", "m-fold.h5"))

    def test_output(self):
        """A scikit-learn classifier's graph has two outputs; the one that is named is the model's."""
        with h5py.File(SOURCE / "tests/golden/exported.h5") as f:
            case = f["mlp_classifier"]
            (self.dir / "m.onnx").write_bytes(case["file"][()].tobytes())
            with h5py.File(self.dir / "new.h5", "w") as new:
                new["x"] = case["x"][()]
            y = case["y"][()]
        self.assertIn('2 outputs: "label", "probabilities", ...: say which one counts (--output)',
                      self.tool("import", "m.onnx", "m.h5", status=2))
        self.assertIn('there is no output "proba"', self.tool("import", "m.onnx", "m.h5", "--output", "proba", status=1))
        self.assertIn("--output: expected a name", self.tool("import", "m.onnx", "m.h5", "--output", status=2))
        self.assertIn("--output x: names a value of an ONNX graph",
                      self.tool("import", "m.npz", "m.h5", "--config", "c.yaml", "--output", "x", status=2))
        self.assertFalse((self.dir / "m.h5").exists())
        for name, want in (("probabilities", y), ("add_result1", np.log(y))):
            self.tool("import", "m.onnx", "m.h5", "--output", name, "--force")
            self.tool("predict", "m.h5", "data.predict.path=new.h5", "data.predict.inputs=x", "-o", "y.npy", "--raw", "--force")
            got = np.load(self.dir / "y.npy")
            if name == "add_result1":  # logits: the same up to a shift of each sample
                got, want = got - got[:, :1], want - want[:, :1]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)

    def test_stages(self):
        """An ONNX file becomes a model that every stage takes: folded it answers alike, pruned it is smaller, quantized it is near, and what
        is exported of it is imported again."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, export]")
        data = [f"data={{train: {{path: {self.dir}/data.h5, inputs: x, labels: y}}, eval: {{path: {self.dir}/data.h5, inputs: xe, labels: ye}}}}",
                "model.loss=cross_entropy"]
        self.tool("import", self.dir / "run/stages/01-export.onnx", "m.h5", *data)
        self.assertEqual(self.loss("m.h5"), self.loss("run/model.h5"))
        self.run_trainer("fold", "m.h5", ranks=1)
        with h5py.File(self.dir / "m-fold.h5") as f:
            self.assertFalse([n for n in f["model/params"] if "batchnorm" in n])
        self.assertAlmostEqual(self.loss("m-fold.h5"), self.loss("run/model.h5"), places=4)
        self.run_trainer("prune", "m-fold.h5", "amount=0.3", "train={steps: 20}", ranks=1)
        self.run_trainer("quantize", "m-fold-prune.h5", "layers=all", "samples=70", "budget.loss_rise=0.05", ranks=1)
        with h5py.File(self.dir / "m-fold-prune-quantize.h5") as f, h5py.File(self.dir / "m.h5") as g:
            self.assertEqual(f["model/params/head/weight"].dtype, "int8")
            count = [sum(rows["weight"].size for rows in x["model/params"].values()) for x in (f, g)]
            self.assertLess(count[0], 0.9 * count[1])
        self.run_trainer("export", "m-fold-prune-quantize.h5", ranks=1)
        self.tool("import", "m-fold-prune-quantize-export.onnx", "again.h5", *data)
        self.assertAlmostEqual(self.loss("again.h5"), self.loss("m-fold-prune-quantize.h5"), places=3)

    def loss(self, file):
        """Of a run file on data.eval."""
        return json.loads(self.tool("evaluate", file, "--json"))["loss"]


if __name__ == "__main__":
    main()
