"""Deliberate bugs of a state server (rules 5, 6, 7 and 23)."""

from __future__ import annotations

from millrace.protocol.codec import decode_record
from millrace.protocol.server import (
    OK,
    NotOwner,
    Reason,
    Stamped,
    StampReply,
    TagTooLow,
    WriteReply,
)
from millrace.protocol.types import Stamp, Tag
from millrace.simulate.parts.cluster import TOKEN_END
from millrace.simulate.parts.server import ServerModel


class NoStampCheck(ServerModel):
    """Takes writes whatever their stamp."""

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        return None if run_id == self.run_id else NotOwner(Reason.RUN_ID)


class NoRunIdCheck(ServerModel):
    """Takes messages that were meant for an earlier life of the server."""

    def stamp(self, run_id: str, stamp: Stamp, life: str = "") -> StampReply:
        return super().stamp(self.run_id, stamp, life)

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        return super()._refuse(self.run_id, stamp)


def without_fsync(name: str, run_id: str) -> ServerModel:
    return ServerModel(name, run_id, fsync_always=False)


class StampSurvivesRestart(ServerModel):
    """Believes the stamp in its file, of a life that is over, and answers to that life's name."""

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(name, run_id)
        self._first = run_id

    def restart(self, run_id: str, kept: int | None = None) -> None:
        before = self.stamp_in_effect
        super().restart(run_id, kept)
        self.stamp_in_effect = before

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        return super()._refuse(self.run_id, stamp)


class ReadBeforeStamp(ServerModel):
    """Reads the record first and stamps then: a write gets in between."""

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(name, run_id)
        self._before: tuple[bytes | None, Tag | None] = (None, None)

    def write_record(self, run_id: str, stamp: Stamp, tag: Tag, record: bytes) -> WriteReply:
        before = self._data.record, self._data.tag
        reply = super().write_record(run_id, stamp, tag, record)
        if reply == OK:
            self._before = before
        return reply

    def stamp(self, run_id: str, stamp: Stamp, life: str = "") -> StampReply:
        reply = super().stamp(run_id, stamp, life)
        return Stamped(*self._before) if isinstance(reply, Stamped) else reply


class StampGoesBack(ServerModel):
    """Takes any stamp."""

    def stamp(self, run_id: str, stamp: Stamp, life: str = "") -> StampReply:
        if run_id == self.run_id:
            self.stamp_in_effect = None
        return super().stamp(run_id, stamp, life)


class NoTagCheck(ServerModel):
    """Takes a record that is older than its own."""

    def write_record(self, run_id: str, stamp: Stamp, tag: Tag, record: bytes) -> WriteReply:
        self._data.tag = None
        return super().write_record(run_id, stamp, tag, record)


class ComparesWindows(ServerModel):
    """Takes no record of a lower window than its own."""

    def write_record(self, run_id: str, stamp: Stamp, tag: Tag, record: bytes) -> WriteReply:
        held = self._data
        if held.record is None or held.tag is None or _sealed(record) >= _sealed(held.record):
            return super().write_record(run_id, stamp, tag, record)
        return self._refuse(run_id, stamp) or TagTooLow(held.tag)


def _sealed(record: bytes) -> int:
    token, found, sealed = record.partition(TOKEN_END)
    return int(sealed) if found else decode_record(token).sealed
