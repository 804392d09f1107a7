"""What the tests of GPUs share: the trainer on the stand-in for a GPU (tests/fakegpu), whose settings are FAKEGPU_*
variables of the environment."""
import os
import pathlib
import subprocess

import harness

STANDIN = pathlib.Path(os.environ["STANDIN"]).resolve()
LIBRARIES = os.environ.get("STANDIN_LIBRARIES", str(STANDIN.parent.parent / "fakegpu"))


class GpuCase(harness.Case):
    """The way of harness.Case, with `device: cuda` on the stand-in and `run.deterministic: on`, as most tests compare
    bits, where nothing else is said. A run never ends well with a rule of the stand-in broken."""

    program = STANDIN
    same_bits = ("run.deterministic=on",)  # (): as the config has it

    def environment(self, **more):
        env = {k: v for k, v in harness.ENV.items() if not k.startswith(("FAKEGPU_", "FAKENCCL_", "CUDA_"))}
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, (LIBRARIES, env.get("LD_LIBRARY_PATH"))))
        env.update({k: str(v) for k, v in more.items()})
        return env

    def command(self, config, *arguments, **how):
        given = {str(a).split("=")[0] for a in arguments}
        ours = [a for a in ("device=cuda", *self.same_bits) if a.split("=")[0] not in given]
        return super().command(config, *ours, *arguments, **how)

    def launch(self, config, *arguments, ranks=2, env=None, timeout=120, program=None):
        """Runs to the end: status and everything said."""
        command = self.command(config, *arguments, ranks=ranks, program=program)
        done = subprocess.run(command, cwd=self.dir, env=self.environment(**(env or {})),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        return done.returncode, done.stdout

    def run_trainer(self, config, *arguments, status=0, **how):
        code, out = self.launch(config, *arguments, **how)
        self.assertNotIn("fakegpu:", out)
        self.assertEqual(code, status, out)
        return out

    def losses_of(self, name, *arguments, text=harness.CNN, values=None, **how):
        """Trains into folder `name`; the loss of every step."""
        self.run_trainer(self.config(name, text=text, **(values or {})), *arguments, **how)
        return self.losses(name)
