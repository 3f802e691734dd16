"""Ties the life of a child process to that of the supervisor; a script, run as ``python -I -S``.

``guard.py exec PARENT -- command…`` becomes the command, which the kernel kills when ``PARENT``
dies. That is enough for a process without children of its own.

``guard.py tree PARENT CHANNEL [expendable] -- command…`` stays between the supervisor and the
command and keeps the whole tree below it together, even processes that change their session or lose
their parent (a JVM, Spark's Python daemon and its workers): it is their *subreaper*. Of an
*expendable* tree the kernel ends the processes before others where memory runs out, the guard left
out.

========================  =====================================================================
dies by SIGKILL           what follows
========================  =====================================================================
supervisor                the channel closes: the guard kills the tree and ends
command                   the guard kills what is left of the tree, then ends in the same way
anything below            nothing; the command has to notice
guard                     the kernel kills the command; the supervisor kills the rest by its mark
========================  =====================================================================

On the channel (a socket, by file descriptor) the guard writes the command's pid as one line;
the supervisor writes single bytes: ``T`` SIGTERM and ``I`` SIGINT for the command, ``K`` SIGKILL
for the tree. This file imports nothing but the standard library, so that it starts in some
milliseconds, and works on Linux alone (``prctl``, ``/proc``, pidfds). Processes that start others
without it, or are started without it, use ``die_with`` alone.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

FIRST_TO_GO = 800
"""``oom_score_adj`` of an expendable process: as if it took four fifths of the memory more."""


# Opened at import, since nothing may be loaded between a fork and what follows it.
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def become_subreaper() -> None:
    """Make orphans below this process its children, so that it can find and reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, code: int = 128 + signal.SIGKILL) -> None:
    """Ask the kernel for SIGKILL when ``parent`` dies.

    Ends at once, with ``code``, if it is already gone. To be called between fork and exec or by the
    child itself; the parent is the *thread* that forked.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(code)


def descendants(root: int) -> list[tuple[int, int]]:
    """(pid, start time in clock ticks) of every process below ``root``, zombies left out."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = _stat(int(name))
        if stat is not None:
            parent, start = stat
            children.setdefault(parent, []).append((int(name), start))
    found: list[tuple[int, int]] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [pid for pid, _ in below]
    return found


def stat_fields(pid: int) -> list[bytes]:
    """What the kernel says of a process, from its state on (field 3 of proc(5)). Raises
    ``OSError`` where it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The command's name may hold spaces and brackets; the last bracket ends it.
        return file.read().rpartition(b")")[2].split()


def _stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time) of a live process."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def kill_exactly(pid: int, start: int) -> None:
    """SIGKILL a process unless the pid has meanwhile been given to another one."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = _stat(pid)
        if stat is not None and stat[1] == start:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def kill_tree() -> None:
    """Kill and reap everything below this process; returns when nothing is left.

    Every death is followed by a new look: what a process forked between the look and its death
    is found then, since by that time it exists.
    """
    while True:
        for pid, start in descendants(os.getpid()):
            kill_exactly(pid, start)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _go_first() -> None:
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < FIRST_TO_GO:
                file.seek(0)
                file.write(str(FIRST_TO_GO))
    except (OSError, ValueError):
        # Then it is as the others are.
        return


def _start(command: list[str], expendable: bool) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with(guard)
        if expendable:
            _go_first()
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _end_like(status: int) -> NoReturn:
    """End with the exit code or by the signal that ended the command."""
    if os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _reap(command: int) -> int | None:
    """Reap all that has ended; the command's status if it is among them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == command:
            ended = status


def guard(channel: int, command: list[str], expendable: bool = False) -> NoReturn:
    """Run ``command`` and end after it, with nothing left of its tree."""
    os.set_inheritable(channel, False)
    become_subreaper()
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pid = _start(command, expendable)
    try:
        os.write(channel, b"%d\n" % pid)
    except OSError:
        kill_tree()
        os._exit(1)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(awake, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if awake in ready:
            os.read(awake, 4096)
            status = _reap(pid)
            if status is not None:
                kill_tree()
                _end_like(status)
        if channel in ready:
            _obey(channel, pid)


def _obey(channel: int, pid: int) -> None:
    """Carry out what the supervisor writes; its end is the tree's end."""
    try:
        orders = os.read(channel, 64)
    except OSError:
        orders = b""
    if not orders:
        kill_tree()
        os._exit(128 + signal.SIGKILL)
    for order in orders:
        if order == ord("K"):
            for below, start in descendants(os.getpid()):
                kill_exactly(below, start)
        elif order in (ord("T"), ord("I")):
            # The command is not reaped before ``_reap``, so its pid is still its own.
            os.kill(pid, signal.SIGTERM if order == ord("T") else signal.SIGINT)


def main(arguments: list[str]) -> NoReturn:
    """See the module's text for the two forms."""
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    parent = int(options[1])
    if options[0] == "tree":
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        guard(int(options[2]), command, "expendable" in options[3:])
    try:
        die_with(parent)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
    os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
