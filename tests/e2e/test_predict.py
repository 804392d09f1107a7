"""`trainer predict`: against the same sums in numpy, in order at any rank count, killed and resumed, refusals."""
import csv
import json
import os
import signal
import subprocess
import time

import h5py
import numpy as np

import harness

MODEL = """
name: predict
device: cpu
output: {out}
data:
  train: {{path: {data}, inputs: x, labels: y, samples: 60}}
  eval: {{path: {data}, inputs: x, labels: y, samples: 20, offset: 7}}
  normalize: {{mean: 0.5, std: 2.0}}
  class_names: {names}
model:
  input: [6]
  layers: [linear: {{out: {width}, name: head}}]
  loss: {loss}
train: {{steps: 12, batch: 16, optimizer: {{adamw: {{lr: 0.05}}}}, eval: {{every_epochs: none}}, checkpoint: {{every_epochs: none}}}}
"""
NEW = ["data.predict.path=new.h5", "data.predict.inputs=x"]


class Predict(harness.Case):
    def test_no_locks(self):
        """A file system without locks, which flock tells by ENOLCK: nobody else is writing there."""
        self.make()
        (self.dir / "nolock.c").write_text("#include <errno.h>\nint flock(int fd, int how) { (void)fd, (void)how; errno = ENOLCK; return -1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "nolock.so", "nolock.c"], cwd=self.dir, check=True)
        self.run_trainer("predict", "run/model.h5", *NEW, "-o", "p.csv", ranks=1,
                         env={"LD_PRELOAD": str(self.dir / "nolock.so"), "HDF5_USE_FILE_LOCKING": "FALSE"})
        self.assertTrue((self.dir / "p.csv").exists())
        self.assertFalse((self.dir / "p.csv.part").exists())
        for how, said in (("ENOLCK", "does without\n"), ("EAGAIN", "does without, if the process that writes it is done with it\n")):
            (self.dir / "nolock.c").write_text((self.dir / "nolock.c").read_text().replace("ENOLCK", how))
            subprocess.run(["cc", "-shared", "-fPIC", "-o", "nolock.so", "nolock.c"], cwd=self.dir, check=True)
            out = self.run_trainer("predict", "run/model.h5", *NEW, "-o", "q.csv", ranks=1, status=1, env={"LD_PRELOAD": str(self.dir / "nolock.so")})
            self.assertRegex(out, rf"new.h5: cannot be opened as HDF5: HDF5: .*unable to lock file, errno = \d+, .*; HDF5_USE_FILE_LOCKING=FALSE in the environment {said}")
            (self.dir / "q.csv.part").unlink(missing_ok=True)

    def make(self, loss="cross_entropy", width=4, samples=131, names="[a, 'b,c', d, e]"):
        """Trains a linear model; returns the logits it gives samples of new.h5, which has no labels."""
        rng = np.random.default_rng(3)
        x = rng.normal(size=(80, 6)).astype(np.float32)
        y = {"cross_entropy": rng.integers(0, width, 80), "bce": (x[:, :width] > 0).astype(np.uint8),
             "mse": x[:, :width]}[loss]
        new = rng.normal(size=(samples, 6)).astype(np.float32)
        with h5py.File(self.dir / "data.h5", "w") as f:
            f["x"], f["y"] = x, y
        with h5py.File(self.dir / "new.h5", "w") as f:
            f["x"] = new
        path = self.dir / "run.yaml"
        path.write_text(MODEL.format(out=self.dir / "run", data=self.dir / "data.h5", width=width, loss=loss, names=names))
        self.run_trainer(path, "--quiet", ranks=0)
        with h5py.File(self.dir / "run/model.h5") as f:
            head = f["model/params/head"]
            w, b = np.array(head["weight"], np.float64), np.array(head["bias"], np.float64)
        self.x = x
        self.logits = lambda v: (v.astype(np.float64) - 0.5) / 2 @ w.T + b
        return self.logits(new)

    def predict(self, out, *arguments, ranks=0, status=0):
        return self.run_trainer("predict", "run/model.h5", "-o", out, *arguments, "--quiet", ranks=ranks, status=status)

    def test_classes_at_any_rank_count(self):
        z = self.make()
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        order = np.argsort(-z, 1)[:, :2]
        for ranks in (0, 2, 3, 4):
            self.predict(f"out{ranks}.h5", *NEW, "--top", "2", "--raw", ranks=ranks)
            self.assertEqual((self.dir / f"out{ranks}.h5").read_bytes(), (self.dir / "out0.h5").read_bytes())
        with h5py.File(self.dir / "out0.h5") as f:
            np.testing.assert_allclose(f["raw"], z, atol=1e-6)
            np.testing.assert_allclose(f["probabilities"], p, atol=1e-6)
            np.testing.assert_array_equal(f["classes"], order)
            np.testing.assert_allclose(f["class_probabilities"], np.take_along_axis(p, order, 1), atol=1e-6)
            self.assertEqual([n.decode() for n in f["class_names"]], ["a", "b,c", "d", "e"])
        self.predict("out.npy", *NEW, ranks=3)
        np.testing.assert_array_equal(np.load(self.dir / "out.npy"), h5py.File(self.dir / "out0.h5")["probabilities"])
        self.predict("out.csv", *NEW, ranks=2)
        with open(self.dir / "out.csv", newline="") as f:
            rows = list(csv.reader(f))
        self.assertEqual(rows[0], ["sample", "class", "probability", "p_a", "p_b,c", "p_d", "p_e"])
        self.assertEqual([r[1] for r in rows[1:]], [["a", "b,c", "d", "e"][k] for k in order[:, 0]])
        self.assertEqual([int(r[0]) for r in rows[1:]], list(range(len(z))))
        np.testing.assert_allclose([[float(v) for v in r[3:]] for r in rows[1:]], p, atol=1e-6)
        self.predict("eval.npy", "--raw")  # data.eval, which begins behind its offset
        np.testing.assert_allclose(np.load(self.dir / "eval.npy"), self.logits(self.x[7:27]), atol=1e-6)
        self.predict("train.npy", "--raw", "--data", "train")
        np.testing.assert_allclose(np.load(self.dir / "train.npy"), self.logits(self.x[:60]), atol=1e-6)

    def test_bf16_answers_as_it_trains(self):
        """Evaluation multiplies as training does, which may be rounded values in float32; answers read bfloat16 weights: the loss
        of the answers is the evaluation's within bfloat16's rounding. Where they differ, a value is rounded to the other side: 2^-8
        of the largest number in each of the three layers, and a loss follows its logits by at most twice as much."""
        self.make()
        path = self.dir / "run.yaml"
        path.write_text(path.read_text().replace("layers: [", "layers: [linear: {out: 96, name: a}, relu, linear: {out: 64, name: b}, relu, "))
        self.run_trainer(path, "--force", "--quiet", "train.precision=bf16", ranks=0)
        self.predict("raw.npy", "--raw", "train.precision=bf16")
        z = np.load(self.dir / "raw.npy").astype(np.float64)
        with h5py.File(self.dir / "data.h5") as f:
            y = f["y"][7:27]
        loss = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(20), y])
        got = json.loads(self.tool("evaluate", "run/model.h5", "--json", "train.precision=bf16"))["loss"]
        self.assertLess(abs(loss - got), 3 * 2 * 2**-8 * np.abs(z).max())
        # which is less than what training made of the loss: a wrong answer would be found
        self.assertGreater(abs(np.log(4) - got), 3 * 2 * 2**-8 * np.abs(z).max())

    def test_binary_and_values(self):
        z = self.make("bce", 1, names="[no, yes]")
        self.predict("out.h5", *NEW, ranks=2)
        with h5py.File(self.dir / "out.h5") as f:
            np.testing.assert_allclose(f["probabilities"], 1 / (1 + np.exp(-z)), atol=1e-6)
            np.testing.assert_array_equal(f["classes"][:, 0], z[:, 0] > 0)
        self.dir = self.dir / "values"
        self.dir.mkdir()
        z = self.make("mse", 3, names="[]")
        self.predict("out.h5", *NEW, ranks=2)
        with h5py.File(self.dir / "out.h5") as f:
            np.testing.assert_allclose(f["outputs"], z, atol=1e-6)
            self.assertNotIn("classes", f)
        self.assertIn("--top", self.predict("top.h5", *NEW, "--top", "2", status=2))

    def test_killed_and_resumed(self):
        self.make(samples=40000)
        small = ["train.eval.batch=8"]
        self.predict("whole.h5", *NEW, *small)
        part = self.dir / "out.h5.part"
        (self.dir / "out.h5").write_text("an old one")
        job = self.start("predict", "run/model.h5", "-o", "out.h5", *NEW, *small, "--quiet", "--force", ranks=0)
        while job.poll() is None and not (part.exists() and part.stat().st_size > 20000):
            time.sleep(0.0005)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        self.assertTrue(part.exists(), "it ended before it could be killed")
        self.assertEqual((self.dir / "out.h5").read_text(), "an old one")
        os.truncate(part, part.stat().st_size - 3)
        out = self.run_trainer("predict", "run/model.h5", "-o", "out.h5", *NEW, *small, "--force", ranks=2)
        self.assertRegex(out, r"out\.h5\.part has \d+ of 40000 samples: goes on")
        self.assertFalse(part.exists())
        self.assertEqual((self.dir / "out.h5").read_bytes(), (self.dir / "whole.h5").read_bytes())

    def test_refusals(self):
        self.make()
        self.assertIn("-o", self.tool("predict", "run/model.h5", status=2))
        self.assertIn(".npy", self.predict("out.txt", status=2))
        self.assertIn("labels", self.tool("predict", "run/model.h5", "-o", "o.npy", "data.predict.lables=y", status=2))
        self.assertIn("expected predict, eval or train", self.predict("o.npy", "--data", "test", status=2))
        self.assertIn("4 classes", self.predict("o.h5", "--top", "5", status=2, ranks=2))
        self.predict("o.npy", "data.predict.path=gone.h5", "data.predict.inputs=x", status=1, ranks=2)
        (self.dir / "there.npy").write_text("mine")
        self.assertIn("--force", self.predict("there.npy", status=2))
        self.assertEqual((self.dir / "there.npy").read_text(), "mine")
        part = self.dir / "o.npy.part"
        for mine in (b"x" * 300, b"mine"):
            part.write_bytes(mine)
            for more in ((), ("--force",)):
                self.assertIn("o.npy.part: is no prediction", self.predict("o.npy", *more, status=2, ranks=2))
                self.assertEqual(part.read_bytes(), mine)
        for begun in (b"trireme predictions 1\n" + bytes(300), b"trireme pre"):  # another job's, half a header
            part.write_bytes(begun)
            self.assertIn("another model", self.predict("o.npy", status=2, ranks=2))
            self.assertEqual(part.read_bytes(), begun)
            self.predict("o.npy", "--force", ranks=2)
            self.assertFalse(part.exists())
            np.testing.assert_allclose(np.load(self.dir / "o.npy").sum(1), 1, atol=1e-6)
            (self.dir / "o.npy").unlink()

    def test_not_finite(self):
        """Told once, with how many and the first; the file says what it ever did."""
        self.make(samples=40)
        self.assertNotIn("not finite", self.predict("good.csv", *NEW, ranks=2))
        with h5py.File(self.dir / "new.h5", "r+") as f:
            x = f["x"][()]
            x[[7, 33]] = np.nan
            x[19, 2] = np.inf
            f["x"][...] = x
        for out in ("out.csv", "raw.npy"):
            said = self.predict(out, *NEW, *(["--raw"] if out == "raw.npy" else []), "train.eval.batch=8", ranks=2)
            self.assertEqual(said.count(f"warning: predict: {out}: outputs of 3 of 40 samples are not finite, first of sample 7"), 1,
                             said)
        with open(self.dir / "out.csv", newline="") as f:
            rows = list(csv.reader(f))[1:]
        self.assertEqual([i for i, r in enumerate(rows) if r[2] == "nan"], [7, 19, 33])


if __name__ == "__main__":
    harness.main()
