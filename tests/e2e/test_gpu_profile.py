"""Profiles on a GPU, by the stand-in: the stage, and run.profile. What anything takes there says nothing."""
import json
import xml.dom.minidom

import h5py
import numpy as np

from gpu import GpuCase
from harness import main
from traces import check_trace


class GpuProfile(GpuCase):
    def test_stage(self):
        """Probes are of sizes that suit the device, so that it ends; of each type that it has there is a peak."""
        self.run_trainer(self.config(steps=2, every=2), "pipeline=[train, {profile: {batches: [1, 3], runs: 2}}]")
        at = self.dir / "run/stages"
        machine = json.loads((self.dir / "run/machine.json").read_text())
        for kind in ("fp32", "bf16", "fp16", "int8"):
            self.assertGreater(machine[kind], 0)
            self.assertRegex(machine[f"{kind}_by"], "^a (product|convolution) of ")
        with h5py.File(at / "01-profile.h5") as f:
            found = f["stages/01-profile"]
            self.assertEqual(found.attrs["no_counters"], b"they are the CPU's")
            for table in ("inference_1", "inference_3", "train_8"):
                self.assertAlmostEqual(found[table]["share"][()].sum(), 1, places=9)
                self.assertTrue((found[table]["ms"][()] > 0).any())
                self.assertGreater(found[table + "_memory_peak"]["bytes"][()].sum(), 0)
            self.assertAlmostEqual(found["inference_3/flops"][()].sum(), 3 * found["inference_1/flops"][()].sum())
        self.assertIn(";update;all;adamw ", (at / "01-profile.folded").read_text())
        check_trace(self, at / "01-profile.trace.json", 1)
        for picture in ("flame", "roofline"):
            xml.dom.minidom.parse(str(at / f"01-profile.{picture}.svg"))

    def test_training(self):
        """Steps that are issued one by one: laps of the stream, and the ops of each step's last micro-batch."""
        config = self.config(steps=8, every=8)
        said = self.run_trainer(config, "run.profile={wait: 1, warmup: 1, active: 3}", "run.cuda_graph=off", "train.accumulate=2")
        self.assertIn("run.profile: steps 3 to 5 of all ranks", said)
        events = check_trace(self, self.dir / "run/trace.json", 2)
        for rank in (0, 1):
            mine = [e for e in events if e["pid"] == rank]
            self.assertEqual([e["args"]["step"] for e in mine if e["name"] == "step"], [3, 4, 5])
            for lap in ("compute", "wait for other ranks"):
                self.assertEqual(sum(e["name"] == lap for e in mine), 3)
            ops = [e for e in mine if e["cat"] == "ops"]
            self.assertEqual(sum(e["name"] == "cross_entropy" for e in ops), 3)
            self.assertTrue(any(e["args"].get("flops", 0) > 0 and e["args"]["detail"] == "head" for e in ops))
        self.assertRegex((self.dir / "run/profile.txt").read_text(), r"^training step, batch 4: [\d.]+ ms \(mean of 3 steps\)")
        self.assertIn(";backward;head;linear.grad_weight ", (self.dir / "run/profile.folded").read_text())
        for picture in ("flame", "roofline"):
            xml.dom.minidom.parse(str(self.dir / f"run/profile.{picture}.svg"))
        profiled = self.losses()
        self.run_trainer(config, f"output={self.dir}/plain", "run.cuda_graph=off", "train.accumulate=2")
        np.testing.assert_array_equal(profiled, self.losses("plain"))

    def test_recorded(self):
        """Steps that are replayed as a whole have laps; their ops are not timed, and it says how they would be."""
        said = self.run_trainer(self.config(steps=8, every=8), "run.profile={wait: 1, warmup: 1, active: 3}")
        self.assertIn("run.cuda_graph=off times them", said)
        events = check_trace(self, self.dir / "run/trace.json", 2)
        self.assertEqual(sum(e["name"] == "compute" for e in events), 2 * 3)
        self.assertEqual({e["cat"] for e in events}, {"step"})
        self.assertFalse((self.dir / "run/profile.txt").exists())


if __name__ == "__main__":
    main()
