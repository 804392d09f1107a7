"""Pipelines of stages: what each leaves, resuming at the unfinished one, changed options, budgets, stages by hand."""
import hashlib
import json
import os
import pathlib
import random
import re
import runpy
import signal
import time
import xml.etree.ElementTree
import zipfile

import h5py
import numpy as np

from harness import Case, CNN, RANKS, SOURCE, long, main

FINETUNE = "{finetune: {train: {steps: 12, checkpoint: {every_steps: 4}, optimizer: {sgd: {lr: 0.01}}}}}"
TWICE = f"pipeline=[train, {FINETUNE}, finetune]"


def alive(pid):
    """Not ended, nor waiting to be asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Pipeline(Case):
    def attributes(self, path, stage):
        with h5py.File(path, "r") as f:
            return {k: v.decode() if isinstance(v, bytes) else v for k, v in f[f"stages/{stage}"].attrs.items()}

    def stage(self, file, name="run"):
        return self.dir / name / "stages" / file

    def sha(self, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def test_stages(self):
        """Each stage's file holds its parent's hash, what it was asked for and what came of it, and rebuilds its model."""
        config = self.config(every=50)
        self.run_trainer(config, TWICE)
        first, second = self.stage("01-finetune.h5"), self.stage("02-finetune.h5")
        a, b = self.attributes(first, "01-finetune"), self.attributes(second, "02-finetune")
        self.assertEqual(a["parent_sha256"], self.sha(self.dir / "run/model.h5"))
        self.assertEqual(b["parent_sha256"], self.sha(first))
        self.assertEqual(b["parent_bytes"], first.stat().st_size)
        self.assertIn("steps: 12", a["options"])
        self.assertEqual(b["loss_before"], a["loss"])
        own = ("inputs", "crc32c")  # in the stage's own file
        self.assertEqual({k: v for k, v in self.attributes(second, "01-finetune").items() if k != "crc32c"},
                         {k: v for k, v in a.items() if k not in own})
        last = self.records(event="eval")[-1]
        self.assertAlmostEqual(a["loss_before"], last["loss"], 5)
        shown = self.tool("inspect", second)
        for word in ("00-train", "01-finetune", "02-finetune", "mult-adds"):
            self.assertIn(word, shown)
        self.assertIn('"stage": "02-finetune"', self.tool("inspect", second, "--json"))
        self.assertFalse(list(self.stage("").glob("*candidate*")))

    def test_fold_and_prune(self):
        """Batchnorm is folded, channels are removed in rounds, weights are masked and stay 0 while others train."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, fold, {prune: {amount: 0.6, rounds: 2, train: {steps: 6}}}, "
                         "{prune: {kind: weights, amount: 0.5, by: taylor}}, {finetune: {train: {steps: 6}}}]")
        fold, small, masked, last = (self.attributes(self.stage(f"{s}.h5"), s) for s in
                                     ("01-fold", "02-prune", "03-prune", "04-finetune"))
        self.assertAlmostEqual(fold["loss"], fold["loss_before"], 4)
        self.assertLess(fold["parameters"], self.attributes(self.stage("01-fold.h5"), "00-train")["parameters"])
        self.assertLessEqual(small["multiply_adds"], 0.4 * fold["multiply_adds"])
        self.assertGreater(small["multiply_adds"], 0.2 * fold["multiply_adds"])
        before, after = self.arrays(self.stage("03-prune.h5")), self.arrays(self.stage("04-finetune.h5"))
        self.assertEqual({n for n in before if "batchnorm" in n and n.startswith("model/")}, set())
        zeros = total = moved = 0
        for name in (n for n in before if n.startswith("model/") and n.endswith("weight")):
            gone = before[name] == 0
            self.assertTrue((after[name][gone] == 0).all(), name)
            moved += (after[name] != before[name]).sum()
            zeros, total = zeros + gone.sum(), total + gone.size
        self.assertLess(abs(zeros / total - 0.5), 0.01)
        self.assertGreater(moved, 0.9 * (total - zeros))
        self.assertIn("masked: true", self.tool("inspect", self.stage("04-finetune.h5"), "--json").replace("\\n", "\n"))
        with h5py.File(self.stage("02-prune.h5"), "r") as f:
            layers = f["stages/02-prune/layers"]
            self.assertTrue((layers["parameters"][()] <= layers["parameters_before"][()]).all())

    def test_prune_ranks(self):
        """What fold and prune make of a model is the same for any number of ranks."""
        config = self.config(every=50)
        self.run_trainer(config)
        model = self.dir / "run/model.h5"
        for stage, keys in (("fold", ()), ("prune", ("sensitivity=0.1", "by=batchnorm")), ("prune", ("by=taylor",))):
            made = self.dir / f"run/model-{stage}.h5"
            self.run_trainer(stage, model, *keys, "run.threads=1", "--force", ranks=1)
            one = self.arrays(made)
            self.run_trainer(stage, model, *keys, "run.threads=1", "--force", ranks=3)
            for name, value in self.arrays(made).items():
                if name.startswith("model/"):
                    self.assertEqual(one[name].tobytes(), value.tobytes(), f"{stage} {keys}: {name}")
        for stage, key, said in (("fold", "skip=[batchnorms]", 'did you mean "batchnorm"'),
                                 ("prune", "pattern=[4, 2]", "expected [n, m] with n below m"),
                                 ("prune", "train={batches: 3}", "batches")):
            out = self.run_trainer(stage, model, key, *(["kind=pattern"] if "pattern" in key else []), "--force", status=2)
            self.assertIn(said, out)

    def test_prune_by_latency(self):
        """What is measured decides how much goes: the same for all ranks, which end with one model."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, fold, {prune: {measure: latency, amount: 0.1, rounds: 2, train: {steps: 2}}}]",
                         "run.threads=1", ranks=3)
        a = self.attributes(self.stage("02-prune.h5"), "02-prune")
        self.assertGreater(a["reached"], 0)
        self.assertIn("measure: latency", a["options"])
        self.assertLessEqual(a["parameters"], self.attributes(self.stage("01-fold.h5"), "01-fold")["parameters"])

    def test_export(self):
        """An export is read back and answers as the model does, at any rank count; imported, it is the same model."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, {export: {normalize: true}}, {export: {format: npz}}]")
        found = self.attributes(self.stage("01-export.h5"), "01-export")
        self.assertLess(found["max_abs_difference"], 1e-4)
        self.assertGreater(found["max_abs_output"], 0)
        onnx = self.stage("01-export.onnx")
        self.assertEqual(found["bytes"], onnx.stat().st_size)
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
        out = self.run_trainer("export", self.dir / "nan.h5", status=1)
        self.assertIn("read back, it answers by up to nan other than the model", out)
        self.assertFalse((self.dir / "nan-export.h5").exists())

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

    def test_benchmark(self):
        """Rows for each model and batch, in the file, as JSON, as Markdown and as plots, alike for any ranks."""
        config = self.config(every=50)
        asked = "{batches: [1, 3], seconds: 0, runs: 5, rates: [2000], target_ms: 1e6, models: [model.h5]}"
        self.run_trainer(config, f"pipeline=[train, {{benchmark: {asked}}}]")
        with h5py.File(self.stage("01-benchmark.h5"), "r") as f:
            calls = f["stages/01-benchmark/calls"]
            self.assertEqual(list(calls["batch"]), [1, 3, 1, 3])
            self.assertTrue(all(calls["runs"][:] >= 5) and all(calls["median_ms"][:] > 0))
            self.assertTrue(all(calls["p99_ms"][:] >= calls["median_ms"][:]))
            self.assertEqual(list(f["stages/01-benchmark/load/rate"]), [2000, 2000])
            self.assertIn(f["stages/01-benchmark"].attrs["best_batch"], (1, 3))
        found = json.loads(self.stage("01-benchmark.json").read_text())
        self.assertEqual([(r["model"], r["batch"]) for r in found["calls"]],
                         [("model.h5", 1), ("model.h5", 3), ("this", 1), ("this", 3)])
        self.assertEqual(found["calls"][0]["accuracy"], found["calls"][2]["accuracy"])
        self.assertIn("| this | cpu | fp32 | 3 |", self.stage("01-benchmark.md").read_text())
        for plot in ("batches", "percentiles", "accuracy"):
            xml.etree.ElementTree.parse(self.stage(f"01-benchmark.{plot}.svg"))
        for asked, said in (("models: [{}]", "pipeline.1.models: expected a run file"),
                            ("backends: [gpu]", 'pipeline.1.backends: found "gpu"; expected cpu or cuda'),
                            ("backends: [cpu, cpu]", "pipeline.1.backends: cpu stands twice")):
            out = self.run_trainer(config, f"pipeline=[train, {{benchmark: {{{asked}}}}}]", "--resume", status=2, ranks=1)
            self.assertIn(said, out)
        # several places side by side: each with its own accuracy; what cannot run here is named
        self.run_trainer(config, "pipeline=[train, {benchmark: {batches: [1, 2], seconds: 0, runs: 5, models: [model.h5],"
                         " backends: [cpu, cpu-bf16, cuda, cpu-fp16]}}]", "--resume")
        found = json.loads(self.stage("01-benchmark.json").read_text())
        self.assertEqual([(r["model"], r["backend"], r["precision"], r["batch"]) for r in found["calls"]],
                         [(m, *p, n) for m in ("model.h5", "this") for p in (("cpu", "fp32"), ("cpu-bf16", "bf16")) for n in (1, 2)])
        self.assertEqual([r["speedup"] for r in found["calls"][:2]], [1, 1])
        self.assertTrue(all(r["file_bytes"] > 0 and 0 <= r["accuracy"] <= 1 for r in found["calls"]))
        self.assertEqual([u["backend"] for u in found["unavailable"]], ["cuda", "cpu-fp16"])
        self.assertIn("CPUs have no kernels for fp16", found["unavailable"][1]["reason"])
        self.assertIn("- cuda cannot run here: ", self.stage("01-benchmark.md").read_text())
        with h5py.File(self.stage("01-benchmark.h5"), "r") as f:
            self.assertEqual(f["stages/01-benchmark/calls/median_ms"].shape, (8,))
            self.assertIn(b"fp16", f["stages/01-benchmark"].attrs["cpu-fp16_cannot_run"])
        out = self.run_trainer(config, "pipeline=[train, {benchmark: {backends: [cuda, cpu-fp16]}}]", "--resume", status=1)
        self.assertIn("none of `backends` can run here: cuda: ", out)

    def test_resume(self):
        """What is done is not done again; what changed runs again, with all behind it, and says why."""
        config = self.config(every=50)
        self.run_trainer(config, TWICE, "--until", "finetune")
        self.assertFalse(self.stage("02-finetune.h5").exists())
        before = self.sha(self.stage("01-finetune.h5"))
        out = self.run_trainer(config, TWICE, "--resume")
        self.assertIn("stage 01-finetune is done", out)
        self.assertEqual(self.sha(self.stage("01-finetune.h5")), before)
        second = self.sha(self.stage("02-finetune.h5"))
        out = self.run_trainer(config, TWICE.replace("0.01", "0.02"), "--resume", ranks=1)
        self.assertRegex(out, r"stage 00-train is done")
        self.assertRegex(out, r"01-finetune runs: what it was asked for changed: .*lr: 0.02.* was .*lr: 0.01")
        self.assertIn("of before and goes", out)
        self.assertNotEqual(self.sha(self.stage("01-finetune.h5")), before)
        self.assertNotEqual(self.sha(self.stage("02-finetune.h5")), second)
        first = self.sha(self.stage("01-finetune.h5"))
        out = self.run_trainer(config, TWICE.replace("0.01", "0.02"), "--resume", "--from", "02-finetune")
        self.assertEqual(self.sha(self.stage("01-finetune.h5")), first)
        self.assertIn("stage 02-finetune\n", out)
        out = self.run_trainer(config, TWICE.replace("0.01", "0.02"), "--resume", "train.optimizer.adamw.lr=0.004")
        self.assertRegex(out, "00-train runs: its config changed")
        self.run_trainer(config, "--force")
        self.assertFalse(list(self.stage("").glob("*")))

    def test_damaged_stage(self):
        """A stage's file that is damaged is no stage that is done."""
        config = self.config(every=50)
        self.run_trainer(config, TWICE)
        path = self.stage("01-finetune.h5")
        whole = self.arrays(self.stage("02-finetune.h5"))
        bytes_ = bytearray(path.read_bytes())
        with h5py.File(path, "r") as f:
            bytes_[f["model/params/head/weight"].id.get_offset() + 5] ^= 16
        path.write_bytes(bytes_)
        out = self.run_trainer(config, TWICE, "--resume")
        self.assertIn("01-finetune runs: its file is of no use", out)
        self.assert_same_model(path, self.stage("01-finetune.h5"))
        again = self.arrays(self.stage("02-finetune.h5"))
        for name, value in whole.items():
            if name.startswith("model/"):
                self.assertEqual(value.tobytes(), again[name].tobytes(), name)

    def test_distilled(self):
        """A small model learns from a large one: a lower loss than by labels alone; the same after stops and kills and, but
        for rounding, at any number of ranks; the teacher's hash is in the lineage, another teacher begins anew."""
        self.run_trainer(self.config("teacher", steps=60, every=100))
        teacher = self.dir / "teacher/model.h5"
        # a third of the labels is wrong: what the teacher makes of the samples says more than they do
        with h5py.File(self.make_data()) as right, h5py.File(self.dir / "noisy.h5", "w") as f:
            f["x"], f["y"] = right["x"][:], np.where(np.arange(103) % 3 == 0, (right["y"][:] + 1) % 4, right["y"][:])
        small = CNN[:CNN.index("    - conv2d")] + "    - flatten\n    - linear: {{out: 4}}\n" + CNN[CNN.index("  loss:"):]
        few = (f"data.train.path={self.dir / 'noisy.h5'}", "train.optimizer.lr=0.02", "data.workers=0")
        keys = f"train.distill={{teacher: {teacher}, temperature: 4, hard: 0, soft: 1}}"
        self.run_trainer(self.config("alone", text=small, steps=120, every=200), *few)
        config = self.config("taught", text=small, steps=120, every=5)
        self.run_trainer(config, *few, keys)
        taught, alone = (self.records(name, "eval")[-1]["loss"] for name in ("taught", "alone"))
        self.assertLess(taught, alone)
        with h5py.File(self.dir / "taught/model.h5") as f:
            self.assertEqual(f.attrs["teacher_sha256"], self.sha(teacher).encode())
        self.assertIn(self.sha(teacher), self.tool("inspect", self.dir / "taught/model.h5"))
        self.run_trainer(self.config("three", text=small, steps=120, every=200), *few, keys, ranks=3)
        np.testing.assert_allclose(self.losses("three"), self.losses("taught"), **RANKS)
        # stopped in the middle
        config = self.config("stopped", text=small, steps=120, every=5)
        process = self.start(config, *few, keys)
        self.wait_for_step("stopped", 20, process)
        for pid in self.rank_pids(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        self.run_trainer(config, *few, keys, "--resume")
        self.assert_same_model(self.dir / "stopped/model.h5", self.dir / "taught/model.h5")
        out = self.run_trainer(config, *few, keys.replace(str(teacher), str(self.dir / "alone/model.h5")),
                               "train.steps=125", "--resume")
        self.assertIn("was made with another teacher", out)

    def test_distilling_stage(self):
        """finetune with the run's own model as the teacher, whose inputs are normalized otherwise than the pruned model's, on
        features too; what does not fit is told by all ranks once."""
        config = self.config(every=50)
        stage = ("{finetune: {teacher: model.h5, temperature: 2, features: [{student: relu1, teacher: relu1, weight: 0.1}], "
                 "train: {steps: 12, checkpoint: {every_steps: 4}}}}")
        pipeline = f"pipeline=[train, fold, {stage}]"
        scaled = "data.normalize={mean: 0.25, std: 2}"
        self.run_trainer(config, pipeline, scaled)
        a = self.attributes(self.stage("02-finetune.h5"), "02-finetune")
        self.assertEqual(a["teacher_sha256"], self.sha(self.dir / "run/model.h5"))
        self.assertIn("temperature: 2", a["options"])
        # who has learned all that the teacher knows moves no more: model and teacher are one, normalized apart
        first = self.records("run/stages/02-finetune/train")[0]
        self.assertLess(first["grad_norm"], 1.0)
        alone = pipeline.replace("features: [{student: relu1, teacher: relu1, weight: 0.1}], ", "hard: 0, soft: 1, ")
        self.run_trainer(config, alone, scaled, "train.clip_norm=none", "--force")
        first = self.records("run/stages/02-finetune/train")[0]
        self.assertLess(abs(first["loss"]), 1e-5)
        self.assertLess(first["grad_norm"], 1e-3)
        self.run_trainer(self.config("other", text=CNN.replace("out: 4", "out: 5"), steps=2))
        self.run_trainer(self.config("flat", text=CNN.replace("[2, 6, 6]", "[4, 6, 3]"), steps=2), status=1)
        model, other = self.dir / "run/model.h5", self.dir / "other/model.h5"
        for keys, said, status in (
                ((f"teacher={other}",), "gives 5 classes, the model 4", 2),
                (("teacher=nowhere.h5",), "teacher nowhere.h5: no such file", 1),
                ((f"teacher={config}",), "not an HDF5 file", 1),
                (("teacher=model.h5", "features=[{student: head, teacher: relu1}]"), "gives (4), layer \"relu1\"", 2),
                (("teacher=model.h5", "features=[{student: nothing, teacher: relu1}]"), 'has no layer "nothing"', 2),
                (("teacher=model.h5", "features=7"), "expected a list", 2),
                (("teacher=model.h5", "soft=0", "hard=0"), "nothing would be learned", 2)):
            out = self.run_trainer("finetune", model, *keys, "train.steps=2", "--force", status=status)
            self.assertEqual(out.count(said), 1, out)

        # a teacher's file that is replaced: the training stays, and says so; the stage learns again
        copy = self.dir / "copy.h5"
        copy.write_bytes(model.read_bytes())
        keys = (f"pipeline=[train, {{finetune: {{teacher: {copy}, train: {{steps: 4}}}}}}]",
                f"train.distill={{teacher: {copy}}}", "train.steps=4")
        config = self.config("taught", every=50)
        plan = self.tool("plan", config, *keys)
        self.assertRegex(plan, r"teacher +.*copy.h5: 1.91 k parameters")
        self.assertRegex(plan, r"teacher +[0-9.]+ [kM]FLOP forward; with it a step of all ranks takes [0-9.]+ [kM]FLOP")
        weights = [int(float(re.search(r"weights +([0-9.]+) kB", text)[1]))
                   for text in (plan, self.tool("plan", config))]
        self.assertGreater(weights[0], 1.5 * weights[1])
        self.assertIn("the teacher is not counted", self.tool("plan", config, "train.distill={teacher: nowhere.h5}"))
        self.run_trainer(config, *keys, ranks=0)
        self.assertNotIn("another", self.run_trainer(config, *keys, "--resume", ranks=0))
        copy.write_bytes((self.dir / "taught/model.h5").read_bytes())
        out = self.run_trainer(config, *keys, "--resume", ranks=0)
        self.assertIn("was trained with another teacher", out)
        self.assertRegex(out, "stage 01-finetune runs: its teacher .*copy.h5 is another file now")

    def test_budget(self):
        """A stage that misses its budget fails with the numbers, or hands on the parent's model."""
        config = self.config(every=50)
        stage = "{finetune: {train: {steps: 6, optimizer: {sgd: {lr: 30}}}, budget: {loss_rise: 0.01}, on_miss: %s}}"
        out = self.run_trainer(config, f"pipeline=[train, {stage % 'fail'}, finetune]", status=1)
        self.assertRegex(out, r"stage 01-finetune: budget.loss_rise: [\d.e+]+, at most 0.01 was asked for \(loss ")
        self.assertTrue(self.stage("01-finetune.rejected.h5").exists())
        self.assertFalse(self.stage("01-finetune.h5").exists())
        self.assertFalse(self.stage("02-finetune.h5").exists())
        out = self.run_trainer(config, f"pipeline=[train, {stage % 'keep_parent'}, finetune]", "--resume")
        self.assertIn("the model goes on as it was", out)
        self.assert_same_model(self.dir / "run/model.h5", self.stage("01-finetune.h5"))
        self.assertIn("loss_rise", self.attributes(self.stage("01-finetune.h5"), "01-finetune")["missed"])
        for key, said in (("latency_ms", "at most 1e-06"), ("speedup", "at least 100000")):
            bound = "1e-6" if key == "latency_ms" else "1e5"
            out = self.run_trainer(config, f"pipeline=[train, {{finetune: {{budget: {{{key}: {bound}}}}}}}]", "--resume",
                                   status=1)
            self.assertRegex(out, rf"budget.{key}: [\d.e-]+, {said}.* was asked for \([\d.e-]+ ms, before [\d.e-]+ ms\)")
        out = self.run_trainer(config, "pipeline=[train, {finetune: {budget: {size: 0.5}}}]", "--resume", status=1)
        self.assertRegex(out, r"budget.size: [\d.]+, at most 0.5 was asked for \(\d+ bytes of \d+\)")

    def test_train_budget(self):
        """What training made keeps to bounds of its own before anything runs on it, also once it is done."""
        config = self.config(every=50)
        pipeline = "pipeline=[{train: {budget: {%s}}}, {finetune: {train: {steps: 2}}}]"
        out = self.run_trainer(config, pipeline % "loss: 1e-9", status=1)
        self.assertRegex(out, r"stage 00-train: budget.loss: [\d.e-]+, at most 1e-09 was asked for")
        out = self.run_trainer(config, pipeline % "accuracy: 1, size_mb: 1e-3", "--resume", status=1)
        self.assertIn("stage 00-train is done", out)
        self.assertRegex(out, r"budget\.(accuracy: 0\.\d+, at least 1|size_mb: 0\.0\d+, at most 0\.001) was asked for")
        self.assertIn("budget.latency_ms", self.run_trainer(config, pipeline % "latency_ms: 1e-6", "--resume", status=1))
        self.assertFalse(self.stage("01-finetune.h5").exists())
        out = self.run_trainer(config, pipeline % "loss: 100, accuracy: 0.01, size_mb: 10, latency_ms: 1e6", "--resume")
        self.assertTrue(self.stage("01-finetune.h5").exists(), out)
        self.assertIn("budget:", (self.dir / "run/config.yaml").read_text())
        other = self.config("other", every=50)
        out = self.run_trainer(other, "pipeline=[{train: {budget: {loss_rise: 1}}}]", status=2)
        self.assertIn("there is no model before train to compare with", out)
        self.assertIn("budget.loss: ", self.run_trainer(
            config, "pipeline=[train, {finetune: {train: {steps: 1}, budget: {loss: 1e-9}}}]", "--resume", status=1))

    def test_retry(self):
        """Milder and milder until the budget is kept to; each attempt that missed is listed."""
        config = self.config(every=50)
        stage = "{prune: {amount: 0.9, budget: {loss_rise: 0.05}, on_miss: retry}}"
        out = self.run_trainer(config, f"pipeline=[train, {stage}]")
        a = self.attributes(self.stage("01-prune.h5"), "01-prune")
        self.assertIn("again with", out)
        self.assertRegex(a["attempt_1"], r"budget.loss_rise: [\d.e+]+, at most 0.05")
        amount = float(re.search(r"amount: ([\d.]+)", a["options"])[1])
        tries = sum(name.startswith("attempt_") for name in a)
        self.assertAlmostEqual(amount, 0.9 * 0.75 ** tries, 6)
        self.assertLessEqual(a["loss"] - a["loss_before"], 0.05)
        self.assertIn("stage 01-prune is done", self.run_trainer(config, f"pipeline=[train, {stage}]", "--resume"))
        stage = "{finetune: {train: {steps: 2, optimizer: {sgd: {lr: 30}}}, budget: {loss_rise: 0}, on_miss: retry}}"
        self.assertIn("budget.loss_rise", self.run_trainer(config, f"pipeline=[train, {stage}]", "--resume", status=1))

    def test_by_hand(self):
        config = self.config(every=50)
        self.run_trainer(config)
        model, made = self.dir / "run/model.h5", self.dir / "run/model-finetune.h5"
        keys = ("train.steps=5", "budget.loss_rise=1", "run.threads=1")
        self.run_trainer("finetune", model, *keys)
        self.assertIn("steps: 5", self.attributes(made, "01-finetune")["inputs"])
        self.assertIn("is there", self.run_trainer("finetune", model, status=2))
        self.run_trainer("finetune", model, *keys, "--force", ranks=3)
        self.run_trainer("finetune", made, *keys)
        self.assertIn("02-finetune", self.tool("inspect", self.dir / "run/model-finetune-finetune.h5"))
        for arguments, said in ((("bugdet.size=1",), 'unknown key "bugdet"'), (("budget.sise=1",), 'did you mean "size"'),
                                (("train.stps=1",), "stps")):
            self.assertIn(said, self.run_trainer("finetune", model, *arguments, "--force", status=2))
        self.assertIn("nowhere.h5", self.run_trainer("finetune", self.dir / "nowhere.h5", status=1))
        # where the data is not, a model can be worked on all the same, unless it is to be measured
        out = self.run_trainer("finetune", model, "data.eval.path=/nowhere.h5", *keys, "--force", status=1)
        self.assertIn("/nowhere.h5", out)

    def test_report(self):
        """One page that is XML but for its first line, holds every stage, and names no other file."""
        config = self.config(every=50)
        self.run_trainer(config, f"pipeline=[train, {FINETUNE}, {{benchmark: {{seconds: 0, runs: 5}}}}, report]")
        page = (self.dir / "run/report.html").read_text()
        root = xml.etree.ElementTree.fromstring(page.split("\n", 1)[1].replace('<meta charset="utf-8">', "").replace(
            '<meta name="viewport" content="width=device-width,initial-scale=1">', ""))
        words = " ".join(root.itertext())
        for word in ("e2e", "01-finetune", "Confusion matrix", "Learning rate", "steps: 12", "loss_before"):
            self.assertIn(word, words)
        plots = sorted(self.stage("").glob("02-benchmark.*.svg"))
        self.assertEqual(len(plots), 3)  # latency, distribution, accuracy
        for plot in plots:
            self.assertIn(xml.etree.ElementTree.parse(plot).getroot()[1].text, words)
        self.assertGreaterEqual(page.count("<svg"), 7)
        self.assertNotRegex(page, r'(?:src|href)=|url\(|@import')
        markdown = (self.dir / "run/report.md").read_text()
        loss = self.attributes(self.stage("01-finetune.h5"), "01-finetune")["loss"]
        self.assertIn("| 01-finetune | 19", markdown)
        self.assertIn(f"| loss | {loss:.6g} |", markdown)
        self.run_trainer("report", self.stage("01-finetune.h5"), "markdown=false", ranks=1)
        self.assertTrue(self.stage("01-finetune-report.html").exists())
        self.assertFalse(self.stage("01-finetune-report.md").exists())

    def test_quantize(self):
        """8 bits: the same file but for its times at any number of ranks; every command takes it."""
        self.run_trainer(self.config(every=50))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-quantize.h5"
        refined = ["equalize=true", "bias_correction=true", "rounding=adaround"]
        for options in (["calibrate=minmax"], ["calibrate=percentile"], ["calibrate=entropy"], refined):
            found = []
            for ranks in (1, 3):
                self.run_trainer("quantize", model, *options, "samples=70", "--force", ranks=ranks)
                with h5py.File(made, "r") as f:
                    arrays = {}
                    f["model"].visititems(lambda name, o: arrays.update({name: o[()].tobytes()})
                                          if isinstance(o, h5py.Dataset) else None)
                    found.append((f.attrs["config"], arrays))
                    self.assertEqual(f["model/params/head/weight"].dtype, "int8")
                    self.assertEqual(f["model/state/head/weight_scale"].shape, f["model/params/head/weight"].shape[:1])
                    self.assertIn(b"fake_quantize", f.attrs["config"])
                    # besides its arrays: a layer of the config on a line, no empty columns, no gaps between small arrays
                    self.assertRegex(f.attrs["config"], rb"\n +- conv2d: {.*out: 8.*}\n")
                    texts = len(f.attrs["config"]) + sum(len(v) for s in f["stages"].values() for v in s.attrs.values()
                                                         if isinstance(v, bytes))
                    nbytes, objects = [], []
                    f.visititems(lambda name, o: (objects if isinstance(o, h5py.Group) else nbytes).append(getattr(o, "nbytes", 0)))
                    besides = made.stat().st_size - sum(nbytes) - texts
                    self.assertLess(besides, 3400 + 205 * len(nbytes) + 145 * len(objects))
                    table = {k: v[()] for k, v in f["stages/01-quantize/layers"].items()}
                    self.assertTrue((table["weight_sqnr_db"] > 30).all())
                    if options is refined:  # what rounding by data is for
                        gain = table["output_sqnr_db"] - table["output_sqnr_nearest_db"]
                        self.assertTrue((gain > -0.1).all() and gain.mean() > 0.5, gain)
            self.assertEqual(found[0], found[1])
        found = []
        for ranks in (1, 2, 3, 4):  # ranges of each call: no data.train is asked for, and batches do not matter
            self.run_trainer("quantize", model, "activations=dynamic", "data.train.path=gone.h5", "--force", ranks=ranks)
            with h5py.File(made, "r") as f:
                self.assertIn(b"dynamic_quantize", f.attrs["config"])
                self.assertTrue((f["stages/01-quantize/layers/weight_sqnr_db"][()] > 30).all())
                found.append((f["model/params/head/weight"][()].tobytes(), self.attributes(made, "01-quantize")["loss"]))
            self.assertEqual(found[0], found[-1])
        a = self.attributes(made, "01-quantize")
        self.assertLess(abs(a["loss"] - a["loss_before"]), 0.05)
        self.run_trainer("export", made, "--force")  # what is read back answers alike
        self.assertIn("nothing is calibrated", self.run_trainer("quantize", model, "activations=dynamic", "calibrate=minmax",
                                                                "--force", status=2))
        refined = ["equalize=true", "bias_correction=true", "rounding=adaround"]
        self.run_trainer("quantize", model, "activations=dynamic", *refined, "samples=70", "--force")
        with h5py.File(made, "r") as f:
            table = f["stages/01-quantize/layers"]
            self.assertGreater((table["output_sqnr_db"][()] - table["output_sqnr_nearest_db"][()]).mean(), 0.5)
        self.run_trainer("quantize", model, "layers=auto", "samples=70", "--force")
        with h5py.File(made, "r") as f:  # on another day others are faster: what is said is what was done
            table = f["stages/01-quantize/layers"]
            names = table.attrs["rows"].decode().split()
            self.assertTrue((table["float_us"][()] > 0).all() and (table["int8_us"][()] > 0).all())
            for name, int8 in zip(names, table["int8"][()]):
                self.assertEqual(f[f"model/params/{name}/weight"].dtype == "int8", int8 == 1)
        self.run_trainer("quantize", model, "weights=per_tensor", "samples=70", "--force")
        with h5py.File(made, "r") as f:
            self.assertEqual(len(set(f["model/state/head/weight_scale"][()])), 1)
        self.assertIn("int8", self.tool("inspect", made))
        a = self.attributes(made, "01-quantize")
        self.assertLess(abs(a["loss"] - a["loss_before"]), 0.05)
        for kind in ("float16", "bfloat16"):
            self.run_trainer("quantize", model, f"kind={kind}", "budget.loss_rise=0.05", "--force")
            self.assertIn(kind, self.tool("inspect", made))
        self.assertIn("no layer \"hed\"", self.run_trainer("quantize", model, "skip=[hed]", "--force", status=2))
        # what is done to inputs is the parent's, which fold has changed
        self.run_trainer(self.config("scaled", every=50), "data.normalize={mean: 0, std: 4}",
                         "pipeline=[train, fold, {quantize: {budget: {loss_rise: 0.05}}}, "
                         "{finetune: {train: {steps: 8, eval: {every_steps: 8}, optimizer: {sgd: {lr: 0.01}}}}}]")
        with h5py.File(self.stage("02-quantize.h5", "scaled"), "r") as f:
            self.assertNotIn(b"std: 4", f.attrs["config"])
            before = f["model/params/head/weight"][()]
        # quantization-aware training: its evaluation is the file's, whose largest weights are whole
        last = self.stage("03-finetune.h5", "scaled")
        with h5py.File(last, "r") as f:
            after = f["model/params/head/weight"][()]
            self.assertEqual(after.dtype, "int8")
            self.assertTrue((abs(after.astype(int)).max(axis=1) == 127).all())
            self.assertTrue((after != before).any())
        evals = [r for r in self.records("scaled/stages/03-finetune/train", "eval")]
        self.assertAlmostEqual(evals[-1]["loss"], self.attributes(last, "03-finetune")["loss"], places=5)

    def test_learned_scales(self):
        """Scales are trained with the weights, at any number of ranks and over a stop, and end as a plain int8 model."""
        train = "train: {steps: 8, eval: {every_steps: 8}, checkpoint: {every_steps: 4}, " \
                "optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}"
        stages = f"pipeline=[train, quantize, {{finetune: {{scales: learned, {train}}}}}]"
        config = self.config(every=50)
        self.run_trainer(config, stages, ranks=1)
        last, folder = self.stage("02-finetune.h5"), "run/stages/02-finetune/train"
        with h5py.File(self.stage("01-quantize.h5"), "r") as f, h5py.File(last, "r") as g:
            was, now = (x["model/state/head/weight_scale"][()] for x in (f, g))
            self.assertTrue((was != now).any() and (now > 0).all())
            self.assertNotIn(b"learn_scale: true", g.attrs["config"])
            self.assertNotEqual(*(re.findall(rb"scale: ([0-9.e-]+)", x.attrs["config"]) for x in (f, g)))
            self.assertNotIn("learned_scale", g["model/params/head"])
            self.assertEqual(g["model/params/head/weight"].dtype, "int8")
            self.assertGreater(g["stages/02-finetune"].attrs["learned_scales"], 2)
        evals = self.records(folder, "eval")
        self.assertAlmostEqual(evals[-1]["loss"], self.attributes(last, "02-finetune")["loss"], places=5)
        with h5py.File(self.dir / folder / "checkpoints/step-00000004.h5", "r") as f:
            self.assertEqual(f["model/params/head/learned_scale"].shape, now.shape)
        losses = [r["loss"] for r in self.records(folder)]
        whole = last.read_bytes()
        # the same from a checkpoint on: the last one is as if it had never been
        for gone in (folder + "/model.h5", folder + "/checkpoints/step-00000008.h5", "run/stages/02-finetune.h5"):
            (self.dir / gone).unlink()
        self.run_trainer(config, stages, "--resume", ranks=1)
        with h5py.File(last, "r") as g:
            self.assertTrue((g["model/state/head/weight_scale"][()] == now).all())
        self.assertEqual([r["loss"] for r in self.records(folder)], losses)
        self.assertEqual(len(whole), last.stat().st_size)
        self.run_trainer("finetune", self.stage("01-quantize.h5"), "scales=learned", f"train={{{train[8:-1]}}}",
                         "--force", ranks=3)
        with h5py.File(self.stage("01-quantize-finetune.h5"), "r") as g:
            self.assertLess(abs(g["model/state/head/weight_scale"][()] / now - 1).max(), 1e-3)
        self.assertIn("behind quantize", self.run_trainer("finetune", self.dir / "run/model.h5", "scales=learned", "--force",
                                                          status=2))

    def test_wrong(self):
        config = self.config()
        for pipeline, said in (("[finetune]", "the first stage is train"), ("[train, train]", "stands twice"),
                               ("[train, {finetune: {train: {epcs: 1}}}]", 'did you mean "epochs"'),
                               ("[train, {finetune: {on_miss: never}}]", "fail, keep_parent, retry")):
            out = self.run_trainer(config, f"pipeline={pipeline}", status=2)
            self.assertIn(said, out)
            self.assertFalse((self.dir / "run").exists())
        self.assertIn("no such stage", self.run_trainer(config, "--until", "prune", status=2))
        self.assertIn("--resume", self.run_trainer(config, "--from", "train", status=2))

    def test_stop(self):
        """Asked to stop in a stage's training, it goes on there."""
        config = self.config(every=50)
        stage = TWICE.replace("steps: 12", "steps: 400").replace("every_steps: 4", "every_steps: 50")
        process = self.start(config, stage)
        self.wait_for_step("run/stages/01-finetune/train", 20, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out)
        process = self.start(config, stage, "--resume")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("stage 00-train is done", out)
        steps = [r["step"] for r in self.records("run/stages/01-finetune/train")]
        self.assertEqual(steps, list(range(1, 401)))

    def test_pruning_killed_between_rounds(self):
        """Killed behind a round of pruning, it goes on there, and ends in the same bytes."""
        stages = "pipeline=[train, {prune: {amount: 0.6, rounds: 3, sensitivity: 0.5, train: {steps: STEPS, " \
                 "checkpoint: {every_steps: 20}}}}]".replace("STEPS", "60")
        self.run_trainer(self.config("whole", every=50), stages)
        config = self.config("killed", every=50)
        process = self.start(config, stages)
        self.wait_for_step("killed/stages/01-prune/round-2", 1, process)
        ranks = self.rank_pids(process.pid)
        for pid in ranks:  # not the launcher: they would work on until they notice
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        while any(alive(pid) for pid in ranks):
            time.sleep(0.01)
        self.assertFalse(self.stage("01-prune.h5", "killed").exists())
        first = (self.stage("01-prune", "killed") / "round-1/metrics.jsonl").read_bytes()
        out = self.run_trainer(config, stages, "--resume")
        self.assertIn("stage 00-train is done", out)
        self.assertEqual((self.stage("01-prune", "killed") / "round-1/metrics.jsonl").read_bytes(), first)
        self.assert_same_model(self.stage("01-prune.h5", "whole"), self.stage("01-prune.h5", "killed"))

    @long
    def test_compress(self):
        """The config that ships keeps what it promises, but for times, which other work on the machine decides."""
        self.run_trainer(SOURCE / "configs/compress.yaml", f"output={self.dir / 'run'}", "run.threads=1",
                         "pipeline.3.quantize.budget.speedup=none", timeout=900)
        last = self.stage("03-quantize.h5")
        a = self.attributes(last, "00-train")
        b = self.attributes(last, "03-quantize")
        self.assertGreater(a["accuracy"] - 0.02, 0.9)
        self.assertLess(a["accuracy"] - b["accuracy"], 0.02)
        self.assertLess(b["multiply_adds"], 0.55 * a["multiply_adds"])
        self.assertLess(last.stat().st_size, 0.2 * (self.dir / "run/model.h5").stat().st_size)
        self.assertTrue(self.stage("05-export.onnx").exists())

    def killed(self, kills, seed, behind=""):
        rng = random.Random(seed)
        self.run_trainer(self.config("whole" + behind, every=5), TWICE)
        config, done = self.config("killed" + behind, every=5), 0
        while True:
            process = self.start(config, TWICE, "--resume")
            end = time.monotonic() + rng.uniform(0.3, 3.0)
            while done < kills and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            if done < kills and process.poll() is None:
                ranks = self.rank_pids(process.pid)
                process.kill()
                done += 1
                process.communicate(timeout=60)
                while any(alive(pid) for pid in ranks):  # they hold the folder until they see that the launcher is gone
                    time.sleep(0.01)
                continue
            out, _ = process.communicate(timeout=120)
            if "is in use by another running job" in out:  # by a rank that was only being started when it was looked for
                time.sleep(0.1)
                continue
            self.assertEqual(process.returncode, 0, out)
            if done >= kills or self.stage("02-finetune.h5", "killed" + behind).exists():
                break
        for file in ("01-finetune.h5", "02-finetune.h5"):
            a, b = self.stage(file, "whole" + behind), self.stage(file, "killed" + behind)
            self.assert_same_model(a, b)
            stage = file[:-3]
            x, y = self.attributes(a, stage), self.attributes(b, stage)
            for name in ("loss", "accuracy", "options", "parameters"):
                self.assertEqual(x[name], y[name], name)

    def test_killed(self):
        self.killed(3, 5)

    @long
    def test_killed_often(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                self.killed(6, seed, f"-{seed}")


if __name__ == "__main__":
    main()
