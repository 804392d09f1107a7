"""torchvision's blocks as configs/ define them: its state_dict is model.init_from by its own names; logits and one step of
SGD are torch's (tests/golden/blocks.h5)."""
import re

import h5py
import numpy as np

from harness import SOURCE, Case, main
from test_init_from import write_safetensors

FLOAT = dict(rtol=2e-5, atol=2e-5)  # torch computed in float64
HEAD = """
  - global_avgpool
  - flatten
  - linear: {name: fc, out: 5}"""
STEM = """
  - conv2d: {name: conv1, out: 8, kernel: 3, padding: 1, bias: false}
  - batchnorm: {name: bn1}
  - relu"""


def shortcut(out, stride):
    return (f"[conv2d: {{name: downsample.0, out: {out}, kernel: 1, stride: {stride}, bias: false}}, "
            "batchnorm: {name: downsample.1}]")


# The config whose blocks are used, and layers.
NETWORKS = {
    "basic": ("resnet18", STEM + f"""
  - basic: {{name: layer1.0, out: 8}}
  - basic: {{name: layer2.0, out: 12, stride: 2, shortcut: {shortcut(12, 2)}}}
  - basic: {{name: layer2.1, out: 12}}""" + HEAD),
    "bottleneck": ("resnet50", STEM + f"""
  - bottleneck: {{name: layer1.0, width: 4, shortcut: {shortcut(16, 1)}}}
  - bottleneck: {{name: layer1.1, width: 4}}
  - bottleneck: {{name: layer2.0, width: 6, stride: 2, shortcut: {shortcut(24, 2)}}}""" + HEAD),
    "inverted": ("mobilenetv2", """
  - act: {name: features.0, out: 8, kernel: 3, stride: 2, padding: 1}
  - act: {name: features.1.conv.0, out: 8, kernel: 3, padding: 1, groups: 8}
  - conv2d: {name: features.1.conv.1, out: 6, kernel: 1, bias: false}
  - batchnorm: {name: features.1.conv.2}
  - inverted: {name: features.2, wide: 36, out: 8, stride: 2}
  - residual: {body: [inverted: {name: features.3, wide: 48, out: 8}]}
  - act: {name: features.4, out: 16}
  - global_avgpool
  - flatten
  - linear: {name: classifier.1, out: 5}"""),
    "vgg": ("vgg16", """
  - repeat:
      params: [out, places]
      values: [[4, [0]], [8, [3, 5]]]
      names: none
      layers:
      - repeat: {params: [at], values: $places, names: none, layers: [conv2d: {name: "features.${at}", out: $out, kernel: 3, padding: 1}, relu]}
      - maxpool2d: {kernel: 2, stride: 2}
  - flatten
  - linear: {name: classifier.0, out: 16}
  - relu
  - linear: {name: classifier.3, out: 5}"""),
}
CONFIG = """
name: blocks
device: cpu
data: {{train: {{inputs: x.npy, labels: y.npy}}, shuffle: false}}
model:
  input: [3, 16, 16]
{define}  layers:{layers}
  loss: cross_entropy
  init_from: weights.safetensors
train: {{steps: 1, batch: 6, log_every: 1, optimizer: {{sgd: {{lr: 0.1, weight_decay: 0.01, decay_all: true}}}}}}
"""


class Blocks(Case):
    def network(self, name):
        source, layers = NETWORKS[name]
        define = re.search(r"^  define:\n(?:    .*\n)+", (SOURCE / f"configs/{source}.yaml").read_text(), re.M)
        (self.dir / "blocks.yaml").write_text(CONFIG.format(define=define[0] if define else "", layers=layers))
        with h5py.File(SOURCE / "tests/golden/blocks.h5") as f:
            g = {"weights": {}, "after": {}, "loss": f[name]["loss"][()], "logits": f[name]["logits"][()]}
            for part in ("weights", "after"):
                g[part] = {key: value[()] for key, value in f[name][part].items()}
            np.save(self.dir / "x.npy", f[name]["x"][()])
            np.save(self.dir / "y.npy", f[name]["y"][()])
        write_safetensors(self.dir / "weights.safetensors", {k: np.asarray(v) for k, v in g["weights"].items()})
        return g

    def check(self, name):
        want = self.network(name)
        self.run_trainer("import", "weights.safetensors", "w.h5", "--config", "blocks.yaml", ranks=0)
        self.run_trainer("predict", "w.h5", "data.predict={inputs: x.npy}", "-o", "z.npy", "--raw", "--quiet", ranks=0)
        np.testing.assert_allclose(np.load(self.dir / "z.npy"), want["logits"], **FLOAT)
        for ranks in (1, 2):
            out = self.run_trainer("blocks.yaml", f"output=run{ranks}", ranks=ranks)
            self.assertRegex(out, r"starting from .*weights\.safetensors: ")
            self.assertAlmostEqual(self.losses(f"run{ranks}")[0], want["loss"], places=5)
            got = {n.split("/", 2)[2].replace("/", "."): v for n, v in self.arrays(self.dir / f"run{ranks}/model.h5").items()
                   if n.startswith(("model/params", "model/state"))}
            self.assertEqual(set(got), {k for k in want["after"] if "num_batches" not in k})
            for key, value in got.items():
                np.testing.assert_allclose(value, want["after"][key], err_msg=key, **FLOAT)

    def test_basic(self):
        self.check("basic")

    def test_bottleneck(self):
        self.check("bottleneck")

    def test_inverted(self):
        self.check("inverted")

    def test_vgg(self):
        self.check("vgg")


if __name__ == "__main__":
    main()
