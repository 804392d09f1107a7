"""How several GPUs are used together: memory that NCCL reaches without copies, statistics beside gradients, sizes of buckets,
what recorded steps leave out, instances of one GPU. By counts of the calls made on the stand-in."""
import re
import subprocess

from gpu import STANDIN, GpuCase
from harness import main

# 16 layers of 4 MiB: buckets of 4 MiB on CPUs, of 7 layers on GPUs.
WIDE = """
name: wide
output: {out}
data: {{train: {{format: synthetic, samples: 64}}}}
model:
  input: [1024]
  layers:
    - repeat: {{times: 16, layers: [linear: {{out: 1024, bias: false}}]}}
  loss: mse
train: {{steps: 1, batch: 8}}
"""


class Link(GpuCase):
    def counted(self, name, *arguments, ranks=2, env=None, **values):
        """Losses of a run, the calls that rank 0 made, by name, and what was said."""
        counts = self.dir / f"{name}.count"
        out = self.run_trainer(self.config(name, steps=4, **values), *arguments, ranks=ranks,
                               env=dict(env or {}, FAKEGPU_COUNT=counts))
        lines = (self.dir / f"{counts.name}.0").read_text().splitlines()
        return self.losses(name), {k: int(n) for k, n in (line.split() for line in lines)}, out

    def test_registered_memory(self):
        """Gradients, and weights that are gathered, on all ranks or on none; the same losses and the memory that was predicted
        either way."""
        losses, calls, out = self.counted("usual")
        self.assertEqual([calls.get(c) for c in ("ncclMemAlloc", "ncclCommRegister", "ncclCommDeregister", "ncclMemFree")], [2] * 4)
        self.assertNotIn("plain device memory", out)
        whole, calls, _ = self.counted("whole", "run.shard_optimizer=off")
        self.assertEqual([calls.get(c) for c in ("ncclMemAlloc", "ncclCommRegister", "ncclMemFree")], [1] * 3)
        for name, arguments, ranks in (("mpi", ("run.collectives=mpi",), 2), ("one", (), 1)):
            self.assertNotIn("ncclMemAlloc", self.counted(name, *arguments, ranks=ranks)[1])
        for name, env, taken in (("first", "ncclMemAlloc:1@1", 1), ("second", "ncclMemAlloc:2@0", 1), ("old", None, 0)):
            env = dict(FAKEGPU_FAIL=env) if env else dict(FAKENCCL_VERSION=21800)
            found, calls, out = self.counted(name, env=env)
            self.assertEqual(found, losses, name)
            self.assertEqual(out.count("gradients lie in plain device memory: "), 1, out)
            self.assertNotIn("ncclCommRegister", calls)
            self.assertGreaterEqual(calls.get("ncclMemFree", 0), taken)
        found, calls, out = self.counted("unregistered", env=dict(FAKEGPU_FAIL="ncclCommRegister:2@1"))
        self.assertEqual(found, losses)
        self.assertEqual(out.count("gradients are not registered with NCCL: "), 1, out)
        for name in ("usual", "whole", "first", "old"):
            end = self.records(name, "end")[0]
            self.assertEqual(end["predicted_mb"], end["held_mb"], name)

    def test_statistics_beside_gradients(self):
        """A communicator of their own where NCCL keeps the order of two, else one; the same bits."""
        losses, calls, _ = self.counted("usual")
        self.assertEqual(calls["ncclCommInitRankConfig"], 2)
        for name, arguments, env, communicators in (
                ("old", (), dict(FAKENCCL_VERSION=22500), 1), ("recorded", (), dict(FAKENCCL_VERSION=22600), 1),
                ("plain", ("run.cuda_graph=off",), dict(FAKENCCL_VERSION=22600), 2),
                ("off", (), dict(NCCL_LAUNCH_ORDER_IMPLICIT=0), 1)):
            found, calls, _ = self.counted(name, *arguments, env=env)
            self.assertEqual(calls["ncclCommInitRankConfig"], communicators, name)
            self.assertEqual(found, losses, name)
        self.assertEqual(self.counted("alone", "train.sync_batchnorm=none")[1]["ncclCommInitRankConfig"], 1)

    def test_buckets(self):
        """25 MiB on GPUs, 4 MiB on CPUs, the first small; or what the config says, in the plan and in the log."""
        path = self.dir / "wide.yaml"
        path.write_text(WIDE.format(out=self.dir / "wide"))
        for values, buckets in ((("device=cuda",), "4 buckets of up to 29.4 MB"), (("device=cpu",), "16 buckets of up to 4.19 MB"),
                                (("device=cuda", "run.bucket_mb=8"), "8 buckets of up to 8.39 MB")):
            done = subprocess.run([str(STANDIN), "plan", str(path), *values, "--ranks", "2"], env=self.environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            self.assertIn(f"in 16 arrays, {buckets}\n", done.stdout)
        out = self.run_trainer(self.config("log", steps=1))
        self.assertRegex(out, r"parameters in 1 bucket of [\d.]+ kB; ")

    def test_laps_of_recorded_steps(self):
        """Four readings of the clock a step; those around gathers only where steps are not recorded."""
        def readings(name, *arguments):
            path = self.dir / f"{name}.launches"
            self.run_trainer(self.config(name, steps=6), "train.eval.every_steps=none", "train.sync_batchnorm=all", *arguments,
                             ranks=2, env=dict(FAKEGPU_LAUNCHES=path))
            return sum(line.startswith("lap_kernel ") for line in path.read_text().splitlines())
        recorded, plain = readings("recorded"), readings("plain", "run.cuda_graph=off")
        self.assertEqual(plain - 6 * 4 * 2, 6 * 2 * 2 * self.gathers("plain"))
        self.assertGreater(self.gathers("plain"), 0)
        # Replays launch nothing: each of the two slots' steps is issued as it comes, then to be recorded.
        self.assertEqual(recorded, 2 * 2 * 4 * 2)

    def gathers(self, name):
        """Of a micro-batch."""
        done = subprocess.run([str(STANDIN), "plan", str(self.dir / f"{name}.yaml"), "device=cuda", "--ranks", "2"],
                              env=self.environment(), stdout=subprocess.PIPE, text=True, timeout=60)
        return int(re.search(r"synchronized batchnorm: (\d+) gathers", done.stdout)[1])

    def test_instances_of_one_gpu(self):
        """MIG: told apart by their UUIDs; NCCL does not connect two of one GPU, the host does."""
        losses, _, _ = self.counted("usual", "run.collectives=mpi")
        two = dict(FAKEGPU_MIG=2, FAKEGPU_DEVICES=2)
        found, calls, out = self.counted("instances", env=two)
        self.assertEqual(found, losses)
        self.assertNotIn("ncclCommInitRankConfig", calls)
        self.assertEqual(out.count("ranks have instances (MIG) of one GPU"), 1, out)
        self.assertEqual(self.records("instances", "start")[0]["reducer"], "MPI through host memory")
        end = self.records("instances", "end")[0]
        self.assertEqual(end["predicted_mb"], end["held_mb"])
        out = self.run_trainer(self.config("asked", steps=2), "run.collectives=nccl", env=two, status=1)
        self.assertEqual(len(re.findall("error: .*Duplicate GPU detected", out)), 1, out)
        out = self.run_trainer(self.config("same", steps=2), env=dict(two, CUDA_VISIBLE_DEVICES=1), status=2)
        self.assertIn("has 1 visible GPU for 2 ranks", out)
        self.assertNotIn("instances", self.counted("apart", env=dict(FAKEGPU_MIG=2, CUDA_VISIBLE_DEVICES="0,2"))[2])


if __name__ == "__main__":
    main()
