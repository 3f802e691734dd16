"""Dead letters of several windows in one object: which are, and how they are found and taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_script import Script

from millrace.ids import WindowNumber
from millrace.protocol import codec, edits
from millrace.protocol import events as e
from millrace.protocol import record as r
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Intent,
    Record,
    Replay,
    RootRange,
    Tag,
    Totals,
)

MOST = 8


def name(window: int, execution: int = 1) -> str:
    return f"{execution}.{window}.1.1/dead"


def letter(offset: int) -> Replay:
    return Replay("s", 0, offset, 1, 0.0)


def begun(sealed: int = 0) -> Record:
    return replace(r.first_record("u", Tag(1, 1, 1, 1)), sealed=sealed, published=sealed)


def sealed(record: Record, dead: int, execution: int = 1, most: int = MOST) -> Record:
    """The record behind one window more, of ten roots, of which so many are dead."""
    window = r.next_window(record)
    intent = Intent(window, (RootRange("s", 0, window * 10, 10),))
    if not dead:
        return r.seal(replace(record, intents=(intent,)), r.Outcome())
    carried = r.to_carry_over(record, dead, most) is not None
    segment = DeadSegment(name(window, execution), window, dead)
    letters = tuple(letter(window * 10 + n) for n in range(dead))
    outcome = r.Outcome(dead=segment, letters=letters, carried=carried)
    return r.seal(replace(record, intents=(intent,)), outcome)


def after(*dead: int, most: int = MOST) -> Record:
    record = begun()
    for count in dead:
        record = sealed(record, count, most=most)
    return record


# --- what a seal carries over


def test_letters_of_several_windows_are_one_segment() -> None:
    record = after(2, 0, 1, 3)
    assert record.dead == (DeadSegment(name(4), 4, 6, (), name(1)),)
    assert record.last_dead == 4
    assert r.needed_objects(r.mark_published(record, 4)) == {name(4)}


def test_a_segment_has_so_many_letters_and_no_more() -> None:
    record = after(5, 3, 1)
    assert record.dead == (DeadSegment(name(2), 2, 8, (), name(1)), DeadSegment(name(3), 3, 1))
    assert [one.count for one in after(9, 1, 1).dead] == [9, 2]
    assert [one.count for one in after(1, 1, 1, most=0).dead] == [1, 1, 1]


def test_a_window_that_could_not_carry_over_begins_a_segment_that_the_next_goes_on_with() -> None:
    record = after(1)
    intent = Intent(WindowNumber(2), (RootRange("s", 0, 20, 10),))
    alone = r.Outcome(dead=DeadSegment(name(2), WindowNumber(2), 1))
    record = r.seal(replace(record, intents=(intent,)), alone)
    assert [one.first for one in record.dead] == ["", ""]
    record = sealed(record, 1)
    assert record.dead == (DeadSegment(name(1), 1, 1), DeadSegment(name(3), 3, 2, (), name(2)))


def test_only_the_letters_of_the_window_itself_are_counted() -> None:
    record = after(2, 0, 3)
    assert record.totals == Totals(roots=25, windows=3, dead=5)
    assert sum(one.dead for one in record.cohorts) == 5
    assert r.dead_letters(record) == 5


def test_letters_that_were_taken_out_stay_so() -> None:
    record = r.take_letters(after(3, 1), name(2), (1, 3), ())
    record = sealed(record, 2)
    assert record.dead == (DeadSegment(name(3), 3, 6, (1, 3), name(1)),)
    assert (r.dead_letters(record), record.totals.dead) == (4, 4)


def test_an_object_whose_name_says_nothing_is_left_as_it_is() -> None:
    old = replace(begun(3), dead=(DeadSegment("1.3.0/dead", 3, 1),), last_dead=WindowNumber(3))
    assert r.to_carry_over(old, 1, MOST) is None


def test_a_record_of_an_older_release_is_gone_on_with_behind_the_next_window() -> None:
    """Whether letters of another segment were all taken out behind its newest it does not say."""
    old = replace(begun(3), dead=(DeadSegment(name(3), 3, 1),))
    assert b"last_dead" not in codec.encode_record(old)
    assert r.to_carry_over(codec.decode_record(codec.encode_record(old)), 1, MOST) is None
    record = sealed(sealed(old, 1), 1)
    assert record.dead == (DeadSegment(name(3), 3, 1), DeadSegment(name(5), 5, 2, (), name(4)))
    assert codec.decode_record(codec.encode_record(record)) == record


# --- how letters are found


def test_letters_are_taken_by_the_name_of_any_object_that_had_them() -> None:
    record = after(2, 1, 1)
    for named in (name(1), name(2), name(3)):
        taken = r.take_letters(record, named, (1,), (letter(11),))
        assert taken.dead == (DeadSegment(name(3), 3, 4, (1,), name(1)),)
        assert taken.replays == (letter(11),)
        assert r.take_letters(taken, name(1), (1,), (letter(11),)) == taken
        assert r.take_letters(taken, name(3), (1,), (letter(11),)) == taken


def test_a_request_that_comes_with_the_seal_finds_what_that_carries_over() -> None:
    """The letter was listed in the object before, whose name the record has no more."""
    record = r.take_letters(sealed(after(2), 1), name(1), (0,), ())
    assert record.dead == (DeadSegment(name(2), 2, 3, (0,), name(1)),)


def test_late_requests_for_a_segment_that_was_emptied_find_no_other_letters() -> None:
    record = after(6, 3)
    assert [one.name for one in record.dead] == [name(1), name(2)]
    record = r.take_letters(record, name(2), (0, 1, 2), ())
    assert [one.name for one in record.dead] == [name(1)]
    record = sealed(record, 1)
    assert record.dead == (DeadSegment(name(1), 1, 6), DeadSegment(name(3), 3, 1))
    for _ in range(2):
        assert r.holding(record, name(2)) is None
        assert r.take_letters(record, name(2), (0,), ()) == record
        record = sealed(record, 1)
    assert [one.window for one in record.dead] == [1, 5]


def test_a_segment_that_was_emptied_alone_is_followed_by_a_new_one() -> None:
    record = r.take_letters(after(1), name(1), (0,), ())
    assert (record.dead, record.last_dead) == ((), 1)
    assert sealed(record, 1).dead == (DeadSegment(name(2), 2, 1),)


@pytest.mark.parametrize("text", ["", "unknown", "1.3.0/dead", "1.2.1.0.0.0/state/p", name(9)])
def test_other_names_find_nothing(text: str) -> None:
    assert r.holding(after(1, 1, 6), text) is None


def test_windows_that_a_restore_took_back_find_nothing_in_those_that_came_for_them() -> None:
    """Whose numbers they have; and nothing is carried over from one timeline into the next."""
    snapshot = after(1, 1)
    given_up = sealed(sealed(snapshot, 1), 1)
    record = r.restored(snapshot, "u", Tag(2, 2, 2, 1))
    assert r.holding(record, name(1)) == snapshot.dead[0]
    record = sealed(sealed(record, 1, execution=3), 1, execution=3)
    assert record.dead == (snapshot.dead[0], DeadSegment(name(4, 3), 4, 2, (), name(3, 3)))
    for window in (3, 4):
        assert r.holding(given_up, name(window)) is not None
        assert r.holding(record, name(window)) is None
    again = r.restored(given_up, "u", Tag(3, 4, 4, 1))
    assert r.holding(again, name(3)) == given_up.dead[0]
    assert r.holding(again, name(3, 3)) is None, "that was in the second timeline"


@given(st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 40))), max_size=25))
def test_whatever_was_ever_listed_is_the_same_letter_for_good(
    steps: list[tuple[int, set[int]]],
) -> None:
    """Each window may have letters; then some are taken out, by the name of any object so far."""
    record = begun()
    contents: dict[str, tuple[int, ...]] = {}
    gone: set[int] = set()
    for dead, taken in steps:
        before = record
        record = sealed(record, dead)
        window = record.sealed
        if dead:
            older: tuple[int, ...] = ()
            if record.dead[-1].first:
                older = contents[before.dead[-1].name]
            own = tuple(window * 10 + n for n in range(dead))
            contents[name(window)] = (*older, *own)
            assert record.dead[-1].count == len(contents[name(window)])
        listed = [(named, index) for named in contents for index in range(len(contents[named]))]
        for at in sorted(taken & set(range(len(listed)))):
            named, index = listed[-1 - at]
            record = r.take_letters(record, named, (index,), ())
            gone.add(contents[named][index])
        held = [
            contents[one.name][index]
            for one in record.dead
            for index in range(one.count)
            if index not in one.removed
        ]
        assert sorted(held) == sorted({n for found in contents.values() for n in found} - gone)
        assert record.totals.dead == len(held)


# --- edits between


def edited(record: Record, *sources: str, edit: int, **numbers: int) -> Record:
    lives = {source: numbers.get(source, 0) for source in sources}
    return edits.apply_edit(record, Components(edit, lives, {}, {}))[0]


def test_letters_of_a_source_that_came_are_never_beside_older_ones() -> None:
    record = edited(after(1, 1), "s", "t", edit=1)
    record = edited(record, "s", "t", edit=2, t=2)
    assert record.since == {"t": 2}
    assert r.to_carry_over(record, 1, MOST) is None
    of_two = replace(record, dead=after(0, 1).dead)
    assert r.to_carry_over(of_two, 1, MOST) is None
    assert r.to_carry_over(replace(of_two, since={"t": 1}), 1, MOST) == of_two.dead[0]
    record = sealed(sealed(record, 1), 1)
    assert [one.first for one in record.dead] == [name(1), name(3)]
    for one, known in zip(record.dead, (False, True), strict=True):
        assert r.replayable(record, "t", one.window) is known
        assert r.replayable(record, "s", one.window)


def test_a_source_that_went_is_gone_for_all_letters_of_a_segment_also_when_it_comes_back() -> None:
    record = edited(after(1), "t", edit=1)
    record = sealed(record, 1)
    assert record.dead == (DeadSegment(name(2), 2, 2, (), name(1)),)
    assert not r.replayable(record, "s", record.dead[0].window)
    record = edited(record, "s", "t", edit=2, s=2)
    assert not r.replayable(record, "s", record.dead[0].window)
    record = sealed(record, 1)
    assert [one.window for one in record.dead] == [2, 3]
    assert r.replayable(record, "s", record.dead[1].window)


# --- the machine

START = (
    *("record R 1.1.1.5 sealed 3", "propose a1", "start", "view 4 e1 open x1 a1", "cas done"),
    *("stamped a1 R", "copied", "ack a1", "fenced"),
)
DEAD = ("planned 4", "ack a1", "done failing 1", "done", "dead", "ack a1", "published 4", "ack a1")


def lived(letters_together: int = 256) -> Script:
    """Behind window 4, which had a dead letter."""
    script = Script(copies=1, max_replays=0, letters_together=letters_together)
    script.tell(*START, *DEAD)
    return script


NEXT = """
        planned 4
        -> SendRecord a1 1.2.1.5 sealed 4 published 4, open 5: 4+4, dead 1 in 2.4.2.1/dead
        ack a1
        -> Run 1 of 5: 4+4
        -> Plan behind {'s': 8}
        done failing 2
        -> Notify WindowRunAgain
        -> Run 2 of 5: 4+4 without [2]
        done
"""


def test_a_window_asks_for_the_letters_before_it_and_seals_what_was_written() -> None:
    lived().play(
        NEXT
        + """
        -> WriteDead 2.5.2.1/dead 6#0 behind 2.4.2.1/dead
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.6 sealed 5 published 4, dead 2 in 2.5.2.1/dead from 2.4.2.1/dead on
        ack a1
        -> Publish 5
        """
    )


def test_what_it_carries_over_is_forgotten_behind_the_seal() -> None:
    script = lived()
    script.tell("planned 4", "ack a1", "done failing 2", "done", "dead")
    before = len(script.actions)
    script.tell("ack a1")
    (forget,) = [one for one in script.actions[before:] if isinstance(one, e.Forget)]
    assert "2.4.2.1/dead" in forget.names


def test_letters_that_could_not_be_carried_over_begin_a_segment() -> None:
    script = lived()
    script.tell("planned 4", "ack a1", "done failing 2", "done", "dead alone", "ack a1")
    assert script.machine.windows.record is not None
    dead = script.machine.windows.record.dead
    assert dead == (DeadSegment("2.4.2.1/dead", 4, 1), DeadSegment("2.5.2.1/dead", 5, 1))


def test_a_window_whose_letters_do_not_fit_asks_for_none() -> None:
    lived(letters_together=1).play(NEXT + "        -> WriteDead 2.5.2.1/dead 6#0")


def test_who_says_that_it_carried_over_what_nobody_asked_for_is_not_believed() -> None:
    script = lived(letters_together=1)
    script.tell("planned 4", "ack a1", "done failing 2", "done")
    done = e.DeadWritten("2.5.2.1/dead", carried=True)
    sent = [one for one in script.machine.handle(done, 100.0) if isinstance(one, e.SendRecord)]
    assert [one.count for one in sent[0].record.dead] == [1, 1]


def test_asked_again_it_names_the_same_letters_and_under_another_view_another_object() -> None:
    script = lived()
    script.tell("planned 4", "ack a1", "done failing 2", "done", "wait 1", "tick")
    first, again = [one for one in script.actions if isinstance(one, e.WriteDead)][-2:]
    assert first == again
    script.tell("propose a2", "cas done")
    assert script.machine.windows.record is not None
    script.records["S"] = script.machine.windows.record
    script.tell("stamped a1 S", "stamped a2 none", "copied", "ack a2", "cas done", "done")
    other = [one for one in script.actions if isinstance(one, e.WriteDead)][-1]
    assert (other.name, other.after) == ("2.5.3.2/dead", first.after)
    assert other.letters == first.letters
