"""The program's part for GPUs as a module: who loads it, what is said where it cannot be had, what the program exports for
it. On the program with the real libraries, on a machine that may have no GPU."""
import pathlib
import re
import shutil
import subprocess
import unittest

from harness import ENV, TRAINER, Case, main

MODULE = TRAINER.parent / "libtrireme_cuda.so"
LIBRARIES = ("libtrireme_cuda", "libcublasLt", "libcudnn", "libnccl", "libcudart")


def lines(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


class Module(Case):
    def environment(self):
        return {**ENV, **self.env}

    def setUp(self):
        super().setUp()
        self.env = {}

    def loaded(self, *command, status=0):
        """Which of CUDA's libraries the processes of this command loaded, at any time: the loader's own account."""
        at = self.dir / "loader"
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir()
        env = {**self.environment(), "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(at / "log")}
        done = subprocess.run(list(map(str, command)), cwd=self.dir, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout)
        text = "".join(p.read_text(errors="replace") for p in at.iterdir())
        self.assertIn("libyaml", text)
        return {name for name in LIBRARIES if re.search(rf"file={name}\S* \[\d+\];  generating link map|/{name}[^/]*\[\d+\];  "
                                                        "generating link map", text)}

    def alone(self, name):
        """The program without its module; its folder."""
        at = self.dir / name / "bin"
        at.mkdir(parents=True)
        shutil.copy2(TRAINER, at)
        self.program = at / "trainer"
        return at

    def driver(self):
        """Something that opens as the driver's library does, and is none."""
        at = self.dir / "driver"
        at.mkdir()
        library = next(re.search(r"=> (/\S*libyaml\S*)", x)[1] for x in lines("ldd", str(TRAINER)) if "libyaml" in x)
        (at / "libcuda.so.1").symlink_to(library)
        return {"LD_LIBRARY_PATH": ":".join(filter(None, (str(at), ENV.get("LD_LIBRARY_PATH"))))}

    def refused(self, *arguments, said, **how):
        out = self.run_trainer(self.config(steps=2), "device=cuda", *arguments, status=1, **how)
        errors = re.findall(r"(?m)^trainer: error: .*", out)
        self.assertEqual(len(errors), 1, out)
        self.assertRegex(errors[0], said)

    def test_who_loads_it(self):
        config = self.config(steps=2)
        self.assertEqual(self.loaded(TRAINER, "check", config), set())
        self.assertEqual(self.loaded(TRAINER, "check", config, "device=cuda"), set())
        self.assertEqual(self.loaded(*self.command(config, ranks=2)), set())
        self.assertEqual(self.loaded(TRAINER, "plan", config), set())
        self.assertEqual(self.loaded(TRAINER, "plan", config, "device=cuda"), set(LIBRARIES) - {"libcudart"})
        self.assertEqual(self.loaded(TRAINER, config, "--force", "device=cuda", status=1), set(LIBRARIES) - {"libcudart"})

    def no_driver(self, config):
        """A training says in a short line that it takes CPUs; nothing else that the machine is asked to do says a word of it."""
        line = "trainer: device: auto takes the CPU: there is no NVIDIA driver here"
        for ranks in (0, 2):
            out = self.run_trainer(config, "--force", "device=auto", ranks=ranks)
            self.assertEqual([x for x in out.splitlines() if "GPU" in x or "driver" in x or "CUDA" in x], [line])
        for command in (("check", config, "device=auto"), ("check", config, "device=auto", "--data"), ("plan", config, "device=auto"),
                        ("plan", config, "device=auto", "--summary"), ("plan", config, "device=auto", "--json"), ("inspect", "run"),
                        ("inspect", "run/model.h5"), ("evaluate", "run/model.h5"), ("fold", "run/model.h5"),
                        ("predict", "run/model.h5", "--data", "eval", "-o", "p.npy")):
            done = subprocess.run([TRAINER, *command], cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertNotRegex(done.stdout, "auto (takes|plans)|driver|libcuda", command)

    def test_auto(self):
        config = self.config(steps=2)
        auto = (TRAINER, config, "--force", "device=auto")
        if not pathlib.Path("/proc/driver/nvidia/version").exists():
            self.assertEqual(self.loaded(*auto), set())
            self.no_driver(config)
        self.env = self.driver()
        self.assertIn("libtrireme_cuda", self.loaded(*auto))
        at = self.dir / "driver/libcuda.so.1"
        real = at.resolve()
        at.unlink()
        at.write_bytes(b"no library")  # one that cannot be loaded is told to all
        self.assertRegex(self.run_trainer(config, "--force", "device=auto"),
                         "device: auto takes the CPU: the NVIDIA driver cannot be loaded: .*libcuda.so.1: ")
        self.assertIn("note: device: auto plans for CPUs here: the NVIDIA driver cannot be loaded: ",
                      self.tool("plan", config, "device=auto"))
        at.unlink()
        at.symlink_to(real)
        out = self.run_trainer(config, "--force", "device=auto")
        self.assertEqual(out.count("device: auto takes the CPU: no GPU for 2 of 2 ranks"), 1, out)

    def test_missing(self):
        at = self.alone("alone")
        said = f"libtrireme_cuda.so, .*, is neither in {at} nor in its ../lib/trireme: install both"
        for ranks in (0, 2):
            self.refused(said=said, ranks=ranks)
        error = self.tool("plan", self.config(), "device=cuda", status=1)
        self.assertRegex(error, said)
        self.assertIn("device: cuda", self.tool("check", self.config(), "device=cuda"))
        self.env = self.driver()
        out = self.run_trainer(self.config(steps=2), "device=auto")
        self.assertEqual(len(re.findall(f"device: auto takes the CPU: .*{said}", out)), 1, out)
        self.assertIn(f"note: device: auto plans for CPUs here: libtrireme_cuda.so",
                      self.tool("plan", self.config(), "device=auto"))

    def test_missing_on_one_rank(self):
        config = self.config(steps=2)
        at = self.alone("alone")
        parts = [[str(p), str(config), "device=cuda"] for p in (TRAINER, self.program)]
        done = subprocess.run(["mpirun", "--oversubscribe", "-np", "1", *parts[0], ":", "-np", "1", *parts[1]], cwd=self.dir,
                              env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(len(re.findall(rf"error: .*neither in {at}", done.stdout)), 1, done.stdout)

    def test_other_build(self):
        at = self.alone("other")
        place = at.parent / "lib/trireme"
        place.mkdir(parents=True)
        header = (TRAINER.parents[1] / "generated/build_id.h").read_text()
        build_id = re.search(r'"([0-9a-f]{32})"', header)[1].encode()
        real = MODULE.read_bytes()
        self.assertEqual(real.count(build_id), 1)
        (place / MODULE.name).write_bytes(real.replace(build_id, build_id[::-1]))
        self.refused(said=rf"libtrireme_cuda.so is of another build than this program \({build_id.decode()}\): install both")
        (at / MODULE.name).write_bytes(real)  # beside the program comes first
        self.refused("--force", said="no GPU for 2 of 2 ranks.*no CUDA device")
        (at / MODULE.name).write_bytes(b"no library")
        self.refused("--force", said=f"{at}/libtrireme_cuda.so: .*: CUDA's libraries must be where the loader looks")

    def test_symbols(self):
        if not shutil.which("nm"):
            raise unittest.SkipTest("no nm")
        names = lambda *command: {x.split()[-1].split("@")[0] for x in lines("nm", "-D", *command)}  # noqa: E731
        called = {n for n in names("--undefined-only", str(MODULE)) if n.startswith("tr_")}
        exported = {n for n in names("--defined-only", str(TRAINER)) if n.startswith("tr_")}
        self.assertGreater(len(called), 10)
        self.assertEqual(exported, called)
        self.assertEqual(names("--defined-only", str(MODULE)), {"tr_gpu_module"})


if __name__ == "__main__":
    main()
