"""What a terminal sees of a run, and what becomes of one where nobody looks."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

from harness import ENV, TRAINER, Case, main


class Terminal(Case):
    """What is shown, and where nobody looks."""

    def through_pty(self, ranks, columns, **environment):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(self.command(self.config(steps=60), "--force", ranks=ranks), cwd=self.dir,
                                   env={**ENV, "TERM": "xterm", **environment}, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        self.assertEqual(process.wait(timeout=60), 0, shown)
        return shown.decode()

    def test_progress_line(self):
        for ranks, columns, environment in ((0, 50, {}), (2, 160, {}), (0, 160, {"NO_COLOR": "1"}), (0, 80, {"TERM": "dumb"})):
            shown = self.through_pty(ranks, columns, **environment)
            if "TERM" in environment:
                self.assertNotIn("\033", shown)
                self.assertIn("step 60/60 (100 %)", shown)
                continue
            self.assertEqual("\033[32m" in shown, columns == 160 and not environment)
            drawn = re.findall(r"\r([^\r\n]*?step \d+/60[^\r\n]*?)\033\[K", re.sub(r"\033\[\d+m", "", shown))
            self.assertGreaterEqual(len(drawn), 1, shown)
            self.assertIn("step 60/60  loss ", drawn[-1])
            for line in drawn:
                self.assertLess(len(line), columns)
            if columns == 160:
                for word in ("[################] 100 %", "epoch 9/9", "accuracy ", " samples/s", "eval "):
                    self.assertIn(word, drawn[-1])
            # a log line never ends up behind a progress line
            for line in shown.replace("\r\n", "\n").split("\n"):
                if "trainer: " in line:
                    before = line[: line.index("trainer: ")]
                    self.assertTrue(before == "" or before.endswith("\r\033[K"), repr(line))

    def test_quiet(self):
        out = self.run_trainer(self.config(steps=10), "--quiet")
        self.assertNotIn("trainer:", out)  # Open MPI may have something to say about the machine
        self.assertNotIn("step", out)
        self.assertEqual(len(self.losses()), 10)

    def test_controls_are_shown(self):
        """Names and paths from outside cannot drive the terminal: what they hold is shown."""
        evil, shown = "n\u00efce\x1b]0;owned\x07\u009b2J", "n\u00efce\\x1b]0;owned\\x07\\x9b2J"
        config = self.config("run", steps=2)
        moved = self.dir / f"{evil}.yaml"
        moved.write_text(config.read_text())
        named = self.dir / "named.yaml"
        named.write_text(config.read_text().replace("name: head", f"name: {json.dumps('head' + evil)}"))
        outs = [self.run_trainer(moved, f"output={json.dumps('run' + evil)}", ranks=2), self.tool("inspect", self.dir / f"run{evil}/model.h5"),
                self.tool("check", self.dir / f"no{evil}", status=2),
                self.tool("inspect", self.dir / f"no{evil}", status=1),
                self.tool("plan", moved, f"data.train.path={json.dumps(evil + '.h5')}"),
                self.run_trainer(moved, f"data.train.path={json.dumps(evil + '.h5')}", ranks=2, status=1),
                self.run_trainer(moved, f"train.{evil}=1", ranks=2, status=2),
                self.tool("check", named, status=2),
                self.tool("check", moved, f"output={json.dumps(evil)}"),
                self.tool("inspect", "--json", self.dir / f"run{evil}/model.h5")]
        for k, out in enumerate(outs):
            self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out), f"{k}: {out!r}")
            if k < 8:  # YAML and JSON have escapes of their own
                self.assertIn(shown, out)
        json.loads(outs[-1])

    def test_nobody_listens(self):
        """Standard output and error closed under it: training goes on to its end."""
        for ranks in (0, 2):
            config = self.config(f"n{ranks}", steps=60)
            # mpirun itself does not survive this: what is closed is the pipe of each rank below it
            launcher = self.command(config, ranks=ranks)
            at = launcher.index(str(TRAINER))
            launcher[at:at] = ["bash", "-c", 'set -o pipefail; "$0" "$@" 2>&1 | true']
            done = subprocess.run(launcher, cwd=self.dir, env=ENV, timeout=60)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(len(self.losses(f"n{ranks}")), 60)
            self.assertEqual(self.records(f"n{ranks}", "end")[-1]["reason"], "done")
            self.tool("inspect", self.dir / f"n{ranks}/model.h5")

    def test_no_descriptors(self):
        """Not even open: nothing of ours may land in a file that got descriptor 1 or 2."""
        config = self.config(steps=10)
        done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *self.command(config, ranks=0)],
                              cwd=self.dir, env=ENV, timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(self.losses()), 10)
        for line in (self.dir / "run/metrics.jsonl").read_text().splitlines():
            json.loads(line)
        self.tool("inspect", self.dir / "run/model.h5")
        config = (self.dir / "run/config.yaml").read_text()
        self.assertNotIn("trainer:", config)


if __name__ == "__main__":
    main()
