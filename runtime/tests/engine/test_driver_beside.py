"""The driver's loop goes on whoever is slow: real state servers that are stopped for a while.

What is asserted is the order of events: a server that is stopped answers when it goes on.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.engine.driver.errands import Foreground
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import EventTeller
from millrace.engine.driver.loop import Loop
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.engine.driver.stores import Stores
from millrace.engine.jobs.runner import SparkGone
from millrace.errors import NewerFormatError
from millrace.homes.documents import Ask, Proposal, Request
from millrace.homes.memory import MemoryHome
from millrace.homes.passwords import shared
from millrace.homes.stores import HomeAwayError
from millrace.protocol import events as e
from millrace.protocol.cohorts import DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff, first_record
from millrace.protocol.server import Stamped
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Guarantee,
    Intent,
    Phase,
    Replay,
    Stamp,
    Tag,
    View,
)
from millrace.ring import owners
from millrace.state.client import connect
from millrace.state.embedded import EmbeddedServer
from millrace_e2e.embedded import started

UID = "beside"
STAMP = Stamp(1, 1)
WAIT_S = 60.0


@pytest.fixture
def servers(tmp_path) -> Iterator[list[EmbeddedServer]]:
    names = ("state-0", "state-1")
    for name in names:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "password").write_text("thesameforboth")
    made = [started(tmp_path / name, name) for name in names]
    yield made
    for server in made:
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


def stores_of(servers: list[EmbeddedServer]) -> Stores:
    passwords = {server.address.password for server in servers}
    assert len(passwords) == 1
    return Stores(UID, shared(passwords.pop()))


def quiet(*_: Any, **__: Any) -> None:
    return None


class Slow:
    """A source whose payload takes as long as somebody wants."""

    name = "lines"

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def payload(self, _: Replay) -> bytes:
        self.asked.set()
        assert self.go_on.wait(WAIT_S)
        return b"payload"

    def place(self, _: Replay) -> str:
        return "line 1"


class Bench:
    """A performer on real servers; what it posts is in ``events``."""

    def __init__(self, servers: list[EmbeddedServer], home: MemoryHome | None = None) -> None:
        self.home = home or MemoryHome()
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stores = stores_of(servers)
        self.source = Slow()
        self.planned: queue.SimpleQueue[e.Plan] = queue.SimpleQueue()
        part = SimpleNamespace(stop=quiet, ask=quiet, fence=quiet)
        parts = Equipment(
            view=self.home.view,
            stores=self.stores,
            verdicts=part,  # type: ignore[arg-type]
            planner=SimpleNamespace(stop=quiet, busy=quiet, ask=self.planned.put),  # type: ignore[arg-type]
            publisher=part,  # type: ignore[arg-type]
            mailbox=Mailbox(self.home.inbox, self.stores.fetch, quiet),
            events=EventTeller(self.home.journal, SystemClock()),
            sources={"lines": self.source},  # type: ignore[dict-item]
            runner=quiet,  # type: ignore[arg-type]
            committed=quiet,
            running=quiet,
            settle=quiet,
            foreground=Foreground(),
        )
        self.parts = parts
        self.performer = RealPerformer(parts, self.events.put, self.events.put)

    def next(self) -> Any:
        return self.events.get(timeout=WAIT_S)


@pytest.fixture
def bench(servers) -> Iterator[Bench]:
    made = Bench(servers)
    members = tuple(server.address.member() for server in servers)
    made.stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("state-0",),)))
    for member in members:
        made.performer.perform(e.SendStamp(member, STAMP))
    assert {made.next().member for _ in members} == set(members)
    yield made
    made.performer.close()


def record(seq: int):
    return first_record(UID, Tag(1, 1, 1, seq))


def test_two_members_are_written_at_the_same_time(servers, bench):
    """The first of them is stopped, and the second has its record all the same."""
    slow, quick = (server.address.member() for server in servers)
    os.kill(servers[0].pid, signal.SIGSTOP)
    for member in (slow, quick):
        bench.performer.perform(e.SendRecord(member, STAMP, record(1)))
    assert bench.next() == e.RecordAck(quick, STAMP, 1)
    assert bench.events.empty()
    os.kill(servers[0].pid, signal.SIGCONT)
    assert bench.next() == e.RecordAck(slow, STAMP, 1)


def test_records_reach_a_slow_member_in_order_and_each_once(servers, bench):
    member = servers[0].address.member()
    os.kill(servers[0].pid, signal.SIGSTOP)
    for seq in (1, 2, 3):
        for _ in range(3):  # the machine asks again while there is no answer
            bench.performer.perform(e.SendRecord(member, STAMP, record(seq)))
    os.kill(servers[0].pid, signal.SIGCONT)
    assert [bench.next() for _ in range(3)] == [e.RecordAck(member, STAMP, n) for n in (1, 2, 3)]
    bench.performer.perform(e.SendRecord(member, STAMP, record(3)))
    assert bench.next() == e.RecordAck(member, STAMP, 3), "answered, so it may be asked for again"
    held = connect(servers[0].address, UID).peek()
    assert isinstance(held, Stamped)
    assert held.tag == record(3).tag


@pytest.mark.parametrize("held", [False, True])
def test_an_answer_tells_whether_a_record_was_there_when_it_was_asked_for(servers, bench, held):
    member = servers[0].address.member()
    bench.performer.perform(e.SendStamp(member, STAMP, held))
    assert bench.next() == e.Stamped(member, STAMP, None, held)


def test_the_next_incarnation_of_a_member_does_not_wait_for_the_one_before(servers, bench):
    slow, quick = (server.address.member() for server in servers)
    os.kill(servers[0].pid, signal.SIGSTOP)
    bench.performer.perform(e.SendStamp(slow, Stamp(2, 1)))
    again = replace(quick, name=slow.name)
    bench.performer.perform(e.SendStamp(again, Stamp(2, 1)))
    assert bench.next().member == again


def test_a_view_that_changes_asks_a_server_and_the_incarnation_before_it(servers, bench):
    """Neither thread is ended for the other: both are answered, whoever comes first."""
    members = [server.address.member() for server in servers]
    before, after = (replace(one, name="state-0") for one in members)
    for member in (before, after):
        bench.performer.perform(e.SendStamp(member, Stamp(2, 1)))
    assert {bench.next().member for _ in members} == {before, after}


def test_dead_letters_are_read_and_stored_beside_the_loop(servers, bench):
    letter = Replay("lines", 0, 1, 1, 0.0, None, "split", "no word", False)
    action = e.WriteDead("1.1.1.1/dead", STAMP, 1, (letter,))
    for _ in range(3):
        assert bench.performer.perform(action) == []
    assert bench.source.asked.wait(WAIT_S)
    quick = servers[1].address.member()
    bench.performer.perform(e.SendRecord(quick, STAMP, record(1)))
    assert bench.next() == e.RecordAck(quick, STAMP, 1)
    bench.source.go_on.set()
    assert bench.next() == e.DeadWritten(action.name)
    assert b"payload" in bench.stores.fetch(action.name)
    assert bench.events.empty()


def test_what_waits_for_a_driver_comes_before_windows_are_planned(servers, bench):
    bench.home.inbox.ask(Request(Ask.STOP))
    bench.performer.perform(e.Plan(7, {}))
    bench.performer.poll()
    assert bench.next() == e.StopAsked()
    assert bench.planned.empty(), "no record, so requests for letters were not looked for"
    bench.performer.perform(e.Committed(record(1), 1))
    assert bench.planned.get(timeout=WAIT_S).token == 7


class Away(MemoryHome):
    """A home whose inbox answers to nobody, and whose view does not say whether it was changed."""


class AwayInbox:
    def __init__(self) -> None:
        self.asked = threading.Event()

    def proposal(self):
        self.asked.set()
        raise HomeAwayError("the inbox is away")

    def requests(self):
        raise HomeAwayError("the inbox is away")


class LostAnswers:
    """Swaps, and the answer is lost."""

    def __init__(self, view) -> None:
        self.view = view

    def read(self):
        return self.view.read()

    def cas(self, expected, view):
        self.view.cas(expected, view)
        raise HomeAwayError("no answer came")


def test_windows_are_planned_without_an_inbox_that_answers(servers):
    home = SimpleNamespace(**{name: getattr(MemoryHome(), name) for name in ("view", "journal")})
    home.inbox = AwayInbox()
    bench = Bench(servers, home)
    follower = home.journal.follow()
    bench.performer.perform(e.Plan(7, {}))
    bench.performer.perform(e.Committed(record(1), 1))
    bench.performer.poll()
    assert bench.planned.get(timeout=WAIT_S).token == 7
    assert [event.kind for event in follower.new()] == ["HomeAway"]
    bench.performer.close()


def test_a_lost_answer_of_the_view_store_is_a_swap_that_may_have_been_lost(servers):
    home = MemoryHome()
    bench = Bench(
        servers,
        SimpleNamespace(  # type: ignore[arg-type]
            view=LostAnswers(home.view), inbox=home.inbox, journal=home.journal
        ),
    )
    view = View(UID, 1, 1, Phase.OPEN, 1, (), (), 1, ())
    bench.performer.perform(e.CasView(0, view))
    assert bench.next() == e.CasLost(view)
    bench.performer.perform(e.ReadView(3))
    assert bench.next() == e.ViewRead(1, view, 3)
    bench.performer.close()


class Looped:
    """A whole driver machine on its loop, without Spark; ``seen`` are events in order."""

    def __init__(self, servers: list[EmbeddedServer]) -> None:
        self.home = MemoryHome()
        members = tuple(server.address.member() for server in servers)
        self.home.inbox.propose(Proposal(members, ()))
        settings = Settings(
            UID, Guarantee.EXACTLY_ONCE, True, Backoff(3, 0.1), 10, 2, 8, dead_limit=DeadLimit(100)
        )

        def place(found: tuple[Any, ...], previous: tuple[tuple[str, ...], ...]) -> Any:
            return owners(8, [member.name for member in found], 2, None, previous)

        self.machine = Driver(settings, place, quiet)  # type: ignore[arg-type]
        self.loop = Loop(self.machine, SystemClock())
        self.bench = Bench(servers, self.home)
        self.performer = RealPerformer(self.bench.parts, self.loop.post, self.loop.fail)
        self.seen: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.seen.put(self.loop.run(self.performer, self._observe))
        except Exception as error:  # noqa: BLE001 told by the test
            self.seen.put(error)

    def _observe(self, event: e.Event) -> None:
        if isinstance(event, e.CasDone):
            self.bench.stores.use(event.view)
        self.seen.put(event)

    def until(self, wanted: Any) -> list[Any]:
        """Events up to the first that ``wanted`` says yes to."""
        found: list[Any] = []
        while not found or not wanted(found[-1]):
            found.append(self.seen.get(timeout=WAIT_S))
        return found


@pytest.fixture
def looped(servers) -> Iterator[Looped]:
    made = Looped(servers)
    yield made
    made.loop.post(e.SinkRefused("the test is over", fenced=True))
    made.thread.join(WAIT_S)
    made.performer.close()
    assert not made.thread.is_alive()


def test_a_stop_is_heard_and_time_passes_while_a_server_does_not_answer(servers, looped):
    slow, quick = (server.address.member() for server in servers)
    os.kill(servers[0].pid, signal.SIGSTOP)
    looped.thread.start()
    looped.until(lambda event: isinstance(event, e.Stamped) and event.member == quick)
    looped.home.inbox.ask(Request(Ask.STOP))
    between = looped.until(lambda event: isinstance(event, e.StopAsked))
    between += looped.until(lambda event: isinstance(event, e.Tick))
    assert all(getattr(event, "member", quick) == quick for event in between)
    assert looped.machine.windows.draining
    os.kill(servers[0].pid, signal.SIGCONT)
    looped.until(lambda event: isinstance(event, e.Stamped) and event.member == slow)
    looped.until(lambda event: isinstance(event, e.RecordAck) and event.member == slow)


def test_a_record_of_a_newer_release_ends_the_driver(servers, looped):
    client = connect(servers[1].address, UID)
    client.stamp(Stamp(1, 0))
    client.write_record(Stamp(1, 0), Tag(1, 1, 1, 1), b'{"format":99,"kind":"Record"}')
    looped.thread.start()
    ended = looped.until(lambda event: isinstance(event, Exception))[-1]
    assert isinstance(ended, NewerFormatError)


def test_a_window_begins_before_it_is_told_that_it_does(servers, bench):
    """To tell takes a while where other threads work, and nobody waits for that."""
    begun = threading.Event()

    def runner(plan):
        begun.set()
        raise SparkGone("it was enough to begin")

    def running(plan):
        assert begun.wait(WAIT_S)

    parts = replace(bench.parts, runner=runner, running=running)
    performer = RealPerformer(parts, bench.events.put, bench.events.put)
    plan = AttemptPlan(AttemptId(1, 1, 1), STAMP, Intent(1, ()), frozenset(), {}, {})
    assert performer.perform(e.Run(plan)) == []
    assert bench.next() == e.RunFailed(plan.id, "it was enough to begin")
    performer.close()
