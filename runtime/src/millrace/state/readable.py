"""What a reader asks of a state server, whichever way it comes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.protocol.server import GetReply, StampReply
from millrace.state.client import StateAddress


class Readable(Protocol):
    """A ``StateClient``, or whoever asks one elsewhere; for the record and for objects alone."""

    @property
    def address(self) -> StateAddress:
        """Of the server, for messages."""

    def peek(self) -> StampReply:
        """As ``StateClient.peek``."""

    def get_parts(self, stamp: None, parts: Sequence[tuple[str, int, int]]) -> GetReply:
        """As ``StateClient.get_parts``."""
