"""Gradients of activations in the products before them (the pass activation_gradient), in whole trainings on the stand-in: losses are
the CPU's, and, bit for bit, those of every kind of recomputation; where the library lacks the epilogues, those without the
pass."""
import re

import numpy as np

import harness
from gpu import GpuCase
from harness import TRAINER

FP32 = dict(rtol=2e-4, atol=2e-5)  # as in test_gpu.py
BF16 = dict(rtol=3e-2, atol=1e-2)
FP16 = dict(rtol=1e-2, atol=3e-3)

GELU = "- gelu: {{approximate: tanh, name: %s}}"
# 15 features are no multiple of 8: the gradient stays apart.
TEXT = harness.CNN.split("    - conv2d")[0] + f"""\
    - flatten
    - reshape: {{{{dims: [6, 12]}}}}
    - linear: {{{{out: 16, name: in}}}}
    - residual: {{{{body: [layernorm, linear: {{{{out: 32, name: up}}}}, gelu: {{{{approximate: tanh, name: act}}}}, linear: {{{{out: 16, name: down}}}}]}}}}
    - linear: {{{{out: 16, name: a}}}}
    {GELU % "act_a"}
    - linear: {{{{out: 16, bias: false, weight_of: a, name: tied}}}}
    {GELU % "act_tied"}
    - linear: {{{{out: 15, name: odd}}}}
    {GELU % "act_odd"}
    - flatten
    - linear: {{{{out: 4, name: head}}}}
  loss: cross_entropy
""" + harness.CNN.split("  loss: cross_entropy\n")[1]
LIMITED = """
name: limited
data: {train: {format: synthetic, samples: 1024}}
model:
  input: [256, 64]
  layers:
    - repeat:
        times: 8
        layers: [residual: {body: [layernorm, linear: {out: 256}, gelu: {approximate: tanh}, linear: {out: 64}]}]
    - flatten
    - linear: {out: 10}
  loss: cross_entropy
train: {epochs: 1, batch: 64, micro_batch: 64, precision: bf16, optimizer: {adamw: {lr: 0.001}}, recompute: auto}
run: {workspace_mb: 1}
"""
WITHOUT = "run.skip_passes=[activation_gradient]"


class ActivationGradient(GpuCase):
    def trained(self, name, *arguments, **how):
        return self.losses_of(name, "--force", *arguments, text=TEXT, values=dict(steps=12, every=50), **how)

    def test_fp32(self):
        """The CPU's losses, with one rank and two, and with micro-batches."""
        cpu = self.trained("cpu", "device=cpu", program=TRAINER)
        gpu = self.trained("gpu")
        self.assertLess(gpu[-1], 0.95 * gpu[0])
        np.testing.assert_allclose(gpu, cpu, **FP32)
        np.testing.assert_allclose(self.trained("one", ranks=1), cpu, **FP32)
        np.testing.assert_allclose(self.trained("micro", "train.accumulate=4"), cpu, **FP32)
        np.testing.assert_allclose(self.trained("without", WITHOUT), gpu, **FP32)
        self.assertEqual(self.trained("plain", "run.cuda_graph=off"), gpu)

    def test_recompute(self):
        """What is made again has the same bits, whatever it is cut into."""
        for precision in ("fp32", "bf16"):
            gpu = self.trained("gpu", f"train.precision={precision}")
            for how in ("blocks", "{every: 2}", "{every: 1}", "{segments: [[act, act], [act_a, act_a]]}", "{segments: [[up, up], [a, act_a]]}",
                        "{segments: [[up, down], [a, act_odd]]}"):
                losses = self.trained("again", f"train.precision={precision}", f"train.recompute={how}")
                self.assertEqual(losses, gpu, f"{precision}, {how}")

    def test_16_bits(self):
        """Near float32's losses. Where the library has no epilogue for it the bits are those without the pass."""
        fp32 = self.trained("fp32")
        for precision, near in (("bf16", BF16), ("fp16", FP16)):
            how = f"train.precision={precision}", "train.loss_scale=128"
            gpu, without = self.trained(precision, *how), self.trained("without", *how, WITHOUT)
            np.testing.assert_allclose(gpu, fp32, **near)
            self.assertNotEqual(gpu, without)  # the gradient is of the sum before it is rounded
            for lacking in ("aux", "gelu aux", "bias gelu aux bgrad"):
                env = {"FAKEGPU_CUBLASLT_WITHOUT": lacking}
                self.assertEqual(self.trained("lacking", *how, env=env), self.trained("without", *how, WITHOUT, env=env), lacking)

    def test_plan(self):
        """A plan counts what was found: three of four; the last one's gradient begins at a flatten's."""
        config = self.config(text=TEXT)
        self.assertRegex(self.tool("plan", config, "device=cuda"), r"activation_gradient +3\b")
        self.assertRegex(self.tool("plan", config, "device=cuda", WITHOUT), r"activation_gradient +skipped\b")

    def test_memory_limit(self):
        """What is to be computed again is chosen among the ops as recomputation finds them: an activation alone, too."""
        config = self.dir / "limited.yaml"
        config.write_text(LIMITED)
        for limit in (160, 140, 120):
            said = [re.search(r"(\d+ of 42 layers in \d+ segments recomputed, [\d.]+ MB) planned",
                              self.tool("plan", config, "device=cuda", "--summary", f"run.memory_limit={limit}MB", *skip))[1]
                    for skip in ((), (WITHOUT,))]
            self.assertEqual(*said)


if __name__ == "__main__":
    harness.main()
