"""How full the state servers are: asked of real ones, warned of once, shown with the figures."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from moved_clock import Hands

from millrace.clock import Clock, SystemClock
from millrace.engine.driver import room as looking
from millrace.engine.driver.home.journal import STATUS_INTERVAL_S, StatusBoard
from millrace.engine.driver.room import Room
from millrace.engine.driver.statistics import ClockWatch, Statistics
from millrace.engine.driver.stores import Stores
from millrace.homes.documents import ServerMemory, Status
from millrace.homes.memory import MemoryJournal
from millrace.homes.passwords import shared
from millrace.pods.driver import readiness
from millrace.protocol import events as e
from millrace.protocol.record import first_record
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Intent,
    Phase,
    RootRange,
    Stamp,
    Tag,
    View,
)
from millrace.redisserver import MemoryUse, open_client
from millrace_e2e.embedded import started
from millrace_e2e.waiting import until

UID = "room"


def test_a_server_is_warned_of_once_until_it_has_room_again():
    used, told = {}, []
    room = Room(lambda: {"state-0": MemoryUse(used["bytes"], 1000)}, told.append)
    for share, warnings in ((899, 0), (900, 1), (999, 1), (800, 1), (950, 1), (799, 1), (901, 2)):
        used["bytes"] = share
        room.look()
        assert len(told) == warnings, share
    assert {one.kind for one in told} == {"StateServerNearlyFull"}
    assert "state-0 is nearly full" in told[0].text
    assert "spec.stateServers.memory" in told[0].text


def test_a_server_without_a_limit_is_never_nearly_full():
    told = []
    Room(lambda: {"state-0": MemoryUse(1 << 40, 0)}, told.append).look()
    assert told == []


def test_what_servers_say_is_in_the_figures_and_one_that_is_away_is_left_out(tmp_path):
    with started(tmp_path / "a", "a", max_memory_bytes=16 << 20) as server:
        away = started(tmp_path / "b", "b")
        away.stop()
        members = (server.address.member(), away.address.member())
        stores = Stores(UID, shared(server.address.password))
        assert stores.memory() == {}
        stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("a",),)))
        room = Room(stores.memory, pytest.fail)
        room.look()
    (figure,) = room.figures
    assert (figure.name, figure.limit_bytes, figure.full) == ("a", 16 << 20, False)
    assert 0 < figure.used_bytes < 16 << 20


def test_one_that_hangs_keeps_no_other_from_being_asked(tmp_path):
    """A server that is to end waits for being asked (``pods.state_server.QUIET_S``)."""
    with started(tmp_path / "a", "a") as hangs, started(tmp_path / "b", "b") as leaves:
        servers = (hangs, leaves)
        members = tuple(one.address.member() for one in servers)
        stores = Stores(UID, {one.address.name: one.address.password for one in servers}.get)
        stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("a", "b"),)))
        assert stores.memory().keys() == {"a", "b"}
        os.kill(hangs.pid, signal.SIGSTOP)
        try:
            asking = ThreadPoolExecutor(1)
            told = asking.submit(stores.memory)
            assert told.result(10.0).keys() == {"b"}
        finally:
            os.kill(hangs.pid, signal.SIGCONT)
        asking.shutdown()
        assert stores.memory().keys() == {"a", "b"}


def test_who_has_left_the_view_is_not_connected_to_any_more(tmp_path):
    with started(tmp_path / "a", "a") as server:
        member = server.address.member()
        stores = Stores(UID, shared(server.address.password))
        view = View(UID, 1, 1, Phase.OPEN, 1, (member,), (member,), 1, (("a",),))
        stores.use(view)
        assert stores.memory().keys() == {"a"}
        with open_client(server.address.url, server.address.password, answer_s=5.0) as client:
            assert len(client.client_list()) == 2
            stores.use(replace(view, target=(), epoch=2))
            assert stores.memory() == {}
            until(lambda: len(client.client_list()) == 1, "it is not connected", 20.0)


def test_a_look_that_fails_is_not_the_last(monkeypatch):
    monkeypatch.setattr(looking, "LOOK_S", 0.01)
    again, looks = threading.Event(), []

    def ask():
        looks.append(None)
        if len(looks) == 1:
            raise KeyError("nobody has thought of that")
        again.set()
        return {"state-0": MemoryUse(1, 1000)}

    room = Room(ask, pytest.fail)
    room.start()
    assert again.wait(20.0)
    until(lambda: room.figures, "the figures", 20.0)
    room.stop()


def test_a_driver_that_starts_keeps_what_is_known_of_the_windows():
    """It may end without a record: restarts and restores count by what was sealed before."""
    journal = MemoryJournal()
    journal.tell(Status(uid=UID, sealed=500, published=498, execution=4, state="lost"))
    for _ in range(2):
        Statistics(StatusBoard(journal, SystemClock(), UID), SystemClock())
        now = journal.status()
        assert (now.uid, now.sealed, now.published, now.state) == (UID, 500, 498, "starting")
        assert now.execution is None
    Statistics(StatusBoard(journal, SystemClock(), "a fresh start"), SystemClock())
    assert journal.status().sealed is None


def test_a_server_that_refused_a_window_is_full_until_one_is_sealed():
    journal = MemoryJournal()
    told = Statistics(StatusBoard(journal, SystemClock(), UID), SystemClock())
    told.memory = lambda: (ServerMemory("a", 5, 10), ServerMemory("b", 1, 10))
    told.observe(e.RunDied(AttemptId(1, 1, 1), "full", True, full="a"))
    told.write(force=True)
    assert [one.full for one in told._board.status.memory] == [True, False]


@pytest.mark.parametrize("roots", [10, 1_000_000])
def test_windows_in_quick_succession_are_told_now_and_then_and_the_last_one_surely(roots):
    journal, hands = MemoryJournal(), Hands()
    told = Statistics(StatusBoard(journal, hands, UID), hands)

    def runs(window: int, after_s: float) -> int:
        """Begin a window; the one that is shown."""
        hands.at_s += after_s
        intent = Intent(window, (RootRange("lines", 1, 0, roots),))
        told.running(AttemptPlan(AttemptId(1, window, 1), Stamp(1, 1), intent, frozenset(), {}, {}))
        shown = journal.status().window
        return 0 if shown is None else shown.number

    assert runs(1, STATUS_INTERVAL_S) == 1
    assert [runs(window, STATUS_INTERVAL_S / 8) for window in (2, 3, 4)] == [1, 1, 1]
    assert runs(5, STATUS_INTERVAL_S) == 5
    assert runs(6, STATUS_INTERVAL_S / 8) == 5
    told.settle()
    assert journal.status().window.number == 5
    hands.at_s += STATUS_INTERVAL_S
    told.settle()
    assert journal.status().window.number == 6


def test_a_window_counts_as_under_way_from_its_opening_to_its_seal():
    """Who looks in between does not take the driver for idle."""
    journal, hands = MemoryJournal(), Hands()
    told = Statistics(StatusBoard(journal, hands, UID), hands)
    view = View(UID, 1, 1, Phase.OPEN, 1, (), (), 1, ())
    idle = first_record(UID, Tag(1, 1, 1, 1))

    def shown(*windows: int) -> tuple[int, int] | None:
        hands.at_s += STATUS_INTERVAL_S
        intents = tuple(Intent(n, (RootRange("lines", 1, 0, 10),)) for n in windows)
        before = journal.status()
        told.committed(replace(idle, intents=intents), view)
        assert journal.status() == before, "what follows a commit does not wait for a file"
        told.settle()
        found = journal.status().window
        return None if found is None else (found.number, found.attempt)

    assert shown() is None
    assert shown(1) == (1, 1)
    plan = AttemptPlan(AttemptId(1, 1, 2), Stamp(1, 1), Intent(1, ()), frozenset(), {}, {})
    told.running(plan)
    assert shown(1) == (1, 2)
    told.observe(e.RunDone(plan.id, (1,), ()))
    assert shown(1) == (1, 1), "not sealed yet"
    assert shown(2, 3) == (2, 1)
    assert shown() is None


def test_the_proposal_that_is_followed_is_told_when_it_changes():
    journal = MemoryJournal()
    told = Statistics(StatusBoard(journal, SystemClock(), UID), SystemClock())
    for number in (3, None, 4):
        told.membership(None, number)
        assert told.status.follows == number


def test_a_view_that_moves_is_told_though_no_record_is_committed():
    journal = MemoryJournal()
    told = Statistics(StatusBoard(journal, SystemClock(), UID), SystemClock())
    view = View("u", 1, 1, Phase.OPEN, 1, (), (), 1, ())
    record = first_record("u", Tag(1, 1, 1, 1))
    told.committed(record, view)
    told._board.change(state="running", spark="running")
    assert readiness(told.status).good
    told.membership(replace(view, phase=Phase.MOVING, epoch=2), None)
    assert (told.status.phase, told.status.epoch) == ("moving", 2)
    assert not readiness(told.status).good
    assert "the view is moving" in readiness(told.status).text
    told.membership(replace(view, epoch=2), 1)
    assert readiness(told.status).good


class Wall(Clock):
    """The wall clock of a machine, in seconds."""

    def __init__(self) -> None:
        self.at_s = 1_000_000.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return 0.0


def test_a_clock_that_is_behind_the_time_of_windows_is_told_once():
    wall, told = Wall(), []
    watch = ClockWatch(wall, told.append)
    record = replace(first_record("u", Tag(1, 1, 1, 1)), sealed=7, time_ms=1_000_000_000)
    watch.committed(record)
    wall.at_s -= 59
    watch.committed(record)
    assert told == []
    wall.at_s -= 3_541  # an hour in all
    for _ in range(3):
        watch.committed(record)
    assert [(one.kind, one.warning) for one in told] == [("ClockBehind", True)]
    assert "3,600 s behind the time of window 7" in told[0].text
    wall.at_s += 3_590
    watch.committed(record)  # nearly there: that is no other time
    wall.at_s -= 3_590
    watch.committed(record)
    assert len(told) == 1
    wall.at_s += 3_600
    watch.committed(record)
    wall.at_s -= 100
    watch.committed(record)
    assert len(told) == 2
