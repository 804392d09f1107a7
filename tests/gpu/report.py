"""What the parts of tests/gpu/run share: verdicts as they fall, time that is left, processes that cannot outlive it,
and the pieces of Markdown."""
import os
import signal
import subprocess
import sys
import time


class Out(Exception):
    """There is no time left for this."""


class Report:
    def __init__(self, seconds, patience=1):
        self.patience = patience  # times every limit of a part or a process: slow machines without a GPU
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.part_end = self.deadline
        self.part = ""
        self.rows = []  # (part, name, verdict, note)
        self.markdown = []
        self.spare = 0  # seconds that earlier parts left of their shares
        self.done = []  # parts that ran to their end
        self.before = {}  # (part, name): note, of what passed in an earlier call, of parts that did not

    def go_on(self, rows, done, markdown):
        """With what an earlier call found: whole parts as they are, of others what passed."""
        self.done, self.markdown = list(done), list(markdown)
        self.rows = [tuple(r) for r in rows if r[0] in done]
        self.before = {(r[0], r[1]): r[3] for r in rows if r[0] not in done and r[2] == "PASS"}

    def passed_before(self, name):
        """Says again that this item passed in an earlier call; False: it did not."""
        if (self.part, name) not in self.before:
            return False
        self.say("PASS", name, self.before[self.part, name])
        return True

    def left(self):
        return min(self.part_end, self.deadline) - time.monotonic()

    def say(self, verdict, name, note=""):
        self.rows.append((self.part, name, verdict, note))
        print(f"{verdict:7} {self.part}: {name}{': ' if note else ''}{note}", flush=True)

    def check(self, good, name, note=""):
        self.say("PASS" if good else "FAIL", name, note)
        return good

    def skip(self, name, reason):
        self.say("SKIPPED", name, reason)

    def table(self, title, head, rows):
        """A table of the results file, printed too."""
        text = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        text += ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]
        self.markdown += text + [""]
        print("\n".join(text[2:]), flush=True)

    def run_part(self, name, seconds, work):
        """Runs work(); whatever goes wrong in it is a FAIL of this part alone."""
        began, share = time.monotonic(), (seconds + self.spare) * self.patience
        self.part, self.part_end = name, began + share
        if self.deadline - began < 5:
            self.skip("all", "no time left")
            return
        try:
            work()
        except Out as e:
            self.skip("the rest", str(e) or "no time left")
        except subprocess.TimeoutExpired as e:
            if self.deadline - time.monotonic() < 2:
                self.skip("the rest", "no time left")
            else:
                self.say("FAIL", "time", f"{' '.join(map(str, e.cmd[:8]))} ran longer than {e.timeout:.0f} s")
        except Exception as e:  # pylint: disable=broad-except
            self.say("FAIL", "this part", f"{type(e).__name__}: {e}")
        took = time.monotonic() - began
        self.spare = max(0, share - took) / self.patience
        if not self.not_shown([name], passed=False):
            self.done.append(name)
        print(f"        {name}: {took:.0f} s of {share:.0f}", flush=True)

    def failed(self):
        return [r for r in self.rows if r[2] == "FAIL"]

    def not_shown(self, parts, passed=True):
        """Of these parts, those in which nothing passed (where that is asked) or for which time ran out."""
        passed = {r[0] for r in self.rows if r[2] == "PASS"} if passed else set(parts)
        short = {r[0] for r in self.rows if r[2] == "SKIPPED" and (r[1] in ("all", "the rest") or r[3] == "no time left")}
        return [part for part in parts if part not in passed or part in short]

    def summary(self):
        parts = list(dict.fromkeys(r[0] for r in self.rows))
        rows = []
        for part in parts:
            count = {v: sum(r[0] == part and r[2] == v for r in self.rows) for v in ("PASS", "FAIL", "SKIPPED")}
            first = next((f"{r[1]}: {r[3]}" for r in self.rows if r[0] == part and r[2] == "FAIL"), "")
            if not first and count["SKIPPED"]:
                first = next(f"{r[1]}: {r[3]}" for r in self.rows if r[0] == part and r[2] == "SKIPPED")
            rows.append((part, count["PASS"], count["FAIL"], count["SKIPPED"], first.replace("|", "/")[:160]))
        return rows


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Done:
    def __init__(self, rc, text, seconds):
        self.rc, self.text, self.seconds = rc, text, seconds

    def end(self, lines=3):
        """Our own error, else the last lines that say something, as one."""
        own = [line.strip() for line in self.text.splitlines() if line.startswith("trainer: error")]
        if own:
            return own[0][:400]
        said = [line.strip() for line in self.text.splitlines() if line.strip() and not line.startswith("-----")]
        return " / ".join(said[-lines:])[-400:]


def run(command, env=None, cwd=None, seconds=60.0):
    """To its end, both outputs in one. After `seconds` its whole process group is killed: TimeoutExpired, with what it said."""
    if seconds < 1:
        raise Out()
    began = time.monotonic()
    with subprocess.Popen([str(c) for c in command], env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            text, _ = process.communicate(timeout=seconds)
        except BaseException as e:
            kill_group(process)
            said, _ = process.communicate()
            if isinstance(e, subprocess.TimeoutExpired):
                e.output = said
            raise
    return Done(process.returncode, text, time.monotonic() - began)


def die(text, status=2):
    print(f"tests/gpu/run: {text}", file=sys.stderr)
    sys.exit(status)
