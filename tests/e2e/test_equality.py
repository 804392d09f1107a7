"""N ranks, micro-batches and uneven or empty shares give what one rank gives on the whole batch."""
import os
import re

import numpy as np

from harness import Case, main

# float32: the order of summation differs; a few ulp a step, amplified by training. bfloat16: activations
# are rounded alike on all rank counts; only sums differ, and one flipped rounding is 2^-8.
FP32 = dict(rtol=2e-4, atol=2e-5)
BF16 = dict(rtol=3e-2, atol=1e-2)


class Equality(Case):
    def losses_at(self, ranks, name, *overrides, **values):
        config = self.config(name, **values)
        self.run_trainer(config, *overrides, ranks=ranks)
        self.assertEqual([r["step"] for r in self.records(name)], list(range(1, values.get("steps", 30) + 1)))
        return self.losses(name), self.records(name, "eval")

    def check(self, tolerance, *overrides, ranks=(2, 3, 4), **values):
        values.setdefault("steps", 14)
        whole, whole_eval = self.losses_at(1, "one", *overrides, **values)
        self.assertLess(np.mean(whole[-3:]), whole[0])
        for n in ranks:
            parts, parts_eval = self.losses_at(n, f"n{n}", *overrides, **values)
            np.testing.assert_allclose(parts, whole, err_msg=f"{n} ranks", **tolerance)
            self.assertEqual(len(parts_eval), values["steps"] // 10 + (values["steps"] % 10 > 0))
            for a, b in zip(parts_eval, whole_eval, strict=True):
                self.assertEqual(a["samples"], 40)
                np.testing.assert_allclose(a["loss"], b["loss"], **tolerance)

    def test_uneven_shares(self):
        self.check(FP32)  # 103 samples, batch 16: the seventh step of an epoch has 7 samples

    def test_empty_ranks(self):
        self.check(FP32, batch=3, ranks=(2, 4), steps=40)  # 4 ranks: one has none; epochs end with 1 sample

    def test_plain_mpi(self):
        self.check(FP32, "run.collectives=mpi", ranks=(3,))

    def test_sharded(self):
        """An optimizer over all ranks, by plain MPI and over pretended nodes."""
        self.check(FP32, "run.collectives=mpi", "run.shard_optimizer=on", "train.ema=0.9", ranks=(2, 3, 4))
        whole = self.losses("one")
        for nodes, ranks in ((2, 3), (2, 4), (3, 4)):
            text = {"TRIREME_FAKE_NODES": str(nodes)}
            losses = []
            for shard in ("auto", "off"):
                name = f"{shard}-{nodes}-{ranks}"
                self.run_trainer(self.config(name, steps=14), "run.bucket_mb=0.001", "train.ema=0.9",
                                 f"run.shard_optimizer={shard}", ranks=ranks, env=text)
                losses.append(self.losses(name))
            self.assertEqual(*losses)  # the same sums in the same order
            np.testing.assert_allclose(losses[0], whole, **FP32)
            self.assert_same_model(self.dir / f"auto-{nodes}-{ranks}/model.h5", self.dir / f"off-{nodes}-{ranks}/model.h5")
            end = self.records(f"auto-{nodes}-{ranks}", "end")[0]
            self.assertEqual(end["predicted_mb"], end["held_mb"])

    def test_bf16(self):
        self.check(BF16, "train.precision=bf16", ranks=(2, 3))

    def test_micro_batches(self):
        """With batchnorm, what is equal is the grouping: 2 groups of 8, whoever computes them."""
        whole, _ = self.losses_at(1, "one", "train.micro_batch=8", steps=14)
        for n, micro in ((2, 4), (4, 2)):
            parts, _ = self.losses_at(n, f"n{n}", f"train.micro_batch={micro}", steps=14)
            np.testing.assert_allclose(parts, whole, **FP32)

    def test_accumulate(self):
        """train.accumulate names the micro-batches of all ranks: batchnorm sees the same samples at any rank count,
        where neither the micro-batches nor the epoch divide evenly, ranks have none, or a run is resumed elsewhere."""
        for accumulate, batch in ((3, 16), (5, 7)):
            option = f"train.accumulate={accumulate}"
            whole, _ = self.losses_at(1, "one", option, steps=20, batch=batch)
            for n in (2, 3, 4):
                parts, _ = self.losses_at(n, f"n{n}", option, "--force", steps=20, batch=batch)
                np.testing.assert_allclose(parts, whole, err_msg=f"{n} ranks, {accumulate}", **FP32)
            config = self.config("cut", steps=20, batch=batch)
            self.run_trainer(config, option, "train.checkpoint.every_steps=9", "--force", ranks=3)
            os.unlink(self.dir / "cut/checkpoints/step-00000020.h5")
            self.run_trainer(config, option, "--resume", ranks=2)
            np.testing.assert_allclose(self.losses("cut"), whole, err_msg="resumed", **FP32)
            (self.dir / "one").rename(self.dir / f"done{accumulate}")

    def test_warns_of_micro_batch(self):
        """Where a statistic is made over the batch, and only there."""
        advice = r"train.micro_batch the number of ranks decides.*train.accumulate: 4 gives"
        self.assertRegex(self.run_trainer(self.config("a", steps=2), "train.micro_batch=2"), advice)
        self.assertNotRegex(self.run_trainer(self.config("b", steps=2), "train.accumulate=4"), advice)
        import harness
        text = "\n".join(line for line in harness.CNN.splitlines() if "batchnorm" not in line)
        self.assertNotRegex(self.run_trainer(self.config("c", steps=2, text=text), "train.micro_batch=2"), advice)

    def test_warns_of_single_values(self):
        """A last batch of one sample, of which batchnorm has nothing to say."""
        import harness
        text = harness.CNN.replace("    - flatten\n", "    - flatten\n    - batchnorm: {{name: alone}}\n")
        advice = r"warning: alone will see a single value a channel in some steps \(49 samples, batch 16, "
        for name, more, warns in (("a", (), True), ("b", ("data.drop_last=true",), False), ("c", ("train.batch=15",), False)):
            out = self.run_trainer(self.config(name, text=text, samples=49, steps=2), *more, ranks=1)
            self.assertEqual(bool(re.search(advice, out)), warns, out)

    def test_accumulation_without_batchnorm(self):
        """Without batchnorm any number of micro-batches is the whole batch."""
        import harness
        text = "\n".join(line for line in harness.CNN.splitlines() if "batchnorm" not in line)
        whole, _ = self.losses_at(1, "one", text=text, steps=14)
        for n, micro in ((1, 3), (2, 2), (3, 1)):
            parts, _ = self.losses_at(n, f"m{n}", f"train.micro_batch={micro}", text=text, steps=14)
            np.testing.assert_allclose(parts, whole, **FP32)

    def test_same_twice(self):
        for name in ("a", "b"):
            self.run_trainer(self.config(name, steps=20), ranks=3)
        self.assertEqual(self.losses("a"), self.losses("b"))
        self.assert_same_model(self.dir / "a/model.h5", self.dir / "b/model.h5")

    def test_loader_threads_change_nothing(self):
        for workers in (0, 3):
            self.run_trainer(self.config(f"w{workers}", steps=15, workers=workers), ranks=2)
        self.assertEqual(self.losses("w0"), self.losses("w3"))

    def test_overflow_on_one_rank(self):
        """One sample overflows: whichever rank has it, all skip that step, and agree."""
        for ranks in (1, 2, 3):
            name = f"poison{ranks}"
            config = self.config(name, poison=20, shuffle="false", steps=12)
            out = self.run_trainer(config, "train.loss_scale=dynamic", ranks=ranks)
            records = self.records(name)
            skipped = [r["step"] for r in records if r.get("skipped")]
            self.assertEqual(skipped, [2, 9], out)  # sample 20 is in step 2, and in step 9 of the next epoch
            scales = [r["loss_scale"] for r in records]
            self.assertEqual(scales[1], scales[0] / 2)
            self.assertEqual(scales[8], scales[0] / 4)
            self.assertIn("gradient of", records[1]["skipped"])


if __name__ == "__main__":
    main()
