"""What a worker was doing when it died, told from files that outlive it.

Each worker keeps one small memory-mapped file (a note costs no system call and survives
SIGKILL); the daemon that forked it adds how it ended. ``AttemptRunner`` puts both together into
the reason that a dead attempt is given.

A note of one batch is also the worker's proof of progress: ``Box.begin`` arms an interval timer
whose signal keeps its default action, so that a batch that never ends, even inside a C loop that
never returns to the interpreter, ends the process.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from millrace.ids import NO_WINDOW, Execution, WindowAttempt, WindowNumber
from millrace.protocol.types import AttemptId

FOLDER_VARIABLE = "MILLRACE_BLACKBOX"
"""Environment variable that names the folder of the notes."""

_SIZE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Note:
    """What a worker works on; ``roots`` is the span (first, last) of its batch if known.

    ``batch``: user code has roots of the window in hand, by themselves or in combined tuples.
    """

    pid: int
    execution: Execution
    window: WindowNumber
    attempt: WindowAttempt
    pass_no: int
    partition: int
    processor: str = ""
    roots: tuple[int, int] | None = None
    busy: bool = True
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended: ``signal`` if one ended it, else ``exit_code``."""

    pid: int
    exit_code: int
    signal: int
    note: Note | None

    def blames(self, attempt: AttemptId) -> bool:
        """Whether the worker died in user code on roots that it had from this attempt."""
        note = self.note
        if note is None or not (note.busy and note.batch):
            return False
        return (note.execution, note.window, note.attempt) == astuple(attempt)


class Box:
    """The notes of one worker process.

    Without a folder only the timer works, without a time-out only the notes. Not thread-safe; one
    task at a time uses it.
    """

    def __init__(self, folder: Path | None, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._memory: mmap.mmap | None = None
        self._task = Note(os.getpid(), Execution(0), NO_WINDOW, WindowAttempt(0), 0, 0)
        if folder is not None:
            self._memory = _map_file(folder / f"{os.getpid()}.note")

    def task(self, note: Note) -> None:
        """A task begins."""
        self._task = note
        self._write(note)

    def begin(
        self, processor: str, roots: tuple[int, int] | None = None, batch: bool = False
    ) -> None:
        """``processor`` begins with something and has ``tupleTimeout`` from now.

        ``batch``: it is user code that gets tuples.
        """
        self._write(replace(self._task, processor=processor, roots=roots, batch=batch))
        self.progress()

    def progress(self) -> None:
        """The batch goes on: the time starts again."""
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s)

    def end(self) -> None:
        """User code has returned."""
        self._disarm()
        if self._memory is not None:
            self._write(self._task)

    def idle(self) -> None:
        """The task has ended; a death from here on has nothing to do with it."""
        self._disarm()
        self._write(replace(self._task, busy=False))

    def _disarm(self) -> None:
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _write(self, note: Note) -> None:
        if self._memory is None:
            return
        text = json.dumps(asdict(note)).encode()[: _SIZE_BYTES - 8]
        # The length goes last, so that a note cut off by a kill reads as the one before or none.
        self._memory[0:4] = b"\0\0\0\0"
        self._memory[4 : 4 + len(text)] = text
        self._memory[0:4] = len(text).to_bytes(4, "little")


def folder() -> Path | None:
    """The folder of the notes of this process, if it has one."""
    name = os.environ.get(FOLDER_VARIABLE)
    if not name:
        return None
    path = Path(name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def record_death(path: Path, pid: int, status: int) -> None:
    """Store a wait status (as ``os.waitpid`` gives it); called by the daemon."""
    temporary = path / f".{pid}.death"
    temporary.write_text(json.dumps({"pid": pid, "status": status}))
    temporary.replace(path / f"{pid}.death")


def collect(path: Path) -> list[Death]:
    """Take out every recorded death that is not an orderly end; each is returned once."""
    deaths = []
    for file in sorted(path.glob("*.death")):
        death = _read_death(path, file)
        file.unlink(missing_ok=True)
        if death is None:
            continue
        (path / f"{death.pid}.note").unlink(missing_ok=True)
        if death.signal or death.exit_code:
            deaths.append(death)
    return deaths


def await_deaths(path: Path, timeout_s: float) -> list[Death]:
    """Deaths of workers whose notes say busy, waited for as long as such a process is gone.

    Spark notices the end of a worker before its parent records how it ended.
    """
    end_s = time.monotonic() + timeout_s
    found = collect(path)
    while time.monotonic() < end_s and (not found or _unrecorded(path)):
        time.sleep(0.01)
        found += collect(path)
    return found


def describe(death: Death, timeout_s: float) -> str:
    """A sentence about a death: what the worker did and what ended it."""
    cause = _cause(death, timeout_s)
    note = death.note
    if note is None:
        return f"worker process {death.pid} ended: {cause}"
    where = f"processor {note.processor!r}" if note.processor else "the engine's own code"
    span = f", roots {note.roots[0]} to {note.roots[1]}" if note.roots else ""
    return (
        f"worker process {death.pid} ended in {where} (pass {note.pass_no}, partition "
        f"{note.partition}{span}): {cause}"
    )


def main_cause(deaths: Sequence[Death], attempt: AttemptId) -> Death | None:
    """The death that explains the others.

    When one worker has ended a job, Spark kills those that still work for it with SIGKILL.
    """

    def rank(death: Death) -> tuple[bool, bool]:
        return death.signal == signal.SIGKILL, not death.blames(attempt)

    busy = [death for death in deaths if death.note is not None and death.note.busy]
    return next(iter([*sorted(busy, key=rank), *deaths]), None)


def _cause(death: Death, timeout_s: float) -> str:
    if death.signal == signal.SIGALRM:
        return f"no progress within tupleTimeout ({timeout_s:g} s)"
    if death.signal == signal.SIGKILL:
        return "killed (SIGKILL), as the kernel does when memory runs out"
    if death.signal:
        return f"killed by {signal.Signals(death.signal).name}"
    return f"exit code {death.exit_code}"


def _read_death(path: Path, file: Path) -> Death | None:
    """What the daemon recorded; ``None`` for what it did not write, as it says nothing."""
    try:
        with file.open("rb") as handle:
            entry = json.loads(handle.read(_SIZE_BYTES))
        return _death(path, {"pid": int(entry["pid"]), "status": int(entry["status"])})
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def _death(path: Path, entry: dict[str, int]) -> Death:
    status = entry["status"]
    code, number = 0, 0
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
    else:
        code = os.WEXITSTATUS(status)
    return Death(entry["pid"], code, number, read_note(path / f"{entry['pid']}.note"))


def read_note(file: Path) -> Note | None:
    """The last note of a worker, or ``None`` where none can be read."""
    try:
        with file.open("rb") as handle:
            data = handle.read(_SIZE_BYTES)
        size = int.from_bytes(data[0:4], "little")
        if not 0 < size <= _SIZE_BYTES - 4:
            return None
        fields = json.loads(data[4 : 4 + size])
        if fields.get("roots"):
            first, last = fields["roots"]
            fields["roots"] = int(first), int(last)
        note = Note(**fields)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    numbers = (note.pid, note.execution, note.window, note.attempt, note.pass_no, note.partition)
    return note if all(type(number) is int for number in numbers) else None


def _unrecorded(path: Path) -> bool:
    for file in path.glob("*.note"):
        note = read_note(file)
        if note is not None and note.busy and not _alive(note.pid):
            return not file.with_suffix(".death").exists()
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _map_file(file: Path) -> mmap.mmap | None:
    """``None`` on a full disk: writing into a file without blocks would end the process.

    What is left of an earlier process with this number says nothing about this one, so then there
    is no note at all.
    """
    try:
        with file.open("w+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, _SIZE_BYTES)
            return mmap.mmap(handle.fileno(), _SIZE_BYTES)
    except OSError:
        with suppress(OSError):
            file.unlink()
        return None
