"""The process that Spark forks Python workers from (``spark.python.daemon.module``).

It imports what every worker needs and compiles the kernels before the first fork, and freezes the
heap (``startup.loading``): the stock daemon's workers run a full garbage collection after every
task, 44 to 96 ms with Arrow and Numba loaded. It also tells how its workers ended (``deaths``),
since Spark only sees that a socket was closed.

Spark starts it with the first task. A driver starts one ahead while Spark comes up (``handover``),
so that this task does not wait for all that: ``python -m millrace.engine.task.daemon ahead FD``.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

# What hands over loads nothing else.
from millrace import guard
from millrace.engine import handover
from millrace.logs import stacks
from millrace.startup import loading

if TYPE_CHECKING:
    from millrace.engine.task.blackbox import Page, Recipient
    from millrace.engine.task.deaths import Death

AHEAD = "ahead"

PLACE_VARIABLE = "MILLRACE_DAEMON_AHEAD"
"""Where a daemon that was started ahead listens."""

_YOUNG_OBJECTS = 50_000


def main() -> None:
    """Prepare, then serve forks until Spark closes standard input."""
    stacks.write_on_request()
    if sys.argv[1:2] == [AHEAD]:
        _prepare()
        if not handover.take_over(socket.socket(fileno=int(sys.argv[2]))):
            return
    else:
        place = os.environ.get(PLACE_VARIABLE)
        if place and handover.hand_over(place):
            return
        _prepare()
    _keep_secrets()
    _watch_children()
    from pyspark import daemon

    daemon.worker = _alone_with_spark(daemon.worker)
    daemon.manager()


def _prepare() -> None:
    with loading():
        from millrace import pandaslater

        pandaslater.put_off()

        from millrace.engine.task.warm import warm_up

        warm_up()
    # Rows are dicts by the hundred thousand: the default looks through them after every 700.
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


def _keep_secrets() -> None:
    """Take them out of the environment: user code and what it starts need none."""
    from millrace.engine.program import signing

    signing.run_secret()
    os.environ.pop("_SPARK_AUTH_SECRET", None)


def _watch_children() -> None:
    """Give each worker a page for its notes, and reap it, where Spark's daemon would ignore
    SIGCHLD.

    To tell of an end is to fork, and a fork takes locks that are held through another one: a signal
    that comes within a fork, or while ends are told, is heard behind it.
    """
    from millrace.engine.task import blackbox, deaths

    daemon_pid = os.getpid()
    install, fork = signal.signal, os.fork
    pages: dict[int, Page] = {}
    busy = due = False

    def forked() -> int:
        nonlocal busy
        busy, page = True, _page()
        try:
            pid = fork()
            if pid == 0:
                # Spark has its workers end with SIGHUP from the daemon, which may be killed.
                guard.die_with(daemon_pid)
                os.fork = fork
                for other in pages.values():
                    other.close()
                pages.clear()
                blackbox.mine = page
            elif page is not None:
                pages[pid] = page
        finally:
            busy = False
            reap_all()
        return pid

    def heard(_number: int, _frame: FrameType | None) -> None:
        nonlocal due
        due = True
        reap_all()

    def reap_all() -> None:
        nonlocal busy, due
        while due and not busy and os.getpid() == daemon_pid:
            busy, due = True, False
            try:
                while reaped():
                    pass
            finally:
                busy = False

    def reaped() -> bool:
        """Whether a child had ended that was not heard of yet."""
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        page = pages.pop(pid, None)
        if page is not None:
            told = deaths.within_a_task(pid, status, page)
            page.close()
            if told is not None:
                _send(fork, *told)
        return pid != 0

    def guarded(number: int, handler: Any) -> Any:
        if number == signal.SIGCHLD and handler == signal.SIG_IGN and os.getpid() == daemon_pid:
            handler = heard
        return install(number, handler)

    os.fork = forked
    signal.signal = guarded  # type: ignore[assignment]


Worker = Callable[[socket.socket, bool], int]


def _alone_with_spark(worker: Worker) -> Worker:
    """What Spark's daemon calls for each task of a forked worker, so that no process which user
    code forks has the worker's socket: by the socket's end Spark hears that the worker has ended,
    and a copy would keep it waiting."""
    known: set[int] = set()

    def watched(sock: socket.socket, authenticated: bool) -> int:
        number = os.fstat(sock.fileno()).st_ino
        if number not in known:
            known.add(number)
            os.register_at_fork(after_in_child=lambda: _let_go(number))
        return worker(sock, authenticated)

    return watched


def _let_go(number: int) -> None:
    """Put the null device in the place of every descriptor of a socket, given by its inode."""
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the list itself is closed by now
            found = os.fstat(int(name))
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == number:
                os.dup2(null, int(name), inheritable=False)
    os.close(null)


def _page() -> Page | None:
    """Without memory for a page a worker has no notes, and its end is evidence of nothing."""
    from millrace.engine.task.blackbox import Page

    try:
        return Page()
    except OSError:
        return None


def _send(fork: Callable[[], int], death: Death, recipient: Recipient) -> None:
    """Tell of a death in a process of its own: the daemon has workers to fork meanwhile."""
    from millrace.engine.task import deaths

    daemon_pid = os.getpid()
    try:
        if fork() != 0:
            return
    except OSError as error:
        _complain(error)
        return
    try:
        guard.die_with(daemon_pid)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(deaths.TELL_S)
        # Spark may wait for the end of a connection that the daemon had open.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        deaths.tell(death, recipient)
    except Exception as error:  # noqa: BLE001 the boundary of a process
        _complain(error)
    finally:
        os._exit(0)


def _complain(error: Exception) -> None:
    print(f"the end of a worker could not be told: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
