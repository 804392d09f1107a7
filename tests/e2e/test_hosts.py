"""Several hosts, with a network between them, as far as one machine can pretend them: see hosts.py. The config and
the run folder are on the first host alone; data is on both."""
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

import h5py
import numpy as np

import hosts
from harness import CNN, ENV, Case, Listener, TRAINER, main

# A learning rate that does not know how many steps there will be: a run in parts is the whole run.
TEXT = CNN.replace("schedule: {{cosine: {{warmup: 3}}}}", "schedule: constant")
STEPS = 7  # an epoch: the last batch is short
FP32 = dict(rtol=2e-4, atol=2e-5)  # as in test_equality.py
# A gradient that is rounded to bfloat16 is off by 2^-9; AdamW makes of it a change of a weight of lr 2^-9 a step.
WIRE = dict(rtol=1e-2, atol=1e-3)


class SeveralHosts(Case):
    @classmethod
    def setUpClass(cls):
        if hosts.MARK not in os.environ:
            raise unittest.SkipTest(hosts.why_not() or "run this file by itself: it moves into namespaces first")

    def setUp(self):
        super().setUp()
        self.hosts = hosts.Hosts(self.dir, ("hosta", "hostb"))
        self.addCleanup(self.hosts.close)
        self.private = self.dir / "private"
        self.private.mkdir()
        self.hosts.hide("hostb", self.private)

    def start_job(self, name, where, *arguments, steps=STEPS, **parameters):
        config = self.config(f"private/{name}", text=TEXT, steps=steps, every=1)
        command = self.hosts.mpirun(where, TRAINER, config, *arguments, **parameters)
        return subprocess.Popen(command, cwd=self.dir, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def job(self, name, where, *arguments, **values):
        process = self.start_job(name, where, *arguments, **values)
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        return out

    def test_same_losses(self):
        self.job("one", "hosta:1")
        whole = self.losses("private/one")
        self.assertEqual(len(whole), STEPS)
        for name, where, arguments, tolerance, said in (
                ("even", "hosta:2,hostb:2", (), FP32, "2 nodes, up to 2 ranks share memory on each (2 slices"),
                ("uneven", "hosta:2,hostb:1", (), FP32, "2 nodes, up to 2 ranks share memory on each (1 slices"),
                ("alone", "hosta:1,hostb:1", (), FP32, "2 nodes with one rank each"),
                ("mpi", "hosta:1,hostb:2", ("run.collectives=mpi",), FP32, "plain MPI"),
                ("wire", "hosta:2,hostb:1", ("run.wire=bf16",), WIRE, "2 nodes, up to 2 ranks")):
            with self.subTest(name):
                out = self.job(name, where, *arguments)
                self.assertIn("ranks on 2 nodes", out)
                self.assertIn(said, out)
                np.testing.assert_allclose(self.losses(f"private/{name}"), whole, **tolerance)
        self.assertNotEqual(self.losses("private/wire"), self.losses("private/uneven"), "nothing was rounded")

        self.job("moved", "hosta:2,hostb:1", steps=2)
        for steps, where in ((4, "hosta:2"), (STEPS, "hosta:1,hostb:2")):
            self.assertIn("resuming from", self.job("moved", where, "--resume", steps=steps))
        np.testing.assert_allclose(self.losses("private/moved"), whole, **FP32)

    def test_other_labels_on_the_other_host(self):
        """Before anything is removed or written; it is told which host."""
        self.job("run", "hosta:1,hostb:2", steps=2)
        before = self.contents("private")
        data, other = self.dir / "data.h5", self.dir / "other.h5"
        other.write_bytes(data.read_bytes())
        with h5py.File(other, "r+") as f:
            f["y"][33] = (f["y"][33] + 1) % 4
        hosts.run(*self.hosts.on("hostb", "mount", "--bind", other, data))
        command = self.hosts.mpirun("hosta:1,hostb:2", TRAINER, self.dir / "private/run.yaml", "--force")
        done = subprocess.run(command, cwd=self.dir, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r'rank 0 \(hosta\) has "data.train: labels: 103 samples.*", rank 1 \(hostb\) has '
                                      r'".*"; unlike rank 0: 1 \(hostb\), 2 \(hostb\)')
        self.assertEqual(self.contents("private"), before)

    def rank_of(self, pid):
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next(e for e in environment if e.startswith(b"OMPI_COMM_WORLD_RANK=")).decode().split("=")[1]

    def test_killed_on_the_other_host(self):
        process = self.start_job("run", "hosta:2,hostb:2", steps=10**6)
        self.wait_for_step("private/run", 3, process)
        victim = self.hosts.processes("hostb", TRAINER)[0]
        rank = self.rank_of(victim)
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        out, _ = process.communicate(timeout=30)
        self.assertLess(time.monotonic() - begin, 25, out)
        self.assertNotEqual(process.returncode, 0, out)
        self.assertRegex(out, rf"trainer: error: .*rank {rank} \(hostb, pid {victim}\) died")

    def test_stopped_on_the_other_host(self):
        """It lives, and computes no more: known after the timeout, by its name, with memory shared and by messages alone. It was not
        busy: what waits for it counts all the time, also where nobody sees that it is stopped, and not a tenth."""
        for mode, where, host in (("auto", "hosta:1,hostb:2", "(hostb, )?"), ("mpi", "hosta:1,hostb:2", "(hostb, )?"),
                                  ("mpi", "hosta:2,hostb:1", "hostb, ")):
            with self.subTest(mode=mode, where=where):
                name = f"{mode}-{where[6]}"
                process = self.start_job(name, where, "run.timeout=3", f"run.collectives={mode}", steps=10**6)
                self.wait_for_step(f"private/{name}", 3, process)
                victim = self.hosts.processes("hostb", TRAINER)[-1]
                rank = self.rank_of(victim)
                os.kill(victim, signal.SIGSTOP)
                out, _ = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 1, out)
                self.assertRegex(out, rf"not arrived: rank {rank} \({host}pid {victim}(, stopped)?\)(?! *, rank)")
                waited = [int(seconds) for seconds in re.findall(r"waited (\d+) s for the", out)]
                self.assertTrue(waited and max(waited) < 12, out)  # a tenth of it would count to 30

    def test_ranks_end_themselves(self):
        """A cut that mpirun does not notice: it cannot end the ranks, and ends none."""
        process = self.start_job("run", "hosta:1,hostb:1", "run.timeout=2", steps=10**6)
        self.wait_for_step("private/run", 3, process)
        said = Listener(process)
        self.hosts.cut("hostb")
        begin = time.monotonic()
        # whoever is busy as its last word is heard may be waited for ten times as long; rank 1 never is
        self.assertLess(said.when(r"not arrived: rank 1 \(hostb, pid \d+\)", 60) - begin, 15)
        end = time.monotonic() + 50
        while any(self.hosts.processes(host, TRAINER) for host in ("hosta", "hostb")):
            self.assertLess(time.monotonic(), end, "ranks did not end")
            time.sleep(0.1)
        for pid in self.hosts.processes("hosta") + self.hosts.processes("hostb"):
            if "mpirun" in os.readlink(f"/proc/{pid}/exe") or "orte" in os.readlink(f"/proc/{pid}/exe"):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=30)

    def test_cut_cable(self):
        """Sooner than ranks would: as launch/environment sets it, only shorter."""
        process = self.start_job("run", "hosta:1,hostb:2", steps=10**6, oob_tcp_keepalive_time=2,
                                 oob_tcp_keepalive_intvl=1, oob_tcp_keepalive_probes=2)
        self.wait_for_step("private/run", 3, process)
        self.hosts.cut("hostb")
        out, _ = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0, out)
        self.assertRegex(out, r"lost communication(?s:.*)hostb")


if __name__ == "__main__":
    hosts.move_inside()
    main()
