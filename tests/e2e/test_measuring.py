"""Stages that measure times: on rank 0, while the others wait."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import h5py

from harness import CNN, main
from stages import StageCase

CLOCK = """ /* A clock that jumps, as if other work came between whenever it is looked at. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static __thread unsigned long long ahead, chance = 1;
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int st = real(id, t);
    if (id != CLOCK_MONOTONIC) return st;
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    ahead += 10000ull << (chance >> 60);
    t->tv_sec += (long)(ahead / 1000000000);
    t->tv_nsec += (long)(ahead % 1000000000);
    if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
    return st;
}
"""


def ticks(pid):
    """Processor time so far, in hundredths of a second."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


class Measuring(StageCase):
    def others_sleep(self, stage, *options):
        """While rank 0 times, the other one takes next to no processor time."""
        process = self.start(stage, "run/model.h5", *options, "run.threads=1", "--force")
        seen = next(line for line in process.stdout if f"stage 01-{stage}" in line)
        ranks, first, last = self.rank_pids(process.pid), None, None
        self.assertEqual(len(ranks), 2, seen)
        while process.poll() is None:
            try:
                last = [ticks(pid) for pid in ranks]
            except OSError:
                break
            first = first or last
            time.sleep(0.02)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, said)
        busy, idle = (b - a for a, b in zip(first, last))
        self.assertGreater(busy, 9, said)  # or it is not worth a look
        self.assertLess(idle, 0.5 * busy, (first, last))

    def test_others_sleep(self):
        self.run_trainer(self.config(steps=3, every=3, text=CNN.replace("out: 8", "out: 96")))
        for stage, *options in (("benchmark", "batches=[1]", "seconds=1", "runs=5"),
                                ("profile", "mode=inference", "batches=[64]", "runs=20"),
                                ("prune", "measure=latency", "amount=0.3"),
                                ("quantize", "layers=auto", "samples=16", "batch=64")):
            with self.subTest(stage):
                self.others_sleep(stage, *options)

    def test_stop(self):
        """What measures for hours hears of a stop between two calls, whichever rank is told, and ends as all that is stopped."""
        self.run_trainer(self.config(steps=3, every=3))
        for stage, *options in (("benchmark", "seconds=10000"), ("benchmark", "seconds=0", "runs=1", "batches=[1]", "rates=[0.001]"),
                                ("profile", "mode=inference", "runs=100000", "batches=[4096]"),
                                ("quantize", "layers=all", "samples=16", "batch=65536")):
            process, seen = self.start(stage, self.dir / "run/model.h5", *options), []
            for line in process.stdout:
                seen.append(line)
                if f"stage 01-{stage}" in line:
                    os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)  # not the one that measures
                    break
            said = "".join(seen) + process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 75, said)
            self.assertIn("stopped while layers were timed" if stage == "quantize" else "stopped between two", said)
            self.assertFalse((self.dir / f"run/model-{stage}.h5").exists())

    def test_stop_of_rounding(self):
        """Nor does what learns for minutes keep a job from its end."""
        wide = """
            name: wide
            device: cpu
            output: run
            data: {train: {format: synthetic, samples: 16}}
            model: {input: [1152], layers: [linear: {out: 20000}, relu, linear: {out: 4}], loss: cross_entropy}
            train: {steps: 1, batch: 16, optimizer: {sgd: {lr: 0.1}}}
            """
        (self.dir / "wide.yaml").write_text(wide)
        self.run_trainer("wide.yaml", ranks=1)
        process, seen = self.start("quantize", "run/model.h5", "layers=all", "samples=16", "rounding=adaround", "run.threads=1"), []
        for line in process.stdout:
            seen.append(line)
            if "stage 01-quantize" in line:
                os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
                break
        said = "".join(seen) + process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, said)
        self.assertIn("stopped while roundings were learned", said)

    def test_speedup_beside_work(self):
        """Two equal models are equally fast, whatever else the machine does: they are timed in turns."""
        self.run_trainer(self.config(every=50), "pipeline=[train, fold]", ranks=1)
        model, over = self.stage("01-fold.h5"), threading.Event()

        def work():
            rng = random.Random(1)
            while not over.wait(rng.uniform(0.02, 0.2)):
                p = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                over.wait(rng.uniform(0.1, 0.4))
                p.kill()
                p.wait()
        workers = [threading.Thread(target=work) for _ in range(2)]
        for w in workers:
            w.start()
        try:
            for _ in range(3):
                out = self.run_trainer("fold", model, "budget.speedup=1.5", "run.threads=2", "--force", ranks=1, status=1)
                self.assertRegex(out, r"budget.speedup: [\d.]+, at least 1.5 was asked for")
            self.run_trainer("fold", model, "budget.speedup=0.67", "run.threads=2", "--force", ranks=1)
        finally:
            over.set()
            for w in workers:
                w.join()
        # a stage that made a model has both times of one measurement, and the first row is of that, too
        with h5py.File(model, "r") as f:
            self.assertEqual(f["stages/00-train"].attrs["latency_ms"], f["stages/01-fold"].attrs["latency_ms_before"])

    def test_warning_once(self):
        """That other work met what is timed is said once a stage, however often the stage times."""
        self.run_trainer(self.config(steps=3, every=3), ranks=0)
        (self.dir / "clock.c").write_text(CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"], cwd=self.dir, check=True)
        out = self.run_trainer("prune", "run/model.h5", "measure=latency", "run.threads=1", ranks=0, env={"LD_PRELOAD": str(self.dir / "clock.so")})
        self.assertEqual(out.count("other work meets what is timed"), 1, out)


if __name__ == "__main__":
    main()
