"""Attention in training: dropout's masks are the same however a step is computed; exported, it is the same model."""
import json
import re

import h5py

from harness import main
from stages import StageCase, text

CONFIG = """data: {train: {format: synthetic, samples: 64, classes: 4}, eval: {format: synthetic, samples: 24, classes: 4}}
name: heads
model:
  input: [9, 8]
  loss: cross_entropy
  layers:
    - linear: {out: 16, name: x}
    - repeat:
        times: 2
        layers:
          - residual:
              body: [layernorm: {}, linear: {out: 32}, attention: {heads: 4, kv_heads: 2, causal: true, window: 6, dropout: DROP},
                     linear: {out: 16}]
    - linear: {out: 16, name: q}
    - rotary: {heads: 2, name: turned}
    - attention: {heads: 2, alibi: true, from: [turned, turned, q]}
    - flatten
    - linear: {out: 4}
train: {steps: 6, batch: 16, micro_batch: 8, log_every: 1, optimizer: {sgd: {lr: 0.05}}}
"""
ROWS = """
name: rows
data: {train: {format: synthetic, samples: 8}}
model: {input: [64], layers: [embedding: {num: 50, dim: 32}, transformer: {layers: 2, heads: 4, causal: true, dropout: 0.1}, linear: {out: 50}], loss: cross_entropy}
train: {steps: 1, batch: 1, optimizer: {sgd: {lr: 0.1}}}
"""


class Attention(StageCase):
    def write(self, name, drop):
        path = self.dir / f"{name}.yaml"
        path.write_text(CONFIG.replace("DROP", str(drop)) + f"output: {self.dir}/{name}\n")
        return path

    def test_masks(self):
        """Of ranks, threads, micro-batches and recomputation no mask depends."""
        losses = {}
        for name, ranks, options in (("one", 1, ()), ("again", 1, ("train.recompute=blocks",)),
                                     ("every", 1, ("train.recompute={every: 2}",)), ("threads", 1, ("run.threads=2",)),
                                     ("two", 2, ()), ("whole", 1, ("train.micro_batch=16",))):
            self.run_trainer(self.write(name, 0.3), *options, ranks=ranks)
            losses[name] = self.losses(name)
        self.assertEqual(losses["one"], losses["again"])
        self.assertEqual(losses["one"], losses["every"])
        self.assertEqual(losses["one"], losses["threads"])
        self.run_trainer(self.write("without", 0), ranks=1)
        for a, two, whole, without in zip(losses["one"], losses["two"], losses["whole"], self.losses("without")):
            self.assertAlmostEqual(a, two, delta=1e-4)
            self.assertAlmostEqual(a, whole, delta=1e-4)
            self.assertGreater(abs(a - without), 1e-3)  # that masks are drawn is seen

    def test_memory_grows_with_rows(self):
        """All that training and evaluation hold, on CPUs and GPUs: of twice the rows at the most twice as much, which no matrix of rows x rows is."""
        (self.dir / "rows.yaml").write_text(ROWS)
        for options in (("device=cpu",), ("device=cuda",), ("device=cuda", "train.precision=bf16")):
            need = [json.loads(self.tool("plan", "rows.yaml", "--json", f"model.input=[{rows}]", *options))["fit"]["needed_bytes"] for rows in (4096, 8192, 16384)]
            self.assertLess(need[0], need[1])
            self.assertLessEqual(need[1], 2 * need[0], options)
            self.assertLessEqual(need[2], 2 * need[1], options)
            self.assertLess(need[2], 16384 ** 2, options)

    def test_export(self):
        self.run_trainer(self.write("run", 0.1), "pipeline=[train, export]")
        found = self.attributes(self.stage("01-export.h5"), "01-export")
        self.assertLess(found["max_abs_difference"], 1e-4)
        self.tool("import", self.stage("01-export.onnx"), self.dir / "back.h5")
        with h5py.File(self.dir / "back.h5") as f:  # two of the repeated ones, and the last
            self.assertEqual(len(re.findall(r"\battention:", text(f.attrs["config"]).decode())), 3)


if __name__ == "__main__":
    main()
