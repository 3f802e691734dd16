"""The processes of a run, found from outside: by the work folder's files and by ``/proc``.

A pid alone may be given to another process at any time, so whoever is to be stopped or killed is
held by a pidfd (Linux only).
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MARK = "MILLRACE_WORK_FOLDER"
"""Environment variable that every process of a run carries, as the documentation says."""

NOTE_FILE = "/memfd:millrace-note"
"""What the memory of a worker's notes is called in ``/proc``."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a Python worker said last about its work."""

    pid: int
    execution: int
    window: int
    attempt: int
    busy: bool


def read_json(path: Path) -> Any:
    """A document that is replaced as a whole; None before it exists."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def view(folder: Path) -> dict[str, Any]:
    """The membership document in a work folder; empty before there is one."""
    document = read_json(folder / "view.json")
    return dict(json.loads(document["view"])["value"]) if document else {}


def state_of(pid: int) -> str:
    """The state letter of ``/proc``; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")


def parents(pid: int) -> Iterator[int]:
    """The process and everything above it."""
    while pid > 1:
        yield pid
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return
        pid = int(stat[1])


def marked(folder: Path) -> list[int]:
    """Pids of all processes that were started for a run in a work folder."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                environment = file.readall()
        except OSError:
            continue
        # Tests look often, and at all that runs on the machine.
        if wanted in environment and wanted in environment.split(b"\0") and alive(int(name)):
            found.append(int(name))
    return found


def describe(pids: list[int]) -> str:
    """Pids with the ends of their command lines."""
    texts = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            command = "(gone)"
        texts.append(f"{pid} {command.strip()[-80:]}")
    return ", ".join(texts)


def listed(folder: Path, role: str) -> list[int]:
    """Living processes of a role that the supervisor lists."""
    table = read_json(folder / "processes.json") or {"processes": []}
    return [row["pid"] for row in table["processes"] if row["role"] == role and alive(row["pid"])]


def names(folder: Path) -> list[str]:
    """Names of the processes that the supervisor lists."""
    table = read_json(folder / "processes.json") or {"processes": []}
    return [row["name"] for row in table["processes"]]


def pid_of(folder: Path, name: str) -> int:
    """The process that the supervisor lists under a name, such as a state server's; 0 for none."""
    table = read_json(folder / "processes.json") or {"processes": []}
    return next((row["pid"] for row in table["processes"] if row["name"] == name), 0)


def executors(folder: Path) -> list[int]:
    """Living executor processes of Spark below the driver."""
    found = []
    for driver in listed(folder, "driver"):
        try:
            below = psutil.Process(driver).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        for process in below:
            try:
                command = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            # The worker that starts an executor names its class in its own arguments too late.
            if any("CoarseGrainedExecutorBackend" in part for part in command):
                found.append(process.pid)
    return [pid for pid in found if alive(pid)]


def notes(folder: Path) -> list[Note]:
    """The last notes of living Python workers, in the memory that each shares with its parent."""
    found = []
    for pid in marked(folder):
        # A JVM has hundreds of files open, and no note.
        for path in _notes_of(pid) if not _is_java(pid) else ():
            note = read_note(path)
            if note is not None and note.pid == pid:
                found.append(note)
    return found


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes() == b"java\n"
    except OSError:
        return False


def _notes_of(pid: int) -> Iterator[Path]:
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if str(path.readlink()).startswith(NOTE_FILE):
                yield path
    except OSError:
        return


def read_note(path: Path) -> Note | None:
    """One worker's note; None where it cannot be read."""
    try:
        data = path.read_bytes()
        size = int.from_bytes(data[:4], "little")
        fields: Mapping[str, Any] = json.loads(data[4 : 4 + size])
        return Note(*(fields[name] for name in ("pid", "execution", "window", "attempt", "busy")))
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def held(pid: int) -> Iterator[int | None]:
    """A pidfd of a process, or None where it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def send(handle: int, number: signal.Signals) -> bool:
    """Send a signal; False where the process has ended."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    return True


def signalled(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process that is known by its pid alone; False where it has ended."""
    with held(pid) as handle:
        return handle is not None and send(handle, number)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process stopped; it goes on at the end."""
    with held(pid) as handle:
        if handle is None:
            raise ProcessLookupError(f"there is no process {pid}")
        send(handle, signal.SIGSTOP)
        try:
            yield
        finally:
            send(handle, signal.SIGCONT)


def killed(pid: int, timeout_s: float) -> bool:
    """Kill a process; whether it is gone in time."""
    with held(pid) as handle:
        return handle is None or not send(handle, signal.SIGKILL) or ended(handle, timeout_s)


def ended(handle: int, timeout_s: float) -> bool:
    """Whether the process behind a pidfd ends within a time."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
