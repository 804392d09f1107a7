"""Signals, time limits and ranks that die: one message, the right status, nobody hangs."""
import os
import pathlib
import signal
import subprocess
import time

from harness import Case, Listener, main

# Rank 1 is stopped as it ends MPI.
STOP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
int MPI_Finalize(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && strcmp(rank, "1") == 0) raise(SIGSTOP);
    return ((int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize"))();
}
"""

class Signals(Case):
    def test_stop_signals(self):
        for sig, victim in ((signal.SIGTERM, 1), (signal.SIGUSR1, 0), (signal.SIGINT, 2), (signal.SIGHUP, 0)):
            name = sig.name
            config = self.config(name, steps=100000, every=100000)
            process = self.start(config, ranks=3)
            self.wait_for_step(name, 15, process)
            os.kill(self.rank_pids(process.pid)[victim], sig)
            out, _ = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 75, out)
            step = self.records(name)[-1]["step"]
            self.assertTrue((self.dir / name / f"checkpoints/step-{step:08d}.h5").exists())
            self.assertEqual(self.records(name, "end")[-1]["reason"], "stopped")

    def test_second_interrupt_ends_at_once(self):
        process = self.start(self.config(steps=10**6, every=10**6), ranks=0)
        self.wait_for_step("run", 15, process)
        os.kill(process.pid, signal.SIGINT)
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while any(int(line.split()[1], 16) & 1 << (signal.SIGINT - 1) for line in status.read_text().splitlines()
                  if line.startswith(("SigPnd", "ShdPnd"))):
            pass  # not delivered yet: a second one would be merged with it
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)

    def test_ignored_hangup(self):
        """As nohup starts it."""
        process = self.start(self.config(steps=10**6, every=10**6), ranks=0,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_step("run", 5, process)
        os.kill(process.pid, signal.SIGHUP)
        step = self.records()[-1]["step"]
        self.wait_for_step("run", step + 20, process)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 75)

    def stopped(self, ranks, victim, *arguments):
        """A job one of whose ranks is stopped before its program begins; how long it took to end, and what it said."""
        stop = f'if [ "$OMPI_COMM_WORLD_RANK" = {victim} ]; then kill -STOP $$; fi; exec "$0" "$@"'
        begin = time.monotonic()
        done = subprocess.run(["mpirun", "--oversubscribe", "-np", str(ranks), "sh", "-c", stop, str(self.program),
                               *map(str, arguments)], cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=90)
        self.assertEqual(done.returncode, 1, done.stdout)
        return time.monotonic() - begin, done.stdout

    def test_stopped_at_start(self):
        took, out = self.stopped(3, 1, self.config(), "run.start_timeout=2")
        self.assertRegex(out, r"error: rank 0 \(.*\): MPI_Init took longer than 2 s \(run.start_timeout\)")
        self.assertLess(took, 30)

    def test_stopped_at_end(self):
        """In MPI_Finalize, with its work done: what was written is whole, and the job has failed all the same."""
        (self.dir / "stop.c").write_text(STOP)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "stop.so", "stop.c", "-ldl"], cwd=self.dir, check=True)
        begin = time.monotonic()
        out = self.run_trainer(self.config(steps=3, every=3), "run.start_timeout=2", ranks=3, status=1, timeout=60,
                               env={"LD_PRELOAD": str(self.dir / "stop.so")})
        self.assertRegex(out, r"error: rank \d \(.*\): MPI_Finalize took longer than 2 s \(run.start_timeout\): some rank did not end")
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("3 updates", self.tool("inspect", self.dir / "run/model.h5"))

    def test_stopped_in_training(self):
        for mode in ("auto", "mpi"):
            with self.subTest(mode):
                process = self.start(self.config(mode, steps=10**6, every=10**6), f"run.collectives={mode}",
                                     "run.timeout=2", ranks=3)
                self.wait_for_step(mode, 5, process)
                victim = self.rank_pids(process.pid)[1]
                os.kill(victim, signal.SIGSTOP)
                begin = time.monotonic()
                out, _ = process.communicate(timeout=60)
                self.assertLess(time.monotonic() - begin, 18, out)
                self.assertEqual(process.returncode, 1, out)
                self.assertRegex(out, rf"not arrived: rank 1 \(pid {victim}, stopped\)\n")

    def test_stopped_while_busy(self):
        """Rank 0 measures, and takes long: the other tells it once, and waits on, but not for one that is stopped."""
        self.run_trainer(self.config(steps=3, every=3))
        process = self.start("benchmark", self.dir / "run/model.h5", "seconds=60", "run.timeout=2")
        self.addCleanup(process.terminate)
        said = Listener(process)
        victim = self.rank_pids(process.pid)[0] if said.when("and waits on", 60) else None
        time.sleep(3)  # it is told once
        os.kill(victim, signal.SIGSTOP)
        begin = time.monotonic()
        at = said.when(rf"rank 1 \(.*\) waited \d+ s for the .*: not arrived: rank 0 \(pid {victim}, busy measuring for \d+ s, stopped\)", 60)
        self.assertLess(at - begin, 15)
        self.assertEqual(process.wait(timeout=30), 1, said.text())
        self.assertRegex(said.text(), rf"warning: rank 1 \(.*\) has waited \d+ s for the .*, and waits on: for rank 0 \(pid {victim}, busy measuring for \d+ s\)")
        self.assertEqual(said.text().count("and waits on"), 1)

    def test_wall_clock_limit(self):
        out = self.run_trainer(self.config(steps=10**6, every=10**6), "train.max_seconds=2", status=75)
        self.assertIn("--resume", out)
        self.run_trainer(self.config(steps=10**6, every=10**6), "train.max_seconds=2", "--resume", status=75)
        steps = [r["step"] for r in self.records()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def kill_rank(self, victim, after_step, ranks=3):
        process = self.start(self.config(steps=10**6, every=1), ranks=ranks)
        if after_step:
            self.wait_for_step("run", after_step, process)
        else:  # during start-up
            end = time.monotonic() + 20
            while len(self.rank_pids(process.pid)) < ranks and time.monotonic() < end:
                time.sleep(0.005)
        os.kill(self.rank_pids(process.pid)[victim], signal.SIGKILL)
        begin = time.monotonic()
        out, _ = process.communicate(timeout=30)
        self.assertLess(time.monotonic() - begin, 25, out)
        self.assertNotEqual(process.returncode, 0, out)

    def test_killed_rank_in_training(self):
        self.kill_rank(1, after_step=20)

    def test_killed_rank_zero(self):
        self.kill_rank(0, after_step=10)

    def test_killed_rank_in_stage(self):
        """The launcher asks the others to stop: what they say is that a rank died, as a training does."""
        self.run_trainer(self.config(every=50))
        process = self.start("benchmark", self.dir / "run/model.h5", "batches=[1024]", "seconds=600")
        self.addCleanup(process.kill)
        lock, end = self.dir / "run/.model-benchmark.lock", time.monotonic() + 60
        while not lock.exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(2)  # sure to be measuring
        os.kill(self.rank_pids(process.pid)[1], signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        self.assertRegex(out, r"error: .*rank 1 \(.*\) died")
        self.assertNotIn("stopped between", out)
        self.assertNotIn(process.returncode, (0, 75))

    def test_killed_rank_at_start(self):
        self.kill_rank(1, after_step=0)


if __name__ == "__main__":
    main()
