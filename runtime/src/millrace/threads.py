"""Threads that share an interpreter."""

from __future__ import annotations

import sys

SWITCH_S = 0.0005
"""How long a thread may keep others waiting for the interpreter. A window goes through several that
work a fraction of a millisecond each, and Python's own 5 ms are as long as half of a small one."""


def switch_often() -> None:
    """Let no thread of this process wait longer than ``SWITCH_S`` for another one."""
    sys.setswitchinterval(SWITCH_S)
