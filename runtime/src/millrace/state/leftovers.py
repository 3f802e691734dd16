"""What a state server leaves behind that was killed: the child that rewrites its append-only file.

The child has inherited the lock of the server's folder and lives on, for as long as it writes; what
it writes nobody waits for any more, since only the server itself could have taken it. It is known
by what it holds and never by a name, which Valkey changes together with its environment:

* it has the lock of the folder open, works in the folder, and
* its session, which each server begins as its own, has lost the server.

A server that lives, whoever started it, leads its session, and so its children are left alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millrace.guard import stat_fields

LOCK = "lock"
"""Name of the file in a server's folder that is locked while the server lives."""


def end_orphans(folder: Path) -> list[int]:
    """SIGKILL children of servers that are gone, which keep ``folder`` locked; their pids.

    Does not wait for their ends. Linux only: without ``/proc`` nobody is found.
    """
    ended = []
    for pid in _pids():
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Behind the handle: what is looked at now is that process, or the signal hits nobody.
            if _is_orphan(pid, folder):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended.append(pid)
        except OSError:
            continue
        finally:
            os.close(handle)
    return ended


def _pids() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _is_orphan(pid: int, folder: Path) -> bool:
    """Raises ``OSError`` where the process is gone, or another user's."""
    return (
        pid != os.getpid()
        and os.path.samefile(f"/proc/{pid}/cwd", folder)
        and _session_is_left(pid)
        and _holds(pid, folder / LOCK)
    )


def _session_is_left(pid: int) -> bool:
    """Whether the process that began its session is gone. No other gets a session's number."""
    leader = int(stat_fields(pid)[3])
    if leader in (0, pid):  # 0: it was begun outside of this container
        return False
    try:
        return stat_fields(leader)[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _holds(pid: int, lock: Path) -> bool:
    wanted = lock.stat()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # a descriptor that was closed, or has no file
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False
