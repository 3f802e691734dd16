"""Asks the run of a work folder to end. The run is known by its process, never by a name."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from millrace.errors import MillraceError
from millrace.local.processes import ProcessId
from millrace.local.takeover import current_holder


def stop_run(path: Path, timeout_s: float, *, now: bool = False) -> ProcessId | None:
    """Send SIGTERM to the run that holds ``path`` and wait for its end; None where nothing runs.

    A second SIGTERM, for ``now``, kills the driver. Raises ``MillraceError`` where the process is
    another user's.
    """
    holder = current_holder(path)
    if holder is None:
        return None
    process = holder.process
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process
    try:
        # The handle is of whatever has the pid now; only the process in the lock is meant.
        if not process.alive:
            return process
        _signal(handle, process)
        if now:
            # The two would be one if the run had not looked at the first yet.
            _await(handle, _BETWEEN_S)
            _signal(handle, process)
        _await(handle, timeout_s)
        return process
    finally:
        os.close(handle)


_BETWEEN_S = 1.0


def _signal(handle: int, process: ProcessId) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise MillraceError(
            f"process {process.pid} belongs to another user and cannot be stopped from here"
        ) from error


def _await(handle: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll(timeout_s * 1000)
