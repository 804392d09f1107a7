"""Language models over texts and tokens: what is learned, ranks, resumes in the middle of a text, documents, what is
refused, and the stages behind training."""
import collections
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import yaml

from harness import ENV, SOURCE, Case, long, main

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
LETTERS = """
class Tokenizer:
    def __init__(self, size): self.size = size
    from_file = classmethod(lambda cls, path: cls(int(path)))
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self): return {i: i for i in range(self.size)}
    def token_to_id(self, token): return ord(token)
    def encode(self, text, add_special_tokens): self.ids = list(text.encode()); return self
    def decode(self, ids, skip_special_tokens): return bytes(ids).decode()
"""
# tokenizer.json with bytes changed, cut out, doubled: encode and decode end well, or in one line
CHANGED = """
import contextlib, importlib.util, io, random, sys
spec = importlib.util.spec_from_file_location("tokenize_text", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
chance, whole, taken = random.Random(7), open("cut.json", "rb").read(), 0
for turn in range(300):
    text = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 8))):
        a = chance.randrange(len(text))
        b = min(len(text), a + chance.choice((1, 2, 20)))
        text[a:b] = chance.choice((b"", b"0", b"-1", b"null", b"[]", b"4294967296", bytes(text[a:b]) * 2, bytes(chance.randrange(256) for _ in range(b - a))))
    open("changed.json", "wb").write(text)
    for words in (["encode", "changed.json", "-o", "changed.bin", "b.txt"], ["decode", "changed.json", "3", "70", "99"]):
        sys.argv = ["tokenize_text.py", *words]
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            try:
                script.main()
                taken += 1
            except SystemExit as e:
                assert isinstance(e.code, str) and e.code.startswith("tokenize_text.py: ") and "\\n" not in e.code, (text, e.code)
print(taken, "of 600 were taken")
"""
TEXT = "the quick brown fox jumps over the lazy dog; " * 12


def byte_letters():
    """A letter for each byte, as GPT-2's tokenizer writes them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def merged(ids, pair, made):
    out, i = [], 0
    while i < len(ids):
        both = tuple(ids[i:i + 2]) == pair
        out.append(made if both else ids[i])
        i += 1 + both
    return out


class Text(Case):
    def setUp(self):
        super().setUp()
        (self.dir / "a.txt").write_text(TEXT)

    def write(self, name, source="{path: a.txt}", num=256, steps=25, loss="cross_entropy", cache=64):
        path = self.dir / f"{name}.yaml"
        path.write_text(CONFIG.format(out=self.dir / name, source=source, num=num, steps=steps, loss=loss, cache=cache))
        return path

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

    def test_other_files_are_of_trains_kind(self):
        """What is evaluated beside data.train is text, or tokens, as that is, where its name does not say otherwise."""
        for name, source, path, said in (("said", "{path: a.dat, format: text}", "b.bin", "text"), ("named", "{path: a.txt}", "b.bin", "text"),
                                         ("other", "{path: a.txt}", "b.dat", "text"), ("ids", "{path: a.dat, format: tokens}", "b.bin", "tokens"),
                                         ("bytes", "{path: a.bin, format: tokens}", "b.txt", "text")):
            (self.dir / source[7:].split(",")[0].rstrip("}")).write_bytes(b"a\0b\0c\0" * 60)
            (self.dir / path).write_bytes(b"c\0b\0" * 40)
            self.run_trainer(self.write(name, source, num=256), "train.steps=1", ranks=0)
            self.assertEqual(self.tool("evaluate", f"{name}/model.h5", f"data.eval.path={path}", "--json"),
                             self.tool("evaluate", f"{name}/model.h5", f"data.eval={{path: {path}, format: {said}}}", "--json"))
        ids = np.arange(100, dtype="<u2")  # tokens by their header are no bytes, whatever they stand beside
        (self.dir / "llm.bin").write_bytes(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + ids.tobytes())
        for name in ("named", "said"):
            self.assertIn("llm.bin: has the header of llm.c's token files: expected format: tokens, or a text",
                          self.tool("evaluate", f"{name}/model.h5", "data.eval.path=llm.bin", status=1))
        self.tool("evaluate", "ids/model.h5", "data.eval.path=llm.bin")

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

    def test_documents_are_in_the_plan(self):
        """Where documents begin is held beside the file, or without it, and counted once for each of training and evaluation."""
        rng = np.random.default_rng(9)
        (self.dir / "a.txt").write_bytes(b"\n".join(b"x" * n for n in rng.integers(1, 5, 6000)))
        loss = "{cross_entropy: {ignore_index: -100}}"
        for cache in (1, 0):
            name = f"docs{cache}"
            path = self.write(name, "{path: a.txt, format: text, documents: 10}", steps=1, loss=loss, cache=cache)
            self.run_trainer(path, "run.threads=1", ranks=0)
            end = self.records(name, event="end")[-1]
            self.assertEqual(end["held_mb"], end["predicted_mb"])

    def test_tokens(self):
        """llm.c's file and a text of the same numbers train alike; documents leave what they pad uncounted."""
        ids = np.frombuffer(TEXT.encode(), np.uint8) - 32
        head = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)
        (self.dir / "t.bin").write_bytes(head + ids.astype("<u2").tobytes())
        np.save(self.dir / "t.npy", ids)
        for name, source in (("bin", "{path: t.bin, format: tokens}"), ("npy", "{path: t.npy, format: tokens}")):
            self.run_trainer(self.write(name, source, num=100), ranks=2)
        self.assertEqual(self.losses("bin"), self.losses("npy"))
        space = "{path: t.bin, format: tokens, documents: 0}"  # words, of 9 letters at most and so one window each
        self.run_trainer(self.write("words", space, num=100, loss="{cross_entropy: {ignore_index: -1}}"), ranks=3)
        epoch = self.records("words", "epoch")[0]
        words = TEXT.count(" ")  # the first has no space before it, the last one nothing behind it
        self.assertEqual(self.records("words", "eval")[0]["samples"], round(words * 0.2))
        self.assertEqual(epoch["samples"], words - round(words * 0.2))
        self.assertLess(epoch["targets"], epoch["samples"] * 8 * 0.8)

    def test_no_separator(self):
        """A separator that never occurs is told in one line, though the file is opened to train on and to evaluate; one that does is not."""
        loss = "{cross_entropy: {ignore_index: -1}}"
        for number, warnings in ((0, 1), (ord("."), 0)):
            (self.dir / "a.txt").write_text(TEXT + ".")
            out = self.run_trainer(self.write("one", f"{{path: a.txt, documents: {number}}}", loss=loss, steps=1), "--force", ranks=2)
            self.assertEqual(len(re.findall(rf"warning: data\.train\.documents: {number} does not occur in \S*a\.txt: it is one document\n", out)), warnings, out)

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

    def test_lengths(self):
        """Recurrent layers that know where a document ends learn the same whatever stands behind its end."""
        (self.dir / "t.txt").write_text("".join("\n" + TEXT[i:i + 1 + i % 7] for i in range(90)))
        for kind in ("lstm", "gru"):
            for rows in (8, 13):
                name = f"{kind}{rows}"
                path = self.write(name, "{path: t.txt, format: text, documents: 10}", loss="{cross_entropy: {ignore_index: -1}}")
                config = yaml.safe_load(path.read_text())
                config["model"] |= {"inputs": {"x": [rows], "length": [1]}, "layers": [
                    {"embedding": {"num": 256, "dim": 12, "name": "token", "from": "x"}},
                    {kind: {"hidden": 7, "layers": 2, "bidirectional": True, "from": ["token", "length"]}},
                    {"linear": {"out": 256}}]}
                del config["model"]["input"]
                path.write_text(json.dumps(config))
                self.run_trainer(path, "train.steps=12", ranks=3 if rows == 13 else 1)
            np.testing.assert_allclose(self.losses(f"{kind}13"), self.losses(f"{kind}8"), rtol=1e-5)
            self.assertEqual([r["targets"] for r in self.records(f"{kind}13", "eval")],
                             [r["targets"] for r in self.records(f"{kind}8", "eval")])
            self.run_trainer("export", f"{kind}8/model.h5", ranks=0)

    def test_buckets(self):
        """Steps at the rows that their longest document needs learn what they learn at all rows: the same losses, on any ranks,
        after a resume, and evaluations, of a model whose table of places is used in part."""
        (self.dir / "t.txt").write_text("".join("\n" + TEXT[i:i + 1 + i * 5 % 11] for i in range(90)))

        def config(name, **data):
            path = self.write(name, "{path: t.txt, format: text, documents: 10}", loss="{cross_entropy: {ignore_index: -1}}", steps=25)
            text = yaml.safe_load(path.read_text())
            text["model"] |= {"inputs": {"x": [13], "length": [1]}, "layers": [
                {"embedding": {"num": 256, "dim": 12, "name": "token", "from": "x"}}, {"positions": {"name": "place"}},
                {"linear": {"out": 36}}, {"attention": {"heads": 2, "dropout": 0.2, "name": "mixed", "from": ["linear1", "length"]}},
                {"dropout": {"p": 0.1, "name": "some"}},
                {"gru": {"hidden": 7, "layers": 2, "dropout": 0.2, "bidirectional": True, "from": ["some", "length"]}},
                {"linear": {"out": 256}}]}
            del text["model"]["input"]
            text["data"] |= data
            path.write_text(json.dumps(text))
            return path

        for shuffle in (False, True):  # in the file's order steps are those without buckets
            of = {}
            for name, buckets, ranks, more in (("all", None, 1, ()), ("one", [4, 8], 1, ()), ("three", [4, 8], 3, ("train.micro_batch=1",))):
                name = f"{name}{shuffle}"
                data = {"shuffle": shuffle, **({"buckets": buckets} if buckets else {})}
                self.run_trainer(config(name, **data), *more, ranks=ranks)
                of[name] = self.losses(name)
            np.testing.assert_allclose(of[f"three{shuffle}"], of[f"one{shuffle}"], rtol=2e-5)
            if not shuffle:
                np.testing.assert_allclose(of["oneFalse"], of["allFalse"], rtol=2e-5)
                a, b = (self.records(n, "eval")[-1] for n in ("allFalse", "oneFalse"))
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5)
            a, b = (self.records(f"{n}{shuffle}", "epoch")[0] for n in ("all", "one"))
            self.assertEqual((a["samples"], a["targets"]), (b["samples"], b["targets"]))
        again = config("again", buckets=[4, 8])
        self.run_trainer(again, "train.steps=13", ranks=1)
        self.run_trainer(again, "--resume", ranks=1)
        self.assertEqual(self.losses("again"), self.losses("oneTrue"))
        self.run_trainer("evaluate", "oneTrue/model.h5", "--quiet", ranks=0)
        for buckets, word in (([8, 4], "4 rows: expected rising numbers below 13"), ([13], "13 rows: expected rising"), ([4.5], "found")):
            self.assertIn(word, self.run_trainer("check", config("bad", buckets=buckets), ranks=0, status=2))
        out = self.run_trainer("check", config("bad", buckets=[4]), "model.loss={cross_entropy: {}}", ranks=0, status=2)
        self.assertRegex(out, r"bad.*:1:\d+: data.buckets: 4 rows: labels behind a sample's end are not to count")
        (self.dir / "sample.yaml").write_text(
            "name: x\ndata: {train: {format: synthetic, samples: 40}, buckets: [4]}\nmodel:\n  inputs: {x: [13, 3], length: [1]}\n  layers:\n"
            "    - lstm: {hidden: 5, output: last, from: [x, length]}\n    - linear: {out: 3}\n  loss: cross_entropy\ntrain: {batch: 4, steps: 2}\n")
        self.run_trainer("check", "sample.yaml", ranks=0)
        teacher = f"{self.dir}/x/model.h5"  # from a teacher a stage learns on whole sequences
        self.run_trainer("sample.yaml", f"output={self.dir}/x", f"pipeline=[train, {{finetune: {{teacher: {teacher}, train: {{steps: 1}}}}}}]", ranks=1)
        for value, word in (("train.distill={teacher: x.h5}", "the teacher has no plans for fewer rows: not with train.distill"),
                            ("data.augment={mixup: {alpha: 0.2}}", "a mixed sample has no length: not with data.augment.mixup")):
            self.assertIn(f"sample.yaml:2:58: data.buckets: {word}", self.run_trainer("check", "sample.yaml", value, ranks=0, status=2))

    def test_several_files(self):
        """Shards are one file: the same losses on any ranks, by name or by pattern, and after a stop; what is there by no name is told."""
        ids = np.frombuffer(TEXT.encode(), np.uint8).astype("<u2")
        for name, part in (("all.bin", ids), ("train_1.bin", ids[:99]), ("train_2.bin", ids[99:100]), ("train_3.bin", ids[100:])):
            (self.dir / name).write_bytes(np.array([20240520, 1, len(part)] + [0] * 253, "<i4").tobytes() + part.tobytes())
        self.run_trainer(self.write("one", "{path: all.bin, format: tokens}"), ranks=0)
        for name, path in (("named", "train_1.bin,train_2.bin,train_3.bin"), ("like", "train_*.bin")):
            source = f"{{path: '{path}', format: tokens}}"
            self.run_trainer(self.write(name, source, cache=0), "train.steps=7", ranks=0)
            self.run_trainer(self.write(name, source, cache=0), "--resume", ranks=0)
            self.assertEqual(self.losses(name), self.losses("one"))
            self.run_trainer(self.write(f"{name}2", source), ranks=2)
            np.testing.assert_allclose(self.losses(f"{name}2"), self.losses("one"), rtol=1e-4)
        self.run_trainer(self.write("bits", "{path: all.bin, format: tokens, bytes_per_token: 4}"), "train.eval.every_steps=25", ranks=0)
        last = self.records("bits", "eval")[-1]
        self.assertAlmostEqual(last["bits_per_byte"], last["loss"] / np.log(2) / 4, places=6)
        full = json.loads(self.tool("evaluate", "bits/model.h5", "--json", "--quiet"))
        self.assertAlmostEqual(full["bits_per_byte"], last["bits_per_byte"], places=4)
        self.assertIn("data.train.bytes_per_token: only format tokens takes it",
                      self.run_trainer("check", self.write("text", "{path: a.txt, bytes_per_token: 4}"), ranks=0, status=2))
        self.run_trainer("evaluate", "like/model.h5", "data.eval={path: 'train_*.bin', format: tokens}", "--quiet", ranks=0)
        for path, said in (("train_1.bin,gone.bin", r"gone\.bin"), ("gone_*.bin", r"data\.train\.path: no file is like .*gone_\*\.bin")):
            self.assertRegex(self.run_trainer(self.write("gone", f"{{path: '{path}', format: tokens}}"), ranks=2, status=1), said)

    def test_tokenize(self):
        """python/tokenize_text.py writes what is read here, in 16 and in 32 bits, and reads it back; of the package a tokenizer of
        letters stands in, where it is not installed."""
        (self.dir / "tokenizers.py").write_text(LETTERS)
        script = SOURCE / "python/tokenize_text.py"

        def tokenize(*args):
            done = subprocess.run([sys.executable, str(script), *map(str, args)], cwd=self.dir, capture_output=True, text=True,
                                  env={**ENV, "PYTHONPATH": str(self.dir)})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        for size, kind in ((256, "<u2"), (70000, "<u4")):
            with self.subTest(kind):
                out = tokenize("encode", size, "-o", "t.bin", "--separator", "|", "--cut", "; ", "a.txt", "a.txt")
                documents = 2 * TEXT.split("; ")[:-1]
                want = "|" + "|".join(documents)
                ids = np.fromfile(self.dir / "t.bin", kind, offset=1024)
                self.assertEqual(bytes(ids.astype(np.uint8)).decode(), want)
                self.assertIn(f"t.bin: {len(want)} tokens, {8 * ids.itemsize} bits each", out)
                self.assertEqual(tokenize("decode", size, *ids[:9]), want[:9] + "\n")
                source = re.search(r"data\.train: (\{.*\});", out)[1]
                self.assertIn("documents: 124", source)
                name = f"run{size}"
                self.run_trainer(self.write(name, source, num=size, loss="{cross_entropy: {ignore_index: -1}}", steps=2), ranks=0)
                self.assertEqual(len(self.losses(name)), 2)

                for wrong in ("99999999999", "-1", "x", "1.5", "\u0663", str(size)):
                    done = subprocess.run([sys.executable, str(script), "decode", str(size), "3", wrong], cwd=self.dir, capture_output=True, text=True,
                                          env={**ENV, "PYTHONPATH": str(self.dir)})
                    self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                    self.assertEqual(done.stderr, f"tokenize_text.py: {size} has no token {wrong!r}: ids are whole numbers from 0 to {size - 1}\n")

        # more tokens than the header counts, of a script whose limit is less; a text that is none: no file, nor a part of one
        (self.dir / "few.py").write_text(re.sub(r"(?m)^MOST = .*?  #", "MOST = 20  #", script.read_text()))
        (self.dir / "torn.txt").write_bytes(b"ab\xff")
        for program, size, text, said in ((script, "none.json", "a.txt", "none.json: no tokenizer.json that can be read: "),
                                          (self.dir / "few.py", 256, "a.txt", "u.bin: more than 20 tokens"), (script, 256, "torn.txt", "torn.txt: no text in UTF-8: "),
                                          (script, 256, "none.txt", "none.txt: no text in UTF-8: "), (script, 256, "a.txt", "away/u.bin: cannot be written: ")):
            to = "away/u.bin" if said.startswith("away") else "u.bin"
            done = subprocess.run([sys.executable, str(program), "encode", str(size), "-o", to, text], cwd=self.dir, capture_output=True,
                                  text=True, env={**ENV, "PYTHONPATH": str(self.dir)})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual(list(self.dir.glob("u.bin*")), [])

    def run_script(self, *args, python=sys.executable):
        return subprocess.run([python, str(SOURCE / "python/tokenize_text.py"), *map(str, args)], cwd=self.dir, capture_output=True,
                              text=True, env=ENV)

    def test_real_tokenizer(self):
        """A BPE tokenizer.json, where the package is: its ids, those of the merges by hand, are in the file and train; files that are
        none are told in one line."""
        python = next((p for p in (sys.executable, os.environ.get("TRIREME_PEERS")) if p and subprocess.run(
            [p, "-c", "import tokenizers, numpy"], capture_output=True).returncode == 0), None)
        if python is None:
            self.skipTest("no package `tokenizers` here, nor in the Python that TRIREME_PEERS names")
        text = TEXT + "na\u00efve \U0001f98a\n"
        (self.dir / "b.txt").write_text(text)
        letters = byte_letters()
        vocabulary, merges, ids = {c: i for i, c in enumerate(letters)}, [], list(text.encode())
        for _ in range(30):  # the pair that comes most often becomes a token
            pair, _ = collections.Counter(zip(ids, ids[1:])).most_common(1)[0]
            names = [list(vocabulary)[i] for i in pair]
            merges.append(" ".join(names))
            ids = merged(ids, pair, len(vocabulary))
            vocabulary["".join(names)] = len(vocabulary)
        bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        end = {"id": len(vocabulary), "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        whole = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": bytelevel, "decoder": bytelevel,
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
        (self.dir / "tokenizer.json").write_text(json.dumps(whole))
        done = self.run_script("encode", "tokenizer.json", "-o", "t.bin", "--separator", "<|end|>", "b.txt", python=python)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = np.fromfile(self.dir / "t.bin", "<u2", offset=1024)
        self.assertEqual(got.tolist(), [len(vocabulary), *ids])
        each = f"bytes_per_token: {len(text.encode()) / len(got):.6g}"
        self.assertIn(f"documents: {len(vocabulary)}, {each}}}; embedding and last layer: {len(vocabulary) + 1}", done.stdout)
        self.assertEqual(self.run_script("decode", "tokenizer.json", *got[1:], python=python).stdout, text + "\n")
        self.run_trainer(self.write("bpe", "{path: t.bin, format: tokens}", num=len(vocabulary) + 1, steps=2), ranks=0)
        self.assertEqual(len(self.losses("bpe")), 2)
        model = json.dumps(whole["model"])
        for hostile in ("", "{", "[]", "\0\1", model, '{"model": 3}', json.dumps(whole)[:-9], json.dumps(whole).replace('"merges": ["', '"merges": ["zz '),
                        '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'):
            (self.dir / "hostile.json").write_text(hostile)
            done = self.run_script("encode", "hostile.json", "-o", "u.bin", "b.txt", python=python)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertRegex(done.stderr, r"^tokenize_text\.py: hostile\.json: (no tokenizer\.json that can be read: \S|a tokenizer without a token)")
            self.assertEqual(list(self.dir.glob("u.bin*")), [])

        # what the file says of lengths is a model's, not a text's
        cut = whole | {"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
                       "padding": {"strategy": {"Fixed": 900}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 9, "pad_type_id": 0, "pad_token": "!"}}
        (self.dir / "cut.json").write_text(json.dumps(cut))
        self.assertEqual(self.run_script("encode", "cut.json", "-o", "c.bin", "b.txt", python=python).returncode, 0)
        self.assertEqual(np.fromfile(self.dir / "c.bin", "<u2", offset=1024).tolist(), ids)
        (self.dir / "changed.py").write_text(CHANGED)
        done = subprocess.run([python, "changed.py", str(SOURCE / "python/tokenize_text.py")], cwd=self.dir, capture_output=True, text=True, env=ENV, timeout=150)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^[1-9]\d+ of 600 were taken\n$")

    def test_refused(self):
        ids = np.arange(90, dtype="<u2")
        (self.dir / "t.bin").write_bytes(ids.tobytes())
        tokens = "{path: t.bin, format: tokens}"
        out = self.run_trainer(self.write("a", tokens, num=80), ranks=2, status=1)
        self.assertRegex(out, r"t\.bin: window \d+ \(from byte \d+, token \d+\): element \d+: label 8\d, expected .* 0 to 79")
        out = self.run_trainer("check", self.write("b", tokens, num=80, cache=0), "--data", ranks=0, status=1)
        self.assertRegex(out, r"t\.bin: window \d+ \(from byte \d+, token \d+\): element \d+ is 80, expected an id")
        for source, word in (("{path: a.txt, stride: 2, documents: 1}", "give stride or documents"),
                             ("{path: a.txt, documents: 256}", "documents: found 256, expected an id from 0 to 255, as bytes have"),
                             ("{path: a.txt, labels: y}", "format text takes no names"),
                             ("{path: a.txt, dtype: uint8}", "only format tokens"),
                             ("{path: a.txt, documents: 10}", "set model.loss.cross_entropy.ignore_index")):
            self.assertIn(word, self.run_trainer(self.write("c", source), "--force", ranks=0, status=2))
        out = self.run_trainer(self.write("c", "{path: t.bin, format: tokens, documents: 65536}", loss="{cross_entropy: {ignore_index: -1}}"), ranks=2, status=2)
        self.assertIn("c.yaml:6:51: data.train.documents: found 65536, expected an id from 0 to 65535: ", out)
        for source, word in (("{path: a.txt, documents: 1}", "documents are cut"), ("{format: synthetic, samples: 9}", "only formats text")):
            self.assertIn("data.split.stride: " + word, self.run_trainer(self.write("c", source), "data.split.stride=2", ranks=0, status=2))

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
