"""What `trainer plan` says of GPUs, against what a run on the stand-in takes; what a run says of its GPU."""
import json
import re
import subprocess
from unittest import mock

import harness
from formats import scaled
from gpu import STANDIN, GpuCase
from harness import SOURCE, TRAINER, main

DIGITS = SOURCE / "configs/digits.yaml"
SPACES = ("GPU memory of rank 0", "host memory of rank 0")
DEVICE_KEYS = {"idle_ms", "gpu_memory_mb", "gpu_utilization"}
END_DEVICE_KEYS = DEVICE_KEYS | {"predicted_device_mb", "held_device_mb"}


class Plan(GpuCase):
    def test_memory_limit(self):
        """A limit is of each GPU: what is chosen holds what was predicted there, and changes no loss."""
        config = self.config(steps=3)
        refused = self.run_trainer(config, "run.memory_limit=100kB", status=1)
        self.assertIn("training does not fit 100 kB on a GPU of run.memory_limit", refused)
        least = re.search(r"the smallest limit that would do is (\d+MiB)", refused)[1]
        self.run_trainer(config, "--force")
        plain = self.losses()
        for limit in (least, "auto"):
            out = self.run_trainer(config, "--force", f"run.memory_limit={limit}")
            self.assertIn(f"run.memory_limit {limit}: ", out)
            self.assertEqual(self.losses(), plain)
            end = self.end()
            self.assertLessEqual(end["held_device_mb"], end["predicted_device_mb"])

    def test_batches_beyond_kernels(self):
        """2^31 elements and more in a tensor are too many for a kernel: such batches do not fit, and smaller ones are looked for."""
        config, own = SOURCE / "configs/gpt2-124m.yaml", (f"output={self.dir}/run",)
        for memory, ranks in (("80GB", 1), ("24GB", 1), ("80GB", 2)):
            plan = json.loads(self.tool("plan", config, *own, "device=cuda", "--memory", memory, "--ranks", ranks, "--json"))
            self.assertTrue(plan["fit"]["fits"])
            self.assertEqual(plan["fit"]["largest_batch"], 9600, memory)  # all samples: micro-batches stay as they are
        plan = json.loads(self.tool("plan", config, *own, "device=cuda", "--memory", "80GB", "train.batch=3840", "--json"))
        self.assertTrue(plan["fit"]["fits"])
        self.assertIn("more samples at once than a kernel takes", " ".join(plan["notes"]))
        one = json.loads(self.tool("plan", config, *own, "device=cuda", "--memory", "80GB", "--largest", "--json"))
        self.assertEqual(json.loads(self.tool("plan", config, *own, "device=cuda", "--memory", "80GB", "train.batch=3840", "--largest", "--json")),
                         {**one, "micro_batch": mock.ANY, "micro_batches": mock.ANY})
        self.assertIn("of 2147483647 that fit: lower train.micro_batch",
                      self.tool("plan", config, *own, "device=cuda", "--memory", "80GB", "train.batch=3840", "train.micro_batch=3840", status=2))

    def test_launches_count(self):
        """Not one sample at a time, where thousands fit."""
        text = self.dir / "a.txt"
        text.write_text("the quick brown fox jumps over the lazy dog; " * 2000)
        plan = json.loads(self.tool("plan", SOURCE / "configs/byte-gpt.yaml", f"data.train.path={text}", f"output={self.dir}/run", "device=cuda",
                                    "--memory", "4GB", "run.memory_limit=auto", "train.batch=2048", "--json"))
        self.assertGreaterEqual(plan["samples_per_rank"], 1024, plan["notes"])

    def test_auto_leaves_a_margin(self):
        """Of what the GPU has free, 5 %, at the least 512 MiB, stay free."""
        def gpu(memory):
            return {"FAKEGPU_MEMORY": memory, "FAKENVML_TOTAL": memory, "FAKENVML_USED": 0}  # NVML is asked where it is there

        config = self.config(steps=3)
        for memory, margin in ((3 << 30, 512 << 20), (16 << 30, (16 << 30) // 20)):
            self.run_trainer(config, "run.memory_limit=auto", "--force", ranks=1, env=gpu(memory))
            # libraries hold some of it when the limit is taken
            self.assertAlmostEqual(self.records(event="memory")[0]["limit_mb"], (memory - margin) / 1e6, delta=48, msg=memory)
        out = self.run_trainer(config, "run.memory_limit=auto", "--force", ranks=1, status=1, env=gpu((512 << 20) + 100_000))
        self.assertRegex(out, r"training does not fit \d+(\.\d+)? k?B on a GPU of run\.memory_limit")

    def tool(self, *arguments, program=STANDIN, status=0, **env):
        done = subprocess.run([str(program), *map(str, arguments)], cwd=self.dir, env=self.environment(**env),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertNotIn("fakegpu:", done.stderr)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def sizes(self, text):
        """{space: {kind: (bytes, half a unit)}} of training."""
        found = {}
        for space in SPACES:
            block = re.search(rf"(?m)^{space} .*\n((?:  .*\n)+)", text)[1]
            found[space] = {kind: scaled(size) for kind, size in
                            re.findall(r"(?m)^  (\w[\w/ ]*?) {2,}([\d.]+ k?M?B) +[\d.]+ k?M?B$", block)}
        return found

    def assert_about(self, size, nbytes):
        value, half = size
        self.assertLessEqual(abs(value - nbytes), half)

    def end(self, name="run"):
        return self.records(name, "end")[0]

    def test_is_what_runs(self):
        """What a run predicts it holds to the byte, on the GPU and in all; the plan said the same, but for workspace."""
        for ranks, precision, *more in ((1, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16"), (2, "fp16", "train.loss_scale_init=128"),
                                        (2, "fp32", "run.collectives=mpi"), (1, "bf16", "run.collectives=mpi"),
                                        (2, "bf16", "train.batch=256", "train.micro_batch=64", "train.ema=0.9")):
            with self.subTest(ranks=ranks, precision=precision, more=more):
                self.compare(ranks, f"train.precision={precision}", *more)

    def compare(self, ranks, *values):
        values = (*values, "device=cuda", "run.workspace_mb=1", "train.steps=2", "data.eval.samples=64",
                  f"output={self.dir}/run")
        sizes = self.sizes(self.tool("plan", DIGITS, "--ranks", ranks, *values))
        self.run_trainer(DIGITS, *values, "--force", ranks=ranks)
        end = self.end()
        self.assertEqual(end["predicted_mb"], end["held_mb"])
        self.assertEqual(end["predicted_device_mb"], end["held_device_mb"])
        gpu, host = (sizes[space] for space in SPACES)
        self.assert_about(host["total"], (end["held_mb"] - end["held_device_mb"]) * 1e6)
        # libraries choose their workspace on the device; where it lies moves the rest of the arena a little
        held, (total, half), (workspace, _) = end["held_device_mb"] * 1e6, gpu["total"], gpu["workspace"]
        self.assertLessEqual(held, total + half)
        self.assertLess(abs((total - workspace) / held - 1), 0.10, (sizes, end))
        for kinds in (gpu, host):
            total, half = kinds["total"]
            parts = [size for kind, size in kinds.items() if kind != "total"]
            self.assertLessEqual(abs(sum(p[0] for p in parts) - total), half + sum(p[1] for p in parts))
        self.assertEqual("gradients" in host, ranks > 1 and "run.collectives=mpi" in values)
        self.assertNotIn("weights", host)

    def test_workspace_is_a_bound(self):
        """What libraries may take for themselves is chosen on the device: the plan counts the most they are given."""
        totals = [self.sizes(self.tool("plan", DIGITS, "device=cuda", f"run.workspace_mb={mb}"))[SPACES[0]]["total"]
                  for mb in (1, 17)]
        self.assertAlmostEqual(totals[1][0] - totals[0][0], 16e6, delta=0.2e6)

    def test_wire(self):
        """A ring sends 2 (N - 1) / N of the gradients, which are padded to 16 elements an array."""
        text = self.tool("plan", DIGITS, "device=cuda", "--ranks", "4")
        number, half = scaled(re.search(r"a rank sends ([\d.]+ k?M?B) within the node and 0 B between", text)[1])
        parameters = 38122
        self.assertTrue(1.5 * 4 * parameters - half <= number <= 1.5 * 4 * (parameters + 14 * 15) + half, number)
        # on two nodes of two, half of the ring's sends leave the node
        node, network = re.search(r"across nodes:\n.*NCCL.*\n +a rank sends ([\d.]+ k?M?B) within the node and "
                                  r"([\d.]+ k?M?B) between", text).groups()
        self.assertLess(abs(scaled(node)[0] - number / 2), 2 * half)
        self.assertEqual(node, network)
        self.assertIn("NCCL; a ring: 2 (N - 1) / N", text)
        self.assertIn("MPI through pinned host memory",
                      self.tool("plan", DIGITS, "device=cuda", "--ranks", "4", "run.collectives=mpi"))
        self.assertIn("synchronized batchnorm: 8 gathers", text)

    def test_touches_no_device(self):
        text = self.tool("plan", DIGITS, "device=cuda", FAKEGPU_DEVICES=0, FAKEGPU_COUNT=self.dir / "calls")
        self.assertIn("cuda: planned for NVIDIA H100 (sm_90)", text)
        for impl in ("cuDNN", "cuBLASLt", "own"):
            self.assertIn(impl, text)
        for path in self.dir.glob("calls.*"):
            called = set(re.findall(r"\b((?:cuda|cudnn|cublas|nccl)\w+)", path.read_text()))
            self.assertEqual({name for name in called if "Version" not in name}, set())

    def test_real_program(self):
        """The program for real GPUs, on a machine that may have none, plans the same."""
        done = subprocess.run([str(TRAINER), "plan", str(DIGITS), "device=cuda", "--ranks", "2"], cwd=self.dir,
                              env=harness.ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)  # 2: TRAINER was built without CUDA
        fake = self.tool("plan", DIGITS, "device=cuda", "--ranks", "2")
        names = re.compile(r"(?m)^.*(planned for|resident in this process).*\n")
        self.assertEqual(names.sub("", done.stdout), names.sub("", fake))

    def test_auto(self):
        self.assertIn("backend        cuda: planned for", self.tool("plan", DIGITS, FAKEGPU_DEVICES=1))
        for precision, capability, device in (("bf16", "7.5", "cpu"), ("fp16", "7.5", "cuda"), ("bf16", "8.0", "cuda")):
            text = self.tool("plan", DIGITS, f"train.precision={precision}", FAKEGPU_CAPABILITY=capability)
            self.assertIn(f"backend        {device}: ", text)
            self.assertEqual("note: device: auto plans for CPUs here: Stand-in for an H100 (sm_75) has no bf16" in text,
                             device == "cpu", text)
        text = self.tool("plan", DIGITS, FAKEGPU_DEVICES=0)
        self.assertIn("note: device: auto plans for CPUs here: no CUDA device", text)
        self.assertIn("backend        cpu: ", text)
        self.assertRegex(text, r"(?m)^memory of rank 0 ")
        self.assertNotIn("GPU memory", text)
        self.assertIn("fp16 has no CPU kernels",
                      self.tool("plan", DIGITS, "train.precision=fp16", FAKEGPU_DEVICES=0, status=2))
        self.tool("plan", DIGITS, "train.precision=fp16", FAKEGPU_DEVICES=1)

    def test_refuses(self):
        for value, words in (("run.collectives=shared", "run.collectives: shared is for CPUs"),
                             ("run.wire=bf16", "run.wire: bf16 is for CPUs")):
            for command in ("plan", "check"):
                self.assertIn(words, self.tool(command, DIGITS, "device=cuda", value, status=2))
            # found out where the GPUs are: all ranks end alike, and one says it
            code, out = self.launch(DIGITS, "device=auto", value)
            self.assertEqual((code, out.count(words)), (2, 1), out)
        self.assertIn("nccl is for GPUs", self.tool("plan", DIGITS, "device=cpu", "run.collectives=nccl", status=2))


class Metrics(GpuCase):
    def train(self, *arguments, name="run", steps=12, **how):
        self.run_trainer(self.config(name, samples=64, steps=steps, batch=16, every=steps), *arguments, **how)
        return self.records(name), self.records(name, "end")[0]

    def test_times_add_up(self):
        """Laps of the device's clock are of this run and none counts twice, whatever is recorded and replayed: together no
        more than what went by between reports. Not how exact they are: how fast the stand-in works through its streams
        depends on the machine, and what it leaves to the host is not the device's time."""
        for ranks, more in ((1, ()), (2, ()), (2, ("train.micro_batch=3",)), (2, ("run.collectives=mpi",)),
                            (1, ("run.cuda_graph=off",))):
            with self.subTest(ranks=ranks, more=more):
                steps, end = self.train(*more, "--force", ranks=ranks)
                self.assertEqual(len(steps), 12)
                for r in [*steps, end]:
                    self.assertGreater(r["compute_ms"], 0)
                    self.assertGreater(r["comm_wait_ms"], 0)
                    self.assertGreaterEqual(r["idle_ms"], 0)
                used = sum(end[key] for key in ("compute_ms", "comm_wait_ms", "idle_ms"))
                self.assertLessEqual(used, end["step_ms"] * 1.02, end)

    def test_counters(self):
        steps, end = self.train(env={"FAKENVML_UTILIZATION": 93, "FAKENVML_USED": 12345678000,
                                     "FAKENVML_TOTAL": 80000000000})
        for r in [*steps, end]:
            self.assertEqual((r["gpu_memory_mb"], r["gpu_utilization"]), (12345.678 if r is end else 12345.7, 93))
        start = self.records(event="start")[0]
        self.assertEqual((start["ranks"], start["device"]), (2, "cuda"))
        self.assertIn("H100", start["backend"])
        self.assertRegex(start["reducer"], r"^NCCL \d")
        self.assertLessEqual(END_DEVICE_KEYS, set(end))
        events = b"".join(p.read_bytes() for p in (self.dir / "run").glob("events.out.tfevents.*"))
        for tag in (b"gpu/memory_mb", b"gpu/utilization", b"speed/idle_ms", b"speed/compute_ms"):
            self.assertEqual(events.count(tag), 12)

    def test_every_key_is_documented(self):
        self.train("train.eval.every_steps=4", "train.checkpoint.every_steps=4")
        text = (SOURCE / "docs/records.md").read_text()
        seen = [json.loads(line) for line in (self.dir / "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual({r["event"] for r in seen},
                         {"start", "step", "epoch", "eval", "checkpoint", "checkpoint_written", "memory", "end"})
        for record in seen:
            for key in record:
                self.assertIn(f"`{key}`", text)

    def test_what_is_unknown_is_left_out(self):
        steps, end = self.train(env={"FAKENVML_UTILIZATION": "none"})
        for r in [*steps, end]:
            self.assertNotIn("gpu_utilization", r)
            self.assertEqual(r["gpu_memory_mb"], 3000)
        # without NVML memory comes from the CUDA runtime, which sees what was allocated
        steps, end = self.train("--force", ranks=1, env={"FAKENVML_FAIL": "nvmlInit_v2"})
        self.assertNotIn("gpu_utilization", end)
        self.assertGreaterEqual(end["gpu_memory_mb"], end["held_device_mb"])
        self.assertLess(end["gpu_memory_mb"], end["held_device_mb"] + 300)
        steps, end = self.train("device=cpu", "--force")
        for r in [*steps, end]:
            self.assertEqual(set(r) & END_DEVICE_KEYS, set())

    def test_short_memory(self):
        """The warning is about the GPU's memory, and is not given where there is enough."""
        config = self.config(samples=64, steps=1, batch=16)
        short = self.run_trainer(config, env={"FAKENVML_TOTAL": 10**9, "FAKENVML_USED": 10**9 - 1000})
        said = re.findall(r"training may take ([\d.]+ k?MB) on a GPU \(trainer plan\), this one has 1.00 kB: ", short)
        self.assertEqual(len(said), 1, short)
        self.assertIn(f"does not fit: {said[0]} needed", self.tool("plan", config, "device=cuda", "run.overcommit_memory=true", "--ranks", 2, "--memory", "1kB"))
        self.assertNotIn("may take", self.run_trainer(config, "--force"))


if __name__ == "__main__":
    main()
