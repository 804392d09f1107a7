"""run.memory_limit: what is chosen fits, is what runs hold, is kept by a resumed run and changes no bit at one micro-batch; what
cannot fit is refused with the smallest limit that would do."""
import json
import re
import shutil
import subprocess

import h5py
import numpy as np

from harness import SOURCE, main
from limits import DEEP, MIB, NORMED, LimitCase

ROWS = """
name: rows
device: cpu
output: run
data: {train: {format: text, path: a.txt}}
model:
  input: [384]
  loss: cross_entropy
  layers:
    - embedding: {num: 256, dim: 48}
    - positions
    - LAYERS
    - linear: {out: 256}
train: {steps: 2, batch: 16, micro_batch: 4, log_every: 1, optimizer: {sgd: {lr: 0.1}}}
run: {threads: 1}
"""
ATTENTION = "transformer: {layers: 4, heads: 4, causal: true, dropout: 0.1}"
LENGTHS = """
name: lengths
device: cpu
output: run
data: {train: {path: a.txt, format: text, documents: 10}, buckets: [16, 32, 48, 64, 80, 96, 112], split: {fraction: 0.1}}
model:
  inputs: {x: [128], n: [1]}
  layers:
    - embedding: {num: 256, dim: 64, from: x}
    - positions
    - transformer: {layers: 4, heads: 4, causal: true, from: [positions1, n], dropout: 0.1}
    - linear: {out: 256}
  loss: {cross_entropy: {ignore_index: -1}}
train: {steps: 2, batch: 256, log_every: 1, optimizer: {sgd: {lr: 0.1}}}
run: {threads: 1}
"""
RECURRENT = "repeat: {times: 8, layers: [residual: {body: [layernorm, lstm: {hidden: 48, name: memory}]}]}"


class MemoryLimit(LimitCase):
    def test_sweep(self):
        """From impossible to ample, over ranks: every limit from the smallest on trains; equal micro-batches give equal bits."""
        config = self.write(DEEP.replace("batch: 1024,", "batch: 2048,"))
        for ranks in (1, 2):
            least, _ = self.smallest(config, ranks=ranks)
            plan = self.planned(config, "--ranks", ranks)["fit"]["needed_bytes"]
            self.run_trainer(config, "--force", ranks=ranks)
            plain, seen, held = self.losses(), {}, []
            ample = plan + ranks * 100 * MIB
            for limit in np.linspace(least, ample, 7):
                micro, losses, end, out = self.limited(config, int(limit), ranks=ranks)
                np.testing.assert_array_equal(losses, seen.setdefault(micro, losses), out)
                np.testing.assert_allclose(losses, plain, rtol=1e-4)
                self.assertLess(ranks * end["held_mb"] * 1e6, limit, out)
                held.append(end["held_mb"])
            self.assertGreater(len(seen), 1, "one micro-batch for all limits")
            self.assertLess(held[0], 0.7 * held[-1])
            self.assertEqual(micro, 2048 // ranks)
            np.testing.assert_array_equal(losses, plain)

    def test_rows(self):
        """Attention with dropout, and LSTMs: at one micro-batch every limit gives the same bits, on one rank and, of attention, on two."""
        (self.dir / "a.txt").write_text("the quick brown fox jumps over the lazy dog; " * 200)
        for layers, counts in ((ATTENTION, (0, 2)), (RECURRENT, (0,))):
            config = self.write(ROWS.replace("LAYERS", layers))
            for ranks in counts:
                least, _ = self.smallest(config, ranks=ranks)
                self.run_trainer(config, "--force", ranks=ranks)
                plain, whole, texts = self.losses(), self.records(event="end")[-1]["held_mb"] * 1e6, []
                for limit in np.linspace(least, least + max(ranks, 1) * whole, 2 if ranks else 4):
                    _, losses, end, out = self.limited(config, int(limit), ranks=ranks)
                    np.testing.assert_array_equal(losses, plain, out)
                    self.assertLess(max(ranks, 1) * end["held_mb"] * 1e6, limit)
                    texts.append(re.search(r"(\d+ of \d+ layers in \d+ segments?|blocks|nothing) recomputed", out)[1])
                self.assertNotEqual(texts[0], "nothing", layers)
                self.assertEqual(texts[-1], "nothing", layers)

    def test_smallest(self):
        """What is said to do does, and is the least: less is refused, whose figure does not grow with the limit."""
        config = self.write(DEEP)
        for ranks in (0, 2):
            least, _ = self.smallest(config, ranks=ranks)
            self.limited(config, least, ranks=ranks)
            out = self.run_trainer(config, f"run.memory_limit={least - MIB}B", "--force", ranks=ranks, status=1)
            self.assertEqual(int(re.search(r"would do is about (\d+)MiB", out)[1]) * MIB, least)
            self.assertNotIn("train.accumulate", out)  # what takes less than the least: not what was tried already
            self.assertIn(f"command line: run.memory_limit={least - MIB}B: training does not fit", out)
        config = self.write(DEEP.replace("threads: 1", "threads: 1, memory_limit: 1MB"))
        self.assertIn(f"{config}:14:33: training does not fit 1.00 MB on a node of run.memory_limit", self.run_trainer(config, "--force", status=1))

    def test_limit_of_a_level(self):
        """A limit that run.level sets is told where the level is chosen, in the file or on the command line."""
        large = DEEP.replace("linear: {out: 256}", "linear: {out: 131072}")  # 1 GB of weights and gradients
        said = "training does not fit 500 MB on a node of run.memory_limit"
        config = self.write(large.replace("threads: 1", "threads: 1, level: cpu_small"))
        self.assertIn(f"error: {config}:14:26: {said}", self.run_trainer(config, ranks=0, status=1))
        config = self.write(large)
        self.assertIn(f"error: command line: run.level=cpu_small: {said}", self.run_trainer(config, "run.level=cpu_small", ranks=0, status=1))

    def test_plan_refuses(self):
        """A limit that a run would not start under: plan does not call it fitting, and says what would do."""
        config = self.write(DEEP)
        least, _ = self.smallest(config, ranks=0)
        for limit in (1_000_000, least - MIB):
            plan = self.planned(config, f"run.memory_limit={limit}B")
            self.assertIn("nothing fits; the least", " ".join(plan["notes"]))
            fit = plan["fit"]
            self.assertEqual((fit["fits"], fit["limited"], fit["available_bytes"]), (False, True, limit))
            self.assertEqual(fit["smallest_limit_bytes"], least)
            self.assertIs(self.planned(config, f"run.memory_limit={limit}B", "--memory", "80GB")["fit"]["fits"], False)
            text = self.run_trainer("plan", config, f"run.memory_limit={limit}B", ranks=0, status=1)
            self.assertIn(f"trainer: error: command line: run.memory_limit={limit}B: training does not fit ", text)
            self.assertRegex(text, r"does not fit: [\d.]+ MB needed, [\d.]+ MB allowed, of which programs take")
            self.assertRegex(text, r"the smallest run\.memory_limit that would do is about \d+MiB\n")
        of_file = self.write(DEEP.replace("threads: 1", "threads: 1, memory_limit: 1MB"), "limited.yaml")
        self.assertIn(f"trainer: error: {of_file}:14:33: training does not fit 1.00 MB on a node of run.memory_limit", self.run_trainer("plan", of_file, ranks=0, status=1))
        fit = self.planned(config, f"run.memory_limit={least}B")["fit"]
        self.assertEqual((fit["fits"], fit["limited"]), (True, True))
        self.assertNotIn("smallest_limit_bytes", fit)
        # where there is less than the limit, that counts
        fit = self.planned(config, "run.memory_limit=80GB", "--memory", "1MB")["fit"]
        self.assertEqual((fit["fits"], fit["limited"], fit["available_bytes"]), (False, False, 1_000_000))
        for there, said, env in ((("--memory", "1MB"), "--memory", {}), ((), "what is available here now", {"TRIREME_MEM_AVAILABLE": "1000000"})):
            out = self.run_trainer("plan", config, *there, ranks=0, status=1, env=env)
            self.assertIn(f"trainer: error: {said}: training does not fit 1.00 MB", out)
            self.run_trainer("plan", config, *there, "run.overcommit_memory=true", ranks=0, env=env)
        self.assertIs(self.planned(config, "run.memory_limit=1MB", "run.overcommit_memory=true")["fit"]["fits"], False)

    def test_largest_micro_batch(self):
        """An LSTM's products of few rows take longer, as do more calls: of micro-batches that fit, none recomputed, a large one is taken."""
        config, own = SOURCE / "configs/bench/lstm.yaml", ("device=cpu", "run.threads=1", f"output={self.dir}/run")
        fit = self.planned(config, *own, "--memory", "80GB")["fit"]
        limit = f"run.memory_limit={fit['program_bytes'] + fit['needed_bytes'] * 9 // 10}B"
        self.assertRegex(self.choice(config, *own, limit), r"micro-batches of 32 samples a rank \(2 a step\), nothing recomputed")
        small = self.choice(config, *own, limit, "train.batch=1024", "train.recompute=none")
        self.assertGreater(int(re.search(r"micro-batches of (\d+) samples", small)[1]), 16, small)

    def test_least_activations(self):
        """The GPT of configs/bench at one micro-batch: at the least recomputation takes 60 % of the activations, or more."""
        config, own = SOURCE / "configs/bench/gpt.yaml", ("device=cpu", "run.threads=1", "train.micro_batch=8", f"output={self.dir}/run")
        plain, least = (self.planned(config, *own, limit)["memory"]["host"]["activations"]
                        for limit in ("run.memory_limit=none", "run.memory_limit=1MB"))
        self.assertLess(least, 0.4 * plain)
        self.assertLess(float(re.search(r"([+-][\d.]+) % arithmetic", self.choice(config, *own, "run.memory_limit=1MB"))[1]), 100 / 3)

    def test_every_start(self):
        """The same is chosen in every start, whoever starts the rank: what its program takes then counts in steps."""
        config = self.write(DEEP)
        least, _ = self.smallest(config, ranks=0)
        for limit in range(least, least + 12 * MIB, 3 * MIB):
            (micro, losses, *_), other = (self.limited(config, limit, ranks=ranks) for ranks in (0, 1))
            self.assertEqual((micro, losses), other[:2])

    def test_process_is_below(self):
        """All that is resident, of both ranks together; pages that they share count twice here."""
        config = self.write(DEEP)
        for ranks in (1, 2):
            least, _ = self.smallest(config, ranks=ranks)
            end = self.limited(config, least, ranks=ranks)[2]
            self.assertLess(ranks * end["peak_rss_mb"] * 1e6, least)

    def test_shorter_models(self):
        """Plans for other numbers of rows are kernels beside, which the limit has to cover, too."""
        (self.dir / "a.txt").write_text("".join("x" * (i * 37 % 126 + 1) + "\n" for i in range(600)))
        config = self.write(LENGTHS)
        least, _ = self.smallest(config, "data.buckets=null")
        more, _ = self.smallest(config)
        self.assertGreater(more, least + 7 * 4 * MIB)
        for limit in (more, more + 60 * MIB):
            end = self.limited(config, limit)[2]
            self.assertLess(end["peak_rss_mb"] * 1e6, limit)

    def test_recomputed_alone(self):
        """At one micro-batch, with batchnorm: only what is recomputed changes, never a bit of a loss."""
        config = self.write(NORMED)
        least, out = self.smallest(config)
        self.assertIn("micro-batches are as the config, or batchnorm, wants them", out)
        self.assertRegex(out, r"train\.accumulate=2 [\d.]+ MB")
        self.run_trainer(config, "--force", ranks=1)
        plain, end = self.losses(), self.records(event="end")[-1]
        texts = set()
        for limit in np.linspace(least, least + 0.8 * end["held_mb"] * 1e6, 5):
            micro, losses, held, out = self.limited(config, int(limit))
            self.assertIsNone(micro, out)
            np.testing.assert_array_equal(losses, plain, out)
            texts.add(re.search(r"(\d+ of \d+ layers in \d+ segments?|blocks|nothing) recomputed", out)[1])
            self.assertRegex(out, r"recomputed, [\d.]+ MB planned")
        self.assertGreater(len(texts), 2)
        self.assertLess(held["held_mb"], end["held_mb"] + 0.1)
        least, _ = self.smallest(config, ranks=2)  # statistics are merged by all ranks, once
        self.run_trainer(config, "--force", ranks=2)
        plain = self.losses()
        np.testing.assert_array_equal(self.limited(config, least, ranks=2)[1], plain)

    def test_evaluation_fits(self):
        """A batch of evaluations that is too large is lowered, and nothing else."""
        config = self.write(DEEP.replace("steps: 3, batch: 1024,", "steps: 1, batch: 8192, micro_batch: 64,").replace("2048", "8192").replace("1024,", "8192,")
                            .replace("every_steps: 3", "every_steps: 1"))
        self.run_trainer(config, "--force", ranks=1)
        plain = self.losses()
        least, _ = self.smallest(config)
        _, losses, _, out = self.limited(config, least + 3 * MIB)  # at the least it recomputes, too
        np.testing.assert_array_equal(losses, plain)
        lowered = re.search(r"nothing recomputed, evaluations in batches of (\d+)", out)
        self.assertTrue(lowered, out)
        self.assertIn(f"    batch: {lowered[1]}\n", (self.dir / "run/config.yaml").read_text())

    def test_resumed(self):
        """The choice is the run's: resumed under another limit it goes on with the same micro-batches, bit by bit."""
        config = self.write(DEEP)
        least, _ = self.smallest(config)
        limit = least + 3 * MIB
        micro, _, _, _ = self.limited(config, limit, "train.steps=1")
        self.assertLess(micro, 1024)
        self.run_trainer(config, f"train.micro_batch={micro}", f"output={self.dir}/whole", ranks=1)
        whole = self.losses("whole")
        for resumed in (least + 60 * MIB, limit):
            out = self.run_trainer(config, f"run.memory_limit={resumed}B", "--resume", ranks=1)
            self.assertIn(f"train.micro_batch: as run/config.yaml has it", out)
            np.testing.assert_array_equal(self.losses(), whole)
        self.assertIn(f"\n  micro_batch: {micro}\n", (self.dir / "run/config.yaml").read_text())

    def test_done_without_limit(self):
        """What memory chose is no other wish: a training that is done is left as it is, with and without the limit."""
        config = self.write(DEEP)
        least, _ = self.smallest(config)
        limit = f"run.memory_limit={least + 3 * MIB}B"
        self.limited(config, least + 3 * MIB)
        for more in ((), (limit,), ()):
            out = self.run_trainer(config, "--resume", *more, ranks=1)
            self.assertIn("nothing is left to do", out)
            self.assertNotIn("changes the numbers", out)
        out = self.run_trainer(config, "--resume", "train.micro_batch=7", ranks=1, status=2)
        self.assertRegex(out, r"train\.micro_batch: 7, was \d+: the training is done")

    def test_auto(self):
        """What is left, less a margin; of all ranks' nodes the least counts."""
        config = self.write(DEEP)
        need = self.planned(config, "--ranks", 2)["fit"]["needed_bytes"]
        ample = self.run_trainer(config, "--force", "run.memory_limit=auto", env={"TRIREME_MEM_AVAILABLE": str(2 * need + 300 * MIB)})
        self.assertRegex(ample, r"run\.memory_limit auto: micro-batches of 512 samples a rank \(1 a step\), nothing recomputed")
        short = {"TRIREME_MEM_AVAILABLE": str(int(0.9 * need) + 64 * MIB)}
        out = self.run_trainer(config, "--force", "run.memory_limit=auto", env=short)
        self.assertGreater(int(re.search(r"\((\d+) a step\)", out)[1]), 1, out)
        out = self.run_trainer(config, "--force", "run.memory_limit=auto", status=1, env={"TRIREME_MEM_AVAILABLE": "1000000"})
        self.assertEqual(out.count("the smallest limit that would do"), 1, out)

    def grouped(self, config, groups, files, status=0):
        """A run that reads these lines in /proc/self/cgroup and these files below /sys/fs/cgroup."""
        (self.dir / "groups").write_text(groups)
        with open(self.dir / "in_group", "w") as f:
            f.write("set -e\nmount -t tmpfs none /sys/fs/cgroup\nmount --bind groups /proc/$$/cgroup\n")
            for path, text in files.items():
                f.write(f"mkdir -p /sys/fs/cgroup/{path.rpartition('/')[0]}\nprintf '{text}\\n' > /sys/fs/cgroup/{path}\n")
            f.write('exec "$@"\n')
        command = ["unshare", "--mount", "sh", "in_group", str(self.program), str(config), "run.memory_limit=auto", "--force"]
        done = subprocess.run(command, cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def test_control_group(self):
        """auto keeps to what the control group's limit leaves, of the group or of one around it, of either version."""
        trial = "mount -t tmpfs none /sys/fs/cgroup && mount --bind /dev/null /proc/$$/cgroup"
        if not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "sh", "-c", trial], capture_output=True).returncode:
            self.skipTest("no namespace of mounts here (it needs root)")
        config = self.write(DEEP)
        need = self.planned(config)["fit"]["needed_bytes"]
        self.run_trainer(config, "--force", ranks=0)
        plain, used = self.losses(), 3_000_000_000
        short = int(0.9 * need) + 34 * MIB
        v2, v1 = "0::/job/step\n", "5:cpu:/other\n4:memory:/job/step\n"
        for groups, limit, use in ((v2, "job/step/memory.max", "job/step/memory.current"), (v2, "job/memory.max", "job/memory.current"),
                                   (v1, "memory/job/step/memory.limit_in_bytes", "memory/job/step/memory.usage_in_bytes"),
                                   (v1, "memory/job/memory.limit_in_bytes", "memory/job/memory.usage_in_bytes")):
            with self.subTest(limit):
                out = self.grouped(config, groups, {limit: used + short, use: used})
                self.assertGreater(int(re.search(r"run\.memory_limit auto: micro-batches of \d+ samples a rank \((\d+) a step\)", out)[1]), 1, out)
                self.assertAlmostEqual(self.records(event="memory")[0]["limit_mb"], 0.95 * short / 1e6, delta=0.1)
                self.assertLess(self.records(event="end")[-1]["held_mb"] * 1e6, 0.95 * short)
                np.testing.assert_allclose(self.losses(), plain, rtol=1e-4)
                out = self.grouped(config, groups, {limit: used + 20_000_000, use: used}, status=1)
                self.assertIn("training does not fit 19.0 MB on a node of run.memory_limit", out)
        # pages of files are given up where memory is short
        for groups, at, total in ((v2, "job/memory", ""), (v1, "memory/job/memory", "total_")):
            limit, use = ("limit_in_bytes", "usage_in_bytes") if total else ("max", "current")
            cached = f"{total}inactive_file {short - 11_000_000}\\n{total}active_file 1000000\\nmapped_file 7\\nanon 5"
            self.grouped(config, groups, {f"{at}.{limit}": used + 10_000_000, f"{at}.{use}": used, f"{at}.stat": cached})
            self.assertAlmostEqual(self.records(event="memory")[0]["limit_mb"], 0.95 * short / 1e6, delta=0.1)
        ample = self.grouped(config, v2, {"job/step/memory.max": "max", "job/step/memory.current": used})
        self.assertIn("(1 a step), nothing recomputed", ample)

    def test_overcommit(self):
        config = self.write(DEEP)
        out = self.run_trainer(config, "--force", "run.memory_limit=1MB", "run.overcommit_memory=true", ranks=1)
        self.assertIn("the smallest limit that would do", out)
        self.assertEqual(self.records(event="end")[-1]["steps"], 3)

    def test_plan_shows_it(self):
        """Plan chooses, too; and its figure for the config that a run made of its choice is what that run held."""
        config = self.write(DEEP)
        least, _ = self.smallest(config)
        limit = f"run.memory_limit={least + 6 * MIB}B"
        plan = json.loads(self.tool("plan", config, limit, "--json"))
        note = next(n for n in plan["notes"] if "run.memory_limit" in n)
        self.assertRegex(note, r"micro-batches of \d+ samples a rank \(\d+ a step\)")
        self.assertLess(plan["fit"]["needed_bytes"], least + 6 * MIB)
        self.assertGreater(plan["micro_batches"], 1)
        self.run_trainer(config, limit, "--force", ranks=1)
        again = json.loads(self.tool("plan", self.dir / "run/config.yaml", "run.memory_limit=none", "--json"))
        self.assertEqual(round(self.records(event="end")[-1]["predicted_mb"] * 1e6), again["fit"]["needed_bytes"])

    def test_profile_counts(self):
        """Times that a profile in the run folder measured, or its machine's, say what is fastest, and how long it takes."""
        config = self.write(NORMED)
        least, _ = self.smallest(config)
        self.assertNotIn("a step's passes", self.limited(config, least)[3])
        self.run_trainer(config, "pipeline=[train, profile: {runs: 1, batches: [2], train_batch: 8}]", "--force", ranks=1)
        out = self.run_trainer(config, f"run.memory_limit={least}B", "--force", ranks=1)
        self.assertRegex(out, r"a step's passes [\d.]+ \w+ instead of [\d.]+ \w+ \([+-][\d.]+ %\) by the profile in the run folder")

    def test_dear_op(self):
        """What a profile says is dear does not run twice, where something else will do."""
        config = self.write(NORMED)
        least, _ = self.smallest(config)
        self.run_trainer(config, "pipeline=[train, profile: {mode: train, runs: 1}]", "--force", ranks=1)
        kept = self.dir / "kept"
        (self.dir / "run").rename(kept)

        def twice(dear=None):
            """Convolutions that run twice, where each op of the profile took a millisecond, those of one layer a thousand seconds."""
            shutil.rmtree(self.dir / "run", ignore_errors=True)
            shutil.copytree(kept, self.dir / "run")
            with h5py.File(self.dir / "run/stages/01-profile.h5", "r+") as f:
                for name, table in f["stages/01-profile"].items():
                    if re.fullmatch(r"train_\d+", name):
                        rows = table.attrs["rows"].decode().splitlines()
                        table["ms"][()] = [1e6 if row.split()[0] == dear else 1 for row in rows]
            out = self.limited(config, least + 8 * MIB, "--accept-unverified")[3]
            self.assertIn("by the profile in the run folder", out)
            training = re.search(r"\ntraining, .*?\n\n", self.tool("plan", self.dir / "run/config.yaml", "run.memory_limit=none"), re.S)[0]
            ops = re.findall(r"\n  (conv2d\S+) +conv2d ", training)
            return {layer for layer in ops if ops.count(layer) > 1}

        plain = sorted(twice())
        self.assertGreater(len(plain), 1)
        for dear in (plain[0], plain[-1]):
            self.assertNotIn(dear, twice(dear))

    def test_stages_choose_for_themselves(self):
        """Layers that a stage folds away are no longer there to be recomputed."""
        config = self.write(NORMED)
        least, _ = self.smallest(config)
        pipeline = "pipeline=[train, fold, finetune: {train: {steps: 1}}]"
        out = self.run_trainer(config, f"run.memory_limit={least}B", pipeline, "--force", ranks=1)
        self.assertEqual(out.count("run.memory_limit "), 2, out)
        named = "train.recompute={segments: [[conv2d1, batchnorm1]]}"
        out = self.run_trainer(config, named, pipeline, "--force", ranks=1)
        self.assertEqual(len(list((self.dir / "run/stages").glob("*finetune*.h5"))), 1, out)
        self.assertIn('the model has no layer "conv9x"', self.tool("check", config, "train.recompute={segments: [[conv9x, relu1]]}", status=2))

    def test_later_training(self):
        """Each training of a model chooses for itself, in a pipeline and by hand, and the process stays below the limit; what the
        user says stays."""
        config = self.write(DEEP)
        pipeline = "pipeline=[train, finetune: {train: {steps: 1}}]"
        least = self.smallest(config, pipeline, ranks=0)[0]
        limit = least + 3 * MIB  # finetune holds what it began with, too
        out = self.run_trainer(config, f"run.memory_limit={limit}B", pipeline, "--force", ranks=0)
        said = re.findall(r"run\.memory_limit .*: micro-batches of (\d+) samples? a rank", out)
        self.assertEqual(len(said), 2, out)
        for folder, micro in zip(("run", "run/stages/01-finetune/train"), said):
            self.below(limit, folder)
            text = (self.dir / folder / "config.yaml").read_text()
            self.assertIn(f"\n  micro_batch: {micro}\n", text)
            self.assertIn("micro_batch: auto", text[text.index("  chosen:"):])
        for arguments, more, micro in (((), {}, r"\d+"), (("pipeline.0.finetune.train={steps: 1, micro_batch: 7}",), {}, 7),
                                       (("train.micro_batch=9",), {}, 9), (("train.accumulate=128",), {}, "auto"),
                                       (("train.micro_batch=max",), {}, r"\d+")):
            out = self.run_trainer("finetune", "run/model.h5", "train.steps=4", *arguments, "--force", ranks=0, **more)
            text = (self.dir / "run/model-finetune/train/config.yaml").read_text()
            self.assertRegex(text, rf"\n  micro_batch: {micro}\n")
            self.below(limit, "run/model-finetune/train")
            self.assertEqual("auto" if not arguments else "max" if arguments == ("train.micro_batch=max",) else None,
                             next(iter(re.findall(r"    train:\n      micro_batch: (\w+)", text[text.index("run:"):])), None), text)

    def test_behind_stages(self):
        """Of kernels that stages in between have used nothing is left that a later training's limit did not see."""
        (self.dir / "a.txt").write_text("".join("x" * (i * 37 % 126 + 1) + "\n" for i in range(600)))
        config = self.write(LENGTHS)
        for stage in ("prune: {amount: 0.2}", "quantize: {layers: all, samples: 64}"):
            out = self.run_trainer(config, f"pipeline=[train, {stage}, finetune: {{train: {{steps: 2}}}}]", "data.buckets=null",
                                   f"run.memory_limit={120 * MIB}B", "--force", ranks=0)
            self.assertNotIn("are in use on this node", out)
            if stage.startswith("prune"):  # the other by itself takes more for a while, which no limit is for
                self.below(120 * MIB, "run/stages/02-finetune/train")

    def test_later_training_refused(self):
        """What a later training of the same model cannot have is refused before the first step."""
        config = self.write(DEEP.replace("linear: {out: 256}, gelu", "linear: {out: 2048}, gelu"))  # 8.6 MB of parameters
        alone = self.smallest(config, ranks=0)[0]
        for name, stage, over in (("finetune", "{train: {steps: 1}}", 5), ("finetune", "{train: {steps: 1, optimizer: adamw}}", 17),
                                  ("prune", "{kind: weights, train: {steps: 1}}", 13), ("prune", "{kind: pattern, rounds: 2}", 13)):
            pipeline = f"pipeline=[train, {name}: {stage}]"
            out = self.run_trainer(config, f"run.memory_limit={alone}B", pipeline, "--force", ranks=0, status=1)
            self.assertRegex(out, rf"stage 01-{name}: training does not fit .* the smallest limit that would do is about \d+MiB")
            self.assertFalse((self.dir / "run/metrics.jsonl").exists())
            least = int(re.search(r"would do is about (\d+)MiB", out)[1]) * MIB
            self.assertGreater(least, alone + over * MIB)
            self.run_trainer(config, f"run.memory_limit={least}B", pipeline, "--force", ranks=0)
            if name == "finetune":  # prune sorts weights before it trains
                self.below(least, "run/stages/01-finetune/train")
            shutil.rmtree(self.dir / "run")


if __name__ == "__main__":
    main()
