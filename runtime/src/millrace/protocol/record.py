"""Every way in which a record may follow another, as pure functions.

Crash rule: a record write is atomic on each server and final once committed (rule 3), so a
driver that dies before the commit leaves either the old record or the new one, and the next
driver's write-back decides which. Invariant I4 holds for each function here on its own: every
root is in exactly one of not yet read, open, sealed, waiting for its replay, dead.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.ids import NO_WINDOW, Epoch, Execution, Seq, Timeline, WindowNumber
from millrace.protocol.cohorts import judge
from millrace.protocol.names import LettersObject, read_name
from millrace.protocol.types import (
    AttemptId,
    DeadSegment,
    FailedRoot,
    Intent,
    Json,
    Mark,
    Member,
    Phase,
    Record,
    Replay,
    RootRange,
    Roots,
    Sealed,
    Segment,
    Staged,
    Tag,
    Totals,
    View,
)

Locate = Callable[[RootRange, int], Json]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How failing roots are replayed: ``max_replays`` times, ``delay_s`` doubling each time."""

    max_replays: int
    delay_s: float

    def pause_s(self, number: int) -> float:
        """How long the replay of this number waits, in seconds.

        Dead letters that are replayed by hand have any number, and wait for nothing.
        """
        return self.delay_s * 2.0 ** min(number - 1, self.max_replays)


@dataclass(frozen=True, slots=True)
class NextWindow:
    """The next window's plan, written together with the record that precedes it."""

    ranges: tuple[RootRange, ...]
    replays: tuple[Replay, ...]
    offsets: Mapping[str, Json]
    final: bool = False
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a window adds to the record when it is sealed.

    ``dead`` counts the window's own letters. ``carried``: its object begins with those of the
    newest segment, whose place it takes.
    """

    segments: tuple[tuple[str, Segment], ...] = ()
    staged: tuple[Staged, ...] = ()
    replays: tuple[Replay, ...] = ()
    dead: DeadSegment | None = None
    dropped: int = 0
    roots: Roots | None = None
    letters: tuple[Replay, ...] = ()
    holes: int = 0
    carried: bool = False


def first_record(uid: str, tag: Tag) -> Record:
    """The record with which a topology is created (rule 17)."""
    return Record(uid, tag, NO_WINDOW, {}, (), {}, (), (), (), NO_WINDOW)


def following(window: WindowNumber) -> WindowNumber:
    return WindowNumber(window + 1)


def next_window(record: Record) -> WindowNumber:
    """The number of the window that is opened next."""
    return following(max([record.sealed, *(i.window for i in record.intents)]))


def open_next(record: Record, opening: NextWindow) -> Record:
    """Add the intent of the next window; its replays leave the queue for it.

    A clock that was set back lets the time stand still.
    """
    window = next_window(record)
    time_ms = max(record.time_ms, opening.time_ms)
    intent = Intent(window, opening.ranges, opening.replays, opening.final, time_ms)
    taken = {_root(r) for r in opening.replays}
    return replace(
        record,
        offsets=dict(opening.offsets),
        intents=(*record.intents, intent),
        replays=tuple(r for r in record.replays if _root(r) not in taken),
        time_ms=time_ms,
    )


def seal(record: Record, outcome: Outcome) -> Record:
    """Seal the first open window."""
    intent, *rest = record.intents
    sealed = Sealed(intent.window, digest_of(outcome.staged), outcome.staged, outcome.roots)
    lost = len(outcome.replays) + (outcome.dead.count if outcome.dead else 0) + outcome.dropped
    totals = record.totals
    return replace(
        record,
        sealed=intent.window,
        finished=intent.final,
        intents=tuple(rest),
        chains=extend(record.chains, outcome.segments),
        replays=(*record.replays, *outcome.replays),
        dead=_with_letters(record.dead, outcome),
        unpublished=(*record.unpublished, sealed),
        cohorts=judge(record.cohorts, intent, outcome.replays, outcome.letters, outcome.holes),
        totals=Totals(
            roots=totals.roots + intent.roots - outcome.holes - lost,
            windows=totals.windows + 1,
            replays=totals.replays + len(outcome.replays),
            dead=totals.dead + (outcome.dead.count if outcome.dead else 0),
            dropped=totals.dropped + outcome.dropped,
        ),
        last_dead=intent.window if outcome.dead else record.last_dead,
    )


def _with_letters(held: tuple[DeadSegment, ...], outcome: Outcome) -> tuple[DeadSegment, ...]:
    """The segments with the letters of a window that is sealed; what was taken out of the one whose
    place is taken stays so."""
    dead = outcome.dead
    if dead is None:
        return held
    if not outcome.carried:
        return (*held, dead)
    newest = held[-1]
    both = replace(
        dead,
        count=newest.count + dead.count,
        removed=newest.removed,
        first=newest.begun,
    )
    return (*held[:-1], both)


def abandon(record: Record) -> Record:
    """AtMostOnce after a crash: what was open is counted as dropped and never run again."""
    dropped = sum(intent.roots for intent in record.intents)
    totals = replace(record.totals, dropped=record.totals.dropped + dropped)
    return replace(record, intents=(), totals=totals)


def split(record: Record, first: Intent, second: Intent) -> Record:
    """Replace the first open window by two; windows behind it have never run and move up."""
    window = record.intents[0].window
    moved = tuple(replace(i, window=following(i.window)) for i in record.intents[1:])
    halves = (replace(first, window=window), replace(second, window=following(window)))
    return replace(record, intents=(*halves, *moved))


def is_cut(whole: Intent, at: int, first: Intent, second: Intent) -> bool:
    """Whether two intents hold, in order, exactly the roots of one, ``at`` of them in the first."""
    spans = _spans((*first.ranges, *second.ranges))
    replays = (*first.replays, *second.replays)
    return first.roots == at and spans == _spans(whole.ranges) and replays == whole.replays


def _spans(ranges: Iterable[RootRange]) -> list[tuple[str, int, int, int]]:
    """(source, partition, first, behind the last), neighbours joined."""
    spans: list[tuple[str, int, int, int]] = []
    for piece in ranges:
        begin, end = piece.start, piece.start + piece.count
        if spans and spans[-1][:2] == (piece.source, piece.partition) and spans[-1][3] == begin:
            begin = spans.pop()[2]
        spans.append((piece.source, piece.partition, begin, end))
    return spans


def mark_published(record: Record, window: WindowNumber) -> Record:
    """Note that every sink has confirmed the windows up to this one (rule 20)."""
    if window <= record.published:
        return record
    left = tuple(s for s in record.unpublished if s.window > window)
    return replace(record, published=window, unpublished=left)


def next_timeline(old: Tag, view: View | None) -> Tag:
    """The tag of a restore's first record, of a snapshot whose record has the tag ``old``: above
    all that there was of either (rules 17 and 25)."""
    return Tag(
        Timeline(1 + max(old.timeline, view.timeline if view else 0)),
        Execution(1 + max(old.execution, view.execution if view else 0)),
        Epoch(1 + max(old.epoch, view.epoch if view else 0)),
        Seq(1),
    )


def restored(record: Record, uid: str, tag: Tag) -> Record:
    """The first record of a timeline, made of a snapshot's.

    Letters are not carried over from one timeline into another: the name of an object would not say
    any more which of them are meant (``holding``).
    """
    return replace(record, uid=uid, tag=tag, last_dead=NO_WINDOW)


def restoring_view(
    uid: str, tag: Tag, members: tuple[Member, ...], owners: tuple[tuple[str, ...], ...]
) -> View:
    """The view of a restore that is under way, with the first record's tag: nothing that a member
    held before is read under it (rule 17)."""
    return View(
        uid,
        tag.timeline,
        tag.epoch,
        Phase.CREATING,
        tag.execution,
        members,
        members,
        tag.epoch,
        owners,
        restoring=True,
    )


def replayable(record: Record, source: str, window: WindowNumber) -> bool:
    """Whether the source of a dead letter of ``window`` is still the one that it was read from."""
    if record.components is None:
        return True
    known = source in record.components.sources
    return known and window > record.since.get(source, 0)


def behind(record: Record, marks: Iterable[Mark]) -> str | None:
    """Why sinks are further than this committed record, which then is an old copy; else None.

    A window that is shown and not yet marked as published is an ordinary one: it is sealed.
    """
    sealed = {one.window: one.digest for one in record.unpublished}
    found = []
    for mark in marks:
        digest = sealed.get(mark.window)
        if mark.window > record.sealed:
            found.append(f"sink {mark.sink!r} shows windows up to {mark.window}")
        elif mark.digest and digest is not None and mark.digest != digest:
            found.append(
                f"sink {mark.sink!r} shows window {mark.window} with the digest {mark.digest}, "
                f"which was sealed with {digest}"
            )
    if not found:
        return None
    return (
        f"{', '.join(found)}, but the last window of the record is {record.sealed}: the work "
        "folder or the file of its state server was put back from an older copy. Nothing was "
        "changed on the sinks. Put the newest one back; or start over with --fresh, and "
        "--overwrite or other places for the sinks"
    )


def to_carry_over(record: Record, letters: int, most: int) -> DeadSegment | None:
    """The segment whose letters stand first in the object of the window that is sealed next, with
    so many of its own; None where these begin a segment.

    That is the newest one, as long as both together are no more than ``most``, those that were
    taken out too. It must be of the last window that had any: a late request for letters of a
    segment that was emptied since would meet others there. And no source came since it was begun,
    so that ``replayable`` says the same of all letters of a segment.
    """
    if not record.dead or record.dead[-1].window != record.last_dead:
        return None
    newest = record.dead[-1]
    begun = _made_by(newest.begun)
    if begun is None or newest.count + letters > most:
        return None
    came = max(record.since.values(), default=NO_WINDOW)
    return newest if begun.window > came else None


def holding(record: Record, name: str) -> DeadSegment | None:
    """The segment that has the letters of the object of this name, at the same indexes: its own or
    one that they were carried over to; None if there is none any more.

    The objects of a segment lie between its first and its last, in executions and in windows. No
    other that a committed record ever named does, of this timeline or of another.
    """
    for one in record.dead:
        if one.name == name:
            return one
    made = _made_by(name)
    if made is None:
        return None
    at = bisect_left(record.dead, made.window, key=lambda one: one.window)
    found = record.dead[at] if at < len(record.dead) else None
    return found if found is not None and _covers(found, made) else None


def _covers(segment: DeadSegment, made: AttemptId) -> bool:
    """Whether an object of a window up to that of a segment was between its first and its last."""
    begun, ended = _made_by(segment.first), _made_by(segment.name)
    if begun is None or ended is None:
        return False
    lived = begun.execution <= made.execution <= ended.execution
    return lived and begun.window <= made.window


def _made_by(letters: str) -> AttemptId | None:
    """The attempt behind which an object of dead letters was written; None for no name of one."""
    name = read_name(letters)
    return name.attempt if isinstance(name, LettersObject) else None


def take_letters(
    record: Record, segment: str, indexes: tuple[int, ...], replays: tuple[Replay, ...]
) -> Record:
    """Remove dead letters, for good or (``replays``, one for each index) into the replay queue.

    ``segment`` names the object in which they were found, which another one may hold by now
    (``holding``). Letters that are gone already are passed over, so taking them twice changes
    nothing. One whose source is gone is not replayed and stays.
    """
    held = holding(record, segment)
    if held is None:
        return record
    gone, window = set(held.removed), held.window
    fresh = [
        n
        for n, index in enumerate(indexes)
        if index not in gone and (not replays or replayable(record, replays[n].source, window))
    ]
    left = replace(held, removed=tuple(sorted(gone | {indexes[n] for n in fresh})))
    segments = (left if one is held else one for one in record.dead)
    again = tuple(replays[n] for n in fresh) if replays else ()
    return replace(
        record,
        dead=tuple(one for one in segments if len(one.removed) < one.count),
        replays=(*record.replays, *again),
        totals=replace(record.totals, dead=record.totals.dead - len(fresh)),
    )


def extend(
    chains: Mapping[str, tuple[Segment, ...]], segments: Iterable[tuple[str, Segment]]
) -> dict[str, tuple[Segment, ...]]:
    """Append segments; a base takes its key groups away from all that came before."""
    result = dict(chains)
    for processor, segment in segments:
        chain = result.get(processor, ())
        if segment.base:
            cut = (replace(old, groups=old.groups & ~segment.groups) for old in chain)
            chain = tuple(old for old in cut if old.groups)
        result[processor] = (*chain, segment)
    return result


def set_aside(
    intent: Intent,
    failed: Iterable[FailedRoot],
    backoff: Backoff,
    locate: Locate,
) -> tuple[tuple[Replay, ...], tuple[Replay, ...]]:
    """Sort failed roots into (to be replayed, dead); both know processor and error.

    What no replay can help is dead at once. ``locate`` narrows a range's locator to the one of
    its records.
    """
    replays: list[Replay] = []
    dead: list[Replay] = []
    for root, cause in failed_roots(intent, failed, locate):
        number = root.number + 1
        again = replace(
            root,
            number=number,
            delay_s=backoff.pause_s(number),
            processor=cause.processor,
            error=cause.error,
            alone=cause.processor.startswith("("),
            window=root.window or intent.window,
        )
        if number > backoff.max_replays or cause.unreadable or cause.lasting:
            dead.append(replace(again, number=root.number, trace=cause.trace))
        else:
            replays.append(again)
    return tuple(replays), tuple(dead)


def dead_letters(record: Record) -> int:
    """How many dead letters the record holds: those that were drained or dropped are not among
    them."""
    return sum(one.count - len(one.removed) for one in record.dead)


def failed_roots(
    intent: Intent, failed: Iterable[FailedRoot], locate: Locate
) -> Iterable[tuple[Replay, FailedRoot]]:
    """Which roots of a window failed, as they were read, and why."""
    pending = sorted(failed, key=lambda f: f.sequence)
    position = 0
    at = 0
    for piece in intent.ranges:
        while at < len(pending) and pending[at].sequence < position + piece.count:
            index = pending[at].sequence - position
            where = locate(piece, index)
            root = Replay(piece.source, piece.partition, piece.start + index, 0, 0.0, where)
            yield root, pending[at]
            at += 1
        position += piece.count
    for cause in pending[at:]:
        yield intent.replays[cause.sequence - position], cause


def needed_objects(record: Record) -> frozenset[str]:
    """Names of all objects that this record, once committed, still needs (rule 22)."""
    staged = (one.name for sealed in record.unpublished for one in sealed.staged)
    return frozenset((*object_groups(record), *staged))


def object_groups(record: Record) -> dict[str, int]:
    """Objects of state and of dead letters that a record names, with all the key groups that each
    is named for, wherever its chain names it; 0 for dead letters."""
    groups: dict[str, int] = {}
    for chain in record.chains.values():
        for segment in chain:
            groups[segment.name] = groups.get(segment.name, 0) | segment.groups
    return groups | {one.name: 0 for one in record.dead}


def digest_of(staged: Iterable[Staged]) -> str:
    """Digest over a window's staged outputs: equal for equal contents, whatever the names."""
    hasher = hashlib.blake2b(digest_size=16)
    for one in staged:
        hasher.update(f"{one.sink}\0{one.digest}\0{one.rows}\n".encode())
    return hasher.hexdigest()


def _root(replay: Replay) -> tuple[str, int, int]:
    return replay.source, replay.partition, replay.offset
