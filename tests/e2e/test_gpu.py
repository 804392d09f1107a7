"""The main job on GPUs, on the stand-in: the CPU's losses, any number of ranks, every precision, the same bits in every
order of streams, and stops, kills and resumes, also from one device to the other."""
import json
import os
import pathlib
import re
import signal
import time

import h5py
import numpy as np

import harness
import stages
from gpu import STANDIN, GpuCase
from harness import SOURCE, TRAINER, main

# float32: other libraries add in another order; a few 2^-24 a step, and AdamW's first steps, which go by the
# gradient's sign, amplify them.
FP32 = dict(rtol=2e-4, atol=2e-5)
# 8 (11) bits of precision: what is rounded alike on all rank counts is added in another order, and one flipped rounding
# is 2^-8 (2^-11).
BF16 = dict(rtol=3e-2, atol=1e-2)
FP16 = dict(rtol=1e-2, atol=3e-3)

PLAIN = "\n".join(line for line in harness.CNN.splitlines() if "batchnorm" not in line and "dropout" not in line)


class Gpu(GpuCase):
    def digits(self, name, device, *arguments):
        config = SOURCE / "configs/digits.yaml"
        return self.run_trainer(config, f"device={device}", f"output={self.dir / name}", "train.steps=30",
                            "train.log_every=1", "train.eval.every_steps=15", "train.eval.every_epochs=none", *arguments)

    def test_digits(self):
        """The main job with two ranks: step by step the losses of the CPU, and the evaluations."""
        self.digits("cpu", "cpu")
        out = self.digits("gpu", "cuda")
        self.assertIn("H100", out)
        self.assertEqual(self.records("gpu", "start")[0]["device"], "cuda")
        self.assertEqual(self.records("cpu", "start")[0]["device"], "cpu")
        np.testing.assert_allclose(self.losses("gpu"), self.losses("cpu"), **FP32)
        self.assertLess(self.losses("gpu")[-1], 0.8 * self.losses("gpu")[0])
        a, b = self.records("gpu", "eval"), self.records("cpu", "eval")
        self.assertEqual([r["step"] for r in a], [15, 30])
        for gpu, cpu in zip(a, b, strict=True):
            self.assertEqual(gpu["samples"], cpu["samples"])
            np.testing.assert_allclose(gpu["loss"], cpu["loss"], rtol=1e-3)
            self.assertLessEqual(abs(gpu["accuracy"] - cpu["accuracy"]) * cpu["samples"], 2)  # samples on the edge
        norms = [[r["grad_norm"] for r in self.records(n)] for n in ("gpu", "cpu")]
        np.testing.assert_allclose(*norms, rtol=2e-3)
        with h5py.File(self.dir / "gpu/model.h5") as g, h5py.File(self.dir / "cpu/model.h5") as c:
            a, b = g["history/confusion"][()], c["history/confusion"][()]
        self.assertEqual(a.sum(), self.records("gpu", "eval")[-1]["samples"])
        self.assertLessEqual(np.abs(a - b).sum(), 4)

    def test_distilled(self):
        """A teacher on the GPU: the CPU's losses, with recorded steps and without, in every precision; the same bits after a
        stop."""
        text = PLAIN.replace("  eval: {{every", "  distill: {{teacher: TEACHER, temperature: 2, features: "
                             "[{{student: relu1, teacher: relu1, weight: 0.1}}]}}\n  eval: {{every")
        self.run_trainer(self.config("teacher", text=PLAIN, steps=20, every=50), "device=cpu", program=TRAINER)
        text = text.replace("TEACHER", str(self.dir / "teacher/model.h5"))
        cpu = self.losses_of("cpu", "device=cpu", text=text, values=dict(steps=14), program=TRAINER)
        gpu = self.losses_of("gpu", text=text, values=dict(steps=14, every=4))
        np.testing.assert_allclose(gpu, cpu, **FP32)
        self.assertEqual(self.losses_of("plain", "run.cuda_graph=off", text=text, values=dict(steps=14)), gpu)
        half = self.losses_of("half", "train.precision=fp16", "train.loss_scale=1024", text=text, values=dict(steps=14))
        np.testing.assert_allclose(half, gpu, **FP16)
        config = self.config("parts", text=text, steps=14, every=4)
        self.stop("parts", 4, config, ranks=2)
        self.run_trainer(config, "--resume")
        self.assertEqual(self.losses("parts"), gpu)

    def test_quantize(self):
        """8 bits: the stage finds on a GPU the scales and weights that it finds on a CPU, and its model answers alike."""
        text = harness.CNN.replace("dropout: {{p: 0.2}}", "dropout: {{p: 0.0}}")
        self.run_trainer(self.config(text=text, every=50), "device=cpu", "pipeline=[train, fold]", program=TRAINER)
        found, signed, made = {}, [], self.dir / "run/stages/01-fold-quantize.h5"
        for device, program in (("cpu", TRAINER), ("cuda", STANDIN)):
            self.run_trainer("quantize", self.dir / "run/stages/01-fold.h5", f"device={device}", "run.deterministic=on",
                             "layers=all", "samples=70", "--force",
                             program=program, ranks=1)
            with h5py.File(made) as f:
                stage = next(f["stages"][name] for name in f["stages"] if name.endswith("quantize"))
                scales = {k: v[()] for k, v in stage["layers"].items()}
                weights = {name: f[f"model/params/{name}/weight"][()] for name in ("conv2d1", "conv2d2", "head")}
                found[device] = scales, weights, dict(stage.attrs)
                signed.append(re.findall(b"signed: (true|false)", stages.text(f.attrs["config"])))
        (a, wa, cpu), (b, wb, gpu) = found["cpu"], found["cuda"]
        np.testing.assert_allclose(b["input_scale"], a["input_scale"], rtol=1e-5)
        self.assertEqual(*signed)
        self.assertEqual(set(signed[0]), {b"true", b"false"})
        for name, values in wa.items():
            self.assertEqual(values.dtype, "int8")
            np.testing.assert_array_equal(wb[name], values)
        self.assertEqual(gpu["accuracy"], cpu["accuracy"])
        np.testing.assert_allclose(gpu["loss"], cpu["loss"], rtol=1e-4)
        # by what is faster on this GPU, of two ranks: what is said is what was done
        for how in ("static", "dynamic"):
            self.run_trainer("quantize", self.dir / "run/stages/01-fold.h5", "layers=auto", f"activations={how}", "budget.accuracy_drop=0.5",
                             "device=cuda", "run.deterministic=on", "samples=70", "--force")
            with h5py.File(made) as f:
                stage = next(f["stages"][name] for name in f["stages"] if name.endswith("quantize"))
                table = {k: v[()] for k, v in stage["layers"].items()}
                self.assertTrue((table["float_us"] > 0).all() and (table["int8_us"] > 0).all())
                for name, int8 in zip(("conv2d1", "conv2d2", "head"), table["int8"], strict=True):
                    self.assertEqual(f[f"model/params/{name}/weight"].dtype, "int8" if int8 else "float32")
                np.testing.assert_allclose(stage.attrs["loss"], cpu["loss_before"], atol=0.05)

    def test_pipeline(self):
        """A whole pipeline on the GPU: trained, folded, in 8 bits, measured, exported, reported; resumed, nothing is done anew."""
        config = self.config(every=50)
        stages = ("pipeline=[train, fold, {quantize: {layers: all, samples: 70, budget: {loss_rise: 0.05}}}, "
                  "{benchmark: {batches: [1, 3], seconds: 0, runs: 5, backends: [cuda, cuda-fp16, cpu]}}, export, report]")
        out = self.run_trainer(config, stages)
        for stage in ("fold", "quantize", "benchmark", "export", "report"):
            self.assertRegex(out, f"stage 0[1-5]-{stage} done")
        folder = self.dir / "run/stages"
        with h5py.File(folder / "02-quantize.h5") as f:
            self.assertEqual(f["model/params/head/weight"].dtype, "int8")
        with h5py.File(folder / "03-benchmark.h5") as f:
            calls = f["stages/03-benchmark/calls"]
            self.assertEqual(list(calls["batch"]), 3 * [1, 3])
            np.testing.assert_array_equal(calls["gpu_percent"], 4 * [37] + 2 * [np.nan])  # what the stand-in's counters say
            np.testing.assert_array_equal(calls["gpu_memory_bytes"], 4 * [3e9] + 2 * [np.nan])
        rows = json.loads((folder / "03-benchmark.json").read_text())["calls"]
        self.assertEqual([(r["backend"], r["precision"]) for r in rows[::2]], [("cuda", "fp32"), ("cuda-fp16", "fp16"), ("cpu", "fp32")])
        self.assertEqual(rows[0]["accuracy"], rows[4]["accuracy"])
        self.assertEqual([(r["gpu_percent"], r["gpu_memory_bytes"]) for r in rows], 4 * [(37, 3e9)] + 2 * [(None, None)])
        table = (folder / "03-benchmark.md").read_text().splitlines()
        self.assertEqual([line.split(" | ")[-2:] for line in table[2:8]], 4 * [["37 %", "3.00 GB |"]] + 2 * [["not measured", "not measured |"]])
        self.assertTrue((folder / "04-export.onnx").exists())
        self.assertIn("02-quantize", (self.dir / "run/report.md").read_text())
        self.assertNotIn("done in", self.run_trainer(config, stages, "--resume"))

    def check_ranks(self, tolerance, *arguments, ranks, **values):
        steps, text = values.setdefault("steps", 14), values.pop("text", harness.CNN)
        whole = self.losses_of("one", *arguments, text=text, values=values, ranks=1)
        self.assertEqual(len(whole), steps)
        self.assertLess(np.mean(whole[-3:]), whole[0])
        for n in ranks:
            parts = self.losses_of(f"n{n}", *arguments, text=text, values=values, ranks=n)
            np.testing.assert_allclose(parts, whole, err_msg=f"{n} ranks", **tolerance)
            pairs = zip(self.records(f"n{n}", "eval"), self.records("one", "eval"), strict=True)
            for a, b in pairs:
                self.assertEqual(a["samples"], 40)
                np.testing.assert_allclose(a["loss"], b["loss"], **tolerance)

    def test_uneven_shares(self):
        self.check_ranks(FP32, ranks=(2, 3, 4))  # 103 samples, batch 16: the seventh step of an epoch has 7 samples

    def test_empty_ranks(self):
        self.check_ranks(FP32, ranks=(2, 4), batch=3, steps=40)  # 4 ranks: one has none; epochs end with 1 sample

    def test_empty_share_of_an_evaluation(self):
        """40 samples by 3: in the last batch of each evaluation rank 1 has none, between steps that are replayed."""
        self.check_ranks(FP32, ranks=(2,), batch=4, steps=40, samples=104, text=harness.CNN.replace(
            "eval: {{every_steps: 10}}", "eval: {{every_steps: 3, batch: 3}}"))

    def test_bf16(self):
        self.check_ranks(BF16, "train.precision=bf16", ranks=(2, 3))

    def test_fp16(self):
        self.check_ranks(FP16, "train.precision=fp16", "train.loss_scale=dynamic", "train.loss_scale_init=1024",
                         ranks=(2, 3))

    def test_precisions_agree(self):
        """16-bit runs follow the float32 run, and are not it."""
        exact = self.losses_of("fp32", values=dict(steps=14))
        for precision, tolerance in (("bf16", BF16), ("fp16", FP16)):
            rounded = self.losses_of(precision, f"train.precision={precision}", "train.loss_scale=128",
                                     values=dict(steps=14))
            np.testing.assert_allclose(rounded, exact, err_msg=precision, **tolerance)
            self.assertNotEqual(rounded, exact)

    def test_micro_batches(self):
        """With batchnorm, what is equal is the grouping: 2 groups of 8, whoever computes them."""
        whole = self.losses_of("one", "train.micro_batch=8", values=dict(steps=14), ranks=1)
        for n, micro in ((2, 4), (4, 2)):
            parts = self.losses_of(f"n{n}", f"train.micro_batch={micro}", values=dict(steps=14), ranks=n)
            np.testing.assert_allclose(parts, whole, **FP32)

    def test_accumulation_without_batchnorm(self):
        whole = self.losses_of("one", text=PLAIN, values=dict(steps=14), ranks=1)
        for n, micro in ((1, 3), (2, 2), (3, 1)):
            parts = self.losses_of(f"m{n}", f"train.micro_batch={micro}", text=PLAIN, values=dict(steps=14), ranks=n)
            np.testing.assert_allclose(parts, whole, **FP32)

    def test_own_statistics(self):
        """Without synchronization: another run, the CPU's."""
        values = dict(steps=14)
        own = self.losses_of("own", "train.sync_batchnorm=false", values=values)
        cpu = self.losses_of("cpu", "train.sync_batchnorm=false", "device=cpu", values=values)
        np.testing.assert_allclose(own, cpu, **FP32)
        whole = self.losses_of("whole", values=values)
        self.assertGreater(np.abs(np.subtract(own, whole)).max(), 1e-3)

    # ---- The same bits ----

    def test_same_bits(self):
        """Twice; step by step instead of replayed; whatever order streams advance in. Nearly: through the host, where
        sums are taken in another order, and with other kernels."""
        ways = {
            "a": ((), {}),
            "again": ((), {}),
            "off": (("run.cuda_graph=off",), {}),
            "eager": ((), dict(FAKEGPU_ORDER="eager")),
            "r1": ((), dict(FAKEGPU_ORDER=1)),
            "r2": (("run.cuda_graph=off",), dict(FAKEGPU_ORDER=2)),
            "r3": ((), dict(FAKEGPU_ORDER=3)),
        }
        options = ("train.ema=0.9", "train.micro_batch=3", "run.bucket_mb=0.001")
        for name, (more, env) in ways.items():
            losses = self.losses_of(name, *options, *more, values=dict(steps=16), ranks=3, env=env)
            self.assertEqual(losses, self.losses("a"), name)
            self.assert_same_model(self.dir / name / "model.h5", self.dir / "a/model.h5")
        graphs = [self.records(n, "start")[0]["backend"] for n in ("a", "off")]
        self.assertIn("graphs on", graphs[0])
        self.assertIn("graphs off", graphs[1])
        for name, more in (("timed", ("run.benchmark=true", "run.deterministic=auto")),
                           ("free", ("run.deterministic=off",)), ("mpi", ("run.collectives=mpi",))):
            losses = self.losses_of(name, *options, *more, values=dict(steps=16), ranks=3)
            np.testing.assert_allclose(losses, self.losses("a"), err_msg=name, **FP32)
        for order in ("eager", 1):
            losses = self.losses_of(f"mpi{order}", *options, "run.collectives=mpi", values=dict(steps=16), ranks=3,
                                    env=dict(FAKEGPU_ORDER=order))
            self.assertEqual(losses, self.losses("mpi"), order)

    def test_deterministic(self):
        """auto, the default, is off on GPUs and on on CPUs; it is said, and NCCL and the libraries are told. A run that
        goes on keeps what it was started with, until the config says something."""
        self.same_bits = ()
        values, nvls, off = dict(steps=4), dict(NCCL_NVLS_ENABLE=1), "auto is off on GPUs"
        for name, more, said in (("default", (), off), ("off", ("run.deterministic=off",), "run.deterministic: off"),
                                 ("on", ("run.deterministic=on",), "")):
            out = self.run_trainer(self.config(name, **values), *more, ranks=3, env=nvls)
            self.assertEqual("run.deterministic: " in out, bool(said), out)
            self.assertIn(said, out)
            self.assertEqual("on: the same bits, at the price of NCCL's sums in switches (NVLS), timed algorithms (run.benchmark) and "
                             "those that add parts of a sum in any order" in out, bool(said), out)
            self.assertEqual("NCCL_NVLS_ENABLE=1: another run may end" in out, name == "on", out)
            self.assertEqual(self.records(name, "start")[0]["deterministic"], name == "on")
            self.assertEqual(self.losses(name) == self.losses("default"), name != "on", name)
        self.run_trainer(self.config("cpu", **values), "device=cpu", ranks=1)
        self.assertIs(self.records("cpu", "start")[0]["deterministic"], True)

    def test_resumed_keeps_deterministic(self):
        self.same_bits = ()
        resolved, steps = self.dir / "kept/config.yaml", "train.schedule=constant"
        config = self.config("kept", steps=6)
        self.run_trainer(config, steps, "run.deterministic=on", "train.steps=3", ranks=3)
        self.assertIn("deterministic: on", resolved.read_text())
        resolved.write_text(resolved.read_text().replace("deterministic: on", "deterministic: true"))  # as once written
        out = self.run_trainer(config, steps, "--resume", ranks=3)
        self.assertIn("run.deterministic: on, as ", out)
        self.assertIn("deterministic: on", resolved.read_text())
        self.run_trainer(self.config("whole", steps=6), steps, "run.deterministic=on", ranks=3)
        self.assertEqual(self.losses("kept"), self.losses("whole"))
        out = self.run_trainer(config, steps, "--resume", "run.benchmark=true", ranks=1, status=2)
        self.assertIn("was started with run.deterministic: on", out)
        resolved.write_text("run: [")
        out = self.run_trainer(config, steps, "--resume", ranks=3)
        self.assertIn("warning: run.deterministic: what it was is not known", out)
        self.assertIn("auto is off on GPUs", out)

    # ---- What is not finite ----

    def test_sample_too_large_for_fp16(self):
        config = self.config(steps=8, every=1, shuffle="false")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["x"][20] = 1e6
        out = self.run_trainer(config, "train.precision=fp16", "train.on_nonfinite=stop", status=1)
        self.assertIn("sample 20 of data.train is not finite in fp16, after data.normalize", out)

    def test_overflow_on_one_rank(self):
        """One sample overflows: whichever rank has it, all skip that step, and agree."""
        for ranks, precision in ((1, "fp32"), (2, "fp32"), (3, "fp16")):
            name = f"poison{ranks}"
            config = self.config(name, poison=20, shuffle="false", steps=12)
            out = self.run_trainer(config, "train.loss_scale=dynamic", f"train.precision={precision}",
                               "train.loss_scale_init=1024", ranks=ranks)
            records = self.records(name)
            self.assertEqual([r["step"] for r in records if r.get("skipped")], [2, 9], out)
            self.assertEqual([r["loss_scale"] for r in records[:3]], [1024, 512, 512])
            self.assertEqual(records[8]["loss_scale"], 256)
            self.assertIn("gradient of", records[1]["skipped"])

    def test_rollback(self):
        """The step after the one that failed is under way already, and changes nothing."""
        text = harness.CNN.replace("clip_norm: 1.0", "on_nonfinite: {policy}\n  max_rollbacks: 1")
        values = dict(poison=20, shuffle="false", steps=12, every=1, policy="rollback")
        out = self.run_trainer(self.config("back", text=text, **values), status=1)
        self.assertIn("back to step 1", out)
        self.assertIn("rolled back 1 times already", out)
        values["policy"] = "stop"
        out = self.run_trainer(self.config("stop", text=text, **values), status=1)
        self.assertRegex(out, r"step 2: the .* is not finite")
        self.assertEqual([p.name for p in (self.dir / "stop/checkpoints").glob("step-*.h5")], ["step-00000001.h5"])

    # ---- Stopped, killed, resumed ----

    def test_killed_and_resumed(self):
        options = ("train.ema=0.9", "train.checkpoint.best=true", "train.precision=fp16", "train.loss_scale=dynamic")
        self.run_trainer(self.config("whole", steps=90, every=3), *options)
        config, kills = self.config("killed", steps=90, every=3), 0
        for target in (10, 31, 52):
            process = self.start(config, "--resume", *options)
            self.wait_for_step("killed", target, process)
            for pid in self.rank_pids(process.pid):
                os.kill(pid, signal.SIGKILL)
                kills += 1
            process.communicate(timeout=30)
        self.assertEqual(kills, 6)
        self.run_trainer(config, "--resume", *options)
        self.assertEqual(self.losses("killed"), self.losses("whole"))
        self.assert_same_model(self.dir / "killed/model.h5", self.dir / "whole/model.h5")
        self.assertEqual([r["step"] for r in self.records("killed")], list(range(1, 91)))

    def test_resumed_with_three_ranks(self):
        """From three ranks on the order of a sum shows in its bits."""
        self.run_trainer(self.config("whole", steps=20), "train.schedule=constant", ranks=3)
        config = self.config("halves", steps=20)
        self.run_trainer(config, "train.schedule=constant", "train.steps=9", ranks=3)
        self.run_trainer(config, "train.schedule=constant", "--resume", ranks=3)
        self.assertEqual(self.losses("halves"), self.losses("whole"))
        self.assert_same_model(self.dir / "halves/model.h5", self.dir / "whole/model.h5")

    def test_stopped_and_moved(self):
        """SIGTERM to one rank: status 75 and a checkpoint, from which another number of ranks goes on."""
        self.run_trainer(self.config("whole", steps=40), ranks=1)
        config = self.config("moved", steps=40)
        self.stop("moved", 8, config, ranks=3)
        step = self.records("moved")[-1]["step"]
        self.assertLess(step, 40)
        self.assertTrue((self.dir / f"moved/checkpoints/step-{step:08d}.h5").exists())
        self.run_trainer(config, "--resume", ranks=2)
        np.testing.assert_allclose(self.losses("moved"), self.losses("whole"), rtol=1e-3, atol=1e-4)

    def test_from_device_to_device(self):
        self.run_trainer(self.config("cpu", steps=30), "device=cpu", "train.ema=0.9")
        config = self.config("both", steps=30)
        for steps, device in ((10, "cpu"), (20, "cuda"), (30, "cpu")):
            out = self.run_trainer(config, "--resume", f"device={device}", "train.ema=0.9", f"train.steps={steps}",
                               "train.schedule=constant")
            self.assertEqual(self.records("both", "start")[-1]["device"], device)
        self.run_trainer(self.config("cpu", steps=30), "device=cpu", "train.ema=0.9", "train.schedule=constant", "--force")
        np.testing.assert_allclose(self.losses("both"), self.losses("cpu"), **FP32)
        a, b = self.arrays(self.dir / "both/model.h5"), self.arrays(self.dir / "cpu/model.h5")
        self.assertEqual(set(a), set(b))
        for n in a:
            if n.startswith("model/params"):
                np.testing.assert_allclose(a[n], b[n], rtol=1e-2, atol=2e-3, err_msg=n)

    def test_killed_peer(self):
        """The others do not wait for a rank that is gone."""
        process = self.start(self.config(steps=10**6, every=1), ranks=3)
        self.wait_for_step("run", 5, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGKILL)
        begin = time.monotonic()
        out, _ = process.communicate(timeout=30)
        self.assertLess(time.monotonic() - begin, 25, out)
        self.assertNotEqual(process.returncode, 0, out)
        self.assertNotIn("fakegpu:", out)

    # ---- Which GPU, how much of it ----

    def said_once(self, out, text):
        self.assertEqual(len(re.findall("error: ", out)), 1, out)
        self.assertRegex(out, text)

    def test_more_ranks_than_gpus(self):
        config = self.config(steps=4)
        out = self.run_trainer(config, env=dict(FAKEGPU_DEVICES=1), status=2)
        self.said_once(out, "has 1 visible GPU for 2 ranks")
        self.run_trainer(config, env=dict(FAKEGPU_DEVICES=1), ranks=1)
        out = self.run_trainer(config, "--force", env=dict(CUDA_VISIBLE_DEVICES="5"), status=2)
        self.said_once(out, "has 1 visible GPU for 2 ranks")
        self.run_trainer(config, "--force", env=dict(CUDA_VISIBLE_DEVICES="5,2"))
        out = self.run_trainer(config, "--force", env=dict(CUDA_VISIBLE_DEVICES=""), status=1)
        self.said_once(out, "CUDA_VISIBLE_DEVICES")
        out = self.run_trainer(config, "--force", "device=auto", env=dict(FAKEGPU_DEVICES=1))
        self.assertEqual(len(re.findall("device: auto takes the CPU", out)), 1, out)
        self.assertEqual(self.records(event="start")[-1]["device"], "cpu")
        out = self.run_trainer(config, "--force", "device=auto")
        self.assertEqual(self.records(event="start")[-1]["device"], "cuda")

    def test_out_of_memory(self):
        text = harness.CNN.replace("out: 8", "out: 64")
        out = self.run_trainer(self.config(text=text, samples=103, batch=64, steps=4), env=dict(FAKEGPU_MEMORY=3 * 10**6),
                           status=1)
        self.said_once(out, r"device memory .*cudaErrorMemoryAllocation.*lower train.micro_batch.*train.recompute")

    def test_no_driver(self):
        """The program with the real libraries, where no GPU can be had."""
        if pathlib.Path("/proc/driver/nvidia/version").exists():
            self.skipTest("there is a driver")
        if "device: cuda is not in this program" in self.launch(self.config(steps=4), program=TRAINER)[1]:
            self.skipTest("the trainer is built without CUDA")
        env = dict(LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH", ""))
        out = self.run_trainer(self.config(steps=4), "--force", program=TRAINER, env=env, status=1)
        self.said_once(out, "CUDA driver version is insufficient for CUDA runtime version")
        out = self.run_trainer(self.config(steps=4), "--force", "device=auto", program=TRAINER, env=env)
        self.assertEqual(len(re.findall("device: auto takes the CPU", out)), 1, out)
        self.assertIn("there is no NVIDIA driver here", out)
        self.assertEqual(self.records(event="start")[-1]["device"], "cpu")


if __name__ == "__main__":
    main()
