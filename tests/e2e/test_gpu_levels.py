"""run.level: each preset sets what docs/config.md says, a key that is given wins, and gpu_fast trains on a GPU as it says."""
import re

import yaml

from gpu import GpuCase
from harness import SOURCE, Case, main

# another value of each key that a level sets
OTHER = {"device": "auto", "train.precision": {"fp32": "bf16", "bf16": "fp32"}, "train.recompute": "blocks", "run.memory_limit": "3GB",
         "data.cache_mb": "32", "data.workers": "2", "data.prefetch": "3", "run.deterministic": {"on": "off", "off": "on"}, "run.benchmark": "false",
         "run.cuda_graph": "auto", "train.log_every": "7"}
CONFIG = """
name: level
output: {out}
data: {{train: {{format: synthetic, samples: 64, classes: 3}}}}
model: {{input: [16], layers: [linear: {{out: 24}}, relu, linear: {{out: 3}}], loss: cross_entropy}}
train: {{steps: 4, batch: 16, optimizer: {{sgd: {{lr: 0.1}}}}}}
"""


def documented():
    """{level: {key: value}} of docs/config.md."""
    table = (SOURCE / "docs/config.md").read_text().split("\n### Levels\n")[1].split("\n#")[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines() if line.startswith("| ")][2:]
    return {level.strip(): {k: v for k, v in re.findall(r"`([\w.]+): ([^`]+)`", sets)} for level, _, sets in rows}


class Levels(GpuCase):
    def command(self, config, *arguments, **how):
        return Case.command(self, config, *arguments, **how)  # the level says the device

    def write(self, name="run"):
        path = self.dir / f"{name}.yaml"
        path.write_text(CONFIG.format(out=self.dir / name))
        return path

    def checked(self, *arguments):
        """What `check` prints in front, and {path: value} of the config."""
        text = self.run_trainer("check", self.write(), *arguments, ranks=0)
        found = yaml.load(text[text.index("\nname:"):], yaml.BaseLoader)
        return text, lambda path: look_up(found, path)

    def test_table(self):
        levels = documented()
        self.assertEqual(set(levels), {"custom", "basic", "advanced", "ultra", "gpu_fast", "cpu_small", "high_throughput"})
        self.assertEqual(levels.pop("custom"), {})
        self.assertEqual({k: levels["gpu_fast"][k] for k in ("device", "train.precision", "run.memory_limit")},
                         {"device": "cuda", "train.precision": "bf16", "run.memory_limit": "auto"})
        self.assertEqual({key for keys in levels.values() for key in keys}, set(OTHER))
        for level, keys in levels.items():
            with self.subTest(level):
                text, value = self.checked(f"run.level={level}")
                self.assertEqual(dict(re.findall(r"(?m)^#   sets ([\w.]+): (\S+) \(", text)), keys)
                self.assertEqual({k: value(k) for k in keys}, keys)
                other = {k: OTHER[k][v] if isinstance(OTHER[k], dict) else OTHER[k] for k, v in keys.items()}
                text, value = self.checked(f"run.level={level}", *(f"{k}={v}" for k, v in other.items()))
                self.assertEqual(set(re.findall(r"(?m)^#   leaves ([\w.]+), which is given$", text)), set(keys))
                self.assertNotIn("#   sets", text)
                self.assertEqual({k: value(k) for k in keys}, other)

    def test_gpu_fast(self):
        for name, given, precision in (("run", (), "bf16"), ("given", ("train.precision=fp32",), "fp32")):
            out = self.run_trainer(self.write(name), "run.level=gpu_fast", *given)
            self.assertIn("run.memory_limit auto: ", out)
            self.assertEqual(self.records(name, "start")[0]["device"], "cuda")
            kept = yaml.load((self.dir / name / "config.yaml").read_text(), yaml.BaseLoader)
            self.assertEqual(kept["train"]["precision"], precision)
            self.assertEqual(self.records(name, "end")[0]["steps"], 4)
        out = self.run_trainer(self.write("none"), "run.level=gpu_fast", env={"FAKEGPU_DEVICES": 0}, status=1)
        self.assertIn("no CUDA device", out)


def look_up(node, path):
    for word in path.split("."):
        node = node[word]
    return node


if __name__ == "__main__":
    main()
