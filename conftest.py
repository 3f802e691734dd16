"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How fast an example is says something about the machine alone.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")

# A shell has background jobs ignore this, and the processes that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
