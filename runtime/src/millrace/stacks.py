"""What every thread of a process is doing, written to its log when it is asked by a signal."""

from __future__ import annotations

import faulthandler
import signal
import sys

SIGNAL = signal.SIGUSR1


def write_on_request() -> None:
    """From now on SIGUSR1 makes this process and its forks write their stacks to standard error.

    That needs neither the interpreter's lock nor memory, so it works in a process that hangs.
    """
    # The process's own: whoever calls from another program may have put a text there instead.
    if sys.__stderr__ is not None:
        faulthandler.register(SIGNAL, file=sys.__stderr__, all_threads=True, chain=False)
