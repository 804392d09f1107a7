"""What tests of run.memory_limit share: models whose steps are large, the smallest limit, runs under one."""
import re

from harness import Case

DEEP = """
name: deep
device: cpu
output: run
seed: 5
data: {train: {format: synthetic, samples: 2048, classes: 4}, eval: {format: synthetic, samples: 1024, classes: 4}}
model:
  input: [64]
  loss: cross_entropy
  layers:
    - repeat: {times: 8, layers: [residual: {body: [layernorm, linear: {out: 256}, gelu, dropout: {p: 0.1}, linear: {out: 64}]}]}
    - linear: {out: 4}
train: {steps: 3, batch: 1024, log_every: 1, optimizer: {sgd: {lr: 0.1}}, eval: {every_steps: 3}, checkpoint: {every_steps: 1, every_epochs: none}}
run: {threads: 1}
"""
NORMED = """
name: normed
device: cpu
output: run
data: {train: {format: synthetic, samples: 64, classes: 4}}
model:
  input: [3, 32, 32]
  loss: cross_entropy
  layers:
    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}
    - batchnorm
    - relu
    - repeat: {times: 4, layers: [residual: {body: [conv2d: {out: 16, kernel: 3, padding: 1, bias: false}, batchnorm, relu,
                                                    conv2d: {out: 16, kernel: 3, padding: 1, bias: false}, batchnorm]}, relu]}
    - global_avgpool
    - flatten
    - linear: {out: 4}
train: {steps: 2, batch: 64, log_every: 1, optimizer: {sgd: {lr: 0.1}}}
run: {threads: 1}
"""
MIB = 1 << 20


class LimitCase(Case):
    def write(self, text, name="job"):
        path = self.dir / f"{name}.yaml"
        path.write_text(text)
        return path

    def smallest(self, config, *arguments, ranks=1):
        out = self.run_trainer(config, *arguments, "run.memory_limit=1MB", "--force", ranks=ranks, status=1)
        self.assertEqual(out.count("training does not fit 1.00 MB on a node of run.memory_limit"), 1, out)
        return int(re.search(r"the smallest limit that would do is about (\d+)MiB", out)[1]) * MIB, out

    def choice(self, *arguments):
        """What plan says that it chose."""
        return next(n for n in self.planned(*arguments)["notes"] if n.startswith("run.memory_limit "))

    def limited(self, config, limit, *arguments, ranks=1):
        """Runs under it; what was chosen and said: (micro-batch, losses, record of the end, output)."""
        out = self.run_trainer(config, f"run.memory_limit={limit}B", "--force", *arguments, ranks=ranks)
        said = re.search(r"micro-batches of (\d+) sample", out)
        kept = (self.dir / "run/config.yaml").read_text()
        if said:
            self.assertIn(f"\n  micro_batch: {said[1]}\n", kept)
        end = self.records(event="end")[-1]
        self.assertEqual(end["held_mb"], end["predicted_mb"])
        return int(said[1]) if said else None, self.losses(), end, out

    def below(self, limit, folder):
        """What a training held, and the whole process with what other trainings left in it."""
        end = self.records(folder, event="end")[-1]
        self.assertEqual(end["held_mb"], end["predicted_mb"])
        self.assertLess(end["peak_rss_mb"] * 1e6, limit, folder)
