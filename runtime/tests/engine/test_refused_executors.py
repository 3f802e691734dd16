"""When a driver tells that pods of its executors are refused, and that they are not any more."""

from __future__ import annotations

import threading

import pytest
from moved_clock import Hands

from millrace.engine.driver.home import refused
from millrace.engine.driver.home.refused import LASTS_S, LOOK_S, OVER_S, RefusedExecutors
from millrace.engine.jobs.refusals import cause
from millrace.protocol import events as e

QUOTA = "exceeded quota: small, requested: pods=1, used: pods=6, limited: pods=6"


class Driver:
    """One whose Spark is ``refused`` an executor again and again, for this reason."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.refused: str | None = None
        self.events: list[e.Notify] = []
        self.watch = RefusedExecutors(self._drain, self.clock, self.events.append)

    def _drain(self) -> list[str]:
        return [] if self.refused is None else ["an older one", self.refused]

    def runs(self, seconds: float) -> str | None:
        for _ in range(int(seconds / LOOK_S)):
            self.clock.at_s += LOOK_S
            self.watch.look()
        return self.watch.now


def test_what_goes_on_is_told_once_and_over_when_it_was_quiet_for_a_while() -> None:
    driver = Driver()
    driver.refused = QUOTA
    assert driver.runs(LASTS_S) is None
    assert driver.runs(LOOK_S) == QUOTA
    assert driver.runs(60.0) == QUOTA
    assert driver.events == [e.Notify("ExecutorsRefused", QUOTA, warning=True)]
    driver.refused = "another quota"
    assert driver.runs(LOOK_S) == "another quota"
    assert len(driver.events) == 1
    driver.refused = None
    assert driver.runs(OVER_S - LOOK_S) == "another quota"
    assert driver.runs(2 * LOOK_S) is None
    driver.refused = QUOTA
    driver.runs(LASTS_S + LOOK_S)
    assert [one.text for one in driver.events] == [QUOTA, QUOTA]


def test_what_the_driver_before_still_holds_for_a_moment_is_no_trouble() -> None:
    driver = Driver()
    for _ in range(3):
        driver.refused = QUOTA
        driver.runs(LASTS_S - LOOK_S)
        driver.refused = None
        driver.runs(OVER_S + LOOK_S)
    assert driver.events == []


def test_of_what_the_client_says_the_api_server_s_words_count() -> None:
    words = f'pods "words-driver-1-exec-41" is forbidden: {QUOTA}'
    said = (
        "Failure executing: POST at: https://10.96.0.1:443/api/v1/namespaces/jobs/pods. Message: "
        f"{words}. Received status: Status(apiVersion=v1, code=403, message={words})."
    )
    assert cause(said) == f'pods "words-driver-1-exec-N" is forbidden: {QUOTA}'
    assert cause("Operation: [create] for kind: [Pod] failed.") == (
        "Operation: [create] for kind: [Pod] failed."
    )


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "LOOK_S", 0.01)
    again, looks = threading.Event(), []

    def drain() -> list[str]:
        looks.append(None)
        if len(looks) == 1:
            raise OSError("the JVM is slow")
        again.set()
        return []

    watch = RefusedExecutors(drain, Hands(), lambda _: None)
    watch.start()
    assert again.wait(20.0)
    watch.stop()
