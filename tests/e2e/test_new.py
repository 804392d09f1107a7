"""`trainer new`: for data in every format, a config that checks and trains as it is."""
import csv
import gzip
import re
import struct
import zipfile
import zlib

import h5py
import numpy as np

from harness import SOURCE, Case, main


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


class New(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.y = (np.arange(120) % 3).astype(np.uint8)
        self.images = (rng.integers(0, 60, (120, 12, 12)) + 60 * self.y[:, None, None]).astype(np.uint8)
        self.vectors = (rng.normal(size=(120, 5)) + self.y[:, None]).astype(np.float32)

    def new(self, *arguments, to="c.yaml"):
        """Written, checked, and two steps of it: config, and what training said."""
        self.tool("new", *arguments, "-o", to, "--force")
        text = (self.dir / to).read_text()
        self.tool("check", to)
        out = self.run_trainer(to, "train.steps=2", "device=cpu", "output=run", "--force", ranks=2)
        self.assertRegex(out, "done: step 2")
        for line in text.splitlines():
            self.assertLess(len(line), 200)
        return text

    def test_texts_and_tokens(self):
        (self.dir / "a.txt").write_text("to be or not to be " * 200)
        text = self.new("--data", "a.txt")
        self.assertIn("path: 'a.txt', format: text, stride: 4} # 3800 bytes", text)
        self.assertIn("embedding: {num: 256, ", text)
        ids = np.arange(5000, dtype="<u2") % 300
        (self.dir / "b.bin").write_bytes(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + ids.tobytes())
        text = self.new("--data", "b.bin")
        self.assertIn("format: tokens, stride: 8} # 5000 tokens", text)
        self.assertIn("embedding: {num: 300, ", text)  # none for ids that never come
        self.assertIn("linear: {out: 300, ", text)
        (self.dir / "c.bin").write_bytes(ids.tobytes())
        text = self.new("--data", "c.bin")
        self.assertIn("format: tokens, stride: 8} # 5000 tokens", text)
        self.assertNotIn("a guess", text)
        (self.dir / "e.bin").write_bytes(ids.astype("<u4").tobytes())  # does not say so
        text = self.new("--data", "e.bin")
        self.assertRegex(text, r"format: tokens, dtype: uint32, stride: 8} # 5000 tokens.*\n  # dtype is a guess, ")
        self.assertIn("e.bin: dtype: uint32 is a guess, by how its numbers look", self.tool("new", "--data", "e.bin", "-o", "e.yaml"))
        self.assertIn("embedding: {num: 300, ", text)
        (self.dir / "d.txt").write_text("short")
        self.assertIn("5 tokens, expected 32", self.tool("new", "--data", "d.txt", "-o", "d.yaml", status=1))

    def test_idx(self):
        for ending, pack in (("", bytes), (".gz", gzip.compress)):
            for name, array in (("train-images-idx3", self.images), ("train-labels-idx1", self.y),
                                ("t10k-images-idx3", self.images[:30]), ("t10k-labels-idx1", self.y[:30])):
                (self.dir / f"{name}-ubyte{ending}").write_bytes(pack(idx(array)))
            text = self.new("--data", f"train-images-idx3-ubyte{ending}")
            self.assertIn(f"labels: 'train-labels-idx1-ubyte{ending}'", text)
            self.assertIn(f"  eval: {{inputs: 't10k-images-idx3-ubyte{ending}'", text)
            self.assertIn("input: [1, 12, 12] ", text)
            self.assertIn("linear: {out: 3, name: head}", text)
            self.assertNotIn("split:", text)

    def test_npy(self):
        np.save(self.dir / "x_train.npy", self.vectors)
        np.save(self.dir / "y_train.npy", self.y)
        text = self.new("--data", "x_train.npy")
        self.assertIn("labels: 'y_train.npy'", text)
        self.assertIn("split: {fraction: 0.2, stratify: true}", text)
        np.save(self.dir / "values.npy", self.vectors[:, :2] / 7)
        text = self.new("--data", "x_train.npy", "--labels", "values.npy")
        self.assertIn("loss: mse", text)
        self.assertIn("linear: {out: 2, name: head}", text)
        self.assertIn("normalize_targets: auto", text)
        (self.dir / "below").mkdir()
        self.assertIn(f"inputs: '{self.dir}/x_train.npy'", self.new("--data", "x_train.npy", to="below/c.yaml"))

    def test_classes_from_below_0(self):
        """-1, 0 and 1: of a table classes, by their texts; of an array values, and what to do is said."""
        y = self.y.astype(np.int64) - 1
        np.save(self.dir / "x.npy", self.vectors)
        for dtype in (np.int8, np.int64, np.float32):
            np.save(self.dir / "y.npy", y.astype(dtype))
            self.assertIn("loss: mse", self.new("--data", "x.npy", "--labels", "y.npy"))
            said = self.tool("new", "--data", "x.npy", "--labels", "y.npy", "-o", "c.yaml", "--force")
            self.assertIn("x.npy: the labels are whole numbers from -1 to 1, and taken as values", said)
            self.assertIn("numpy.unique(y, return_inverse=True)[1]", said)
        np.save(self.dir / "y.npy", np.unique(y, return_inverse=True)[1])
        text = self.new("--data", "x.npy", "--labels", "y.npy")
        self.assertIn("linear: {out: 3, name: head}", text)
        self.assertNotIn("taken as values", text)
        np.save(self.dir / "y.npy", np.arange(120) - 60.0)
        self.assertNotIn("taken as values", self.new("--data", "x.npy", "--labels", "y.npy"))
        with open(self.dir / "t.csv", "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["a", "b", "label"])
            out.writerows([*x[:2], k] for x, k in zip(self.vectors, y))
        self.assertIn("linear: {out: 3, name: head}", self.new("--data", "t.csv"))

    def test_hdf5(self):
        with h5py.File(self.dir / "d.h5", "w") as f:
            f["x"], f["y"] = np.stack([self.images] * 3, 1), self.y
            f["xe"], f["ye"] = np.stack([self.images] * 3, 1)[:20], self.y[:20]
        text = self.new("--data", "d.h5")
        self.assertIn("train: {path: 'd.h5', inputs: 'x', labels: 'y'}", text)
        self.assertIn("eval: {path: 'd.h5', inputs: 'xe', labels: 'ye'}", text)
        self.assertIn("input: [3, 12, 12] ", text)
        with h5py.File(self.dir / "odd.h5", "w") as f:
            f["a"], f["b"] = self.vectors, self.y
        self.assertIn("odd.h5: which dataset holds the labels? (--labels NAME", said := self.tool("new", "--data", "odd.h5", status=1))
        self.assertIn("it has a, b\n", said)
        self.assertIn("inputs: 'a', labels: 'b'", self.new("--data", "odd.h5", "--labels", "b"))
        with h5py.File(self.dir / "soft.h5", "w") as f:
            f["values"], f["names"] = self.vectors, self.y
            f["x"], f["y"] = h5py.SoftLink("/values"), h5py.SoftLink("/names")
        self.assertIn("inputs: 'x', labels: 'y'", self.new("--data", "soft.h5"))

    def test_not_read(self):
        """Datasets that there are, and cannot be read: why."""
        kinds = {"text": ({"data": [b"cat", b"dog"] * 60}, "its element type is not read"),
                 "lzf": ({"data": self.y, "compression": "lzf"}, "filter 32000 is not read"),
                 "none": ({"data": self.y[:0]}, "dimension 0 is 0"),
                 "compound": ({"data": np.zeros(120, [("a", "i4"), ("b", "f4")])}, "its element type is not read")}
        for kind, (how, said) in kinds.items():
            for name, other, labels in (("y", "x", ()), ("y", "x", ("--labels", "y")), ("x", "y", ()), ("b", "a", ("--labels", "b"))):
                with self.subTest(kind=kind, name=name, labels=labels), h5py.File(self.dir / "s.h5", "w") as f:
                    f.create_dataset(name, **how)
                    f[other] = self.vectors
                    f.close()
                    self.assertRegex(self.tool("new", "--data", "s.h5", *labels, status=1), rf"s\.h5: dataset {name}: .*{said}")
        with h5py.File(self.dir / "s.h5", "w") as f:
            f["x"], f["y"] = [b"cat"] * 120, self.y
            f["z"] = self.y[:7]
            f["far"] = h5py.ExternalLink("odd.h5", "/a")
        said = self.tool("new", "--data", "s.h5", "--labels", "y", status=1)
        self.assertIn("no dataset has as many samples as the labels y, 120, to be their inputs: it has far (not to be read: is a link to "
                      "another file, which is not followed), x (not to be read: its element type is not read", said)
        self.assertRegex(self.tool("new", "--data", "s.h5", "--labels", "w", status=1), r'has no dataset "w" \(--labels\): it has far \(.*\), y, z\n')
        np.savez(self.dir / "s.npz", x=self.vectors, y=np.array(["cat", "dog"] * 60))
        self.assertRegex(self.tool("new", "--data", "s.npz", status=1), r"s\.npz: dataset y: .*U3")

    def test_npz(self):
        for save in (np.savez, np.savez_compressed):
            save(self.dir / "d.npz", x_train=self.images, y_train=self.y, x_test=self.images[:20], y_test=self.y[:20])
            text = self.new("--data", "d.npz")
            self.assertIn("train: {path: 'd.npz', inputs: 'x_train', labels: 'y_train'}", text)
            self.assertIn("eval: {path: 'd.npz', inputs: 'x_test', labels: 'y_test'}", text)
            self.assertIn("input: [1, 12, 12] ", text)
        np.savez(self.dir / "odd.npz", a=self.vectors, b=self.y, c=np.asfortranarray(self.vectors))
        said = self.tool("new", "--data", "odd.npz", status=1)
        self.assertIn("odd.npz: which dataset holds the labels? (--labels NAME", said)
        self.assertIn("it has a, b, c (not to be read: its array is in Fortran order, ", said)
        self.assertIn("inputs: 'a', labels: 'b'", self.new("--data", "odd.npz", "--labels", "b"))
        (self.dir / "cut.npz").write_bytes((self.dir / "odd.npz").read_bytes()[:-30])
        self.assertIn("cut.npz: no ZIP archive, or one that was cut short", self.tool("new", "--data", "cut.npz", status=1))

    def test_bombs(self):
        """What says that it unpacks to more than a GiB is not unpacked to be looked at."""
        many = 1 << 20  # samples of 2 KiB
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({many}, 2048), }}".ljust(117).encode() + b"\n"
        array, size = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header, 2048 * many
        np.save(self.dir / "y.npy", self.y)
        pack = zlib.compressobj(wbits=-15)
        head, block = (pack.compress(part) + pack.flush(zlib.Z_FULL_FLUSH) for part in (array, bytes(1 << 20)))
        with zipfile.ZipFile(self.dir / "b.npz", "w") as z:
            z.writestr("x.npy", head + block * (size >> 20) + pack.flush())
            z.write(self.dir / "y.npy", "y.npy")
            z.filelist[0].compress_type, z.filelist[0].file_size = zipfile.ZIP_DEFLATED, len(array) + size
        (self.dir / "b.idx.gz").write_bytes(gzip.compress(struct.pack(">HBBII", 0, 8, 2, many, 2048)))
        self.assertIn(f"b.npz: array x: unpacks to {size} bytes, more than", self.tool("new", "--data", "b.npz", status=1))
        said = self.tool("new", "--data", "b.idx.gz", "--labels", "y.npy", status=1)
        self.assertRegex(said, rf"b\.idx\.gz: .*{size} bytes")

    def test_cifar(self):
        pixels = np.random.default_rng(2).integers(0, 256, (40, 3072)).astype(np.uint8)
        label = (np.arange(40) % 10).astype(np.uint8)[:, None]
        for name in ("one", "two"):
            (self.dir / f"{name}.bin").write_bytes(np.hstack([label, pixels]).tobytes())
        text = self.new("--data", "one.bin,two.bin")
        self.assertIn("path: 'one.bin,two.bin', format: cifar10", text)
        self.assertIn("linear: {out: 10, name: head}", text)
        (self.dir / "hundred.bin").write_bytes(np.hstack([label, label, pixels]).tobytes())
        self.assertIn("linear: {out: 100, name: head}", self.new("--data", "hundred.bin"))
        label[7] = 200
        many = np.tile(np.hstack([label, pixels]), (6, 1))  # 240 samples: 200 could be a class by their number
        (self.dir / "bad.bin").write_bytes(many.tobytes())
        self.assertIn("sample 7 has the label 200, expected 0 to 9", self.tool("new", "--data", "bad.bin", "-o", "n.yaml", status=1))

    def photos(self, folder, names):
        """Files of these golden images, class by class."""
        with h5py.File(SOURCE / "tests/golden/images.h5") as f:
            for i, name in enumerate(names):
                path = self.dir / folder / ("ant", "bee")[i % 2] / f"{i}-{name}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(f[f"files/{name}/bytes"][()].tobytes())

    def test_folder(self):
        self.photos("photos", ["rgb.png", "j420.jpg", "palette.png", "exif6.jpg", "grey16.png", "progressive.jpg"] * 2)
        text = self.new("--data", "photos/")
        self.assertIn("train: {path: 'photos'}", text)
        self.assertIn("image: {resize: 19, center_crop: true}", text)
        self.assertIn("input: [3, 19, 19] ", text)
        self.assertIn("random_resized_crop: {scale: [0.5, 1]}", text)
        self.assertIn("split: {fraction: 0.2, stratify: true}", text)
        self.assertIn("linear: {out: 2, name: head}", text)
        self.photos("sets/train", ["grey.png"] * 8)  # of one size, without colours, and a set to evaluate on
        self.photos("sets/val", ["grey.png"] * 2)
        (self.dir / "below").mkdir()
        for data in ("sets", "sets/train"):
            text = self.new("--data", data)
            self.assertIn("train: {path: 'sets/train'}\n  eval: {path: 'sets/val'}", text)
            self.assertIn("input: [1, 23, 19] ", text)
        self.assertIn(f"eval: {{path: '{self.dir}/sets/val'}}", self.new("--data", "sets", to="below/c.yaml"))
        (self.dir / "photos/bee/broken.png").write_bytes(b"no image")
        for arguments, said in ((("photos",), "photos/bee/broken.png: begins with the bytes"), (("photos", "--labels", "y"), 'not "y"'),
                                (("photos/ant",), "has no folder in it")):
            self.assertIn(said, self.tool("new", "--data", *arguments, "-o", "n.yaml", status=1))

    def table(self, label, holes=False):
        with open(self.dir / "t.csv", "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["id", "size", "island, or none", "label"])
            for i, row in enumerate(self.vectors):
                out.writerow([f"bird-{i}", "" if holes and i == 7 else f"{row[0]:.4f}", ("a", "b b", "c'c")[i % 3], label(i)])
        return self.new("--data", "t.csv")

    def test_csv(self):
        """Numbers and few texts are inputs, others are named and left out; labels are texts, numbers of classes, or values."""
        text = self.table(lambda i: ("red", "blue")[i % 2])
        self.assertIn("inputs: ['size', 'island, or none'], labels: 'label'", text)
        self.assertIn("input: [4] ", text)
        self.assertIn("'island, or none': auto", text)
        self.assertIn("# not used: column 'id' (120 different texts)", text)
        self.assertIn("linear: {out: 2, name: head}", text)
        self.assertNotIn("missing", text)
        text = self.table(lambda i: i % 4, holes=True)
        self.assertIn("missing: drop", text)
        self.assertNotIn("'label': auto", text)
        self.assertIn("linear: {out: 4, name: head}", text)
        self.assertIn("'label': auto", self.table(lambda i: 10 + i % 2))
        text = self.table(lambda i: f"{self.vectors[i, 1]:.5f}")
        self.assertIn("loss: mse", text)
        self.assertIn("linear: {out: 1, name: head}", self.new("--data", "t.csv", "--labels", "size"))

    def test_csv_large(self):
        """Line by line: of a column no more texts are held than a category may have, of whatever file."""
        with open(self.dir / "t.csv", "w") as f:
            f.write("id,x,label\n")
            f.writelines(f"bird-{i},{i / 7:.6f},{i % 3}\n" for i in range(70000))
        text = self.new("--data", "t.csv")
        self.assertIn("# not used: column 'id' (more than 1024 different texts)", text)
        self.assertIn("linear: {out: 3, name: head}", text)
        said = self.tool("new", "--data", "t.csv", "--labels", "id", "-o", "n.yaml", "--force", status=1)
        self.assertIn('column "id" has more than 65536 different texts: too many for classes', said)
        self.assertIn("loss: mse", self.new("--data", "t.csv", "--labels", "x"))

    def test_csv_labels(self):
        """Texts that name samples are no classes, unless they are said to be; numbers are one however they are written."""
        rows = [f"{i},{('0', '0.0', '1')[i % 3]},name-{i}" for i in range(60)]
        (self.dir / "t.csv").write_text("\n".join(["a,b,who"] + rows) + "\n")
        said = self.tool("new", "--data", "t.csv", "-o", "n.yaml", status=1)
        self.assertIn('column "who" has 60 different texts, 60 of them once', said)
        self.assertIn("name the labels: --labels", said)
        self.tool("new", "--data", "t.csv", "--labels", "who", "-o", "n.yaml")
        self.assertIn("linear: {out: 60,", (self.dir / "n.yaml").read_text())
        text = self.new("--data", "t.csv", "--labels", "b")
        self.assertIn("linear: {out: 2, name: head}", text)
        self.assertNotIn("'b': auto", text)
        (self.dir / "t.csv").write_text((self.dir / "t.csv").read_text().replace(",0.0,", ",1.0,").replace(",0,", ",2,"))
        said = self.tool("new", "--data", "t.csv", "--labels", "b", "-o", "n.yaml", "--force", status=1)
        self.assertIn("2 different numbers in 3 ways of writing them", said)
        for way in ("Write each in one way", "--labels COLUMN", "data.train.targets: [b]"):
            self.assertIn(way, said)
        # the last of these ways, in a config that was made for other labels
        text = self.new("--data", "t.csv", "--labels", "a")
        self.assertIn("labels: 'a'", text)
        (self.dir / "n.yaml").write_text(text.replace("labels: 'a'", "targets: [b]"))
        self.tool("check", "n.yaml")

    def test_csv_numbers(self):
        """What training does not take for a number is none here: a text, of which there are few or many."""
        rows = [f"{i},{('0x1F', '0x2F')[i % 2]},{'1e39' if i == 7 else i},{i % 3}" for i in range(120)]
        (self.dir / "t.csv").write_text("\n".join(["a,hex,large,label"] + rows) + "\n")
        text = self.new("--data", "t.csv")
        self.assertIn("inputs: ['hex'], labels", text)
        self.assertIn("'hex': auto", text)
        self.assertIn("# not used: column 'large' (numbers but for 1 of 120: '1e39' in line 9)", text)
        self.assertIn("# not used: column 'a' (counts the lines)", text)

    def said(self, *lines):
        """What `trainer new` says of a table of these lines, on the terminal, and the config, which is trained on."""
        (self.dir / "t.csv").write_text("\n".join(lines) + "\n")
        out = self.tool("new", "--data", "t.csv", "-o", "n.yaml", "--force")
        text = self.new("--data", "t.csv")
        for line in out.splitlines():
            if line.startswith("t.csv: "):
                self.assertIn("# " + line.removeprefix("t.csv: "), text)
        return out, text

    def test_csv_without_a_header(self):
        """A first line of numbers is a sample: none is lost, columns go by number; numbers that count the columns are names."""
        rows = [f"{i / 7:.4f},{i % 5}.5,{i % 3}" for i in range(120)]
        out, text = self.said(*rows)
        self.assertIn("t.csv: no line of names: the first is numbers, and taken as a sample; columns are column1 to column3, labels column3", out)
        self.assertIn("inputs: ['column1', 'column2'], labels: 'column3'", text)
        self.assertIn("    header: false ", text)
        start = self.records(event="start")[-1]
        self.assertEqual(start["samples"], 96, start)
        out, text = self.said("0,1,2", *rows)
        self.assertNotIn("t.csv: ", out)
        self.assertIn("inputs: ['0', '1'], labels: '2'", text)
        out, _ = self.said("5.1,size,label", *rows)
        self.assertIn("numbers stand among the names of the columns: is the first line a sample? data.table.header: false says so", out)
        (self.dir / "p.csv").write_text("\n".join(r.rpartition(",")[0] for r in rows[:5]))
        self.said(*rows)
        self.tool("predict", "run/model.h5", "data.predict.path=p.csv", "-o", "out.csv")
        self.assertEqual(len((self.dir / "out.csv").read_text().splitlines()), 6)

    def test_csv_surprises(self):
        """What few lines do to a whole column is told by line and value; what counts the lines is left out."""
        for odd in ("inf", '"12,345"'):
            rows = [f"{i + 1},{odd if i == 7 else i / 7},{i % 4},{i % 3}" for i in range(120)]
            out, text = self.said("no,size,b,label", *rows)
            value = odd.strip('"')
            self.assertIn(f"t.csv: not used: column 'size' (numbers but for 1 of 120: '{value}' in line 9)", out)
            self.assertIn("t.csv: not used: column 'no' (counts the lines)", out)
            self.assertIn("inputs: ['b'], labels", text)
        out, text = self.said("size,b,label", *[f"{'nan' if i == 7 else i / 7},{'?' if i == 9 else i % 4},{i % 3}" for i in range(120)])
        self.assertIn("t.csv: values missing in column 'size', whose lines are left out: 1 of 120: 'nan' in line 9", out)
        self.assertIn("t.csv: column 'b': 5 texts (numbers but for 1 of 120: '?' in line 11)", out)
        self.assertIn("missing: drop", text)
        out, text = self.said("x,label", *[f"{i},{i % 3}" for i in range(120)])  # nothing else says anything
        self.assertIn("inputs: ['x'], labels", text)
        rows = [f"{i},{'inf' if i == 7 else i / 7}" for i in range(120)]
        (self.dir / "t.csv").write_text("\n".join(["x,y", *rows]))
        self.assertIn("which makes no classes; numbers but for 1 of 120: 'inf' in line 9: name",
                      self.tool("new", "--data", "t.csv", "-o", "n.yaml", "--force", status=1))
        self.assertIn('t.csv:9: column "y" holds texts ("inf")',
                      self.tool("new", "--data", "t.csv", "--labels", "x,y", "-o", "n.yaml", "--force", status=1))

    def test_tsv(self):
        """A table by its name, with tabs; or with commas, which the config then says."""
        for delimiter, said in (("\t", False), (",", True)):
            rows = [delimiter.join(("a", "b", "label")), *(delimiter.join((str(i / 7), str(i % 5), str(i % 3))) for i in range(120))]
            (self.dir / "t.tsv").write_text("\n".join(rows))
            text = self.new("--data", "t.tsv")
            self.assertIn("inputs: ['a', 'b'], labels: 'label'", text)
            self.assertEqual('delimiter: ","' in text, said)
            self.assertIn("samples    120", self.tool("evaluate", "run/model.h5", "data.eval.path=t.tsv"))

    def test_csv_delimiters(self):
        """Found by the lines; a decimal comma is told by line and column, where it would be a text."""
        for delimiter, written in ((";", '";"'), ("\t", r'"\t"')):
            rows = [delimiter.join([f"{i / 7:.4f}", ("a", "b,c")[i % 2], str(i % 3)]) for i in range(120)]
            (self.dir / "t.csv").write_text("\n".join([delimiter.join(["a", "what", "label"])] + rows) + "\n")
            text = self.new("--data", "t.csv")
            self.assertIn(f"    delimiter: {written} ", text)
            self.assertIn("inputs: ['a', 'what'], labels: 'label'", text)
        self.assertNotIn("delimiter", self.table(lambda i: i % 3))
        rows = [f"{i};{'1.5' if i < 3 else f'{i},5'};{i % 3}" for i in range(120)]
        (self.dir / "t.csv").write_text("\n".join(["a;b;label"] + rows) + "\n")
        said = self.tool("new", "--data", "t.csv", "-o", "n.yaml", "--force", status=1)
        self.assertIn('t.csv:5: column "b" has numbers with a decimal comma (1,5), expected a point (1.5)', said)

    def test_evaluation_set(self):
        """Inputs and labels to evaluate on are of one name and as many; else samples are held out."""
        def save(**arrays):
            for name, array in arrays.items():
                np.save(self.dir / f"{name}.npy", array)
        x, y = self.vectors, self.y
        save(x=x, y=y, x_test=x[:20], y_val=y[:30])
        self.assertIn("split:", self.new("--data", "x.npy"))
        save(x_val=x[:30])
        self.assertIn("eval: {inputs: 'x_val.npy', labels: 'y_val.npy'}", self.new("--data", "x.npy"))
        save(x_val=x[:29])
        self.assertIn("split:", self.new("--data", "x.npy"))
        with h5py.File(self.dir / "d.h5", "w") as f:
            f["x"], f["y"], f["x_test"], f["y_eval"], f["x_eval"], f["y_test"] = x, y, x[:20], y[:10], x[:10], y[:19]
        self.assertIn("inputs: 'x_eval', labels: 'y_eval'}", self.new("--data", "d.h5"))

    def test_own_place(self):
        """Commas are in names, but for CIFAR's lists; the data is not written over."""
        (self.dir / "below").mkdir()
        (self.dir / "a,b").mkdir()
        np.save(self.dir / "a,b/x.npy", self.vectors)
        np.save(self.dir / "a,b/y.npy", self.y)
        self.assertIn(f"inputs: '{self.dir}/a,b/x.npy'", self.new("--data", "a,b/x.npy", to="below/c.yaml"))
        self.assertIn("{inputs: 'x.npy', labels: 'y.npy'}", self.new("--data", "a,b/x.npy", to="a,b/c.yaml"))  # it may be moved
        self.assertIn("{inputs: 'a,b/x.npy', labels: 'a,b/y.npy'}", self.new("--data", "a,b/x.npy", to="below/../c.yaml"))
        (self.dir / "link.yaml").symlink_to("a,b/y.npy")
        pixels = np.zeros((40, 3073), np.uint8).tobytes()
        for name in ("one.bin", "two.bin"):
            (self.dir / name).write_bytes(pixels)
        for data, to in (("a,b/x.npy", "a,b/x.npy"), ("a,b/x.npy", "below/../a,b/y.npy"), ("a,b/x.npy", "link.yaml"), ("one.bin,two.bin", "two.bin")):
            before = (self.dir / to).read_bytes()
            self.assertIn("is the data file", self.tool("new", "--data", data, "-o", to, "--force", status=2))
            self.assertEqual((self.dir / to).read_bytes(), before)
        self.assertIn("CIFAR-10 files have none to name", self.tool("new", "--data", "one.bin", "--labels", "nonsense", "-o", "n.yaml", status=1))
        (self.dir / "hundred.bin").write_bytes(np.zeros((40, 3074), np.uint8).tobytes())
        self.assertIn("expected fine or coarse", self.tool("new", "--data", "hundred.bin", "--labels", "nonsense", "-o", "n.yaml", status=1))
        text = self.new("--data", "hundred.bin", "--labels", "coarse")
        self.assertIn("labels: 'coarse'", text)
        self.assertIn("linear: {out: 20, name: head}", text)

    def test_odd_names(self):
        """What YAML reads otherwise stays a name: of columns, in comments too, and of the file."""
        breaks = "\n", "\u2028", "\x85"
        names = [f"i{b}run: {{threads: {k + 1}}}" for k, b in enumerate(breaks)]
        with open(self.dir / "null.csv", "w", newline="") as f:
            out = csv.writer(f)
            out.writerow([*names, "a\nb'\"\\", "label"])
            for i in range(120):
                out.writerow([*[f"n{i}"] * 3, i % 7, i % 2])
        text = self.new("--data", "null.csv")
        self.assertIn("name: 'null'\n", text)
        self.assertIn(r"""inputs: ["a\x0ab'\"\\"], labels""", text)
        self.assertIn("# not used: column \"i\\Lrun: {threads: 2}\" (120 different", text)
        self.assertFalse([line for line in text.splitlines() if line.startswith("run")])
        (self.dir / "[x{y~]_z.csv").write_bytes((self.dir / "null.csv").read_bytes())
        self.assertIn("name: 'x-y--_z'\n", self.new("--data", "[x{y~]_z.csv"))

    def test_column_without_a_name(self):
        """Its texts would be categories of a column that no key can name; its numbers are an input."""
        (self.dir / "t.csv").write_text("\n".join([",a,label"] + [f"{'pq'[i % 2]},{i},{i % 3}" for i in range(120)]) + "\n")
        self.assertIn("# not used: column '' (2 different texts, and no name)", self.new("--data", "t.csv"))

    def test_texts_in_another_encoding(self):
        """Categories stand in the run's config, which is UTF-8: told by line when they are looked for."""
        rows = [f"{('größe', 'maß')[i % 2]},{i},{i % 3}" for i in range(120)]
        (self.dir / "t.csv").write_bytes("\n".join(["what,a,label"] + rows).encode("latin-1"))
        self.tool("new", "--data", "t.csv")
        said = self.tool("check", "--data", "config.yaml", status=1)
        self.assertRegex(said, r't.csv:2: column "what": byte 0xf6 is not UTF-8 text, as categories must be')

    def test_without_data(self):
        text = self.new()
        self.assertIn("format: synthetic", text)
        self.assertGreater(len(re.findall(r"(?m)#", text)), 15)

    def test_learns(self):
        """Not only runs: with what it chose, classes that can be told apart are."""
        np.save(self.dir / "x.npy", self.vectors + 3 * np.eye(3, 5)[self.y].astype(np.float32))
        np.save(self.dir / "y.npy", self.y)
        self.tool("new", "--data", "x.npy")
        self.run_trainer("config.yaml", "output=run", ranks=0)
        self.assertGreater(self.records(event="eval")[-1]["accuracy"], 0.85)

    def test_refused(self):
        np.save(self.dir / "x.npy", self.vectors)
        np.save(self.dir / "last.npy", np.zeros((9, 20, 20, 3), np.uint8))
        np.save(self.dir / "few.npy", self.y[:9])
        (self.dir / "latin.csv").write_bytes("größe,label\n1,a\n2,b\n".encode("latin-1"))
        (self.dir / "nameless.csv").write_text("x,\n1,a\n2,b\n")
        (self.dir / "config.yaml").write_text("mine\n")
        for arguments, status, said in (((), 2, "config.yaml is there"), (("--labels", "y", "-o", "n.yaml"), 2, "give that"),
                                        (("--data", "x.npy", "-o", "n.yaml"), 1, "no file of its labels was found"),
                                        (("--data", "x.npy", "--labels", "few.npy", "-o", "n.yaml"), 1, "9 samples, the inputs have 120"),
                                        (("--data", "last.npy", "--labels", "few.npy", "-o", "n.yaml"), 1, "channels first"),
                                        (("--data", "gone.h5", "-o", "n.yaml"), 1, "gone.h5"),
                                        (("--data", "x.dat", "-o", "n.yaml"), 1, "does not tell a format"),
                                        (("--data", "latin.csv", "-o", "n.yaml"), 1, "byte 0xf6 of its name is not UTF-8"),
                                        (("--data", "nameless.csv", "-o", "n.yaml"), 1, "column 2, which would be the labels, has no name"),
                                        (("--dta", "x.npy"), 2, "--dta")):
            self.assertIn(said, self.tool("new", *arguments, status=status))
        self.assertEqual((self.dir / "config.yaml").read_text(), "mine\n")
        self.assertFalse((self.dir / "n.yaml").exists())


if __name__ == "__main__":
    main()
