"""What a terminal sees of a run, and what becomes of one where nobody looks."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import zlib

import h5py
import numpy as np

from harness import ENV, TRAINER, Case, main


def png(pixels):
    """A grey image's file."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


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
                self.tool("demo", "images", evil, status=2), self.tool("new", "-o", f"{evil}.yaml", status=2),
                self.tool("plan", moved, f"data.train.path={json.dumps(evil + '.h5')}"),
                self.run_trainer(moved, f"data.train.path={json.dumps(evil + '.h5')}", ranks=2, status=1),
                self.run_trainer(moved, f"train.{evil}=1", ranks=2, status=2),
                self.tool("check", named, status=2),
                self.tool("check", moved, f"output={json.dumps(evil)}"),
                self.tool("inspect", "--json", self.dir / f"run{evil}/model.h5")]
        for k, out in enumerate(outs):
            self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out), f"{k}: {out!r}")
            if k < 10 and k != 5:  # YAML and JSON have escapes of their own
                self.assertIn(shown, out)
        json.loads(outs[-1])

    def test_controls_in_files_are_shown(self):
        """Nor can what files hold: headers, categories, names of arrays and classes, a run file's texts."""
        evil, shown = "n\u00efce\x1b]0;owned\x07\u009b2J", "n\u00efce\\x1b]0;owned\\x07\\x9b2J"
        rows = "".join(f"{i % 7},{i % 5},{evil if i % 2 else 'b'},{i % 3}\n" for i in range(40))
        (self.dir / "t.csv").write_text(f"a,col{evil},kind,y\n{rows}")
        np.savez(self.dir / "n.npz", **{evil: np.zeros((4, 3), np.float32)})
        with h5py.File(self.dir / "h.h5", "w") as f:
            f[evil] = np.zeros((4, 3), np.float32)
        for file, name in (("raw", evil), ("escaped", json.dumps(evil)[1:-1]), ("high", "n\u00efce\u009b2J")):
            header = f'{{"{name}": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}}}'.encode()
            (self.dir / f"{file}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        for k in range(24):
            folder = self.dir / "images" / ("other" if k % 2 else f"class{evil}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{k}.png").write_bytes(png(np.full((8, 8), 10 * k, np.uint8)))
        few = ("train.epochs=none", "train.steps=2", "train.batch=8", "device=cpu")
        outs, names = [], f"data.class_names={json.dumps([evil, 'other'])}"
        for data, more in (("t.csv", ("--labels", "kind")), ("images", ())):
            made = f"{data}.yaml"
            self.tool("new", "--data", data, *more, "-o", made)
            run = self.dir / f"run-{data}"
            self.run_trainer(made, *few, f"output={run}", ranks=1)
            outs += [(self.tool("evaluate", run / "model.h5", names, status=int(data == "images")), data == "images"),
                     (self.tool("inspect", run / "model.h5"), False)]
        self.tool("check", "t.csv.yaml", *few)
        config = self.config(steps=2)
        asked = "data.train={path: PATH, inputs: NAME, labels: y}"
        for path, name in (("t.csv", json.dumps("col" + evil[:-1])), ("n.npz", "x"), ("h.h5", "x")):
            said = self.tool("check", "--data", config, asked.replace("PATH", path).replace("NAME", name), status=1)
            outs.append((said, True))
        for file, told, status in (("n.npz", True, 2), ("raw.safetensors", False, 1), ("escaped.safetensors", False, 1),
                                   ("high.safetensors", False, 1)):
            outs.append((self.tool("import", file, "o.h5", "--config", config, status=status), told))
        self.run_trainer(config, ranks=1)
        model = self.dir / "run/model.h5"
        with h5py.File(model, "r+") as f:
            f.attrs.create("trireme_version", evil.encode(), dtype=f"S{len(evil.encode())}")
        outs += [(self.run_trainer("inspect", model, *more, ranks=0, status=1), True) for more in ((), ("--accept-unverified",))]
        for k, (out, told) in enumerate(outs):
            self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", out), f"{k}: {out!r}")
            if told:
                self.assertIn(shown, out, k)

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
