"""Jobs that are refused once the devices are known: one message that says what was tried, why, and what to do; status; and
nothing is left of them. What plans and records say where devices are few."""
import os
import pathlib
import re
import subprocess

from gpu import STANDIN, GpuCase
from harness import SOURCE, TRAINER, main

DIGITS = SOURCE / "configs/digits.yaml"
LOOKED = "device: auto looked for a GPU for every rank and fell back to the CPU: "


class Ends(GpuCase):
    def ends(self, config, *arguments, status=0, **how):
        """With this status, and no rule of the stand-in broken; what was said."""
        code, out = self.launch(config, *arguments, **how)
        self.assertNotIn("fakegpu:", out)
        self.assertEqual(code, status, out)
        return out


class Refused(Ends):
    def everything(self):
        return sorted(str(p.relative_to(self.dir)) for p in self.dir.rglob("*"))

    def refused(self, config, *arguments, status=2, **how):
        """The one error that is said; all ranks end, and nothing has changed."""
        before = self.everything()
        out = self.ends(config, *arguments, status=status, **how)
        self.assertEqual(self.everything(), before, out)
        errors = [line for line in out.splitlines() if line.startswith("trainer: error: ")]
        self.assertEqual(len(errors), 1, out)
        return errors[0]

    def test_leaves_nothing(self):
        config = self.config(steps=2, out="new/deep/run")
        one = dict(FAKEGPU_DEVICES=1)
        for ranks, status, env, values in (
                (2, 2, one, ("train.precision=fp16",)),
                (2, 2, one, ("run.collectives=nccl",)),
                (2, 2, one, ("device=cuda",)),
                (1, 2, dict(FAKEGPU_DEVICES=0), ("train.precision=fp16",)),
                (1, 2, {}, ("run.wire=bf16",)),
                (3, 2, {}, ("run.wire=bf16",)),
                (2, 2, {}, ("run.collectives=shared",)),
                (2, 1, dict(CUDA_VISIBLE_DEVICES=""), ("device=cuda",)),
                (2, 1, dict(FAKEGPU_MEMORY=10000), ("device=cuda",)),
                (2, 1, dict(FAKEGPU_FAIL="cudaStreamCreateWithPriority:1@1"), ("device=cuda",)),
                (2, 1, {}, ("device=cuda", "data.train.path=nowhere.h5"))):
            with self.subTest(ranks=ranks, env=env, values=values):
                values = values if "device=cuda" in values else ("device=auto", *values)
                self.refused(config, *values, ranks=ranks, status=status, env=env)
        self.assertFalse((self.dir / "new").exists())

    def test_stage_without_a_device_of_one_rank(self):
        """A stage whose device opens on some ranks only ends on all of them, says whose it was, and leaves nothing."""
        self.ends(self.config(steps=2, every=1))
        model, there = self.dir / "run/model.h5", ("device=cuda", "run.deterministic=on")
        for rank in (0, 1):
            with self.subTest(rank=rank):
                fault = dict(FAKEGPU_FAIL=f"cudaStreamCreateWithFlags:1@{rank}")
                out = self.refused("fold", model, *there, status=1, env=fault)
                self.assertIn("cudaStreamCreateWithFlags", out)
        self.ends("fold", model, *there)

    def test_what_was_there_stays(self):
        config = self.config(steps=2, every=1)
        wrong = ("device=auto", "run.wire=bf16")
        (self.dir / "run").mkdir()
        self.refused(config, *wrong)
        (self.dir / "run/notes").touch()
        self.refused(config, *wrong)
        self.ends(config)
        before = self.contents("run")
        for more in ((), ("--resume",), ("--force",)):
            self.refused(config, *wrong, *more)
        self.assertEqual(self.contents("run"), before)
        self.ends(config, "--resume", "train.steps=3")

    def test_failed_first_step_changes_nothing(self):
        config = self.config(steps=2, every=1)
        self.ends(config)
        fault = dict(FAKEGPU_FAIL="ncclAllReduce:1@0")
        for more in (("--force",), ("--resume", "train.steps=4"), (f"output={self.dir}/new",)):
            with self.subTest(more=more):
                before = self.contents()
                self.assertIn("ncclAllReduce", self.refused(config, "device=cuda", *more, env=fault, status=1))
                self.assertEqual(self.contents(), before)

    def test_words(self):
        config = self.config(steps=2)
        few = dict(FAKEGPU_DEVICES=1)
        for values, env, ranks, words in (
                (("train.precision=fp16",), few, 2,
                 (f"train.precision: fp16 has no CPU kernels. {LOOKED}node ", " has 1 visible GPU for 2 ranks: start 1 rank on it "
                  "(mpirun --map-by ppr:1:node). Use bf16 (or fp32), or start the job where every rank has a GPU")),
                (("run.collectives=nccl",), dict(FAKEGPU_DEVICES=0), 1,
                 (f"run.collectives: nccl is for GPUs. {LOOKED}no GPU: no CUDA device: ",
                  ". Use shared, mpi or auto, or start the job where every rank has a GPU")),
                (("run.wire=bf16",), {}, 2,
                 ("run.wire: bf16 is for CPUs, GPUs reduce gradients in fp32; use fp32, or device: cpu (device: auto takes "
                  "GPUs here)",))):
            with self.subTest(values=values):
                error = self.refused(config, "device=auto", *values, env=env, ranks=ranks)
                for text in words:
                    self.assertIn(text, error)
        # what was asked for by name is not looked for, and the CPU is no way out of what only CPUs lack
        error = self.refused(config, "device=cpu", "train.precision=fp16")
        self.assertTrue(error.endswith("train.precision: fp16 has no CPU kernels; use bf16 (or fp32)"), error)
        error = self.refused(config, "device=cuda", env=few)
        self.assertTrue(error.endswith("(mpirun --map-by ppr:1:node), or set device: cpu"), error)
        error = self.refused(config, "device=cuda", "run.wire=bf16")
        self.assertTrue(error.endswith("GPUs reduce gradients in fp32; use fp32"), error)

    def test_real_program(self):
        """The program with the real libraries, where no GPU can be had."""
        if pathlib.Path("/proc/driver/nvidia/version").exists():
            self.skipTest("there is a driver")
        env = dict(LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH", ""))
        error = self.refused(self.config(steps=2), "device=auto", "train.precision=fp16", program=TRAINER, env=env)
        self.assertIn(LOOKED, error)
        self.assertIn("there is no NVIDIA driver here", error)
        self.refused(self.config(steps=2), "device=cuda", program=TRAINER, env=env, status=1)


class Auto(Ends):
    """device: auto where there are GPUs enough, but a rank cannot compute on its own."""

    def takes(self, device, *arguments, said=None, **how):
        out = self.ends(self.config(steps=2), "device=auto", "--force", *arguments, **how)
        start = self.records(event="start")[0]
        self.assertEqual(start["device"], device, out)
        self.assertEqual(out.count("device: auto takes the CPU: "), 1 if said else 0, out)
        if said:
            self.assertRegex(out, rf"(?m)^trainer: (warning: )?device: auto takes the CPU: .*{said}")
        return start

    def test_cannot_be_opened(self):
        broken = (("cudaLaunchKernel:1@{}", r"launch of \w+.*cudaError"), ("cublasLtCreate:1@{}", "CUBLAS_STATUS"),
                  ("cudaSetDevice:1@{}", "cudaSetDevice.*cudaError"), ("cudaStreamCreateWithFlags:1@{}", "cudaError"))
        for ranks in (1, 2):
            for fault, said in broken:
                fault = fault.format(ranks - 1)
                with self.subTest(fault=fault, ranks=ranks):
                    start = self.takes("cpu", said=said, ranks=ranks, env=dict(FAKEGPU_FAIL=fault, FAKEGPU_DEVICES=ranks))
                    self.assertNotIn("H100", start["backend"])
        self.takes("cpu", said="cudaError", env=dict(FAKEGPU_FAIL="cudaLaunchKernel:1", FAKEGPU_DEVICES=2))  # on both
        self.assertEqual(self.takes("cuda", ranks=2)["device"], "cuda")
        out = self.ends(self.config(steps=2), "device=cuda", "--force", status=1,
                        env=dict(FAKEGPU_FAIL="cudaLaunchKernel:1@1"))
        self.assertNotIn("takes the CPU", out)

    def test_falls_back_to_what_it_would_have_had(self):
        """The same numbers, threads and cores as where nobody looked for a GPU."""
        config = self.config(steps=3)
        self.ends(config, "device=cpu", "--force")
        losses, start = self.losses(), self.records(event="start")[0]
        found = self.takes("cpu", "train.steps=3", said="cudaError",
                           env=dict(FAKEGPU_FAIL="cudaLaunchKernel:1@1", FAKEGPU_DEVICES=2))
        self.assertEqual(self.losses(), losses)
        for key in ("threads", "backend", "collectives", "reducer"):
            self.assertEqual(found[key], start[key])

    def test_takes_the_next(self):
        """A GPU that one rank cannot open, or that NCCL cannot connect, is left out, and another one of the node taken, by all
        ranks: said once, with the same losses. Where there is none, or NCCL fails on all, CPUs; with device: cuda an error."""
        config = self.config(steps=2)
        self.ends(config, "device=cuda", "--force")
        losses = self.losses()
        for fault, said in (("cudaLaunchKernel:1@1", r"launch of \w+.*cudaError"), ("cudaSetDevice:1@0", "cudaSetDevice.*cudaError"),
                            ("ncclCommInitRankConfig:1@1", r"ncclCommInitRankConfig.*\(nccl\w+\)"),
                            ("ncclCommInitRankConfig:2@0", "ncclCommInitRankConfig")):
            with self.subTest(fault=fault):
                fails = dict(FAKEGPU_FAIL=fault)
                out = self.ends(config, "device=auto", "--force", env=dict(fails, FAKEGPU_DEVICES=3))
                self.assertEqual(len(re.findall(rf"device: auto takes another GPU: .*{said}", out)), 1, out)
                self.assertNotIn("takes the CPU", out)
                self.assertEqual(self.records(event="start")[0]["device"], "cuda")
                self.assertEqual(self.losses(), losses)
                if fault != "ncclCommInitRankConfig:1@1":
                    continue
                self.takes("cpu", said=said, env=dict(fails, FAKEGPU_DEVICES=2))
                out = self.ends(config, "device=cuda", "--force", status=1, env=dict(fails, FAKEGPU_DEVICES=3))
                self.assertEqual(len(re.findall(rf"error: .*{said}", out)), 1, out)
                self.assertNotIn("takes", out)
        self.takes("cpu", said="ncclCommInitRankConfig", env=dict(FAKEGPU_FAIL="ncclCommInitRankConfig:1"))
        out = self.ends(config, "device=auto", "--force", env=dict(FAKEGPU_FAIL="cudaLaunchKernel:1", FAKEGPU_DEVICES=4))
        self.assertEqual(self.losses(), losses)  # both ranks took another

    def test_precision(self):
        bf16, no_bf16 = "train.precision=bf16", r"Stand-in for an H100 \(sm_75\) has no bf16"
        for ranks, capability in ((1, "7.5"), (2, "7.5"), (2, "7.5@1")):
            with self.subTest(ranks=ranks, capability=capability):
                env = dict(FAKEGPU_CAPABILITY=capability)
                self.takes("cpu", bf16, said=no_bf16, ranks=ranks, env=env)
                self.takes("cuda", ranks=ranks, env=env)
        self.takes("cuda", bf16, env=dict(FAKEGPU_CAPABILITY="8.0"))
        out = self.ends(self.config(steps=2), "device=cuda", bf16, "--force", status=2,
                        env=dict(FAKEGPU_CAPABILITY="7.5"))
        self.assertIn("this GPU has no bf16", out)

    def test_no_way_back(self):
        """What only GPUs have: the error says why there is none."""
        out = self.ends(self.config(steps=2), "device=auto", "train.precision=fp16", status=2,
                        env=dict(FAKEGPU_FAIL="cudaLaunchKernel:1@1", FAKEGPU_DEVICES=2))
        self.assertEqual(len([line for line in out.splitlines() if "error: " in line]), 1, out)
        self.assertRegex(out, f"fp16 has no CPU kernels. {LOOKED}.*launch of .*cudaError")


class Few(Ends):
    def plan(self, *arguments, status=0, **env):
        done = subprocess.run([str(STANDIN), "plan", str(DIGITS), *map(str, arguments)], cwd=self.dir,
                              env=self.environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def test_plan_without_gpu(self):
        for value in ("train.precision=fp16", "run.collectives=nccl"):
            error = self.plan("device=auto", value, FAKEGPU_DEVICES=0, status=2)
            self.assertIn("device: auto looked for a GPU on this machine and plans for CPUs: no CUDA device: ", error)
            self.assertIn(", or plan for GPUs elsewhere (device=cuda)\n", error)
            self.plan("device=cuda", value, FAKEGPU_DEVICES=0)
            self.assertNotIn("looked for", self.plan("device=cpu", value, FAKEGPU_DEVICES=0, status=2))

    def test_plan_with_fewer_gpus_than_ranks(self):
        note = "note: 4 ranks need as many GPUs and this machine has {}: the plan is for where there are enough; "
        for device, end in (("cuda", "the job would be refused\n"), ("auto", "the job would take CPUs (device=cpu ")):
            for gpus in (1, 3):
                text = self.plan(f"device={device}", "--ranks", 4, FAKEGPU_DEVICES=gpus)
                self.assertTrue(text.startswith(note.format(gpus)), text)
                self.assertIn(f"started here alone, {end}", text)
                self.assertIn("backend        cuda: planned for", text)
            self.assertNotIn("note:", self.plan(f"device={device}", "--ranks", 4, FAKEGPU_DEVICES=4))
            self.assertNotIn("note:", self.plan(f"device={device}", FAKEGPU_DEVICES=1))
        # none at all: another machine is meant
        self.assertNotIn("note:", self.plan("device=cuda", "--ranks", 4, FAKEGPU_DEVICES=0))
        self.assertNotIn("need as many", self.plan("device=cpu", "--ranks", 4, FAKEGPU_DEVICES=1))

    def test_plan_says_what_nodes_have(self):
        for ranks, gpus, cpus in ((8, "8 GPUs on 2 nodes, 4 to each, ", "2 nodes, 4 ranks share"),
                                  (9, "9 GPUs on 2 nodes, up to 5 to each, ", "2 nodes, up to 5 ranks share"),
                                  (2, "2 GPUs on 2 nodes, 1 to each, ", "2 nodes with one rank each")):
            self.assertIn(gpus, self.plan("device=cuda", "--ranks", ranks))
            self.assertIn(cpus, self.plan("device=cpu", "--ranks", ranks))

    def test_one_rank_reduces_nothing(self):
        for values in (("device=cpu",), ("device=cpu", "run.collectives=mpi"), ("device=cuda",),
                       ("device=cuda", "run.collectives=mpi")):
            for ranks in (1, 2):
                with self.subTest(values=values, ranks=ranks):
                    out = self.ends(self.config(steps=1), *values, "--force", ranks=ranks)
                    reducer = self.records(event="start")[0]["reducer"]
                    self.assertEqual(reducer == "one rank", ranks == 1, reducer)
                    self.assertIn(f"gradients: {reducer}\n", out)


if __name__ == "__main__":
    main()
