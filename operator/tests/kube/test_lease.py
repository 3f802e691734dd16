"""Who leads: one at a time, and another one soon after."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hand_clock import HandClock
from memory_api import MemoryApi

from millrace.homes.stores import HomeAwayError
from millrace_operator.kube.lease import (
    DURATION_S,
    RENEW_WITHIN_S,
    SERVERS_DIFFER_S,
    SOON_S,
    TURN_S,
    UNRENEWED_S,
    Lease,
    Move,
    Watched,
    identity,
    keep,
    move,
)
from millrace_operator.kube.objects import Objects, StaleError

ROOT = Path(__file__).parents[3]
PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/op"


def held(holder: str, lasting_s: int = 15) -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": lasting_s}}


@pytest.mark.parametrize(
    ("found", "waited_s", "wanted"),
    [
        (None, 0.0, Move.CREATE),
        (held("me"), 0.0, Move.RENEW),
        (held("me"), 99.0, Move.RENEW),
        (held("other"), 14.0, Move.WAIT),
        (held("other"), 15.5, Move.TAKE),
        (held("other", 60), 15.5, Move.WAIT),
        (held(""), 0.0, Move.TAKE),
        ({}, 0.0, Move.TAKE),
    ],
)
def test_what_follows_from_a_lease(found: Any, waited_s: float, wanted: Move):
    assert move(found, "me", Watched("1", 100.0), 100.0 + waited_s) is wanted


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def clock() -> HandClock:
    return HandClock(epoch_s=1.7e9)


def lease(api: MemoryApi, clock: HandClock, me: str) -> Lease:
    return Lease(Objects(api), "system", "op", me, clock)  # type: ignore[arg-type]


def test_the_second_follows_when_the_first_is_silent(api: MemoryApi, clock: HandClock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    one.turn()
    assert one.leads()
    for _ in range(20):
        clock.time_s += 2
        one.turn()
        two.turn()
        assert (one.leads(), two.leads()) == (True, False)
    led = []
    for _ in range(20):
        clock.time_s += 1
        two.turn()
        assert not (one.leads() and two.leads())
        led.append(two.leads())
    assert led.index(True) <= DURATION_S
    one.turn()
    assert not one.leads()
    assert api.objects[PATH]["spec"]["leaseTransitions"] == 2


def test_a_leader_that_cannot_renew_stops_before_another_may_begin(
    api: MemoryApi, clock: HandClock
):
    one = lease(api, clock, "one")
    one.turn()
    api.away = True
    with pytest.raises(HomeAwayError):
        one.turn()
    clock.time_s += RENEW_WITHIN_S - 1
    assert one.leads()
    clock.time_s += 1
    assert not one.leads()
    assert RENEW_WITHIN_S + 5 <= DURATION_S


@dataclass
class Skewed(HandClock):
    """The clock of another API server: ``ahead_s`` further than ``of``."""

    of: HandClock = field(default_factory=HandClock)
    ahead_s: float = 0.0

    def now_s(self) -> float:
        return self.of.now_s() + self.ahead_s


def seconds_to_lead(one: Lease, clock: HandClock) -> float:
    """How long it takes until it leads, as ``keep`` gives it turns."""
    began_s = clock.time_s
    while not one.leads():
        one.turn()
        if not one.leads():
            clock.time_s += one.turns_s
        assert clock.time_s - began_s < 60.0
    return clock.time_s - began_s


def test_whoever_has_just_started_does_not_wait_for_what_has_run_out_before(clock: HandClock):
    """The holder's node is gone, its clock was wrong by hours; the API server knows the age."""
    api = MemoryApi(clock=clock)
    ahead = HandClock(clock.time_s, clock.epoch_s + 7200.0)
    lease(api, ahead, "one").turn()
    clock.time_s += DURATION_S + SERVERS_DIFFER_S + 1.0
    assert seconds_to_lead(lease(api, clock, "two"), clock) == UNRENEWED_S + SOON_S
    assert api.objects[PATH]["spec"]["leaseTransitions"] == 2


POD = "/api/v1/namespaces/system/pods/op-5d-x7"
DELETED = {"metadata": {"name": "op-5d-x7", "deletionTimestamp": "2026-11-29T12:00:00Z"}}


@pytest.mark.parametrize(
    ("pod", "refused", "waited_s"),
    [
        (DELETED, False, 0.0),
        (DELETED, True, UNRENEWED_S + SOON_S),
        ({"metadata": {"name": "op-5d-x7"}}, False, UNRENEWED_S + SOON_S),
        (None, False, UNRENEWED_S + SOON_S),
    ],
)
def test_nor_does_it_look_twice_where_the_holders_pod_is_being_deleted(
    clock: HandClock, pod: Any, refused: bool, waited_s: float
):
    """A pod that may not be read, is well, or is not there is no reason to take it at once."""
    api = MemoryApi(clock=clock)
    lease(api, clock, identity("op-5d-x7")).turn()
    if pod is not None:
        api.objects[POD] = pod
    before = api.answer

    def answer(method: str, path: str, *rest: Any, **more: Any) -> Any:
        if refused and path == POD:
            return 403, {"message": "pods is forbidden"}
        return before(method, path, *rest, **more)

    api.answer = answer  # type: ignore[method-assign]
    clock.time_s += DURATION_S + SERVERS_DIFFER_S + 1.0
    assert seconds_to_lead(lease(api, clock, "two"), clock) == waited_s
    assert ("GET", POD) in api.calls or refused


def test_a_pod_that_is_being_deleted_keeps_its_lease_until_that_has_run_out(clock: HandClock):
    """It may take half a minute to end, and act all the while."""
    api = MemoryApi(clock=clock)
    one, two = lease(api, clock, identity("op-5d-x7")), lease(api, clock, "two")
    api.objects[POD] = DELETED
    for _ in range(20):
        one.turn()
        two.turn()
        assert (one.leads(), two.leads()) == (True, False)
        clock.time_s += TURN_S


def test_a_younger_one_is_waited_for_until_it_is_as_old(clock: HandClock):
    api = MemoryApi(clock=clock)
    lease(api, clock, "one").turn()
    clock.time_s += DURATION_S
    waited_s = seconds_to_lead(lease(api, clock, "two"), clock)
    assert SERVERS_DIFFER_S < waited_s < DURATION_S


@pytest.mark.parametrize("ahead_s", [30.0, 3600.0])
def test_a_holder_that_renews_loses_nothing_to_clocks_that_differ(
    api: MemoryApi, clock: HandClock, ahead_s: float
):
    """By the server that is asked its Lease is old whenever somebody looks."""
    api.clock = clock
    api.answers_by = Skewed(of=clock, ahead_s=ahead_s)
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    for half_seconds in range(120):
        if half_seconds % 4 == 0:
            one.turn()
        two.turn()
        assert (one.leads(), two.leads()) == (True, False)
        clock.time_s += 0.5


def test_a_clock_that_jumps_makes_no_lease_old_that_was_renewed_before(
    api: MemoryApi, clock: HandClock
):
    """As behind the sleep of a machine: whoever waits has seen it renewed."""
    api.clock = clock
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    for _ in range(3):
        one.turn()
        two.turn()
        clock.time_s += 2.0
    api.answers_by = Skewed(of=clock, ahead_s=3600.0)
    for _ in range(6):
        two.turn()
        clock.time_s += 2.0
    assert not two.leads()


def test_an_api_server_that_says_no_time_is_no_reason_to_take(clock: HandClock):
    api = MemoryApi()
    lease(api, clock, "one").turn()
    clock.time_s += 3600.0
    assert seconds_to_lead(lease(api, clock, "two"), clock) > DURATION_S


def test_the_text_says_when_who_leads():
    text = " ".join((ROOT / "docs" / "operator.md").read_text().split())
    old_s = DURATION_S + SERVERS_DIFFER_S
    assert f"renews it every {TURN_S:.0f} s, and stops acting when it could not" in text
    assert f"for {RENEW_WITHIN_S:.0f} s; others take it over after {DURATION_S} s of" in text
    assert f"older than {old_s:.0f} s by the API server's own times" in text
    assert f"does not change for {UNRENEWED_S} s more, or at once where the pod of its" in text


def test_of_two_that_take_it_at_once_one_has_it(api: MemoryApi, clock: HandClock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    before = api.answer

    def late(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if method == "POST":
            api.answer = before  # type: ignore[method-assign]
            two.turn()
        return before(method, path, body, **more)

    api.answer = late  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        one.turn()
    assert (one.leads(), two.leads()) == (False, True)


def test_one_that_ends_lets_another_follow_at_once(api: MemoryApi, clock: HandClock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    one.turn()
    two.turn()
    one.give_back()
    assert not one.leads()
    two.turn()
    assert two.leads()


def test_one_that_ends_takes_nothing_from_another(api: MemoryApi, clock: HandClock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    one.turn()
    two.turn()
    clock.time_s += DURATION_S + 1
    two.turn()
    one.give_back()
    assert api.objects[PATH]["spec"]["holderIdentity"] == "two"


def test_a_turn_that_gets_no_answer_is_one_too(api: MemoryApi, clock: HandClock):
    one = lease(api, clock, "one")
    clock.time_s += 60.0
    assert one.turned_ago_s() == 60.0
    api.away = True
    with pytest.raises(HomeAwayError):
        one.turn()
    assert one.turned_ago_s() == 0.0


def test_beginning_and_end_are_told(api: MemoryApi, clock: HandClock):
    one, stopped, told = lease(api, clock, "one"), threading.Event(), []

    def changed(leads: bool) -> None:
        told.append(leads)
        api.away = True
        clock.time_s += RENEW_WITHIN_S
        if not leads:
            stopped.set()

    keep(one, stopped, changed)
    assert told == [True, False]
