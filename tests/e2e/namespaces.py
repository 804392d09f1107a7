"""Namespaces of processes, network and mounts, in which tests pretend hosts (hosts.py): whether they can be had here."""
import shutil
import subprocess

NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
TRIAL = """ip link add try0 type bridge && ip link add try1 type veth peer name try2 &&
unshare --uts hostname pretend && mount -t tmpfs none /mnt"""


def why_not():
    """The reason why there cannot be pretend hosts here, or None."""
    for tool in ("ip", "unshare", "nsenter", "mpirun"):
        if not shutil.which(tool):
            return f"no {tool} here"
    done = subprocess.run([*NAMESPACES, "sh", "-c", TRIAL], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or [f"status {done.returncode}"]
        return f"no namespaces for pretend hosts (they need root): {lines[-1]}"
    return None
