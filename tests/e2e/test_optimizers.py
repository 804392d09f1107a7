"""Adam, RMSprop, LARS and LAMB through the trainer: stopped and resumed is the same bits, with an average of the
weights, in bfloat16, with the optimizer sharded over ranks and nodes; and sharded is the same bits as not."""
import os

import numpy as np

from harness import Case, main

OPTIMIZERS = {
    "adam": "{adam: {lr: 0.005, weight_decay: 0.01}}",
    "rmsprop": "{rmsprop: {lr: 0.002, momentum: 0.9, centered: true}}",
    "lars": "{lars: {lr: 0.5, momentum: 0.9, weight_decay: 0.001}}",
    "lamb": "{lamb: {lr: 0.01, weight_decay: 0.01}}",
}
STEPS, CUT = 14, 9  # the epoch of 103 samples ends with a short batch at step 7


class Optimizers(Case):
    """Each way of training is run in one piece, and in two."""

    def check(self, *options, ranks=3, env=None, **values):
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                arguments = ("train.schedule=constant", f"train.optimizer={optimizer}", "train.ema=0.9", "--force", *options)
                config = self.config("whole", steps=STEPS, every=CUT, **values)
                self.run_trainer(config, *arguments, ranks=ranks, env=env)
                losses = self.losses("whole")
                self.assertLess(np.mean(losses[-3:]), losses[0])
                config = self.config("cut", steps=STEPS, every=CUT, **values)
                self.run_trainer(config, *arguments, f"train.steps={CUT}", ranks=ranks, env=env)
                arguments = [a for a in arguments if a != "--force"]
                self.run_trainer(config, *arguments, "--resume", ranks=ranks, env=env)
                self.assertEqual(self.losses("cut"), losses)
                self.same_checkpoint("cut", "whole")

    def same_checkpoint(self, a, b):
        """Weights, moments and the average."""
        a, b = (self.arrays(self.dir / name / f"checkpoints/step-{STEPS:08}.h5") for name in (a, b))
        keys = [k for k in b if k.startswith(("model/", "optimizer/"))]
        self.assertTrue(any(k.startswith("optimizer/ema/") for k in keys))
        self.assertEqual(sorted(keys), sorted(k for k in a if k.startswith(("model/", "optimizer/"))))
        for k in keys:
            np.testing.assert_array_equal(a[k], b[k], err_msg=k)

    def test_resumed(self):
        self.check()

    def test_bf16(self):
        self.check("train.precision=bf16")

    def test_sharded(self):
        self.check("run.collectives=mpi", "run.shard_optimizer=on")

    def test_sharded_over_nodes(self):
        self.check("run.bucket_mb=0.001", "run.shard_optimizer=on", ranks=4, env={"TRIREME_FAKE_NODES": "2"})

    def test_sharded_is_whole(self):
        """Norms are of whole parameters: the same sums in the same order, wherever a parameter is cut."""
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                for shard in ("on", "off"):
                    self.run_trainer(self.config(shard, steps=STEPS), f"train.optimizer={optimizer}", "train.ema=0.9",
                                     "run.bucket_mb=0.001", f"run.shard_optimizer={shard}", "--force", ranks=4,
                                     env={"TRIREME_FAKE_NODES": "2"})
                self.assertEqual(self.losses("on"), self.losses("off"))
                self.assert_same_model(self.dir / "on/model.h5", self.dir / "off/model.h5")

    def test_killed(self):
        """The newest checkpoint is gone, as after a kill: from the one before it the same bits."""
        for name, optimizer in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                arguments = (f"train.optimizer={optimizer}", "train.ema=0.9")
                config = self.config("killed", steps=STEPS, every=CUT)
                self.run_trainer(config, *arguments, "--force", ranks=2)
                losses, before = self.losses("killed"), self.arrays(self.dir / "killed/model.h5")
                os.unlink(self.dir / f"killed/checkpoints/step-{STEPS:08}.h5")
                self.run_trainer(config, *arguments, "--resume", ranks=2)
                self.assertEqual(self.losses("killed"), losses)
                after = self.arrays(self.dir / "killed/model.h5")
                for k in (k for k in before if k.startswith("model/")):
                    np.testing.assert_array_equal(after[k], before[k], err_msg=k)


if __name__ == "__main__":
    main()
