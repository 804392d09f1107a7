"""The quick start's job and what it leaves: the run folder, read by strangers (h5py, YAML, TFRecord by hand), and by inspect."""
import hashlib
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from digits import DIGITS, EPOCHS, PARAMETERS, SHAPES, STATES, STEPS, DigitsCase
from formats import crc32c, fields, scaled
from harness import ENV, SOURCE, TRAINER, main

STEP_KEYS = {"event", "step", "epoch", "loss", "lr", "grad_norm", "loss_scale", "samples_per_s", "step_ms",
             "compute_ms", "comm_wait_ms", "data_wait_ms"}
END_KEYS = {"event", "steps", "seconds", "samples_per_s", "peak_rss_mb", "first_step_s", "final_loss",
            "predicted_mb", "held_mb", "reason"}


class Digits(DigitsCase):
    """One run of the digits, looked at from all sides; no test here changes it."""

    @classmethod
    def setUpClass(cls):
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="trireme-e2e-digits-"))
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        done = subprocess.run(["mpirun", "--oversubscribe", "-np", "2", str(TRAINER), str(DIGITS),
                               f"train.epochs={EPOCHS}", "train.checkpoint.every_epochs=1"], cwd=cls.home, env=ENV,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        cls.output = done.stdout
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        cls.folder = cls.home / "runs/digits"
        cls.lines = [json.loads(line) for line in (cls.folder / "metrics.jsonl").read_text().splitlines()]

    def of(self, event):
        return [r for r in self.lines if r["event"] == event]

    def test_python_reader(self):
        """python/trireme.py reads what the run left."""
        sys.path.insert(0, str(SOURCE / "python"))
        import trireme
        run = trireme.Run(self.folder)
        self.assertEqual(run.attributes["step"], STEPS)
        self.assertEqual(run.config["train"]["epochs"], EPOCHS)
        self.assertIsInstance(run.config["train"]["optimizer"]["adamw"]["eps"], float)
        self.assertEqual(run.metrics, self.lines)
        self.assertEqual(run.history["eval_accuracy"].tolist(), [e["accuracy"] for e in self.of("eval")])
        self.assertEqual(int(run.confusion.sum()), 297)
        self.assertEqual(run.lineage, [])
        values = run.state_dict(torch=False)
        self.assertEqual({name: value.shape for name, value in values.items()},
                         {name.replace("/", "."): shape for name, shape in {**SHAPES, **STATES}.items()})
        with h5py.File(self.folder / "model.h5") as f:
            np.testing.assert_array_equal(values["conv2d2.weight"], f["model/params/conv2d2/weight"][()])
        self.assertIn(f"{PARAMETERS} parameters", run.summary())
        self.assertEqual(trireme.Run(self.folder / "checkpoints/best.h5").metrics, self.lines)
        eight = self.home / "eight.h5"
        shutil.copy(self.folder / "model.h5", eight)
        with h5py.File(eight, "r+") as f:  # as a quantized model keeps a row
            del f["model/params/head/weight"]
            f["model/params/head/weight"] = np.full((10, 64), -3, np.int8)
            f["model/state/head/weight_scale"] = np.arange(10, dtype=np.float32)
        values = trireme.Run(eight).state_dict(torch=False)
        np.testing.assert_array_equal(values["head.weight"], np.full((10, 64), -3.0) * np.arange(10)[:, None])
        self.assertNotIn("head.weight_scale", values)
        with self.assertRaisesRegex(ValueError, "no run file"):
            trireme.Run(SOURCE / "configs/digits.h5")
        with self.assertRaises(FileNotFoundError):
            trireme.Run(self.home)

    def test_learns(self):
        evals = self.of("eval")
        self.assertEqual([e["step"] for e in evals], [24 * (i + 1) for i in range(EPOCHS)])
        for e in evals:
            self.assertEqual(e["samples"], 297)
        self.assertGreater(evals[-1]["accuracy"], 0.9)
        self.assertGreater(evals[-1]["top5"], evals[-1]["accuracy"])
        self.assertLess(evals[-1]["loss"], evals[0]["loss"] / 2)

    def test_run_folder(self):
        found = {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()}
        events = {n for n in found if n.startswith("events.out.tfevents.")}
        self.assertEqual(len(events), 1)
        newest = {f"checkpoints/step-{24 * (EPOCHS - i):08d}.h5" for i in range(3)}  # keep: 3
        self.assertEqual(found - events, newest | {".lock", "config.yaml", "metrics.jsonl", "model.h5",
                                                   "checkpoints/best.h5"})

    def test_metrics(self):
        start, end = self.lines[0], self.lines[-1]
        self.assertEqual((start["event"], start["ranks"], start["device"]), ("start", 2, "cpu"))
        self.assertEqual(start["parameters"], PARAMETERS)
        text = (self.folder / "config.yaml").read_bytes()
        self.assertEqual(start["config_sha256"], hashlib.sha256(text).hexdigest())
        steps = self.of("step")
        self.assertEqual([r["step"] for r in steps], [*range(10, STEPS, 10), STEPS])
        for r in steps:
            self.assertEqual(set(r), STEP_KEYS)
            self.assertEqual(r["epoch"], (r["step"] - 1) // 24)
            for key in STEP_KEYS - {"event"}:
                self.assertTrue(np.isfinite(r[key]), r)
            self.assertLessEqual(r["compute_ms"] + r["comm_wait_ms"] + r["data_wait_ms"], r["step_ms"] * 1.01, r)
        self.assertEqual(end["event"], "end")
        self.assertLessEqual(END_KEYS, set(end))
        self.assertEqual((end["steps"], end["reason"], end["final_loss"]), (STEPS, "done", steps[-1]["loss"]))

    def test_memory_as_predicted(self):
        end = self.lines[-1]
        self.assertLess(abs(end["predicted_mb"] / end["held_mb"] - 1), 0.10, end)

    def test_what_is_printed(self):
        self.assertIn(f"evaluation loss {self.of('eval')[-1]['loss']:.5f}", self.output)
        for words in ("throughput", "exposed communication", "data wait", "predicted", "held", f"step {STEPS}"):
            self.assertIn(words, self.output)
        self.assertNotIn("\r", self.output)
        self.assertNotIn("\033", self.output)
        self.assertRegex(self.output, rf"(?m)^step {STEPS}/{STEPS} \(100 %\)  epoch {EPOCHS - 1}  loss ")

    def test_config_runs_again(self):
        """config.yaml of the run folder, started from elsewhere, is the same run."""
        self.run_trainer(self.folder / "config.yaml", "train.steps=30", "train.log_every=10",
                         f"output={self.dir}/run")
        whole = {r["step"]: r for r in self.of("step")}
        again = self.records()
        self.assertEqual([r["step"] for r in again], [10, 20, 30])
        # the schedule is stretched over fewer steps, but its warm-up covers these
        self.assertEqual(self.losses(), [whole[s]["loss"] for s in (10, 20, 30)])

    # ---- the files, read by h5py ----

    def check_file(self, path, kind):
        expected = {f"model/params/{n}": s for n, s in SHAPES.items()}
        expected.update({f"model/state/{n}": s for n, s in STATES.items()})
        if kind == "checkpoint":
            for slot in ("exp_avg", "exp_avg_sq"):
                expected.update({f"optimizer/{slot}/{n}": s for n, s in SHAPES.items()})
        raw = path.read_bytes()
        found = {}
        with h5py.File(path, "r") as f:
            attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in f.attrs.items()}
            self.assertEqual(attributes["format"], "trireme")
            self.assertEqual(attributes["format_version"], 1)
            self.assertEqual(attributes["kind"], kind)
            self.assertEqual(attributes["config"], (self.folder / "config.yaml").read_text())
            self.assertRegex(attributes["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            self.assertLessEqual({"trireme_version", "step", "epoch", "parent_sha256"}, set(attributes))
            self.assertEqual(f["train"].attrs["step"], attributes["step"])
            self.assertEqual(f["train"].attrs["samples"], 1500)

            def visit(name, item):
                if not isinstance(item, h5py.Dataset):
                    return
                found[name] = item.shape
                self.assertIsNone(item.chunks, name)
                offset, size = item.id.get_offset(), item.id.get_storage_size()
                self.assertIsNotNone(offset, name)
                array = item[()]
                self.assertEqual(raw[offset : offset + size], array.tobytes(), name)  # a reader may map it
                self.assertEqual(crc32c(raw[offset : offset + size]), item.attrs["crc32c"], name)
                if not name.startswith("history/"):
                    self.assertEqual(item.dtype, np.dtype("<f4"), name)
                    self.assertTrue(np.isfinite(array).all(), name)

            f.visititems(visit)
            history = {n[8:]: f[n][()] for n in found if n.startswith("history/")}
        self.assertEqual({n: s for n, s in found.items() if not n.startswith("history/")}, expected)
        return attributes, history

    def test_model_file(self):
        attributes, history = self.check_file(self.folder / "model.h5", "model")
        self.assertEqual((attributes["step"], attributes["epoch"]), (STEPS, EPOCHS))
        steps, evals = self.of("step"), self.of("eval")
        for column in ("step", "epoch", "loss", "lr", "grad_norm"):
            np.testing.assert_array_equal(history[column], [r[column] for r in steps], err_msg=column)
        for column in ("step", "loss", "accuracy", "top5"):
            np.testing.assert_array_equal(history[f"eval_{column}"], [e[column] for e in evals], err_msg=column)
        with h5py.File(SOURCE / "configs/digits.h5", "r") as f:
            counts = np.bincount(f["y_test"][()].astype(int).ravel(), minlength=10)
        confusion = history["confusion"]  # [true][predicted]
        np.testing.assert_array_equal(confusion.sum(axis=1), counts)
        self.assertAlmostEqual(np.trace(confusion) / 297, evals[-1]["accuracy"], places=9)

    def test_checkpoints(self):
        for step in (STEPS - 24, STEPS):
            attributes, history = self.check_file(self.folder / f"checkpoints/step-{step:08d}.h5", "checkpoint")
            self.assertEqual(attributes["step"], step)
            self.assertEqual(history["step"][-1], step // 10 * 10 if step < STEPS else STEPS)
        best = min(self.of("eval"), key=lambda e: e["loss"])
        attributes, _ = self.check_file(self.folder / "checkpoints/best.h5", "checkpoint")
        self.assertEqual(attributes["step"], best["step"])

    def test_tensorboard_file(self):
        data = next(self.folder.glob("events.out.tfevents.*")).read_bytes()

        def masked(part):
            crc = crc32c(part)
            return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

        at, version, scalars = 0, None, {}
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            self.assertEqual(struct.unpack_from("<I", data, at + 8)[0], masked(data[at : at + 8]))
            body = data[at + 12 : at + 12 + size]
            self.assertEqual(struct.unpack_from("<I", data, at + 12 + size)[0], masked(body))
            at += 16 + size
            event = dict(fields(body))
            self.assertLess(abs(struct.unpack("<d", event[1])[0] - time.time()), 3600)
            version = event.get(3, version)
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                scalars.setdefault(value[1].decode(), {})[event[2]] = struct.unpack("<f", value[2])[0]
        self.assertEqual(version, b"brain.Event:2")

        def column(event, key):
            return {r["step"]: float(np.float32(r[key])) for r in self.of(event)}

        self.assertEqual(scalars["train/loss"], column("step", "loss"))
        self.assertEqual(scalars["train/lr"], column("step", "lr"))
        self.assertEqual(scalars["eval/accuracy"], column("eval", "accuracy"))

    # ---- inspect ----

    def test_inspect(self):
        model = self.folder / "model.h5"
        text = self.tool("inspect", model)
        with h5py.File(model, "r") as f:
            weight = f["model/params/conv2d4/weight"][()].astype(np.float64)
        line = next(line for line in text.splitlines() if "conv2d4/weight" in line)
        self.assertIn("[64,32,3,3]", line)
        mean, std, zeros, norm = line.split()[2:6]
        for got, want in ((mean, weight.mean()), (std, weight.std()), (norm, np.linalg.norm(weight))):
            self.assertAlmostEqual(float(got) / want, 1, places=3)
        self.assertEqual(zeros, "0.0%")
        self.assertIn(f"step {STEPS}", text)
        self.assertIn("14 arrays", text)
        report = json.loads(self.tool("inspect", "--json", model))
        self.assertTrue(report["ok"])
        self.assertEqual(report["train"]["updates"], STEPS)
        self.assertEqual({a["path"] for a in report["arrays"] if a["path"].startswith("/model/params/")},
                         {f"/model/params/{n}" for n in SHAPES})

    def test_inspect_two(self):
        model, other = self.folder / "model.h5", self.folder / f"checkpoints/step-{STEPS - 24:08d}.h5"
        same = self.dir / "same.h5"
        shutil.copy(model, same)
        self.assertNotIn("Different", self.tool("inspect", model, same))
        with h5py.File(same, "r+") as f:  # what does not count is an attribute where it stands, not whatever is called so
            f["train"].attrs["threads"] = f.attrs["threads"] = np.uint64(77)
        shown = subprocess.run([str(TRAINER), "inspect", str(model), str(same)], stdout=subprocess.PIPE, text=True).stdout
        self.assertRegex(shown, r"  /train@threads: \d+ \| 77  \(does not count\)\n")
        self.assertIn("  /@threads: (none) | 77\n", shown)
        done = subprocess.run([str(TRAINER), "inspect", str(model), str(other), "--json"], stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        arrays = {a["path"]: a for a in json.loads(done.stdout)["arrays"]}
        weights = [self.arrays(p)["model/params/head/weight"] for p in (model, other)]
        self.assertAlmostEqual(arrays["/model/params/head/weight"]["max_abs"], np.abs(weights[0] - weights[1]).max(),
                               places=6)

    def test_inspect_damaged_and_missing(self):
        bad = self.dir / "bad.h5"
        with h5py.File(self.folder / "model.h5", "r") as f:
            offset = f["model/params/head/bias"].id.get_offset()
        data = bytearray((self.folder / "model.h5").read_bytes())
        data[offset] ^= 1
        bad.write_bytes(data)
        done = subprocess.run([str(TRAINER), "inspect", str(bad)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("head/bias", done.stdout)
        self.assertIn("nowhere.h5", self.tool("inspect", "nowhere.h5", status=1))
        self.tool("inspect", status=2)

    def test_inspect_of_a_folder(self):
        """Its run files, then the model; before there is one, the newest checkpoint."""
        text, model = self.tool("inspect", self.folder), self.tool("inspect", self.folder / "model.h5")
        self.assertTrue(text.endswith(model))
        head = text[:-len(model)]
        for name in ("model.h5", "checkpoints/best.h5", f"checkpoints/step-{STEPS:08}.h5"):
            self.assertRegex(head, rf"(?m)^  {name}  [\d.]+ k?M?B$")
        self.assertEqual(self.tool("inspect", self.folder, "--json"), self.tool("inspect", self.folder / "model.h5", "--json"))
        stopped = self.dir / "stopped [1]"
        shutil.copytree(self.folder / "checkpoints", stopped / "checkpoints")
        self.assertIn(f"step {STEPS}, epoch {EPOCHS}", self.tool("inspect", stopped))
        (self.dir / "empty").mkdir()
        self.assertIn("neither model.h5 nor checkpoints", self.tool("inspect", "empty", status=1))

    def test_plan_is_what_runs(self):
        _, sizes = self.plan("--ranks", "2", f"train.epochs={EPOCHS}", "train.checkpoint.every_epochs=1")
        total, half = scaled(sizes["total"])
        self.assertLessEqual(abs(total - self.lines[-1]["predicted_mb"] * 1e6), half)

    def test_a_report_that_cannot_be_written(self):
        """A full disk is told, and is a failure."""
        for command in (("check", DIGITS), ("check", "--help-config"), ("plan", DIGITS), ("inspect", self.folder / "model.h5")):
            with open("/dev/full", "w") as full:
                done = subprocess.run([str(TRAINER), *map(str, command)], env=ENV, stdout=full, stderr=subprocess.PIPE,
                                      text=True)
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("standard output could not be written: No space left on device", done.stderr)


if __name__ == "__main__":
    main()
