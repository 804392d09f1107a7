"""Every option of the data has its effect: formats against each other to the bit, ids, normalization, augmentation,
order, named inputs; the same at several ranks."""
import gzip
import struct

import h5py
import numpy as np

from harness import RANKS, Case, main

IMAGES = """
name: images
seed: 2
output: {out}
data:
  train: {{path: images.h5, inputs: x, labels: y}}
model:
  input: {input}
  layers:
    - conv2d: {{out: 4, kernel: 3, stride: 2, padding: 1}}
    - relu
    - flatten
    - linear: {{out: 7, name: head}}
  loss: cross_entropy
train: {{steps: 8, batch: 10, log_every: 1, optimizer: {{adamw: {{lr: 0.003}}}}}}
"""
WORDS = """
name: words
seed: 4
data:
  train: {path: words.h5, inputs: x, labels: y}
  eval: {path: words.h5, inputs: xe, labels: ye}
model:
  input: [6]
  layers:
    - embedding: {num: 30, dim: 8, name: words}
    - linear: {out: 8, name: rows}
    - gelu
    - flatten
    - linear: {out: 4, name: head}
  loss: cross_entropy
train: {steps: 40, batch: 16, log_every: 1, optimizer: {adamw: {lr: 0.02}}, eval: {every_steps: 40}}
"""


class Data(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(6)
        self.y = rng.integers(0, 7, 45)
        self.x = rng.integers(0, 256, (45, 3, 32, 32)).astype(np.uint8)
        self.x[np.arange(45), 0, self.y, :] = 255  # something to learn
        with h5py.File(self.dir / "images.h5", "w") as f:
            f["x"], f["y"] = self.x, self.y.astype(np.uint8)

    def images(self, name, *arguments, ranks=2, input="[3, 32, 32]", status=0):
        path = self.dir / f"{name}.yaml"
        path.write_text(IMAGES.format(out=self.dir / name, input=input))
        out = self.run_trainer(path, "data.normalize={mean: 127.5, std: 70}", *arguments, ranks=ranks, status=status)
        return self.losses(name) if status == 0 else out

    def test_formats(self):
        """The same samples from every format give the same losses, to the bit."""
        idx = {}
        for name, array in (("x", self.x), ("y", self.y.astype(np.uint8))):
            idx[name] = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            (self.dir / f"{name}-ubyte").write_bytes(idx[name])
            (self.dir / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx[name]))
            np.save(self.dir / f"{name}.npy", array)
        np.save(self.dir / "float.npy", self.x.astype(np.float32))
        np.save(self.dir / "long.npy", self.y.astype(np.int64))
        np.savez(self.dir / "d.npz", x=self.x, y=self.y)
        np.savez_compressed(self.dir / "packed.npz", y=self.y.astype(">i4"), x=self.x.astype(np.float32))
        records = np.concatenate([self.y[:, None].astype(np.uint8), self.x.reshape(45, -1)], axis=1)
        (self.dir / "one.bin").write_bytes(records[:20].tobytes())
        (self.dir / "two.bin").write_bytes(records[20:].tobytes())
        coarse = np.concatenate([np.full((45, 1), 3, np.uint8), records], axis=1)
        (self.dir / "hundred.bin").write_bytes(coarse.tobytes())
        whole = self.images("hdf5")
        self.assertLess(whole[-1], whole[0])
        cases = {
            "idx": "{inputs: x-ubyte, labels: y-ubyte}",
            "gz": "{inputs: x-ubyte.gz, labels: y-ubyte.gz}",
            "idx-named": "{inputs: x-ubyte, labels: y-ubyte, format: idx}",
            "npy": "{inputs: x.npy, labels: y.npy}",
            "npy-wide": "{inputs: float.npy, labels: long.npy}",
            "npz": "{path: d.npz, inputs: x, labels: y}",
            "npz-packed": "{path: packed.npz, inputs: x, labels: y}",
            "cifar10": "{path: 'one.bin,two.bin', format: cifar10}",
            "cifar100": "{path: hundred.bin, format: cifar100}",
        }
        for name, source in cases.items():
            with self.subTest(name):
                self.assertEqual(self.images(name, f"data.train={source}"), whole)
                streamed = (f"{name}-streamed", f"data.train={source}", "data.cache_mb=0")
                if name in ("gz", "npz-packed"):
                    self.assertIn("cannot be streamed", self.images(*streamed, status=1))
                else:
                    self.assertEqual(self.images(*streamed), whole)

    def test_streamed(self):
        self.assertEqual(self.images("streamed", "data.cache_mb=0", "data.workers=2", "data.prefetch=3"),
                         self.images("cached"))
        self.assertEqual(self.images("inline", "data.workers=0"), self.losses("cached"))

    def test_normalize(self):
        """A mean and a deviation a channel, against data that was prepared beforehand."""
        mean, std = np.array([100, 120, 140]), np.array([50, 60, 80])
        prepared = ((self.x - mean[:, None, None]) / std[:, None, None]).astype(np.float32)
        with h5py.File(self.dir / "prepared.h5", "w") as f:
            f["x"], f["y"] = prepared, self.y
        np.testing.assert_allclose(
            self.images("here", "data.normalize={mean: [100, 120, 140], std: [50, 60, 80]}"),
            self.images("there", "data.train.path=prepared.h5", "data.normalize={mean: 0, std: 1}"), rtol=1e-5)
        self.assertIn("normalize", self.images("wrong", "data.normalize={mean: [1, 2], std: [1, 2]}", status=2))

    def test_augmentation(self):
        plain = self.images("plain")
        for kind in ("{crop: 4}", "{flip: true}", "{crop: 2, flip: true}"):
            one = self.images("one", f"data.augment={kind}", "--force", ranks=1)
            three = self.images("three", f"data.augment={kind}", "data.workers=2", "--force", ranks=3)
            np.testing.assert_allclose(three, one, err_msg=kind, **RANKS)
            self.assertGreater(np.abs(np.subtract(one, plain)).max(), 1e-3, kind)

    def test_order(self):
        shuffled, straight = self.images("shuffled"), self.images("straight", "data.shuffle=false")
        self.assertNotEqual(shuffled, straight)

    def test_drop_last_and_samples(self):
        for name, arguments, samples, per_epoch in (
                ("all", (), 45, 5), ("dropped", ("data.drop_last=true",), 45, 4),
                ("fewer", ("data.train.samples=21",), 21, 3)):
            self.images(name, "train.epochs=2", "train.steps=none", *arguments)
            start = self.records(name, "start")[0]
            self.assertEqual((start["samples"], start["steps_per_epoch"]), (samples, per_epoch))
            self.assertEqual(len(self.losses(name)), 2 * per_epoch)
        self.assertEqual(self.losses("all")[:4], self.losses("dropped")[:4])  # the 5th: a short batch, or a new epoch
        self.assertNotEqual(self.losses("all")[4], self.losses("dropped")[4])

    def test_named_inputs(self):
        """Two inputs, concatenated, are the one input that holds both."""
        rng = np.random.default_rng(3)
        x = rng.normal(size=(30, 7)).astype(np.float32)
        with h5py.File(self.dir / "named.h5", "w") as f:
            f["x"], f["left"], f["right"] = x, x[:, :4], x[:, 4:]
            f["y"] = x @ rng.normal(size=(7, 2)).astype(np.float32)
        text = """
data: {{train: {{path: named.h5, inputs: {data}, labels: y}}}}
name: named
model: {{{inputs}, layers: [{first}linear: {{out: 2, name: head}}], loss: mse}}
train: {{steps: 10, batch: 8, log_every: 1, optimizer: {{sgd: {{lr: 0.1}}}}}}
"""
        for name, ranks, data, inputs, first in (
                ("one", 1, "x", "input: [7]", ""),
                ("two", 1, "{a: left, b: right}", "inputs: {a: [4], b: [3]}", "{concat: {from: [a, b]}}, "),
                ("three", 3, "{b: right, a: left}", "inputs: {a: [4], b: [3]}", "{concat: {from: [a, b]}}, "),
                ("turned", 1, "{a: left, b: right}", "inputs: {a: [4], b: [3]}", "{concat: {from: [b, a]}}, ")):
            path = self.dir / f"{name}.yaml"
            path.write_text(text.format(data=data, inputs=inputs, first=first))
            self.run_trainer(path, f"output={self.dir}/{name}", ranks=ranks)
        self.assertEqual(self.losses("one"), self.losses("two"))
        np.testing.assert_allclose(self.losses("three"), self.losses("two"), **RANKS)
        self.assertNotEqual(self.losses("turned"), self.losses("two"))

    def test_normalize_by_name(self):
        """Of an image and a vector those that are named, each by its own numbers: against data that NumPy prepared, and
        the first loss against NumPy's own."""
        rng = np.random.default_rng(4)
        photo, facts = rng.integers(0, 256, (30, 3, 4, 4)).astype(np.uint8), rng.normal(40, 9, (30, 5)).astype(np.float32)
        y = rng.integers(0, 3, 30)
        mean, std = np.array([100, 120, 140]), np.array([50, 60, 80])
        fmean, fstd = np.arange(38, 43), np.array([2, 4, 8, 16, 32])
        image, vector = ((photo - mean[:, None, None]) / std[:, None, None]).astype(np.float32), ((facts - fmean) / fstd).astype(np.float32)
        sets = {"raw": (photo, facts), "image": (image, facts), "vector": (photo, vector), "both": (image, vector)}
        for name, (a, b) in sets.items():
            with h5py.File(self.dir / f"{name}.h5", "w") as f:
                f["photo"], f["facts"], f["y"] = a, b, y
        text = """
name: named
output: {out}
data:
  train: {{path: {file}.h5, inputs: {{photo: photo, facts: facts}}, labels: y}}
  shuffle: false
{normalize}model:
  inputs: {{photo: [3, 4, 4], facts: [5]}}
  layers:
    - flatten: {{from: photo, name: flat}}
    - concat: {{from: [flat, facts]}}
    - linear: {{out: 3, name: head}}
  loss: cross_entropy
train: {{steps: 9, batch: 10, log_every: 1, optimizer: {{sgd: {{lr: 0.001}}}}}}
"""
        images = "photo: {mean: [100, 120, 140], std: [50, 60, 80]}"
        vectors = "facts: {mean: [38, 39, 40, 41, 42], std: [2, 4, 8, 16, 32]}"

        def train(name, file, normalize="", ranks=1):
            path = self.dir / f"{name}.yaml"
            path.write_text(text.format(out=self.dir / name, file=file, normalize=normalize))
            self.run_trainer(path, ranks=ranks)
            return self.losses(name)

        prepared = {name: train(f"prepared-{name}", name) for name in sets}
        self.assertEqual(len({tuple(losses) for losses in prepared.values()}), 4)
        block = f"  normalize:\n    {images}\n    {vectors}\n"
        for name, file, normalize, ranks in (("image", "raw", f"  normalize: {{{images}}}\n", 1),
                                             ("vector", "raw", f"  normalize: {{{vectors}}}\n", 1),
                                             ("both", "raw", block, 1), ("both", "raw", block, 3),
                                             ("both", "image", f"  normalize: {{{vectors}}}\n", 1)):
            with self.subTest(name=name, file=file, ranks=ranks):
                np.testing.assert_allclose(train(f"{name}-{file}-{ranks}", file, normalize, ranks), prepared[name], **RANKS)

        # the first step's loss, from the weights that training begins with
        train("start", "raw", block.replace("normalize", "cache_mb: 0\n  normalize"))
        self.run_trainer(self.dir / "start.yaml", "train.steps=1", "train.optimizer.sgd.lr=1e-30", "--force", ranks=1)
        head = self.arrays(self.dir / "start/model.h5")
        weight, bias = head["model/params/head/weight"], head["model/params/head/bias"]
        out = np.concatenate([image.reshape(30, -1), vector], 1)[:10] @ weight.reshape(3, -1).T + bias
        loss = np.mean(np.log(np.exp(out).sum(1)) - out[np.arange(10), y[:10]])
        np.testing.assert_allclose(self.losses("start"), [loss], rtol=1e-5)

    def words(self, name, *arguments, ranks=2, **keywords):
        path = self.dir / f"{name}.yaml"
        path.write_text(WORDS)
        return self.run_trainer(path, f"output={self.dir}/{name}", *arguments, ranks=ranks, **keywords)

    def test_embedding(self):
        """A classifier of words learns which of them belong to a class; the same however it is computed."""
        rng = np.random.default_rng(8)
        y = rng.integers(0, 4, 103)
        x = rng.integers(0, 30, (103, 6))
        own = rng.random((103, 6)) < 0.6
        x[own] = (x % 5 + 5 * y[:, None])[own]  # words 5y .. 5y + 4 are of class y, 20 .. 29 of none
        with h5py.File(self.dir / "words.h5", "w") as f:
            f["x"], f["y"], f["xe"], f["ye"] = x[:80].astype(np.int64), y[:80], x[80:].astype(np.uint8), y[80:]
        self.words("one", ranks=1)
        one = self.losses("one")
        self.assertLess(np.mean(one[-5:]), 0.3 * np.mean(one[:5]))
        self.assertGreater(self.records("one", "eval")[-1]["accuracy"], 0.6)
        table = self.arrays(self.dir / "one/model.h5")["model/params/words/weight"]
        self.assertEqual((table.shape, table.dtype), ((30, 8), np.float32))
        for name, arguments, ranks in (
                ("again", (), 1), ("two", (), 2), ("three", (), 3), ("micro", ("train.micro_batch=3",), 2),
                ("recompute", ("train.recompute={every: 2}",), 1), ("streamed", ("data.cache_mb=0",), 1)):
            self.words(name, *arguments, ranks=ranks)
            if name in ("again", "recompute", "streamed"):
                self.assertEqual(self.losses(name), one, name)
            else:
                np.testing.assert_allclose(self.losses(name), one, err_msg=name, **RANKS)
        self.words("bf16", "train.precision=bf16")
        self.assertNotEqual(self.losses("bf16"), one)
        np.testing.assert_allclose(self.losses("bf16"), one, rtol=0.1, atol=0.05)

    def test_names_of_nothing(self):
        """A dataset, an array or files that are not there are told at the key that names them."""
        x, y, long = np.zeros((8, 2), np.float32), np.zeros(8, np.int32), 300 * "n"
        np.savez(self.dir / "e.npz", x=x, y=y, c=y.astype(complex))
        with h5py.File(self.dir / "e.h5", "w") as f:
            f["x"], f["y"], f["c"], f[long], f["g/y"], f["s"] = x, y, y.astype(complex), y.astype(complex), y, h5py.SoftLink("/g")
        head, tail = "name: e\noutput: e\ndata:\n  train: {path: %s,\n", "model: {input: [2], layers: [linear: {out: 2}], loss: cross_entropy}\ntrain: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n"
        for file, inputs, labels, place, said in (
                ("e.h5", "xx", "y", "5:13: data.train.inputs", 'e.h5: has no dataset "xx"'), ("e.h5", "x", "z", "6:13: data.train.labels", 'e.h5: has no dataset "z"'),
                ("e.npz", "x", "z", "6:13: data.train.labels", 'e.npz: there is no array "z"'), ("e.h5", "g/x", "y", "5:13: data.train.inputs", 'e.h5: has no dataset "g/x"'),
                ("e.h5", "x", "g", "6:13: data.train.labels", "e.h5: dataset g: cannot be opened"), ("e.npz", "g/x", "y", "5:13: data.train.inputs", 'e.npz: there is no array "g/x"'),
                ("e.h5", "x", "s/absent", "6:13: data.train.labels", 'e.h5: has no dataset "s/absent"'),
                # what is there and cannot be read comes before what is not there
                ("e.h5", "xx", "c", None, "e.h5: dataset c: its element type is not read"), ("e.npz", "xx", "c", None, "e.npz: array c: header at byte"),
                ("e.h5", "xx", "z", "6:13: data.train.labels", 'e.h5: has no dataset "z"'), ("e.npz", "xx", "y", "5:13: data.train.inputs", 'e.npz: there is no array "xx"'),
                ("e.h5", "x", long, None, "its element type is not read")):
            (self.dir / "e.yaml").write_text(head % file + f"    inputs: {inputs},\n    labels: {labels}}}\n" + tail)
            for ranks in (0, 2):
                out = self.run_trainer("e.yaml", ranks=ranks, status=1)
                self.assertIn(f"e.yaml:{place}: {said}" if place else said, out)
                if not place:
                    self.assertNotIn("data.train.", out)
        text = "model: {input: [4], layers: [embedding: {num: 256, dim: 2}, linear: {out: 256}], loss: cross_entropy}\n"
        for source, said in (("'no*.bin',\n    format: tokens", "no file is like .*no\\*.bin"), ("'no*.bin,gone.bin',\n    format: tokens", "no file is like .*no\\*.bin"),
                             ("'gone.bin,no*.bin',\n    format: tokens", "no file is like .*no\\*.bin"), ("'no*.bin,none*.bin',\n    format: tokens", "no file is like .*no\\*.bin"),
                             ("'no*.txt',\n    format: text", "no\\*.txt: cannot be opened")):
            (self.dir / "e.yaml").write_text(head[:-2] % source + "}\n" + text + tail.split("\n")[1] + "\n")
            out = self.run_trainer("e.yaml", ranks=0, status=1)
            self.assertRegex(out, rf"e.yaml:4:17: data.train.path: {said}")
            self.assertEqual(out.count("data.train.path"), 1, out)

    def test_embedding_input(self):
        """What is no id ends the run on all ranks; what would change ids is a config error."""
        for name, value, said in (("half", 3.5, "3.5"), ("below", -1, "-1"), ("above", 30, "30")):
            x = np.zeros((40, 6))
            x[17, 4] = value
            with h5py.File(self.dir / "words.h5", "w") as f:
                f["x"], f["y"], f["xe"], f["ye"] = x, np.zeros(40, np.int32), np.zeros((8, 6)), np.zeros(8, np.int32)
            out = self.words(name, status=1)
            self.assertRegex(out, rf"words.h5: dataset x: sample 17[^:]*: element 4 is {said}, "
                                  "expected an id: a whole number from 0 to 29")
        self.assertIn("data.normalize: all inputs of the model are ids",
                      self.words("normal", "data.normalize={mean: 1, std: 2}", status=2))
        for command in ("check", "plan"):  # the config alone shows it
            self.assertRegex(self.tool(command, self.dir / "normal.yaml", "data.normalize=auto", status=2),
                             "command line: data.normalize=auto: data.normalize: all inputs of the model are ids, which embeddings look up")
        self.words("made", "data.train={format: synthetic, samples: 60}", "data.eval={format: synthetic, samples: 30}")
        losses = self.losses("made")
        self.assertLess(np.mean(losses[-5:]), 0.7 * np.mean(losses[:5]))
        out = self.tool("plan", self.dir / "made.yaml", "data.train={format: synthetic, samples: 60}")
        for op in ("embedding", "embedding.grad"):
            self.assertIn(f" {op} ", out)
        self.assertIn("embedding", self.tool("check", self.dir / "made.yaml"))

    def test_synthetic(self):
        losses = {}
        for ranks in (1, 2):
            losses[ranks] = self.images(f"s{ranks}", "data.train={format: synthetic, samples: 60, classes: 7}",
                                        "data.normalize={}", "train.steps=30", ranks=ranks)
        np.testing.assert_allclose(losses[2], losses[1], rtol=1e-3, atol=1e-4)
        self.assertLess(np.mean(losses[1][-5:]), np.mean(losses[1][:5]))


if __name__ == "__main__":
    main()
