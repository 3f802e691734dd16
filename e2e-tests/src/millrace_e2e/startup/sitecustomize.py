"""What tests do inside the processes of a run, each for those alone that it is meant for.

==============================  ====================================================================
variable                        what it does
==============================  ====================================================================
``MILLRACE_E2E_PROXY``          leads a driver's connections to state servers through the proxy of
                                ``millrace_e2e.detour`` at that socket
``MILLRACE_E2E_TASKS_PROXY``    the same for the Python workers of a run
``MILLRACE_E2E_BUSY``           an acker takes a core for as long as a file of its name is in that
                                folder
``MILLRACE_E2E_ACKERS_IDLE_S``  for how many seconds a supervisor sees ackers idle before one goes
``MILLRACE_E2E_EARLY_ROOTS``    how many roots make a window a large one to a driver's ack log
==============================  ====================================================================

Python imports this at its start where its folder is on ``PYTHONPATH``.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

PROXY = os.environ.get("MILLRACE_E2E_PROXY", "")
TASKS_PROXY = os.environ.get("MILLRACE_E2E_TASKS_PROXY", "")
BUSY = os.environ.get("MILLRACE_E2E_BUSY", "")
EARLY_ROOTS = os.environ.get("MILLRACE_E2E_EARLY_ROOTS", "")
ACKERS_IDLE_S = os.environ.get("MILLRACE_E2E_ACKERS_IDLE_S", "")


def _through_proxy(direct: Any, proxy: str) -> Any:
    def connect(self: socket.socket, address: Any) -> None:
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller != "redis.connection" or self.family is not socket.AF_UNIX:
            direct(self, address)
            return
        direct(self, proxy)
        self.sendall(f"{address}\n".encode())

    return connect


def _take_a_core(mark: str) -> None:
    """Hashing runs beside the rest of the process, which goes on with its work."""
    with suppress(PermissionError):
        # Whatever else the machine has to do, where whoever runs this may ask for that.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    while True:
        if os.path.exists(mark):
            hashlib.sha256(_MUCH).digest()
        else:
            time.sleep(0.1)


if PROXY and "millrace.engine.driver.main" in sys.orig_argv:
    socket.socket.connect = _through_proxy(  # type: ignore[method-assign]
        socket.socket.connect, PROXY
    )

if TASKS_PROXY and "millrace.engine.task.daemon" in sys.orig_argv:
    socket.socket.connect = _through_proxy(  # type: ignore[method-assign]
        socket.socket.connect, TASKS_PROXY
    )

if BUSY and "millrace.local.acker" in sys.orig_argv:
    _MUCH = bytes(1 << 25)
    _mark = os.path.join(BUSY, sys.orig_argv[sys.orig_argv.index("--name") + 1])
    threading.Thread(target=_take_a_core, args=(_mark,), daemon=True).start()

if ACKERS_IDLE_S and "millrace.cli.app" in sys.orig_argv:
    from millrace.protocol import ackerload

    ackerload.SHRINK_AFTER_S = float(ACKERS_IDLE_S)

if EARLY_ROOTS and "millrace.engine.driver.main" in sys.orig_argv:
    from millrace.tracking import control

    control.EARLY_ROOTS = int(EARLY_ROOTS)
