"""Adam, RMSprop, LARS and LAMB on the stand-in for a GPU: recorded steps are the same bits as steps one by one, near the
CPU's, in bfloat16 and sharded over ranks, with an average of the weights; stopped and resumed is the same bits."""
import numpy as np

from gpu import GpuCase
from harness import TRAINER, main
from test_gpu import FP32
from test_optimizers import CUT, OPTIMIZERS, STEPS

NEAR = dict(rtol=0.1, atol=0.05)


class GpuOptimizers(GpuCase):
    def options(self, optimizer):
        return "train.schedule=constant", f"train.optimizer={optimizer}", "train.ema=0.9", "--force"

    def run_one(self, name, *arguments, ranks=3, program=None):
        self.run_trainer(self.config(name, steps=STEPS, every=CUT), *arguments, ranks=ranks,
                         **({"program": program} if program else {}))
        return self.losses(name)

    def test_recorded(self):
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                self.check_recorded(self.options(optimizer))

    def check_recorded(self, options):
        recorded = self.run_one("recorded", *options)
        self.assertEqual(self.run_one("off", *options, "run.cuda_graph=off"), recorded)
        self.assert_same_model(self.dir / "recorded/model.h5", self.dir / "off/model.h5")
        cpu = self.run_one("cpu", *options, "device=cpu", program=TRAINER)
        np.testing.assert_allclose(recorded, cpu, **FP32)

    def test_bf16(self):
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                self.check_bf16(self.options(optimizer))

    def check_bf16(self, options):
        """The same bits recorded and step by step, and near what float32 gives: steps of Adam's kind go by a gradient's
        sign at first, so that what is rounded to 8 bits goes its own way by some percent."""
        exact = self.run_one("fp32", *options, ranks=2)
        rounded = self.run_one("bf16", *options, "train.precision=bf16", ranks=2)
        self.assertEqual(self.run_one("off", *options, "train.precision=bf16", "run.cuda_graph=off", ranks=2), rounded)
        self.assertNotEqual(rounded, exact)
        np.testing.assert_allclose(rounded, exact, **NEAR)

    def test_resumed(self):
        """By NCCL, and through the host."""
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                self.check_resumed(self.options(optimizer))

    def check_resumed(self, options):
        for more in (("run.shard_optimizer=on",), ("run.collectives=mpi", "run.shard_optimizer=on")):
            whole = self.run_one("whole", *options, *more)
            self.run_one("cut", *options, *more, f"train.steps={CUT}")
            go_on = [o for o in options if o != "--force"]
            self.run_trainer(self.config("cut", steps=STEPS, every=CUT), *go_on, *more, "--resume", ranks=3)
            self.assertEqual(self.losses("cut"), whole)
            self.assert_same_model(self.dir / "cut/model.h5", self.dir / "whole/model.h5")


if __name__ == "__main__":
    main()
