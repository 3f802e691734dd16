"""The kit's side of its processes: makes copies, asks them, kills them, lets them sleep."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from millrace.testing import wire
from millrace.testing.findings import BrokenError, UnusableError

DEADLINE_S = 60.0
"""Longest wait for an answer of the code under test."""

PATIENCE_S = 0.2
"""How long a call may wait for what another one holds that sleeps, before that one is woken."""


_MEMORY = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the time of a check: in memory where there is such a place, since the death of
    a process loses nothing that was written, and thousands of fsyncs take long.
    """
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="millrace-testing-", dir=place) as name:
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception that a call raised; ``kind`` is fenced, sink, source or other."""

    kind: str
    type: str
    message: str
    retryable: bool
    where: str

    def __str__(self) -> str:
        return f"{self.type} ({self.message}) at {self.where}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: with a value, with a fault, with death, or not yet (``asleep``)."""

    value: Any = None
    fault: Fault | None = None
    died: bool = False
    asleep: tuple[str, int] | None = None
    places: tuple[tuple[str, int], ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        return self.fault is None and not self.died

    def __str__(self) -> str:
        return "died" if self.died else f"raised {self.fault}" if self.fault else "returned"


class Copy:
    """One object in a process of its own."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._in: BinaryIO = link.makefile("rb")
        self._out: BinaryIO = link.makefile("wb")
        hello = wire.read(self._in)
        if hello is None:
            raise UnusableError("a process of the kit died before it was asked anything")
        self.pid = int(hello["pid"])
        self.beside: Copy | None = None
        self._sleeps = False
        self._called = ""
        self._ended: Outcome | None = None

    def ask(self, act: str, *, step: str | None = None, at_line: int = 0, **args: Any) -> Outcome:
        """Call a method and wait. ``step`` is what happens at line ``at_line``: kill, fail, sleep.

        With the steps ``count``, ``count for kill`` and ``count for sleep`` the outcome says which
        lines ran, and between which of them something happened that makes a difference. Where
        ``beside`` sleeps and holds what this call waits for or fails for, it is woken, and the
        call asked again.
        """
        self.begin(act, step=step, at_line=at_line, **args)
        beside = self.beside
        if beside is None or not beside._sleeps:
            return self.end()
        outcome = self.poll(PATIENCE_S)
        if outcome is None:
            beside.wake()
            return self.end()
        if outcome.fault is not None and (outcome.fault.retryable or outcome.fault.kind == "other"):
            beside.wake()
            beside.end()
            self.begin(act, step=step, at_line=at_line, **args)
            return self.end()
        return outcome

    def begin(self, act: str, *, step: str | None = None, at_line: int = 0, **args: Any) -> None:
        """Call a method and do not wait."""
        self._called = act
        self._ended = None
        with suppress(BrokenPipeError):
            wire.write(self._out, {"act": act, "args": args, "step": step, "at": at_line})

    def wake(self) -> None:
        """Let a call that sleeps go on; ``end`` tells then how that ended."""
        if not self._sleeps:
            return
        self._sleeps = False
        self._ended = None
        with suppress(BrokenPipeError):
            wire.write(self._out, {})

    def end(self) -> Outcome:
        """The outcome of the call. Raises ``BrokenError`` where there is none in time."""
        outcome = self._ended or self.poll(DEADLINE_S)
        if outcome is None:
            os.kill(self.pid, signal.SIGKILL)
            raise BrokenError("returns", f"{self._called}() did not return for {DEADLINE_S:g} s")
        self._ended = outcome
        return outcome

    def poll(self, patience_s: float) -> Outcome | None:
        """The outcome of the call, if it comes within ``patience_s``."""
        # A whole line follows its first byte, so that only the first one is waited for.
        self._link.settimeout(patience_s)
        try:
            if not self._link.recv(1, socket.MSG_PEEK):
                return Outcome(died=True)
        except TimeoutError:
            return None
        except ConnectionResetError:
            return Outcome(died=True)
        finally:
            self._link.settimeout(None)
        return self._outcome(wire.read(self._in))

    def _outcome(self, told: dict[str, Any] | None) -> Outcome:
        if told is None:
            return Outcome(died=True)
        if "asleep" in told:
            self._sleeps = True
            file, line = told["asleep"]
            return Outcome(asleep=(file, line))
        if "error" in told:
            return Outcome(fault=Fault(**told["error"]))
        value = told["value"]
        broken = value.get("broken") if isinstance(value, dict) else None
        if broken is not None:
            raise BrokenError(broken["rule"], broken["seen"])
        places = tuple((file, line) for file, line in told.get("places", ()))
        return Outcome(value=value, places=places, parts=tuple(told.get("parts", ())))

    def close(self) -> None:
        """End the process, whatever it does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for part in (self._in, self._out, self._link):
            with suppress(OSError):
                part.close()


class Workshop:
    """A process that has loaded a class and forks copies of it; ``close`` ends all of them.

    ``seed`` is that of ``hash()`` in it. Raises ``UnusableError`` for a class that cannot be
    loaded by name, as a topology must be able to.
    """

    def __init__(self, kind: type[Any], folder: Path, seed: int) -> None:
        self._folder = folder
        self._copies: list[Copy] = []
        if "<locals>" in kind.__qualname__:
            raise UnusableError(
                f"{kind.__qualname__} is defined inside a function, where no topology can name "
                "it; move it to a module"
            )
        self._listener = socket.socket(socket.AF_UNIX)
        self._socket = folder / f"kit-{seed}"
        self._listener.bind(str(self._socket))
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "millrace.testing.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )
        self._load(kind)

    def _load(self, kind: type[Any]) -> None:
        file = str(Path(inspect.getfile(kind)).resolve())
        self._tell(path=sys.path, module=kind.__module__, file=file, **{"class": kind.__qualname__})
        assert self._process.stdout is not None
        answer = wire.read(self._process.stdout)  # type: ignore[arg-type]
        problem = "its process died" if answer is None else answer.get("error")
        if problem is not None:
            self.close()
            raise UnusableError(
                f"{kind.__module__}:{kind.__qualname__} cannot be loaded by another process: "
                f"{problem}; a topology must be able to name it"
            )

    def copy(self, role: str, made: Any, area: Path | None = None) -> Copy:
        """A copy of ``made``, built anew from its name, options and folder."""
        try:
            options = json.dumps(made.options)
        except (TypeError, ValueError) as error:
            raise UnusableError(
                f"options of {made.name!r} are no JSON ({error}); a topology file could not say "
                "them: give values of JSON's own types"
            ) from error
        self._tell(
            role=role,
            name=made.name,
            options=options,
            folder=str(made.folder),
            area=str(area),
            socket=str(self._socket),
        )
        link, _ = self._listener.accept()
        copy = Copy(link)
        self._copies.append(copy)
        return copy

    def forget(self) -> None:
        """End all copies."""
        for copy in self._copies:
            copy.close()
        self._copies.clear()

    def close(self) -> None:
        """End the process and all copies."""
        self.forget()
        self._listener.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _tell(self, **message: Any) -> None:
        assert self._process.stdin is not None
        wire.write(self._process.stdin, message)  # type: ignore[arg-type]
