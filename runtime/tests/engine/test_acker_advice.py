"""What a driver says of the number of ackers, by what they use; the rule itself is elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from moved_clock import Hands

from millrace.engine.driver.home.advice import (
    EXPIRES_S,
    LOOK_S,
    SAID_S,
    AckerAdviser,
    CoresUsed,
)
from millrace.errors import StateServerError
from millrace.homes import codec
from millrace.homes.documents import AckerAdvice, Status
from millrace.protocol.ackerload import GROW_AFTER_S, SHRINK_AFTER_S
from millrace.tracking.log import AckerLoad

NEAR_S = 1e-6


class Crew:
    """Ackers that use what a test says and say so every ``tell_s`` seconds, each by a clock of its
    own, and the adviser that looks at them every ``look_s``."""

    def __init__(self, count: int, tell_s: float = 1.0, look_s: float = 1.0) -> None:
        self.clock = Hands()
        self.used: dict[str, AckerLoad] = {}
        self.away = False
        self.tell_s, self.look_s = tell_s, look_s
        self.next_look_s = self.clock.at_s + look_s
        self.have(count)
        self.adviser = AckerAdviser(lambda: self.names, self._loads, self.clock)

    def have(self, count: int) -> None:
        self.names = tuple(f"words-acker-{number}" for number in range(count))
        self.next_told_s = dict.fromkeys(self.names, self.clock.at_s + self.tell_s)

    def _loads(self) -> Mapping[str, AckerLoad]:
        if self.away:
            raise StateServerError("away")
        return dict(self.used)

    def work(self, share: float, seconds: float) -> AckerAdvice | None:
        end_s = self.clock.at_s + seconds
        while min(self.next_look_s, *self.next_told_s.values()) <= end_s + NEAR_S:
            self.clock.at_s = min(self.next_look_s, *self.next_told_s.values())
            for number, name in enumerate(self.names):
                if self.clock.at_s >= self.next_told_s[name]:
                    own_s = self.clock.at_s + 1000.0 * number
                    said = self.used.get(name, AckerLoad(0.0, own_s - self.tell_s))
                    cpu_s = said.cpu_s + share * (own_s - said.at_s)
                    self.used[name] = AckerLoad(cpu_s, own_s)
                    self.next_told_s[name] += self.tell_s
            if self.clock.at_s >= self.next_look_s:
                self.adviser.look()
                self.next_look_s += self.look_s
        self.clock.at_s = end_s
        return self.adviser.advice


def test_busy_ackers_ask_for_more_until_there_are_more() -> None:
    crew = Crew(2)
    assert crew.work(0.9, GROW_AFTER_S) is None
    assert crew.work(0.9, 2) == AckerAdvice(2, 4)
    assert crew.work(0.3, 30) == AckerAdvice(2, 4), "nobody has followed it yet"
    crew.have(4)
    assert crew.work(0.3, 2) is None


def test_idle_ackers_let_one_go() -> None:
    crew = Crew(3)
    assert crew.work(0.05, SHRINK_AFTER_S) is None
    assert crew.work(0.05, 2) == AckerAdvice(3, 2)


def test_the_last_acker_stays() -> None:
    crew = Crew(1)
    assert crew.work(0.0, 3 * SHRINK_AFTER_S) is None


def test_advice_that_the_load_does_not_bear_out_any_more_is_taken_back() -> None:
    """Where more are not allowed nobody follows it; who allows them later goes by the load then."""
    crew = Crew(2)
    assert crew.work(0.9, GROW_AFTER_S + 2) == AckerAdvice(2, 4)
    assert crew.work(0.9, 2 * EXPIRES_S) == AckerAdvice(2, 4)
    assert crew.work(0.5, EXPIRES_S + GROW_AFTER_S) is None


def test_a_load_that_swings_changes_nothing() -> None:
    crew = Crew(2)
    for _ in range(60):
        assert crew.work(1.0, GROW_AFTER_S - 1) is None
        assert crew.work(0.45, 2) is None


def test_nothing_is_said_while_one_does_not_say_what_it_uses() -> None:
    crew = Crew(2)
    crew.work(0.9, 3)
    crew.away = True
    assert crew.work(0.9, 60) is None
    crew.away = False
    assert crew.work(0.9, GROW_AFTER_S) is None
    assert crew.work(0.9, 3) == AckerAdvice(2, 4)


@pytest.mark.parametrize(
    ("tell_s", "look_s"), [(1.25, 1.0), (1.0, 1.3), (1.25, 1.3), (2.9, 1.0), (0.4, 1.0)]
)
def test_who_says_it_and_who_looks_need_not_keep_step(tell_s: float, look_s: float) -> None:
    busy = Crew(2, tell_s, look_s)
    assert busy.work(0.9, GROW_AFTER_S) is None
    assert busy.work(0.9, 2 * (tell_s + look_s)) == AckerAdvice(2, 4)
    even = Crew(2, tell_s, look_s)
    assert even.work(0.6, 3 * SHRINK_AFTER_S) is None, "neither busy nor idle at any look"
    idle = Crew(2, tell_s, look_s)
    assert idle.work(0.05, SHRINK_AFTER_S + 2 * (tell_s + look_s)) == AckerAdvice(2, 1)


def test_cores_are_those_between_two_sayings_by_the_clock_of_who_says_it() -> None:
    used = CoresUsed()
    used.hear({"a": AckerLoad(10.0, 5.0)}, 100.0)
    assert used.of(("a",)) is None, "it may have lived for any time"
    used.hear({"a": AckerLoad(10.5, 6.0)}, 100.7)
    assert used.of(("a",)) == 0.5
    used.hear({"a": AckerLoad(10.5, 6.0)}, 101.7)
    assert used.of(("a",)) == 0.5, "nothing new was said"
    used.hear({}, 102.0)
    assert used.of(("a",)) == 0.5
    used.hear({"a": AckerLoad(12.0, 8.0), "b": AckerLoad(1.0, 1.0)}, 102.7)
    assert used.of(("a",)) == 0.75
    assert used.of(("a", "b")) is None
    used.hear({"b": AckerLoad(1.5, 3.0)}, 104.7)
    assert used.of(("a", "b")) == 1.0


def test_one_that_was_started_anew_counts_from_nothing() -> None:
    """Neither what it has used less nor a clock that begins anew makes a rate."""
    for anew in (AckerLoad(0.2, 11.0), AckerLoad(0.2, 1.0), AckerLoad(9.0, 1.0)):
        used = CoresUsed()
        used.hear({"a": AckerLoad(7.0, 9.0)}, 100.0)
        used.hear({"a": AckerLoad(7.5, 10.0)}, 101.0)
        used.hear({"a": anew}, 102.0)
        assert used.of(("a",)) is None
        used.hear({"a": AckerLoad(anew.cpu_s + 0.25, anew.at_s + 1.0)}, 103.0)
        assert used.of(("a",)) == 0.25


def test_what_was_said_last_holds_for_a_while_only() -> None:
    used, last = CoresUsed(), {"a": AckerLoad(1.9, 2.0)}
    used.hear({"a": AckerLoad(1.0, 1.0)}, 100.0)
    used.hear(last, 101.0)
    used.hear(last, 101.0 + SAID_S - 0.1)
    assert used.of(("a",)) is not None
    for later in range(30):
        used.hear(last, 101.0 + SAID_S + later)
        assert used.of(("a",)) is None
    used.hear({"a": AckerLoad(90.0, 90.0)}, 200.0)
    used.hear({"a": AckerLoad(90.5, 91.0)}, 201.0)
    assert used.of(("a",)) == 0.5


def test_a_look_that_fails_is_not_the_last_one() -> None:
    class OddError(RuntimeError):
        pass

    looked = threading.Semaphore(0)

    def loads() -> Mapping[str, AckerLoad]:
        looked.release()
        raise OddError("a server of another kind")

    adviser = AckerAdviser(lambda: ("words-acker-0",), loads, Hands())
    adviser.start()
    try:
        for _ in range(2):
            assert looked.acquire(timeout=60 * LOOK_S)
    finally:
        adviser.stop()


def test_it_is_among_the_figures_and_left_out_where_there_is_none() -> None:
    assert "ackers" not in codec.encode(Status())
    told = codec.encode(Status(ackers=AckerAdvice(2, 4)))
    assert told["ackers"] == {"of": 2, "wanted": 4}
