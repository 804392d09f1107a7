"""A rank that stays away: it is stopped in the middle of steps on the stand-in for a GPU. The others say, once, after
run.timeout, where they waited and that it is this one; the job ends with status 1."""
import os
import re
import signal
import time

from gpu import GpuCase
from harness import CNN, main

TIMEOUT = 3
ERROR = (r"trainer: error: rank {rank} \([^)]+\)(: rank \d+ \([^)]+\))? waited \d+ s for the "
         r"(device in step \d+, (at gather \d+, )?\d+ of \d+ buckets reduced|(all-reduce|reduce-scatter) of step \d+, bucket \d+|"
         r"sum of the tally or all-gather of weights of step \d+|start of an NCCL operation of step \d+): not arrived: rank {victim} \(pid {pid}")


class Away(GpuCase):
    def stop_one(self, name, ranks, victim, *arguments, step=6, **values):
        config = self.config(name, steps=100000, every="none", samples=20000, **values)  # an epoch is long
        job = self.start(config, f"run.timeout={TIMEOUT}", "train.eval.every_steps=none", *arguments, ranks=ranks)
        self.addCleanup(job.kill)
        self.wait_for_step(name, step, job)
        pid = self.rank_pids(job.pid)[victim]
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        try:
            out, _ = job.communicate(timeout=60)
        finally:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.assertEqual(job.returncode, 1, out)
        self.assertGreater(time.monotonic() - begin, TIMEOUT - 1, out)
        self.assertLess(time.monotonic() - begin, 8 * TIMEOUT, out)
        self.assertNotIn("fakegpu:", out)
        errors = [line for line in out.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 1, out)
        speaker = int(re.match(r"trainer: error: rank (\d+) ", errors[0])[1])
        self.assertNotEqual(speaker, victim, out)
        self.assertRegex(errors[0], ERROR.format(rank=speaker, victim=victim, pid=pid))
        self.assertEqual(len(re.findall(rf"rank {speaker} \(", errors[0])), 1, errors[0])
        return errors[0]

    def test_synchronized_batchnorm(self):
        self.stop_one("two", 2, 1)
        self.stop_one("first", 2, 0)

    def test_one_of_three(self):
        error = self.stop_one("three", 3, 1)
        self.assertEqual(len(re.findall(r"\(pid", error)), 1, error)

    def test_steps_that_are_not_recorded(self):
        self.stop_one("plain", 2, 1, "run.cuda_graph=off")

    def test_buckets_alone(self):
        self.stop_one("buckets", 2, 1, "train.sync_batchnorm=false")

    def test_more_kernels_than_a_queue_takes(self):
        """The others must not be caught in a launch that waits for room."""
        block = "    - linear: {{out: 8}}\n    - layernorm\n    - relu\n"
        model = CNN.replace("    - dropout: {{p: 0.2}}\n", 120 * block)
        self.stop_one("deep", 2, 1, "run.cuda_graph=off", "train.sync_batchnorm=false", text=model)


if __name__ == "__main__":
    main()
