"""What is read of texts and tokens: files of either kind, several as one, documents, their lengths, buckets of these, what is refused."""
import json
import pathlib
import re
import struct

import numpy as np
import yaml

from harness import main
from texts import TEXT, TextCase


class Tokens(TextCase):
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

    def test_no_separator(self):
        """A separator that never occurs is told in one line, though the file is opened to train on and to evaluate; one that does is not."""
        loss = "{cross_entropy: {ignore_index: -1}}"
        for number, warnings in ((0, 1), (ord("."), 0)):
            (self.dir / "a.txt").write_text(TEXT + ".")
            out = self.run_trainer(self.write("one", f"{{path: a.txt, documents: {number}}}", loss=loss, steps=1), "--force", ranks=2)
            self.assertEqual(len(re.findall(rf"warning: data\.train\.documents: {number} does not occur in \S*a\.txt: it is one document\n", out)), warnings, out)

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
        (self.dir / "other.txt").write_bytes((self.dir / "t.txt").read_bytes())
        for eval_data, files in (({"path": "t.txt", "documents": 255}, ["t.txt"]), ({"path": "other.txt", "documents": 255}, ["t.txt", "other.txt"])):
            idle = config("idle", buckets=[4, 8], train={"path": "t.txt", "documents": 255}, eval=eval_data)  # one long document each
            idle.write_text(idle.read_text().replace('"split": {"fraction": 0.2}, ', ""))
            out = self.run_trainer(idle, "train.steps=1", "--force", ranks=1)
            self.assertEqual([pathlib.Path(n).name for n in re.findall(r"data.buckets: (\S+) has no sample of 8 rows or fewer", out)], files, out)
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


if __name__ == "__main__":
    main()
