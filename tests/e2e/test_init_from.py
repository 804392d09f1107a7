"""model.init_from: fine-tuning from run files, safetensors, NPZ and HDF5; what does not fit; run files changed by hand."""
import hashlib
import json
import re
import shutil
import struct
import subprocess

import h5py
import numpy as np

from formats import crc32c
from harness import Case, CNN, RANKS, main

# Another head on the same trunk, which stands still.
TUNED = (CNN.replace("name: head}", "name: classes}")
         .replace("- conv2d: {{out: 8, kernel: 3, padding: 1, bias: false}}", "- conv2d: {{out: 8, kernel: 3, "
                  "padding: 1, bias: false, freeze: true}}")
         .replace("- batchnorm\n", "- batchnorm: {{freeze: true}}\n"))


def write_safetensors(path, arrays):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, v in arrays.items():
        header[name] = {"dtype": {"f": "F32", "i": "I64"}[v.dtype.kind], "shape": list(v.shape),
                        "data_offsets": [at, at + v.nbytes]}
        at += v.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in arrays.values()))


def read_safetensors(path):
    text = path.read_bytes()
    size = 8 + struct.unpack("<Q", text[:8])[0]
    header = json.loads(text[8:size])
    return {name: np.frombuffer(text[size + of["data_offsets"][0]:size + of["data_offsets"][1]], "<f4").reshape(of["shape"])
            for name, of in header.items() if name != "__metadata__"}


class InitFrom(Case):
    def named(self, path):
        """A run file's values, named as PyTorch names them."""
        return {n.split("/", 2)[2].replace("/", "."): v for n, v in self.arrays(path).items()
                if n.startswith(("model/params", "model/state"))}

    def trained(self, steps=3):
        self.run_trainer(self.config("first", steps=steps, every=3), ranks=1)
        return self.dir / "first/model.h5"

    def attributes(self, path):
        with h5py.File(path, "r") as f:
            return dict(f.attrs)

    def test_fine_tuning(self):
        """A new head on a frozen trunk, whose rows stay bitwise, at 1 and 3 ranks; resumed without the file."""
        first = self.trained()
        before = self.named(first)
        config = self.config("tuned", text=TUNED, steps=4, every=2)
        said = f"model.init_from={{file: {first}, strict: false}}"
        error = self.run_trainer(config, f"model.init_from={first}", ranks=2, status=2)
        self.assertIn(f": model.init_from: {first} does not fit the model: 10 of 12 arrays taken; 2 missing: classes.weight, classes.bias; "
                      "2 not the model's: head.bias, head.weight", error)
        self.assertFalse((self.dir / "tuned").exists())
        for ranks in (1, 3):
            out = self.run_trainer(config, said, f"output={self.dir}/tuned{ranks}", ranks=ranks)
            self.assertIn("2 missing: classes.weight, classes.bias; 2 not the model's: head.bias, head.weight", out)
            after = self.named(self.dir / f"tuned{ranks}/model.h5")
            for name, value in before.items():
                if not name.startswith("head.") and "running" not in name:
                    np.testing.assert_array_equal(after[name], value, err_msg=name)
            made = self.attributes(self.dir / f"tuned{ranks}/model.h5")
            self.assertEqual(made["init_sha256"].decode(), hashlib.sha256(first.read_bytes()).hexdigest())
            self.assertIn(b"10 of 12 arrays taken", made["init_from"])
        np.testing.assert_allclose(self.losses("tuned3"), self.losses("tuned1"), **RANKS)
        shown = self.tool("inspect", self.dir / "tuned1/model.h5")
        self.assertIn(f"begun from {first}: 10 of 12 arrays taken", shown)
        whole = self.losses("tuned1")
        self.run_trainer(config, said, f"output={self.dir}/tuned4", "train.steps=2", ranks=1)
        first.rename(self.dir / "away.h5")
        self.run_trainer(config, said, f"output={self.dir}/tuned4", "--resume", ranks=1)
        self.assertEqual(len(self.losses("tuned4")), 4)
        self.assertEqual(self.attributes(self.dir / "tuned4/model.h5")["init_sha256"], made["init_sha256"])
        self.assertIn("away", str(list(self.dir.glob("*.h5"))))
        error = self.run_trainer(config, said, f"output={self.dir}/tuned5", ranks=2, status=1)
        self.assertIn("first/model.h5", error)
        self.assertEqual(len(whole), 4)

    def found(self, made):
        """What the config of a run file has in the place of what was left to the data."""
        return re.findall(r"(?:mean|std|class_weights): (.*)", self.tool("check", self.dir / made))

    def test_on_other_data(self):
        """What the command line of a stage that trains leaves to the data is found there, as the training of a config finds it."""
        left = ("data.normalize=auto", "model.loss={cross_entropy: {class_weights: balanced}}")
        config = self.config(steps=3)
        self.run_trainer(config, ranks=1)
        self.run_trainer(config, *left, f"output={self.dir}/found", ranks=1)
        self.run_trainer("finetune", "run/model.h5", *left, "train={steps: 2}", ranks=2)
        self.assertEqual(len(self.found("run/model-finetune.h5")), 3)
        self.assertEqual(self.found("run/model-finetune.h5"), self.found("found/model.h5"))
        self.assertIn("here they must be given", self.run_trainer("fold", "run/model.h5", *left, ranks=1, status=2))

    def test_refused_by_hand(self):
        """A stage's training that is refused leaves no folder, and a stopped one there as it was, which then goes on."""
        config = self.config(steps=3)
        self.run_trainer(config, ranks=1)
        self.run_trainer("quantize", "run/model.h5", "kind=float16", ranks=1)
        before = self.contents()
        self.assertIn("cannot be trained", self.run_trainer("finetune", "run/model-quantize.h5", ranks=2, status=2))
        self.assertIn("away.h5", self.run_trainer("finetune", "run/model.h5", "data.train.path=away.h5", ranks=2, status=1))
        self.assertEqual(self.contents(), before)
        long = ("finetune", "run/model.h5", "train={steps: 100000000}")
        self.stop("run/model-finetune/train", 5, *long, ranks=2)
        before = self.contents()
        self.assertTrue(list(self.dir.glob("run/model-finetune/train/checkpoints/step-*.h5")))
        self.assertIn("away.h5", self.run_trainer(*long, "data.train.path=away.h5", "data.shuffle=false", ranks=2, status=1))
        self.assertEqual(self.contents(), before)
        self.stop("run/model-finetune/train", 5, *long, ranks=2)
        steps = [r["step"] for r in self.records("run/model-finetune/train")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_frozen_by_the_training(self):
        """train.freeze is what `freeze: true` in the layers is, bit for bit, and is not in the file; with
        freeze_statistics running statistics stay, too."""
        first = self.trained()
        before = self.named(first)
        said = f"model.init_from={{file: {first}, strict: false}}"
        layers = self.config("layers", text=TUNED, steps=4, every=2)
        config = self.config("plain", text=CNN.replace("name: head}", "name: classes}"), steps=4, every=2)
        freeze = 'train.freeze=["conv*", "batchnorm*"]'
        for ranks in (1, 3):
            self.run_trainer(layers, said, f"output={self.dir}/layers{ranks}", ranks=ranks)
            self.run_trainer(config, said, freeze, f"output={self.dir}/plain{ranks}", ranks=ranks)
            self.assertEqual(self.losses(f"plain{ranks}"), self.losses(f"layers{ranks}"))
        held = [said, freeze, "train.freeze_statistics=true", f"output={self.dir}/held"]
        self.run_trainer(config, *held, "train.steps=2", ranks=3)
        self.run_trainer(config, *held, "--resume", ranks=3)
        self.assertEqual(len(self.losses("held")), 4)
        after = self.named(self.dir / "held/model.h5")
        for name, value in before.items():
            if not name.startswith("head."):
                np.testing.assert_array_equal(after[name], value, err_msg=name)
        error = self.run_trainer(config, said, "train.freeze=con2d*", ranks=2, status=2)
        self.assertIn('train.freeze: there is no parameter "con2d*"', error)

    def test_fewer_bits(self):
        """Frozen weights that the file keeps in fewer bits are rounded when the training begins, whose file could not hold them;
        scales of a file that has some stay."""
        first = self.trained()
        values = self.named(first)
        before = values["head.weight"]
        write_safetensors(self.dir / "first.safetensors", values)
        for stored, apart in (("int8", np.abs(before).max(1, keepdims=True) / 254), ("int8_tensor", np.abs(before).max() / 254),
                              ("float16", 1e-3), ("bfloat16", 4e-3 * np.abs(before))):
            text = CNN.replace("name: head}", f"name: head, stored: {stored}, freeze: true}}")
            config = self.config(stored, text=text, steps=2, every=5)
            self.run_trainer(config, f"output={self.dir}/scratch-{stored}", ranks=1)  # initial values, too
            for ranks in (1, 3):
                self.run_trainer(config, f"model.init_from={first}", "--force", ranks=ranks)
                after = self.arrays(self.dir / stored / "model.h5")
                scale = after.get("model/state/head/weight_scale", np.ones(1, np.float32))
                held = after["model/params/head/weight"].astype(np.float32) * scale[:, None]
                self.assertTrue((np.abs(held - before) <= 1.001 * apart).all(), stored)
            made = self.dir / f"{stored}.h5"
            self.tool("import", "first.safetensors", made, "--config", config)
            self.assertEqual(self.arrays(made)["model/params/head/weight"].tobytes(), after["model/params/head/weight"].tobytes())
        # none of the largest weights is at the end of the range: scales as they are, not as they would be made
        narrow = self.dir / "narrow.h5"
        with h5py.File(narrow, "w") as f:
            for name, v in values.items():
                f[name] = v
            q = np.clip(np.rint(before * 50), -100, 100).astype(np.float32)
            f["head.weight"][...] = q * np.float32(0.02)
            f["head.weight_scale"] = np.full(4, 0.02, np.float32)
        self.run_trainer(self.dir / "int8.yaml", f"model.init_from={narrow}", "--force")
        after = self.arrays(self.dir / "int8/model.h5")
        np.testing.assert_array_equal(after["model/params/head/weight"], q)

    def test_files(self):
        """The same values in every kind of file, and under names that a map changes, are the same start."""
        first = self.trained()
        values = self.named(first)
        files = {k: self.dir / f"values.{k}" for k in ("safetensors", "npz", "hdf5")}
        named = {f"module.{n}": v for n, v in values.items()}
        named["module.batchnorm1.num_batches_tracked"] = np.array(3)
        named["module.ema.weight"] = np.zeros(3, np.float32)
        write_safetensors(files["safetensors"], named)
        np.savez_compressed(files["npz"], **named)
        with h5py.File(files["hdf5"], "w") as f:
            for n, v in named.items():
                f.create_dataset(n, data=v, **({"compression": "gzip"} if v.ndim == 4 else {}))
        config = self.config("second", steps=2, every=5)
        self.run_trainer(config, f"model.init_from=first/model.h5", f"output={self.dir}/from", ranks=1)
        wanted = self.losses("from")
        for kind, path in files.items():
            how = f'{{file: {path.name}, map: {{"module.ema.*": "", "module.*": "*"}}}}'
            self.run_trainer(config, f"model.init_from={how}", f"output={self.dir}/{kind}", ranks=1)
            self.assertEqual(self.losses(kind), wanted, kind)
            if kind != "hdf5":
                back = self.dir / f"{kind}.h5"
                self.tool("import", path, back, "--config", config, f"model.init_from={how}")
                self.assert_same_model(first, back)
        # what the config leaves to its data is found there, or asked for before any array is taken
        given = ("--config", config, f"model.init_from={how}", "data.normalize=auto", "model.loss={cross_entropy: {class_weights: balanced}}")
        said = self.tool("import", files["npz"], self.dir / "open.h5", *given, "data.train.path=away.h5", status=1)
        self.assertRegex(said, "data.normalize: auto: training finds the values.*; its data: .*away.h5")
        self.assertNotIn("arrays", said)
        self.assertFalse((self.dir / "open.h5").exists())
        self.tool("import", files["npz"], self.dir / "open.h5", *given)
        self.run_trainer(config, *given[2:], "output=found", ranks=1)
        self.assertEqual(len(self.found("open.h5")), 3)
        self.assertEqual(self.found("open.h5"), self.found("found/model.h5"))

    def test_recurrent(self):
        """The state_dict of a PyTorch module with an nn.LSTM and a Linear, by one map."""
        begin, end = CNN.index("    - conv2d"), CNN.index("    - linear")
        text = CNN[:begin] + ("    - reshape: {{dims: [12, 6]}}\n    - lstm: {{name: lstm, hidden: 7, layers: 2, "
                              "bidirectional: true, dropout: 0.2, output: last}}\n") + CNN[end:]
        config = self.config("first", text=text, steps=3, every=3)
        self.run_trainer(config, ranks=1)
        ours, pytorch = self.named(self.dir / "first/model.h5"), {}
        for layer, features in ((0, 6), (1, 14)):
            for way in ("", "_reverse"):
                for part, shape in (("weight_ih", (28, features)), ("weight_hh", (28, 7)), ("bias_ih", (28,)), ("bias_hh", (28,))):
                    value = pytorch[f"lstm.{part}_l{layer}{way}"] = ours.pop(f"lstm.l{layer}{way}.{part}")
                    self.assertEqual(value.shape, shape)
        pytorch.update((n, ours.pop(n)) for n in ("head.weight", "head.bias"))
        self.assertEqual(ours, {})
        write_safetensors(self.dir / "lstm.safetensors", pytorch)
        names = {f"lstm.*_l{n}": f"lstm.l{n}.*" for n in ("0", "0_reverse", "1", "1_reverse")}
        how = json.dumps({"file": "lstm.safetensors", "map": names})
        for name, start in (("from", "first/model.h5"), ("mapped", how)):
            self.run_trainer(config, f"model.init_from={start}", f"output={self.dir}/{name}", ranks=2)
        self.assertEqual(self.losses("mapped"), self.losses("from"))

    def test_wrong(self):
        config = self.config("wrong", steps=2)
        (self.dir / "garbage.bin").write_bytes(b"0123456789")
        np.savez(self.dir / "some.npz", **{"head.weight": np.zeros((4, 287), np.float32)})
        for how, status, said in (
                ("none.h5", 1, "none.h5"), ("garbage.bin", 1, "expected a run file, safetensors, NPZ or HDF5"),
                ("some.npz", 2, "1 of another shape or type: head.weight is (4, 287), the model's (4, 288)"),
                ("{file: some.npz, strict: false}", 2, "nothing of it fits the model"),
                ("{file: some.npz, map: [x]}", 2, "expected a map of patterns"),
                ('{file: some.npz, map: {"x": "*"}}', 2, "expected no more * on the right"),
                ("{strict: false}", 2, 'required key "file"'), ("[a]", 2, "expected a file, or a map")):
            self.assertIn(said, self.run_trainer(config, f"model.init_from={how}", ranks=2, status=status))
        self.assertFalse((self.dir / "wrong").exists())

    def test_wrong_within_the_file(self):
        """What is wrong in the config that a run file carries has its place there, behind the line that names the file."""
        first = self.trained()
        with h5py.File(first, "r+") as f:
            was, part = f.attrs["config"], lambda text: crc32c(b"config\0\2" + text)  # 2: a text
            self.assertEqual(was.count(b"\n  clip_norm:"), 1)
            now = was.replace(b"\n  clip_norm:", b"\n  klip_norm:")
            f.attrs.modify("config", now)
            f.attrs.modify("crc32c", np.uint32((int(f.attrs["crc32c"]) + part(now) - part(was)) % 2**32))
        line = 1 + now[:now.index(b"klip_norm")].count(b"\n")
        config = self.config("second", text=CNN.replace("  loss: cross_entropy\n", "  loss: cross_entropy\n  init_from: first/model.h5\n"), steps=2)
        at = 1 + config.read_text().splitlines().index("  init_from: first/model.h5")
        said = self.run_trainer(config, ranks=2, status=2)
        self.assertEqual(said.count(f'{config}:{at}:14: model.init_from: {first}:{line}:3: train: unknown key "klip_norm"'), 1, said)
        config.write_text(config.read_text().replace("first/model.h5", "cut.npz"))
        (self.dir / "cut.npz").write_bytes(b"0123456789")
        self.assertIn(f"error: {config}:{at}:14: model.init_from: {self.dir}/cut.npz: ", self.run_trainer(config, ranks=0, status=1))
        # of a file that no key names there is no key to tell
        self.assertIn("error: cut.npz: ", self.tool("import", "cut.npz", "x.h5", "--config", config, status=1))

    def test_resumed_with_another(self):
        """A run cannot begin from other values in the middle; the same ones may lie elsewhere."""
        config = self.config("first", steps=2, every=1)
        self.run_trainer(config, ranks=1)
        files = [self.dir / "first/model.h5", self.dir / "first/checkpoints/step-00000001.h5"]
        self.run_trainer(self.config("second", steps=2), f"model.init_from={files[0]}", ranks=1)
        before = self.contents("second")
        said = self.run_trainer("second.yaml", "--resume", "train.steps=4", f"model.init_from={files[1]}", ranks=2, status=2)
        self.assertIn("refused: model.init_from", said)
        self.assertIn("the run began from other values", said)
        self.assertEqual(self.contents("second"), before)
        moved = shutil.copy(files[0], self.dir / "moved.h5")
        said = self.run_trainer("second.yaml", "--resume", "train.steps=4", f"model.init_from={moved}", ranks=2)
        self.assertIn("harmless: model.init_from", said)
        self.assertEqual(len(self.losses("second")), 4)

    def test_changed_by_hand(self):
        """A value changed by h5py: an error that says so, unless it is to be taken as it is."""
        config = self.config("first", steps=2, every=1)
        self.run_trainer(config, ranks=1)
        files = [self.dir / "first/model.h5", self.dir / "first/checkpoints/step-00000002.h5"]
        for file in files:
            with h5py.File(file, "r+") as f:
                f["model/params/head/bias"][1] = 0.75
        changed = "/model/params/head/bias: damaged: checksum"
        accept = "--accept-unverified"
        self.assertIn("--accept-unverified takes them as they are", self.run_trainer("export", files[0], ranks=1, status=1))
        self.assertIn("taken as they are", self.run_trainer("evaluate", files[0], accept, ranks=2))
        self.assertIn("DAMAGED: 1", self.tool_output("inspect", files[0], status=1))
        self.assertNotIn("DAMAGED", self.tool_output("inspect", files[0], accept))
        said = self.run_trainer(config, "--resume", accept, "train.steps=3", ranks=1)
        self.assertIn("resuming from", said)
        self.assertIn("step-00000002.h5", said)
        self.assertIn("/model/params/head/bias: its values were changed", said)
        self.assertFalse(list(self.dir.glob("first/checkpoints/*.damaged")))
        tuned = self.config("tuned", steps=1)
        self.assertIn(changed, self.run_trainer(tuned, f"model.init_from={files[1]}", ranks=1, status=1))

    def tool_output(self, *arguments, status=0):
        done = subprocess.run([str(self.program), *map(str, arguments)], cwd=self.dir, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout


if __name__ == "__main__":
    main()
