"""The parts of tests/gpu/run that time ResNet-50, GPT-2 and an LSTM: beside PyTorch, in 8 bits, how long the GPU is idle, what takes the
time of a step; and the all-reduce of gradients between GPUs."""
import collections
import json
import shutil
import statistics
import subprocess
import sys

import measure
from report import run
from training import events, finite

GOAL_IDLE = 0.03
# Pairs are for a GPU and for the stand-in. items: what a sample counts as; goal: at or above PyTorch; large: another batch that is timed
# without a peer; scores: 12 L H Q T of PaLM's formula (Speed), 0: it is not for such a network; modes: of PyTorch.
Network = collections.namedtuple("Network", "title key batch steps settings item items goal large scores modes",
                                 defaults=(("eager", "compile"),))
RESNET50 = Network("ResNet-50, 224x224", "resnet50", (256, 2), 60, ((), ("model.input=[3, 32, 32]", "data.train.samples=8")),
                   "samples", (1, 1), True, None, 0)
GPT2 = Network("GPT-2 124M, 1024 tokens", "gpt2", (16, 2), 40, (
    ("train.precision=bf16", "run.memory_limit=none", "data.train.samples=128", "data.workers=2"),
    ("train.precision=bf16", "run.memory_limit=none", "data.train.samples=8", "model.input=[16]", "model.layers.0.embedding.num=300",
     "model.layers.0.embedding.dim=64", "model.layers.2.transformer.layers=1", "model.layers.2.transformer.heads=2",
     "model.layers.4.linear.out=300")), "tokens", (1024, 16), False, 32, 12 * 12 * 768 * 1024)
# PyTorch compiles none, and hands one of bfloat16 to cuDNN from its version 9.13 on.
LSTM = Network("LSTM, 2 x 256, 64 steps", "lstm", (256, 2), 100, (
    ("train.precision=bf16", "data.train.samples=4096", "data.workers=2"),
    ("train.precision=bf16", "data.train.samples=8", "model.input=[5, 8]", "model.layers.0.lstm.hidden=16")),
    "samples", (1, 1), False, 1024, 0, ("eager",))
FAST = ("run.benchmark=true", "run.deterministic=off")


def config(programs, network):
    """The network's config as it is timed here."""
    return [programs.source / f"configs/bench/{network.key}.yaml", "device=cuda", f"train.batch={network.batch[programs.standin]}",
            *network.settings[programs.standin]]


def ours(report, programs, network, name, *overrides, env=None, steps=None):
    """Median step of the second half of a run in milliseconds, and its end record; None with a FAIL."""
    out = programs.scratch / name
    steps = 2 if programs.standin else steps or network.steps
    done = run([*programs.launch(1), programs.trainer, *config(programs, network), f"output={out}", "--quiet", f"train.steps={steps}",
                f"train.log_every={1 if programs.standin else 5}", *overrides],
               env=env or programs.env, cwd=programs.scratch, seconds=min(120 * report.patience, report.left()))
    steps = events(out, "step")
    if done.rc != 0 or len(steps) < 2:
        report.say("FAIL", name, f"status {done.rc}: {done.end()}")
        return None
    end = events(out, "end")[-1]
    return {"ms": statistics.median(r["step_ms"] for r in steps[len(steps) // 2:]),
            "wait": statistics.median(r["data_wait_ms"] for r in steps[len(steps) // 2:]),
            "first_s": end.get("first_step_s"), "loss": end.get("final_loss"), "device": events(out, "start")[0]["backend"]}


def no_peer(programs):
    """Why PyTorch cannot be asked; '' where it can."""
    if programs.standin:
        return "the stand-in has no speed"
    try:
        torch = run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)"],
                    seconds=60)
    except subprocess.TimeoutExpired:
        return "importing torch takes more than a minute"
    return "" if torch.rc == 0 else "no torch with a GPU in this Python"


def peer(report, programs, network, mode, turn):
    """One run of PyTorch's; None where it took too long or failed, which is said. Compiling takes a minute or two: the second
    time, with its cache, less."""
    if report.left() < 30:
        report.skip(f"PyTorch {mode}, round {turn + 1}", "no time left")
        return None
    try:
        done = run([sys.executable, programs.source / "tests/bench/peer_gpu.py", "--model", network.key, "--mode", mode],
                   seconds=min(200, report.left()))
    except subprocess.TimeoutExpired:
        report.skip(f"PyTorch {mode}, round {turn + 1}", "took too long")
        return None
    lines = [x for x in done.text.splitlines() if x.startswith("{")]
    if done.rc != 0 or not lines:
        report.say("FAIL", f"PyTorch {mode}", f"status {done.rc}: {done.end()}")
        return None
    return json.loads(lines[-1])


def model_flops(report, programs, network):
    """Of a step, for MFU (model flops utilization): three times the plan's forward pass, as a backward pass is two products for
    each of a forward pass. What is computed twice (scores within the attention's gradient, recomputed segments) does not
    count, nor do the pairs that a causal mask hides. With the parameters; two None with a FAIL."""
    done = run([programs.trainer, "plan", *config(programs, network), "--json"], env=programs.env, cwd=programs.scratch,
               seconds=min(60 * report.patience, report.left()))
    if not report.check(done.rc == 0 and "{" in done.text, f"flop of a step of {network.key}", "" if done.rc == 0 else done.end()):
        return None, None
    plan = json.JSONDecoder().raw_decode(done.text[done.text.index("{"):])[0]
    return 3 * plan["flop_per_sample"]["forward"] * plan["batch"], plan["parameters"]


def throughput(report, programs, state, network=RESNET50, timed=()):
    """A network in bf16, in alternation with PyTorch eager and compiled. timed: ops that were, for a device of unknown peak."""
    reason, (flops, parameters) = no_peer(programs), model_flops(report, programs, network)
    mine, default, large, peers = [], None, None, {mode: [] for mode in network.modes}
    try:
        for turn in range(1 if reason else 2):
            result = ours(report, programs, network, f"{network.key}-{turn}", *FAST)
            if result:
                mine.append(result)
            for mode in () if reason else peers:
                one = peer(report, programs, network, mode, turn)
                if one:
                    peers[mode].append(one)
        if report.left() > 30 and not programs.standin:
            default = ours(report, programs, network, f"{network.key}-deterministic", "run.deterministic=on")
        if report.left() > 30 and not programs.standin and network.large:
            large = ours(report, programs, network, f"{network.key}-large", *FAST, f"train.batch={network.large}")
    finally:  # what was seen is told, also where time ran out
        if mine:
            peak = None if programs.standin else measure.device_peak(mine[0]["device"], timed)
            compare(report, state, Speed(network, programs.standin, flops, parameters, peak), mine, (default, large), peers, reason)


class Speed:
    """What the times of a network's steps are worth; the stand-in has no MFU. MFU twice: by the plan, and as PaLM's authors define it
    (Chowdhery et al. 2022, appendix B), 6 N + 12 L H Q T flop a token, in which a causal mask hides nothing."""

    def __init__(self, network, standin, flops, parameters, peak):
        self.network, self.batch, self.items, self.flops = network, network.batch[standin], network.items[standin], flops
        self.palm = (6 * parameters + network.scores) * self.items if flops and network.scores else None  # a sample
        self.peak, self.of = peak or (None, "")

    def mfu(self, ms, flops):
        return f"{100 * flops / (ms * 1e-3) / self.peak:.1f} %" if flops and self.peak else ""

    def row(self, who, ms, ratio, first, batch=None):
        batch = batch or self.batch
        plan, palm = self.mfu(ms, (self.flops or 0) * batch / self.batch), self.mfu(ms, (self.palm or 0) * batch)
        return who, f"{ms:.2f}", f"{1e3 * batch * self.items / ms:.0f}", plan, palm, ratio, f"{first:.1f}"

    def title(self):
        mfu = (f"; MFU: {self.flops / 1e12:.2f} TFLOP a step, 3 times the plan's forward pass, at {self.peak / 1e12:.0f} TFLOP/s by "
               f"{self.of}") if self.flops and self.peak else ""
        return f"{self.network.title}, bf16, batch {self.batch}{mfu}"


def compare(report, state, speed, mine, others, peers, reason):
    """Verdicts and table of what throughput() saw; others: deterministic and of a large batch, where they ran."""
    default, large = others
    network, ms = speed.network, statistics.median(r["ms"] for r in mine)
    rows = [speed.row("Trireme, benchmark", ms, "", mine[0]["first_s"])]
    if default:
        rows.append(speed.row("Trireme, deterministic", default["ms"], "", default["first_s"]))
    if large:
        rows.append(speed.row(f"Trireme, batch {network.large}", large["ms"], "", large["first_s"], network.large))
    report.check(all(finite(r["loss"]) for r in mine), f"{network.title.split(',')[0]} trains",
                 f"{ms:.2f} ms a step, waits for data {mine[0]['wait']:.2f} ms")
    for mode, results in peers.items():
        if not results:
            if reason:
                report.skip(f"PyTorch {mode}", reason)
            continue
        theirs = statistics.median(r["step_ms"] for r in results)
        rows.append(speed.row(f"PyTorch {results[0]['torch']} {mode}", theirs, f"{theirs / ms:.3f}", results[0]["first_step_s"]))
        report.check(theirs >= ms or not network.goal, f"{'at or above' if network.goal else 'beside'} PyTorch {mode}",
                     f"{theirs / ms:.3f} of its throughput")
    report.table(speed.title(), ("who", "ms a step", f"{network.item}/s", "MFU", "MFU as PaLM's", "Trireme's over theirs",
                                 "first step s"), rows)
    state.numbers[network.key] = rows


def gpt2(report, programs, state):
    """GPT-2 124M: which ops take its time, how much of it attention, and its steps beside PyTorch's. No goal but numbers."""
    rows = longest(report, programs, "GPT-2", *config(programs, GPT2), *FAST, f"train.steps={2 if programs.standin else 20}")
    if rows:
        part = measure.share(rows, "attention")
        report.check(0 < part < 1, "attention's share", f"{100 * part:.0f} % of the time of all ops")
        state.numbers["gpt2 ops"] = rows
    throughput(report, programs, state, GPT2, rows or ())


def lstm(report, programs, state):
    """Our LSTM, products by cuBLASLt and a kernel of our own for each row's gates, beside cuDNN's, which PyTorch takes. No goal but
    numbers."""
    rows = longest(report, programs, "LSTM", *config(programs, LSTM), *FAST, f"train.steps={2 if programs.standin else 20}", least=10)
    throughput(report, programs, state, LSTM, rows or ())


def int8(report, programs, state):
    """Inference in 8 bits beside the same network folded and not rounded, by batch; the bits are the tests' (test_int8)."""
    rows = []
    for name, batches, steps in (("digits", "[2]", ()),) if programs.standin else (
            ("bench/resnet20", "[1, 256]", ()), ("bench/resnet50", "[1, 64]", ("train.batch=32",))):
        out = programs.scratch / f"int8-{name.replace('/', '-')}"
        data = () if programs.standin else ("data.eval={format: synthetic, samples: 32}", *steps)
        stages = (f"pipeline=[train, fold, {{quantize: {{layers: all, samples: 32}}}}, {{benchmark: {{batches: {batches}, "
                  "seconds: 0.5, models: [stages/01-fold.h5]}}]")
        done = run([*programs.launch(1), programs.trainer, programs.source / f"configs/{name}.yaml", f"output={out}", "--quiet",
                    "device=cuda", "train.steps=1", "train.optimizer={sgd: {lr: 0.000001}}", *data, stages],
                   env=programs.env, cwd=programs.scratch, seconds=min(120 * report.patience, report.left()))
        path = out / "stages/03-benchmark.json"
        if not report.check(done.rc == 0 and path.exists(), f"8 bits, {name}", "" if done.rc == 0 else done.end()):
            continue
        calls = json.loads(path.read_text())["calls"]
        of = {(r["model"] == "this", r["batch"]): r["median_ms"] for r in calls}
        rows += [(name, batch, f"{of[False, batch]:.3f}", f"{ms:.3f}", f"{of[False, batch] / ms:.2f}")
                 for (this, batch), ms in sorted(of.items()) if this]
    if rows:
        report.table("Inference in 8 bits", ("network", "batch", "float ms", "8 bits ms", "times as fast"), rows)
    state.numbers["int8"] = rows


def idle(report, programs, state):
    """The share of a step in which no kernel runs, steps recorded, as CUPTI notes it."""
    if programs.standin or not programs.busy:
        report.skip("idle share", "the stand-in has no speed" if programs.standin else "built without CUPTI")
        return
    path = programs.scratch / "busy.json"
    env = dict(programs.env, CUDA_INJECTION64_PATH=str(programs.busy), TRIREME_BUSY=str(path))
    rows, longest = [], []
    for name, overrides in (("recorded", ()), ("not recorded", ("run.cuda_graph=off",))):
        path.unlink(missing_ok=True)
        result = ours(report, programs, RESNET50, f"idle-{name.replace(' ', '-')}", *overrides, env=env, steps=40)
        if not result:
            continue
        if not path.exists():
            report.skip(f"idle share, {name}", "CUPTI notes nothing on this machine")
            continue
        r = json.loads(path.read_text())
        rows.append((name, r["kernels"], f"{100 * (1 - r['kernel_share']):.2f} %",
                     f"{100 * (1 - r['device_share']):.2f} %", r["dropped"]))
        if name == "recorded":
            longest = by_name(r)
            report.check(1 - r["kernel_share"] < GOAL_IDLE and r["dropped"] == 0 and r["kernels"] > 1000, "idle share",
                         f"{100 * (1 - r['kernel_share']):.2f} % of {r['window_s']:.2f} s without a kernel; "
                         f"goal under {100 * GOAL_IDLE:.0f} %")
    if rows:
        report.table("ResNet-50: how long the GPU is idle", ("steps", "kernels", "no kernel runs", "nothing runs",
                                                             "records lost"), rows)
    if longest:
        report.table(f"ResNet-50: the {measure.LONGEST} longest kernels, by CUPTI", ("kernel", "calls", "us each", "share"), longest)


def plain(names):
    """Mangled names as the source has them, without arguments; as they are where there is no c++filt."""
    if names and shutil.which("c++filt"):
        done = run(["c++filt", "-p", *names], seconds=20)
        if done.rc == 0 and len(done.text.splitlines()) == len(names):
            return [x.replace("(anonymous namespace)::", "")[:120] for x in done.text.splitlines()]
    return names


def by_name(busy):
    """Table rows of what busy.c noted."""
    found = busy.get("longest", [])[:measure.LONGEST]
    total = busy["kernel_share"] * busy["window_s"] * 1e6 or 1
    return [(name, r["calls"], f"{r['us'] / max(1, r['calls']):.1f}", f"{100 * r['us'] / total:.1f} %")
            for name, r in zip(plain([r["name"] for r in found]), found)]


def bench(report, programs, *arguments, ranks=0):
    """What bench_gpu says, as rows; None with a FAIL."""
    launch = [*programs.launch(ranks), "--bind-to", "none"] if ranks else []
    done = run([*launch, programs.bench_gpu, *arguments], env=programs.env, cwd=programs.scratch,
               seconds=min(120 * report.patience, report.left()))
    rows = measure.parse(done.text)
    if done.rc != 0 or not rows:
        report.say("FAIL", f"bench_gpu {arguments[0]}", f"status {done.rc}: {done.end()}")
        return None
    return rows


def longest(report, programs, name, *settings, least=20):
    """The ops of a step of a config, timed on the device, as rows; the longest are shown, at least so many. None with a FAIL."""
    rows = bench(report, programs, "ops", *settings, "run.cuda_graph=off")
    if rows:
        table = measure.longest(rows)
        timed = sum(r["us"] or 0 for r in rows) / 1e3
        report.check(len(table) >= min(least, measure.LONGEST) and timed > 0, "longest kernels",
                     f"{timed:.2f} ms in {sum(r['us'] is not None for r in rows)} ops")
        report.table(f"{name}: the {measure.LONGEST} longest, by events between ops, steps not recorded",
                     ("kernel", "result", "calls", "us a step", "share", "bound us", "by", "bound/time"), table)
    return rows


def step(report, programs, state):
    """What a step of ResNet-50 moves and computes, the kernels that take its time, engines and algorithms that were chosen,
    and how much of the wall clock the device had work."""
    name, fast = "ResNet-20" if programs.standin else "ResNet-50", ["device=cuda", *FAST]
    small = ["train.batch=2", "train.steps=2"] if programs.standin else []
    path = programs.source / f"configs/bench/{name.lower().replace('-', '')}.yaml"
    rows = bench(report, programs, "plan", path, *fast)
    if rows:
        table = measure.traffic(rows)
        report.check(float(table[-1][3]) > 0, "bytes of a step", f"{table[-1][3]} GB, {table[-1][4]} GFLOP by the plan")
        report.table(f"{name}: what a step moves at least", measure.TRAFFIC, table)
        state.numbers["traffic"] = table
    rows = longest(report, programs, name, path, *fast, *small)
    if rows:
        chosen = measure.choices(rows)
        report.check(all("chosen on the device" not in r[2] for r in chosen), "engines and algorithms",
                     f"{len({r[2] for r in chosen})} for {sum(r[3] for r in chosen)} convolutions and products")
        report.table(f"{name}: engines and algorithms", ("op", "result", "what", "layers", "first"), chosen)
        state.numbers["ops"] = rows
    rows = bench(report, programs, "step", path, *fast, *small)
    if rows:
        r = rows[-1]
        nvml = "says nothing" if r["nvml_utilization"] is None else f"saw kernels in {r['nvml_utilization']:.0f} % of its samples"
        note = (f"{100 * r['idle_share']:.2f} % of {r['wall_ms']:.2f} ms a step: the wall clock less the time from a step's "
                f"begin to its end by the device's clock; gaps between its kernels do not show. NVML {nvml}")
        if programs.standin:
            report.check(0 <= r["idle_share"] <= 1 and r["device_ms"] > 0, "idle share without CUPTI", note)
        else:
            report.check(r["idle_share"] < GOAL_IDLE, "idle share without CUPTI", f"{note}; goal under {100 * GOAL_IDLE:.0f} %")
        state.numbers["step"] = r


def allreduce(report, programs, state):
    """Bus bandwidth of the reducer of gradients, by size."""
    most = min(state.devices, 8)
    if most < 2:
        report.skip("all-reduce", "one GPU: there is nobody to add up with")
        return
    table = []
    for ranks in sorted({2, most}):
        rows = bench(report, programs, "allreduce", *(["0.1", "1"] if programs.standin else []), ranks=ranks)
        for r in rows or []:
            table.append((r["way"], r["ranks"], f"{r['bytes'] / 1e6:.1f}", f"{r['ms']:.3f}", f"{r['bus_gb_per_s']:.1f}"))
        if rows:
            best = max(r["bus_gb_per_s"] for r in rows)
            report.check(best > 0, f"all-reduce, {ranks} GPUs", f"up to {best:.3g} GB/s on the bus, {rows[0]['reducer']}")
    if table:
        report.table("Gradients between GPUs: bus bandwidth, 2 (n - 1) / n * bytes / time",
                     ("way", "GPUs", "MB", "ms", "GB/s"), table)
    state.numbers["allreduce"] = table
