"""Killed and resumed is bitwise the run that was not; other rank counts see the same samples; a folder with a run in it
is refused, replaced or gone on with."""
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import time

import h5py
import numpy as np

from harness import CNN, Case, main

NO_BEST = "train.checkpoint.best=false"


def checksum(data):
    """HDF5's, of metadata (lookup3)."""
    v, n, at = [(0xdeadbeef + len(data)) & 0xffffffff] * 3, len(data), 0

    def turn(x, by):
        return (x << by | x >> (32 - by)) & 0xffffffff

    while True:
        for i, byte in enumerate(data[at:at + 12]):
            v[i // 4] = (v[i // 4] + (byte << 8 * (i % 4))) & 0xffffffff
        if n <= 12:
            break
        for i, by in enumerate((4, 6, 8, 16, 19, 4)):
            a, b, c = i % 3, (i + 1) % 3, (i + 2) % 3
            v[a] = (v[a] - v[c] & 0xffffffff) ^ turn(v[c], by)
            v[c] = (v[c] + v[b]) & 0xffffffff
        at, n = at + 12, n - 12
    for i, by in enumerate((14, 11, 25, 16, 4, 14, 24)):
        to, of = (i + 2) % 3, (i + 1) % 3
        v[to] = ((v[to] ^ v[of]) - turn(v[of], by)) & 0xffffffff
    return v[2].to_bytes(4, "little")


class Resume(Case):
    def kill(self, process):
        for pid in self.rank_pids(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=30)

    def reached(self, name):
        """The last step in the metrics, which a kill may have cut in the middle of a line."""
        path = self.dir / name / "metrics.jsonl"
        steps = re.findall(r'"event":"step","step":(\d+),', path.read_text()) if path.exists() else []
        return int(steps[-1]) if steps else 0

    def test_bitwise_after_sigkill(self):
        """SIGKILL at moments spread over the run, saving included, until it is through."""
        overrides = ("train.ema=0.9", "train.checkpoint.best=true")
        self.run_trainer(self.config("whole", steps=700, every=3), *overrides, ranks=2)
        rng = random.Random(11)
        config = self.config("killed", steps=700, every=3)
        kills = 0
        for target in range(0, 600, 75):
            process = self.start(config, "--resume", *overrides, ranks=2)
            while self.reached("killed") <= target and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.01)
            kills += process.poll() is None
            self.kill(process)
        self.assertGreater(kills, 5, "the run ended before it could be killed")
        self.run_trainer(config, "--resume", *overrides, ranks=2)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        self.assert_same_model(self.dir / "killed/model.h5", self.dir / "whole/model.h5")
        steps = [r["step"] for r in self.records("killed")]
        self.assertEqual(steps, list(range(1, 701)))

    def test_other_rank_count(self):
        self.run_trainer(self.config("whole", steps=40), ranks=1)
        config = self.config("moved", steps=40)
        self.stop("moved", 20, config, ranks=3)
        self.run_trainer(config, "--resume", ranks=2)
        np.testing.assert_allclose(self.losses("moved"), self.losses("whole"), rtol=1e-3, atol=1e-4)

    def test_other_sharding(self):
        """Checkpoints are the same files whoever kept the optimizer's state, and at any rank count."""
        self.run_trainer(self.config("whole", steps=600, every=100), "train.ema=0.9", ranks=1)
        config = self.config("moved", steps=600, every=100)
        on = ("run.shard_optimizer=on", "run.collectives=mpi", "train.ema=0.9")
        # steps, not the schedule's end, are what is cut short
        for stop, ranks, nodes, values in ((60, 3, 1, on), (120, 2, 2, ("train.ema=0.9",)), (180, 4, 3, on)):
            self.stop("moved", stop, config, "--resume", *values, ranks=ranks, env={"TRIREME_FAKE_NODES": str(nodes)})
        self.run_trainer(config, "--resume", "train.ema=0.9", "run.shard_optimizer=off", ranks=2)
        np.testing.assert_allclose(self.losses("moved"), self.losses("whole"), rtol=1e-3, atol=1e-4)
        a, b = (self.arrays(self.dir / name / "checkpoints/step-00000600.h5") for name in ("moved", "whole"))
        self.assertEqual(set(a), set(b))
        for name in a:
            if name.startswith("optimizer/ema"):
                np.testing.assert_allclose(a[name], b[name], rtol=1e-2, atol=1e-3)

    def test_sharded_bitwise_after_sigkill(self):
        values = ("run.shard_optimizer=on", "run.collectives=mpi", "train.ema=0.9")
        self.run_trainer(self.config("whole", steps=120, every=3), *values, ranks=3)
        config = self.config("killed", steps=120, every=3)
        for target in (20, 70):
            process = self.start(config, "--resume", *values, ranks=3)
            while self.reached("killed") <= target and process.poll() is None:
                time.sleep(0.001)
            self.kill(process)
        self.run_trainer(config, "--resume", *values, ranks=3)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        self.assert_same_model(self.dir / "killed/model.h5", self.dir / "whole/model.h5")

    def test_nothing_to_resume_from(self):
        out = self.run_trainer(self.config(steps=5), "--resume")
        self.assertIn("nothing to resume from", out)
        self.assertEqual(len(self.losses()), 5)

    def test_resume_of_a_finished_run(self):
        config = self.config(steps=5)
        self.run_trainer(config)
        before, times = self.contents("run"), self.times("run")
        out = self.run_trainer(config, "--resume", "train.log_every=2")
        self.assertIn("nothing is left to do", out)
        self.assertEqual((self.contents("run"), self.times("run")), (before, times))
        os.unlink(self.dir / "run/model.h5")  # as one that was killed before it
        self.run_trainer(config, "--resume")
        self.assert_same_model(self.dir / "run/model.h5", self.dir / "run/checkpoints/step-00000005.h5")
        self.run_trainer(config, "--resume", "train.steps=9")
        self.assertEqual([r["step"] for r in self.records()], list(range(1, 10)))

    def test_model_that_cannot_be_written(self):
        """Rank 0 alone writes it; all ranks end by its error."""
        config = self.config(steps=5)
        self.run_trainer(config)
        os.unlink(self.dir / "run/model.h5")
        (self.dir / "run/model.h5/in").mkdir(parents=True)
        out = self.run_trainer(config, "--resume", status=1)
        self.assertEqual(out.count("error:"), 1, out)
        self.assertRegex(out, r"error: .*model\.h5")
        self.assertNotRegex(out, "MPI_ABORT")
        (self.dir / "run/model.h5/in").rmdir()
        (self.dir / "run/model.h5").rmdir()
        self.run_trainer(config, "--resume")
        self.assert_same_model(self.dir / "run/model.h5", self.dir / "run/checkpoints/step-00000005.h5")

    def times(self, below):
        return {p: p.stat().st_mtime_ns for p in (self.dir / below).rglob("*")}

    def test_what_changed(self):
        """Keys by their effect, the configs that were, and a schedule that was through."""
        config = self.config(steps=6, every=3)
        self.run_trainer(config, ranks=0)
        first = [r["lr"] for r in self.records()]
        out = self.run_trainer(config, "--resume", "train.steps=9", "train.log_every=2", "train.clip_norm=2", ranks=0)
        said = re.findall(r"(harmless|changes the numbers|refused): (\S+): (.*), was (.*)", out)
        self.assertEqual(said, [("changes the numbers", "train.steps", '9', '6'), ("harmless", "train.log_every", '2', '1'),
                                ("changes the numbers", "train.clip_norm", '2', '1')])
        jump = re.search(r"the learning rate goes from (\S+) at step 6 to (\S+): .* was through; (\S+)=\[6\]", out)
        self.assertAlmostEqual(float(jump[1]), first[-1], places=6)
        self.assertEqual(jump[3], "train.schedule.cosine.restart")
        with h5py.File(self.dir / "run/model.h5") as f:
            self.assertEqual(f.attrs["config_step"], 6)
            self.assertIn(b"clip_norm: 1\n", f.attrs["past_config_00000000"])
            self.assertIn(b"clip_norm: 2\n", f.attrs["config"])
        of_gpus = ("run.workspace_mb=100", "run.deterministic=off", "run.offload=off", "run.cuda_graph=off")
        out = self.run_trainer(config, "--resume", "train.steps=9", "train.clip_norm=2", "run.level=cpu_small", "run.threads=2",
                               "run.collectives=mpi", *of_gpus, ranks=0)
        for key in ("run.level", "run.collectives", *(k.partition("=")[0] for k in of_gpus)):
            self.assertIn(f"harmless: {key}: ", out)
        self.assertIn("may change the last bits (sums in another order): run.threads: 2, was auto", out)
        for warmup, effect in (("50%", "changes the numbers"), ("3", "harmless")):
            constant = f"train.schedule={{constant: {{warmup: {warmup}}}}}"
            self.run_trainer(config, "--force", constant, ranks=0)
            self.assertIn(f"{effect}: train.steps", self.run_trainer(config, "--resume", constant, "train.steps=9", ranks=0))
        self.run_trainer(config, "--force", ranks=0)
        self.run_trainer(config, "--resume", "train.steps=12", "train.schedule.cosine.restart=[6]", ranks=0)
        self.assertEqual([r["lr"] for r in self.records()], first + first)
        self.tool("inspect", self.dir / "run/model.h5")

    def test_other_cores(self):
        """The same keys with other cores for a rank, whose threads share out sums: it is said, in one line."""
        config, said = self.config(steps=6, every=3), "may change the last bits (sums in another order): "
        cores = os.sched_getaffinity(0)
        if len(cores) < 2:
            self.skipTest("one core")
        self.addCleanup(os.sched_setaffinity, 0, cores)
        two = set(sorted(cores)[:2])
        for mine, ranks, arguments, changed in (({min(cores)}, 0, ("train.steps=3",), []), ({min(cores)}, 0, ("--resume", "train.steps=4"), []),
                                                (two, 0, ("--resume", "train.steps=5"), ["threads of a rank: 2, was 1"]),
                                                (two, 2, ("--resume", "train.steps=6"), ["threads of a rank: 1, was 2"]),
                                                (two, 0, ("--resume", "run.threads=1"), ["run.threads: 1, was auto"])):
            os.sched_setaffinity(0, mine)
            out = self.run_trainer(config, *arguments, ranks=ranks)
            self.assertEqual(re.findall(re.escape(said) + "(.*)", out), changed)

    def test_damaged_checkpoint_is_skipped(self):
        config = self.config(steps=30)
        self.run_trainer(config, NO_BEST)
        newest = self.dir / "run/checkpoints/step-00000030.h5"
        with h5py.File(newest, "r") as f:
            d = f["model/params/head/weight"]
            offset = d.id.get_offset()
        with open(newest, "r+b") as f:
            f.seek(offset + 5)
            byte = f.read(1)
            f.seek(offset + 5)
            f.write(bytes([byte[0] ^ 0x40]))
        out = self.run_trainer(config, "--resume")
        self.assertIn("step-00000030.h5", out)
        self.assertIn("resuming from", out)
        self.assertIn("step 20", out)
        self.assertEqual([r["step"] for r in self.records()], list(range(1, 31)))

    def test_file_of_an_earlier_version(self):
        """old/step-00000010.h5 was written by version 0.1.0 (this config and data, train.ema=0.9, one rank): it is read
        as h5py reads it, and gone on with at another rank count."""
        old = pathlib.Path(__file__).parent / "old/step-00000010.h5"
        shown = json.loads(self.tool("inspect", "--json", old))
        self.assertTrue(shown["ok"], shown["faults"])
        self.assertEqual(shown["attributes"]["step"], 10)
        config = self.config("fresh", steps=12)
        self.run_trainer(config, "train.ema=0.9", ranks=1)
        fresh = self.dir / "fresh/checkpoints/step-00000010.h5"
        a, b = self.arrays(old), self.arrays(fresh)
        self.assertEqual({n: v.shape for n, v in a.items()}, {n: v.shape for n, v in b.items()})
        (self.dir / "gone_on/checkpoints").mkdir(parents=True)
        shutil.copy(old, self.dir / "gone_on/checkpoints")
        out = self.run_trainer(self.config("gone_on", steps=12), "--resume", "train.ema=0.9", ranks=2)
        self.assertIn("(step 10)", out)
        np.testing.assert_allclose(self.losses("gone_on"), self.losses("fresh")[10:], rtol=1e-3, atol=1e-4)

    def test_without_the_evaluations_of_before(self):
        """The checkpoint has a confusion matrix, and the run that goes on makes none."""
        config = self.config(steps=10)
        self.run_trainer(config)
        lines = [line for line in config.read_text().splitlines() if not line.strip().startswith("eval:")]
        config.write_text("\n".join(lines))
        self.run_trainer(config, "--resume", "train.steps=12", "train.checkpoint.every_steps=1")
        with h5py.File(self.dir / "run/checkpoints/step-00000012.h5") as f:
            self.assertNotIn("history/confusion", f)

    def test_truncated_and_foreign_checkpoints(self):
        config = self.config(steps=30)
        self.run_trainer(config, NO_BEST)
        folder = self.dir / "run/checkpoints"
        whole = (folder / "step-00000030.h5").read_bytes()
        (folder / "step-00000030.h5").write_bytes(whole[: len(whole) // 2])
        with h5py.File(folder / "step-00000020.h5", "w") as f:
            f["model/params/head/weight"] = np.zeros(3)
        out = self.run_trainer(config, "--resume")
        self.assertIn("(step 10)", out)

    def test_no_checkpoint_is_whole(self):
        config = self.config(steps=30)
        self.run_trainer(config, NO_BEST)
        folder = self.dir / "run/checkpoints"
        files = sorted(folder.glob("step-*.h5"))
        for f in files:
            f.write_bytes(f.read_bytes()[:100])
        for start in range(2):  # not from step 0 in silence, and not at the second try either
            out = self.run_trainer(config, "--resume", status=1)
            self.assertIn(f"none of the {len(files)} checkpoints", out)
        self.assertTrue(all((folder / (f.name + ".damaged")).exists() for f in files))
        self.run_trainer(config, "--force")
        self.assertEqual(list(folder.glob("*.damaged")), [])

    def test_heap_beyond_the_end(self):
        """Attributes in a heap that is not in the file, or whose root is not, under a checksum that fits: told, set aside."""
        config = self.config(text=CNN.replace("name: e2e", "name: " + 70000 * "e"), steps=12, every=4)  # a long text
        self.run_trainer(config, NO_BEST)
        shutil.copytree(self.dir / "run", self.dir / "whole")
        newest = self.dir / "run/checkpoints/step-00000012.h5"
        sound = newest.read_bytes()
        heap = sound.index(b"FRHP")
        # the last array's header, of a length in one byte, and in it where the heap of its attributes is said to be: nowhere
        array = list(re.finditer(rb"OHDR\x02\x00(.)(?=.{,200}?\x15\x12\x00.\x00\x00(\xff{8}))", sound, re.S))[-1]
        for block, length, place, where in ((heap, 142, heap + 132, len(sound) + 4096),
                                            (array.start(), 7 + array[1][0], array.start(2), 0xffff << 48)):
            shutil.rmtree(self.dir / "run")
            shutil.copytree(self.dir / "whole", self.dir / "run")
            whole = bytearray(sound)
            self.assertEqual(checksum(whole[block:block + length]), whole[block + length:block + length + 4])
            whole[place:place + 8] = where.to_bytes(8, "little")
            whole[block + length:block + length + 4] = checksum(whole[block:block + length])
            newest.write_bytes(whole)
            self.assertIn("does not lie in the file", self.tool("inspect", newest, status=1))
            shutil.copytree(self.dir / "run", self.dir / "only")
            out = self.run_trainer(config, "--resume", NO_BEST, "train.steps=14")
            self.assertIn("step-00000008.h5 (step 8)", out)
            self.assertTrue((newest.parent / (newest.name + ".damaged")).exists())

            shutil.rmtree(self.dir / "run")  # and where it is all that there is
            (self.dir / "only").rename(self.dir / "run")
            for other in newest.parent.glob("step-*.h5"):
                if other != newest:
                    other.unlink()
            out = self.run_trainer(config, "--resume", NO_BEST, "train.steps=14", status=1)
            self.assertIn("none of the 1 checkpoints", out)

    def test_pipe_in_the_place_of_all(self):
        """Nothing is renamed, and nothing is said to be."""
        config = self.config(steps=4, every=4)
        self.run_trainer(config, NO_BEST)
        only = self.dir / "run/checkpoints/step-00000004.h5"
        only.unlink()
        os.mkfifo(only)
        out = self.run_trainer(config, "--resume", "train.steps=8", status=1)
        self.assertIn("none of the 1 checkpoints", out)
        self.assertIn("nothing was changed; start over with --force", out)
        self.assertTrue(only.is_fifo())

    def test_newest_is_damaged_and_one_is_kept(self):
        config = self.config(steps=30)
        self.run_trainer(config, NO_BEST)
        folder = self.dir / "run/checkpoints"
        newest = folder / "step-00000030.h5"
        newest.write_bytes(newest.read_bytes()[:100])
        self.run_trainer(config, "--resume", "train.checkpoint.keep=1", "train.steps=25")
        self.assertEqual([f.name for f in folder.glob("step-*.h5")], ["step-00000025.h5"])

    def test_model_of_another_config(self):
        config = self.config(steps=10)
        self.run_trainer(config)
        right = config.read_text()
        config.write_text(right.replace("out: 8", "out: 6"))
        before = self.contents("run/checkpoints")
        out = self.run_trainer(config, "--resume", status=1)
        self.assertIn("none of this config's model", out)
        self.assertEqual(self.contents("run/checkpoints"), before)
        config.write_text(right)
        # one that came from another run, newer than all: not trained on, not lost
        self.run_trainer(self.config("other", text=CNN.replace("out: 8", "out: 6"), steps=12), ranks=1)
        shutil.copy(self.dir / "other/checkpoints/step-00000012.h5", self.dir / "run/checkpoints")
        out = self.run_trainer(config, "--resume", "train.steps=14", "train.checkpoint.every_steps=2")
        self.assertRegex(out, r"warning: .*step-00000012\.h5.* is whole, but not of this config's model \(")
        self.assertIn("step-00000010.h5 (step 10)", out)
        self.assertEqual([r["step"] for r in self.records()], list(range(1, 15)))
        self.assertTrue((self.dir / "run/checkpoints/step-00000012.h5.other").exists())

    def test_best_is_all_that_is_whole(self):
        config = self.config(steps=30)
        self.run_trainer(config)
        folder = self.dir / "run/checkpoints"
        shutil.copy(folder / "best.h5", self.dir)
        (folder / "best.h5").unlink()
        shutil.move(self.dir / "best.h5", folder)  # no link to a file of a step
        for f in folder.glob("step-*.h5"):
            f.write_bytes(f.read_bytes()[:100])
        losses = self.losses()
        out = self.run_trainer(config, "--resume")
        self.assertIn("best.h5", out)
        self.assertEqual(self.losses(), losses)


class Folder(Case):
    """Refusing, replacing, going on."""

    def test_refused_force_resume(self):
        config = self.config(steps=8, every=4)
        self.run_trainer(config)
        first = self.losses()
        out = self.run_trainer(config, status=2)
        self.assertIn("already holds a run", out)
        self.assertIn("--resume", out)
        self.assertEqual(self.losses(), first)
        self.run_trainer(config, "--force", "seed=4", "train.steps=6")
        forced = self.losses()
        self.assertEqual(len(forced), 6)
        self.assertNotEqual(forced, first[:6])
        self.assertEqual(sorted(p.name for p in (self.dir / "run/checkpoints").glob("step-*")),
                         ["step-00000004.h5", "step-00000006.h5"])
        out = self.run_trainer(config, "seed=4", "--resume", "train.steps=9")
        self.assertIn("resuming from", out)
        self.assertEqual([r["step"] for r in self.records()], list(range(1, 10)))
        self.assertEqual(self.losses()[:6], forced)
        with h5py.File(self.dir / "run/checkpoints/step-00000009.h5", "r") as f:
            parent = f.attrs["parent_sha256"]
            parent = parent.decode() if isinstance(parent, bytes) else parent
        file = self.dir / "run/checkpoints/step-00000006.h5"
        self.assertEqual(parent, hashlib.sha256(file.read_bytes()).hexdigest())

    def test_an_empty_folder_is_fine(self):
        (self.dir / "run/checkpoints").mkdir(parents=True)
        self.run_trainer(self.config(steps=2))
        self.assertEqual(len(self.losses()), 2)

    def test_output_is_where_the_job_starts(self):
        config = self.config(out="made/here", steps=2)
        self.run_trainer(config)
        self.assertTrue((self.dir / "made/here/model.h5").exists())


if __name__ == "__main__":
    main()
