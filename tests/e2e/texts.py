"""What tests of texts and tokens share: a language model of few numbers, and a text to train it on."""
from harness import Case

CONFIG = """
name: text
seed: 5
output: {out}
data:
  train: {source}
  split: {{fraction: 0.2}}
  cache_mb: {cache}
model:
  input: [8]
  layers:
    - embedding: {{num: {num}, dim: 12, name: token}}
    - positions: {{name: place}}
    - linear: {{out: 24, name: hidden}}
    - gelu
    - linear: {{out: 12, name: back}}
    - linear: {{out: {num}, weight_of: token, bias: false, name: head}}
  loss: {loss}
train:
  steps: {steps}
  batch: 5
  log_every: 1
  optimizer: {{adamw: {{lr: 0.01}}}}
  eval: {{every_epochs: 1}}
  checkpoint: {{every_steps: 6, keep: 4}}
"""
TEXT = "the quick brown fox jumps over the lazy dog; " * 12


class TextCase(Case):
    def setUp(self):
        super().setUp()
        (self.dir / "a.txt").write_text(TEXT)

    def write(self, name, source="{path: a.txt}", num=256, steps=25, loss="cross_entropy", cache=64):
        path = self.dir / f"{name}.yaml"
        path.write_text(CONFIG.format(out=self.dir / name, source=source, num=num, steps=steps, loss=loss, cache=cache))
        return path
