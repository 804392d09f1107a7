"""Profiles: the stage, with what it leaves beside its file, and run.profile in a training job of several ranks."""
import json
import os
import re
import xml.dom.minidom

import h5py
import numpy as np

from harness import Case, main
from traces import check_trace


class Stage(Case):
    def test_stage(self):
        stages = "pipeline=[train, {profile: {batches: [1, 3], runs: 3}}]"
        said = self.run_trainer(self.config(steps=4, every=4), stages, "run.threads=1", ranks=2)
        self.assertIn("training step, batch 8", said)
        at = self.dir / "run" / "stages"
        with h5py.File(at / "01-profile.h5") as f:
            found = f["stages/01-profile"]
            self.assertIn("peak_fp32_gflops", found.attrs)
            for table in ("inference_1", "inference_3", "train_8", "train_1"):
                share = found[table]["share"][()]
                self.assertAlmostEqual(share.sum(), 1, places=9)
                np.testing.assert_array_equal(found[table]["bottleneck"][()] == 1, share > 0.2)
                self.assertGreater(found[table + "_memory_peak"]["bytes"][()].sum(), 0)
            flops = [found[f"inference_{b}"]["flops"][()].sum() for b in (1, 3)]
            self.assertAlmostEqual(flops[1], 3 * flops[0])
        self.assertEqual({e["pid"] for e in check_trace(self, at / "01-profile.trace.json", 1)}, {0})
        for picture in ("flame", "roofline"):
            xml.dom.minidom.parse(str(at / f"01-profile.{picture}.svg"))
        for line in (at / "01-profile.folded").read_text().splitlines():
            frames, count = line.rsplit(" ", 1)
            self.assertEqual(len(frames.split(";")), 4)
            self.assertGreaterEqual(int(count), 0)
        machine = json.loads((self.dir / "run" / "machine.json").read_text())
        self.assertGreater(machine["fp32"], 0)
        self.assertRegex(machine["fp32_by"], "^a (product|convolution) of ")
        self.assert_same_model(self.dir / "run" / "model.h5", at / "01-profile.h5")

        # what is known of the machine is not measured again
        (self.dir / "run" / "machine.json").write_text(json.dumps({**machine, "fp32": 12345e9}))
        self.tool("profile", "run/model.h5", "mode=inference", "runs=1", "batches=[2,2]")  # what is listed twice is measured once
        with h5py.File(self.dir / "run" / "model-profile.h5") as f:
            self.assertEqual(f["stages/01-profile"].attrs["peak_fp32_gflops"], 12345)
            self.assertNotIn("train_16", f["stages/01-profile"])
        # but where an op is above it: whatever was measured beside other work
        (self.dir / "run" / "machine.json").write_text(json.dumps({**machine, "fp32": 1000}))
        said = self.run_trainer("profile", "run/model.h5", "mode=inference", "runs=1", "--force", ranks=1)
        self.assertRegex(said, r"of the peak of fp32 as it was measured, 1e-06 GFLOP/s: measured again")
        self.assertGreater(json.loads((self.dir / "run" / "machine.json").read_text())["fp32"], 1e6)
        # somebody's file of that name
        (self.dir / "run" / "machine.json").write_text('{"mine": 1}')
        said = self.run_trainer("profile", "run/model.h5", "mode=inference", "runs=1", "--force", ranks=0)
        self.assertRegex(said, 'what this machine can do is not kept: .*unknown key "mine"')
        self.assertEqual((self.dir / "run" / "machine.json").read_text(), '{"mine": 1}')

    def test_updates(self):
        """A step ends with the update of the training, whichever it is."""
        self.run_trainer(self.config(steps=1, every=1), ranks=0)
        rates = {"sgd": 0.1, "adamw": 0.001, "lion": 0.001, "adam": 0.001, "rmsprop": 0.001, "lars": 0.1, "lamb": 0.001}
        for name, lr in rates.items():
            said = self.run_trainer("profile", "run/model.h5", "mode=train", "train_batch=4", "runs=1", "--force",
                                    f"train.optimizer={{{name}: {{lr: {lr}}}}}", "run.threads=1", ranks=0)
            self.assertIn("training step, batch 4", said)
            self.assertIn(f";update;all;{name} ", (self.dir / "run" / "model-profile.folded").read_text())


class Training(Case):
    def test_job(self):
        config = self.config(steps=12, every=6)
        said = self.run_trainer(config, f"output={self.dir}/profiled", "run.profile={wait: 1, warmup: 1, active: 4}",
                                "train.accumulate=2", "pipeline=[train, report]", ranks=2)
        self.assertIn("run.profile: steps 3 to 6 of all ranks", said)
        # what communication adds: a part of the step, and of each bucket's way no more than all of it
        step, exposed = map(float, re.search(r"  step ([\d.]+): .*exposed communication ([\d.]+),", said).groups())
        self.assertLessEqual(exposed, step)
        buckets = re.findall(r"bucket \d+, \d+ bytes: ([\d.]+) from ready to reduced, ([\d.]+) of it exposed", said)
        self.assertTrue(buckets)
        for whole, bare in buckets:
            self.assertLessEqual(float(bare), float(whole))
        events = check_trace(self, self.dir / "profiled" / "trace.json", 2)
        waits = [e for e in events if e["pid"] == 0 and e["name"] == "wait for gradients"]
        self.assertAlmostEqual(sum(e["dur"] for e in waits) / 1e3 / 4, exposed, delta=1e-3)  # of printed digits
        for rank in (0, 1):
            mine = [e for e in events if e["pid"] == rank]
            steps = [e for e in mine if e["name"] == "step"]
            self.assertEqual([e["args"]["step"] for e in steps], [3, 4, 5, 6])
            for part, times in {"wait for data": 2, "forward and backward": 2, "wait for gradients": 1, "update": 1,
                                "hand on weights": 1}.items():
                self.assertEqual(sum(e["name"] == part for e in mine), 4 * times, part)
            ops = [e for e in mine if e["cat"] == "ops"]
            self.assertEqual(sum(e["name"] == "cross_entropy" for e in ops), 4 * 2)
            self.assertTrue(any(e["args"].get("flops", 0) > 0 and e["args"]["detail"] == "head" for e in ops))
            reduced = [e for e in mine if e["ph"] == "b"]
            self.assertEqual({e["args"]["step"] for e in reduced}, {3, 4, 5, 6})
            for e in mine:  # what belongs to a step lies in it
                whole = next(s for s in steps if s["args"]["step"] == e["args"]["step"])
                self.assertGreaterEqual(e["ts"], whole["ts"] - 1)
                self.assertLessEqual(e["ts"] + e.get("dur", 0), whole["ts"] + whole["dur"] + 1)
        # the ranks of a step meet: on one clock their steps overlap
        for step in (3, 4, 5, 6):
            a, b = (next(e for e in events if e["pid"] == r and e["name"] == "step" and e["args"]["step"] == step)
                    for r in (0, 1))
            self.assertLess(max(a["ts"], b["ts"]), min(a["ts"] + a["dur"], b["ts"] + b["dur"]))

        self.check_files(said)

    def check_files(self, said):
        """Beside the trace a profile of rank 0's steps, what it waited for among them; the report has it."""
        folder = self.dir / "profiled"
        step = float(re.search(r"  step ([\d.]+):", said)[1])
        rows = {}
        for line in (folder / "profile.folded").read_text().splitlines():
            frames, count = line.rsplit(" ", 1)
            title, *frames = frames.split(";")
            self.assertEqual(title, "training step, batch 8")
            rows[tuple(frames)] = rows.get(tuple(frames), 0) + int(count) * 1e-6
        self.assertLessEqual({"forward", "loss", "backward", "update", "wait"}, {part for part, *_ in rows})
        for row in (("backward", "head", "linear.grad_weight"), ("update", "all", "adamw"), ("wait", "gradients", "wait for gradients")):
            self.assertGreater(rows[row], 0)
        self.assertLess(sum(rows.values()), 1.01 * step)
        table = (folder / "profile.txt").read_text()
        self.assertIn(f"training step, batch 8: {step:.4f} ms (mean of 4 steps)", table)
        self.assertIn("conv2d.grad_weight", table)
        self.assertIn("most in use at once", table)
        flops = float(re.search(r"(?m)^  head +linear +[\d.]+ +[\d.]+ +([\d.]+) ", table)[1])
        self.assertAlmostEqual(flops, 2 * 8 * 288 * 4 * 1e-6, delta=1e-5)  # of the whole step, in two micro-batches
        for picture in ("flame", "roofline"):
            xml.dom.minidom.parse(str(folder / f"profile.{picture}.svg"))
        self.assertGreater(json.loads((folder / "machine.json").read_text())["fp32"], 0)
        page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
        self.assertIn("Where the time of a step went", page)
        self.assertIn((folder / "profile.flame.svg").read_text().split("<svg", 1)[1], page)
        self.assertIn("![profile.roofline.svg](profile.roofline.svg)", text)
        # what was probed for is no part of what the training took
        if os.access("/proc/self/clear_refs", os.W_OK):
            self.assertLess(self.records("profiled", "end")[-1]["peak_rss_mb"], 150)

    def test_nothing_changes(self):
        config = self.config(steps=12, every=6)
        self.run_trainer(config, ranks=2)
        self.run_trainer(config, f"output={self.dir}/profiled", "run.profile.active=5", ranks=2)
        self.assertEqual(self.losses(), self.losses("profiled"))
        self.assert_same_model(self.dir / "run" / "model.h5", self.dir / "profiled" / "model.h5")

    def test_short(self):
        """A run that ends before enough steps were seen writes those there are; one that saw none, nothing."""
        config = self.config(steps=5, every=5)
        self.assertIn("steps 4 to 5", self.run_trainer(config, "run.profile.active=50", ranks=1))
        self.assertEqual(len([e for e in check_trace(self, self.dir / "run" / "trace.json", 1)
                              if e["name"] == "step"]), 2)
        self.run_trainer(config, f"output={self.dir}/none", "run.profile={active: 5, wait: 100}", ranks=1)
        self.assertEqual([n for n in ("trace.json", "profile.txt", "machine.json") if (self.dir / "none" / n).exists()], [])


if __name__ == "__main__":
    main()
