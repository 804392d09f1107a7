"""Pretend hosts on one machine: a network of veth pairs on a bridge; each host has its own network, hostname,
mounts and /dev/shm, and an address in a private net. mpirun reaches them by nsenter in place of ssh.

All of it lives inside namespaces of processes, network and mounts that the test moves into before anything
else, as their first process: when it ends, however it ends, the kernel ends and removes everything in them."""
import os
import pathlib
import signal
import subprocess
import sys

import harness
from namespaces import NAMESPACES, why_not

MARK = "TRIREME_PRETEND_HOSTS"


def move_inside():
    """Starts this program again inside its namespaces, if they can be had. Call before anything else."""
    if MARK not in os.environ and why_not() is None:
        os.execvpe("unshare", [*NAMESPACES, sys.executable, *sys.argv], {**os.environ, MARK: "1"})


def run(*command):
    subprocess.run(list(map(str, command)), check=True)


class Hosts:
    """Hosts of these names. `folder` takes the launch agent and the hosts' /etc/hosts."""

    def __init__(self, folder, names):
        self.folder, self.holders = folder, {}
        addresses = {name: f"10.213.0.{i + 1}" for i, name in enumerate(names)}
        table = folder / "hosts"
        table.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items()))
        run("ip", "link", "add", "hosts", "type", "bridge")
        run("ip", "link", "set", "hosts", "up")
        for name, address in addresses.items():
            self.open(name, address, table)
        self.agent = folder / "agent"
        cases = "".join(f"{name}) pid={holder.pid};;\n" for name, holder in self.holders.items())
        self.agent.write_text("#!/bin/sh\n# AGENT HOST COMMAND, as ssh does it: nothing of the environment goes along\n"
                              f'host=$1; shift\ncase $host in\n{cases}*) echo "no host $host" >&2; exit 1;;\nesac\n'
                              'exec env -i PATH="$PATH" HOME=/ nsenter -t $pid --net --uts --mount sh -c "$*"\n')
        self.agent.chmod(0o755)

    def open(self, name, address, table):
        """The process that holds a host's namespaces, and the host's cable."""
        setup = (f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p {harness.ENV[harness.SHM]} && mount --bind {table} /etc/hosts && echo up && "
                 "read closed")
        holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", setup], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holders[name] = holder
        if holder.stdout.readline() != "up\n":
            raise RuntimeError(f"host {name} did not start")
        cable = f"to-{name}"
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", holder.pid)
        run("ip", "link", "set", cable, "master", "hosts", "up")
        run(*self.on(name, "ip", "address", "add", f"{address}/24", "dev", "eth0"))
        run(*self.on(name, "ip", "link", "set", "lo", "up"))
        run(*self.on(name, "ip", "link", "set", "eth0", "up"))

    def on(self, name, *command):
        """The command line that runs a command on a host, in the hosts' folder."""
        return ["nsenter", "-t", str(self.holders[name].pid), "--net", "--uts", "--mount", "sh", "-c",
                'cd "$0" && exec "$@"', str(self.folder), *map(str, command)]

    def mpirun(self, where, *command, **parameters):
        """The command line of a job on "a:2,b:1", started on the first of these, with parameters of Open MPI."""
        places = [place.split(":") for place in where.split(",")]
        options = [word for name, value in parameters.items() for word in ("--mca", name, value)]
        return self.on(places[0][0], "mpirun", "--oversubscribe", "--mca", "plm_rsh_agent", self.agent, "--mca",
                       "orte_tmpdir_base", self.folder, *options, "-np", sum(int(n) for _, n in places), "--host",
                       where, *command)

    def hide(self, name, folder):
        """An empty folder in the place of this one, on one host."""
        run(*self.on(name, "mount", "-t", "tmpfs", "none", folder))

    def cut(self, name):
        """Pulls the host's cable."""
        run("ip", "link", "set", f"to-{name}", "down")

    def processes(self, name, executable=None):
        """PIDs of what runs on a host, or of this program there, but for what it starts itself to look at a file."""
        there, found = os.readlink(f"/proc/{self.holders[name].pid}/ns/uts"), {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/uts") != there:
                    continue
                if executable is None or os.readlink(entry / "exe") == str(executable):
                    found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # it ended meanwhile
        return sorted(pid for pid, parent in found.items() if executable is None or parent not in found)

    def close(self):
        for name, holder in self.holders.items():
            for pid in self.processes(name):
                os.kill(pid, signal.SIGKILL)
            holder.communicate()
            subprocess.run(["ip", "link", "delete", f"to-{name}"], stderr=subprocess.DEVNULL)  # gone with the host
        run("ip", "link", "delete", "hosts")
