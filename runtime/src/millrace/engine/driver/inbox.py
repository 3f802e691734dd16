"""What reaches the driver through files of the work folder: proposals and requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.engine.driver.letters import DamagedLettersError, decode_letters, replay_of
from millrace.errors import MillraceError
from millrace.protocol import events as e
from millrace.protocol.names import spoken
from millrace.protocol.record import replayable
from millrace.protocol.types import Member, Record

log = logging.getLogger(__name__)

_UNREADABLE = (LookupError, ValueError, TypeError, RecursionError, DamagedLettersError)


class Mailbox:
    """Turns ``proposal.json`` and ``requests/*.json`` into events.

    A request file is deleted once the committed record reflects it, so a driver that dies in
    between leaves it to the next one; taking a letter twice changes nothing.
    ``fetch`` reads an object by its name; ``ackers`` is told who is alive.
    """

    def __init__(
        self,
        folder: Path,
        fetch: Callable[[str], bytes],
        ackers: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._proposal = folder / "proposal.json"
        self._requests = folder / "requests"
        self._fetch = fetch
        self._ackers = ackers
        self._seen = ""
        self._record: Record | None = None
        self._waiting: dict[str, e.DeadLetterRequest] = {}

    def look(self) -> list[e.Event]:
        return [*self._proposals(), *self._new_requests()]

    def committed(self, record: Record) -> bool:
        """Requests that the record reflects are done; True for the first record of this life."""
        first = self._record is None
        self._record = record
        for token, request in list(self._waiting.items()):
            if self._done(request, record):
                (self._requests / f"{token}.json").unlink(missing_ok=True)
                del self._waiting[token]
        return first

    def _done(self, request: e.DeadLetterRequest, record: Record) -> bool:
        """Whether nothing is left to do; a letter whose source is gone is never replayed."""
        for segment in record.dead:
            if segment.name == request.segment:
                left = set(request.indexes) - set(segment.removed)
                for index, replay in zip(request.indexes, request.replays, strict=False):
                    if index in left and not replayable(record, replay.source, segment.window):
                        left.discard(index)
                        log.warning(
                            "dead letter %s:%d stays: its source %r is gone",
                            spoken(segment.name),
                            index,
                            replay.source,
                        )
                return not left
        return True

    def _proposals(self) -> list[e.Event]:
        try:
            text = self._proposal.read_text(errors="replace")
        except FileNotFoundError:
            return []
        if text == self._seen:
            return []
        self._seen = text
        try:
            proposal = json.loads(text)
            ackers = tuple(map(str, proposal["ackers"]))
            members = tuple(
                Member(str(m["name"]), str(m["run_id"]), str(m["url"]))
                for m in sorted(proposal["members"], key=lambda m: str(m["name"]))
            )
        except _UNREADABLE as error:
            # The supervisor writes the next one whole.
            log.warning("%s is ignored: it cannot be read (%s)", self._proposal, error)
            return []
        self._ackers(ackers)
        return [e.Proposal(members)] if members else []

    def _new_requests(self) -> list[e.Event]:
        if self._record is None or not self._requests.is_dir():
            return []
        found: list[e.Event] = []
        for path in sorted(self._requests.glob("*.json")):
            if path.stem in self._waiting or not path.is_file():
                continue
            try:
                body = json.loads(path.read_bytes())
                request = _request(path.stem, body)
                if self._done(request, self._record):
                    path.unlink(missing_ok=True)
                    continue
                if body["action"] not in ("replay", "drop"):
                    raise ValueError(f"action {body['action']!r} is not known")
                if body["action"] == "replay":
                    request = self._with_replays(request)
                    if self._done(request, self._record):
                        path.unlink(missing_ok=True)
                        continue
            except _UNREADABLE as error:
                log.warning("request %s is dropped: %s", path.name, error)
                path.unlink(missing_ok=True)
            except MillraceError as error:
                log.warning("request %s waits: %s", path.name, error)
            else:
                self._waiting[path.stem] = request
        found.extend(self._waiting.values())
        return found

    def _with_replays(self, request: e.DeadLetterRequest) -> e.DeadLetterRequest:
        """Raises ``StateServerError`` while the letters cannot be read."""
        letters = decode_letters(self._fetch(request.segment))
        replays = tuple(replay_of(letters[i]) for i in request.indexes)
        return replace(request, replays=replays)


def _request(token: str, body: dict[str, Any]) -> e.DeadLetterRequest:
    indexes, segment = body["indexes"], body["segment"]
    if not isinstance(segment, str) or not all(type(i) is int and i >= 0 for i in indexes):
        raise ValueError("its segment is no text, or its indexes are no numbers")
    return e.DeadLetterRequest(token, segment, tuple(sorted(set(indexes))), ())
