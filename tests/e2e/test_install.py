"""What `cmake --install` leaves runs from wherever it was put."""
import os
import re
import shutil
import subprocess
import sys

from harness import ENV, SOURCE, TRAINER, Case, main

BUILD = TRAINER.parents[1]


class Install(Case):
    def install(self, *arguments, **env):
        done = subprocess.run([os.environ.get("CMAKE", "cmake"), "--install", str(BUILD), *map(str, arguments)],
                              env={**ENV, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_runs_where_it_was_put(self):
        at = self.dir / "elsewhere"
        self.install("--prefix", self.dir / "there")
        (self.dir / "there").rename(at)
        self.program = at / "bin/trainer"
        digits = at / "share/trireme/configs/digits.yaml"
        self.assertIn("name: digits", self.tool("check", digits))
        self.run_trainer(digits, "train.steps=5", "train.log_every=1", "device=cpu", f"output={self.dir}/digits")
        self.assertEqual(len(self.losses("digits")), 5)
        read = subprocess.run([sys.executable, "-c", "import sys, trireme; run = trireme.Run(sys.argv[1]); print(len(run.history['loss']))",
                               str(self.dir / "digits")], env={**ENV, "PYTHONPATH": str(at / "share/trireme/python")},
                              stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(read.stdout, "5\n")
        for path in ("README.md", "CHANGELOG.md", "LICENSE", "ATTRIBUTION.md", "docs/config.md", "docs/records.md"):
            self.assertTrue((at / "share/doc/trireme" / path).is_file(), path)
        for path in sorted(SOURCE.glob("configs/**/*.yaml")):
            self.assertTrue((at / "share/trireme" / path.relative_to(SOURCE)).is_file(), path)
        if (BUILD / "bin/libtrireme_cuda.so").exists():
            out = self.run_trainer(digits, "device=cuda", f"output={self.dir}/cuda", ranks=0, status=1)
            self.assertRegex(out, "error: no GPU: no CUDA device")  # so the module was found and loaded

    def test_says_what_the_program_takes(self):
        """Manual page, and completion in bash: of commands, of each command's options, of keys."""
        at = self.dir / "there"
        self.install("--prefix", at)
        page = (at / "share/man/man1/trainer.1").read_text()
        for word in ("\n.SH SYNOPSIS\n", "\n.TP\n\\fBtrain.batch\\fR\n", "\n.SS \\fBlinear\\fR\n", "mpirun \\-np N trainer"):
            self.assertIn(word, page)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", at / "share/man/man1/trainer.1"],
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

        def complete(*words):
            quoted = " ".join(f"'{word}'" for word in words)
            done = subprocess.run(["bash", "-c", f". {at}/share/bash-completion/completions/trainer; COMP_WORDS=({quoted}); "
                                   f"COMP_CWORD={len(words) - 1}; _trainer; echo ${{COMPREPLY[@]}}"],
                                  cwd=self.dir, stdout=subprocess.PIPE, text=True, check=True)
            return done.stdout.split()
        self.assertEqual(complete("trainer", "evalu"), ["evaluate"])
        self.assertEqual(complete("trainer", "quant"), ["quantize"])
        self.assertEqual(complete("trainer", "c.yaml", "train.optimizer.sgd.mom"), ["train.optimizer.sgd.momentum="])
        for command in ("sweep", "evaluate", "check", "plan", "quantize", "c.yaml"):
            refused = self.tool(command, "--none-such", status=2)
            taken = re.search(r"\(expected: (.*)\)", refused)[1].split()
            self.assertEqual(sorted(complete("trainer", command, "-")), sorted(taken), command)
        self.assertEqual(complete("trainer", "inspect", "--js"), ["--json"])
        self.assertIn("expected bash, zsh or fish", self.tool("help", "--completion", "csh", status=2))

    def test_library(self):
        """The program of docs/embedding.md, built with what was installed, answers as the pipeline's own file says."""
        at = self.dir / "elsewhere"
        self.install("--prefix", self.dir / "there")
        (self.dir / "there").rename(at)
        text = (at / "share/doc/trireme/docs/embedding.md").read_text()
        (self.dir / "answer.c").write_text(re.search(r"```c\n(.*?)```", text, re.S)[1])
        build = re.search(r"```sh[^\n]*\n(cc .*)\n", text)[1]
        flags = re.search(r"-fsanitize=\S+", (BUILD / "build.ninja").read_text())
        done = subprocess.run(["sh", "-c", f"{build} {flags[0] if flags else ''}"], cwd=self.dir,
                              env={**ENV, "PKG_CONFIG_PATH": str(at / "lib/pkgconfig")},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.run_trainer(SOURCE / "configs/digits.yaml", "train.steps=20", "device=cpu", "pipeline=[train, {fold: {normalize: true}}]",
                         f"output={self.dir}/digits", "data.normalize={mean: 7.5, std: 5}")
        answers = []
        for model in ("model.h5", "stages/01-fold.h5"):
            done = subprocess.run(["./answer", f"digits/{model}"], cwd=self.dir, stdout=subprocess.PIPE, text=True, check=True)
            answers.append([float(x) for x in done.stdout.split()])
            self.assertEqual(len(answers[-1]), 10)
        for a, b in zip(*answers):
            self.assertAlmostEqual(a, b, delta=1e-4)
        self.assertNotEqual(answers[0], [0.0] * 10)
        done = subprocess.run(["./answer", "answer.c"], cwd=self.dir, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("answer.c", done.stderr)

    def test_destdir(self):
        self.install("--prefix", "/opt/trireme", DESTDIR=str(self.dir / "stage"))
        self.install("--prefix", self.dir / "plain")
        files = {p.relative_to(self.dir / "plain") for p in (self.dir / "plain").rglob("*")}
        stage = self.dir / "stage/opt/trireme"
        self.assertEqual({p.relative_to(stage) for p in stage.rglob("*")}, files)
        self.assertIn("bin/trainer", map(str, files))


if __name__ == "__main__":
    main()
