"""Pipelines of stages: what each leaves, resuming at the unfinished one, changed options, budgets, stages by hand."""
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import time

import h5py
import yaml

from harness import CNN, SOURCE, long, main
from stages import FINETUNE, TWICE, StageCase


class Pipeline(StageCase):
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
        self.check_lineage(shown, [self.dir / "run/model.h5", first, second])
        for at in (a, b):
            self.assertGreater(at["seconds"], 0)
            self.assertEqual(at["trireme_version"], self.tool("version").split()[1])
            self.assertRegex(at["computed_by"], r"oneDNN \d+\.\d+\.\d+, \d+ thread")
            self.assertRegex(at["hdf5_version"], r"^\d+\.\d+\.\d+$")
            self.assertRegex(at["mpi_version"], r"\d")
            self.assertTrue(at["host_kernel"].startswith(f"Linux {platform.release()}"))
        self.assertIn('"stage": "02-finetune"', self.tool("inspect", second, "--json"))
        for stage in ("01-finetune", "02-finetune"):  # what the stage holds beside its training is told apart
            end = self.records(f"run/stages/{stage}/train", "end")[-1]
            self.assertEqual(end["held_mb"], end["predicted_mb"])
            self.assertGreater(end["stage_mb"], 0)
        self.assertIsNone(self.records(event="end")[-1].get("stage_mb"))
        self.assertFalse(list(self.stage("").glob("*candidate*")))

    def check_lineage(self, shown, files):
        """The table that inspect prints of the last file: its numbers are those in the file, the sizes those of the files."""
        lines = shown.split("\nStages\n")[1].split("\n\nFound by")[0].splitlines()
        self.assertEqual(lines[0].split(), ["stage", "parameters", "file", "mult-adds", "latency", "loss", "accuracy"])
        self.assertEqual(len(lines), 1 + len(files))
        units = {"B": 1, "kB": 1e3, "MB": 1e6, "k": 1e3, "K": 1e3, "M": 1e6}

        def number(text):
            value, unit = re.fullmatch(r"([\d.]+) ?([a-zA-Z]*)", text).groups()
            return float(value) * units[unit or "B"]
        for line, file, stage in zip(lines[1:], files, ("00-train", "01-finetune", "02-finetune")):
            a = self.attributes(files[-1], stage)
            self.assertEqual(line[:22].strip(), stage)
            parameters, size, adds, ms, loss, accuracy = (line[at:at + 12].strip() for at in range(22, 22 + 72, 12))
            self.assertAlmostEqual(number(parameters) / a["parameters"], 1, 1)
            history = sum(v.nbytes for k, v in self.arrays(file).items() if k.startswith("history/"))
            self.assertAlmostEqual(number(size) / (file.stat().st_size - history), 1, 2)
            self.assertAlmostEqual(number(adds) / a["multiply_adds"], 1, 1)
            self.assertEqual(ms, f"{a['latency_ms']:.4g} ms")
            self.assertEqual(loss, f"{a['loss']:.6g}")
            self.assertEqual(accuracy, f"{100 * a['accuracy']:.2f}%")

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
        self.assertIn("01-finetune runs: what it was asked for changed: finetune.train.optimizer.sgd.lr: 0.02, was 0.01", out)
        self.assertRegex(out, r"the training in \S+/01-finetune/train begins anew: .*: train.optimizer.sgd.lr: 0.02, was 0.01")
        self.assertIn("of before and goes", out)
        self.assertNotEqual(self.sha(self.stage("01-finetune.h5")), before)
        self.assertNotEqual(self.sha(self.stage("02-finetune.h5")), second)
        first = self.sha(self.stage("01-finetune.h5"))
        out = self.run_trainer(config, TWICE.replace("0.01", "0.02"), "--resume", "--from", "02-finetune")
        self.assertEqual(self.sha(self.stage("01-finetune.h5")), first)
        self.assertIn("stage 02-finetune\n", out)
        # what is trained in full does not come to be as other keys would have made it
        contents = self.contents("run")
        for key, said in (("train.optimizer.adamw.lr=0.004", "train.optimizer.adamw.lr: 0.004, was 0.005"),
                          ("data.augment.flip=true", "data.augment.flip: true, was false"), ("train.steps=20", "train.steps: 20, was 30")):
            out = self.run_trainer(config, TWICE.replace("0.01", "0.02"), "--resume", key, status=2)
            self.assertRegex(out, re.escape(f"command line: {key}: {said}") + ".*: the training is done, at step 30 of ")
            self.assertEqual(self.contents("run"), contents)
        # by keys: one that comes or goes is told as it is
        self.run_trainer(config, "pipeline=[train, fold]", "--resume")
        for options, said in (("{skip: [identity], bound: 0.1}", "fold.bound: 0.1, was auto, and 1 more"),
                              ("{bound: 0.1}", "fold.skip: not given, was [identity]"),
                              ("{skip: [pool], bound: 0.1}", "fold.skip: [pool], was not given")):
            out = self.run_trainer(config, f"pipeline=[train, {{fold: {options}}}]", "--resume", ranks=1)
            self.assertIn(f"01-fold runs: what it was asked for changed: {said}\n", out)
        # a pipeline that is shorter leaves what others made, says so, and has it back
        self.run_trainer(config, "pipeline=[train, fold, {finetune: {train: {steps: 2}}}]", "--resume", ranks=1)
        own = self.stage("02-fold.md")  # nobody's stage, but its name could be one's
        own.write_text("mine")
        out = self.run_trainer(config, "pipeline=[train, fold]", "--resume", ranks=1)
        self.assertRegex(out, r"/stages: of stages that the pipeline does not have stay 3: 02-f\S+, 02-f\S+, 02-f\S+\n")
        self.assertTrue(self.stage("02-finetune.h5").exists())
        out = self.run_trainer(config, "pipeline=[train, fold, {finetune: {train: {steps: 2}}}]", "--resume", ranks=1)
        self.assertIn("stage 02-finetune is done", out)
        self.assertNotIn("of stages that", out)
        self.assertEqual(own.read_text(), "mine")
        own.unlink()
        self.run_trainer(config, "--force")
        self.assertFalse(list(self.stage("").glob("*")))

    def test_files_gone(self):
        """A stage whose file beside its own is gone makes it again, and says which one it was."""
        config = self.config(every=50)
        pipeline = ("pipeline=[train, {profile: {mode: inference, batches: [1], runs: 1, counters: false}}, "
                    "{benchmark: {batches: [1], seconds: 0, runs: 2}}, {export: {external_mb: 1e-6}}, "
                    "{export: {format: npz}}, report]")
        self.run_trainer(config, pipeline, ranks=1)
        run = self.dir / "run"
        for gone, stage in (("stages/01-profile.flame.svg", 1), ("stages/02-benchmark.json", 2), ("stages/03-export.onnx", 3),
                            ("stages/03-export.onnx.data", 3), ("stages/04-export.load_model.py", 4), ("report.html", 5)):
            (run / gone).unlink()
            out = self.run_trainer(config, pipeline, "--resume", ranks=1)
            name = gone.split("/")[-1] if "/" in gone else f"../{gone}"
            self.assertRegex(out, rf"stage 0{stage}-\w+ runs: its file {re.escape(name)} is gone")
            self.assertEqual(out.count(" is done"), stage, out)
            self.assertTrue((run / gone).exists(), gone)
        self.assertEqual(self.run_trainer(config, pipeline, "--resume", ranks=1).count(" is done"), 6)
        for make, status in ((os.mkfifo, 0), (os.mkdir, 1)):  # something else in its place
            onnx = run / "stages/03-export.onnx"
            onnx.unlink()
            make(onnx)
            out = self.run_trainer(config, pipeline, "--resume", ranks=1, status=status)
            self.assertIn("stage 03-export runs: its file 03-export.onnx is gone", out)
            self.assertEqual(onnx.is_file(), status == 0)
            if status:
                self.assertRegex(out, r"error: \S*03-export.onnx\S*: ")
        # not where a model was made behind it, which may have taken hours
        pipeline = "pipeline=[train, {benchmark: {batches: [1], seconds: 0, runs: 2}}, {finetune: {train: {steps: 2}}}]"
        self.run_trainer(config, pipeline, "--force", ranks=1)
        tuned = self.arrays(self.stage("02-finetune.h5"))
        (run / "stages/01-benchmark.json").unlink()
        out = self.run_trainer(config, pipeline, "--resume", ranks=1)
        self.assertIn("warning: stage 01-benchmark: its file 01-benchmark.json is gone; --resume --from 01-benchmark makes it", out)
        self.assertEqual(out.count(" is done"), 3)
        self.assertEqual(tuned.keys(), self.arrays(self.stage("02-finetune.h5")).keys())
        self.run_trainer(config, pipeline, "--resume", "--from", "01-benchmark", ranks=1)
        self.assertTrue((run / "stages/01-benchmark.json").exists())

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
        self.assertFalse(self.stage("01-finetune.rejected.h5").exists())  # of the run before
        self.assert_same_model(self.dir / "run/model.h5", self.stage("01-finetune.h5"))
        self.assertIn("loss_rise", self.attributes(self.stage("01-finetune.h5"), "01-finetune")["missed"])
        worse = stage.replace("loss_rise: 0.01", "accuracy_drop: 0.001") % "fail"
        out = self.run_trainer(config, f"pipeline=[train, {worse}]", "--resume", status=1)
        self.assertRegex(out, r"stage 01-finetune: budget.accuracy_drop: 0\.\d+, at most 0.001 was asked for \(")
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
        self.assertRegex(out, r"at most 0.05 was asked for .*: again with prune.amount: 0.675, was 0.9\n")
        self.assertRegex(a["attempt_1"], r"budget.loss_rise: [\d.e+]+, at most 0.05")
        tries = sum(re.fullmatch(r"attempt_\d+", name) is not None for name in a)
        options = [a[f"attempt_{n}_options"] for n in range(1, tries + 1)] + [a["options"]]
        amounts = [re.search(r"amount: ([\d.e+-]+)", text)[1] for text in options]
        self.assertEqual(amounts, ["0.9", "0.675", "0.506", "0.38", "0.285", "0.214", "0.161", "0.121", "0.091"][:tries + 1])
        self.assertGreater(tries, 1)
        self.assertLessEqual(a["loss"] - a["loss_before"], 0.05)
        self.assertIn("stage 01-prune is done", self.run_trainer(config, f"pipeline=[train, {stage}]", "--resume"))
        stage = "{finetune: {train: {steps: 2, optimizer: {sgd: {lr: 30}}}, budget: {loss_rise: 0}, on_miss: retry}}"
        self.assertIn("budget.loss_rise", self.run_trainer(config, f"pipeline=[train, {stage}]", "--resume", status=1))

    def test_size(self):
        """How large a file's model is does not go by what its training noted beside it, nor by what a checkpoint holds."""
        config, sizes, files = self.config(), [], []
        for name, every in (("often", 1), ("seldom", 1000)):
            self.run_trainer(config, f"output={self.dir / name}", f"train.log_every={every}", "train.steps=300", ranks=1)
            for file in ("model.h5", "checkpoints/step-00000300.h5"):
                at = self.dir / name / file
                self.run_trainer("fold", at, ranks=1)
                found = self.attributes(at.with_name(f"{at.stem}-fold.h5"), "01-fold")
                files.append(at.stat().st_size)
                sizes.append(int(found["parent_bytes"]))
        self.assertGreater(files[0], files[2] + 10000)
        self.assertLess(abs(sizes[0] - sizes[2]), 100)
        self.assertGreater(files[3], files[2] + 10000)
        self.assertLess(max(sizes) - min(sizes), 5000)  # names and attributes of the arrays beside it

    def test_by_hand_at_once(self):
        """What a stage by hand makes is one job's at a time, with --force, too; another stage of the file goes on beside it."""
        self.run_trainer(self.config(every=50))
        model, run = self.dir / "run/model.h5", self.dir / "run"
        used = "model-benchmark is in use by another running job"
        one = self.start("benchmark", model, "batches=[1024]", "seconds=600", ranks=1)
        self.addCleanup(one.kill)
        lock = run / ".model-benchmark.lock"
        for _ in range(600):
            if lock.exists():
                break
            time.sleep(0.05)
        before = self.contents("run")
        for more in ((), ("--force",)):
            self.assertIn(used, self.run_trainer("benchmark", model, "batches=[1]", "seconds=0", *more, status=2))
        self.assertEqual(set(before), set(self.contents("run")))
        self.run_trainer("fold", model)
        os.kill(self.rank_pids(one.pid)[0], signal.SIGTERM)
        one.communicate(timeout=60)
        self.assertEqual(one.returncode, 75)
        self.assertFalse(lock.exists())
        lock.write_text("")  # of a job that was killed
        self.run_trainer("benchmark", model, "batches=[1]", "seconds=0", "runs=2")
        self.assertEqual(list(run.glob(".model*")), [])

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

    def test_any_command(self):
        """What a stage left, also one that rounds or freezes weights, is taken by every command that is about a model; by a run
        and a sweep it is refused, which say what takes it."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, fold, {quantize: {layers: all, samples: 32}}]")
        self.run_trainer("quantize", self.dir / "run/model.h5", "kind=float16", ranks=1)
        made = [self.stage("02-quantize.h5"), self.dir / "run/model-quantize.h5"]
        for file in made:
            checked = self.tool("check", file, "train.steps=7")
            self.assertIn("steps: 7", checked)
            self.assertIn("\npipeline: [train]\n", checked)
            self.assertIn("fake_quantize" if file == made[0] else "stored: float16", checked)
            again = self.dir / "again.yaml"
            again.write_text(checked)
            if file == made[0]:
                self.assertEqual(self.tool("check", again), checked)
            else:  # as a config it is to be trained
                self.assertRegex(self.tool("check", again, status=2),
                                 "again.yaml:[0-9]+:[0-9]+: .*its weight is stored as float16, and cannot be trained")
            self.tool("check", file, "--data")
            self.tool("inspect", file)
            self.tool("compare", file, made[0])
            self.run_trainer("evaluate", file)
            self.run_trainer("predict", file, "-o", self.dir / "out.npy", "--data", "eval", "--force")
            for stage, *options in (("fold",), ("benchmark", "batches=[1]", "seconds=0", "runs=2"), ("export", "format=npz"), ("report",)):
                self.run_trainer(stage, file, *options, "--force", ranks=1)
        self.assertRegex(self.tool("plan", made[0], "--ranks", 2), r"(?i)memory")
        self.assertIn("its weight is stored as float16, and cannot be trained", self.tool("plan", made[1], status=2))
        (self.dir / "sweep.yaml").write_text(f"config: {made[0]}\ngrid: {{train.steps: [1, 2]}}\n")
        for command in ((made[0],), ("sweep", made[0]), ("sweep", self.dir / "sweep.yaml")):
            out = self.run_trainer(*command, ranks=2, status=2)
            self.assertRegex(out, r"02-quantize.h5: is no config but HDF5, as run files are: trainer STAGE FILE works on such a model")
            self.assertEqual(out.count("error:"), 1, out)

    def test_wrong(self):
        config = self.config()
        for pipeline, said in (("[finetune]", "the first stage is train"), ("[train, train]", "stands twice"),
                               ("[train, {finetune: {train: {epcs: 1}}}]", 'did you mean "epochs"'),
                               ("[train, {finetune: {on_miss: never}}]", "fail, keep_parent, retry"),
                               ("[train, {export: {format: npz, sequence: dynamic}}]", "sequence: dynamic: only with format: onnx"),
                               ("[train, {export: {format: safetensors, sequence: fixed}}]", "sequence: fixed: only with format: onnx")):
            out = self.run_trainer(config, f"pipeline={pipeline}", status=2)
            self.assertIn(said, out)
            self.assertFalse((self.dir / "run").exists())
        self.assertIn("no such stage", self.run_trainer(config, "--until", "prune", status=2))
        self.assertIn("--resume", self.run_trainer(config, "--from", "train", status=2))

    def test_gone(self):
        """What the config says of layers that a stage took away is told and left out; what none ever had is an error."""
        config = self.config()
        batchnorm = '{match: "batchnorm*", lr: 0.001}'
        both = '{match: ["conv*", "batchnorm1.*"], lr: 0.002, decay_all: true}'
        given = ('train.freeze=["batchnorm*"]', "train.freeze_statistics=true"), (f"train.groups=[{batchnorm}, {both}]",)
        for keys, names, left in zip(given, ('freeze: nothing of its model is called "batchnorm*"',
                                             'groups: nothing of its model is called "batchnorm*", "batchnorm1.*"'), (None, ["conv*"])):
            with self.subTest(names):
                stages = "pipeline=[train, fold, {finetune: {train: {steps: 2}}}, {prune: {keep: [batchnorm1, conv2d2]}}]"
                self.tool("check", config, *keys, stages)
                out = self.run_trainer(config, *keys, stages, "--force", ranks=2)
                self.assertEqual(out.count(f"stage 01-fold: train.{names} any more"), 1, out)
                self.assertEqual(out.count("pipeline.3.prune.keep: there is no layer batchnorm1 any more"), 1, out)
                trained = yaml.safe_load((self.stage("02-finetune/train") / "config.yaml").read_text())["train"]
                self.assertEqual([g["match"] for g in trained["groups"]] if left else trained["freeze"], [left] if left else [])
                self.assertEqual(trained["freeze_statistics"], False)
                self.assertIn("stage 03-prune is done", self.run_trainer(config, *keys, stages, "--resume", ranks=2))
                self.run_trainer("finetune", self.stage("01-fold.h5"), "train={steps: 2}", "--force")
        self.assertIn('keep: there is no layer "batchnorm1"',
                      self.run_trainer("prune", self.stage("01-fold.h5"), "keep=[batchnorm1]", status=2))
        mixed = self.run_trainer(config, "data.augment={mixup: {}}", "pipeline=[train, {finetune: {teacher: model.h5}}]", "--force", status=2)
        self.assertRegex(mixed, r"data\.augment\.mixup: train\.distill is given: .* \(in the training of pipeline\.1\.finetune\)")
        self.assertNotIn("stage 01", mixed)

    REFUSED = (  # what follows `train`, where it is wrong from the line's beginning on, and what is said
        ("{quantize: {skip: [head, nolayer]}}", "nolayer", 'quantize.skip: there is no layer "nolayer"; there are: '),
        ("{quantize: {keep_float: 100}}", "100", "quantize.keep_float: 100 layers of 3 that can be computed in 8 bits"),
        ("{quantize: {skip: [conv2d1, conv2d2, head]}}", "{quantize", "quantize.kind: no layer can be computed in 8 bits\n"),
        ("{quantize: {calibrate: minmax, activations: dynamic}}", "minmax", "quantize.calibrate: with activations: dynamic"),
        ("{quantize: {kind: float16, samples: 16}}", "16}", "quantize.samples: means nothing with weights of 16 bits alone"),
        ("{quantize: {kind: bfloat16, layers: all}}", "all}", "quantize.layers: means nothing with weights of 16 bits alone"),
        ("{quantize: {kind: float16, skip: [head]}}", "[head]", "quantize.skip: means nothing with weights of 16 bits alone"),
        ("{quantize: {percentile: 99}}", "99}", "quantize.percentile: means nothing but with calibrate: percentile"),
        ("{quantize: {layers: all, seconds: 5}}", "5}", "quantize.seconds: means nothing with layers: all"),
        ("{quantize: {activations: dynamic, samples: 16}}", "16}", "quantize.samples: means nothing where nothing goes by data"),
        ("{prune: {keep: [haed]}}", "haed", 'prune.keep: there is no layer "haed": did you mean "head"?'),
        ("{prune: {kind: pattern, pattern: [4, 2]}}", "[4, 2]", "prune.pattern: expected [n, m] with n below m"),
        ("{prune: {pattern: [1, 4]}}", "[1, 4]", "prune.pattern: means nothing with kind: channels: leave one of them out"),
        ("{prune: {kind: weights, measure: latency}}", "latency", "prune.measure: means nothing with kind: weights"),
        ("{prune: {kind: weights, most: 0.5}}", "0.5}", "prune.most: means nothing with kind: weights"),
        ("{prune: {kind: weights, multiple: 8}}", "8}", "prune.multiple: means nothing with kind: weights"),
        ("{prune: {kind: weights, sensitivity: 0.1, global: false}}", "false", "prune.global: means nothing with kind: weights by sensitivity"),
        ("{prune: {kind: pattern, amount: 0.3}}", "0.3", "prune.amount: means nothing with kind: pattern"),
        ("{prune: {kind: pattern, global: false}}", "false", "prune.global: means nothing with kind: pattern"),
        ("{prune: {kind: pattern, sensitivity: 0.1}}", "0.1}", "prune.sensitivity: means nothing with kind: pattern"),
        ("{prune: {train: {epochs: x}}}", "x}", 'train.epochs: found "x", expected an integer from 1 to 1000000000, or none (in the training of pipeline.1.prune)'),
        ("{sketch: {match: nolayer}}", "nolayer", 'sketch.match: there is no layer "nolayer"'),
        ("{sketch: {match: relu*}}", "relu*", "sketch.match: none of the layers that it names can be sketched: relu1"),
        ("{fold: {skip: [foo]}}", "foo", 'fold.skip: there is no pass "foo"'),
        ("{fold: {budget: {accuracy_drop: 0.1}}}", "{accuracy", "fold.budget: there is no data.eval to measure on"),
        ("{finetune: {scales: learned}}", "learned", "finetune.scales: no weight is int8 and no layer rounds values"),
        ("{finetune: {train: {freeze: [nolayer.*]}}}", "nolayer", 'train.freeze: there is no parameter "nolayer.*"'),
        ("{finetune: {train: {freeze: ['*']}}}", "{freeze", "finetune.train: every parameter is frozen"),
        ("{finetune: {teacher: model.h5, features: [{student: nolayer, teacher: head}]}}", "nolayer",
         'finetune.features.0.student: there is no layer "nolayer"'),
        ('{export: {format: npz, map: {"head.*": "tail.*"}}}', "{\"head", "export.map: no name becomes head.weight"),
        ('{export: {format: safetensors, map: {"x.*": "head.*", "y.*": "head.*"}}}', "{\"x", "export.map: head.weight may be x.weight or y.weight"),
        ('{export: {format: hdf5, map: {"a/*": "*"}}}', "{\"a", "export.map: a/conv2d1.weight: a name with a slash would be a group in HDF5"),
        ("{export: {format: npz, transpose: [conv2d1.weight]}}", "[conv2d1", 'export.transpose: "conv2d1.weight": no matrix of the model has'),
        ("{export: {format: npz, ndim: {fc.bias: 2}}}", "{fc", 'export.ndim: "fc.bias": no array of the model has such a name'),
        ("{export: {format: npz, map: init_from}}", "init_from", "export.map: init_from: "),
        ("{export: {sequence: dynamic}}", "dynamic", "export.sequence: dynamic: no input of the model is a sequence"),
        ("{benchmark: {backends: [cpu, cpu]}}", "cpu]", "benchmark.backends: cpu stands twice"))
    BEHIND = (  # stages before decide
        ("{quantize: {kind: bfloat16}}, finetune", "finetune", "finetune.train: quantize stands before and leaves the weight of"),
        ("{quantize: {kind: float16}}, {prune: {by: taylor}}", "taylor", "prune.by: quantize stands before"),
        ("{quantize: {kind: float16}}, {prune: {train: {steps: 1}}}", "{steps", "prune.train: quantize stands before"),
        ("{quantize: {kind: float16}}, {prune: {rounds: 2}}", "{prune", "prune.train: quantize stands before"),
        ("{quantize: {kind: float16}}, quantize", "quantize", "quantize.kind: no layer can be computed in 8 bits: a stage before keeps weights in 16 bits"),
        ("{quantize: {layers: all}}, {quantize: {layers: all}}", "{quantize", "quantize.kind: no layer can be computed in 8 bits: a stage before keeps those"),
        ("{quantize: {layers: all}}, {sketch: {match: head}}", "head", "sketch.match: none of the layers that it names can be sketched: quantize stands before"),
        ("{sketch: {match: '*2'}}, {sketch: {match: conv2d2}}", "conv2d2}", "sketch.match: none of the layers that it names can be sketched: a sketch"),
        ("{sketch: {match: '*'}}, quantize", "quantize", "quantize.kind: no layer can be computed in 8 bits: a sketch stands before that takes those that could"),
        ("{sketch: {match: 'conv2d*'}}, {quantize: {keep_float: 1}}", "1}", "quantize.keep_float: 1 layers of 1 that can be computed in 8 bits"),
        ("{prune: {kind: pattern}}, {sketch: {match: head}}", "head", "sketch.match: none of the layers that it names can be sketched: prune stands before"))
    TAKEN = (  # names that a stage before makes or takes away, weights that can be trained all the same
        "fold, {quantize: {skip: [batchnorm1]}}", "fold, {finetune: {train: {freeze: [conv2d1.bias]}}}",
        "quantize, {finetune: {scales: learned, train: {freeze: ['*.learned_scale']}}}", "quantize, {prune: {keep: [relu1.steps]}}",
        "{quantize: {kind: float16, on_miss: keep_parent}}, finetune", "{quantize: {kind: float16}}, {finetune: {train: {freeze: ['*.weight']}}}",
        "quantize, {quantize: {layers: all}}", "{quantize: {layers: all, keep_float: 1}}, {sketch: {match: head}}",
        "{sketch: {match: conv2d2}}, {sketch: {match: 'conv2d*'}}", "{sketch: {match: 'conv2d*'}}, quantize", "{sketch: {match: '*', on_miss: keep_parent}}, quantize",
        "{prune: {kind: pattern, keep: [head]}}, {sketch: {match: head}}", "{benchmark: {models: [model.h5]}}", 'fold, {export: {format: npz, ndim: {conv2d1.bias: 3}}}',
        '{export: {format: npz, map: {"net.*": "*"}, transpose: [net.head.weight], ndim: {net.head.bias: 2}}}')

    def test_refused(self):
        """What cannot be is said before anything runs, where it stands in the file, under its key."""
        path = self.config()
        text = path.read_text()

        def check(stages, status=2):
            lines = [line for line in text.splitlines() if not ("accuracy_drop" in stages and line.startswith("  eval:"))]
            path.write_text("\n".join([*lines, f"pipeline: [train, {stages}]", ""]))
            return len(lines) + 1, self.tool("check", path, status=status)
        for stages, at, said in (*self.REFUSED, *self.BEHIND):
            line, out = check(stages)
            column = len("pipeline: [train, ") + stages.rindex(at) + 1
            place = 2 if (stages, at, said) in self.BEHIND else 1
            key = "" if said.startswith("train.") else f"pipeline.{place}."
            self.assertIn(f"run.yaml:{line}:{column}: {key}{said}", out)
        for stages in self.TAKEN:
            check(stages, status=0)
        # what only the data show
        line, _ = check("{finetune: {train: {batch: 5000}}}", status=0)
        out = self.run_trainer(path, "train.steps=2", "data.drop_last=true", status=2)
        self.assertRegex(out, rf"run.yaml:{line}:[0-9]+: train.batch: .* \(in the training of pipeline.1.finetune\)")
        shutil.rmtree(self.dir / "run")
        # what a stage before may change is only told, and refused by the stage itself before it begins
        unfit = "{export: {format: npz, map: {bias: head.bias, other: head.bias}}}"
        check(f"fold, {unfit}", status=0)
        out = self.run_trainer(path, "train.steps=1", ranks=2, status=2)
        told = "pipeline.2.export.map: head.bias may be bias or other: expected patterns that say which"
        self.assertEqual(out.count(f"{told} (of the model as it is now; stages before may change that"), 1, out)
        self.assertRegex(out[out.index("stage 02-export"):], rf"error: .*run.yaml:\d+:\d+: {told}\n")
        self.assertFalse(self.stage("02-export.npz").exists())
        shutil.rmtree(self.dir / "run")
        loss = CNN.replace("cross_entropy", "mse")
        out = self.run_trainer(self.config("values", text=loss), "pipeline=[train, {fold: {budget: {accuracy: 0.5}}}]", status=2)
        self.assertIn("pipeline.1.fold.budget: accuracy is asked for, which the loss does not have", out)
        self.assertFalse((self.dir / "values").exists())
        rows = self.config("rows", text=CNN.split("model:")[0] + "model: {{input: [5, 3], layers: [{{linear: {{out: 4}}}}], "
                           "loss: cross_entropy}}\ntrain: {{steps: 3, batch: 4, optimizer: {{sgd: {{lr: 0.1}}}}}}\n")
        self.assertIn("finetune.teacher: the model has a class for each of 5 rows of a sample",
                      self.tool("check", rows, "pipeline=[train, {finetune: {teacher: model.h5}}]", status=2))
        self.assertIn("there is no layer", self.run_trainer(path, f"pipeline=[train, {self.REFUSED[0][0]}]", status=2))
        self.assertFalse((self.dir / "run").exists())
        for stage, key in (("{finetune: {teacher: nofile.h5}}", "finetune.teacher"),
                           ("{benchmark: {models: [model.h5, nofile.h5]}}", "benchmark.models"),
                           ("fold, {benchmark: {models: [stages/02-fold.h5]}}", "benchmark.models")):
            for out in (self.run_trainer(path, f"pipeline=[train, {stage}]", status=2), self.tool("check", path, f"pipeline=[train, {stage}]", status=2)):
                self.assertRegex(out, rf"pipeline\.\d\.{key}: \S+\.h5: no such file, neither here nor in ")
            self.assertFalse((self.dir / "run/model.h5").exists())
        stage = f"pipeline=[train, {{benchmark: {{models: [model.h5, {path}]}}}}]"
        for out in (self.run_trainer(path, stage, ranks=0, status=1), self.tool("check", path, stage, status=1)):
            self.assertRegex(out, rf"pipeline\.1\.benchmark\.models: {path}: not an HDF5 file")
        self.assertFalse((self.dir / "run/model.h5").exists())

    @long
    def test_compress(self):
        """The config that ships keeps what it promises; of times how many times as fast it is, calls of both in turns."""
        vnni = "avx512_vnni" in pathlib.Path("/proc/cpuinfo").read_text()
        self.run_trainer(SOURCE / "configs/compress.yaml", f"output={self.dir / 'run'}", "run.threads=1",
                         *([] if vnni else ["pipeline.3.quantize={layers: all}"]), timeout=900)
        last = self.stage("03-quantize.h5")
        a = self.attributes(last, "00-train")
        b = self.attributes(last, "03-quantize")
        self.assertGreater(a["accuracy"] - 0.02, 0.9)
        self.assertLess(a["accuracy"] - b["accuracy"], 0.02)
        self.assertLess(b["multiply_adds"], 0.55 * a["multiply_adds"])
        self.assertLess(last.stat().st_size, 0.2 * (self.dir / "run/model.h5").stat().st_size)
        self.assertTrue(self.stage("05-export.onnx").exists())
        calls = {r["model"]: r for r in json.loads(self.stage("04-benchmark.json").read_text())["calls"] if r["batch"] == 1}
        with self.subTest("speed"):
            if not vnni:
                self.skipTest("this CPU does not add up products of 8 bits (AVX-512 VNNI)")
            self.assertGreater(calls["model.h5"]["quiet_ms"] / calls["this"]["quiet_ms"], 5, calls)


if __name__ == "__main__":
    main()
