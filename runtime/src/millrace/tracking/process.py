"""The acker process: ``python -m millrace.tracking.process --name acker-0 --url … --uid …``.

Reads the control stream and the slices it owns, feeds them to ``protocol.acker`` and writes the
answers. It keeps nothing: after a crash, or when the server was away, it reads again from the
beginning. The password of the server comes from the environment (``MILLRACE_STATE_PASSWORD``).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import redis

from millrace import crash
from millrace.errors import ExitCode, MillraceError, ProtocolError, StateServerError
from millrace.guard import die_with
from millrace.logs import stacks
from millrace.logs.repeats import quiet_repeats
from millrace.protocol.acker import (
    AckerAction,
    AckerMachine,
    Answer,
    Drain,
    Follow,
    Reread,
    Unfollow,
)
from millrace.protocol.acklog import Open, roots_of
from millrace.protocol.types import AttemptId, Verdict
from millrace.redisserver import open_client
from millrace.tracking.fold import ArrayFold
from millrace.tracking.log import OPENED, AckLog, decode_control, reader_name
from millrace.tracking.message import DENSE_COST_BYTES, AckMessage, decode, read_enclosed

_LOG = logging.getLogger("millrace.acker")

_BLOCK_S = 1.0
_ANSWER_S = 10 * _BLOCK_S
_FIRST_LOOK_S = 0.05
"""After so long the slices of open attempts are looked at, then twice as long, up to ``_BLOCK_S``:
what came is folded while others work, so that little is left when an attempt is closed."""

_READ_ENTRIES = 16
"""Most entries of one stream taken at once."""

READ_BYTES = 32 << 20
"""Most bytes of slices taken at once: each entry may have dense values for all edges and roots."""

ANSWER_ROOTS = 10_000
"""Failed roots after which the slices judged so far are answered; bounds the memory of answers."""

_FIRST_RETRY_S, _LAST_RETRY_S = 0.02, 1.0
_BEGINNING = "0-0"

SliceKey = tuple[AttemptId, int]
Answers = dict[AttemptId, list[Verdict]]


class Acker:
    """One acker over an ack log; single-threaded."""

    refused_ends = True
    """Whether a password that the server does not take ends it, or is tried again."""

    def __init__(self, name: str, log: AckLog) -> None:
        self.name = name
        self.log = log
        self.restart()

    def restart(self) -> None:
        """Know nothing, and read the log from its beginning."""
        self.machine = AckerMachine[AckMessage](self.name, self.fold, self.enclosed)
        self._control_after = _BEGINNING
        self._after: dict[SliceKey, str] = {}
        self._key_of: dict[SliceKey, str] = {}
        self._slice_of: dict[str, SliceKey] = {}
        self._entry_bytes: dict[SliceKey, int] = {}
        self._patience_s = _FIRST_LOOK_S

    def fold(self, opened: Open, partition: int) -> ArrayFold:
        """What a slice is folded in."""
        return ArrayFold(opened, partition)

    def step(self, block_s: float = _BLOCK_S) -> bool:
        """Wait for something new and deal with it; False if nothing came.

        What tasks say is read when an attempt is closed, and before that only where it takes its
        time: most are so short that one look is enough.

        Raises ``StateServerError`` when the server is away: ``restart`` then.
        """
        if self._after:
            block_s = min(block_s, self._patience_s)
        if self._read([], _READ_ENTRIES, block_s):
            self._patience_s = _FIRST_LOOK_S
            return True
        came = False
        for parts, count in list(self._reads(self._after)):
            came = self._read(parts, count) or came
        self._patience_s = _FIRST_LOOK_S if came else min(2 * self._patience_s, _BLOCK_S)
        return came

    def _read(self, parts: Iterable[SliceKey], count: int, block_s: float = 0.0) -> bool:
        wanted = {self.log.control_key: self._control_after}
        wanted |= {self._key_of[part]: self._after[part] for part in parts if part in self._after}
        found = self.log.read(wanted, count, block_s)
        came = bool(found)
        actions: list[AckerAction] = []
        for entry, fields in found.pop(self.log.control_key, ()):
            self._control_after = entry
            actions += self._control(entry, fields)
        for key, entries in found.items():
            self._deliver(self._slice_of[key], entries)
        self._perform(actions)
        return came

    def _reads(self, parts: Iterable[SliceKey]) -> Iterator[tuple[list[SliceKey], int]]:
        """These slices as they may be read together, and how many entries of each."""
        left = list(parts)
        while left:
            total, fitting = 0, 0
            for part in left:
                total += self._entry_bytes[part]
                if fitting and total > READ_BYTES:
                    break
                fitting += 1
            yield left[:fitting], max(1, min(_READ_ENTRIES, READ_BYTES // max(total, 1)))
            left = left[fitting:]

    def run(self) -> None:
        """Serve for ever; only an error that waiting cannot cure ends it."""
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                self.step()
                retry_s = _FIRST_RETRY_S
            except StateServerError as error:
                if isinstance(error.__cause__, redis.AuthenticationError) and self.refused_ends:
                    raise
                if retry_s == _FIRST_RETRY_S:
                    _LOG.warning("%s; reading from the beginning when it is back", error)
                self.restart()
                time.sleep(retry_s)
                retry_s = min(retry_s * 2, _LAST_RETRY_S)

    def take(self, partition: int, entry: str, message: AckMessage) -> None:
        """Fold one message that was read from the log."""
        self.machine.message(partition, entry, message)

    def enclosed(self, text: str) -> AckMessage | None:
        """A message that a close marker encloses; what is not one counts as lost."""
        try:
            message = read_enclosed(text)
        except MillraceError as error:
            _LOG.error("an ack message in a close marker is left out: %s", error)
            return None
        crash.reached("acker.folded")
        return message

    def _control(self, entry_id: str, fields: Mapping[bytes, bytes]) -> list[AckerAction]:
        try:
            entry = decode_control(fields)
        except ProtocolError as error:
            _LOG.error("control entry %s is left out: %s", entry_id, error)
            return []
        actions = self.machine.control(entry)
        if isinstance(entry, Open):
            crash.reached("acker.opened")
        return actions

    def _deliver(
        self, part: SliceKey, entries: Iterable[tuple[str, Mapping[bytes, bytes]]]
    ) -> None:
        for entry, fields in entries:
            self._after[part] = entry
            if b"open" in fields:
                continue  # a driver of an older release made the stream
            message = self._decode(part, entry, fields)
            if message is not None:
                self.take(part[1], entry, message)
                crash.reached("acker.folded")

    def _decode(
        self, part: SliceKey, entry: str, fields: Mapping[bytes, bytes]
    ) -> AckMessage | None:
        """A message of this very slice; what is not one counts as lost, which is noticed."""
        try:
            message = decode(fields.get(b"m", b""))
        except MillraceError as error:
            _LOG.error("window %d: entry %s is left out: %s", part[0].window, entry, error)
            return None
        if (message.attempt, message.partition) != part:
            _LOG.error("window %d: entry %s belongs elsewhere", part[0].window, entry)
            return None
        return message

    def _perform(self, actions: list[AckerAction]) -> None:
        """Carry out actions and those that follow from them.

        Slices are read together and judged one by one: many failed roots make a large answer.
        """
        answers: Answers = {}
        self._carry_out([one for one in actions if not isinstance(one, Drain)], answers)
        drains = [(one.id, one.partition) for one in actions if isinstance(one, Drain)]
        for part in self._drain(drains):
            self._carry_out(self.machine.drained(*part), answers)
            if sum(len(one.incomplete) for said in answers.values() for one in said) > ANSWER_ROOTS:
                self._answer(answers)
        self._answer(answers)

    def _carry_out(self, actions: list[AckerAction], answers: Answers) -> None:
        while actions:
            following: list[AckerAction] = []
            for action in actions:
                if isinstance(action, Follow):
                    self._follow((action.id, action.partition))
                elif isinstance(action, Unfollow):
                    self._unfollow((action.id, action.partition))
                elif isinstance(action, Reread):
                    again = self._fetch(action)
                    following += self.machine.reread(action.id, action.partition, again)
                else:
                    assert isinstance(action, Answer)  # drains follow from nothing
                    answers.setdefault(action.verdict.id, []).append(action.verdict)
            actions = following

    def _answer(self, answers: Answers) -> None:
        for attempt, verdicts in answers.items():
            self.log.answer(attempt, verdicts)
            crash.reached("acker.answered")
        answers.clear()

    def _follow(self, part: SliceKey) -> None:
        opened = self.machine.opened(part[0])
        if opened is None:
            return  # what was read with it says that it is over
        key = self.log.slice_key(*part)
        self._after[part], self._key_of[part], self._slice_of[key] = OPENED, key, part
        roots = roots_of(part[0].window, part[1], opened.roots, opened.slices)
        self._entry_bytes[part] = roots * len(opened.edges) * DENSE_COST_BYTES

    def _unfollow(self, part: SliceKey) -> None:
        self._after.pop(part, None)
        self._entry_bytes.pop(part, None)
        key = self._key_of.pop(part, None)
        if key is not None:
            del self._slice_of[key]

    def _drain(self, parts: list[SliceKey]) -> list[SliceKey]:
        """Read slices up to their present ends; returns those that are followed."""
        parts = [part for part in parts if part in self._after]
        rest = parts
        while rest:
            full: list[SliceKey] = []
            for some, count in self._reads(rest):
                found = self.log.read({self._key_of[p]: self._after[p] for p in some}, count)
                for key, entries in found.items():
                    self._deliver(self._slice_of[key], entries)
                # A stream that gave fewer than it was asked for has been read to its end.
                full += [self._slice_of[k] for k, es in found.items() if len(es) == count]
            rest = full
        return parts

    def _fetch(self, action: Reread) -> Iterator[AckMessage | None]:
        part = (action.id, action.partition)
        most = max(1, READ_BYTES // max(self._entry_bytes.get(part, 0), 1))
        found = self.log.fetch(self.log.slice_key(*part), action.entries, most)
        for entry, fields in zip(action.entries, found, strict=True):
            yield None if fields is None else self._decode(part, entry, fields)


def connect(url: str, password: str | None, name: str | None = None) -> redis.Redis:
    """Client of the ack log's server; its answers are waited for as long as a read may block."""
    return open_client(url, password, answer_s=_ANSWER_S, name=name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run an acker; returns an exit code of ``millrace.errors.ExitCode``."""
    parser = argparse.ArgumentParser(prog="millrace.tracking.process", description=__doc__)
    parser.add_argument("--name", required=True, help="name in the list of members")
    parser.add_argument("--url", required=True, help="redis://host:port/db of the ack log's server")
    parser.add_argument("--uid", required=True, help="uid of the topology")
    parser.add_argument("--parent-pid", type=int, help="die when this parent process dies")
    parser.add_argument("--log-level", default="INFO")
    options = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format=f"%(asctime)s {options.name} %(levelname)s %(message)s",
    )
    quiet_repeats()
    stacks.write_on_request()
    if options.parent_pid is not None:
        # The supervisor decides when an acker ends, not a Ctrl-C in its terminal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with(options.parent_pid, ExitCode.FAILED)
    password = os.environ.get("MILLRACE_STATE_PASSWORD")
    client = connect(options.url, password, reader_name(options.uid, options.name))
    _LOG.info("serving topology %s, pid %d", options.uid, os.getpid())
    try:
        Acker(options.name, AckLog(client, options.uid)).run()
    except MillraceError as error:
        _LOG.critical("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
