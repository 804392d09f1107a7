"""Pipelines that are stopped or killed, at any moment: what is left goes on at the unfinished stage."""
import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import h5py
import numpy as np

from harness import long, main
from stages import TWICE, StageCase, text

SEEDS = int(os.environ.get("TRIREME_SEEDS", 1))  # of the long part; more by hand
# Every kind of stage that makes a model or a file, and, in the second one, what goes by gradients, masks, and measures.
EVERY = "pipeline=[train, fold, {{prune: {{amount: 0.4, rounds: 2, train: {{steps: 8, checkpoint: {{every_steps: 3}}}}}}}}, " \
        "{{finetune: {{train: {{steps: 12, checkpoint: {{every_steps: 4}}}}}}}}, " \
        "{{quantize: {{layers: all, {rounding}, samples: 48}}}}, {behind}{{export: {{external_mb: 1e-6}}}}, {{export: {{format: npz}}}}, report]"
OTHERS = "pipeline=[train, {sketch: {match: head, rank: 2}}, {prune: {kind: weights, amount: 0.3, by: taylor, samples: 48, " \
         "train: {steps: 6, checkpoint: {every_steps: 3}}}}, {prune: {amount: 0.2, by: taylor, samples: 48}}, " \
         "{benchmark: {batches: [1, 2], seconds: 0.05, runs: 5}}, {profile: {batches: [1], train_batch: 4, runs: 3, counters: false}}, export]"
MEASURED = re.compile(r"(stages/)?\d\d-(benchmark|profile)\b")  # what is found there is other each time
LEARNED = "{finetune: {scales: learned, train: {steps: 9, checkpoint: {every_steps: 4}, optimizer: {sgd: {lr: 0.001}}}}}, "


def alive(pid):
    """Not ended, nor waiting to be asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class PipelineKills(StageCase):
    def kill_ranks(self, process, reader=None):
        """All ranks at once, and not the launcher: they would work on until they notice. `reader`: a thread that takes what
        they print."""
        ranks, end = [], time.monotonic() + 120
        while not ranks and process.poll() is None and time.monotonic() < end:  # the launcher has not started them yet
            ranks = self.rank_pids(process.pid)
            time.sleep(0.005)
        while any(alive(pid) for pid in ranks):  # those that started meanwhile, too
            self.assertLess(time.monotonic(), end, "ranks do not end")
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            ranks = self.rank_pids(process.pid) or ranks
        try:
            process.wait(timeout=30) if reader else process.communicate(timeout=30)
        except subprocess.TimeoutExpired:  # Open MPI 4.1's launcher waits for ever where a rank is gone while it starts the next
            process.kill()
            process.wait() if reader else process.communicate()

    def stop_stage(self, config):
        """Its training is stopped; returns the pipeline."""
        pipeline = TWICE.replace("steps: 12", "steps: 400").replace("every_steps: 4", "every_steps: 50")
        self.stop("run/stages/01-finetune/train", 20, config, pipeline, ranks=2)
        return pipeline

    def test_stop(self):
        """Asked to stop in a stage's training, it goes on there."""
        config = self.config(every=50)
        process = self.start(config, self.stop_stage(config), "--resume")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("stage 00-train is done", out)
        self.assertRegex(out, r"resuming from \S*01-finetune/train/\S+ \(step [1-9]")
        steps = [r["step"] for r in self.records("run/stages/01-finetune/train")]
        self.assertEqual(steps, list(range(1, 401)))

    def test_stop_and_change(self):
        """A training within a stage that is asked for something else begins anew, and says so beside that the stage is not done."""
        config = self.config(every=50)
        pipeline = self.stop_stage(config).replace("steps: 400", "steps: 12").replace("0.01", "0.02")
        out = self.run_trainer(config, pipeline, "--resume", "--until", "01-finetune")
        self.assertIn("stage 01-finetune runs: it is not finished", out)
        self.assertRegex(out, r"the training in \S+/01-finetune/train begins anew: what it was asked for changed: "
                         r"train.steps: 12, was 400, and 1 more")
        self.assertNotIn("resuming from", out)

    def test_pruning_killed_between_rounds(self):
        """Killed behind a round of pruning, it goes on there, and ends in the same bytes."""
        stages = "pipeline=[train, {prune: {amount: 0.6, rounds: 3, sensitivity: 0.5, train: {steps: STEPS, " \
                 "checkpoint: {every_steps: 20}}}}]".replace("STEPS", "60")
        self.run_trainer(self.config("whole", every=50), stages)
        config = self.config("killed", every=50)
        process = self.start(config, stages)
        self.wait_for_step("killed/stages/01-prune/round-2", 1, process)
        self.kill_ranks(process)
        self.assertFalse(self.stage("01-prune.h5", "killed").exists())
        first = (self.stage("01-prune", "killed") / "round-1/metrics.jsonl").read_bytes()
        out = self.run_trainer(config, stages, "--resume")
        self.assertIn("stage 00-train is done", out)
        self.assertEqual((self.stage("01-prune", "killed") / "round-1/metrics.jsonl").read_bytes(), first)
        self.assert_same_model(self.stage("01-prune.h5", "whole"), self.stage("01-prune.h5", "killed"))

    def killed(self, kills, seed, behind=""):
        rng = random.Random(seed)
        self.run_trainer(self.config("whole" + behind, every=5), TWICE)
        config, done = self.config("killed" + behind, every=5), 0
        while True:
            process = self.start(config, TWICE, "--resume")
            end = time.monotonic() + rng.uniform(0.3, 3.0)
            while done < kills and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            if done < kills and process.poll() is None:
                ranks = self.rank_pids(process.pid)
                process.kill()
                done += 1
                process.communicate(timeout=60)
                while any(alive(pid) for pid in ranks):  # they hold the folder until they see that the launcher is gone
                    time.sleep(0.01)
                continue
            out, _ = process.communicate(timeout=120)
            if "is in use by another running job" in out:  # by a rank that was only being started when it was looked for
                time.sleep(0.1)
                continue
            self.assertEqual(process.returncode, 0, out)
            if done >= kills or self.stage("02-finetune.h5", "killed" + behind).exists():
                break
        for file in ("01-finetune.h5", "02-finetune.h5"):
            a, b = self.stage(file, "whole" + behind), self.stage(file, "killed" + behind)
            self.assert_same_model(a, b)
            stage = file[:-3]
            x, y = self.attributes(a, stage), self.attributes(b, stage)
            for name in ("loss", "accuracy", "options", "parameters"):
                self.assertEqual(x[name], y[name], name)

    # ---- pipelines of every kind of stage ----

    def assert_same_runs(self, a, b):
        """Two run folders hold the same stages, byte for byte but for times."""
        names = [sorted(p.name for p in (at / "stages").iterdir()) for at in (a, b)]
        self.assertEqual(names[0], names[1])
        hashes = [{hashlib.sha256(p.read_bytes()).hexdigest().encode(): p.name.encode() for p in
                   (at / "model.h5", *sorted((at / "stages").glob("*.h5")))} for at in (a, b)]
        for file in ("model.h5", *(f"stages/{n}" for n in names[0])):
            if (a / file).is_dir() or MEASURED.match(file) and not file.endswith(".h5"):  # checkpoints of a training; times
                continue
            if file.endswith(".h5"):
                # of bytes those of model.h5 are others, which names the checkpoint that it was resumed from
                x, y = ({k: v for k, v in self.everything(at / file, "parent_bytes").items()
                         if not MEASURED.match(k) or k.endswith("@inputs")} for at in (a, b))
                self.assertEqual(x.keys(), y.keys(), file)
                for key in x:
                    self.assertEqual(x[key], y[key], f"{file} {key}")
            else:  # what names its parent names it by a hash
                x, y = ((at / file).read_bytes() for at in (a, b))
                for h in hashes[0]:
                    x = x.replace(h, hashes[0][h])
                for h in hashes[1]:
                    y = y.replace(h, hashes[1][h])
                self.assertTrue(x == y, file)
        for page in ("report.html", "report.md"):
            self.assertEqual((a / page).exists(), (b / page).exists(), page)

    def kill_in_stage(self, config, pipeline, stage, made, after):
        """Starts or goes on, and kills all ranks `after` seconds behind the line that the stage begins with. Whether it
        was not done yet."""
        process = self.start(config, pipeline, "run.threads=1", "--resume")
        begun, said = threading.Event(), []

        def read():
            for line in process.stdout:
                said.append(line)
                if f"stage {stage} runs" in line or line.rstrip().endswith(f"stage {stage}"):
                    begun.set()
            begun.set()
        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(begun.wait(120), "".join(said))
        time.sleep(after)
        if process.poll() is None:
            self.kill_ranks(process, reader)
        reader.join()
        process.stdout.close()
        process.wait(timeout=60)
        return not made.exists()

    def kill_stages(self, seed, pipeline, times):
        """Killed in training and in each stage, `times` times, somewhere between its begin and its end."""
        rng = random.Random(seed)
        config, run, whole = self.config(every=5), self.dir / "run", self.dir / f"whole-{seed}"
        self.run_trainer(config, pipeline, "run.threads=1")
        shutil.rmtree(whole, ignore_errors=True)
        run.rename(whole)
        for _ in range(times):
            process = self.start(config, pipeline, "run.threads=1", "--resume")
            self.wait_for_step("run", rng.randrange(1, 8), process)
            self.kill_ranks(process)
        for file in sorted((whole / "stages").glob("*.h5")):
            made, took = run / "stages" / file.name, self.attributes(file, file.stem)["seconds"]
            for _ in range(times):
                for again in range(20):  # sooner and sooner: quick stages may be done before they are killed
                    if self.kill_in_stage(config, pipeline, file.stem, made, rng.uniform(0, took) / 2 ** again):
                        break
                    made.unlink()  # it is made again
                else:
                    self.fail(f"{file.stem} was never killed before it was done")
        self.run_trainer(config, pipeline, "run.threads=1", "--resume")
        self.assert_same_runs(whole, run)
        shutil.rmtree(run)

    def test_every_stage_killed(self):
        """Folded, pruned in rounds, trained again, rounded by what was learned, exported: killed in each, the same bytes."""
        self.kill_stages(1, EVERY.format(rounding="rounding: adaround", behind=""), 1)

    @long
    def test_every_stage_killed_often(self):
        for seed in range(2, 2 + SEEDS):
            with self.subTest(seed=seed):
                self.kill_stages(seed, EVERY.format(rounding=("rounding: adaround, equalize: true, bias_correction: true"),
                                                    behind=LEARNED), 2)

    @long
    def test_other_stages_killed(self):
        """Sketched, masked, by gradients, measured: killed in each, the same bytes but for what was measured."""
        self.kill_stages(5, OTHERS, 2)

    def test_killed(self):
        self.killed(3, 5)

    @long
    def test_killed_often(self):
        for seed in range(2 * SEEDS):
            with self.subTest(seed=seed):
                self.killed(6, seed, f"-{seed}")


if __name__ == "__main__":
    main()
