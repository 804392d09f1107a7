"""Full disks, what killed jobs left, run folders that are moved, removed or others': what is there stays whole."""
import contextlib
import mmap
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np

import harness
from harness import CNN, Case, main

WORDS = """
name: words
device: cpu
data:
  train: {path: words.h5, inputs: x, labels: y}
  shuffle: false
model:
  input: [4]
  layers:
    - embedding: {num: 30, dim: 8}
    - flatten
    - linear: {out: 3}
  loss: cross_entropy
train: {steps: 4, batch: 12, log_every: 1, checkpoint: {every_steps: 2}}
"""
SLOW = """
name: slow
device: cpu
data:
  train: {format: synthetic, samples: 4096}
model:
  input: [16]
  layers:
    - linear: {out: 2048}
    - relu
    - linear: {out: 2048}
    - relu
    - linear: {out: 2048}
    - relu
    - linear: {out: 3}
  loss: cross_entropy
train: {steps: 1, batch: 4096}
"""


def fill(path):
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(1024))
        except OSError:
            pass


class Disks(Case):
    def small(self):
        """A file system of 4 MB."""
        small = self.dir / "small"
        small.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], stderr=subprocess.PIPE)
        if mount.returncode != 0:
            self.skipTest(f"no small file system to fill: {mount.stderr.decode().strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(small)], check=True)
        return small

    def filled(self, name, steps):
        """A run that has a checkpoint every 4 steps, then a disk with no room for another one."""
        small = self.small()
        config = self.config(f"small/{name}", steps=steps, every=4)
        self.run_trainer(config)
        fill(small / "filler")
        room = 8 * 1024  # for a few metrics, not for a checkpoint
        os.truncate(small / "filler", max(0, (small / "filler").stat().st_size - room))
        return small, config

    def test_full_disk(self):
        """Saving fails; training goes on, the last good file stays whole, and it is said."""
        small, config = self.filled("run", steps=4)
        good = small / "run/checkpoints/step-00000004.h5"
        out = self.run_trainer(config, "--resume", "train.steps=24", status=1)
        self.assertIn("could not be saved", out)
        self.assertIn("training goes on", out)
        self.assertIn("No space left", out)
        self.assertNotIn("checkpoint.keep", out)  # all older ones were given up for it
        self.assertTrue(good.exists())
        self.tool("inspect", good)
        self.assertEqual(list((small / "run").rglob("*.tmp-*")), [])
        os.unlink(small / "filler")
        self.run_trainer(config, "--resume", "train.steps=24")
        self.tool("inspect", small / "run/model.h5")

    def test_full_disk_with_older_checkpoints(self):
        """The oldest makes room for the newest, one at a time, and it is said; best.h5 stays."""
        small, config = self.filled("run", steps=12)
        folder = small / "run/checkpoints"
        (small / "run/model.h5").unlink()  # in whose room the first one goes
        out = self.run_trainer(config, "--resume", "train.steps=24", "train.checkpoint.keep=9")
        self.assertRegex(out, r"step-00000004.h5: removed, for the disk is full")
        left = sorted(p.name for p in folder.iterdir())
        self.assertIn("step-00000024.h5", left, out)
        self.assertIn("best.h5", left)
        self.assertNotIn("could not be saved", out)
        for name in left:
            self.tool("inspect", folder / name)

    def test_full_disk_at_the_best_evaluation(self):
        """An older best.h5 is not taken for the best: its step is told, and no model is made of it."""
        small, config = self.filled("run", steps=4)
        best = small / "run/checkpoints/best.h5"
        older = best.read_bytes()
        again = ("--resume", "train.steps=8", "train.eval.every_steps=4")
        out = self.run_trainer(config, *again, status=1)
        self.assertRegex(out, r"best evaluation  step 8: loss .*, which could not be saved; checkpoints/best.h5 holds step 4\n")
        (small / "filler").unlink()
        out = self.run_trainer(config, *again)
        self.assertRegex(out, r"best evaluation  step 8: loss .* \(checkpoints/best.h5\)\n")
        best.unlink()  # the step file has its bytes
        best.write_bytes(older)
        out = self.run_trainer(config, *again, "train.result=best", status=1)
        self.assertIn("best.h5: the weights of step 4; the best evaluation was at step 8, whose checkpoint could not be saved", out)
        self.run_trainer(config, *again, "train.result=last")

    def test_best_of_a_later_step(self):
        """best.h5 of an evaluation behind the checkpoint that is gone on from stays the best until one is better."""
        again = ("train.eval.every_steps=20", "train.result=best")
        config = self.config(steps=40, every=30)
        self.run_trainer(config, *again)
        folder = self.dir / "run/checkpoints"
        (folder / "step-00000040.h5").unlink()  # as a kill before it was written would leave it
        out = self.run_trainer(config, *again, "--resume", "train.steps=60", "model.loss={cross_entropy: {label_smoothing: 0.9}}")
        self.assertRegex(out, r"resuming from \S+step-00000030.h5")
        self.assertRegex(out, r"best.h5 is of a later step \(40, loss [0-9.]+\): it stays until one is better")
        self.assertRegex(out, r"best evaluation  step 40: loss .* \(checkpoints/best.h5\)\n")
        self.assert_same_model(folder / "best.h5", self.dir / "run/model.h5")
        # as it was without the stop: the same numbers make the same best again
        (folder / "step-00000060.h5").unlink()
        out = self.run_trainer(config, *again, "--resume")
        self.assertRegex(out, r"best evaluation  step 40: loss .* \(checkpoints/best.h5\)\n")

    def test_best_of_another_model(self):
        """best.h5 of a later step, but of another model, is no best of this run's, and that is said."""
        config = self.config(steps=40, every=20)
        self.run_trainer(config)
        self.run_trainer(self.config("other", text=CNN.replace("out: 8", "out: 4"), steps=50, every=50), "train.eval.every_steps=50")
        best = self.dir / "run/checkpoints/best.h5"
        best.unlink()  # a step file may have its bytes
        shutil.copy(self.dir / "other/checkpoints/best.h5", best)
        out = self.run_trainer(config, "--resume", "train.steps=60", "train.eval.every_steps=20")
        self.assertRegex(out, r"resuming from \S+step-00000040.h5")
        self.assertNotIn("is of a later step", out)
        said = re.findall(r"warning: \S*run/checkpoints/best\.h5: .*; passed over, though of a later step \(50\): "
                          r"train\.result: best has no weights to take until an evaluation is better\n", out)
        self.assertEqual(len(said), 1, out)

    def test_one_file_of_two_names(self):
        """The best evaluation's checkpoint and the step's are written once."""
        self.run_trainer(self.config(steps=8, every=4), "train.eval.every_steps=4")
        folder = self.dir / "run/checkpoints"
        best = next(r["best_step"] for r in self.records(event="end"))
        self.assertTrue(os.path.samefile(folder / "best.h5", folder / f"step-{best:08d}.h5"))
        self.assertEqual([r["step"] for r in self.records(event="checkpoint")], [4, 8])

    def only_where_all_processes_are_seen(self):
        if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
            self.skipTest("a process namespace of its own: who uses what cannot be known here, and nothing is said")

    def test_shared_memory_left_by_killed_jobs(self):
        """Named at the start of a job that is not quiet and where it is short, with the command that removes it; what a job at
        work maps is not."""
        self.only_where_all_processes_are_seen()
        left = pathlib.Path(harness.ENV[harness.SHM], "vader_segment.test")
        left.write_bytes(bytes(8192))
        self.addCleanup(left.unlink)
        named = f"{left.parent}: 1 file of killed jobs, which no process uses, hold 8.19 kB; remove with: rm {left}\n"
        self.assertEqual(self.run_trainer(self.config("enough", steps=1)).count(named), 1)
        self.assertEqual(self.run_trainer("export", "enough/model.h5").count(named), 1)
        for ranks in (0, 2):
            self.assertNotIn("killed jobs", self.run_trainer("export", "enough/model.h5", "--force", "--quiet", ranks=ranks))
            self.assertNotIn("killed jobs", self.run_trainer("evaluate", "enough/model.h5", ranks=ranks))
        out = self.run_trainer(self.config(steps=2), env={"TRIREME_SHM_AVAILABLE": "1000"})
        self.assertIn(named, out)
        self.assertIn("shared memory is short", out)
        self.assertEqual(out.count("the environment has TRIREME_SHM_AVAILABLE (2 of 2 ranks): made for tests"), 1, out)

    def test_much_shared_memory_left_by_killed_jobs(self):
        """Three names and how many there are; the command leaves what a process maps."""
        self.only_where_all_processes_are_seen()
        folder = pathlib.Path(harness.ENV[harness.SHM])
        left = [folder / f"{kind}.{i}" for kind in ("vader_segment.test", "osc_sm.test") for i in range(3)]
        for path in left:
            path.write_bytes(bytes(8192))
            self.addCleanup(path.unlink, missing_ok=True)
        with open(left[1], "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ):
            out = self.run_trainer(self.config(steps=1))
            found = re.search(f"{folder}: 5 files of killed jobs, which no process uses, hold 41.0 kB, such as(.*); remove with: "
                              f"(for f in {folder}/vader_segment.\\* {folder}/osc_sm.\\*; do .*)\n", out)
            self.assertTrue(found, out)
            self.assertEqual(len(found[1].split()), 3)
            self.assertLess(set(found[1].split()), set(map(str, left)) - {str(left[1])})
            subprocess.run(found[2], shell=True, check=False)
            self.assertEqual([p for p in left if p.exists()], [left[1]])

    def test_sessions_left_by_killed_launchers(self):
        """Named at the next start, with the command that removes them, where nobody uses them any more."""
        self.only_where_all_processes_are_seen()
        env = {"TMPDIR": str(self.dir / "tmp"), harness.SHM: "/dev/shm"}
        (self.dir / "tmp").mkdir()
        first = self.start(self.config("first", steps=10**6, every=10**6), env=env)
        self.wait_for_step("first", 5, first)
        ranks = self.rank_pids(first.pid)
        segments = set(re.findall(r"/dev/shm/(?:vader|sm)_segment\S+$", pathlib.Path(f"/proc/{ranks[0]}/maps").read_text(), re.M))
        first.kill()
        for path in segments:  # not all that will be named: it is the machine's
            self.addCleanup(pathlib.Path(path).unlink, missing_ok=True)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):  # it missed its launcher
                os.kill(pid, signal.SIGKILL)
        first.communicate()
        session = next(p for p in (self.dir / "tmp").rglob(f"*{first.pid}*") if p.is_dir())
        part = next(p for p in session.rglob("*") if p.is_file() and p.stat().st_size > 0)
        with open(part, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ):
            self.assertNotIn(str(session), self.run_trainer(self.config("second", steps=1), env=env))
        out = self.run_trainer(self.config("third", steps=1), env=env)
        self.assertIn(f"1 session folder of killed jobs, which no process uses; remove with: rm -r {session}\n", out)
        self.assertRegex(out, r"/dev/shm: (?:at least )?\d+ files? of killed jobs, which no process uses, hold .*; remove with: (?:rm|for f in) /dev/shm/")
        subprocess.run(re.search("remove with: (rm -r .*)", out)[1], shell=True, check=True)
        self.assertNotIn("session folder", self.run_trainer(self.config("fourth", steps=1), env=env))

    def test_bus_error(self):
        """What a write to shared memory that is full ends in: it is said what that means."""
        process = self.start(self.config(steps=10**6, every=10**6))
        self.wait_for_step("run", 5, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGBUS)
        out, _ = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0, out)
        self.assertIn("SIGBUS: shared memory has no room left (df /dev/shm)", out)

    def start_with_little_shm(self, room, config, *arguments):
        """A job whose machine has `room` of shared memory."""
        inside = f'mount -t tmpfs -o size={room} tmpfs /dev/shm && exec "$@"'
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", inside, "sh", *self.command(config, *arguments)],
                                cwd=self.dir, env={**self.environment(), harness.SHM: "/dev/shm"}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def only_with_mounts(self):
        tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], stderr=subprocess.PIPE, text=True)
        if tried.returncode != 0:
            self.skipTest(f"no shared memory of our own to fill: {tried.stderr.strip()}")

    def ends_told(self, process, what):
        """It ends: well, or by the signal of a write to memory that is full, with what to do about it. Never in between."""
        out, _ = process.communicate(timeout=120)
        with self.subTest(what):
            if process.returncode != 0:
                self.assertIn("SIGBUS: shared memory has no room left (df /dev/shm)", out)
                self.assertIn("--shm-size", out)
        return process.returncode == 0, out

    def test_little_shared_memory(self):
        """From none to enough: the ranks share memory, or say why not and talk through plain MPI, or end at the write that
        has no room. What is in the run folder stays whole, and a run on a better machine goes on."""
        self.only_with_mounts()
        config = self.config(steps=4, every=4)
        self.run_trainer(config)
        good = self.dir / "other/checkpoints/step-00000004.h5"
        before, seen = (self.dir / "run/checkpoints" / good.name).read_bytes(), set()
        for room in ("4k", "256k", "4m", "8m", "8448k", "9m", "64m"):
            shutil.rmtree(self.dir / "other", ignore_errors=True)
            shutil.copytree(self.dir / "run", self.dir / "other")
            well, out = self.ends_told(self.start_with_little_shm(room, config, "output=other", "--resume", "train.steps=8"), room)
            self.assertEqual(good.read_bytes(), before)
            if well:
                seen.add("short" if "shared memory is short" in out else "shared")
                self.assertEqual([r["step"] for r in self.records("other")], list(range(1, 9)), out)
            else:
                self.run_trainer(config, "output=other", "--resume", "train.steps=8")
                self.assertEqual([r["step"] for r in self.records("other")], list(range(1, 9)), out)
        self.assertEqual(seen, {"short", "shared"})

    def fill_shm_of(self, process, name, step):
        """At this step, or, None, once MPI has made the files of its segments, which have no pages yet; all hold still."""
        end, ranks = time.monotonic() + 60, []
        while step is None and not ranks:
            self.assertTrue(process.poll() is None and time.monotonic() < end, "no segments were made")
            time.sleep(0.001)
            ranks = [pid for pid in self.rank_pids(process.pid) if list(pathlib.Path(f"/proc/{pid}/root/dev/shm").glob("*_segment*"))]
        if step is not None:
            self.wait_for_step(name, step, process)
        ranks = self.rank_pids(process.pid)
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            if signum == signal.SIGCONT:
                fill(f"/proc/{ranks[0]}/root/dev/shm/filler")
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)

    def test_shared_memory_fills(self):
        """While the job is at work, by others: as MPI starts and in the middle, whichever way the ranks talk."""
        self.only_with_mounts()
        ended = {}
        for mode, step in (("auto", None), ("mpi", None), ("mpi", 4)):
            name = f"{mode}-{step}"
            config = self.config(name, steps=400, every=3, samples=1000)
            more = (f"run.collectives={mode}", "train.batch=200")
            self.run_trainer(config, *more, "train.steps=3")
            process = self.start_with_little_shm("32m", config, *more, "--resume")
            self.fill_shm_of(process, name, step)
            ended[name], out = self.ends_told(process, name)
            self.tool("inspect", max((self.dir / name / "checkpoints").glob("step-*.h5")))
            self.run_trainer(config, *more, "--resume")
            self.assertEqual([r["step"] for r in self.records(name)], list(range(1, 401)), out)
        self.assertIn(False, ended.values(), f"none of these met the full place: {ended}")

    def test_moved_run_folder(self):
        """Said at the next record; the run goes on where the folder is now."""
        process = self.start(self.config(steps=10**6, every=100, out="here/run"))
        self.wait_for_step("here/run", 15, process)
        os.rename(self.dir / "here", self.dir / "there")
        self.wait_for_step("there/run", self.records("there/run")[-1]["step"] + 15, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 75, out)
        self.assertEqual(out.count("the run folder here/run was moved while the job runs"), 1, out)
        step = self.records("there/run")[-1]["step"]
        self.tool("inspect", self.dir / f"there/run/checkpoints/step-{step:08d}.h5")
        self.assertFalse((self.dir / "here").exists())
        self.run_trainer(self.dir / "run.yaml", "output=there/run", "--resume", f"train.steps={step + 2}")
        self.assertEqual([r["step"] for r in self.records("there/run")], list(range(1, step + 3)))

    def test_moved_pipeline(self):
        """Stages behind a training whose folder was moved are made where it is now."""
        process = self.start(self.config(steps=1500, every=1000, out="here/run"), "pipeline=[train, fold]")
        self.wait_for_step("here/run", 15, process)
        os.rename(self.dir / "here", self.dir / "there")
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("the run folder here/run was moved while the job runs", out)
        self.tool("inspect", self.dir / "there/run/stages/01-fold.h5")
        self.assertFalse((self.dir / "here").exists())
        out = self.run_trainer(self.dir / "run.yaml", "pipeline=[train, fold]", "output=there/run", "--resume")
        self.assertIn("stage 01-fold is done", out)

    def test_removed_run_folder(self):
        """Ends at the next record, with one clear error."""
        process = self.start(self.config(steps=10**6, every=10**6))
        self.wait_for_step("run", 15, process)
        os.rename(self.dir / "run", self.dir / "gone")
        while (self.dir / "gone").exists():  # again, where a file came in between
            shutil.rmtree(self.dir / "gone", ignore_errors=True)
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1, out)
        errors = [line for line in out.splitlines() if line.startswith("trainer: error")]
        self.assertEqual(len(errors), 1, out)
        self.assertIn("was removed while the job runs", errors[0])

    def test_files_of_others(self):
        """A folder with files of the user's, among them the very config: nothing is written over, nothing goes."""
        folder = self.dir / "mine"
        folder.mkdir()
        config = self.config(steps=2, data="data.h5", out=".")
        (folder / "config.yaml").write_text(config.read_text().replace("data.h5", "../data.h5"))
        for name in ("report.html", "trace.json", "events.out.tfevents.1.host.2.0"):
            (folder / name).write_text("theirs")
        before = self.contents("mine")
        for flags in ((), ("--resume",), ("--force",)):
            out = self.run_trainer(folder / "config.yaml", "output=mine", *flags, ranks=1, status=2)
            self.assertRegex(out, r"mine/(config.yaml|report.html|trace.json) is there, and no run of this program made it")
            self.assertEqual(self.contents("mine"), before)
        (folder / "config.yaml").rename(folder / "digits.yaml")
        for name in ("report.html", "trace.json"):
            out = self.run_trainer(folder / "digits.yaml", "output=mine", ranks=1, status=2)
            self.assertRegex(out, r"mine/(report.html|trace.json) is there, and no run of this program made it")
            (folder / name).rename(folder / f"my-{name}")
        self.run_trainer(folder / "digits.yaml", "output=mine", ranks=1)
        self.run_trainer(folder / "config.yaml", "output=mine", "--force", ranks=1)  # the run's own
        for name in ("my-report.html", "my-trace.json", "events.out.tfevents.1.host.2.0"):
            self.assertEqual((folder / name).read_text(), "theirs")

    def test_checkpoints_behind_a_link(self):
        """Another run's, it may be: they are neither written to nor removed."""
        config = self.config(steps=2)
        self.run_trainer(config, "output=a", ranks=1)
        self.run_trainer(config, "output=b", ranks=1)
        shutil.rmtree(self.dir / "b/checkpoints")
        (self.dir / "b/checkpoints").symlink_to("../a/checkpoints")
        before = self.contents()
        for flag in ("--force", "--resume"):
            out = self.run_trainer(config, "output=b", flag, ranks=1, status=2)
            self.assertIn("b/checkpoints: is a link, expected a folder", out)
            self.assertEqual(self.contents(), before)

    def test_outputs_that_are_there(self):
        """Be it only a link that leads nowhere; what a command reads it does not write over, whatever is asked for."""
        config = self.config(steps=2)
        self.run_trainer(config, ranks=0)
        self.run_trainer(config, "output=other", ranks=0)
        np.savez(self.dir / "v.npz", a=np.zeros(3))
        for name in ("o.json", "o.csv", "o.h5", "o.yaml"):
            (self.dir / name).symlink_to("nowhere")
        model = "run/model.h5"
        commands = [("evaluate", model, "-o", "o.json"), ("predict", model, "-o", "o.csv"), ("compare", "run", "other", "-o", "o.csv"),
                    ("new", "-o", "o.yaml"), ("import", "v.npz", "o.h5", "--config", config)]
        before = self.contents()
        for command in commands:
            self.assertIn(f"{command[-1] if command[0] != 'import' else 'o.h5'} is there: move it away",
                          self.tool(*command, status=2))
        for command in (("evaluate", model, "-o", model), ("predict", model, "-o", "o.h5"), ("import", "v.npz", "v.npz", "--config", config)):
            (self.dir / "o.h5").unlink()
            (self.dir / "o.h5").symlink_to(model)
            self.assertIn("is what is read: it is not written over", self.tool(*command, "--force", status=2))
        (self.dir / "o.h5").unlink()
        (self.dir / "o.h5").symlink_to("nowhere")
        self.assertEqual(self.contents(), before)
        self.assertTrue(all((self.dir / c[3]).is_symlink() for c in commands[:2]))
        for command in commands[:4]:
            self.tool(*command, "--force")
            self.assertFalse((self.dir / command[-1]).is_symlink())

    def test_names_that_are_patterns(self):
        """What a pattern would be is a name: a file beside it is seen. A training goes into no folder behind a link."""
        config = self.config(steps=2)
        self.run_trainer(config, ranks=0)
        model = self.dir / "m[1]*.h5"
        shutil.copy(self.dir / "run/model.h5", model)
        made = self.dir / "m[1]*-fold.h5"
        for kind in ("file", "link"):
            made.write_text("mine") if kind == "file" else made.symlink_to("nowhere")
            self.assertIn("m[1]*-fold.h5 is there: move it away", self.run_trainer("fold", model.name, ranks=0, status=2))
            self.assertTrue(made.is_symlink() if kind == "link" else made.read_text() == "mine")
            made.unlink()
        self.run_trainer("fold", model.name, ranks=0)
        keys = ("train.steps=2", "run.threads=1")
        self.run_trainer("finetune", "run/model.h5", *keys, ranks=0)
        ours = self.dir / "run/model-finetune"
        for folder in (ours, *(f for f in ours.iterdir() if f.is_dir())):
            aside = self.dir / "aside"
            folder.rename(aside)
            folder.symlink_to(aside)
            before = self.contents()
            self.assertRegex(self.run_trainer("finetune", "run/model.h5", *keys, "seed=9", "--force", ranks=0, status=2),
                             f"{folder.name}: is a link, expected a folder")
            self.assertEqual(self.contents(), before)
            folder.unlink()
            aside.rename(folder)

    def words(self, wrong=None):
        """Data and a config for it; sample `wrong` holds what is no id, which is seen when it is read."""
        x = np.arange(48).reshape(12, 4) % 30
        if wrong is not None:
            x[wrong, 2] = 30
        with h5py.File(self.dir / "words.h5", "w") as f:
            f["x"], f["y"] = x, np.arange(12) % 3
        path = self.dir / "words.yaml"
        path.write_text(WORDS)
        return path

    def changes_nothing(self, config, *arguments, ranks=2, said=""):
        """It fails, says why once, and all is as it was."""
        before = self.contents()
        out = self.run_trainer(config, *arguments, ranks=ranks, status=1)
        ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
        self.assertEqual(len(ours), 1, out)
        self.assertIn(said, ours[0])
        self.assertEqual(self.contents(), before, out)

    def test_failed_first_step_changes_nothing(self):
        """Data that turns out wrong once it is read: no run began, so none is replaced, gone on with, or left behind."""
        self.run_trainer(self.words(), "output=old")
        self.assertTrue((self.dir / "old/model.h5").exists())
        for ranks, wrong in ((0, 5), (2, 1), (2, 10), (3, 5)):
            config = self.words(wrong)
            for arguments in (("output=new/run",), ("output=new/run", "--force"), ("output=old", "--force"),
                              ("output=old", "--resume", "train.steps=8", "train.batch=11")):
                with self.subTest(ranks=ranks, wrong=wrong, arguments=arguments):
                    self.changes_nothing(config, *arguments, ranks=ranks, said="element 2 is 30")
        self.run_trainer(self.words(), "output=old", "--force", "train.steps=2")
        self.assertEqual([p.name for p in (self.dir / "old/checkpoints").iterdir()], ["step-00000002.h5"])
        self.assertEqual(len(self.records("old")), 2)

    def test_no_room_for_what_commands_write(self):
        """It is told which file did not fit, and no key of training, of which there is none."""
        small = self.small()
        self.run_trainer(self.words(), "output=run", ranks=0)
        fill(small / "filler")
        for command, file in ((("evaluate", "run/model.h5", "data.eval={path: words.h5, inputs: x, labels: y}"), "small/e.json"),
                              (("predict", "run/model.h5", "--data", "train"), "small/p.csv"),
                              (("predict", "run/model.h5", "--data", "train"), "small/p.h5"),
                              (("predict", "run/model.h5", "--data", "train"), "small/p.npy"),
                              (("new",), "small/c.yaml"),
                              (("compare", "run", "run/model.h5"), "small/c.svg")):
            with self.subTest(file=file):
                said = self.tool(*command, "-o", file, status=1)
                self.assertRegex(said, rf"error: {file}\S*: .*No space left on device: make room there\n")
                self.assertNotIn("checkpoint.keep", said)
                self.assertFalse((self.dir / file).exists())

    def test_no_room_to_begin(self):
        small = self.small()
        self.run_trainer(self.words(), "output=small/run")
        fill(small / "filler")
        for more in (("output=small/run", "--force"), ("output=small/run", "--resume", "train.steps=8"),
                     ("output=small/new",)):
            self.changes_nothing(self.words(), *more, said="No space left on device")

    def test_killed_before_the_first_step(self):
        """Nothing can be put back by a process that is gone: there is nothing to be."""
        self.run_trainer(self.words(), "output=old")
        before = self.contents("old")
        slow = self.dir / "slow.yaml"
        slow.write_text(SLOW)
        process = self.start(slow, "output=old", "--force", ranks=0)
        said = next((line for line in process.stdout if "run folder old" in line), "")
        process.kill()
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, -signal.SIGKILL, said + out)
        self.assertIn("run folder", said)
        self.assertEqual(self.contents("old"), before)
        self.run_trainer(self.words(), "output=old", "--resume", "train.steps=6")
        self.assertEqual([r["step"] for r in self.records("old")], [1, 2, 3, 4, 5, 6])

    def test_two_jobs_in_one_folder(self):
        first = self.start(self.config(steps=10**6, every=10**6), ranks=1)
        self.wait_for_step("run", 3, first)
        out = self.run_trainer(self.config(), "--resume", ranks=1, status=2)
        self.assertIn("in use", out)
        other = self.config("other", steps=20)
        self.run_trainer(other, ranks=2)  # beside the first: they never meet
        os.kill(self.rank_pids(first.pid)[0], signal.SIGTERM)
        first.communicate(timeout=30)
        self.assertEqual(first.returncode, 75)


if __name__ == "__main__":
    main()
