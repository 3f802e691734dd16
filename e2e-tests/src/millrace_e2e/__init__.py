"""Fault histories: what was fed, what was killed, what came out, and the checkers that judge it.

A checker here never imports the runtime that it judges.
"""

from __future__ import annotations

__version__ = "0.1.0"
