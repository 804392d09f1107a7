"""The part of tests/gpu/run that runs the tests of tests/mpi: reducers, steps, late ranks, checkpoints and whole models
over several GPUs, and a rank that dies. With one GPU: what one rank can show."""
import subprocess

from kernels import AT_ONCE, run_tests
from report import run

STANDIN = ("overflow", "reducer")  # what is tried there; the rest is in its suite
MOST = 4  # ranks, as many as the suite gives these tests on the stand-in
DEATH_SECONDS = 25  # for the job from its start, contexts and communicators included, to its end


def dies(report, programs, state, reducer, count):
    """A rank is killed in the middle of a recorded step: the others say so and end."""
    limit = DEATH_SECONDS * report.patience
    try:
        done = run([programs.source / "tests/mpi/dead_peer.sh", "mpirun", reducer, "nccl mpi", count, limit],
                   env=programs.env, cwd=programs.scratch, seconds=min(4 * (limit + 18), report.left()))
    except subprocess.TimeoutExpired as e:
        report.say("FAIL", "a rank dies", f"longer than {e.timeout:.0f} s")
        state.keep("dies.log", e.output)
        return
    verdicts = [line for line in done.text.splitlines() if line.startswith(f"{count} ranks, ")]
    if not report.check(done.rc == 0 and len(verdicts) == 4, "a rank dies",
                        "; ".join(x for x in verdicts if not x.endswith(": ok")) or f"{len(verdicts)} times"):
        state.keep("dies.log", done.text)


def ranks(report, programs, state):
    """With more than one program at a time they must not all be bound to the same few cores."""
    most = max(1, min(state.devices, MOST))
    names = {path: f"{path.name.split('_', 3 if programs.standin else 2)[-1]}, ranks: {most}"
             for path in programs.mpi_tests}
    if most < 2:
        report.skip("several ranks", "fewer than two GPUs: NCCL and MPI between GPUs, its order, recorded sums, aborts and "
                    "time limits are not shown here")
    report.skip("calls that fail", "the real libraries cannot be told to, NCCL's asynchronous errors included")
    if programs.standin:
        for path in [p for p, name in names.items() if not name.startswith(STANDIN)]:
            report.skip(names.pop(path), "in its suite, by as many ranks")
    run_tests(report, programs, state, names, [*programs.launch(most), "--bind-to", "none"], most,
              1 if programs.standin else AT_ONCE, 120)
    reducer = next((p for p in names if p.name.endswith("reducer")), None)
    if most > 1 and reducer:
        dies(report, programs, state, reducer, most)
