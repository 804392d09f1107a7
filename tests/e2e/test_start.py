"""Where a newcomer starts: the quick start, `trainer demo`, what is said of one of each and of small numbers."""
import shutil
import subprocess

from harness import ENV, SOURCE, TRAINER, Case, main


class Start(Case):
    def test_one_of_each(self):
        """What there is one of is told so."""
        config = self.config("one", samples=16, steps=1, batch=16)
        out = self.run_trainer(config, ranks=0)
        self.assertIn("16 training samples, batch 16 in 1 micro-batch, 1 step an epoch, 1 step; run folder", out)
        self.assertRegex(self.tool("plan", config), r"; 1 step an epoch\n")
        said = self.tool("inspect", "one/model.h5")
        self.assertIn("1 update, 0 skipped, 0 rollbacks; ", said)
        self.assertIn("global batch 16 in 1 micro-batch, seed", said)
        self.assertIn("Training loss: 1 record, last", said)

    def test_small_numbers_and_one_warning(self):
        """A unit stands apart from a number without a prefix; a warning of the model comes once, however often it is made."""
        (self.dir / "tiny.yaml").write_text(
            "name: tiny\noutput: tiny\ndata: {train: {format: synthetic, samples: 8}}\ntrain: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n"
            "model: {input: [6], layers: [linear: {out: 3}, softmax], loss: cross_entropy}\n")
        self.assertRegex(self.tool("plan", "tiny.yaml", "--summary"), r"; \d+ FLOP a sample")
        self.assertRegex(self.tool("plan", "tiny.yaml"), r"training +\d+ FLOP forward, \d+ FLOP backward, \d+ FLOP in all\n +evaluation +\d+ FLOP\n")
        said = self.run_trainer("tiny.yaml", ranks=0)
        self.assertEqual(said.count('"softmax1": cross_entropy takes logits and applies softmax itself'), 1, said)

    def test_quickstart_again(self):
        """A second one goes on with the run of the first, or says that it is done; --force trains anew."""
        for name in ("launch", "build/release/bin"):
            (self.dir / name).mkdir(parents=True)
        for name in ("quickstart", "environment"):
            shutil.copy(SOURCE / "launch" / name, self.dir / "launch")
        (self.dir / "launch/setup").write_text('#!/bin/sh\necho "$@" >asked\n')  # what it builds is there
        (self.dir / "launch/setup").chmod(0o755)
        (self.dir / "build/release/bin/trainer").symlink_to(TRAINER)
        (self.dir / "configs").symlink_to(SOURCE / "configs")

        def start(*arguments, status=0):
            done = subprocess.run([str(self.dir / "launch/quickstart"), *arguments], env=ENV, text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, status, done.stdout)
            return done.stdout

        self.assertIn("-DTRIREME_CUDA: expected -DNAME=VALUE", start("-DTRIREME_CUDA", "OFF", status=2))
        self.assertRegex(start("train.epochs=1"), "done: step 24")
        again = start("train.epochs=1")
        self.assertIn("launch/quickstart: runs/digits holds a run, which is gone on with; --force trains anew", again)
        self.assertIn("nothing is left to do: the run is at step 24 of 24", again)
        self.assertRegex(start("train.epochs=2"), "resuming from .*step-00000024.h5[^$]*done: step 48")
        self.assertNotIn("resuming", start("train.epochs=1", "--force"))
        self.assertEqual((self.dir / "asked").read_text(), "--only trainer\n")
        self.assertNotIn("holds a run", start("-DTRIREME_CUDA=OFF", "train.epochs=1", "--no-install", "output=runs/other"))
        self.assertEqual((self.dir / "asked").read_text(), "--only trainer --no-install -DTRIREME_CUDA=OFF\n")

    def test_demo(self):
        for name in ("digits", "regression", "images"):
            self.tool("demo", name)
            config = self.dir / f"demo-{name}/{name}.yaml"
            self.assertIn(f"name: {name}", self.tool("check", config))
            self.run_trainer(config, "train.steps=2", ranks=0)
            self.assertTrue((self.dir / f"demo-{name}/run/model.h5").exists())
        before = self.contents("demo-digits")
        self.assertIn("is there", self.tool("demo", status=2))
        self.assertEqual(self.contents("demo-digits"), before)
        self.assertIn('did you mean "digits"', self.tool("demo", "digit", status=2))
        self.tool("demo", "digits", self.dir / "no/such", status=1)

    def test_demo_in_a_folder_of_any_name(self):
        name = "it's: a #1"
        self.tool("demo", "regression", name)
        self.run_trainer(f"{name}/regression.yaml", "train.steps=2", ranks=0)
        self.assertTrue((self.dir / name / "run/model.h5").exists())
        for name in ("a\nb", "a\x1b[1m", "a\udcff"):  # the last a byte that is no UTF-8
            self.assertIn("one line", self.tool("demo", "digits", name, status=2))

    def test_demo_that_cannot_be_written(self):
        limited = 'ulimit -f 1; trap "" XFSZ; exec "$@"'
        done = subprocess.run(["bash", "-c", limited, "bash", str(self.program), "demo"], cwd=self.dir, env=self.environment(),
                              stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("x_train.npy", done.stderr)
        self.assertFalse((self.dir / "demo-digits").exists())


if __name__ == "__main__":
    main()
