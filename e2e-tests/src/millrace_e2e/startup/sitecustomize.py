"""Leads the driver's connections to state servers through the proxy of ``millrace_e2e.detour``.

Python imports this at its start where its folder is on ``PYTHONPATH``. In any other process than a
driver it changes nothing.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

PROXY = os.environ.get("MILLRACE_E2E_PROXY", "")


def _through_proxy(direct: Any) -> Any:
    def connect(self: socket.socket, address: Any) -> None:
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller != "redis.connection" or not isinstance(address, tuple):
            direct(self, address)
            return
        direct(self, ("127.0.0.1", int(PROXY)))
        self.sendall(b"%d\n" % address[1])

    return connect


if PROXY and "millrace.engine.driver.main" in sys.orig_argv:
    socket.socket.connect = _through_proxy(socket.socket.connect)  # type: ignore[method-assign]
