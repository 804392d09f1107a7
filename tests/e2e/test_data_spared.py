"""What a command reads it does not write over, with --force neither, by whatever name the file goes."""
import os

import h5py
import numpy as np

import harness
from harness import main

FLAT = """
name: flat
device: cpu
output: run
data: {train: %s, split: {fraction: 0.25}}
model: {input: [4], layers: [linear: {out: 2}], loss: cross_entropy}
train: {steps: 2, batch: 8, optimizer: {sgd: {lr: 0.1}}, checkpoint: {every_epochs: none}}
"""
IDS = """
name: ids
device: cpu
output: run
data: {train: {path: "%s", format: tokens}}
model: {input: [8], layers: [embedding: {num: 20, dim: 4}, linear: {out: 20}], loss: cross_entropy}
train: {steps: 2, batch: 4, optimizer: {sgd: {lr: 0.1}}, checkpoint: {every_epochs: none}}
"""
IMAGES = """
name: images
device: cpu
output: run
data: {train: {path: photos}, image: {resize: 8, center_crop: true}, split: {fraction: 0.25}}
model: {input: [3, 8, 8], layers: [flatten: {}, linear: {out: 2}], loss: cross_entropy}
train: {steps: 1, batch: 2, checkpoint: {every_epochs: none}}
"""


class Spared(harness.Case):
    def config(self, text, name="c.yaml"):
        (self.dir / name).write_text(text)
        return name

    def spared(self, name, *arguments, key=None):
        """Told with and without --force, before anything is written."""
        before = self.contents()
        for force in ((), ("--force",)):
            out = self.tool(*arguments, *force, status=2)
            self.assertIn(f"{name} is what is read: it is not written over" + (f" ({key})" if key else ""), out)
            self.assertEqual(self.contents(), before)

    def arrays_of(self, folder):
        rng = np.random.default_rng(1)
        for name, a in (("x", rng.normal(size=(64, 4)).astype("f4")), ("y", rng.integers(0, 2, 64)), ("w", np.ones(64, "f4"))):
            np.save(folder / f"{name}.npy", a)

    def test_files_of_arrays(self):
        """Inputs, labels, weights; of the config or the command line; links, .. and other names of the file."""
        self.arrays_of(self.dir)
        np.save(self.dir / "new.npy", np.zeros((3, 4), "f4"))
        (self.dir / "sub").mkdir()
        (self.dir / "link.npy").symlink_to("x.npy")
        os.link(self.dir / "x.npy", self.dir / "hard.npy")
        self.run_trainer(self.config(FLAT % "{inputs: x.npy, labels: y.npy, weights: w.npy}"), "--quiet", ranks=0)
        for name in ("x.npy", "sub/../x.npy", "link.npy", "hard.npy"):
            self.spared(name, "predict", "run", "data.predict.inputs=new.npy", "-o", name, key="data.train.inputs")
        self.spared("new.npy", "predict", "run", "data.predict.inputs=new.npy", "-o", "new.npy", key="data.predict.inputs")
        self.spared("y.npy", "predict", "run", "--data", "train", "-o", "y.npy", key="data.train.labels")
        self.spared("w.npy", "evaluate", "run", "-o", "w.npy", key="data.train.weights")
        self.spared("run/model.h5", "evaluate", "run", "-o", "run/model.h5")
        self.tool("predict", "run", "data.predict.inputs=new.npy", "-o", "out.npy", "--quiet")
        self.tool("predict", "run", "data.predict.inputs=new.npy", "-o", "out.npy", "--quiet", "--force")
        self.assertEqual(np.load(self.dir / "out.npy").shape, (3, 2))

    def test_names_in_a_file(self):
        """What a file of several arrays calls them is no file."""
        rng = np.random.default_rng(1)
        with h5py.File(self.dir / "d.h5", "w") as f:
            f["x.csv"], f["y"] = rng.normal(size=(64, 4)).astype("f4"), rng.integers(0, 2, 64)
        (self.dir / "x.csv").write_text("mine")
        self.run_trainer(self.config(FLAT % "{path: d.h5, inputs: x.csv, labels: y}"), "--quiet", ranks=0)
        self.spared("d.h5", "predict", "run", "--data", "train", "-o", "d.h5", key="data.train.path")
        self.tool("predict", "run", "--data", "train", "-o", "x.csv", "--quiet", "--force")

    def test_several_files(self):
        """Patterns and lists."""
        ids = np.arange(200) % 20
        for name in ("a1.bin", "a2.bin", "b.bin"):
            (self.dir / name).write_bytes(ids.astype("<u2").tobytes())
        self.run_trainer(self.config(IDS % "a*.bin, b.bin"), "--quiet", ranks=0)
        for name in ("a2.bin", "b.bin"):
            self.spared(name, "evaluate", "run", "data.eval={path: a1.bin, format: tokens}", "-o", name, key="data.train.path")
        self.spared("a1.bin", "evaluate", "run", "data.train.path=b.bin", "data.eval={path: 'a?.bin', format: tokens}", "-o", "a1.bin",
                    key="data.eval.path")

    def test_images(self):
        """One in a folder of them, also in a class that is a link; what lies beside them is none. `new` likewise."""
        with h5py.File(harness.SOURCE / "tests/golden/images.h5") as f:
            image = f["files/rgb.png/bytes"][()].tobytes()
        for name in ("photos/ant/1.png", "photos/ant/2.png", "cats/1.png", "cats/2.png"):
            (self.dir / name).parent.mkdir(parents=True, exist_ok=True)
            (self.dir / name).write_bytes(image)
        (self.dir / "photos/cat").symlink_to("../cats")
        self.run_trainer(self.config(IMAGES), "--quiet", ranks=0)
        for name in ("photos/ant/1.png", "cats/2.png"):
            self.spared(name, "evaluate", "run", "-o", name, key="data.train.path")
        before = self.contents()
        self.assertIn("cats/2.png is the data file", self.tool("new", "--data", "photos", "-o", "cats/2.png", "--force", status=2))
        self.assertEqual(self.contents(), before)
        (self.dir / "photos/said.json").write_text("")
        self.tool("evaluate", "run", "-o", "photos/said.json", "--quiet", "--force")

    def test_other_commands(self):
        """What import reads its model from, and its data; what is compared; what lies where a stage writes; a run's own files."""
        self.arrays_of(self.dir)
        config = self.config(FLAT % "{inputs: x.npy, labels: y.npy}")
        self.run_trainer(config, "--quiet", ranks=0)
        np.savez(self.dir / "v.npz", **{"linear1.weight": np.zeros((2, 4), "f4"), "linear1.bias": np.zeros(2, "f4")})
        self.spared(config, "import", "v.npz", config, "--config", config)
        self.spared("y.npy", "import", "v.npz", "y.npy", "--config", config, key="data.train.labels")
        (self.dir / "run.json").symlink_to("run/model.h5")
        self.spared("run.json", "compare", "run.json", "run", "-o", "run.json")
        self.assertIn("run/model-fold.npy is what is read", self.moved("run/model-fold.npy", "fold", "run/model.h5"))
        for name in ("run/metrics.jsonl", "run/checkpoints/step-00000001.h5", "run/stages/01-export.npz"):
            out = self.moved(name, config)
            self.assertIn("data.train.inputs: has the name of a file that the run writes in run", out)

    def moved(self, to, *command):
        """With the inputs there; an .npy file whatever it is called."""
        (self.dir / to).parent.mkdir(exist_ok=True)
        whole = (self.dir / to).read_bytes() if (self.dir / to).exists() else None
        (self.dir / to).write_bytes((self.dir / "x.npy").read_bytes())
        before = self.contents()
        out = self.tool(*command, f"data.train.inputs={self.dir / to}", "data.train.format=npy", "--force", status=2)
        self.assertEqual(self.contents(), before)
        (self.dir / to).unlink()
        if whole is not None:
            (self.dir / to).write_bytes(whole)
        return out


if __name__ == "__main__":
    main()
