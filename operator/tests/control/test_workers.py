"""Those who work the queue off, and what the probes are told of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hand_clock import HandClock

from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace.metrics.catalogue import LISTS, TOPOLOGIES
from millrace_operator.api.resources import Phase, TopologyStatus
from millrace_operator.control.health import LIVE_S, READY_S, Health
from millrace_operator.control.logs import TopologyLines, about
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.reconciler import Result
from millrace_operator.control.workers import ALL, LOOK_S, Queue, Workers
from millrace_operator.kube.acting import NotLeadingError
from millrace_operator.kube.objects import RefusedError, StaleError
from millrace_operator.kube.observing import Key

WORDS = Key("jobs", "words")


@dataclass
class Turns:
    """A reconciler whose turns end as a test says."""

    end: Callable[[], Result] = Result
    turned: list[Key] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    stands: TopologyStatus | None = None

    def turn(self, key: Key) -> Result:
        self.turned.append(key)
        return self.end()

    def tell(self, key: Key, error: MillraceError) -> TopologyStatus | None:
        self.told.append(str(error))
        return self.stands


@dataclass
class Listed:
    """Topologies as the API server lists them."""

    names: list[str] = field(default_factory=list)
    away: bool = False

    def heads(self, kind: str, namespace: str | None) -> list[object]:
        if self.away:
            raise HomeAwayError("no answer")
        return [{"metadata": {"namespace": "jobs", "name": name}} for name in self.names]

    def list(self, kind: str, namespace: str | None, selector: str) -> Iterator[object]:
        return iter(())


class World:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.queue: Queue = WorkQueue(self.clock)
        self.turns, self.listed = Turns(), Listed()
        self.workers = Workers(self.queue, self.turns, self.listed, (), self.clock)  # type: ignore[arg-type]
        self.health = Health(None, self.queue, self.workers, lambda: True)

    def turn(self) -> object:
        """What is due, in this thread."""
        key = self.queue.take()
        assert key is not None
        self.workers.turn(key)
        return key


@pytest.fixture
def world() -> World:
    return World()


def raising(error: Exception) -> Callable[[], Result]:
    def end() -> Result:
        raise error

    return end


def test_all_topologies_are_looked_at_without_any_watch(world: World):
    world.listed.names = ["a", "b"]
    world.queue.add(ALL)
    for _ in range(3):
        assert world.turn() is ALL
        assert {world.turn(), world.turn()} == {Key("jobs", "a"), Key("jobs", "b")}
        assert world.queue.longest_s() == 0
        world.clock.time_s += LOOK_S
    assert len(world.turns.turned) == 6


def test_the_look_goes_on_when_the_api_server_was_away(world: World):
    world.listed.away = True
    world.queue.add(ALL)
    for _ in range(5):
        assert world.turn() is ALL
        world.clock.time_s += LOOK_S
    world.listed.away = False
    world.listed.names = ["a"]
    assert world.turn() is ALL
    assert world.turn() == Key("jobs", "a")


def test_a_topology_whose_turns_fail_counts_as_it_is_told(world: World):
    world.turns.end = raising(RefusedError("Service words-state", 403, "exceeded quota"))

    def stalled() -> float:
        world.queue.add(WORDS)
        world.turn()
        samples = world.workers.standings.samples()
        return next(s.value for s in samples if s.metric is TOPOLOGIES and s.labels == ("Stalled",))

    assert stalled() == 0, "it is left alone"
    world.turns.stands = TopologyStatus(phase=Phase.STALLED)
    assert stalled() == 1


def test_a_namespace_that_is_deleted_with_the_rights_in_it_holds_up_no_other(world: World):
    def heads(kind: str, namespace: str | None) -> list[object]:
        if namespace in gone:
            raise RefusedError(f"namespaces/{namespace}", 403, "cannot list streamtopologies")
        return [{"metadata": {"namespace": namespace, "name": "words"}}]

    gone: set[str] = set()
    world.listed.heads = heads  # type: ignore[method-assign,assignment]
    world.workers._namespaces = ("a", "b", "jobs")
    world.turns.end = lambda: Result(status=TopologyStatus())
    world.workers.start(0)
    assert {world.turn() for _ in range(4)} == {ALL, *(Key(n, "words") for n in ("a", "b", "jobs"))}
    gone.add("a")
    seen: list[object] = []
    for _ in range(4):
        world.clock.time_s += LOOK_S
        seen += [world.turn() for _ in range(3)]
        assert world.health.ready().good
    assert {*seen} == {ALL, Key("b", "words"), WORDS}
    assert world.workers.standings.keys() == {Key("b", "words"), WORDS}
    lists = {s.labels: s.value for s in world.workers.turns.samples() if s.metric is LISTS}
    assert (lists["done",], lists["refused",]) == (1, 4)
    # Where none can be listed that is no namespace's fault.
    gone |= {"b", "jobs"}
    for _ in range(4):
        world.clock.time_s += LOOK_S
        assert world.turn() is ALL
    assert not world.health.ready().good


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StaleError("another version"), False),
        (HomeAwayError("no answer"), False),
        (HomeAwayError("no answer (503 etcd is away)", 503), False),
        (HomeAwayError("no answer (500 failed calling webhook)", 500), True),
        (RefusedError("Pod words", 403, "quota"), True),
        (MillraceError("a view that is none"), True),
        (ValueError("a mistake of ours"), False),
    ],
)
def test_a_turn_that_fails_comes_again_after_a_pause(world: World, error: Exception, told: bool):
    world.turns.end = raising(error)
    world.queue.add(WORDS)
    for pause_s in (0.5, 1.0, 2.0):
        assert world.turn() == WORDS
        world.queue.add(Key("jobs", "other"), pause_s - 0.01)
        world.clock.time_s += pause_s
        assert world.turn() == Key("jobs", "other")
    assert (len(world.turns.told) > 0) is told


def test_a_turn_that_was_refused_something_comes_again_too(world: World):
    world.turns.end = lambda: Result(refused=True)
    world.queue.add(WORDS)
    world.turn()
    world.clock.time_s += 0.5
    assert world.turn() == WORDS


def test_a_turn_says_when_it_wants_another(world: World):
    world.turns.end = lambda: Result(again_s=7.0)
    world.queue.add(WORDS)
    world.turn()
    world.queue.add(Key("jobs", "other"), 6.9)
    world.clock.time_s += 7
    assert [world.turn(), world.turn()] == [Key("jobs", "other"), WORDS]


def test_who_leads_no_more_does_not_try_again(world: World):
    world.turns.end = raising(NotLeadingError())
    world.queue.add(WORDS)
    world.turn()
    world.clock.time_s += 3600
    world.queue.close()
    assert world.queue.take() is None
    assert world.queue.longest_s() == 0


def test_work_under_way_comes_to_its_end(world: World):
    began, may_end = threading.Event(), threading.Event()

    def end() -> Result:
        began.set()
        may_end.wait(60)
        return Result()

    world.turns.end = end
    world.listed.names = ["a", "b"]
    world.workers.start(1)
    assert began.wait(60)
    threading.Timer(0.05, may_end.set).start()
    world.workers._clock = HandClock()  # the end is waited for by a clock that stands still
    assert world.workers.stop()
    assert len(world.turns.turned) == 1


def test_an_operator_whose_reconciliation_hangs_is_not_live(world: World):
    world.workers.start(0)
    world.turn()
    assert world.health.live().good
    world.queue.add(WORDS)
    world.queue.take()
    world.clock.time_s += LIVE_S + 1
    world.turn()
    assert not world.health.live().good
    world.queue.done(WORDS)
    assert world.health.live().good


def test_one_that_leads_and_has_not_begun_is_live(world: World):
    """It may have stood by for hours; its first probe can come before its workers do."""
    world.clock.time_s += LIVE_S + 1
    assert world.health.live().good
    world.workers.start(0)
    assert world.health.live().good
    world.clock.time_s += LIVE_S + 1
    assert not world.health.live().good


def test_an_operator_that_does_not_look_is_not_live(world: World):
    world.workers.start(0)
    world.turn()
    world.clock.time_s += LIVE_S + 1
    assert not world.health.live().good


def test_one_whose_look_at_all_topologies_is_lost_is_not_live(world: World):
    world.workers.start(0)
    while world.queue.take() is not ALL:
        pass
    world.queue.done(ALL)
    for _ in range(10):
        world.clock.time_s += LIVE_S / 9
        world.queue.add(WORDS)
        assert world.turn() == WORDS
    assert not world.health.live().good
    world.queue.add(ALL)
    assert world.health.live().good


def test_many_topologies_and_a_slow_api_server_leave_it_live(world: World):
    """Each waits for its turn for minutes; who restarts the operator makes that longer."""
    world.listed.names = [f"words-{number}" for number in range(200)]

    def end() -> Result:
        world.clock.time_s += 5.0
        return Result()

    world.turns.end = end
    world.workers.start(0)
    longest_s = 0.0
    for _ in range(450):
        world.turn()
        longest_s = max(longest_s, world.queue.longest_s())
        assert world.health.live().good, world.health.live().text
    assert longest_s > LIVE_S
    assert {key.name for key in world.turns.turned} == set(world.listed.names)


def test_a_turn_of_many_slow_answers_leaves_it_live_until_none_comes(world: World):
    world.workers.start(0)
    world.turn()

    def end() -> Result:
        for _ in range(40):
            world.clock.time_s += 8.0
            world.workers.beat()
            assert world.health.live().good, world.health.live().text
        world.clock.time_s += LIVE_S + 1
        assert not world.health.live().good
        return Result()

    world.turns.end = end
    world.queue.add(WORDS)
    while world.turn() is not WORDS:
        pass
    # It did not fail on the way.
    assert world.turns.turned[-1] == WORDS
    assert world.health.live().good
    world.workers.beat()


def test_what_another_thread_hears_does_not_keep_work_alive(world: World):
    """The Lease asks the same API server."""
    world.workers.start(0)
    world.turn()
    world.queue.add(WORDS)
    world.queue.take()
    for _ in range(10):
        world.clock.time_s += LIVE_S / 9
        world.workers.beat()
    assert not world.health.live().good


def test_an_api_server_that_is_away_makes_it_not_ready_but_leaves_it_live(world: World):
    world.workers.start(0)
    world.turn()
    assert world.health.ready().good
    world.listed.away = True
    for _ in range(8):
        world.clock.time_s += LOOK_S
        world.turn()
    assert world.clock.time_s > READY_S
    assert not world.health.ready().good
    assert world.health.live().good


def test_it_is_not_ready_before_topologies_were_listed_and_watches_begun(world: World):
    assert not world.health.ready().good
    begun = False
    health = Health(None, world.queue, world.workers, lambda: begun)
    world.queue.add(ALL)
    world.turn()
    assert not health.ready().good
    begun = True
    assert health.ready().good


@dataclass
class Waiting:
    """A Lease that another operator holds."""

    answered_s: float = 1.0
    turned_s: float = 1.0

    def leads(self) -> bool:
        return False

    def answered_ago_s(self) -> float:
        return self.answered_s

    def turned_ago_s(self) -> float:
        return self.turned_s


def test_one_that_stands_by_is_live_and_ready(world: World):
    lease = Waiting()
    health = Health(lease, world.queue, world.workers, lambda: False)  # type: ignore[arg-type]
    world.clock.time_s += LIVE_S + 1
    assert (health.live().good, health.ready().good) == (True, True)
    lease.answered_s = 60.0
    assert not health.ready().good
    assert health.live().good, "the API server is away"
    lease.turned_s = LIVE_S + 1
    assert not health.live().good, "the thread hangs that would take the Lease over"


def test_a_line_of_the_log_says_which_topology_it_is_about():
    record = logging.LogRecord("x", logging.INFO, "f", 1, "hello %s", ("you",), None)
    with about(WORDS):
        line = json.loads(TopologyLines().format(record))
    assert (line["message"], line["topology"], line["level"]) == ("hello you", "jobs/words", "INFO")
    assert "topology" not in json.loads(TopologyLines().format(record))
