"""The documents keep what they promise: links lead somewhere, messages are the program's, commands run."""
import os
import re
import shutil
import subprocess
import sys

from harness import ENV, SOURCE, TRAINER, Case, long, main

DOCUMENTS = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]

FENCED = r"(?ms)^```([^\n]*)\n(.*?)^```$"
COMMANDS = r"trainer(?!:)|mpirun|cmake|launch/\S+|sbatch|srun|python3?|docker|kubectl|cd|\(cd|\. "
NEEDS = {("data.md", "tokenizers, and a tokenizer.json"), ("README.md", "apt, and minutes to build"), ("README.md", "minutes to build"), ("README.md", "GPUs"), ("README.md", "Slurm"),
         ("embedding.md", "the installed library"), ("pipeline.md", "runs/compress, minutes of training"), ("recipes.md", "Slurm"),
         ("recipes.md", "a run of one of these models"), ("recipes.md", "images, and the weights"), ("recipes.md", "ssh to other hosts")}


def blocks(document):
    """(info, text) of each fenced block, and of each line behind a prompt as one of sh, in the document's order."""
    found = re.finditer(FENCED + r"|^    \$ ([^\n]*)$", document.read_text())
    return [("sh", m[3] + "\n") if m[3] else (m[1], m[2]) for m in found]


class Docs(Case):
    def test_links(self):
        for document in DOCUMENTS:
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
                self.assertTrue((document.parent / link).exists(), f"{document.name}: {link}")

    def test_messages(self):
        """What faq.md quotes of the program's own messages stands in the program, or in its module for GPUs."""
        text = b"".join(p.read_bytes() for p in (TRAINER, TRAINER.with_name("libtrireme_cuda.so")) if p.exists())
        quoted = re.findall(r"\*\*`([^`]+)`", (SOURCE / "docs/faq.md").read_text())
        self.assertGreater(len(quoted), 10)
        for message in set(quoted):
            for part in message.split("…"):
                self.assertTrue(part.strip().encode() in text, message)  # assertIn would print the program

    def test_blocks(self):
        """What is a command stands in a block that runs, or that says what it needs; these are all that do."""
        needs = set()
        for document in DOCUMENTS:
            for info, _ in blocks(document):
                self.assertRegex(info, r"^(|text|c|yaml|python|sh|sh \(needs .+\))$", document.name)
                needs |= {(document.name, n) for n in re.findall(r"^sh \(needs (.*)\)$", info)}
            for line in re.sub(FENCED, "", document.read_text()).splitlines():
                self.assertNotRegex(line, rf"^    ({COMMANDS}) ", f"{document.name}: make it a block of sh")
        self.assertEqual(needs, NEEDS)

    @long
    def test_commands(self):
        """Blocks of `sh` of each document, and lines behind `$ `, one after the other in a folder of its own. A block that
        needs what is not here says so: `sh (needs ssh to other hosts)`, and stands in NEEDS."""
        path = self.dir / "bin"
        path.mkdir()
        os.symlink(TRAINER, path / "trainer")
        os.symlink(sys.executable, path / "python3")  # the one with h5py, which launch/setup installs
        shutil.copytree(SOURCE / "configs", self.dir / "configs", ignore=shutil.ignore_patterns("bench"))
        for document in DOCUMENTS:
            at = self.dir / str(document.relative_to(SOURCE)).replace("/", "-")
            (at / "build/release").mkdir(parents=True)
            os.symlink(path, at / "build/release/bin")
            os.symlink(self.dir / "configs", at / "configs")
            os.symlink(SOURCE / "python", at / "python")
            ran = 0
            for info, body in blocks(document):
                if info != "sh":
                    continue
                env = {k: v for k, v in ENV.items() if k not in ("OMPI_MCA_pml", "HWLOC_COMPONENTS", "GOMP_SPINCOUNT")}
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", body], cwd=at, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=600,
                                      env={**env, "PATH": f"{path}:{ENV['PATH']}", "OMPI_MCA_rmaps_base_oversubscribe": "1"})
                self.assertEqual(done.returncode, 0, f"{document.name}:\n{body}\n{done.stdout}")
                ran += 1
            print(f"{document.name}: {ran} blocks")


if __name__ == "__main__":
    main()
