"""Learning from another network, in a training and in a stage."""
import os
import re
import signal

import h5py
import numpy as np

from harness import CNN, RANKS, main
from stages import StageCase


class Distill(StageCase):
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

    def test_teacher_to_come(self):
        """One that a later stage makes, or this one, is refused before anything is trained, though a run before left such a file; one
        of a stage before is waited for."""
        config = self.config(steps=4, every=4)
        self.run_trainer(config, "pipeline=[train, fold, {prune: {amount: 0.2}}]", ranks=0)
        before = self.contents("run")
        stages = ("{finetune: {teacher: stages/02-prune.h5, train: {steps: 1}}}", "{benchmark: {models: [stages/02-prune.h5]}}",
                  "{finetune: {train: {steps: 1, distill: {teacher: run/stages/02-prune.h5}}}}")
        for stage, key in zip(stages, ("finetune.teacher", "benchmark.models", "finetune.train")):
            for command in ((config, "--force"), ("check", config)):
                out = self.run_trainer(*command, f"pipeline=[train, {stage}, {{prune: {{amount: 0.2}}}}]", ranks=0, status=2)
                self.assertIn(f"pipeline.1.{key}: stages/02-prune.h5: a later stage makes it", out)
            self.assertEqual(self.contents("run"), before)
        out = self.run_trainer(config, "--force", "pipeline=[train, {finetune: {teacher: stages/01-finetune.h5, train: {steps: 1}}}]", ranks=0, status=2)
        self.assertIn("this stage makes it itself", out)
        # however the run's file is named
        here = self.dir.resolve()
        (here / "link").symlink_to(here)
        for teacher in ("./stages/02-prune.h5", "run/../run/stages/02-prune.h5", "stages/../stages/02-prune.h5", here / "run/stages/02-prune.h5", here / "link/run/stages/02-prune.h5"):
            for output in ("run", here / "link/run"):
                for stage, key in ((f"{{finetune: {{teacher: {teacher}, train: {{steps: 1}}}}}}", "finetune.teacher"), (f"{{benchmark: {{models: [{teacher}]}}}}", "benchmark.models")):
                    with self.subTest(teacher=teacher, output=output, key=key):
                        out = self.run_trainer(config, "--force", f"output={output}", f"pipeline=[train, {stage}, {{prune: {{amount: 0.2}}}}]", ranks=0, status=2)
                        self.assertRegex(out, rf"pipeline\.1\.{key}: stages/02-prune\.h5: a later stage makes it")
                        self.assertEqual(self.contents("run"), before)
        for i, teacher in enumerate(("./model.h5", "fresh1/../fresh1/model.h5", here / "link/fresh2/model.h5")):
            out = self.run_trainer(config, f"output=fresh{i}", f"pipeline=[train, {{finetune: {{teacher: {teacher}, train: {{steps: 1}}}}}}]", ranks=0)
            self.assertIn("stage 01-finetune done", out)
        # what nothing makes, and no stage could open, is refused before the training; in the run's folder too
        (self.dir / "run/junk.h5").write_text("no run file")
        for teacher, said, status in (("nothere/../model.h5", "no such file", 2), ("model.h5/", "no such file", 2),
                                      ("model.h5/../model.h5", "no such file", 2), ("junk.h5", "run/junk.h5: not an HDF5 file", 1),
                                      *((f"checkpoints/{name}.h5", "no such file", 2) for name in ("any", "step-7", "step-x", "step-00000007.old"))):
            for stage, key in ((f"{{finetune: {{teacher: {teacher}, train: {{steps: 1}}}}}}", "finetune.teacher"), (f"{{benchmark: {{models: [{teacher}]}}}}", "benchmark.models")):
                with self.subTest(teacher=teacher, key=key):
                    out = self.run_trainer("check", config, f"pipeline=[train, {stage}]", ranks=0, status=status)
                    self.assertIn(f"pipeline.1.{key}: ", out)
                    self.assertIn(said, out)
        # checkpoints that the training may write; best.h5 where it does
        for name, options, status in (("step-00000007", (), 0), ("best", (), 0), ("best", ("train.checkpoint.best=false",), 2)):
            out = self.run_trainer("check", config, "output=fresh", f"pipeline=[train, {{benchmark: {{models: [checkpoints/{name}.h5]}}}}]", *options, ranks=0, status=status)
            self.assertEqual("no such file, neither here nor in fresh" in out, status == 2)
        # from below the folder, where the same name would lie within it too
        whole, self.dir = self.dir, self.dir / "run/sub"
        self.dir.mkdir()
        for teacher, status in (("model.h5", 0), ("stages/02-prune.h5", 2)):
            out = self.run_trainer("check", config, "output=..", f"pipeline=[train, {{benchmark: {{models: [{teacher}]}}}}, {{prune: {{amount: 0.2}}}}]", ranks=0, status=status)
            self.assertEqual("a later stage makes it" in out, status == 2)
        self.dir = whole
        for teacher in ("teacher: model.h5, train: {steps: 1}", "train: {steps: 1, distill: {teacher: other/model.h5}}"):
            out = self.run_trainer(config, f"output={'other' if 'other' in teacher else 'new'}", f"pipeline=[train, {{finetune: {{{teacher}}}}}]", ranks=0)
            self.assertIn("stage 01-finetune done", out)

    def test_distilling_stage(self):
        """finetune with the run's own model as the teacher, whose inputs are normalized otherwise than the pruned model's, on
        features too; what does not fit is told by all ranks once."""
        config = self.config(every=50)
        stage = ("{finetune: {teacher: model.h5, temperature: 2, features: [{student: relu1, teacher: relu1, weight: 0.1}], "
                 "train: {steps: 12, checkpoint: {every_steps: 4}}}}")
        pipeline = f"pipeline=[train, {{fold: {{normalize: true}}}}, {stage}]"
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
                (("teacher=nowhere.h5",), "finetune.teacher: nowhere.h5: no such file", 2),
                ((f"teacher={config}",), f"pipeline.0.finetune.teacher: {config}: not an HDF5 file", 1),
                (("teacher=model.h5", "features=[{student: head, teacher: relu1}]"), "pipeline.0.finetune.features=[{student: head, teacher: relu1}]: train.distill.features: layer \"head\" of the model gives (4), layer \"relu1\"", 2),
                (("teacher=model.h5", "features=[{student: nothing, teacher: relu1}]"), 'there is no layer "nothing"', 2),
                (("teacher=model.h5", "features=7"), "expected a list", 2),
                (("teacher=model.h5", "train.distill={teacher: a.h5, hard: 0}"),
                 "train: distill: {teacher: a.h5, hard: 0}, and pipeline.0.finetune.teacher: model.h5: expected one", 2),
                (("teacher=model.h5", "soft=0", "hard=0"), "nothing would be learned", 2)):
            out = self.run_trainer("finetune", model, *keys, "train.steps=2", "--force", status=status)
            self.assertEqual(out.count(said), 1, out)

        # in a pipeline before anything is trained, and by check: with the option's place
        lines = ["pipeline:", "  - train", "  - prune: {amount: 0.25}", "  - finetune:", f"      teacher: {model}",
                 "      features: [{student: relu1, teacher: relu1, weight: 0.1}]", "      train: {steps: 2}"]
        for at, text, said, status in (
                (4, f"      teacher: {other}", f"finetune.teacher: {other} gives 5 classes, the model 4", 2),
                (4, f"      teacher: {config}", "finetune.teacher: .*not an HDF5 file", 1),
                (4, "      teacher: nowhere.h5", "finetune.teacher: nowhere.h5: no such file", 2),
                (5, "      features: [{student: relu1, teacher: gelu1}]", f'finetune.features: {model} has no layer "gelu1"', 2)):
            taught = self.config("early", every=50)
            place = len(taught.read_text().splitlines()) + 1 + at
            taught.write_text(taught.read_text() + "\n".join([*lines[:at], text, *lines[at + 1:], ""]))
            for run in (lambda: self.run_trainer(taught, status=status), lambda: self.tool("check", taught, status=status)):
                out = run()
                self.assertEqual(len(re.findall(f"early.yaml:{place}:[0-9]+: pipeline.2.{said}", out)), 1, out)
            self.assertFalse(list(self.dir.glob("early/checkpoints/*")))
        for stage in ("finetune", "prune"):  # as keys of the training within a stage
            for text, said, status in ((other, f"{other} gives 5 classes, the model 4", 2), ("nowhere.h5", ".*No such file", 1)):
                taught = self.config("early", every=50)
                place = len(taught.read_text().splitlines()) + 4
                taught.write_text(taught.read_text() + "\n".join(["pipeline:", "  - train", f"  - {stage}:", "      train: {steps: 2, "
                                  f"distill: {{teacher: {text}}}}}", ""]))
                for run in (lambda: self.run_trainer(taught, status=status), lambda: self.tool("check", taught, status=status)):
                    out = run()
                    self.assertEqual(len(re.findall(f"early.yaml:{place}:[0-9]+: train.distill.teacher: {said}", out)), 1, out)
                self.assertFalse(list(self.dir.glob("early/checkpoints/*")))
        # what a stage before makes of its layers is not known yet: of features that prune narrows the stage itself tells
        taught.write_text(self.config("early", every=50).read_text() + "\n".join([*lines, ""]))
        self.tool("check", "--data", taught)
        out = self.run_trainer(taught, status=2)
        self.assertRegex(out, r'early.yaml:\d+:17: train.distill.features: layer "relu1" of the model gives .* '
                              r'\(in the training of pipeline.2.finetune\)')
        self.assertTrue((self.dir / "early/stages/01-prune.h5").exists())
        out = self.tool("check", config, f"train.distill={{teacher: {other}}}", status=2)
        self.assertEqual(out.count(f"train.distill.teacher: {other} gives 5 classes"), 1, out)
        self.assertIn("No such file", self.tool("check", config, "train.distill={teacher: nowhere.h5}", status=1))

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


if __name__ == "__main__":
    main()
