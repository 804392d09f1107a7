"""trainer sample: a small model of a text that repeats goes on with it; greedily that is what numpy finds most probable; what
seeds, prompts beside each other, stops and the end of positions do; how it is shown; what is refused."""
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess

import h5py
import numpy as np

from harness import Case, main

PERIOD = "Grün\x1b[1m✓weiß;"  # characters of two and three bytes, and one that would colour a terminal
GPT = """
name: gpt
seed: 4
output: gpt
data: {train: {path: text.txt}}  # a text by its name
model:
  input: [40]
  layers:
    - embedding: {num: 256, dim: 32, std: 0.1, name: token}
    - positions: {name: place}
    - residual:
        body:
          - rmsnorm: {name: norm}
          - linear: {out: 96, bias: false, name: qkv}
          - attention: {heads: 2, causal: true}
          - linear: {out: 32, name: proj}
    - linear: {out: 256, name: head}
  loss: cross_entropy
train:
  steps: 250
  batch: 8
  optimizer: {adamw: {lr: 0.01}}
"""
LSTM = """
name: lstm
output: lstm
data: {train: {path: text.txt, format: text}}
model:
  input: [16]
  layers: [{embedding: {num: 256, dim: 8}}, {lstm: {hidden: 12}}, {linear: {out: 256}}]
  loss: cross_entropy
train: {steps: 1, batch: 2, optimizer: {adamw: {lr: 0.01}}}
"""
LENGTHS = """
name: lengths
output: lengths
data: {train: {path: text.txt, format: text, documents: 59}}
model:
  inputs: {x: [24], length: [1]}
  layers:
    - embedding: {num: 256, dim: 32, from: x, name: token}
    - transformer: {layers: 1, heads: 2, causal: true, position: rotary, from: [token, length]}
    - linear: {out: 256}
  loss: {cross_entropy: {ignore_index: -1}}
train: {steps: 150, batch: 8, optimizer: {adamw: {lr: 0.01}}}
"""
DENSE = """
name: dense
output: dense
data: {train: {format: synthetic, samples: 8}}
model: {input: [6], layers: [{linear: {out: 3}}], loss: cross_entropy}
train: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}
"""


class Sample(Case):
    ran = None  # the folder of runs, once

    def setUp(self):
        super().setUp()
        if not Sample.ran:
            (self.dir / "text.txt").write_text(PERIOD * 60)
            for name, text in (("gpt", GPT), ("lstm", LSTM), ("dense", DENSE)):
                (self.dir / f"{name}.yaml").write_text(text)
                self.run_trainer(f"{name}.yaml", "--quiet", "device=cpu", ranks=0)
            Sample.ran = self.dir.with_name(f"{self.dir.name}-runs")  # each test has a folder of its own
            shutil.copytree(self.dir, Sample.ran)
            Sample.addClassCleanup(shutil.rmtree, Sample.ran, ignore_errors=True)
        shutil.copytree(Sample.ran, self.dir, dirs_exist_ok=True)

    def sample(self, *arguments, model="gpt", status=0, ranks=0):
        launcher = ["mpirun", "--oversubscribe", "-np", str(ranks)] if ranks else []
        done = subprocess.run([*launcher, str(self.program), "sample", model, *self.more(), *map(str, arguments)],
                              cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout if status == 0 else done.stderr.decode()

    def more(self):
        return ()

    def greedy(self, *arguments, **how):
        return self.sample("--temperature", 0, *arguments, **how)

    def test_goes_on(self):
        text = PERIOD.encode() * 4
        for n in (7, 20):
            self.assertEqual(self.greedy("--prompt", text[:n].decode(), "--tokens", 15), text[n:n + 15])
        (self.dir / "prompt.txt").write_bytes(text[:9])
        self.assertEqual(self.greedy("--prompt-file", "prompt.txt", "--tokens=12"), text[9:21])
        # a run's folder, its file, one thread or more
        for model in ("gpt", "gpt/model.h5"):
            self.assertEqual(self.greedy("--prompt", "Grün", "--tokens", 9, "run.threads=2", model=model), text[5:14])

    def most_probable(self, ids, count):
        """The same by numpy, in float64, all of the sequence each time."""
        with h5py.File(self.dir / "gpt/model.h5") as f:
            w = {n: f["model/params/" + n][()].astype(np.float64) for n in
                 ("token/weight", "place/weight", "norm/weight", "qkv/weight", "proj/weight", "proj/bias", "head/weight",
                  "head/bias")}
        ids, start = list(ids), len(ids)
        while len(ids) < start + count:
            n = len(ids)
            x = w["token/weight"][ids] + w["place/weight"][:n]
            z = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w["norm/weight"]
            q, k, v = (a.reshape(n, 2, 16).swapaxes(0, 1) for a in np.split(z @ w["qkv/weight"].T, 3, axis=1))
            s = np.where(np.tri(n, dtype=bool), q @ k.swapaxes(1, 2) / 4, -np.inf)
            p = np.exp(s - s.max(2, keepdims=True))
            y = (p / p.sum(2, keepdims=True) @ v).swapaxes(0, 1).reshape(n, 32)
            x = x + y @ w["proj/weight"].T + w["proj/bias"]
            ids.append(int((x[-1] @ w["head/weight"].T + w["head/bias"]).argmax()))
        return ids[start:]

    def test_greedy_is_numpys(self):
        rng = np.random.default_rng(3)
        for n in (1, 5, 17):
            ids = [int(i) for i in rng.integers(0, 256, n)]
            made = self.greedy("--prompt-ids", ",".join(map(str, ids)), "--tokens", 20)
            self.assertEqual(list(made), self.most_probable(ids, 20))

    def test_several(self):
        """Each after a line that names it, as by itself, greedily and drawn; more of them than go at once."""
        prompts = ["Grün", "ß; Gr", "w", "✓ we", "G", "ün", "; ", "eiß", "r", "✓"]
        how = ("--tokens", 11, "--temperature", 0.8, "--top-k", 40, "--top-p", 0.95, "--seed", 9)
        alone = [self.sample("--prompt", p, *how) for p in prompts]
        together = self.sample(*(a for p in prompts for a in ("--prompt", p)), *how)
        expected = "\n".join(f"==> {p} <==\n" for p in prompts).encode().split(b"\n\n")
        self.assertEqual(together, b"\n".join(head.rstrip(b"\n") + b"\n" + text + b"\n" for head, text in zip(expected, alone)))

    def test_seeds(self):
        how = ("--prompt", "Gr", "--tokens", 30, "--temperature", 3)
        one, again, two = (self.sample(*how, "--seed", s) for s in (1, 1, 2))
        self.assertEqual(one, again)
        self.assertNotEqual(one, two)
        self.assertEqual(self.sample(*how), self.sample(*how, "--seed", 4))  # the config's
        # so few are left that only the most probable one is
        greedy = self.greedy("--prompt", "Gr", "--tokens", 30)
        self.assertNotEqual(one, greedy)
        for few in (("--top-k", 1), ("--top-p", 0.001)):
            self.assertEqual(self.sample(*how, "--seed", 1, *few), greedy)

    def test_stops(self):
        text = PERIOD.encode() * 2
        self.assertEqual(self.greedy("--prompt", "Gr", "--stop", "we", "--stop", "never"), text[2:text.index(b"we")])
        self.assertEqual(self.greedy("--prompt", "Gr", "--stop-ids", f"{ord('w')} {ord('e')}"), text[2:text.index(b"we")])

    def test_one_id(self):
        done = subprocess.run([str(self.program), "sample", "lstm", *self.more(), "--prompt", "G", "--tokens", "1"], cwd=self.dir,
                              env=self.environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, timeout=120)
        self.assertRegex(done.stderr.decode(), r"sample: 1 id of prompts in .*, 1 id made in ")

    def test_positions_end(self):
        """A model of 40 places says so; an LSTM has no end."""
        self.assertEqual(len(self.greedy("--prompt", "Grün ", "--tokens", 500)), 40 - 6 + 1)
        done = subprocess.run([str(self.program), "sample", "gpt", *self.more(), "--prompt", "Gr", "--tokens", "60"],
                              cwd=self.dir, env=self.environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, timeout=120)
        self.assertIn(b"prompt 1 ends at the 40 positions that the model tells apart, before --tokens 60", done.stderr)
        self.assertRegex(done.stderr.decode(), r"sample: 2 ids of prompts in [\d.]+ s \([\d.]+/s\), 39 ids made in "
                         r"[\d.]+ s \([\d.]+/s\); .* of memory, .* of it for the ids before")
        self.assertEqual(len(self.sample("--prompt", "Gr", "--tokens", 300, model="lstm")), 300)

    def train_once(self, name, text, *arguments):
        (self.dir / f"{name}.yaml").write_text(text.replace("lstm\n", f"{name}\n"))
        self.run_trainer(f"{name}.yaml", "--quiet", "device=cpu", *arguments, ranks=0)

    def test_padded(self):
        """More logits than the embedding has rows, or more of both than a text has bytes: what is no byte never comes."""
        hot = ("--prompt", "Gr", "--temperature", 1000, "--tokens", 400)  # each of 700 ids as probable as any other
        for name, num in (("head", 256), ("both", 700)):
            self.train_once(name, LSTM.replace("num: 256", f"num: {num}").replace("out: 256", "out: 700"))
            self.assertEqual(len(self.sample(*hot, model=name)), 400)
        made = self.sample(*hot[2:], "--prompt-ids", "71,114", "data.train.format=tokens", model="head")
        self.assertLess(max(int(n) for n in made.split()), 256)
        made = self.sample(*hot[2:], "--prompt-ids", "71,114", "data.train.format=tokens", model="both")
        self.assertGreater(max(int(n) for n in made.split()), 255)

    def test_what_gives_no_logits(self):
        self.train_once("narrow", LSTM.replace("num: 256", "num: 300"))
        self.assertIn('layer "linear1" gives 256 logits, but the model reads ids from 0 to 299: expected a logit for each of 300',
                      self.sample("--prompt", "a", model="narrow", status=2))
        self.train_once("soft", LSTM.replace("{out: 256}}]", "{out: 256}}, {softmax: {name: last}}]"))
        self.assertIn('layer "last" is softmax, which cross_entropy applies itself', self.sample(
            "--prompt", "a", model="soft", status=2))

    def test_numbers(self):
        """Models of tokens read and write numbers."""
        made = self.greedy("--prompt-ids", "71, 114", "--tokens", 5, "data.train.format=tokens").decode()
        self.assertEqual([int(n) for n in made.split()], list((PERIOD.encode())[2:7]))
        self.assertIn("the model is one of tokens", self.sample("--prompt", "a", "data.train.format=tokens", status=2))

    def test_shown(self):
        """On a terminal escapes are harmless; characters come whole, wherever the text goes."""
        master, slave = pty.openpty()
        process = subprocess.Popen([str(self.program), "sample", "gpt", *self.more(), "--prompt", "Gr", "--tokens", "24",
                                    "--temperature", "0", "--quiet"], cwd=self.dir, env=self.environment(), stdout=slave)
        os.close(slave)
        parts = []
        while True:
            try:
                parts.append(os.read(master, 65536))
            except OSError:  # the other end is closed
                break
            if not parts[-1]:
                break
        os.close(master)
        self.assertEqual(process.wait(timeout=60), 0)
        for part in parts:
            part.decode()  # each by itself
        shown = b"".join(parts).decode().replace("\r\n", "\n")
        self.assertEqual(shown, (PERIOD * 2).encode()[2:26].decode().replace("\x1b", "\\x1b") + "\n")

    def test_one_is_not_finite(self):
        """The others' text is there, before and behind it; the status says that not all is well."""
        with h5py.File(self.dir / "lstm/model.h5", "r+") as f:
            table = f[next(k for k in self.names(f["model/params"]) if f[k].shape == (256, 8))]
            table[ord("~")] = np.nan
        prompts = ["Gr", "a~", "w"]
        how = (*(a for p in prompts for a in ("--prompt", p)), "--tokens", 9, "--temperature", 0, "--accept-unverified")
        done = subprocess.run([str(self.program), "sample", "lstm/model.h5", *self.more(), *map(str, how)], cwd=self.dir,
                              env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        alone = [self.greedy("--prompt", p, "--tokens", 9, "--accept-unverified", model="lstm/model.h5") for p in ("Gr", "w")]
        self.assertEqual(done.stdout, b"==> Gr <==\n%s\n\n==> a~ <==\n\n\n==> w <==\n%s\n" % tuple(alone))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"sample: prompt 2 ends: what the model gives is not finite", done.stderr)
        self.assertIn(b"prompt 2: what the model gives behind 2 ids is not finite", done.stderr)
        self.assertIn(b" 18 ids made in ", done.stderr)

    @staticmethod
    def names(group):
        found = []
        group.visititems(lambda _, item: found.append(item.name) if isinstance(item, h5py.Dataset) else None)
        return found

    def shell(self, line, **how):
        """$0 is the program."""
        return subprocess.run(["bash", "-c", line, str(self.program), *self.more()], cwd=self.dir, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **how)

    def test_what_it_takes(self):
        """More ids than the memory can hold are refused by name, before anything is allocated."""
        wide = GPT.replace("dim: 32", "dim: 256").replace("out: 96", "out: 768").replace("out: 32", "out: 256")
        self.train_once("endless", wide.replace("output: gpt", "output: endless").replace("    - positions: {name: place}\n", "")
                        .replace("steps: 250", "steps: 1"))
        prompts = ("--prompt", "Gr", *("--prompt", "a") * 9)  # eight of them at a time
        told = self.sample(*prompts, "--tokens", 2**30, "device=cpu", model="endless", status=1)
        rows = 2**30 + 2
        self.assertRegex(told, rf"--tokens {2**30}: 8 prompts at a time, with {rows} ids each at most, take [\d.]+ [GT]i?B for the "
                         r"ids before, 2.0\d* [Kk]i?B an id, and [\d.]+ \S+ of memory are left: expected fewer tokens or prompts")

    def test_memory_limit(self):
        """What does not fit run.memory_limit is refused with what is planned and the limit that would do, which does: the process
        stays below it."""
        self.train_once("endless", GPT.replace("output: gpt", "output: endless").replace("    - positions: {name: place}\n", ""))  # learns the period, which ends it
        arguments = ("--prompt", "Gr", "--tokens", 60000, "device=cpu", "--stop", PERIOD[0])
        told = self.sample(*arguments, "run.memory_limit=30MB", model="endless", status=1)
        said = re.search(r"sample does not fit 30\.0 MB of run\.memory_limit: 1 prompt at a time, with 60002 ids each at most, take ([\d.]+) MB "
                         r"planned, the program with the weights [\d.]+ MB: the smallest limit that would do is about (\d+)MiB; fewer --tokens", told)
        self.assertGreater(float(said[1]), 60000 * 2 * 32 * 4 / 1e6)
        limit = int(said[2]) << 20
        self.sample(*arguments, "run.memory_limit=500MB", model="endless")
        process = subprocess.Popen([str(self.program), "sample", "endless/model.h5", *map(str, arguments), f"run.memory_limit={limit}B"],
                                   cwd=self.dir, env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        with process.stderr:
            said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, said)
        self.assertLess(used.ru_maxrss * 1024, limit, said)

    def test_nobody_reads(self):
        """A closed output is an error; a reader that has enough is none."""
        done = self.shell('exec "$0" sample gpt "$@" --prompt Gr --tokens 9 >&-')
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output could not be written: Bad file descriptor", done.stderr)
        done = self.shell('set -o pipefail; "$0" sample lstm "$@" --prompt Gr --tokens 1000000000 | head -c 10')
        self.assertEqual((len(done.stdout), done.returncode), (10, 0), done.stderr)
        self.assertNotIn(b"error", done.stderr)

    def test_prompts_from_pipes(self):
        text = PERIOD.encode() * 2
        for line in ('"$0" sample gpt "$@" --prompt-file - --tokens 8 --temperature 0',
                     'cat | "$0" sample gpt "$@" --prompt-file=/dev/stdin --tokens 8 --temperature 0',
                     'cat > in; "$0" sample gpt "$@" --prompt-file <(cat in) --tokens 8 --temperature 0',
                     'cat > in; "$0" sample gpt "$@" --prompt-file - --tokens 8 --temperature 0 < in'):
            done = self.shell(line, input=text[:9])
            self.assertEqual((done.stdout, done.returncode), (text[9:17], 0), done.stderr)
        done = self.shell('"$0" sample gpt "$@" --prompt-file - < /dev/zero')
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"standard input: larger than 64 MiB", done.stderr)
        done = self.shell('"$0" sample gpt "$@" --prompt-file - < /dev/null')
        self.assertIn(b"-: it is empty", done.stderr)

    def test_interrupt(self):
        """What is made so far is there, the counts are told, the status is that of a stop."""
        process = subprocess.Popen([str(self.program), "sample", "lstm", *self.more(), "--prompt", "Gr", "--tokens",
                                    "1000000000"], cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        first = os.read(process.stdout.fileno(), 10)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, told)
        self.assertRegex(told.decode(), rf" {len(first) + len(rest)} ids made in ")
        self.assertIn(b"stopped on request", told)

    def test_refused(self):
        for arguments, why in (
                ((), "nothing to go on with: expected --prompt TEXT"),
                (("--prompt",), "--prompt: expected a value behind it"),
                (("--prompt", ""), "--prompt: it is empty"),
                (("--prompt", "a", "--temperature", "-1"), "--temperature -1: expected a number from 0 to 1000"),
                (("--prompt", "a", "--top-p", "1.5"), "--top-p 1.5: expected a number from 0 to 1"),
                (("--prompt", "a", "--top-k", "x"), "--top-k x: expected a whole number from 0 to 2147483647"),
                (("--prompt", "a", "--tokens", "0"), "--tokens 0: expected a whole number from 1 to 1073741824"),
                (("--prompt", "a", "--stop", ""), "--stop: it is empty: expected what is to end the text, or no such option"),
                (("--prompt", "a", "--stop", "b", "--stop-ids", " "), "stop 2 (--stop-ids): it is empty: expected what is to end"),
                (("--prompt", "a", "--prompt", "b" * 41), "prompt 2 (--prompt): 41 ids, but layer"),
                (("--prompt", "a", "--prompt-ids", "1,300"), "prompt 2 (--prompt-ids): id 300, but the model knows ids from 0"),
                (("--prompt", "a", "--stop-ids", "256"), "--stop-ids: id 256, but the model knows ids from 0 to 255"),
                (("--prompt-ids", "1,x"), "--prompt-ids: expected ids, whole numbers with commas between them, at "
                 "character 3"),
                (("--prompt", "a" * 41), '--prompt: 41 ids, but layer "place" of the model tells 40 positions apart'),
                (("--prompt", "a", "--top", "3"), "unknown option --top (expected: --quiet --accept-unverified --prompt --prompt-file "),
                (("--prompt", "a", "train.batsh=3"), "batsh")):
            with self.subTest(arguments=arguments):
                self.assertIn(why, self.sample(*arguments, status=2))
        self.assertIn('the model\'s input "input" is no sequence of ids', self.sample("--prompt", "a", model="dense", status=2))
        self.assertIn("nowhere.txt", self.sample("--prompt-file", "nowhere.txt", status=2))
        self.assertIn("sample: one rank makes a sequence id by id, and 2 were started",
                      self.sample("--prompt", "a", ranks=2, status=2))

    def test_lengths(self):
        """Of a model that reads the lengths of documents all ids count that there are."""
        (self.dir / "lengths.yaml").write_text(LENGTHS)
        self.run_trainer("lengths.yaml", "--quiet", "device=cpu", ranks=0)
        done = self.sample("--prompt", "Grün", "--tokens", 9, "--temperature", 0, model="lengths")
        self.assertEqual(done, PERIOD.encode()[5:14])

    def test_bf16(self):
        if "avx512bw" not in pathlib.Path("/proc/cpuinfo").read_text():
            self.skipTest("this CPU has no bfloat16")
        self.assertEqual(self.greedy("--prompt", "Grün", "--tokens", 9, "train.precision=bf16"), PERIOD.encode()[5:14])


if __name__ == "__main__":
    main()
