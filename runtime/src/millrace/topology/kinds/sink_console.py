"""The kind ``console`` of sinks: rows on standard output."""

from __future__ import annotations

from pathlib import Path

from millrace.topology.kinds.base import SinkKind
from millrace.topology.parts import Guarantee, Part


class ConsoleSink(Part):
    """Rows on standard output. Cannot give ExactlyOnce."""


class ConsoleSinkKind(SinkKind[ConsoleSink]):
    """For trying out: nothing that is printed stays."""

    name = "console"
    meaning = "Standard output, for trying out."
    settings = ConsoleSink
    runs = "millrace.sinks.console:ConsoleSink"
    guarantees = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE)
    weakness = "what is printed cannot be taken back after a crash"
    lasting = False

    def summary(self, settings: ConsoleSink) -> str:
        return "console"

    def place(self, settings: ConsoleSink, folder: Path) -> str:
        return "standard output"


CONSOLE_SINK = ConsoleSinkKind()
