"""The parts of tests/gpu/run that look at the device and the kernels: facts, tests, sanitizer, bandwidth."""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import time

import measure
from report import run

LIBRARIES = ("libcublasLt", "libcudnn", "libnccl")
# Tests that run beside each other; each has a context of its own on the GPU, and waits for it most of its time.
AT_ONCE = max(4, min(12, (os.cpu_count() or 4) * 3 // 4))
# Under racecheck and synccheck: tests that launch every kernel whose threads share memory (check_sharing.py sees to it).
SHARING = ("test_rows", "test_losses", "test_loops", "test_batchnorm_kernels", "test_batchnorm_grad_kernels",
           "test_batchnorm_ranks_kernels", "test_optimizer", "test_decision", "test_squares", "test_op_pool2d", "test_op_conv2d",
           "test_op_linear", "test_op_golden_ops", "test_op_embedding", "test_op_groupnorm", "test_op_add", "test_op_activation",
           "test_op_rounding", "test_op_loss", "test_int8", "test_op_attention",
           "test_op_attention_held")
# Kernels of CUDA's libraries, which make their own arrangements: racecheck and synccheck look at ours.
OTHERS = ("cudnn", "cublas", "nccl", "nvjet", "cutlass", "xmma", "gemm", "gemv", "splitK", "sm80_", "sm90_", "cub")
# Not under memcheck: they make calls fail on purpose, or have no kernels of ours, or make no calls.
NO_MEMCHECK = ("test_faults", "test_registry", "test_monitor", "test_nccl")


def devices(programs):
    """How many GPUs the programs may use, as they count them (CUDA_VISIBLE_DEVICES), and what they say of it."""
    try:
        done = run([programs.bench, "devices"], env=programs.env, seconds=60)
    except subprocess.TimeoutExpired:
        return 0, "asking for them takes more than a minute"
    found = re.search(r'"devices":(\d+)', done.text)
    return (int(found[1]) if found else 0), done.end()


def facts(report, programs, state):
    """The devices, their driver, the libraries that our programs find."""
    report.check(state.devices > 0, "GPUs that can be used", str(state.devices or state.why))
    smi = shutil.which("nvidia-smi")
    if smi:
        query = "name,driver_version,memory.total,pcie.link.gen.max,power.limit"
        done = run([smi, f"--query-gpu={query}", "--format=csv,noheader"], seconds=20)
        report.check(done.rc == 0, "nvidia-smi", done.end())
        lines = [x for x in done.text.splitlines() if x.strip()]
        if done.rc == 0 and lines:
            of = f"{state.devices} of the machine's {len(lines)}: " if len(lines) > 1 else ""
            state.facts["device"] = of + "; ".join(dict.fromkeys(lines))
    else:
        report.skip("nvidia-smi", "not installed")
    program = programs.trainer if programs.standin else programs.trainer.with_name("libtrireme_cuda.so")
    loader = programs.env.get("TRIREME_LOADER")  # of a bundle: not always the one that the machine's ldd asks
    done = run([loader, "--list", program] if loader else ["ldd", program], env=programs.env, seconds=20)
    found, missing = {}, []
    for line in done.text.splitlines():
        m = re.match(r"\s*(\S+) => (.+?)(?: \(0x\w+\))?$", line)
        if m and m[2] == "not found":
            missing.append(m[1])
        elif m and m[1].split(".")[0] in LIBRARIES:
            found[m[1]] = os.path.basename(os.path.realpath(m[2]))
    report.check(not missing, "libraries", f"not found: {', '.join(missing)}" if missing else
                 ", ".join(found.values()) or "the stand-in's")
    out = programs.scratch / "first"
    done = run([*programs.launch(1), programs.trainer, programs.source / "configs/digits.yaml", f"output={out}",
                "device=cuda", "train.steps=1"], env=programs.env, cwd=programs.scratch, seconds=report.left())
    if not report.check(done.rc == 0, "one step on the GPU", "" if done.rc == 0 else done.end()):
        state.devices = 0 if missing else state.devices
    start = (out / "metrics.jsonl").read_text().splitlines()[0] if (out / "metrics.jsonl").exists() else "{}"
    state.facts["backend"] = json.loads(start).get("backend", "")
    state.facts["libraries"] = ", ".join(found.values())
    state.facts["loader"] = loader or ""
    state.facts["build"] = programs.version


def test_one(programs, path, seconds, prefix=(), ranks=1):
    """(verdict, note, what it said) of one test program, whose ranks all count; one that only skips has not passed."""
    try:
        done = run([*prefix, path], env=programs.env, cwd=programs.scratch, seconds=seconds)
    except subprocess.TimeoutExpired as e:
        return "time", f"longer than {seconds:.0f} s", e.output
    if done.rc == 0:
        passed, skipped = (sum(map(int, re.findall(rf"\[ +{word} +\] (\d+) test", done.text))) // ranks
                           for word in ("PASSED", "SKIPPED"))
        why = re.search(r"^skipped: (.+)", done.text, re.MULTILINE)
        note = f"{passed} tests" + (f", {skipped} skipped" if skipped else "") + f", {done.seconds:.1f} s"
        note += f": {why[1]}" if why and not passed else ""
        return "PASS" if passed else "SKIPPED" if skipped else "FAIL", note, done.text
    failed = [x.strip() for x in done.text.splitlines() if "[  FAILED  ]" in x or "error:" in x.lower()]
    return "FAIL", f"status {done.rc}: " + (" / ".join(failed[:3]) or done.end())[:300], done.text


def run_tests(report, programs, state, names, prefix=(), ranks=1, at_once=AT_ONCE, seconds=150):
    """Test programs, {path: name}, beside each other, each with so many seconds at most."""
    if not names:
        report.check(False, "test programs", "none found")

    def one(path):
        return test_one(programs, path, min(seconds * report.patience, max(1, report.left())), prefix, ranks)

    names = {path: name for path, name in names.items() if not report.passed_before(name)}
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        jobs = {pool.submit(one, path): name for path, name in names.items()}
        for job in concurrent.futures.as_completed(jobs):
            name, (verdict, note, text) = jobs[job], job.result()
            if verdict == "time" and report.deadline - time.monotonic() < 2:
                report.skip(name, "no time left")
            else:
                report.say("FAIL" if verdict == "time" else verdict, name, note)
            if verdict in ("FAIL", "time"):
                state.keep(f"{name}.log", text)


def tests(report, programs, state):
    """Every kernel, gradient, golden and backend test, against the real libraries."""
    run_tests(report, programs, state, {path: programs.name(path) for path in programs.tests})


def device_name():
    """The machine's GPUs in words, where nvidia-smi says."""
    smi = shutil.which("nvidia-smi")
    try:
        return run([smi, "-L"], seconds=20).text.strip() if smi else ""
    except subprocess.TimeoutExpired:
        return ""


def races(report, programs, state):
    """compute-sanitizer: races and barriers where threads share."""
    sanitize(report, programs, state, (("racecheck", SHARING), ("synccheck", SHARING)))


def sanitizer(report, programs, state):
    """compute-sanitizer: memory everywhere."""
    sanitize(report, programs, state, (("memcheck", None),))


def sanitize(report, programs, state, checks):
    tool = shutil.which("compute-sanitizer") or next(
        (p for p in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(p)), None)
    if not tool or programs.standin:
        report.skip("compute-sanitizer", "the stand-in checks by itself" if programs.standin else "not installed")
        return
    work = []
    for check, wanted in checks:
        for p in programs.tests:
            name = programs.name(p)
            if (name in wanted if wanted else name not in NO_MEMCHECK) and not report.passed_before(f"{check} {name}"):
                work.append((check, p))
    skip = [x for other in OTHERS for x in ("--kernel-name-exclude", f"kernel_substring={other}")]

    def one(item):  # what does not fit into the time is said to be left out
        check, p = item
        left = report.left()
        if left < 2:
            return "left", "no time left", ""
        return test_one(programs, p, min(left, 60), [tool, "--tool", check, "--error-exitcode", "86", "--report-api-errors",
                                                     "no", "--print-limit", "5", *(skip if check != "memcheck" else ())])

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for (check, p), (verdict, note, text) in zip(work, pool.map(one, work)):
            name = f"{check} {programs.name(p)}"
            if verdict in ("time", "left"):
                report.skip(name, note)
            elif verdict == "FAIL" and ("not supported" in text or "Unable to" in text):
                report.skip(name, "compute-sanitizer does not work on this machine: " + note)
            else:
                report.say(verdict, name, note)
                if verdict == "FAIL":
                    state.keep(f"{check}-{programs.name(p)}.log", text)


def bandwidth(report, programs, state):
    """Our kernels beside the device's copy."""
    done = run([programs.bench, *(["4000"] if programs.standin else [])], env=programs.env, seconds=report.left())
    rows = [json.loads(x) for x in done.text.splitlines() if x.startswith("{")]
    if not report.check(done.rc == 0 and rows, "bench_cuda_kernels", done.end(1) if done.rc else
                        f"copy {rows[0]['gb_per_s']} GB/s"):
        return
    for r in rows:
        note = f"{r['gb_per_s']} GB/s, {100 * r['of_copy']:.0f} % of the copy's rate"
        if not r["goal"]:
            continue
        if programs.standin:
            report.skip(r["kernel"], "the stand-in has no speed")
        else:
            report.check(r["of_copy"] >= r["goal"], r["kernel"], f"{note}; goal {100 * r['goal']:.0f} %")
    report.table("Kernels beside the device's copy", ("kernel", "MB", "us", "GB/s", "of the copy", "goal"),
                 [(r["kernel"], f"{r['bytes'] / 1e6:.0f}", r["us"], r["gb_per_s"], r["of_copy"], r["goal"] or "")
                  for r in rows])
    peak, of = measure.device_peak(state.facts.get("device", ""), []) or (0, "")
    report.table(f"Kernels beside the device's products in 16 bits ({peak / 1e12:.0f} TFLOP/s by {of})" if peak else
                 "Kernels that are bound by products", ("kernel", "us", "TFLOP/s", "of the peak"),
                 [(r["kernel"], r["us"], r["tflop_per_s"], f"{100e12 * r['tflop_per_s'] / peak:.0f} %" if peak else "")
                  for r in rows if r["tflop_per_s"]])
    state.numbers["kernels"] = rows
