"""Folders of images: training at any rank count, classes by name, predictions with files' names, damaged images."""
import csv
import shutil
import subprocess

import h5py

import harness

MODEL = """
name: images
device: cpu
data:
  train: {path: photos}
  predict: {path: new}
  image: {resize: 13, center_crop: true}
  normalize: auto
  augment: {random_resized_crop: {scale: [0.4, 1]}, flip: true, rotate: 10, color_jitter: {brightness: 0.3, hue: 0.1}, random_erasing: {}}
model:
  input: [3, 12, 12]
  layers: [flatten: {}, linear: {out: 3}]
  loss: cross_entropy
train: {epochs: 4, batch: 5, optimizer: {sgd: {lr: 0.01}}, checkpoint: {every_epochs: none}}
"""
PHOTOS = {"photos/cat/a.png": "rgb.png", "photos/cat/b.jpg": "j420.jpg", "photos/ant/a.png": "palette.png",
          "photos/ant/b.jpg": "exif6.jpg", "photos/ant/c.png": "grey16.png", "photos/dog/x.JPG": "progressive.jpg",
          "photos/dog/y.png": "rgba.png", "new/2.png": "rgb.png", "new/1.jpg": "cmyk.jpg", "other/dog/1.png": "rgb.png",
          "other/cat/1.png": "grey.png"}


class Images(harness.Case):
    def setUp(self):
        super().setUp()
        with h5py.File(harness.SOURCE / "tests/golden/images.h5") as f:
            for path, image in PHOTOS.items():
                (self.dir / path).parent.mkdir(parents=True, exist_ok=True)
                (self.dir / path).write_bytes(f[f"files/{image}/bytes"][()].tobytes())
        (self.dir / "images.yaml").write_text(MODEL)

    def train(self, out, *arguments, **options):
        return self.run_trainer("images.yaml", f"output={out}", *arguments, "--quiet", **options)

    def test_ranks_evaluate_predict(self):
        for ranks in (1, 3):
            self.train(f"run{ranks}", f"data.workers={ranks}", ranks=ranks)
        # what is decoded in, too: all images were looked at, and grey ones among coloured ones take a little less than is planned
        end = self.records("run1", "end")[-1]
        self.assertTrue(0 <= end["predicted_mb"] - end["held_mb"] < 0.005, end)
        one, three = (dict(self.arrays(self.dir / f"run{ranks}/model.h5")) for ranks in (1, 3))
        harness.np.testing.assert_allclose(one["model/params/linear1/weight"], three["model/params/linear1/weight"],
                                           **harness.RANKS)
        with h5py.File(self.dir / "run1/model.h5") as f:
            self.assertRegex(str(f.attrs["config"]).replace("\\n", " "), r'class_names:\s+- "ant"\s+- "cat"\s+- "dog"')
        self.run_trainer("predict", "run1/model.h5", "-o", "p.csv", "--quiet", ranks=2)
        rows = list(csv.DictReader((self.dir / "p.csv").read_text().splitlines()))
        self.assertEqual([r["file"] for r in rows], ["1.jpg", "2.png"])
        self.assertTrue(all(r["class"] in ("ant", "cat", "dog") for r in rows))
        self.run_trainer("predict", "run1/model.h5", "-o", "p.h5", "--quiet", ranks=0)
        with h5py.File(self.dir / "p.h5") as f:
            self.assertEqual([bytes(b) for b in f["files"]], [b"1.jpg", b"2.png"])
        # of two of the classes: by name, not by number
        done = self.run_trainer("evaluate", "run1/model.h5", "data.eval.path=other", "--json", ranks=2)
        self.assertIn('"samples": 2', done)
        (self.dir / "other/emu").mkdir()
        (self.dir / "other/emu/1.png").write_bytes((self.dir / "new/2.png").read_bytes())
        done = self.run_trainer("evaluate", "run1/model.h5", "data.eval.path=other", ranks=2, status=1)
        self.assertIn("other/emu: no class has this name", done)

    def test_random_part_alone(self):
        """Without data.image what takes no random part takes the whole image: checksums of ranks, statistics, evaluation."""
        for ranks in (1, 2):
            self.train(f"run{ranks}", "data.image=null", "data.eval.path=other", ranks=ranks)
        one, two = (dict(self.arrays(self.dir / f"run{ranks}/model.h5")) for ranks in (1, 2))
        harness.np.testing.assert_allclose(one["model/params/linear1/weight"], two["model/params/linear1/weight"],
                                           **harness.RANKS)
        self.run_trainer("check", "images.yaml", "data.image=null", "--data", ranks=0)

    def test_folder_gone(self):
        """A model is used where the folder that it was trained on is not."""
        self.train("run", "data.eval.path=other", ranks=2)
        with h5py.File(self.dir / "run/model.h5") as f:
            self.assertRegex(str(f.attrs["config"]).replace("\\n", " "), r"path: photos\s+format: folder")
        (self.dir / "photos").rename(self.dir / "gone")
        (self.dir / "other").rename(self.dir / "else")
        self.run_trainer("predict", "run/model.h5", "-o", "p.csv", "--quiet", ranks=0)
        self.assertEqual(len((self.dir / "p.csv").read_text().splitlines()), 3)
        (self.dir / "new").rename(self.dir / "news")
        done = self.run_trainer("evaluate", "run/model.h5", "data.eval.path=else", "--json", ranks=2)
        self.assertIn('"samples": 2', done)
        done = self.run_trainer("evaluate", "run/model.h5", ranks=2, status=1)
        self.assertIn("other: No such file", done)

    def test_quantize_folder_gone(self):
        """Ranges of outputs are of the training images: without them it says which folder it looked for, and makes nothing;
        with them elsewhere, or ranges of each call, it goes."""
        self.train("run")
        (self.dir / "photos").rename(self.dir / "gone")
        for ranks in (0, 2):
            done = self.run_trainer("quantize", "run/model.h5", ranks=ranks, status=1)
            said = [line for line in done.splitlines() if "photos: No such file" in line]
            self.assertEqual(len(said), 1, done)
            self.assertFalse((self.dir / "run/model-quantize.h5").exists())
        self.run_trainer("quantize", "run/model.h5", "data.train.path=gone", ranks=2)
        self.assertTrue((self.dir / "run/model-quantize.h5").exists())
        self.run_trainer("quantize", "run/model.h5", "activations=dynamic", "--force", ranks=0)

    def test_other_images_on_a_rank(self):
        """Ranks open folders of their own, as on hosts of their own: files of other names, one fewer, other pixels, and other
        classes are told by the ranks, and nothing is trained."""
        for place in ("here", "there"):
            shutil.copytree(self.dir / "photos", self.dir / place / "photos")
            text = MODEL.replace("name: images", f"name: images\noutput: {self.dir}/run").replace("  predict: {path: new}\n", "")
            (self.dir / place / "images.yaml").write_text(text)

        def start(status, *arguments):
            apps = [["-np", "1", str(self.program), f"{place}/images.yaml", *arguments] for place in ("here", "there")]
            done = subprocess.run(["mpirun", "--oversubscribe", *apps[0], ":", *apps[1]], cwd=self.dir, text=True,
                                  env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
            self.assertEqual(done.returncode, status, done.stdout)
            return done.stdout

        start(0)
        there = self.dir / "there/photos"
        changes = {
            "names ": lambda: (there / "cat/b.jpg").rename(there / "cat/0.jpg"),
            "6 samples": lambda: (there / "ant/b.jpg").unlink(),
            "checksum ": lambda: (there / "dog/y.png").write_bytes((self.dir / "new/1.jpg").read_bytes()),
            "names": lambda: (there / "dog").rename(there / "emu"),
        }
        for said, change in changes.items():
            shutil.rmtree(there)
            shutil.copytree(self.dir / "photos", there)
            change()
            for more in ((), ("data.normalize=null",)):
                with self.subTest(said=said, more=more):
                    out = start(1, "--force", *more)
                    ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
                    self.assertEqual(len(ours), 1, out)
                    self.assertIn("is not the same on all ranks: rank 0 (", ours[0])
                    self.assertRegex(ours[0], r"rank 1 \([^)]*\) has \".*\"; unlike rank 0: 1 \(")
                    self.assertIn(said, ours[0])

    def test_resumed_with_other_names(self):
        keys = "train.checkpoint.every_epochs=1", "train.checkpoint.keep=9"
        self.train("run", *keys, "train.epochs=2")
        done = self.train("run", *keys, "train.epochs=3", "--resume")
        self.assertNotIn("files of other names", done)
        (self.dir / "photos/cat/b.jpg").rename(self.dir / "photos/cat/0.jpg")
        done = self.train("run", *keys, "train.epochs=4", "--resume", ranks=2)
        self.assertEqual(done.count("in files of other names"), 1, done)
        done = self.train("run", *keys, "train.epochs=5", "--resume")
        self.assertNotIn("files of other names", done)

    def test_damaged_in_a_split(self):
        """Whichever part a bad file is in, it is named."""
        bad = self.dir / "photos/dog/x.JPG"
        bad.write_bytes(bad.read_bytes()[:-100])
        for seed in range(4):
            done = self.run_trainer("check", "images.yaml", f"data.split={{fraction: 0.5, seed: {seed}}}", "--data", ranks=0,
                                    status=1)
            self.assertRegex(done, "# bad: .*photos/dog/x.JPG: JPEG: ")

    def test_damaged(self):
        bad = self.dir / "photos/dog/x.JPG"
        bad.write_bytes(bad.read_bytes()[:-100])
        done = self.train("run", "data.normalize={mean: 100, std: 50}", ranks=3, status=1)
        said = [line for line in done.splitlines() if "x.JPG: JPEG: " in line]
        self.assertEqual(len(said), 1, done)
        done = self.run_trainer("check", "images.yaml", "--data", ranks=0, status=1)
        self.assertRegex(done, "# bad: .*photos/dog/x.JPG: JPEG: ")
        self.assertIn("1 of 7 files are bad", done)


if __name__ == "__main__":
    harness.main()
