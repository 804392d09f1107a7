"""Layers that are learned in sketches on GPUs, by the whole trainer on the stand-in: losses and evaluations between updates are the
CPU's, on one rank and on two; a resumed run has the bits of one in one piece, steps recorded or not."""
import numpy as np

from gpu import GpuCase
from harness import TRAINER, main

MODEL = """
name: sketched
seed: 4
output: {out}
data: {{train: {{format: synthetic, samples: 96}}, eval: {{format: synthetic, samples: 37}}}}
model:
  input: [1, 6, 6]
  layers:
    - skconv2d: {{out: 12, kernel: 3, terms: 1, rank: 3, padding: 1, name: filters}}
    - relu
    - flatten
    - sklinear: {{out: 40, terms: 2, rank: 4, name: wide}}
    - relu
    - dropout: {{p: 0.2}}
    - linear: {{out: 5, name: head}}
  loss: cross_entropy
train: {{steps: 12, batch: 15, log_every: 1, optimizer: {{sgd: {{lr: 0.05, momentum: 0.9}}}}, eval: {{every_steps: 3}}, checkpoint: {{every_steps: 4, keep: 4}}}}
run: {{threads: 1}}
"""
# float32 in another order of additions; 16 bits round each product
CLOSE = {"fp32": dict(rtol=2e-4, atol=2e-5), "bf16": dict(rtol=4e-2, atol=2e-2)}


class GpuSketch(GpuCase):
    def numbers(self, name, *arguments, **how):
        """Losses of the steps, and of the evaluations between them."""
        path = self.dir / f"{name}.yaml"
        path.write_text(MODEL.format(out=self.dir / name))
        self.run_trainer(path, *arguments, **how)
        return self.losses(name), [r["loss"] for r in self.records(name, "eval")]

    def test_beside_the_cpu(self):
        for precision, close in CLOSE.items():
            given = f"train.precision={precision}"
            steps, evaluations = self.numbers(f"cpu-{precision}", "device=cpu", given, program=TRAINER)
            self.assertEqual((len(steps), len(evaluations)), (12, 4))
            self.assertGreater(max(evaluations) - min(evaluations), 0.02)  # the signs' products follow each update
            for ranks in (1, 2):
                gpu = self.numbers(f"gpu-{precision}-{ranks}", given, ranks=ranks)
                np.testing.assert_allclose(gpu[0], steps, **close)
                np.testing.assert_allclose(gpu[1], evaluations, **close)

    def test_resumed(self):
        for ranks in (1, 2):
            whole = self.numbers(f"whole{ranks}", ranks=ranks)
            self.numbers(f"part{ranks}", "train.steps=7", ranks=ranks)
            self.assertEqual(self.numbers(f"part{ranks}", "--resume", ranks=ranks)[0], whole[0])
            self.assert_same_model(self.dir / f"part{ranks}/model.h5", self.dir / f"whole{ranks}/model.h5")
            self.assertEqual(self.numbers(f"plain{ranks}", "run.cuda_graph=off", ranks=ranks), whole)


if __name__ == "__main__":
    main()
