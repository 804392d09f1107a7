"""What `cmake --install` leaves runs from wherever it was put."""
import os
import subprocess

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
        for path in ("README.md", "CHANGELOG.md", "LICENSE", "ATTRIBUTION.md", "docs/config.md", "docs/records.md"):
            self.assertTrue((at / "share/doc/trireme" / path).is_file(), path)
        for path in sorted(SOURCE.glob("configs/**/*.yaml")):
            self.assertTrue((at / "share/trireme" / path.relative_to(SOURCE)).is_file(), path)
        if (BUILD / "bin/libtrireme_cuda.so").exists():
            out = self.run_trainer(digits, "device=cuda", f"output={self.dir}/cuda", ranks=0, status=1)
            self.assertRegex(out, "error: no GPU: no CUDA device")  # so the module was found and loaded

    def test_destdir(self):
        self.install("--prefix", "/opt/trireme", DESTDIR=str(self.dir / "stage"))
        self.install("--prefix", self.dir / "plain")
        files = {p.relative_to(self.dir / "plain") for p in (self.dir / "plain").rglob("*")}
        stage = self.dir / "stage/opt/trireme"
        self.assertEqual({p.relative_to(stage) for p in stage.rglob("*")}, files)
        self.assertIn("bin/trainer", map(str, files))


if __name__ == "__main__":
    main()
