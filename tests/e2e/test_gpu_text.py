"""Sequences of many lengths on GPUs, on the stand-in: steps at the rows that their longest sample needs give the CPU's losses, those of
steps at all rows, and the same bits whether they are recorded or not, on two ranks, and after a stop."""
import json

import numpy as np

from gpu import GpuCase
from harness import TRAINER, main

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
ROWS = 13
# float32 in another order of additions; AdamW's first steps go by the gradient's sign
CLOSE = dict(rtol=2e-4, atol=2e-5)


class GpuText(GpuCase):
    def setUp(self):
        super().setUp()
        (self.dir / "t.txt").write_text("".join("\n" + TEXT[i:i + 1 + i * 5 % 11] for i in range(90)))

    def losses_with(self, name, buckets, *arguments, dropout=0.2, **how):
        layers = [{"embedding": {"num": 256, "dim": 12, "name": "token", "from": "x"}}, {"positions": {"name": "place"}},
                  {"linear": {"out": 36}}, {"attention": {"heads": 2, "dropout": dropout, "name": "mixed", "from": ["linear1", "length"]}},
                  {"gru": {"hidden": 8, "from": ["mixed", "length"]}}, {"linear": {"out": 256}}]
        data = {"train": {"path": "t.txt", "format": "text", "documents": 10}, "split": {"fraction": 0.2}}
        config = {"name": "text", "seed": 5, "output": str(self.dir / name), "data": data | ({"buckets": buckets} if buckets else {}),
                  "model": {"inputs": {"x": [ROWS], "length": [1]}, "layers": layers, "loss": {"cross_entropy": {"ignore_index": -1}}},
                  "train": {"steps": 24, "batch": 6, "log_every": 1, "optimizer": {"adamw": {"lr": 0.01}}, "eval": {"every_epochs": 1},
                            "checkpoint": {"every_steps": 4, "keep": 4}}}
        path = self.dir / f"{name}.yaml"
        path.write_text(json.dumps(config))
        self.run_trainer(path, *arguments, **how)
        return self.losses(name)

    def test_buckets(self):
        cpu = self.losses_with("cpu", [1, 4, 8], "device=cpu", program=TRAINER)
        gpu = self.losses_with("gpu", [1, 4, 8])
        np.testing.assert_allclose(gpu, cpu, **CLOSE)
        self.assertLess(np.mean(gpu[-4:]), 0.7 * gpu[0])
        a, b = (self.records(n, "eval")[-1] for n in ("cpu", "gpu"))
        self.assertEqual((a["samples"], a["targets"]), (b["samples"], b["targets"]))
        np.testing.assert_allclose(b["loss"], a["loss"], rtol=1e-3)
        self.assertEqual(self.losses_with("plain", [1, 4, 8], "run.cuda_graph=off"), gpu)
        self.losses_with("parts", [1, 4, 8], "train.steps=10")
        self.run_trainer(self.dir / "parts.yaml", "--resume")
        self.assertEqual(self.losses("parts"), gpu)
        np.testing.assert_allclose(self.losses_with("small", [1, 4, 8], "train.micro_batch=1"), gpu, **CLOSE)

    def test_same_steps(self):
        """In the file's order steps with buckets are those without: what is cut off changes nothing, in float32 or in 16 bits."""
        for precision, close in (("fp32", CLOSE), ("bf16", dict(rtol=3e-2, atol=1e-2))):
            how = f"train.precision={precision}", "data.shuffle=false"
            cut, whole = (self.losses_with(f"{name}-{precision}", buckets, *how) for name, buckets in (("cut", [1, 4, 8]), ("whole", None)))
            np.testing.assert_allclose(cut, whole, **close)


if __name__ == "__main__":
    main()
