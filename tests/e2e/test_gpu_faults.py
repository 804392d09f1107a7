"""Every call of CUDA, cuBLASLt, cuDNN and NCCL that training makes fails once: the first, one in the middle, the last.
The job ends on all ranks with status 1, says once which call it was and what the library said about it, and leaves
whole files only. What may fail without harm is in SURVIVABLE, with the reason, and then the losses are those of an
undisturbed run; so are they where an algorithm fails that is being tried at set-up, and another one is taken."""
import collections
import concurrent.futures
import re

import numpy as np

from gpu import GpuCase
from harness import long, main

TINY = """
name: tiny
seed: 3
output: {out}
data:
  train: {{format: synthetic, samples: 20}}
  eval: {{format: synthetic, samples: 6}}
  workers: 1
model:
  input: [2, 6, 6]
  layers:
    - conv2d: {{out: 8, kernel: 3, padding: 1, bias: false}}
    - batchnorm
    - relu
    - maxpool2d: {{kernel: 2}}
    - global_avgpool
    - flatten
    - linear: {{out: 4, name: head}}
  loss: cross_entropy
train:
  steps: 8
  batch: 8
  log_every: 1
  clip_norm: 1.0
  optimizer: {{adamw: {{lr: 0.005}}}}
  checkpoint: {{every_steps: 4, keep: 3}}
  eval: {{every_steps: 4}}
run: {{timeout: 5}}
"""
# The library's own name for the error.
TEXT = r"\b(cudaError[A-Z]\w+|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|nccl\w+(Error|Usage|Argument))\b"
LIMIT = 120  # seconds: a run that hangs. Not how soon one ends, which is the machine's affair
OVER = "what it gives back is no longer needed, and nothing is read from the device any more"
PLAIN = "all ranks do without registered memory"
RECORDED = "steps then run as they come"
ORDER = "what is not known to keep two communicators in order has one"
SURVIVABLE = {
    "cublasLtDestroy": OVER,
    "cublasLtMatmulAlgoConfigGetAttribute": "into how many parts an algorithm cuts a sum is taken for not known",
    "cublasLtMatmulDescDestroy": OVER,
    "cublasLtMatmulPreferenceDestroy": OVER,
    "cublasLtMatrixLayoutDestroy": OVER,
    "cudaEventDestroy": OVER,
    "cudaFree": OVER,
    "cudaFreeHost": OVER,
    "cudaGraphDestroy": OVER,
    "cudaGraphExecDestroy": OVER,
    "cudaStreamDestroy": OVER,
    "cudnnBackendDestroyDescriptor": OVER,
    "cudnnDestroy": OVER,
    "ncclCommDestroy": OVER,
    "ncclCommFinalize": OVER,
    "cudaGraphInstantiate": RECORDED,
    "cudaStreamBeginCapture": RECORDED,
    "cudaStreamEndCapture": RECORDED,
    "cudaDriverGetVersion": ORDER,
    "cudaGetDriverEntryPointByVersion": "GPUs are told apart by their places; only instances of one need more",
    "ncclCommDeregister": OVER,
    "ncclCommRegister": PLAIN,
    "ncclMemAlloc": PLAIN,
    "ncclMemFree": OVER,
    "cudaMemGetInfo": "memory in use is only reported",
    "cudaRuntimeGetVersion": ORDER,
}
# Of these only the last; earlier ones must not fail unseen.
SURVIVABLE_LAST = {"cudaSetDevice": OVER, "cudaStreamSynchronize": OVER,
                   "cudaDeviceGetPCIBusId": "by then it looks for the card's counters, which are only reported"}
# What is said where a call failed while algorithms were tried.
TRIED = re.compile(r"another one is taken: .*\w|no device memory to try \w+")
# Which ones are looked at, where not the first, the middle and the last: how often they are made depends on time,
# or the middle one is before the freeing already (memory that algorithms were tried in: at set-up).
WHICH = {
    "ncclCommGetAsyncError": (1, 30),
    "cudaEventQuery": (1, 20),
    "cudaStreamSynchronize": (1, 10, None),
}


def errors(out):
    return [line for line in out.splitlines() if "error: " in line]


class Faults(GpuCase):
    def tiny(self, name, *arguments, **env):
        path = self.dir / f"{name}.yaml"
        path.write_text(TINY.format(out=self.dir / name))
        return self.launch(path, *arguments, env=env, timeout=LIMIT)

    def calls(self, *arguments):
        """By name, what each of two ranks makes in a run without faults."""
        code, out = self.tiny("clean", *arguments, FAKEGPU_COUNT=self.dir / "count")
        self.assertEqual(code, 0, out)
        found = collections.defaultdict(lambda: [0, 0])
        for rank in (0, 1):
            for line in (self.dir / f"count.{rank}").read_text().splitlines():
                name, count = line.split()
                found[name][rank] = int(count)
        self.assertGreater(len(found), 40, "the stand-in counted too little")
        return found

    def plan(self, calls):
        """(call, which, rank): the first, the middle and the last of each, where ranks make as many; each once."""
        seen = set()
        for number, (name, counts) in enumerate(sorted(calls.items())):
            most = max(counts)
            which = WHICH.get(name) or sorted({1, (most + 1) // 2}) + ([None] if most > 2 else [])
            for k, n in enumerate(which):  # None: the last one
                rank = (number + k) % 2
                if counts[rank] < (n or 1):
                    rank = 1 - rank
                n = n or counts[rank]
                if (name, n, rank) not in seen:
                    yield name, n, rank, n == counts[rank]
                seen.add((name, n, rank))

    def judge(self, fault, losses, *arguments):
        """What is wrong with how this ended, or None."""
        name, n, rank, last = fault
        folder = f"{name}-{n}-{rank}"
        code, out = self.tiny(folder, *arguments, FAKEGPU_FAIL=f"{name}:{n}@{rank}")
        if "fakegpu:" in out or code == 99:
            return f"broke a rule of the stand-in:\n{out}"
        if code == 0 and (name in SURVIVABLE or last and name in SURVIVABLE_LAST or TRIED.search(out)):
            if not np.allclose(self.losses(folder), losses, rtol=1e-5):
                return f"other losses: {self.losses(folder)}, undisturbed {losses}"
            return None
        if code != 1:
            return f"status {code}:\n{out}"
        said = r"launch of \w+" if name == "cudaLaunchKernel" else rf"\b{name}\b"
        if not re.search(rf"error: (?=.*{said})(?=.*{TEXT})", out):
            return f"does not say which call it was and why:\n{out}"
        if len(errors(out)) != 1:
            return f"{len(errors(out))} errors instead of one:\n{out}"
        for path in (self.dir / folder).rglob("*.h5"):
            self.tool("inspect", path)
        return None

    def sweep(self, *arguments, only=None):
        calls = self.calls(*arguments)
        losses = self.losses("clean")
        faults = [f for f in self.plan(calls) if only is None or re.search(only, f[0])]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            verdicts = list(pool.map(lambda f: self.judge(f, losses, *arguments), faults))
        wrong = {f: v for f, v in zip(faults, verdicts) if v}
        self.assertFalse(wrong, "\n".join(f"==== {f}: {v}" for f, v in wrong.items()))

    @long
    def test_every_call(self):
        self.sweep()

    def test_staged_through_the_host(self):
        self.sweep("run.collectives=mpi", only="^cuda(Memcpy|Event(Record|Query)|StreamWait)")

    def test_timed_candidates(self):
        self.sweep("run.benchmark=true", "run.deterministic=off",
                   only="^cudaEvent(Elapsed|Synch)|^cublasLtMatmul$|^cudnnBackendExecute")

    def test_broken_algorithms(self):
        """One that fails is passed over at set-up, which each rank says once; where none is left, or the context is lost
        over it, one rank says so, and whose op it was for."""
        self.assertEqual(self.tiny("whole")[0], 0)
        code, out = self.tiny("others", FAKEGPU_BROKEN="cudnn:1,cublaslt:21,cublaslt:6")
        self.assertEqual(code, 0, out)
        for name, text in (("cuDNN engine 1", "CUDNN_STATUS_EXECUTION_FAILED"),
                           ("cuBLASLt algorithm 6", "CUBLAS_STATUS_EXECUTION_FAILED")):
            self.assertEqual(len(re.findall(f"{name} does not run here.*{text}", out)), 2, out)
        np.testing.assert_allclose(self.losses("others"), self.losses("whole"), rtol=1e-5)
        for broken, op, said in (
                ("cudnn:*", "conv2d", "cuDNN has nothing for .*CUDNN_STATUS_EXECUTION_FAILED"),
                ("cublaslt:*", "linear", "cuBLASLt has no algorithm .*CUBLAS_STATUS_EXECUTION_FAILED"),
                ("cudnn:1!@1", "conv2d", "cuDNN engine 1, tried: .*cudaErrorIllegalAddress"),
                ("cublaslt:11!,cublaslt:21!,cublaslt:6!", "linear", "cuBLASLt algorithm .*cudaErrorIllegalAddress")):
            code, out = self.tiny("none", FAKEGPU_BROKEN=broken)
            self.assertEqual(code, 1, out)
            self.assertNotIn("fakegpu:", out)
            self.assertEqual(len(errors(out)), 1, out)
            self.assertRegex(errors(out)[0], rf"layer \w+: op {op}: .*{said}")

    def test_asynchronous_error_of_nccl(self):
        for group, rank in ((1, 0), (4, 1), (9, 0)):
            code, out = self.tiny(f"async{group}", FAKENCCL_ASYNC_ERROR=f"{group}@{rank}")
            self.assertEqual(code, 1, out)
            self.assertNotIn("fakegpu:", out)
            self.assertIn("remote process exited", out)
            self.assertEqual(len(errors(out)), 1, out)

    def test_recording_refused(self):
        """One rank's device refuses to begin a recording, or what was recorded, at the first section or a later one: all go on
        without, one says why, and the losses are the same bits."""
        self.tiny("clean", FAKEGPU_COUNT=self.dir / "count")
        self.assertIn("cudaGraphLaunch", (self.dir / "count.0").read_text())
        for arguments in ((), ("train.micro_batch=2", "train.sync_batchnorm=none")):
            want = f"want{len(arguments)}"
            self.assertEqual(self.tiny(want, *arguments)[0], 0)
            for fault in ("cudaStreamEndCapture:2@0", "cudaGraphInstantiate:1@1", "cudaGraphInstantiate:1",
                          "cudaStreamBeginCapture:1@1", "cudaStreamBeginCapture:2@0", "cudaStreamBeginCapture:1"):
                name = fault.replace(":", "-") + want
                code, out = self.tiny(name, *arguments, FAKEGPU_FAIL=fault, FAKEGPU_COUNT=self.dir / name)
                self.assertEqual(code, 0, out)
                self.assertNotIn("fakegpu:", out)
                self.assertEqual(out.count("run.cuda_graph: auto does without recorded steps"), 1, out)
                self.assertRegex(out, fault.split(":")[0])
                self.assertEqual(self.losses(name), self.losses(want), fault)
                launched = [int(line.split()[1]) for rank in (0, 1)
                            for line in (self.dir / f"{name}.{rank}").read_text().splitlines()
                            if line.startswith("cudaGraphLaunch ")]
                self.assertEqual(len(launched), 2 if ":2" in fault else 0, fault)
                self.assertEqual(len(set(launched)), len(launched) // 2, "all ranks replay, or none")

    def test_fault_on_every_rank(self):
        for fault in ("cudaGraphLaunch:3", "cudaLaunchKernel:60", "cudaStreamCreateWithPriority:1", "ncclGroupEnd:5"):
            name = fault.split(":")[0]
            code, out = self.tiny(f"all-{name}", FAKEGPU_FAIL=fault)
            self.assertEqual(code, 1, out)
            self.assertNotIn("fakegpu:", out)
            self.assertEqual(len(errors(out)), 1, out)
            self.assertRegex(errors(out)[0], TEXT)

    def test_spoiled_context(self):
        """After such an error the runtime answers every later call with it: the first one is what is said."""
        for fault in ("cudaGraphLaunch:2@1", "cudaLaunchKernel:40@0", "cudaMemcpyAsync:30@1"):
            name = fault.split(":")[0]
            code, out = self.tiny(f"sticky-{name}", FAKEGPU_FAIL=fault, FAKEGPU_STICKY=1)
            self.assertEqual(code, 1, out)
            self.assertNotIn("fakegpu:", out)
            said = "launch of" if name == "cudaLaunchKernel" else name
            self.assertRegex(errors(out)[0], said)
            self.assertEqual(len(errors(out)), 1, out)

    def test_only_told(self):
        """What only names an algorithm, or an instance of a GPU, costs no run where it fails."""
        counts, losses = self.calls(), self.losses("clean")
        name = "cublasLtMatmulAlgoConfigGetAttribute"
        for call, n in ((name, counts[name][1]), ("cudaGetDriverEntryPointByVersion", 1)):
            code, out = self.tiny(call, FAKEGPU_FAIL=f"{call}:{n}@1")
            self.assertEqual(code, 0, out)
            self.assertEqual(self.losses(call), losses)
            self.assertEqual("cannot be told apart: cudaGetDriver" in out, call != name, out)

    def test_nothing_to_count_with(self):
        """Without NVML, or where one of its calls fails, training is the same."""
        self.tiny("clean")
        for call in ("nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetMemoryInfo",
                     "nvmlDeviceGetUtilizationRates"):
            code, out = self.tiny(call, FAKENVML_FAIL=call)
            self.assertEqual(code, 0, out)
            self.assertEqual(self.losses(call), self.losses("clean"))
        code, out = self.tiny("none", LD_LIBRARY_PATH="")
        self.assertEqual(code, 0, out)
        self.assertEqual(self.losses("none"), self.losses("clean"))

    def test_restoring(self):
        """A checkpoint's arrays that do not get to one rank's device: told by that rank, with the call and its reason,
        though peers wait for the next array."""
        code, out = self.tiny("run", "train.steps=4")
        self.assertEqual(code, 0, out)
        self.tiny("run", "train.steps=4", "--resume", FAKEGPU_COUNT=self.dir / "count")
        counts = dict(line.split() for line in (self.dir / "count.1").read_text().splitlines())
        for n in range(1, int(counts["cudaMemcpyAsync"]) + 1, 3):
            code, out = self.tiny("run", "train.steps=4", "--resume", FAKEGPU_FAIL=f"cudaMemcpyAsync:{n}@1")
            self.assertEqual(code, 1, f"{n}: {out}")
            self.assertEqual(len(errors(out)), 1, f"{n}: {out}")
            self.assertRegex(errors(out)[0], f"cudaMemcpyAsync.*{TEXT}", f"{n}: {out}")
        code, out = self.tiny("run", "train.steps=4", "--resume")
        self.assertEqual(code, 0, out)

    def test_resumed_after_a_fault(self):
        """What a failed run left is a run that goes on, and ends as the undisturbed one."""
        self.tiny("clean")
        for fault in ("cudaGraphLaunch:4@1", "ncclAllReduce:9@0", "cudnnBackendExecute:12@1", "cudaMemcpyAsync:60@0"):
            name = "after-" + fault.split(":")[0]
            code, out = self.tiny(name, FAKEGPU_FAIL=fault)
            self.assertEqual(code, 1, out)
            self.assertEqual(len(errors(out)), 1, out)
            code, out = self.tiny(name, "--resume")
            self.assertEqual(code, 0, out)
            self.assertEqual([r["step"] for r in self.records(name)], list(range(1, 9)))
            self.assertEqual(self.losses(name), self.losses("clean"))
            self.assert_same_model(self.dir / name / "model.h5", self.dir / "clean/model.h5")


if __name__ == "__main__":
    main()
