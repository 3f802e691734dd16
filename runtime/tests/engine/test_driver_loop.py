"""The driver's loop: what it tells the machine of time."""

from __future__ import annotations

import pytest

from millrace.engine.driver.loop import Loop
from millrace.protocol import events as e

HOUR_S = 3600.0


class Clocks:
    """Both clocks of a machine; each look at the steady one takes it half a second on."""

    def __init__(self) -> None:
        self.steady_s = 50.0
        self.set_by_s = 0.0

    def now_s(self) -> float:
        return 1_000_000.0 + self.steady_s + self.set_by_s

    def monotonic_s(self) -> float:
        self.steady_s += 0.5
        return self.steady_s


class Waits:
    """A machine that waits for a moment, and ends when it has come."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.times_s: list[float] = []

    def start(self, now_s: float) -> list[e.Action]:
        self.began_s = now_s
        return [e.Notify("SetTheClock", ""), e.Wake(now_s + 5.0)]

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        self.times_s.append(now_s - self.began_s)
        assert isinstance(event, e.Tick)
        return [e.Stop("asked", "")]


class SetsTheClock:
    def __init__(self, clocks: Clocks, by_s: float) -> None:
        self.clocks = clocks
        self.by_s = by_s

    def perform(self, action: e.Action) -> list[e.Event]:
        if isinstance(action, e.Notify):
            self.clocks.set_by_s = self.by_s
        return []

    def poll(self) -> list[e.Event]:
        return []


@pytest.mark.parametrize("by_s", [0.0, HOUR_S, -HOUR_S])
def test_a_wall_clock_that_is_set_neither_delays_nor_hastens_anything(by_s: float) -> None:
    clocks, machine = Clocks(), Waits()
    loop = Loop(machine, clocks)  # type: ignore[arg-type]
    stop = loop.run(SetsTheClock(clocks, by_s), lambda _: None)
    assert stop.kind == "asked"
    (waited_s,) = machine.times_s
    assert 5.0 <= waited_s < 10.0
    assert machine.began_s < 60.0, "the machine is not told of the wall clock at all"
