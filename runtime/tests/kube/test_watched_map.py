"""What is believed of a ConfigMap that is watched: also behind a store that was put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import pytest

from millrace.kube.configmaps import ConfigMap, Held
from millrace.kube.watching import RESYNC_S, WatchedMap

WAIT_S = 30.0


def held(version: int) -> Held:
    return Held(str(version), {"at": str(version)})


class HandClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def monotonic_s(self) -> float:
        return self.time_s


class Map:
    """A ConfigMap whose reads are answered with ``there``, but for those that a test answers
    itself; its watch brings what is put into ``events``, and ends with None."""

    name = "words-inbox"

    def __init__(self) -> None:
        self.there: Held | None = held(900)
        self.events: SimpleQueue[Held | None] = SimpleQueue()
        self.watched = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)
        self.answers: dict[int, SimpleQueue[Held]] = {}

    def read(self) -> Held | None:
        answers = self.answers.get(threading.get_ident())
        if answers is None:
            return self.there
        self.asked.release()
        return answers.get(timeout=WAIT_S)

    def changes(self, *_: object) -> Iterator[Held | None]:
        self.watched.release()
        while (event := self.events.get()) is not None:
            yield event
            self.watched.release()


class Slow(threading.Thread):
    """A look that asks, and is answered by the test."""

    def __init__(self, found: Map, watched: WatchedMap) -> None:
        super().__init__(daemon=True)
        self.map, self.watched = found, watched
        self.answer: SimpleQueue[Held] = SimpleQueue()
        self.seen: Held | None = None

    def run(self) -> None:
        self.map.answers[threading.get_ident()] = self.answer
        self.seen = self.watched.look()


@pytest.fixture
def found() -> Map:
    return Map()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def watched(found: Map, clock: HandClock) -> Iterator[WatchedMap]:
    made = WatchedMap(cast("ConfigMap", found), cast("Any", clock))
    assert made.look() == held(900)
    assert found.watched.acquire(timeout=WAIT_S), "the watch has begun, behind its own read"
    yield made
    made.close()
    found.events.put(None)


def test_a_read_is_believed_whose_version_fell(
    found: Map, clock: HandClock, watched: WatchedMap
) -> None:
    """As behind a store of the API server that was put back from a copy."""
    found.there = held(400)
    assert watched.look() == held(900), "that is believed for a while"
    clock.time_s += RESYNC_S + 1
    assert watched.look() == held(400)
    # From then on older is what is older than that.
    found.events.put(held(399))
    found.events.put(held(401))
    for _ in range(2):
        assert found.watched.acquire(timeout=WAIT_S)
    assert watched.look() == held(401)


def test_the_watch_begins_anew_with_a_read_that_is_believed(
    found: Map, watched: WatchedMap
) -> None:
    found.there = held(400)
    found.events.put(None)
    assert found.watched.acquire(timeout=WAIT_S)
    assert watched.latest() == held(400)


def test_a_watch_does_not_bring_back_what_is_older(found: Map, watched: WatchedMap) -> None:
    found.events.put(held(899))
    assert found.watched.acquire(timeout=WAIT_S)
    assert watched.latest() == held(900)


@pytest.mark.parametrize(("answer", "believed"), [(901, 902), (903, 903)])
def test_a_read_is_believed_unless_it_was_overtaken(
    found: Map, clock: HandClock, watched: WatchedMap, answer: int, believed: int
) -> None:
    """It was asked before what is known now: it may say what was before that, or behind it."""
    clock.time_s += RESYNC_S + 1
    slow = Slow(found, watched)
    slow.start()
    assert found.asked.acquire(timeout=WAIT_S)
    found.events.put(held(902))
    assert found.watched.acquire(timeout=WAIT_S)
    slow.answer.put(held(answer))
    slow.join(WAIT_S)
    assert slow.seen == watched.latest() == held(believed)
