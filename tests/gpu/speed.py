"""The parts of tests/gpu/run that time ResNet-50: beside PyTorch, and how long the GPU is idle."""
import json
import statistics
import subprocess
import sys

from report import run
from training import events, finite

GOAL_IDLE = 0.03


def ours(report, programs, name, *overrides, env=None, steps=60):
    """Median step of the second half of a run in milliseconds, and its end record; None with a FAIL."""
    out = programs.scratch / name
    small = ["train.batch=2", "model.input=[3, 32, 32]", "data.train.samples=8"] if programs.standin else []
    steps = 2 if programs.standin else steps
    done = run([*programs.launch(1), programs.trainer, programs.source / "configs/bench/resnet50.yaml",
                f"output={out}", "--quiet", "device=cuda", f"train.steps={steps}",
                f"train.log_every={1 if programs.standin else 5}", *small, *overrides],
               env=env or programs.env, cwd=programs.scratch, seconds=min(120 * report.patience, report.left()))
    steps = events(out, "step")
    if done.rc != 0 or len(steps) < 2:
        report.say("FAIL", name, f"status {done.rc}: {done.end()}")
        return None
    end = events(out, "end")[-1]
    return {"ms": statistics.median(r["step_ms"] for r in steps[len(steps) // 2:]),
            "wait": statistics.median(r["data_wait_ms"] for r in steps[len(steps) // 2:]),
            "first_s": end.get("first_step_s"), "loss": end.get("final_loss")}


def peer(report, programs, mode):
    done = run([sys.executable, programs.source / "tests/bench/peer_gpu.py", "--mode", mode], seconds=min(
        200, report.left()))
    lines = [x for x in done.text.splitlines() if x.startswith("{")]
    if done.rc != 0 or not lines:
        report.say("FAIL", f"PyTorch {mode}", f"status {done.rc}: {done.end()}")
        return None
    return json.loads(lines[-1])


FAST = ("run.benchmark=true", "run.deterministic=off")


def throughput(report, programs, state):
    """ResNet-50, 224x224, bf16, batch 256, in alternation with PyTorch eager and compiled."""
    try:
        torch = run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)"],
                    seconds=60)
        reason = "" if torch.rc == 0 else "no torch with a GPU in this Python"
    except subprocess.TimeoutExpired:
        reason = "importing torch takes more than a minute"
    if programs.standin:
        reason = "the stand-in has no speed"
    mine, default, peers = [], None, {"eager": [], "compile": []}
    for turn in range(1 if reason else 2):
        result = ours(report, programs, f"resnet50-{turn}", *FAST)
        if result:
            mine.append(result)
        for mode in () if reason else peers:
            if report.left() < 30:
                report.skip(f"PyTorch {mode}, round {turn + 1}", "no time left")
                continue
            try:
                one = peer(report, programs, mode)
            except subprocess.TimeoutExpired:
                report.skip(f"PyTorch {mode}, round {turn + 1}", "took too long")
                continue
            if one:
                peers[mode].append(one)
    if report.left() > 30 and not programs.standin:
        default = ours(report, programs, "resnet50-deterministic", "run.deterministic=on")
    if not mine:
        return
    ms = statistics.median(r["ms"] for r in mine)
    batch = 2 if programs.standin else 256
    rows = [("Trireme, benchmark", f"{ms:.2f}", f"{1e3 * batch / ms:.0f}", "", f"{mine[0]['first_s']:.1f}")]
    if default:
        rows.append(("Trireme, deterministic", f"{default['ms']:.2f}", f"{1e3 * batch / default['ms']:.0f}",
                     "", f"{default['first_s']:.1f}"))
    report.check(all(finite(r["loss"]) for r in mine), "ResNet-50 trains",
                 f"{ms:.2f} ms a step, waits for data {mine[0]['wait']:.2f} ms")
    for mode, results in peers.items():
        if not results:
            if reason:
                report.skip(f"PyTorch {mode}", reason)
            continue
        theirs = statistics.median(r["step_ms"] for r in results)
        rows.append((f"PyTorch {results[0]['torch']} {mode}", f"{theirs:.2f}", f"{1e3 * batch / theirs:.0f}",
                     f"{theirs / ms:.3f}", f"{results[0]['first_step_s']:.1f}"))
        report.check(theirs >= ms, f"at or above PyTorch {mode}", f"{theirs / ms:.3f} of its throughput")
    report.table("ResNet-50, 224x224, bf16, batch 256", ("who", "ms a step", "samples/s", "Trireme's over theirs",
                                                         "first step s"), rows)
    state.numbers["resnet50"] = rows


def idle(report, programs, state):
    """The share of a step in which no kernel runs, steps recorded, as CUPTI notes it."""
    if programs.standin or not programs.busy:
        report.skip("idle share", "the stand-in has no speed" if programs.standin else "built without CUPTI")
        return
    path = programs.scratch / "busy.json"
    env = dict(programs.env, CUDA_INJECTION64_PATH=str(programs.busy), TRIREME_BUSY=str(path))
    rows = []
    for name, overrides in (("recorded", ()), ("not recorded", ("run.cuda_graph=off",))):
        path.unlink(missing_ok=True)
        result = ours(report, programs, f"idle-{name.replace(' ', '-')}", *overrides, env=env, steps=40)
        if not result:
            continue
        if not path.exists():
            report.skip(f"idle share, {name}", "CUPTI notes nothing on this machine")
            continue
        r = json.loads(path.read_text())
        rows.append((name, r["kernels"], f"{100 * (1 - r['kernel_share']):.2f} %",
                     f"{100 * (1 - r['device_share']):.2f} %", r["dropped"]))
        if name == "recorded":
            report.check(1 - r["kernel_share"] < GOAL_IDLE and r["dropped"] == 0 and r["kernels"] > 1000, "idle share",
                         f"{100 * (1 - r['kernel_share']):.2f} % of {r['window_s']:.2f} s without a kernel; "
                         f"goal under {100 * GOAL_IDLE:.0f} %")
    if rows:
        report.table("ResNet-50: how long the GPU is idle", ("steps", "kernels", "no kernel runs", "nothing runs",
                                                             "records lost"), rows)
