"""The process that Spark forks Python workers from (``spark.python.daemon.module``).

It imports what every worker needs and compiles the kernels before the first fork, and freezes
the heap: the stock daemon's workers run a full garbage collection after every task, 44 to 96 ms
with Arrow and Numba loaded. It also records how its workers ended, since Spark only sees that
a socket was closed.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from millrace.engine.program import signing
from millrace.engine.task import blackbox

_YOUNG_OBJECTS = 50_000


def main() -> None:
    """Prepare, then serve forks until Spark closes standard input."""
    _prepare()
    box = blackbox.folder()
    if box is not None:
        _watch_children(box)
    from pyspark import daemon

    daemon.manager()


def _prepare() -> None:
    signing.run_secret()
    os.environ.pop("_SPARK_AUTH_SECRET", None)  # user code and what it starts need none
    import millrace.engine.task.sqlstage  # noqa: F401
    from millrace.engine.task.warm import warm_up

    warm_up()
    # Rows are dicts by the hundred thousand: the default looks through them after every 700.
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
    gc.collect()
    gc.freeze()


def _watch_children(box: Path) -> None:
    """Reap children and record their status, where Spark's daemon would ignore SIGCHLD."""
    daemon_pid = os.getpid()
    install = signal.signal

    def reap(_number: int, _frame: FrameType | None) -> None:
        while os.getpid() == daemon_pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            blackbox.record_death(box, pid, status)

    def guarded(number: int, handler: Any) -> Any:
        if number == signal.SIGCHLD and handler == signal.SIG_IGN and os.getpid() == daemon_pid:
            handler = reap
        return install(number, handler)

    signal.signal = guarded  # type: ignore[assignment]


if __name__ == "__main__":
    main()
