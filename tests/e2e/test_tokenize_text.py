"""python/tokenize_text.py: what it writes is read and trained on, what is wrong with a tokenizer or a text is told in one line."""
import collections
import json
import os
import re
import subprocess
import sys

import numpy as np

from harness import ENV, SOURCE, main
from texts import TEXT, TextCase

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


class TokenizeText(TextCase):
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


if __name__ == "__main__":
    main()
