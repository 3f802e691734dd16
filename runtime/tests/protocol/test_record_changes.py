"""Every root is in one place, whatever follows what (I4), and chains hold what they should."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol import record as r
from millrace.protocol.codec import decode_view, encode_view
from millrace.protocol.types import (
    Components,
    DeadSegment,
    FailedRoot,
    Intent,
    Mark,
    Member,
    Phase,
    Record,
    Replay,
    RootRange,
    Segment,
    Staged,
    Stamp,
    Tag,
    Totals,
    View,
)
from millrace.protocol.windows.waiting import Waiting

TAG = Tag(1, 1, 1, 1)
BACKOFF = r.Backoff(max_replays=1, delay_s=2.0)


def window(number: int, start: int, count: int, replays: tuple[Replay, ...] = ()) -> Intent:
    return Intent(number, (RootRange("s", 0, start, count, start),), replays)


def replay(offset: int, number: int = 1, delay_s: float = 0.0, alone: bool = False) -> Replay:
    return Replay("s", 0, offset, number, delay_s, alone=alone)


def opened(*intents: Intent) -> Record:
    return replace(r.first_record("u", TAG), intents=intents, offsets={"s": 100})


class TestOpening:
    def test_replays_leave_the_queue_for_the_window(self) -> None:
        record = replace(r.first_record("u", TAG), replays=(replay(1), replay(2)))
        after = r.open_next(record, r.NextWindow((), (replay(2),), {"s": 7}))
        assert after.intents == (Intent(1, (), (replay(2),)),)
        assert after.replays == (replay(1),)
        assert after.offsets == {"s": 7}

    def test_numbers_go_on_behind_what_is_open(self) -> None:
        record = replace(opened(window(5, 0, 2)), sealed=4)
        after = r.open_next(record, r.NextWindow((RootRange("s", 0, 2, 1),), (), {"s": 3}))
        assert [i.window for i in after.intents] == [5, 6]

    def test_no_window_is_earlier_than_the_one_before(self) -> None:
        """A clock that was set back lets the time stand still."""
        record = r.first_record("u", TAG)
        for clock_ms, time_ms in ((5_000, 5_000), (4_000, 5_000), (5_001, 5_001)):
            record = r.open_next(record, r.NextWindow((), (), {}, time_ms=clock_ms))
            assert (record.intents[-1].time_ms, record.time_ms) == (time_ms, time_ms)
        assert [one.time_ms for one in record.intents] == [5_000, 5_000, 5_001]


class TestSealing:
    def test_a_seal_moves_the_first_window_alone(self) -> None:
        record = opened(window(1, 0, 3), window(2, 3, 1))
        staged = (Staged("out", "1.1.1/out", "d", 2, 20),)
        dead = DeadSegment("x/dead", 1, 1)
        outcome = r.Outcome(staged=staged, replays=(replay(0),), dead=dead)
        after = r.seal(record, outcome)
        assert after.sealed == 1
        assert [i.window for i in after.intents] == [2]
        assert after.unpublished[0].staged == staged
        assert after.totals == Totals(roots=1, windows=1, replays=1, dead=1)

    def test_a_base_takes_its_groups_from_the_chain(self) -> None:
        chain = {"p": (Segment("a", 1, 0b111, True), Segment("b", 2, 0b011, False))}
        after = r.extend(chain, [("p", Segment("c", 3, 0b011, True))])
        assert after["p"] == (Segment("a", 1, 0b100, True), Segment("c", 3, 0b011, True))

    def test_equal_outputs_have_equal_digests_whatever_their_names(self) -> None:
        one = [Staged("out", "1.1.1/out", "d", 2, 20)]
        assert r.digest_of(one) == r.digest_of([replace(one[0], name="2.1.1/out")])
        assert r.digest_of(one) != r.digest_of([replace(one[0], digest="e")])

    def test_a_mark_never_goes_back(self) -> None:
        record = r.seal(opened(window(1, 0, 1)), r.Outcome())
        marked = r.mark_published(record, 1)
        assert (marked.published, marked.unpublished) == (1, ())
        assert r.mark_published(marked, 0) == marked

    def test_needed_are_state_dead_letters_and_what_is_not_shown_yet(self) -> None:
        record = opened(window(1, 0, 1))
        record = r.seal(
            record,
            r.Outcome(
                segments=(("p", Segment("state", 1, 1, True)),),
                staged=(Staged("out", "staged", "d", 1, 1),),
                dead=DeadSegment("dead", 1, 1),
            ),
        )
        assert r.needed_objects(record) == {"state", "staged", "dead"}
        assert r.needed_objects(r.mark_published(record, 1)) == {"state", "dead"}

    def test_an_object_is_needed_for_every_group_that_it_is_named_for(self) -> None:
        """Its owners are those of all of them, whichever name of it stands last."""
        record = replace(
            opened(window(1, 0, 1)),
            chains={
                "p": (Segment("both", 1, 0b11, True), Segment("other", 2, 0b100, False)),
                "q": (Segment("mine", 1, 0b1, True), Segment("both", 1, 0b1000, True)),
            },
            dead=(DeadSegment("dead", 1, 1),),
        )
        assert r.object_groups(record) == {"both": 0b1011, "other": 0b100, "mine": 1, "dead": 0}


class TestBehind:
    def test_what_is_sealed_and_not_yet_marked_as_published_is_ordinary(self) -> None:
        record = r.seal(opened(window(1, 0, 1)), r.Outcome())
        digest = record.unpublished[0].digest
        for mark in (Mark("out", 1, digest), Mark("out", 1), Mark("new", 0)):
            assert r.behind(record, [mark]) is None
        assert r.behind(r.mark_published(record, 1), [Mark("out", 1, digest)]) is None
        assert r.behind(record, []) is None

    def test_a_sink_that_shows_more_or_something_else_is_named_with_both_windows(self) -> None:
        record = r.seal(opened(window(1, 0, 1)), r.Outcome())
        text = r.behind(record, [Mark("out", 3), Mark("other", 1, "feed"), Mark("fine", 1)])
        assert text is not None
        assert "sink 'out' shows windows up to 3" in text
        assert (
            f"'other' shows window 1 with the digest feed, which was sealed with {r.digest_of([])}"
            in text
        )
        assert "the last window of the record is 1" in text
        assert "Put the newest one back; or start over with --fresh" in text
        assert "fine" not in text


class TestSetAside:
    def test_failed_roots_become_replays_and_then_letters(self) -> None:
        intent = window(3, 10, 4, replays=(replay(2, number=1),))
        failed = [FailedRoot(1, "p", "no"), FailedRoot(4, "(worker)", "dead")]
        replays, letters = r.set_aside(intent, failed, BACKOFF, lambda piece, n: n)
        assert [(x.offset, x.number, x.delay_s, x.alone) for x in replays] == [(11, 1, 2.0, False)]
        assert [(x.offset, x.number, x.alone, x.error) for x in letters] == [(2, 1, True, "dead")]

    def test_the_pause_doubles(self) -> None:
        assert [r.Backoff(9, 2.0).pause_s(n) for n in (1, 2, 3)] == [2.0, 4.0, 8.0]

    def test_a_letter_may_be_replayed_by_hand_however_often(self) -> None:
        intent = window(3, 10, 4, replays=(replay(2, number=5000),))
        failed = [FailedRoot(4, "p", "no")]
        replays, letters = r.set_aside(intent, failed, BACKOFF, lambda piece, n: n)
        assert (replays, [one.number for one in letters]) == ((), [5000])

    def test_letters_are_taken_once(self) -> None:
        record = replace(
            r.first_record("u", TAG), dead=(DeadSegment("d", 1, 3),), totals=Totals(dead=3)
        )
        once = r.take_letters(record, "d", (0, 2), (replay(0), replay(2)))
        assert once.dead == (DeadSegment("d", 1, 3, (0, 2)),)
        assert once.replays == (replay(0), replay(2))
        assert once.totals.dead == 1
        assert r.take_letters(once, "d", (0, 2), (replay(0), replay(2))) == once
        assert r.take_letters(once, "unknown", (0,), ()) == once
        assert r.take_letters(once, "d", (1, 2), ()).dead == ()


class TestSplitting:
    def test_windows_behind_move_up(self) -> None:
        record = opened(window(5, 0, 4), window(6, 4, 2))
        after = r.split(record, window(0, 0, 1), window(0, 1, 3))
        assert after.intents == (window(5, 0, 1), window(6, 1, 3), window(7, 4, 2))

    @pytest.mark.parametrize(
        ("low", "high", "right"),
        [
            (window(0, 0, 1), window(0, 1, 3), True),
            (window(0, 0, 1), window(0, 2, 2), False),
            (window(0, 0, 2), window(0, 2, 2), False),
            (window(0, 0, 1), window(0, 1, 2), False),
            (window(0, 0, 1), window(0, 1, 3, (replay(9),)), False),
        ],
    )
    def test_only_a_cut_in_the_right_place_is_one(
        self, low: Intent, high: Intent, right: bool
    ) -> None:
        assert r.is_cut(window(5, 0, 4), 1, low, high) is right

    def test_replays_may_be_cut_too(self) -> None:
        whole = window(5, 0, 1, (replay(7), replay(8)))
        first, second = window(5, 0, 1, (replay(7),)), Intent(5, (), (replay(8),))
        assert r.is_cut(whole, 2, first, second)

    def test_dropping_counts_what_was_open(self) -> None:
        after = r.abandon(opened(window(1, 0, 3), window(2, 3, 2)))
        assert after.intents == ()
        assert after.totals.dropped == 5


# -- any order of changes


class Ledger:
    """Where every root is, told from a record."""

    def __init__(self, record: Record, letters: dict[str, tuple[Replay, ...]]) -> None:
        self.unread = set(range(record.offsets.get("s", 0), 30))
        self.open = [o for i in record.intents for o in _offsets(i)]
        self.waiting = [x.offset for x in record.replays]
        self.dead = [
            letter.offset
            for one in record.dead
            for index, letter in enumerate(letters[one.name])
            if index not in one.removed
        ]

    def all(self) -> list[int]:
        return sorted([*self.unread, *self.open, *self.waiting, *self.dead])


def _offsets(intent: Intent) -> list[int]:
    ranges = [o for p in intent.ranges for o in range(p.start, p.start + p.count)]
    return ranges + [x.offset for x in intent.replays]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_root_stays_in_one_place(data: st.DataObject) -> None:
    record = replace(r.first_record("u", TAG), offsets={"s": 0})
    letters: dict[str, tuple[Replay, ...]] = {}
    done: set[int] = set()
    for step in range(data.draw(st.integers(5, 40))):
        kind = data.draw(st.sampled_from(("open", "replay", "seal", "split", "take")))
        if kind == "open" and not record.intents and record.offsets["s"] < 30:
            start = record.offsets["s"]
            count = data.draw(st.integers(1, min(6, 30 - start)))
            piece = RootRange("s", 0, start, count)
            record = r.open_next(record, r.NextWindow((piece,), (), {"s": start + count}))
        elif kind == "replay" and not record.intents and record.replays:
            waiting = Waiting()
            waiting.update(record.replays, 0.0)
            taken = waiting.due(record.replays, 1e9, 3)
            record = r.open_next(record, r.NextWindow((), taken, record.offsets))
        elif kind == "split" and record.intents and record.intents[0].roots > 1:
            first, second = _cut(record.intents[0], data)
            record = r.split(record, first, second)
        elif kind == "seal" and record.intents:
            record = _seal(record, letters, done, step, data)
        elif kind == "take" and record.dead:
            one = record.dead[0]
            index = data.draw(st.integers(0, one.count - 1))
            again = (replace(letters[one.name][index], number=5),)
            record = r.take_letters(record, one.name, (index,), again)
        assert Ledger(record, letters).all() == sorted(set(range(30)) - done)
    assert record.totals.roots == len(done)


def _cut(intent: Intent, data: st.DataObject) -> tuple[Intent, Intent]:
    at = data.draw(st.integers(1, intent.roots - 1))
    if not intent.ranges:
        return replace(intent, replays=intent.replays[:at]), replace(
            intent, replays=intent.replays[at:]
        )
    (piece,) = intent.ranges
    low = replace(piece, count=at)
    high = replace(piece, start=piece.start + at, count=piece.count - at)
    return replace(intent, ranges=(low,)), replace(intent, ranges=(high,))


def _seal(
    record: Record,
    letters: dict[str, tuple[Replay, ...]],
    done: set[int],
    step: int,
    data: st.DataObject,
) -> Record:
    intent = record.intents[0]
    bad = data.draw(st.sets(st.integers(0, intent.roots - 1)))
    failed = [FailedRoot(s, "p", "no") for s in sorted(bad)]
    replays, dead = r.set_aside(intent, failed, BACKOFF, lambda piece, n: n)
    name = f"1.{intent.window}.{step}/dead"
    letters[name] = dead
    segment = DeadSegment(name, intent.window, len(dead)) if dead else None
    done |= {o for s, o in enumerate(_offsets(intent)) if s not in bad}
    return r.seal(record, r.Outcome(replays=replays, dead=segment))


def test_a_cut_does_not_take_neighbours_of_two_partitions_for_one() -> None:
    whole = Intent(1, (RootRange("s", 0, 0, 2), RootRange("s", 1, 2, 2)))
    first = Intent(1, (RootRange("s", 0, 0, 2),))
    assert r.is_cut(whole, 2, first, Intent(1, (RootRange("s", 1, 2, 2),)))
    assert not r.is_cut(whole, 2, first, Intent(1, (RootRange("s", 0, 2, 2),)))
    other = Intent(1, (RootRange("t", 1, 2, 2),))
    assert not r.is_cut(whole, 2, first, other)
    second = Intent(1, (RootRange("s", 1, 2, 2),))
    assert not r.is_cut(whole, 2, Intent(1, (RootRange("s", 1, 0, 2),)), second)


def test_a_letter_of_the_first_window_can_be_replayed() -> None:
    record = r.first_record("u", TAG)
    assert r.replayable(record, "s", 1)
    edited = replace(record, components=Components(1, {"s": 0}, {}, {}))
    assert r.replayable(edited, "s", 1)
    assert not r.replayable(edited, "t", 1)
    assert not r.replayable(replace(edited, since={"s": 1}), "s", 1)
    assert r.replayable(replace(edited, since={"s": 1}), "s", 2)


def test_letters_that_are_gone_are_listed_in_order() -> None:
    held = replace(r.first_record("u", TAG), dead=(DeadSegment("d", 1, 40, (33, 17)),))
    after = r.take_letters(held, "d", (20, 9, 2), ())
    assert after.dead[0].removed == (2, 9, 17, 20, 33)


def test_a_replay_keeps_the_window_that_read_it_first() -> None:
    first = Intent(4, (RootRange("s", 0, 0, 1),), (replace(replay(7), window=2),))
    failed = [FailedRoot(0, "p", "no"), FailedRoot(1, "p", "no")]
    again, dead = r.set_aside(first, failed, r.Backoff(9, 1.0), lambda piece, n: n)
    assert dead == ()
    assert [one.window for one in again] == [4, 2]


def test_a_restore_begins_above_all_that_there_was() -> None:
    """Of the snapshot and of the view, whichever is further, number by number."""
    view = View("u", 3, 9, Phase.OPEN, 4, (), (), 8, ())
    assert r.next_timeline(Tag(2, 7, 5, 40), view) == Tag(4, 8, 10, 1)
    assert r.next_timeline(Tag(5, 2, 11, 1), view) == Tag(6, 5, 12, 1)
    assert r.next_timeline(Tag(1, 2, 3, 4), None) == Tag(2, 3, 4, 1)


def test_a_restore_that_is_under_way_is_no_view_to_begin_with() -> None:
    """A release that knows no restores refuses it, for it has a field that it does not know."""
    owners = (("a",), ("a",))
    view = r.restoring_view("u", Tag(2, 5, 7, 1), (Member("a", "1"),), owners)
    assert view.restoring
    assert (view.phase, view.timeline, view.stamp()) == (Phase.CREATING, 2, Stamp(7, 5))
    assert json.loads(encode_view(view))["value"]["restoring"] is True
    assert decode_view(encode_view(view)) == view


def test_letters_that_were_taken_out_are_not_held() -> None:
    record = r.first_record("u", TAG)
    assert r.dead_letters(record) == 0
    held = (DeadSegment("d", 1, 4, (0, 3)), DeadSegment("e", 2, 2))
    assert r.dead_letters(replace(record, dead=held)) == 4
