"""Simulated time and an unreliable network: one heap of things to come, one random generator."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from millrace.simulate.options import Network

START_S = 1_000.0
"""Simulated wall-clock time at the start of a run, in seconds."""

Call = Callable[..., None]

Clock = Callable[[], float]


class World:
    """Calls things at their time. Every random choice of a run comes from ``rng``.

    Faults of the network and of the nemesis stop at ``storm_ends_s``, so that a run can end.
    """

    def __init__(self, rng: Random, network: Network, storm_ends_s: float) -> None:
        self.rng = rng
        self.now_s = START_S
        self.storm_ends_s = START_S + storm_ends_s
        self.jumped_s = 0.0
        self.steps = 0
        self._network = network
        self._heap: list[tuple[float, int, Call, tuple[object, ...]]] = []
        self._count = 0

    def wall_clock(self) -> Clock:
        """What the machine's wall clock shows; the nemesis makes it jump (``jumped_s``)."""
        return lambda: self.now_s + self.jumped_s

    def monotonic_clock(self) -> Clock:
        """A clock for one process: it never jumps, and has nothing in common with any other."""
        begin_s = self.now_s - 100_000.0 * self.rng.random()
        return lambda: self.now_s - begin_s

    @property
    def stormy(self) -> bool:
        return self.now_s < self.storm_ends_s

    def chance(self, probability: float) -> bool:
        """True with this probability, and never once the storm is over."""
        return self.now_s < self.storm_ends_s and self.rng.random() < probability

    def after(self, delay_s: float, call: Call, *args: object) -> None:
        """Call after exactly ``delay_s`` seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._count, call, args))

    def soon(self, call: Call, *args: object) -> None:
        """Call after a short random while: work inside one process, never lost."""
        self.after(0.001 + 0.01 * self.rng.random(), call, *args)

    def send(self, call: Call, *args: object) -> None:
        """Deliver a message: after a while, in any order, and in a storm late, twice or never."""
        delay_s = 0.001 + 0.009 * self.rng.random()
        if self.now_s < self.storm_ends_s:
            network, luck = self._network, self.rng.random()
            if luck < network.loss:
                return
            luck -= network.loss
            if luck < network.late:
                delay_s += self.rng.expovariate(1 / network.late_s)
            elif luck < network.late + network.double:
                self.after(delay_s * 2 + self.rng.expovariate(1 / network.late_s), call, *args)
        self.after(delay_s, call, *args)

    def step(self) -> bool:
        """Make the next thing happen; False if there is none."""
        if not self._heap:
            return False
        self.now_s, _, call, args = heapq.heappop(self._heap)
        self.steps += 1
        call(*args)
        return True
