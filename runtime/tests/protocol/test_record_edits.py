"""An edit of a topology is one record change, made once, before anything is planned or run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script

from millrace.protocol import events as e
from millrace.protocol import record as r
from millrace.protocol.edits import Pruned, apply_edit, removed_outputs, told
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Intent,
    Record,
    Replay,
    RootRange,
    Sealed,
    Segment,
    Staged,
    Tag,
    Totals,
)

CHAINS = {"p": (Segment("p1", 1, 1, True),), "q": (Segment("q1", 1, 1, True),)}
STAGED = (Staged("x", "x1", "d", 3, 9), Staged("y", "y1", "d", 2, 9))


def components(edit: int, sources: str, processors: str = "p0 q0", sinks: str = "x0 y0"):
    """``components(2, "a0 b2")``: a from the beginning, b brought by the second edit."""
    lives = [
        {name[0]: int(name[1:]) for name in text.split()} for text in (sources, processors, sinks)
    ]
    return Components(edit, *lives)


def replay(source: str, offset: int) -> Replay:
    return Replay(source, 0, offset, 1, 0.0)


def busy() -> Record:
    """Two sources with open windows, one of them of replays, and waiting replays."""
    first = Intent(5, (RootRange("a", 0, 10, 4), RootRange("b", 0, 20, 3)))
    second = Intent(6, (), (replay("b", 1), replay("a", 2)))
    return replace(
        r.first_record("u", Tag(1, 1, 1, 1)),
        sealed=4,
        offsets={"a": 14, "b": 23},
        intents=(first, second),
        chains=CHAINS,
        replays=(replay("a", 3), replay("b", 4), replay("b", 5)),
        dead=(DeadSegment("1.3.1.1/dead", 3, 2),),
        totals=Totals(roots=40, dropped=1),
    )


def test_all_that_belongs_to_what_is_gone_is_pruned_and_counted() -> None:
    after, pruned = apply_edit(busy(), components(1, "a0", "p0"))
    assert after.intents == (
        Intent(5, (RootRange("a", 0, 10, 4),)),
        Intent(6, (), (replay("a", 2),)),
    )
    assert after.replays == (replay("a", 3),)
    assert after.offsets == {"a": 14}
    assert after.chains == {"p": CHAINS["p"]}
    assert after.totals == Totals(roots=40, dropped=1 + 3 + 1 + 2)
    assert pruned == Pruned(("b",), ("q",), open=4, replays=2)
    # Dead letters stay, to be looked at and dropped, not to be replayed.
    assert after.dead == busy().dead
    assert r.replayable(after, "a", 3)
    assert not r.replayable(after, "b", 3)


def test_the_second_time_nothing_changes() -> None:
    for wanted in (components(1, "a0", "p0"), components(3, "a0 b3 c2", "p1 q0")):
        once, _ = apply_edit(busy(), wanted)
        assert apply_edit(once, wanted) == (once, Pruned())


def test_what_came_back_since_is_another_one() -> None:
    """Even where no driver ever ran without it."""
    after, pruned = apply_edit(busy(), components(2, "a0 b2", "p0 q1"))
    assert "b" not in after.offsets
    assert "q" not in after.chains
    assert pruned == Pruned(("b",), ("q",), open=4, replays=2)
    # Letters of the one that was removed are not read from the one that came.
    assert after.since == {"b": 4}
    assert not r.replayable(after, "b", 4)
    assert r.replayable(after, "b", 5)
    later, _ = apply_edit(replace(after, sealed=9), components(3, "a0 b2 c3"))
    assert later.since == {"b": 4, "c": 9}


def test_the_first_edit_of_an_older_record_keeps_what_was_there() -> None:
    after, pruned = apply_edit(busy(), components(0, "a0 b0"))
    assert after == replace(busy(), components=components(0, "a0 b0"))
    assert pruned == Pruned()
    assert told(busy(), components(0, "a0 b0"), False) == ("", False)


def test_what_is_dropped_is_told() -> None:
    text, loses = told(busy(), components(1, "a0", "p0"), False)
    assert text == (
        "the topology was edited: source 'b' is gone with its read position; the state of 'q' is "
        "dropped; 4 open roots and 2 replays of what is gone are dropped"
    )
    assert loses
    assert not told(replace(busy(), intents=(), replays=()), components(1, "a0", "p0"), False)[1]


def test_rows_that_a_removed_sink_has_still_to_show() -> None:
    record = replace(busy(), unpublished=(Sealed(4, "d", STAGED),))
    assert removed_outputs(record, components(1, "a0 b0", sinks="x0")) == {"y": 0}
    assert removed_outputs(record, components(2, "a0 b0", sinks="x2 y0")) == {"x": 0}
    text, loses = told(record, components(1, "a0 b0", sinks="x0"), True)
    assert text == (
        "the topology was edited: 2 rows of windows 4 to 4, not yet confirmed by sink 'y', are "
        "given up"
    )
    assert loses


@pytest.mark.parametrize("taken", [True, False])
def test_a_letter_of_a_source_that_is_gone_is_dropped_but_not_replayed(taken: bool) -> None:
    record, _ = apply_edit(busy(), components(1, "a0"))
    asked = (replay("b", 9),) if taken else ()
    after = r.take_letters(record, "1.3.1.1/dead", (0,), asked)
    assert after.replays == record.replays
    assert after.dead == (record.dead if taken else (DeadSegment("1.3.1.1/dead", 3, 2, (0,)),))


# -- the machine

START = """
start
-> ReadView
view 4 e1 open x1 a1
-> CasView 4 e1 open x2 a1
cas done
-> SendStamp a1 e1x2
stamped a1 R
-> CopyObjects 1.1.1.5 from a1
copied
-> SendRecord a1 1.2.1.1 sealed 3 published 3, open 4: 0+4
ack a1
-> Notify DriverRecovered
-> FenceSinks x2
"""


def script(wanted: Components) -> Script:
    made = Script(components=wanted)
    return made.play("record R 1.1.1.5 sealed 3 open 4" + START)


def test_an_edit_comes_before_the_first_plan_and_the_first_run() -> None:
    """Also if the members change while it is written: it is written again."""
    played = script(components(1, "z1")).play(
        """
        wait 1
        tick
        -> FenceSinks x2
        fenced
        -> Notify TopologyEdited
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4:
        propose a2
        -> CasView 5 e2 moving x2 a1 to a2
        """
    )
    assert not [a for a in played.actions if isinstance(a, e.Plan | e.Run)]


def test_a_driver_that_finds_the_edit_made_does_nothing() -> None:
    wanted = components(1, "s0")
    made = Script(components=wanted)
    made.play("record R 1.1.1.5 sealed 3 open 4")
    made.records["R"] = replace(made.records["R"], components=wanted)
    made.play(START + "-> Plan behind {'s': 4}\nfenced\n-> Run 1 of 4: 0+4")


def test_a_driver_of_an_older_file_never_takes_an_edit_back() -> None:
    made = Script(components=components(1, "s0"))
    made.play("record R 1.1.1.5 sealed 3 open 4")
    made.records["R"] = replace(made.records["R"], components=components(2, "s0 t2"))
    made.play(START + "fenced\n-> Stop fenced")


def test_an_edit_waits_until_what_is_sealed_is_shown() -> None:
    made = Script(components=components(1, "s0", sinks="x0"))
    made.play("record R 1.1.1.5 sealed 3 open 4")
    waiting = (Sealed(2, "d", STAGED), Sealed(3, "d", STAGED))
    made.records["R"] = replace(made.records["R"], published=1, unpublished=waiting)
    made.play(START.replace("published 3", "published 1")).play(
        """
        fenced
        -> Publish 2
        unpublished 2
        -> Notify PublishFailed
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> Publish 2
        published 2
        -> Publish 3
        published 3
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        """
    )


# --- what is told, wherever a name still stands


def _scattered() -> Record:
    """Every removed source stands in one place alone; ``kept`` stands in all of them."""
    kept = RootRange("kept", 0, 0, 1)
    intents = (
        Intent(4, (kept, RootRange("open", 0, 0, 2)), (replay("kept", 0),)),
        Intent(5, (kept,), (replay("again", 0), replay("kept", 0))),
    )
    record = r.first_record("u", Tag(1, 1, 1, 1))
    return replace(
        record,
        sealed=3,
        intents=intents,
        replays=(replay("waits", 0), replay("kept", 0)),
        offsets={"read": 1, "kept": 2},
        chains={"z": (), "a": (), "p": ()},
        components=Components(1, dict.fromkeys(NAMES, 0), {"z": 0, "a": 0, "p": 1}, {"s": 0}),
        since={"read": 1, "kept": 2},
    )


NAMES = ("kept", "open", "again", "waits", "read")


def test_what_is_gone_is_told_wherever_its_name_still_stands() -> None:
    now = Components(2, {"kept": 0, "new": 2}, {"p": 1}, {"s": 0})
    edited, pruned = apply_edit(_scattered(), now)
    assert pruned.sources == ("again", "open", "read", "waits")
    assert pruned.processors == ("a", "z")
    assert (pruned.open, pruned.replays) == (3, 1)
    assert edited.since == {"kept": 2, "new": 3}
    assert edited.offsets == {"kept": 2}
    assert [intent.roots for intent in edited.intents] == [2, 2]
    assert edited.totals.dropped == 4


def test_one_open_root_and_one_replay_are_a_loss() -> None:
    record = replace(_scattered(), intents=(Intent(4, (RootRange("open", 0, 0, 1),)),))
    now = Components(2, {"kept": 0}, dict.fromkeys("zap", 0), {"s": 0})
    text, loses = told(record, now, drop_removed=False)
    assert "1 open roots and 1 replays" in text
    assert loses


def test_sinks_that_are_gone_with_something_to_show_are_named_in_order() -> None:
    staged = tuple(Staged(sink, sink, "d", 1, 1) for sink in ("z", "kept", "a"))
    record = replace(_scattered(), unpublished=(Sealed(3, "d", staged),))
    now = Components(2, {"kept": 0}, {}, {"kept": 0, "a": 2})
    sinks = Components(1, {}, {}, {"z": 1, "kept": 0, "a": 1})
    assert removed_outputs(record, None) == {}
    assert list(removed_outputs(replace(record, components=sinks), now).items()) == [
        ("a", 1),
        ("z", 1),
    ]
    assert removed_outputs(replace(record, components=None), now) == {"a": 0, "z": 0}


def test_removed_sinks_that_wait_are_named_in_order() -> None:
    staged = tuple(Staged(sink, f"{sink}1", "d", 3, 9) for sink in "hcfadbge")
    waits = replace(busy(), unpublished=(Sealed(3, "d", staged),))
    assert list(removed_outputs(waits, components(2, "a0 b0"))) == list("abcdefgh")
