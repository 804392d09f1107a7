"""The parts of tests/gpu/run that train: beside the CPU path, with and without recorded steps, in every precision,
killed and resumed, over several GPUs.

Tolerances, on the loss of a step, relative. fp32: sums of another order; rounding of 2^-24 grows with the steps, by
more where Adam divides by what is nearly zero, so that the first steps are held tightly and the mean of all loosely.
bf16 rounds activations to 2^-9, fp16 to 2^-12, some ten times on the way.
"""
import json
import os
import pathlib
import signal
import subprocess
import time

from report import kill_group, run

FIRST = 5
TOLERANCE = {  # of each of the first steps, of the mean of all
    ("digits", "fp32"): (1e-4, 1e-2), ("digits", "bf16"): (1e-2, 5e-2), ("digits", "fp16"): (5e-3, 5e-2),
    ("resnet20", "fp32"): (5e-3, 2e-2), ("resnet20", "bf16"): (3e-2, 6e-2), ("resnet20", "fp16"): (2e-2, 6e-2),
    ("gpt", "fp32"): (1e-3, 1e-3), ("gpt", "bf16"): (5e-3, 5e-3), ("gpt", "fp16"): (5e-3, 5e-3)}
# As many tokens as fill no vector, so that rows of logits stand apart (docs/passes.md: align_rows).
ODD = ("model.layers.0.embedding.num=251", "model.layers.4.linear.out=251")
SMALL = ("train.batch=2", "model.input=[16]", "model.layers.0.embedding.dim=32", "model.layers.2.transformer.layers=1",
         "model.layers.2.transformer.heads=2")
# A dynamic loss scale begins so high that it skips steps, which would put the losses a step apart.
CALM = "train.loss_scale_init=256"


def command(programs, config, out, ranks, *overrides):
    return [*programs.launch(ranks), programs.trainer, programs.source / "configs" / config, f"output={out}",
            "--quiet", "train.log_every=1", "run.deterministic=on", *overrides]


def events(out, kind):
    path = pathlib.Path(out) / "metrics.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by a kill
            pass
    return [r for r in found if r["event"] == kind]


def finite(loss):
    """Records have null for what is not."""
    return isinstance(loss, (int, float))


def train(report, programs, name, config, *overrides, ranks=1, seconds=60):
    """The losses by step, or None with a FAIL."""
    out = programs.scratch / name
    done = run(command(programs, config, out, ranks, *overrides), env=programs.env, cwd=programs.scratch,
               seconds=min(seconds * report.patience, report.left()))
    steps = events(out, "step")
    if done.rc != 0 or not steps:
        report.say("FAIL", name, f"status {done.rc}: {done.end()}")
        return None
    losses = [r["loss"] for r in steps]
    if not all(map(finite, losses)):
        report.say("FAIL", name, f"the loss of step {1 + [*map(finite, losses)].index(False)} is not finite")
        return None
    return losses


def same_state(programs, a, b):
    """'' where both hold the same arrays, else which do not; times and names do not count."""
    done = run([programs.trainer, "inspect", programs.scratch / a / "model.h5", programs.scratch / b / "model.h5"],
               env=programs.env, seconds=120)
    lines = [x.strip() for x in done.text.splitlines()]
    if not any(x.endswith("identical") and x.startswith("/model/params") for x in lines):
        return "cannot be compared: " + done.end()
    return ", ".join(x for x in lines if x.startswith(("/model", "/optimizer")) and not x.endswith("identical"))


def close(report, name, mine, other, tolerance):
    first, mean = tolerance
    off = max(abs(a - b) / max(1e-3, abs(b)) for a, b in zip(mine[:FIRST], other[:FIRST]))
    means = abs(sum(mine) / len(mine) - sum(other) / len(other)) / (sum(other) / len(other))
    report.check(len(mine) == len(other) and off <= first and means <= mean, name,
                 f"first {FIRST} losses off by {off:.1e} (at most {first:g}), mean of {len(mine)} by {means:.1e} "
                 f"(at most {mean:g})")
    return off, means


def training(report, programs, state):
    """Digits, ResNet-20 and a GPT on the GPU beside the CPU path; recorded or not: the same bits."""
    rows = []
    models = (("digits", "digits.yaml", 24 if programs.standin else 96, ()),
              ("resnet20", "bench/resnet20.yaml", 3 if programs.standin else 20,
               ("train.batch=16",) if programs.standin else ()),
              ("gpt", "bench/gpt.yaml", 3 if programs.standin else 20, (*ODD, *(SMALL if programs.standin else ()))))
    for model, config, steps, more in models:
        settings = [f"train.steps={steps}", *more]
        cpu = train(report, programs, f"{model}-cpu", config, "device=cpu", *settings, seconds=90)
        gpu = {}
        for precision in ("fp32", "bf16", "fp16"):
            gpu[precision] = train(report, programs, f"{model}-{precision}", config, "device=cuda",
                                   f"train.precision={precision}", CALM, *settings)
            if cpu and gpu[precision]:
                off = close(report, f"{model} {precision} beside the CPU's fp32", gpu[precision], cpu,
                            TOLERANCE[model, precision])
                rows.append((model, precision, steps, f"{off[0]:.1e}", f"{off[1]:.1e}"))
        fast = train(report, programs, f"{model}-fast", config, "device=cuda", "train.precision=bf16", "run.deterministic=off",
                     "run.benchmark=true", *settings)
        if cpu and fast:
            off = close(report, f"{model} bf16, not deterministic, beside the CPU's fp32", fast, cpu, TOLERANCE[model, "bf16"])
            rows.append((model, "bf16, fast", steps, f"{off[0]:.1e}", f"{off[1]:.1e}"))
        for name, override in (("graph off", "run.cuda_graph=off"), ("again", "run.cuda_graph=auto")):
            if gpu["fp32"]:
                other = f"{model}-{name.replace(' ', '-')}"
                losses = train(report, programs, other, config, "device=cuda", override, CALM, *settings)
                if losses:
                    differs = same_state(programs, f"{model}-fp32", other)
                    report.check(losses == gpu["fp32"] and not differs, f"{model}, {name}: the same bits", differs)
    report.table("Losses beside the CPU's fp32, relative", ("model", "precision", "steps", "worst of the first 5",
                                                            "mean of all"), rows)
    state.numbers["training"] = rows


def ranks_of(programs, parent):
    """PIDs of the trainer's ranks below a launcher. What a rank starts, to look at a file, is none."""
    found, todo = [], [parent]
    while todo:
        pid = todo.pop()
        try:
            if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(programs.trainer):
                found.append(pid)
            else:
                todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            pass
    return found


def killed(report, programs, name, config, settings, ranks=1):
    """Starts a run and kills all its ranks once it has a checkpoint: True where that was on the way."""
    out = programs.scratch / name
    order = command(programs, config, out, ranks, *settings)
    with subprocess.Popen([str(c) for c in order], env=programs.env, cwd=programs.scratch, start_new_session=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end, found = time.monotonic() + min(60 * report.patience, report.left()), []
        try:
            while process.poll() is None and not found and time.monotonic() < end:
                if events(out, "checkpoint_written"):
                    found = ranks_of(programs, process.pid)
                time.sleep(0.005)
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            process.wait(timeout=30 * report.patience)
        finally:
            kill_group(process)
    reached, steps = len(events(out, "step")), next(int(x[12:]) for x in settings if x.startswith("train.steps="))
    return report.check(bool(found) and reached < steps, f"{name} on the way", f"after step {reached} of {steps}")


def same_run(report, programs, name, losses, other, want):
    """The same losses, by bits, and the same arrays as the run `other`."""
    if losses:
        differs = same_state(programs, other, name)
        step = next((1 + k for k, (a, b) in enumerate(zip(losses, want)) if a != b), 0)
        report.check(losses == want and not differs, f"{name}: the same bits",
                     f"the loss of step {step} differs" if step else differs)


def resume(report, programs, _state):
    """Killed without warning after a checkpoint, and resumed: the same bits as the run that went through."""
    steps = 40 if programs.standin else 3000
    settings = ("device=cuda", f"train.steps={steps}", f"train.checkpoint.every_steps={steps // 8}",
                "train.eval.every_epochs=1000")
    whole = train(report, programs, "whole", "digits.yaml", *settings, seconds=90)
    if whole and killed(report, programs, "killed", "digits.yaml", settings):
        losses = train(report, programs, "killed", "digits.yaml", *settings, "--resume", seconds=90)
        same_run(report, programs, "killed", losses, "whole", whole)


def wide(programs):
    """A config whose all-reduces are of many MB: six products of 1024 x 1024, in buckets of two."""
    width = 128 if programs.standin else 1024
    path = programs.scratch / "wide.yaml"
    path.write_text(f"""name: wide
seed: 3
data: {{train: {{format: synthetic, samples: 4096, classes: 10}}}}
model:
  input: [{width}]
  layers:
""" + f"    - linear: {{out: {width}}}\n    - relu\n" * 6 + f"""    - linear: {{out: 10}}
  loss: cross_entropy
train:
  batch: 256
  clip_norm: 1.0
  optimizer: {{sgd: {{lr: 0.01, momentum: 0.9}}}}
  checkpoint: {{keep: 1}}
run: {{bucket_mb: {8.5 * width * width / 2**20:g}}}
""")
    return path


def repeated(report, programs, ranks):
    """Large sums over NCCL, which can make them in ways that give other bits each time (not of two terms: they have one
    order): trained twice, and killed and resumed, the same bits."""
    steps = 64 if programs.standin else 3000
    settings = ("device=cuda", "run.collectives=nccl", f"train.steps={steps}",
                f"train.checkpoint.every_steps={steps // 8}")
    config = wide(programs)
    first = train(report, programs, f"wide{ranks}", config, *settings, ranks=ranks)
    if not first:
        return
    again = train(report, programs, f"wide{ranks}-again", config, *settings, ranks=ranks)
    same_run(report, programs, f"wide{ranks}-again", again, f"wide{ranks}", first)
    name = f"wide{ranks}-killed"
    if killed(report, programs, name, config, settings, ranks):
        losses = train(report, programs, name, config, *settings, "--resume", ranks=ranks)
        same_run(report, programs, name, losses, f"wide{ranks}", first)


def several(report, programs, state):
    """The same global batch over several GPUs, through NCCL and through the host; NCCL's sums are always the same."""
    most = min(state.devices, 8)
    if most < 2:
        report.skip("several GPUs", "one GPU: nothing that goes between ranks is shown here, by NCCL or by MPI")
        return
    settings = ("device=cuda", f"train.steps={8 if programs.standin else 48}")
    alone = train(report, programs, "one", "digits.yaml", *settings)
    for ranks in sorted({2, most}):
        for collectives in ("nccl", "mpi"):
            losses = train(report, programs, f"ranks{ranks}-{collectives}", "digits.yaml", *settings,
                           f"run.collectives={collectives}", ranks=ranks)
            if alone and losses:
                close(report, f"{ranks} GPUs, {collectives}", losses, alone, TOLERANCE["digits", "fp32"])
    repeated(report, programs, most)
