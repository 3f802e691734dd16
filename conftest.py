"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal

# A shell has background jobs ignore this, and the processes that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
