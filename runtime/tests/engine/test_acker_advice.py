"""What a driver says of the number of ackers, by what they use; the rule itself is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.clock import Clock
from millrace.engine.driver.home.advice import EXPIRES_S, AckerAdviser
from millrace.errors import StateServerError
from millrace.homes import codec
from millrace.homes.documents import AckerAdvice, Status
from millrace.protocol.ackerload import GROW_AFTER_S, SHRINK_AFTER_S


class Hand(Clock):
    at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


class Crew:
    """Ackers that use what a test says, and the adviser that looks at them once a second."""

    def __init__(self, count: int) -> None:
        self.clock = Hand()
        self.used: dict[str, float] = {}
        self.away = False
        self.have(count)
        self.adviser = AckerAdviser(lambda: self.names, self._loads, self.clock)

    def have(self, count: int) -> None:
        self.names = tuple(f"words-acker-{number}" for number in range(count))

    def _loads(self) -> Mapping[str, float]:
        if self.away:
            raise StateServerError("away")
        return dict(self.used)

    def work(self, share: float, seconds: float) -> AckerAdvice | None:
        for _ in range(int(seconds)):
            self.clock.at_s += 1.0
            for name in self.names:
                self.used[name] = self.used.get(name, 0.0) + share
            self.adviser.look()
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


def test_one_that_was_started_anew_counts_from_nothing() -> None:
    crew = Crew(2)
    crew.work(0.5, 3)
    crew.used["words-acker-1"] = 0.0
    assert crew.work(0.5, 30) is None


def test_it_is_among_the_figures_and_left_out_where_there_is_none() -> None:
    assert "ackers" not in codec.encode(Status())
    told = codec.encode(Status(ackers=AckerAdvice(2, 4)))
    assert told["ackers"] == {"of": 2, "wanted": 4}
