"""Children of the supervisor: started under the guard, watched by pidfd.

Children must be started from the supervisor's main thread: the kernel's "kill me when my parent
dies" is about the thread that forked.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from millrace import guard
from millrace.errors import MillraceError
from millrace.local.processes import ProcessId
from millrace.modes import UMASK_VARIABLE

GUARD = Path(guard.__file__)

_REPORT_TIMEOUT_S = 20.0
_ABANDON_S = 10.0


def own_umask() -> int:
    """This process's umask, without changing it as ``os.umask`` would for a moment."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run. ``tree`` is for a command that has processes of its own below it.

    ``name`` is unique within a run (``acker-0``), ``role`` says what it is (``acker``);
    ``environment`` is added to the supervisor's own. ``ready`` is a file that each life makes once
    it can do its work; without one it can from its start on. ``ordered``: it reads orders from its
    standard input, and nobody else sees its standard output until it is given another's post.
    ``expendable``: where memory runs out the kernel is to end its tree before others.
    """

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    tree: bool = False
    ready: Path | None = None
    ordered: bool = False
    expendable: bool = False


class Child:
    """One life of a process. ``pid`` is the command's own, ``guard`` that of its guard or 0.

    Raises ``OSError`` and ``MillraceError`` where it cannot be started, and leaves nothing but what
    a guard that did not answer has below it, which is found by its mark.

    ``handle`` becomes readable when the child has ended; nothing of its tree is left then,
    unless the guard itself was killed.
    """

    def __init__(self, spec: ProcessSpec, stdout: int, stderr: int) -> None:
        self.spec = spec
        self.handle = -1
        self._channel: socket.socket | None = None
        command, pass_fds, theirs = self._wrapped(spec)
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if spec.ordered else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, UMASK_VARIABLE: f"{own_umask():o}", **spec.environment},
                cwd=spec.folder,
                pass_fds=pass_fds,
                start_new_session=True,
                umask=0o077,
            )
        except BaseException:
            self._close_channel()
            raise
        finally:
            if theirs is not None:
                theirs.close()
        try:
            self.handle = os.pidfd_open(self._popen.pid)
            self.guard = self._popen.pid if spec.tree else 0
            self.pid = self._reported_pid() if spec.tree else self._popen.pid
        except BaseException:
            self._abandon()
            raise
        own = ProcessId.of(self.pid)
        # A command that is gone already has no start time any more and needs none.
        self.ticks = own.ticks if own else 0

    def _wrapped(
        self, spec: ProcessSpec
    ) -> tuple[list[str], tuple[int, ...], socket.socket | None]:
        start = [sys.executable, "-I", "-S", str(GUARD)]
        if not spec.tree:
            return [*start, "exec", str(os.getpid()), "--", *spec.command], (), None
        self._channel, theirs = socket.socketpair()
        fd = theirs.fileno()
        expendable = ["expendable"] if spec.expendable else []
        begun = [*start, "tree", str(os.getpid()), str(fd), *expendable, "--", *spec.command]
        return begun, (fd,), theirs

    def _reported_pid(self) -> int:
        assert self._channel is not None
        self._channel.settimeout(_REPORT_TIMEOUT_S)
        try:
            text = self._channel.recv(32)
            return int(text)
        except (OSError, ValueError) as error:
            raise MillraceError(
                f"process {self.spec.name}: its guard did not report a pid ({error}); look into "
                "its log"
            ) from error

    def ended(self) -> int | None:
        """Exit code, or minus the signal's number; None while it runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float) -> int | None:
        """As ``ended``, after waiting for at most ``timeout_s``."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_stop(self) -> None:
        """SIGTERM for the command."""
        self._signal(signal.SIGTERM, b"T")

    def order(self, text: bytes) -> None:
        """Write to its standard input, a few bytes; one that is gone hears nothing."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            os.write(self._popen.stdin.fileno(), text)

    def kill(self) -> None:
        """SIGKILL for the command and all below it."""
        self._signal(signal.SIGKILL, b"K")

    def close(self) -> None:
        """Free the handles of an ended child; what still lives of a tree is killed by it."""
        os.close(self.handle)
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._close_channel()

    def _abandon(self) -> None:
        """End what was begun and cannot be watched; the kernel ends a guard's command with it."""
        self._popen.kill()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_ABANDON_S)
        if self.handle >= 0:
            os.close(self.handle)
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _signal(self, number: signal.Signals, order: bytes) -> None:
        if self._channel is None:
            # Popen sends nothing to a child that it has reaped.
            self._popen.send_signal(number)
            return
        try:
            self._channel.send(order)
        except OSError:
            # The guard is gone, and with it the command.
            return
