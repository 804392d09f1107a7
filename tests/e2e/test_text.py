"""Language models over texts: what is learned and evaluated, ranks, resumes in the middle of a text, and the stages behind training."""
import collections
import json
import pathlib
import re

import numpy as np
import yaml

from harness import SOURCE, long, main
from texts import TEXT, TextCase


class Text(TextCase):
    def test_ranks(self):
        """One process, and 2 to 4 ranks some of which have no window of a step: the same windows in the same order, with
        tied weights in several buckets."""
        self.run_trainer(self.write("one"), ranks=0)
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                self.run_trainer(self.write(f"of{ranks}"), "run.bucket_mb=0.004" if ranks == 3 else "train.micro_batch=1",
                                 ranks=ranks)
                np.testing.assert_allclose(self.losses(f"of{ranks}"), self.losses("one"), rtol=2e-5, atol=1e-6)
                one, other = (self.records(n, "eval")[-1] for n in ("one", f"of{ranks}"))
                self.assertEqual(one["targets"], other["targets"])
                self.assertAlmostEqual(one["bits_per_byte"], other["bits_per_byte"], delta=1e-4)

    def test_each_token_is_evaluated_once(self):
        """Whatever stride training has; the last window is shorter. Any number of ranks measures the same, `evaluate` and a run
        that was resumed, too. A stride of what is evaluated gives targets more tokens before them, and no target twice."""
        held = 1 + (len(TEXT) - 9) // 3  # windows of training; a fifth of them is held out, and what is behind the last one
        first = (held - round(held * 0.2)) * 3
        evals = {}
        for name, ranks, evaluated in (("one", 0, "split: {fraction: 0.2}"), ("two", 2, "split: {fraction: 0.2}"), ("three", 3, "split: {fraction: 0.2}"),
                                       ("slides", 2, "split: {fraction: 0.2, stride: 3}"), ("own", 2, "eval: {path: a.txt, stride: 5}"),
                                       ("whole", 2, "eval: {path: a.txt}")):
            config = self.write(name, source="{path: a.txt, stride: 3}", steps=14)
            config.write_text(config.read_text().replace("split: {fraction: 0.2}", evaluated))
            self.run_trainer(config, "train.eval={every_steps: 4}", "train.steps=6", ranks=ranks)
            self.run_trainer(config, "train.eval={every_steps: 4}", "--resume", ranks=ranks)
            self.run_trainer("evaluate", f"{name}/model.h5", "-o", "full.json", "--quiet", "--force", ranks=ranks)
            full, evals[name] = json.loads((self.dir / "full.json").read_text()), self.records(name, "eval")[-1]
            self.assertEqual(full["targets"], evals[name]["targets"])
            self.assertAlmostEqual(full["bits_per_byte"], evals[name]["bits_per_byte"], delta=1e-6)
        targets = len(TEXT) - 1 - first
        for name, windows in (("one", -(-targets // 8)), ("two", -(-targets // 8)), ("three", -(-targets // 8)), ("slides", -(-(targets - 8) // 3) + 1)):
            self.assertEqual((evals[name]["targets"], evals[name]["samples"]), (targets, windows), name)
        for name in ("two", "three"):
            self.assertAlmostEqual(evals[name]["bits_per_byte"], evals["one"]["bits_per_byte"], delta=1e-4)
        targets = len(TEXT) - 1
        for name, windows in (("own", -(-(targets - 8) // 5) + 1), ("whole", -(-targets // 8))):
            self.assertEqual((evals[name]["targets"], evals[name]["samples"]), (targets, windows), name)

    def test_classes_are_characters(self):
        """Of a model of bytes `evaluate` names the bytes that occur, controls and what is no character by their numbers; one of
        tokens has numbers, though it be of the same bytes, and so has an id beyond the bytes."""
        (self.dir / "a.txt").write_bytes("né a\\, b\n\t".encode() * 40)
        (self.dir / "a.bin").write_bytes(np.frombuffer((self.dir / "a.txt").read_bytes(), np.uint8).astype("<u2").tobytes())
        occur = sorted(set((self.dir / "a.txt").read_bytes()))
        named = [chr(b) if 32 < b < 127 else f"\\x{b:02x}" for b in occur]
        for name, source, num, want in (("bytes", "{path: a.txt}", 300, named),
                                        ("ids", "{path: a.bin, format: tokens}", 256, [str(b) for b in occur])):
            self.run_trainer(self.write(name, source, num=num), ranks=0)
            rows = re.findall(r"(?m)^ *(\S+)(?: +(?:[01]\.\d{4}|-)){4} +\d+$", self.tool("evaluate", f"{name}/model.h5"))
            self.assertEqual(rows[:-2], want)
            classes = json.loads(self.tool("evaluate", f"{name}/model.h5", "--json"))["classes"]
            self.assertEqual([c.get("name", str(b)) for b, c in enumerate(classes) if b in occur], want)
            self.assertEqual(classes[-1].get("name", str(num - 1)), str(num - 1))

    def test_resume_in_the_middle(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                whole, stopped = f"w{ranks}", f"s{ranks}"
                self.run_trainer(self.write(whole), ranks=ranks)
                config = self.write(stopped, cache=0)
                self.run_trainer(config, "train.steps=13", ranks=ranks)
                self.run_trainer(config, "--resume", ranks=ranks)
                self.assertEqual(self.losses(stopped), self.losses(whole))
                self.assert_same_model(self.dir / stopped / "model.h5", self.dir / whole / "model.h5")

    def test_initial_values_are_past(self):
        """How layers begin is harmless where a run goes on, as their values are the checkpoint's; a learning rate of theirs is not."""
        layers = [{"transformer": {"layers": 1, "heads": 2, "causal": True, "name": "t"}}, {"linear": {"out": 256, "name": "head"}}]
        for name, init, std, residual, head in (("run", "kaiming", 1, "plain", {}), ("run", "normal", 0.02, "scaled", {"init_factor": 0.5, "init": "zeros", "lr_factor": 2})):
            path = self.write(name, steps=2 if init == "kaiming" else 3)
            config = yaml.safe_load(path.read_text())
            layers[0]["transformer"]["init_residual"], config["model"]["init"] = residual, init
            layers[1]["linear"].update(head)
            config["model"]["layers"][0]["embedding"]["std"] = std
            config["model"]["layers"][2:] = layers
            path.write_text(yaml.safe_dump(config))
            out = self.run_trainer(path, "--resume", ranks=0)
        self.assertEqual({key: effect for effect, key in re.findall(r"(harmless|changes the numbers): model\.(\S+): .*, was ", out)},
                         {"init": "harmless", "layers.0.embedding.std": "harmless", "layers.2.transformer.init_residual": "harmless",
                          "layers.3.linear.init_factor": "harmless", "layers.3.linear.init": "harmless", "layers.3.linear.lr_factor": "changes the numbers"})

    def test_learns(self):
        """A cycle of 16 bytes, of which each says the next."""
        (self.dir / "a.txt").write_text("abcdefghijklmnop" * 60)
        self.run_trainer(self.write("cycle", steps=120), ranks=2)
        last = self.records("cycle", "eval")[-1]
        self.assertEqual(last["accuracy"], 1)
        self.assertLess(last["bits_per_byte"], 0.05)
        self.assertAlmostEqual(last["perplexity"], np.exp(last["loss"]), delta=1e-9)
        self.assertAlmostEqual(last["bits_per_byte"], last["loss"] / np.log(2), delta=1e-9)
        self.run_trainer("evaluate", "cycle/model.h5", "-o", "full.json", "--quiet", ranks=3)
        full = json.loads((self.dir / "full.json").read_text())
        self.assertEqual((full["samples"], full["targets"]), (last["samples"], last["targets"]))
        self.assertAlmostEqual(full["bits_per_byte"], last["bits_per_byte"], delta=1e-6)

    def learns_words(self, name):
        """A config that is there, smaller: what comes is said by how the last eight bytes began."""
        rng = np.random.default_rng(2)
        words = ["".join(chr(c) for c in rng.permutation(np.arange(97, 105))) for _ in range(3)]
        (self.dir / "a.txt").write_text("".join(words[i] for i in rng.integers(0, 3, 400)))
        config = SOURCE / "configs" / f"{name}.yaml"
        self.run_trainer("check", config, ranks=0)
        self.run_trainer(config, f"data.train.path={self.dir}/a.txt", f"output={self.dir}/learnt", "model.input=[32]",
                         "train.steps=150", "train.eval.every_steps=50", "train.log_every=10", ranks=2, timeout=300)
        first, *_, last = self.records("learnt", "eval")
        self.assertLess(last["bits_per_byte"], 0.6)  # one of three words of 8: 0.2 bits, and the window's first bytes
        self.assertGreater(first["bits_per_byte"], last["bits_per_byte"])

    def test_byte_gpt(self):
        self.learns_words("byte-gpt")

    @long
    def test_byte_gpt_on_system_text(self):
        """As its file is: of the held out tenth of the text that the system has it comes to the bits a byte that the file states, well
        below the counts of pairs of bytes, smoothed by those of bytes (4.02; of bytes 5.06)."""
        config = (SOURCE / "configs/byte-gpt.yaml").read_text()
        stated = re.search(r"([\d.]+) bits a byte after (\d+) steps", config)
        bits, steps = float(stated[1]), int(stated[2])
        path = pathlib.Path(yaml.safe_load(config)["data"]["train"]["path"])
        if not path.exists():
            self.skipTest(f"no {path} here")
        text = path.read_bytes()
        learnt, held = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]
        one, two = collections.Counter(learnt), collections.Counter(zip(learnt, learnt[1:]))
        by_pairs = -np.mean([np.log2((two[a, b] + 4 * (one[b] + 1) / (len(learnt) + 256)) / (one[a] + 4)) for a, b in zip(held, held[1:])])
        self.run_trainer(SOURCE / "configs/byte-gpt.yaml", f"output={self.dir}/run", f"train.steps={steps}", "run.threads=1", timeout=700)
        last = self.records("run", "eval")[-1]
        self.assertEqual(last["step"], steps)
        self.assertLess(abs(last["bits_per_byte"] - bits), 0.05)
        self.assertLess(last["bits_per_byte"], by_pairs - 0.8)

    def test_lstm_text(self):
        self.learns_words("lstm-text")

    def test_other_losses_say_no_perplexity(self):
        """exp(loss) is one of the plain cross entropy alone, of what is evaluated: neither training nor evaluate say others."""
        losses = {"plain": ("{}", True), "smooth": ("{label_smoothing: 0.1}", False), "focal": ("{gamma: 2}", False),
                  "classes": (f"{{class_weights: [{', '.join(['1'] * 255)}, 2]}}", False)}
        for name, (options, said) in losses.items():
            with self.subTest(name):
                path = self.write(name, loss=f"{{cross_entropy: {options}}}", steps=2)
                self.run_trainer(path, ranks=0)
                self.run_trainer("evaluate", f"{name}/model.h5", "-o", "full.json", "--quiet", "--force", ranks=0)
                for got in (self.records(name, "eval")[-1], json.loads((self.dir / "full.json").read_text())):
                    self.assertEqual(["perplexity" in got, "bits_per_byte" in got], [said, said], got)
                for metric in ("perplexity", "bits_per_byte"):
                    out = self.run_trainer("check", path, f"train.metrics=[{metric}]", ranks=0, status=0 if said else 2)
                    self.assertEqual(f"train.metrics.0: {metric} is of the plain cross entropy" in out, not said, out)

    def test_balanced(self):
        """Weights of classes by their labels, of which a window has several; of data.train without what is held out."""
        ids = np.random.default_rng(7).choice(5, 411, p=[0.1, 0.2, 0.3, 0.15, 0.25]).astype(np.uint8)
        np.save(self.dir / "t.npy", ids)
        self.run_trainer(self.write("run", "{path: t.npy, format: tokens}", 5, 1, "{cross_entropy: {class_weights: balanced}}"), ranks=2)
        said = yaml.safe_load((self.dir / "run/config.yaml").read_text())["model"]["loss"]["cross_entropy"]
        windows = (len(ids) - 9) // 8 + 1
        labels = ids[1:8 * (windows - round(windows * 0.2)) + 1]
        np.testing.assert_allclose(said["class_weights"], len(labels) / (5 * np.bincount(labels)))

    def test_sees_its_targets(self):
        """A model that sees behind a place what it is to say there is told, once, by training and by `check`, with the first layer that does;
        one that sees what is before is not, nor one whose targets are of its own, nor layers that are not known to look there."""
        np.save(self.dir / "x.npy", np.arange(320, dtype=np.int32).reshape(40, 8) % 9)
        for name, layers, said in (
                ("all", [{"transformer": {"layers": 2, "heads": 2, "causal": False, "name": "t"}}], 't.0.attention": its attention is not causal'),
                ("both", [{"lstm": {"hidden": 6, "bidirectional": True, "name": "l"}}], 'l.l0_reverse": it goes from the last row to the first'),
                ("before", [{"transformer": {"layers": 2, "heads": 2, "causal": True, "name": "t"}}, {"lstm": {"hidden": 6}}], None),
                ("rows", [{"reshape": {"dims": [8, 2, 6]}}, "relu", {"layernorm": {"normalized_shape": [2, 6]}}, {"reshape": {"dims": [8, 12]}}], None),
                ("norm", ["batchnorm"], None),
                ("conv", [{"reshape": {"dims": [8, 1, 12]}}, {"permute": {"dims": [3, 1, 2]}}, {"pad": {"padding": [0, 0, 2, 0]}},
                          {"conv2d": {"out": 12, "kernel": [3, 1]}}, {"permute": {"dims": [2, 3, 1]}}, {"reshape": {"dims": [8, 12]}}], None)):
            path = self.write(name, steps=2)
            config = yaml.safe_load(path.read_text())
            config["model"]["layers"][2:] = [*layers, {"linear": {"out": 256}}]
            path.write_text(yaml.safe_dump(config))
            told = rf'warning: .*{name}\.yaml:\d+:\d+: layer "{said}: it may see the next tokens, which are what data\.train has the model say'
            for out in (self.run_trainer("check", path, ranks=0), self.run_trainer(path, ranks=2)):
                self.assertEqual(out.count("next tokens"), int(said is not None), out)
                if said:
                    self.assertRegex(out, told)
            out = self.run_trainer("check", path, "data.train={inputs: x.npy, labels: x.npy}", ranks=0)
            self.assertNotIn("next tokens", out)

    def test_stages(self):
        """What comes behind training leaves such a model whole."""
        config = self.write("staged")
        config.write_text(config.read_text() + "pipeline: [train, {prune: {amount: 0.3}}, finetune, quantize, fold, profile, "
                          "benchmark, export, report]\n")
        self.run_trainer(config, "train.steps=6", ranks=2, timeout=300)
        self.assertTrue(list((self.dir / "staged/stages").glob("*.onnx")))
        self.run_trainer("evaluate", sorted((self.dir / "staged/stages").glob("*quantize.h5"))[0], "--quiet", ranks=1)


if __name__ == "__main__":
    main()
