"""`check`, `plan` and `help`: what they say of configs, without a run."""
import re

import numpy as np

from digits import DIGITS, PARAMETERS, SHAPES, DigitsCase
from formats import scaled
from harness import SOURCE, main


class Commands(DigitsCase):
    def test_check(self):
        text = self.tool("check", DIGITS)
        (self.dir / "again.yaml").write_text(text)
        self.assertEqual(self.tool("check", "again.yaml"), text)
        try:
            import yaml
        except ImportError:
            self.skipTest("no YAML parser for Python here: python3-yaml")
        tree = yaml.safe_load(text)
        self.assertEqual(tree["train"]["batch"], 64)
        self.assertEqual(tree["train"]["optimizer"]["adamw"]["lr"], 0.003)
        self.assertEqual(tree["model"]["input"], [1, 8, 8])
        self.assertEqual(len(tree["model"]["layers"]), 13)
        changed = yaml.safe_load(self.tool("check", DIGITS, "train.optimizer.lr=0.5", "model.layers.12.linear.out=11"))
        self.assertEqual(changed["train"]["optimizer"]["adamw"]["lr"], 0.5)
        self.assertEqual(changed["model"]["layers"][12]["linear"]["out"], 11)

    def test_check_of_blocks(self):
        """Without parameters as well."""
        config = self.config(steps=1)
        for layers in ("define: {unit: {layers: [{linear: {out: 4}}, relu]}}\n  layers: [flatten, unit, unit]\n",
                       "layers: [flatten, {repeat: {times: 2, layers: [{linear: {out: 4}}, relu]}}]\n"):
            text = re.sub(r"layers:\n(?: {4}.*\n)+", lambda _: layers, config.read_text())
            (self.dir / "blocks.yaml").write_text(text)
            made = self.tool("check", "blocks.yaml")
            named = [k for k in re.findall(r"(?m)^ +- (\w+)", made) if k != "block"]  # which remain, as parts to recompute
            self.assertEqual(named, ["flatten", "linear", "relu", "linear", "relu"], made)
            self.assertNotRegex(made, "define|repeat")

    def test_check_of_parameters(self):
        """Blocks, repeats and their parameters are printed as the layers they make, and make the same model again."""
        for name in ("resnet18", "mobilenetv2", "vgg16"):
            config = SOURCE / f"configs/{name}.yaml"
            text = self.tool("check", config, "model.init=xavier")
            self.assertIn("$", config.read_text())
            self.assertNotIn("$", text)
            self.assertIn("init: xavier", text)
            (self.dir / "again.yaml").write_text(text)
            self.assertEqual(self.tool("check", "again.yaml"), text)
            arrays = [self.tool("plan", c, "device=cpu").split("passes over the graph")[1] for c in (config, "again.yaml")]
            self.assertEqual(arrays[0], arrays[1])

    def test_reference(self):
        text = self.tool("check", "--help-config")
        config, sweep = text.split("\n# The sweep's file\n")
        for part in (*config.split("\n# Layers\n"), sweep):
            keys = re.findall(r"(?m)^\| `([^`]+)` \|", part)
            self.assertEqual(len(keys), len(set(keys)))
        keys = re.findall(r"(?m)^\| `([^`]+)` \|", config)
        for key in ("train.batch", "train.optimizer.adamw.lr", "data.cache_mb", "run.collectives", "conv2d.dilation"):
            self.assertIn(key, keys)
        for line in text.splitlines():
            if line.startswith("| `"):
                self.assertRegex(line, r"^\| `[^`]+` \| [^|]+ \| [^|]* \| [^|]* \| [^|]+ \|$")
        self.assertEqual((SOURCE / "docs/config.md").read_text(), text,
                         "out of date: trainer check --help-config > docs/config.md")

    def test_readme(self):
        """The config and the key=value examples of the README are good ones."""
        text = (SOURCE / "README.md").read_text()
        block = re.search(r"(?m)^    name: mine\n(?:    .*\n)+", text)[0]
        config = self.dir / "mine.yaml"
        config.write_text(re.sub(r"(?m)^    ", "", block))
        self.tool("check", config)
        for example in re.findall(r"`train: (\{[^`]+\})`", text):
            self.tool("check", config, f"data.train={example}")
        self.assertIn("precision: fp32", self.tool("check", config, "train.precision=fp32"))
        for key in re.findall(r"`((?:data|train|run)\.[a-z_.]+)`", text):
            self.assertIn(f"`{key}`", (SOURCE / "docs/config.md").read_text())

    def test_plan(self):
        text, sizes = self.plan("--ranks", "4")
        number, half = scaled(re.search(r"parameters +([\d.]+ [kM]?)", text)[1])
        self.assertLessEqual(abs(number - PARAMETERS), half)
        padded = sum(-(-int(np.prod(s)) // 16) * 64 for s in SHAPES.values())
        gradients, half = scaled(sizes["gradients"])
        self.assertTrue(4 * PARAMETERS - half <= gradients <= padded + 64 * 4 + half, sizes)
        # a quarter of the weights and of the two moments belongs to each rank
        moments, half = scaled(sizes["moments"])
        self.assertLess(abs(moments - 2 * 4 * PARAMETERS / 4), 1024 + half)
        total, half = scaled(sizes["total"])
        self.assertLess(abs(sum(scaled(v)[0] for n, v in sizes.items() if n != "total") / total - 1), 0.01)
        # multiply-adds count two: 9 taps x channels in x channels out x places, 16 samples a rank
        for layer, flops in (("conv2d1", 2 * 9 * 1 * 32 * 64), ("conv2d2", 2 * 9 * 32 * 32 * 64),
                             ("conv2d4", 2 * 9 * 32 * 64 * 16), ("head", 2 * 64 * 10)):
            line = next(line for line in text.splitlines() if re.match(rf"  {layer} +\w+ ", line))
            number, half = scaled(re.findall(r"([\d.]+ [kM]?) +[\d.]+ k?M?B$", line)[0])
            self.assertLessEqual(abs(number - 16 * flops), half, line)
        # a rank reads three quarters of its slice's gradients from the others: 3/4 of all bytes
        sent, half = scaled(re.search(r"a rank sends ([\d.]+ [kM]?B) within the node", text)[1])
        self.assertLess(abs(sent - 3 / 4 * 4 * PARAMETERS), 1024 + half)
        self.assertFalse((self.dir / "runs").exists(), "a plan leaves nothing")

    def test_plan_of_evaluation(self):
        """Evaluation alone holds the batches that its loader prepares ahead."""
        held = []
        for prefetch in (2, 6):
            text, _ = self.plan(f"data.prefetch={prefetch}")
            held.append(scaled(re.search(r"(?m)^  I/O +[\d.]+ k?M?B +([\d.]+ k?M?B)$", text)[1]))
        more = 4 * 64 * (64 * 4 + 4)  # four batches of 64 images of 64 values, with their labels
        self.assertLessEqual(abs(held[1][0] - held[0][0] - more), held[0][1] + held[1][1] + 1024)

    def test_plan_refuses(self):
        self.assertIn("--ranks 0", self.tool("plan", DIGITS, "--ranks", "0", status=2))
        self.assertIn("-1", self.tool("plan", DIGITS, "model.layers.12.linear.out=-1", status=2))

    def test_help_and_words_that_are_no_command(self):
        text = self.tool("help")
        self.assertEqual(self.tool("--help"), text)
        for command in ("sweep", "evaluate", "check", "plan", "inspect", "import", "help"):
            self.assertIn(f"trainer {command}", text)
            own = self.tool("help", command)
            self.assertEqual(self.tool(command, "--help"), own)
            self.assertIn(f"trainer {command}", own)
        self.assertIn("| `prune.amount` |", self.tool("prune", "model.h5", "-h"))
        self.assertEqual(self.tool("-V"), self.tool("--version"))
        for word, rest, near in (("evalute", ["model.h5"], "evaluate"), ("inspct", ["model.h5", "--json"], "inspect"),
                                 ("prun", ["amount=0.5"], "prune"), ("halp", [], "help")):
            self.assertIn(f'{word}: expected a command, a stage or a config file; did you mean "{near}"?',
                          self.tool(word, *rest, status=2))
        out = self.run_trainer("evalute", "model.h5", ranks=2, status=2)
        self.assertEqual(out.count("did you mean"), 1, out)
        self.assertIn("did you mean", self.tool("help", "pruen", status=2))
        self.assertIn("gone.yaml", self.tool("gone.yaml", status=2))


if __name__ == "__main__":
    main()
