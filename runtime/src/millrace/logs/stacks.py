"""What every thread of a process is doing, written to its log when it is asked by a signal."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from types import FrameType

SIGNAL = signal.SIGUSR1
FORCED = signal.SIGUSR2


def write_on_request() -> None:
    """From now on two signals make this process and its forks write their stacks to standard error.

    ``SIGNAL`` does between two steps of the interpreter, where no other thread runs, so that the
    process goes on unharmed. One whose main thread does not come back from native code answers
    only to ``FORCED``, which needs no lock of the interpreter and therefore may end the process:
    it walks frames that other threads are changing.
    """
    # The process's own: whoever calls from another program may have put a text there instead.
    if sys.__stderr__ is None:
        return
    faulthandler.register(FORCED, file=sys.__stderr__, all_threads=True, chain=False)
    # Only the main thread may say what a signal does.
    if threading.current_thread() is threading.main_thread():
        signal.signal(SIGNAL, _write)


def _write(_signal: int, _frame: FrameType | None) -> None:
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
