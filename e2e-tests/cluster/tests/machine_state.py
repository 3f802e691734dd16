"""What a machine has that a cluster could leave behind, read without the cluster's own code."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_KINDS = ("net", "mnt", "pid", "ipc", "uts", "cgroup")
_FOLDERS = (
    "/run",
    "/run/lock",
    "/run/netns",
    "/var/lib",
    "/var/log",
    "/opt",
    "/etc/cni",
    "/var/run",
)
_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/rp_filter",
    "net/bridge/bridge-nf-call-iptables",
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/panic_on_oom",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

_EXACT = ("routes", "rules", "iptables", "ip6tables", "settings", "addresses")

State = dict[str, frozenset[str]]


def read() -> State:
    """Everything of the machine that is looked at, as sets of lines."""
    return {
        "mounts": _mounts(),
        "links": _names("/sys/class/net"),
        "addresses": _lines("ip", "-oneline", "address"),
        "routes": _lines("ip", "route", "show", "table", "all"),
        "neighbours of a bridge": _lines("ip", "neighbour", "show", "to", "10.250.0.0/16"),
        "rules": _lines("ip", "rule"),
        "iptables": _tables("iptables-save"),
        "ip6tables": _tables("ip6tables-save"),
        "cgroups": _cgroups(),
        "settings": frozenset(f"{name}={_text('/proc/sys/' + name)}" for name in _SYSCTLS),
        "programs": _programs(),
        "files": frozenset(f"{top}/{name}" for top in _FOLDERS for name in _names(top)),
        "sockets": _sockets(),
    }


def left(before: State, now: State) -> dict[str, list[str]]:
    """What is there and was not; of what is the machine's own also what was there and is not.

    A cgroup in which a process runs is another's: of a cluster that is down none does.
    """
    changed = {
        name: now[name] ^ before[name] if name in _EXACT else now[name] - before[name]
        for name in before
    }
    changed["cgroups"] = frozenset(one for one in changed["cgroups"] if not _in_use(one))
    return {name: sorted(lines) for name, lines in changed.items() if lines}


def wait_until_equal(before: State, patience_s: float = 30.0) -> dict[str, list[str]]:
    """What is left when others on the machine have had time to end what they had begun."""
    deadline = time.monotonic() + patience_s
    while (rest := left(before, read())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return rest


@dataclass(frozen=True)
class Trees:
    """Processes with all that they have started, and the namespaces that these are in."""

    processes: frozenset[str]
    namespaces: frozenset[str]

    @classmethod
    def below(cls, roots: Iterable[int]) -> Trees:
        parents = {pid: stat[1] for pid, stat in _stats().items()}
        chosen, more = set[int](), {pid for pid in roots if pid in parents}
        while more:
            chosen |= more
            more = {pid for pid, parent in parents.items() if parent in more}
        return cls(_named(chosen), _namespaces(chosen) - _namespaces({os.getpid()}))

    def pids(self) -> list[int]:
        return [int(name.split()[0]) for name in self.processes]

    def alive(self) -> list[str]:
        """What of them is still there."""
        everyone = set(_stats())
        return sorted(
            (self.processes & _named(everyone)) | (self.namespaces & _namespaces(everyone))
        )


def _stats() -> dict[int, tuple[str, int, str]]:
    """State, parent and start of every process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields and fields[0] not in "ZX":
            found[int(pid)] = (fields[0], int(fields[1]), fields[19])
    return found


def _named(pids: Iterable[int]) -> frozenset[str]:
    stats = _stats()
    return frozenset(f"{pid} since {stats[pid][2]}" for pid in pids if pid in stats)


def _lines(*command: str) -> frozenset[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    return frozenset(done.stdout.splitlines())


def _tables(command: str) -> frozenset[str]:
    """Rules without the counts and dates that pass by."""
    return frozenset(
        line.partition(" [")[0] for line in _lines(command) if not line.startswith("#")
    )


def _mounts() -> frozenset[str]:
    rows = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return frozenset(f"{row[4]} {row[row.index('-') + 1]}" for row in rows)


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cgroups() -> frozenset[str]:
    found = set()
    for top, folders, _ in os.walk("/sys/fs/cgroup"):
        found |= {os.path.join(top, name) for name in folders}
    return frozenset(found)


def _in_use(cgroup: str) -> bool:
    """Whether a process is in it, or in one below it."""
    return any(_text(f"{top}/cgroup.procs") for top, _, _ in os.walk(cgroup))


def _namespaces(pids: Iterable[int]) -> frozenset[str]:
    found = set()
    for pid in pids:
        for kind in _KINDS:
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return frozenset(found)


def _programs() -> frozenset[str]:
    """Commands with files of a cluster."""
    lines = (_text(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    parts = ("/millrace/cluster/running", "/run/millrace")
    return frozenset(line for line in lines if any(part in line for part in parts))


def _sockets() -> frozenset[str]:
    """Names of Unix sockets that a cluster's programs listen on."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    names = (line.split()[-1] for line in lines if "/" in line.split()[-1])
    return frozenset(name for name in names if "containerd" in name or "/run/millrace" in name)
