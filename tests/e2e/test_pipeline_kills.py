"""Pipelines that are stopped or killed, at any moment: what is left goes on at the unfinished stage."""
import os
import pathlib
import random
import signal
import time

from harness import long, main
from stages import TWICE, StageCase


def alive(pid):
    """Not ended, nor waiting to be asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class PipelineKills(StageCase):
    def test_stop(self):
        """Asked to stop in a stage's training, it goes on there."""
        config = self.config(every=50)
        stage = TWICE.replace("steps: 12", "steps: 400").replace("every_steps: 4", "every_steps: 50")
        process = self.start(config, stage)
        self.wait_for_step("run/stages/01-finetune/train", 20, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out)
        process = self.start(config, stage, "--resume")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("stage 00-train is done", out)
        steps = [r["step"] for r in self.records("run/stages/01-finetune/train")]
        self.assertEqual(steps, list(range(1, 401)))

    def test_pruning_killed_between_rounds(self):
        """Killed behind a round of pruning, it goes on there, and ends in the same bytes."""
        stages = "pipeline=[train, {prune: {amount: 0.6, rounds: 3, sensitivity: 0.5, train: {steps: STEPS, " \
                 "checkpoint: {every_steps: 20}}}}]".replace("STEPS", "60")
        self.run_trainer(self.config("whole", every=50), stages)
        config = self.config("killed", every=50)
        process = self.start(config, stages)
        self.wait_for_step("killed/stages/01-prune/round-2", 1, process)
        ranks = self.rank_pids(process.pid)
        for pid in ranks:  # not the launcher: they would work on until they notice
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        while any(alive(pid) for pid in ranks):
            time.sleep(0.01)
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

    def test_killed(self):
        self.killed(3, 5)

    @long
    def test_killed_often(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                self.killed(6, seed, f"-{seed}")


if __name__ == "__main__":
    main()
