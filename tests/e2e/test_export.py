"""Exported models, and values that other programs read and write."""
import json
import os
import re
import runpy
import subprocess
import zipfile

import h5py
import numpy as np

from harness import CNN, ENV, main
from stages import StageCase
from test_init_from import read_safetensors, write_safetensors


# FILE.onnx DATA.h5 OUT.npy MEAN STD: what ONNX Runtime answers to (xe - MEAN) / STD
PEER = """
import sys, h5py, numpy, onnxruntime
file, data, out, mean, std = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
x = (h5py.File(data)["xe"][()] - numpy.float32(mean)) / numpy.float32(std)
numpy.save(out, session.run(None, {session.get_inputs()[0].name: x})[0])
"""


class Export(StageCase):
    def peer(self, file, mean=0.0, std=1.0):
        """What a stranger makes of a file and the data as it lies in its own file; None: there is no stranger."""
        python = os.environ.get("TRIREME_PEERS")
        if not python or subprocess.run([python, "-c", "import onnxruntime, h5py"], capture_output=True).returncode != 0:
            return None
        out = self.dir / "peer.npy"
        subprocess.run([python, "-c", PEER, file, self.dir / "data.h5", out, str(mean), str(std)], check=True, env=ENV)
        return np.load(out)

    def test_inputs(self):
        """A graph takes values as data files have them, padded convolutions, int8 and a folded model alike; or normalized ones where it
        is asked to. Log and file say which."""
        config, mean, std = self.config(every=50), 0.5, 2.5
        said = self.run_trainer(config, f"data.normalize={{mean: {mean}, std: {std}}}",
                                "pipeline=[train, export, {export: {normalize: false}}, {fold: {normalize: true}}, export, {quantize: {layers: all}}, export, "
                                "{export: {format: npz}}]")
        raw, normal = ("as the data files have them; data.normalize is in the graph",
                       f"normalized, (x - mean) / std: input with mean [{mean}] std [{std}]")
        self.assertEqual(re.findall("export: the graph takes inputs (.*)", said), [raw, normal, raw, raw])
        self.assertRegex(said, r'fold: data.normalize stays in front of the model: "conv2d1" pads with zeros')
        models = {"01": "model.h5", "02": "model.h5", "04": "stages/03-fold.h5", "06": "stages/05-quantize.h5"}
        for number, model in models.items():
            stage, takes = f"{number}-export", normal if number == "02" else raw
            found = self.attributes(self.stage(f"{stage}.h5"), stage)
            self.assertEqual(found["takes"], takes)
            onnx, back = self.stage(f"{stage}.onnx"), self.dir / "back.h5"
            self.assertIn(b"trireme.inputs\x12" + bytes([len(takes)]) + takes.encode(), onnx.read_bytes())
            self.tool("import", onnx, back, "--force")
            wanted = self.answers(self.dir / "run" / model)
            bound = (0.05 if number == "06" else 1e-5) * np.abs(wanted).max()
            np.testing.assert_allclose(self.answers(back), wanted, rtol=0, atol=bound)
            alone = self.answers(back, "data.normalize={}")
            self.assertGreater(np.abs(alone - wanted).max(), bound)
            peer = self.peer(onnx, *(mean, std) if number == "02" else ())
            if peer is not None:
                np.testing.assert_allclose(peer, wanted, rtol=0, atol=bound)

    def test_inputs_folded(self):
        """Where fold took data.normalize into the first layer, and where there is none, the graph takes what data files have."""
        said = self.run_trainer(self.config(every=50), "data.normalize={mean: 0, std: 2.5}", "pipeline=[train, {fold: {normalize: true}}, export]")
        self.assertEqual(re.findall("export: the graph takes inputs (.*)", said), ["as the data files have them"])
        self.assertNotIn("stays in front", said)
        peer = self.peer(self.stage("02-export.onnx"))
        if peer is not None:
            wanted = self.answers(self.dir / "run/model.h5")
            np.testing.assert_allclose(peer, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())

    def test_targets(self):
        """The graph gives targets in their own units, as predict does, or says that it does not; read back, it is the same model."""
        rng = np.random.default_rng(2)
        x = rng.normal(3, 2, (60, 5)).astype(np.float32)
        with h5py.File(self.dir / "data.h5", "w") as f:
            f["xe"], f["y"] = x, (x @ rng.normal(size=(5, 3)) * [1, 10, 1000] + [0, 500, 1e5]).astype(np.float32)
        config = self.dir / "run.yaml"
        config.write_text(f"name: values\noutput: {self.dir}/run\ndevice: cpu\ndata: {{train: {{path: data.h5, inputs: xe, labels: y}}, "
                          "normalize: {mean: 3, std: 2}, normalize_targets: auto}\nmodel: {input: [5], loss: mse, layers: "
                          "[linear: {out: 8}, relu: {}, linear: {out: 3, name: head}]}\ntrain: {steps: 20, batch: 16}\n")
        said = self.run_trainer(config, "pipeline=[train, export, {export: {normalize: false}}]")
        gives = "targets as the data files have them; data.normalize_targets is in the graph"
        normal = "normalized targets, y * std + mean is what the data files have: mean ["
        self.assertEqual([line[:len(normal)] for line in re.findall("export: the graph gives (.*)", said)],
                         [gives[:len(normal)], normal])
        wanted = self.predicted("run/model.h5")
        self.assertGreater(np.abs(wanted).max(), 5e4)
        for stage, starts in (("01-export", gives), ("02-export", normal)):
            found = self.attributes(self.stage(f"{stage}.h5"), stage)
            self.assertTrue(found["gives"].startswith(starts), found)
            self.assertIn(b"trireme.outputs\x12", self.stage(f"{stage}.onnx").read_bytes())
            self.tool("import", self.stage(f"{stage}.onnx"), self.dir / "back.h5", "--force")
            self.assert_same_model(self.dir / "run/model.h5", self.dir / "back.h5")
            np.testing.assert_allclose(self.predicted("back.h5"), wanted, rtol=1e-6)
        # what a model is trained towards is the file's config's, or the user's
        for key, loss in (((), "loss: mse"), (("model.loss=l1",), "loss: l1")):
            self.tool("import", self.stage("01-export.onnx"), self.dir / "back.h5", "--force", *key)
            self.assertIn(loss, self.tool("check", self.dir / "back.h5"))
        peer = self.peer(self.stage("01-export.onnx"))
        if peer is not None:
            np.testing.assert_allclose(peer, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())

    def predicted(self, file):
        out = self.dir / "predicted.npy"
        self.run_trainer("predict", self.dir / file, f"data.train.path={self.dir}/data.h5", "--data", "train", "-o", out, "--force", ranks=1)
        return np.load(out)

    def test_without_eval(self):
        """Without data.eval the file is compared with the model on data.train; where that is gone, too, it is said that it was not."""
        config = self.config(every=50)
        config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("  eval:")))
        self.run_trainer(config, "pipeline=[train, fold, export, {quantize: {samples: 32}}, export]")
        for stage, bound in (("02-export", 1e-5), ("04-export", 0.05)):
            found = self.attributes(self.stage(f"{stage}.h5"), stage)
            self.assertLessEqual(found["max_abs_difference"], bound * found["max_abs_output"])
            self.assertGreater(found["max_abs_output"], 0)
            self.assertEqual(found["compared_on"], "data.train")
        (self.dir / "data.h5").rename(self.dir / "gone.h5")
        out = self.run_trainer("export", self.dir / "run/model.h5")
        self.assertRegex(out, r"warning: export: \S+model-export.onnx was read back, but its answers were compared with the model's on no "
                         r"data: \S+ data.train.path: \S+data.h5: cannot be opened")
        found = self.attributes(self.dir / "run/model-export.h5", "01-export")
        self.assertIn("cannot be opened", found["not_compared"])
        self.assertNotIn("max_abs_difference", found)

    def test_data_gone(self):
        """A model whose data is elsewhere: what can be done without is done, and what was not compared is said. data.train alone is
        enough to compare on."""
        config, model = self.config(every=50), self.dir / "run/model.h5"
        self.run_trainer(config)
        (self.dir / "data.h5").rename(self.dir / "kept.h5")
        out = self.run_trainer("export", model, ranks=2)
        self.assertIn("warning: 01-export: not evaluated: ", out)
        self.assertIn("compared with the model's on no data: ", out)
        self.assertIn("cannot be opened", self.attributes(self.dir / "run/model-export.h5", "01-export")["not_compared"])
        out = self.run_trainer("quantize", model, "activations=dynamic", "layers=all", ranks=2)
        self.assertIn("quantize: the passes over the graph were proven on no data: ", out)
        self.assertIn("fold proves what it does on data, and none is at hand: ", self.run_trainer("fold", model, ranks=2, status=1))
        self.assertFalse((self.dir / "run/model-fold.h5").exists())
        there = [f"data.train.path={self.dir}/kept.h5"]
        self.run_trainer("fold", model, *there)
        self.run_trainer("export", model, *there, "--force")
        self.assertEqual(self.attributes(self.dir / "run/model-export.h5", "01-export")["compared_on"], "data.train")

    def test_export(self):
        """An export is read back and answers as the model does, at any rank count; imported, it is the same model."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, export, {export: {format: npz}}]")
        found = self.attributes(self.stage("01-export.h5"), "01-export")
        self.assertLessEqual(found["max_abs_difference"], 1e-5 * found["max_abs_output"])
        self.assertGreater(found["max_abs_output"], 0)
        self.assertEqual(found["compared_on"], "data.eval")
        self.assertNotIn("gives", found)
        onnx = self.stage("01-export.onnx")
        self.assertEqual(found["bytes"], onnx.stat().st_size)
        # metadata_props: a message of key (field 1) and value (field 2), both of known lengths
        source = found["parent_sha256"].encode()
        self.assertEqual(found["parent_sha256"], self.sha(self.dir / "run/model.h5"))
        self.assertIn(b"\x0a\x15trireme.source_sha256\x12\x40" + source, onnx.read_bytes())
        back = self.dir / "back.h5"
        self.tool("import", onnx, back)
        self.assertIn("is there: move it away", self.tool("import", onnx, back, status=2))
        self.assertIn("a=b.h5: expected a file", self.tool("import", onnx, "a=b.h5", status=2))
        self.tool("import", onnx, back, "--force")
        with h5py.File(self.dir / "run/model.h5", "r") as a, h5py.File(back, "r") as b, \
                zipfile.ZipFile(self.stage("02-export.npz")) as z:
            self.assertIsNone(z.testzip())
            for layer, rows in a["model/params"].items():
                for name, row in rows.items():
                    self.assertTrue((row[()] == b[f"model/params/{layer}/{name}"][()]).all())
                    self.assertIn(f"{layer}.{name}.npy", z.namelist())
        self.assertIn("head/weight", self.tool("inspect", back))

    def test_export_not_finite(self):
        """A model whose weights are no numbers is not exported as if it answered."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, export]")
        onnx = self.stage("01-export.onnx")
        with h5py.File(self.dir / "run/model.h5") as f:
            weight = f["model/params/head/weight"][()].tobytes()
        text = onnx.read_bytes()
        self.assertEqual(text.count(weight), 1)
        (self.dir / "nan.onnx").write_bytes(text.replace(weight, b"\0\0\xc0\x7f" + weight[4:]))
        self.tool("import", self.dir / "nan.onnx", self.dir / "nan.h5", f"data.eval.path={self.dir}/data.h5")
        for options in ((), ("external_mb=1e-6",)):
            out = self.run_trainer("export", self.dir / "nan.h5", *options, status=1)
            self.assertIn("read back, it answers by up to nan other than the model", out)
            self.assertEqual(list(self.dir.glob("nan-export*")), [])

    def test_export_precision(self):
        """The file and the model are compared in float32 whatever the run computes in, and in 8 bits by more than 1e-5."""
        config = self.config(every=50)
        self.run_trainer(config, "train.precision=bf16",
                         "pipeline=[train, export, fold, {quantize: {layers: all, budget: {loss_rise: 0.05}}}, export]")
        found = self.attributes(self.stage("01-export.h5"), "01-export")
        self.assertLessEqual(found["max_abs_difference"], 1e-5 * found["max_abs_output"])
        self.assertGreater(found["max_abs_output"], 0)
        found = self.attributes(self.stage("04-export.h5"), "04-export")
        self.assertLessEqual(found["max_abs_difference"], 0.05 * found["max_abs_output"])

    def test_export_data(self):
        """Values outside of an older export do not stay beside a graph that has its own."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, {export: {external_mb: 0.001}}]")
        data = self.stage("01-export.onnx.data")
        self.assertIn("01-export.onnx.data", self.attributes(self.stage("01-export.h5"), "01-export")["files"])
        at = self.dir / "run/model.h5"
        self.assertTrue(data.exists())
        for options, there in ((("external_mb=0.001",), True), ((), False)):
            said = self.run_trainer("export", at, "--force", *options)
            made = next(self.dir.rglob("model-export.h5"))
            beside = made.with_name("model-export.onnx.data")
            wrote = [made, made.with_suffix(".onnx"), *([beside] if there else [])]
            self.assertEqual(re.findall(r"stage 01-export wrote (.*)", said), [str(p) for p in wrote])
            self.assertEqual(beside.exists(), there, said)
            found = self.attributes(made, "01-export")
            self.assertEqual("model-export.onnx.data" in found["files"], there)
            self.assertEqual(found["bytes"], sum(p.stat().st_size for p in wrote[1:]))
        self.run_trainer("export", at, "--force", "format=npz")
        self.assertTrue(wrote[1].exists())

    def test_sequence(self):
        """Sequences of any length where all layers take it; else the layer that does not is named, and an error where it was asked for."""
        rows = ("model.input=[5, 6]", "pipeline=[train, export, {export: {sequence: fixed}}]",
                "data={train: {format: synthetic, samples: 32}, eval: {format: synthetic, samples: 16}}")
        causal = ("model.layers=[linear: {out: 8}, positions, transformer: {layers: 1, heads: 2, causal: true}, select: {index: -1}, "
                  "linear: {out: 4, name: head}]")
        config = self.config(every=50)
        self.run_trainer(config, *rows, causal)
        for stage, dynamic in (("01-export", "batch, sequence"), ("02-export", "batch")):
            found = self.attributes(self.stage(f"{stage}.h5"), stage)
            self.assertEqual(found["dynamic"], dynamic)
            self.assertNotIn("sequence_fixed_by", found)
            self.assertLessEqual(found["max_abs_difference"], 1e-5 * max(found["max_abs_output"], 0.1))
            self.assertEqual(b"trireme.sequence" in self.stage(f"{stage}.onnx").read_bytes(), "sequence" in dynamic)
        self.tool("import", self.stage("01-export.onnx"), self.dir / "back.h5")
        self.assert_same_model(self.dir / "run/model.h5", self.dir / "back.h5")
        pooled = ("model.layers=[linear: {out: 8}, transformer: {layers: 1, heads: 2, causal: false}, permute: {dims: [2, 1]}, global_avgpool, "
                  "flatten, linear: {out: 4, name: head}]")
        self.run_trainer(config, *rows, pooled, f"output={self.dir}/pooled")
        found = self.attributes(self.stage("01-export.h5", "pooled"), "01-export")
        self.assertEqual(found["dynamic"], "batch, sequence")
        self.assertLessEqual(found["max_abs_difference"], 1e-5 * max(found["max_abs_output"], 0.1))
        self.tool("import", self.stage("01-export.onnx", "pooled"), self.dir / "pooled.h5")
        self.assert_same_model(self.dir / "pooled/model.h5", self.dir / "pooled.h5")
        flat = "model.layers=[linear: {out: 8}, flatten: {name: flat}, linear: {out: 4, name: head}]"
        said = self.run_trainer(config, *rows, flat, f"output={self.dir}/flat", ranks=1)
        why = 'layer "flat" (flatten): it is made for one length'
        self.assertIn(why, said)
        found = self.attributes(self.stage("01-export.h5", "flat"), "01-export")
        self.assertEqual((found["dynamic"], found["sequence_fixed_by"]), ("batch", why))
        said = self.run_trainer("export", self.dir / "flat/model.h5", "--force", "sequence=dynamic", status=2)
        self.assertIn("sequence: dynamic: " + why, said)

    def test_values(self):
        """Files of values alone load by the Python beside them; safetensors become the same model again, with a config."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, {export: {format: npz}}, {export: {format: hdf5}}, "
                         "{export: {format: safetensors}}]")
        model = self.arrays(self.dir / "run/model.h5")
        wanted = {n.split("/", 2)[2].replace("/", "."): v for n, v in model.items() if n.startswith("model/")}
        for kind in ("01-export", "02-export"):
            found = runpy.run_path(str(self.stage(f"{kind}.load_model.py")))["load"]()
            self.assertEqual(set(found), set(wanted))
            for name, value in found.items():
                np.testing.assert_array_equal(np.asarray(value), wanted[name], err_msg=name)
        values, back = self.stage("03-export.safetensors"), self.dir / "back.h5"
        header = values.read_bytes()
        header = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
        self.assertEqual(header["__metadata__"]["source_sha256"], self.sha(self.stage("02-export.h5")))
        compile(self.stage("03-export.load_model.py").read_text(), "load_model.py", "exec")
        for file in (values, self.stage("01-export.npz")):
            self.tool("import", file, back, "--config", config, "--force")
            self.assert_same_model(self.dir / "run/model.h5", back)
        once = self.dir / "again"
        for k, file in enumerate((self.dir / "run/model.h5", self.stage("02-export.hdf5"))):
            self.run_trainer(config, "train.steps=1", f"model.init_from={file}", f"output={once}{k}", ranks=1)
        self.assert_same_model(f"{once}0/model.h5", f"{once}1/model.h5")
        self.run_trainer("finetune", back, "train.steps=2")
        for arguments, said, status in (
                ((values, self.dir / "x.h5"), "which config has it (--config)?", 2),
                ((self.dir / "x.onnx", self.dir / "x.h5", "--config", config), "--config goes with safetensors", 2),
                ((values, back, "--config", config), "is there: move it away", 2),
                ((values, self.dir / "x.h5", "--config", config, "model.layers.7.linear.out=5"),
                 "of another shape or type: head.weight is (4, 288), the model's (5, 288), head.bias is (4), the model's (5)", 2)):
            self.assertIn(said, self.tool("import", *arguments, status=status))
        self.assertFalse((self.dir / "x.h5").exists())
        cut = self.dir / "cut.safetensors"
        cut.write_bytes(values.read_bytes()[:-5])
        self.assertIn("which its shape and type F32 do not fit", self.tool("import", cut, self.dir / "x.h5", "--config", config,
                                                                       status=1))

    def test_other_format(self):
        """What an export of another format left goes, once the new one is there; what is not of its own list stays."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, {export: {format: safetensors}}]", ranks=1)
        own = self.stage("01-export.notes")
        own.write_text("mine")
        out = self.run_trainer(config, "pipeline=[train, {export: {format: onnx}}]", "--resume")
        for gone in ("safetensors", "load_model.py"):
            self.assertIn(f"01-export.{gone} is of before and goes", out)
        self.assertEqual({p.name for p in self.stage("").iterdir()}, {"01-export.h5", "01-export.onnx", own.name})
        out = self.run_trainer(config, "pipeline=[train, {export: {format: npz}}]", "--resume")
        out = self.run_trainer(config, "pipeline=[train, {export: {format: hdf5}}]", "--resume")
        self.assertEqual({p.name for p in self.stage("").iterdir()},
                         {"01-export.h5", "01-export.hdf5", "01-export.load_model.py", own.name})
        self.assertIn("stage 01-export is done",
                      self.run_trainer(config, "pipeline=[train, {export: {format: hdf5}}]", "--resume"))

    def test_size(self):
        """Bounds on size are of what is exported, values beside a graph and all, not of the stage's own file."""
        self.run_trainer(self.config(every=50), ranks=1)
        model, own = self.dir / "run/model.h5", self.dir / "run/model-export.h5"
        for options, made in (((), [".onnx"]), (("external_mb=1e-6",), [".onnx", ".onnx.data"]), (("format=safetensors",), [".safetensors"])):
            self.run_trainer("export", model, *options, "--force", ranks=1)
            size = sum(own.with_suffix(end).stat().st_size for end in made)
            self.assertNotEqual(size, own.stat().st_size)
            for bound, of in (("size_mb", 1e6), ("size", self.attributes(own, "01-export")["parent_bytes"])):
                for factor, status in ((1.05, 0), (0.95, 1)):
                    out = self.run_trainer("export", model, *options, f"budget.{bound}={size / of * factor}", "--force", ranks=1, status=status)
                    self.assertEqual("bytes of" in out or " bytes)" in out, status == 1, out)

    def test_names(self):
        """Values under names that a map gives, matrices as (in, out), dimensions of 1 in front; what cannot be told is refused."""
        config = self.config(every=50)
        names = 'map: {"net.bn.*": "batchnorm1.*", "net.*.*": "*.*"}, transpose: ["*.head.weight"], ndim: {"*.head.bias": 3}'
        self.run_trainer(config, "pipeline=[train, {export: {format: safetensors, %s}}, {export: {format: npz, %s}}]" % (names, names))
        model = self.arrays(self.dir / "run/model.h5")
        wanted = {"net." + n.split("/", 2)[2].replace("/", ".").replace("batchnorm1", "bn"): v for n, v in model.items()
                  if n.startswith("model/")}
        wanted["net.head.weight"] = wanted["net.head.weight"].T
        wanted["net.head.bias"] = wanted["net.head.bias"].reshape(1, 1, -1)
        for found in (read_safetensors(self.stage("01-export.safetensors")), dict(np.load(self.stage("02-export.npz")))):
            self.assertEqual(set(found), set(wanted))
            for name, value in found.items():
                np.testing.assert_array_equal(value, wanted[name], err_msg=name)
        how = f"model.init_from={{file: {self.stage('01-export.safetensors')}, {names}}}"
        self.tool("import", self.stage("01-export.safetensors"), self.dir / "back.h5", "--config", config, how)
        self.assert_same_model(self.dir / "run/model.h5", self.dir / "back.h5")
        out = ("train.steps=1", how, "pipeline=[train, {export: {format: safetensors, map: init_from}}, fold]")
        self.run_trainer(config, *out, f"output={self.dir}/again")
        found = read_safetensors(self.stage("01-export.safetensors", "again"))
        self.assertEqual({k: v.shape for k, v in found.items()}, {k: v.shape for k, v in wanted.items()})
        values = ("format=safetensors", "--force")
        for file, options, said in (
                ("run/model.h5", ("map={a: b}",), "map, transpose and ndim go with format: safetensors, npz or hdf5"),
                ("run/model.h5", (*values, "map=init_from"), "model.h5 has no model.init_from: expected a map of patterns"),
                ("again/stages/02-fold.h5", (*values, "map=init_from"), "has no model.init_from"),
                ("again/model.h5", (*values, "map=init_from", "transpose=[x]"), "init_from brings transpose and ndim"),
                ("run/model.h5", (*values, "map=other"), 'found "other", expected a map of patterns'),
                ("run/model.h5", (*values, "ndim={a: 9}"), 'found "9", expected 1 to 8 dimensions'),
                ("run/model.h5", (*values, 'map={"x.*": "head.*", "y.*": "head.*"}'), "head.weight may be x.weight or y.weight"),
                ("run/model.h5", (*values, "transpose=[fc.weight]"), '"fc.weight": no matrix of the model has such a name')):
            error = self.run_trainer("export", self.dir / file, *options, ranks=2, status=2)
            self.assertIn(said, error)
        self.assertFalse((self.dir / "run/model-export.safetensors").exists())

    def test_names_of_start(self):
        """Where model.init_from has no map, what is wrong with its other patterns has its key and its line all the same."""
        self.run_trainer(self.config("first", steps=1, every=50), ranks=1)
        text = CNN.replace("name: head}", "name: classes}")
        for key, how, array in (("transpose", '["head.weight"]', "matrix"), ("ndim", '{{"head.bias": 3}}', "array")):
            start = f"  init_from: {{{{file: first/model.h5, strict: false, {key}: {how}}}}}\n"
            config = self.config(key, text=text.replace("  loss: cross_entropy\n", "  loss: cross_entropy\n" + start), steps=1, every=50)
            lines = config.read_text().splitlines()
            at = next(i for i, line in enumerate(lines) if "init_from" in line)
            place = f"{config}:{at + 1}:{lines[at].index(f'{key}: ') + len(key) + 3}"
            name = how.split('"')[1]
            said = self.run_trainer(config, "pipeline=[train, {export: {format: npz, map: init_from}}]", ranks=1, status=2)
            self.assertIn(f'error: {place}: model.init_from.{key}: "{name}": no {array} of the model has such a name', said)


if __name__ == "__main__":
    main()
