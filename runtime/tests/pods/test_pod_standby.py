"""Whose turn it is, by the pods that a driver that stands by sees."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from millrace.errors import ExitCode
from millrace.health import Beat
from millrace.homes import pods as names
from millrace.homes.stores import HomeAwayError
from millrace.pods.driver import questions
from millrace.pods.standby import RESYNC_S, STALE_S, Watchman, Whose, judge

OWN = "words-driver-3"
WHO = ("words", "uid-1", OWN)


def pod(
    number: int,
    phase: str = "Running",
    code: int | None = None,
    proxy: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    owner = {"uid": more.pop("uid", "uid-1")}
    metadata = {"name": f"words-driver-{number}", "ownerReferences": [owner], **more}
    status: dict[str, Any] = {"phase": phase}
    if code is not None:
        ended = {"name": "driver", "state": {"terminated": {"exitCode": code}}}
        beside = {"name": "proxy", "state": proxy or {"terminated": {"exitCode": 0}}}
        status["containerStatuses"] = [beside, ended]
    return {"metadata": metadata, "status": status}


DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ME = pod(3)
RUNS: dict[str, Any] = {"running": {}}
KILLED = {"terminated": {"exitCode": 137}}


@pytest.mark.parametrize(
    ("others", "whose"),
    [
        ([pod(2)], Whose.THEIRS),
        ([pod(2, "Pending")], Whose.THEIRS),
        ([pod(2, "Unknown")], Whose.THEIRS),
        ([], Whose.OURS),
        ([pod(2, **DELETING)], Whose.OURS),
        ([pod(2, "Failed", 137)], Whose.OURS),
        ([pod(2, "Failed")], Whose.OURS),
        ([pod(2, "Failed", int(ExitCode.FAILED))], Whose.OURS),
        ([pod(1), pod(2, "Failed", 137)], Whose.THEIRS),
        ([pod(2, "Succeeded", 0)], Whose.NOBODYS),
        ([pod(2, "Failed", int(ExitCode.TOO_MANY_DEAD))], Whose.NOBODYS),
        ([pod(2, "Failed", int(ExitCode.STATE_LOST))], Whose.NOBODYS),
        ([pod(2, **DELETING), pod(4)], Whose.NOBODYS),
        ([pod(4)], Whose.NOBODYS),
        # What a mesh has put beside a driver runs on when it has ended, or ends otherwise.
        ([pod(2, "Running", 137, RUNS)], Whose.OURS),
        ([pod(2, "Running", 0, RUNS)], Whose.NOBODYS),
        ([pod(2, "Running", int(ExitCode.STATE_LOST), RUNS)], Whose.NOBODYS),
        ([pod(2, "Failed", 0, KILLED)], Whose.NOBODYS),
        # An earlier topology of the name, or anybody's pod with its labels.
        ([pod(2, uid="uid-0")], Whose.OURS),
        ([pod(4, uid="uid-0"), pod(2)], Whose.THEIRS),
    ],
)
def test_whose_turn_it_is(others: list[dict[str, Any]], whose: Whose) -> None:
    assert judge([ME, *others], *WHO).whose is whose
    assert judge([*others, ME], *WHO).whose is whose


def test_what_drains_ends_it_as_drained_and_all_else_does_not() -> None:
    assert judge([ME, pod(2, "Succeeded", 0)], *WHO).code == ExitCode.OK
    assert judge([ME, pod(4)], *WHO).code == ExitCode.INTERRUPTED


@pytest.mark.parametrize("own", [[], [pod(3, **DELETING)], [pod(3, uid="uid-0")]])
def test_one_that_is_to_end_follows_nobody(own: list[dict[str, Any]]) -> None:
    for others in ([], [pod(2)], [pod(2, "Failed", 137)]):
        assert judge([*own, *others], *WHO).whose is Whose.NOBODYS


class HandClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def monotonic_s(self) -> float:
        return self.at_s

    def now_s(self) -> float:
        return self.at_s


class Drivers:
    """An API server with pods, in pages of two; ``asked`` counts whole lists."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.pods = [pod(1, "Failed", 137), pod(2), ME]
        self.asked = 0
        self.away = False
        self.takes_s = 0.0
        self.changed = threading.Event()
        self.watched = threading.Event()

    def call(self, method: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        assert (method, path) == ("GET", "/api/v1/namespaces/jobs/pods")
        assert "millrace.dev/topology=words" in query["labelSelector"]
        assert "component=driver" in query["labelSelector"]
        if self.away:
            raise HomeAwayError("away")
        start = int(query.get("continue", 0))
        if start == 0:
            self.asked += 1
            self.clock.at_s += self.takes_s
        metadata = {"resourceVersion": "7"}
        if start + 2 < len(self.pods):
            metadata["continue"] = str(start + 2)
        return {"metadata": metadata, "items": self.pods[start : start + 2]}

    def lines(self, path: str, query: Mapping[str, str], _: float) -> Iterator[dict[str, Any]]:
        assert query["watch"] == "1"
        assert query["resourceVersion"] == "7"
        self.watched.set()
        assert self.changed.wait(60)
        self.changed.clear()
        yield {"type": "MODIFIED", "object": {}}


@pytest.fixture
def drivers() -> Drivers:
    return Drivers(HandClock())


def watchman(drivers: Drivers) -> Watchman:
    api: Any = drivers
    clock: Any = drivers.clock
    return Watchman(api, "jobs", *WHO, clock=clock)


def test_it_stands_by_and_asks_no_more_than_it_has_to(drivers: Drivers) -> None:
    one = watchman(drivers)
    assert not one.over(0.0)
    assert not one.over(0.0)
    assert drivers.asked == 1
    drivers.clock.at_s += RESYNC_S
    drivers.pods = [pod(2, **DELETING), ME]
    assert one.over(0.0)
    assert one.outlook.whose is Whose.OURS


def test_a_watch_has_it_look_at_once(drivers: Drivers) -> None:
    one = watchman(drivers)
    assert not one.over(0.0)
    assert drivers.watched.wait(60)
    drivers.pods = [ME]
    drivers.changed.set()
    assert one.over(60.0)
    assert one.outlook.whose is Whose.OURS


def test_while_the_api_server_is_away_it_stands_by(drivers: Drivers) -> None:
    one = watchman(drivers)
    drivers.away = True
    assert not one.over(0.0)
    drivers.pods = [ME]
    drivers.away = False
    drivers.clock.at_s += 1.0
    assert one.over(0.0)
    assert one.outlook.whose is Whose.OURS


def test_a_look_in_which_it_was_stopped_is_repeated(drivers: Drivers) -> None:
    """It woke late: meanwhile another driver was made, which it would have fenced."""
    one = watchman(drivers)
    drivers.pods, drivers.takes_s = [ME], STALE_S + 1
    assert not one.over(0.0)
    drivers.pods, drivers.takes_s = [ME, pod(4)], 0.0
    assert one.over(0.0)
    assert one.outlook.whose is Whose.NOBODYS


def test_one_that_is_asked_to_end_does(drivers: Drivers) -> None:
    one = watchman(drivers)
    one.stop("asked to end")
    assert one.over(0.0)
    assert (one.outlook.whose, one.outlook.code) == (Whose.NOBODYS, ExitCode.INTERRUPTED)
    assert drivers.asked == 0


def test_it_is_ready_until_it_is_its_turn_and_then_as_any_driver_is() -> None:
    """Before it runs windows it may have a restore to finish, with no figures and not ready."""
    waits = [True]
    asked = questions(lambda: None, Beat(60.0), lambda: waits[0])
    answer = asked[names.READY_PATH]()
    assert (answer.good, answer.text) == (True, "stands by")
    figures = asked[names.METRICS_PATH]()
    assert figures.good, "a target that is down is an alarm"
    assert "process_resident_memory_bytes" in figures.text
    assert "millrace_driver_execution" not in re.sub("^#.*$", "", figures.text, flags=re.M)
    waits[0] = False
    assert not asked[names.READY_PATH]().good
    assert not questions(lambda: None, Beat(60.0))[names.READY_PATH]().good
