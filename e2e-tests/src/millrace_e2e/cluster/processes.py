"""The processes of a cluster: started apart from us, written down, and ended by what they are.

A pid is written down with the moment its process started, so that a number which another process
has got meanwhile is never killed. A process that was started and not written down, since we died
in between, is found by its network namespace.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import Layout, namespace_file
from millrace_e2e.cluster.locks import HELD

_END_S = 20.0
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its pid and its birth: the machine's boot and clock ticks since then."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """None where there is none, and for a zombie; but one that has threads left has its ports,
        too."""
        try:
            fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
            boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        state, threads, born = fields[0], int(fields[17]), fields[19]
        return None if state in "ZX" and threads <= 1 else cls(pid, f"{boot} {born}")

    @property
    def runs(self) -> bool:
        return Process.of(self.pid) == self

    def kill(self) -> None:
        """SIGKILL for this very process, if it still runs."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.runs:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)

    def child(self) -> Process | None:
        """Its only child: PID 1 of the namespace that ``unshare --fork`` made."""
        try:
            children = (_PROC / f"{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return None
        return Process.of(int(children[0])) if children else None


class Processes:
    """Those of one cluster by name, kept in a file that is replaced before anyone relies on it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: list[subprocess.Popen[bytes]] = []

    def all(self) -> dict[str, Process]:
        """What was started, whether it still runs or not."""
        try:
            rows = json.loads(self._layout.processes.read_bytes())
        except FileNotFoundError:
            return {}
        return {name: Process(**row) for name, row in rows.items()}

    def running(self, name: str) -> Process | None:
        known = self.all().get(name)
        return known if known is not None and known.runs else None

    def start(self, name: str, namespace: str, command: Sequence[str]) -> Process:
        """Run a command in a network namespace, in a session of its own, with a log file."""
        self._layout.logs.mkdir(parents=True, exist_ok=True)
        with (self._layout.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*in_network(namespace), *command],
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # It outlives us; while we last, it is ours to reap.
        self._children = [one for one in self._children if one.poll() is None] + [child]
        started = Process.of(child.pid)
        if started is None:
            raise ClusterError(f"{name} ended at once:\n{self.last_words(name)}")
        self._write({**self.all(), name: started})
        return started

    def last_words(self, name: str, lines: int = 8) -> str:
        """The end of a process's log."""
        try:
            text = (self._layout.logs / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def end(self, names: Iterable[str]) -> None:
        """Kill processes and wait until they are gone."""
        known = self.all()
        chosen = {name: known[name] for name in names if name in known}
        end(chosen.values())
        if chosen:
            self._write({name: one for name, one in known.items() if name not in chosen})

    def _write(self, known: Mapping[str, Process]) -> None:
        path = self._layout.processes
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({name: asdict(one) for name, one in known.items()}, indent=1))
        os.replace(draft, path)


def end(processes: Iterable[Process]) -> None:
    """Kill processes and wait until they are gone."""
    chosen = list(processes)
    for one in chosen:
        one.kill()
    deadline = time.monotonic() + _END_S
    while left := [one.pid for one in chosen if one.runs]:
        if time.monotonic() > deadline:
            raise ClusterError(f"still running after SIGKILL: {left}")
        time.sleep(0.02)


def members_of(namespace: str) -> list[Process]:
    """All processes in a network namespace, but not in those that pods have within it."""
    try:
        mine = namespace_file(namespace).stat()
    except FileNotFoundError:
        return []
    found = []
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        process = Process.of(pid)
        try:
            theirs = (_PROC / f"{pid}/ns/net").stat()
        except OSError:
            continue
        if process is not None and os.path.samestat(mine, theirs):
            found.append(process)
    return found


def in_network(namespace: str) -> list[str]:
    """What goes before a command that is to run in a network namespace."""
    return ["nsenter", f"--net={namespace_file(namespace)}"]


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"}
"""Only what programs need: proxies and clouds of the caller are none of their business."""


def run(*command: str) -> str:
    """Output of a command that must succeed. Raises ``ClusterError`` with what it said."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        pass_fds=tuple(HELD),
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"{' '.join(command)} failed (exit {done.returncode}): {said}")
    return done.stdout
