"""Saboteurs at random places of real window attempts: none of what they damage is ever sealed.

They are subclasses that workers load, or an acker process started in place of the real one; the
product has no switch for them. What comes out is judged from the bytes fed and the bytes shown.
"""

from __future__ import annotations

import os
import random

import pytest
import yaml
from faults_driver import CODE, sealed_attempts

from millrace_e2e import feed
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

WINDOW = 4500
"""Roots of a window: several tasks with an exchange (``conftest.live``)."""

ORDERED = "fault_transports:Ordered"

ROWS_GO_ASTRAY = ["drop", "double", "triple", "misroute", "alterId"]
BEFORE_THE_CHECKS = ["hidden-drop", "hidden-double", "hidden-alterId"]

UNSEEN_WITHOUT_TRACKING = ["drop", "double", "triple"]
SEEN_ANYWAY = ["misroute"]
"""The key of a misrouted row says that it belongs elsewhere."""


FEW = 300
"""Roots of a window that is one task, whose report encloses all that it tells the ackers."""


def write(place, windows, tracking=True, window=WINDOW, **changes):
    document = history(Shape(max_records=window))
    spec = document["spec"]
    spec.update(changes)
    if not tracking:
        spec["tracking"] = "Off"
        spec["ackers"]["replicas"] = 0
    place.write(document)
    feed.add_file(place.texts / "a.txt", feed.text(range(windows * window), 1))


def run(lab, live, orders, **options):
    lab.order(orders)
    life = live(**options)
    assert life.wait() == 0
    return life


def acker(tracking):
    return "millrace.tracking.process" if tracking else None


def hit(strikes):
    return {tuple(strike["attempt"]) for strike in strikes.values()}


def assert_never_sealed(lab, place, number):
    """All orders were carried out, and no window shows an attempt that was damaged."""
    strikes = lab.strikes()
    assert len(strikes) == number
    assert len(hit(strikes)) == number
    assert not hit(strikes) & sealed_attempts(place)


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_that_go_astray_between_passes_are_noticed(lab, live, place, seed):
    kinds = ROWS_GO_ASTRAY + BEFORE_THE_CHECKS
    random.Random(seed).shuffle(kinds)
    damage = [
        {"window": window, "kind": kind, "seed": seed * 100 + window}
        for window, kind in enumerate(kinds, 1)
    ]
    write(place, len(kinds))
    run(lab, live, {"damage": damage}, transport=ORDERED)
    assert_never_sealed(lab, place, len(kinds))
    assert judge(place, Promise.EXACTLY_ONCE) == []


@pytest.mark.parametrize("kind", UNSEEN_WITHOUT_TRACKING)
def test_without_tracking_the_same_rows_are_lost_or_doubled(lab, live, place, kind):
    write(place, 2, tracking=False)
    damage = [{"window": window, "kind": kind, "seed": 10 + window} for window in (1, 2)]
    run(lab, live, {"damage": damage}, transport=ORDERED, acker=None)
    strikes = lab.strikes()
    assert hit(strikes) <= sealed_attempts(place)
    assert judge(place, Promise.EXACTLY_ONCE) != []


def test_without_tracking_keys_still_notice_a_misrouted_row(lab, live, place):
    write(place, 2, tracking=False)
    damage = [{"window": window, "kind": "misroute", "seed": 20 + window} for window in (1, 2)]
    run(lab, live, {"damage": damage}, transport=ORDERED, acker=None)
    assert_never_sealed(lab, place, 2)
    assert judge(place, Promise.EXACTLY_ONCE) == []


@pytest.mark.parametrize("tracking", [True, False], ids=["tracked", "untracked"])
def test_readers_of_different_attempts_of_one_task_are_noticed(lab, live, place, tracking):
    """A map output is lost when one reader has read it: the others get another attempt's.

    With three partitions on two threads the last reader begins after the first one has ended.
    """
    write(place, 2, tracking, parallelism=3)
    orders = {"loseMapOutput": {"window": 1, "folder": str(lab.shuffles)}}
    life = run(
        *(lab, live, orders),
        transport=ORDERED,
        acker=acker(tracking),
    )
    assert_never_sealed(lab, place, 1)
    (again,) = life.events("WindowRunAgain")
    assert "was seen as task attempts" in again["text"]
    assert judge(place, Promise.EXACTLY_ONCE) == []


@pytest.mark.parametrize("tracking", [True, False], ids=["tracked", "untracked"])
def test_a_short_read_is_noticed(lab, live, place, tracking):
    """Seen without tracking too: the roots that were read do not add up to the plan's."""
    options = {"path": "texts", "format": "text", "watch": False}
    source = {"name": "lines", "custom": {"class": "fault_ends:ShortLines", "options": options}}
    write(place, 3, tracking, sources=[source])
    orders = {"shortRead": {"windows": [1, 2, 3], "seed": 5}}
    run(lab, live, orders, acker=acker(tracking))
    assert_never_sealed(lab, place, 3)
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert_closed_once(place, ["lines"])


@pytest.mark.parametrize("tracking", [True, False], ids=["tracked", "untracked"])
def test_a_staged_file_that_was_cut_is_noticed(lab, live, place, tracking):
    """Seen without tracking too: the digest of what was staged is compared before the seal."""
    write(place, 3, tracking)
    document = yaml.safe_load(place.topology.read_text())
    for sink in document["spec"]["sinks"]:
        sink["custom"] = {"class": "fault_ends:CutFiles", "options": sink.pop("files")}
    place.write(document)
    orders = {"cutFile": {"windows": [1, 2, 3], "seed": 6}}
    run(lab, live, orders, acker=acker(tracking))
    assert_never_sealed(lab, place, 3)
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert_closed_once(place, [sink["name"] for sink in document["spec"]["sinks"]])


def assert_closed_once(place: Place, names: list[str]) -> None:
    """On the driver, which is this very process."""
    told = {n: (place.topology.parent / f"{n}.closed").read_text().split() for n in names}
    assert told == {name: [str(os.getpid())] for name in names}


@pytest.mark.parametrize(("window", "of", "seed"), [(WINDOW, 4, 1), (WINDOW, 4, 2), (FEW, 1, 1)])
def test_an_acker_that_skips_a_message_proves_nothing(lab, live, place, window, of, seed):
    """Without tracking there is no acker that could. For one task there is one message."""
    write(place, 3, window=window)
    orders = {"skipMessages": {"windows": [1, 2, 3], "of": of, "seed": seed}}
    run(lab, live, orders, acker=str(CODE / "fault_acker.py"))
    assert_never_sealed(lab, place, 3)
    assert judge(place, Promise.EXACTLY_ONCE) == []
