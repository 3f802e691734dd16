"""The driver's wait for a verdict, on a real server that refuses for a while."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import pytest

from millrace.engine.driver.stores import Stores
from millrace.engine.driver.verdicts import Verdicts
from millrace.errors import StateServerError
from millrace.homes.passwords import shared
from millrace.protocol import events as e
from millrace.protocol.acklog import Open, SliceOwners
from millrace.protocol.types import AttemptId, CloseMarker, Intent, Phase, Verdict, View
from millrace.ring import assign
from millrace.state.client import connect
from millrace.tracking import log as tracking_log
from millrace.tracking.control import EARLY_ROOTS, AckControl
from millrace.tracking.log import (
    AckLog,
    AckLogAwayError,
    AckLogFullError,
    decode_control,
    reader_name,
)
from millrace.tracking.process import connect as connect_acker
from millrace_e2e.embedded import started
from millrace_e2e.waiting import until

UID = "judged"
ATTEMPT = AttemptId(1, 1, 1)
ANSWER_S = 30.0


def nobody(_):
    """Is told in vain."""


def refuse(redis):
    """From now on the server refuses whatever would be written."""
    redis.config_set("min-replicas-to-write", 1)


def relent(redis):
    redis.config_set("min-replicas-to-write", 0)


@pytest.fixture
def server(tmp_path):
    own = started(tmp_path / "server")
    yield own
    own.stop()


@pytest.fixture
def verdicts(server):
    stores = Stores(UID, shared(server.address.password))
    members = (server.address.member(),)
    stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("state-0",),)))
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    told: queue.SimpleQueue[e.Notify] = queue.SimpleQueue()
    made = Verdicts(stores, lambda: (">lines",), events.put, told.put, 64)
    made.members(("acker-0",))
    yield made, events, told
    made.stop()


@pytest.mark.parametrize("virtual_nodes", [1, 64])
def test_slices_are_placed_by_as_many_virtual_nodes_as_were_declared(server, virtual_nodes):
    stores = Stores(UID, shared(server.address.password))
    members = (server.address.member(),)
    stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("state-0",),)))
    names = ("acker-0", "acker-1", "acker-2")
    made = Verdicts(stores, lambda: (">lines",), nobody, nobody, virtual_nodes)
    made.members(names)
    made.open(ATTEMPT, 10, one_task=False)
    log = AckLog(connect(server.address, UID).redis, UID)
    entries = log.read({log.control_key: "0-0"})[log.control_key]
    told = [decode_control(fields) for _, fields in entries]
    placed = [entry.owners for entry in told if isinstance(entry, SliceOwners)]
    assert placed == [assign(6, names, None, virtual_nodes, striped=True)]
    assert assign(6, names, None, 1, striped=True) != assign(6, names, striped=True)
    made.stop()


def owners_told(redis) -> list[tuple[str, ...]]:
    log = AckLog(redis, UID)
    entries = log.read({log.control_key: "0-0"})[log.control_key]
    told = [decode_control(fields) for _, fields in entries]
    return [entry.owners for entry in told if isinstance(entry, SliceOwners)]


@pytest.mark.parametrize("by", ["question", "window"])
def test_ackers_that_could_not_be_told_of_are_told_of_with_what_comes_next(server, verdicts, by):
    """Else a window would wait for ever for one that is gone."""
    asking, _, _ = verdicts
    redis = connect(server.address, UID).redis
    asking.open(ATTEMPT, 10, one_task=False)
    refuse(redis)
    asking.members(("acker-1",))
    relent(redis)
    assert set(owners_told(redis)[-1]) == {"acker-0"}
    if by == "window":
        asking.open(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), 10, one_task=False)
    else:
        asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    deadline_s = time.monotonic() + ANSWER_S
    while set(owners_told(redis)[-1]) != {"acker-1"}:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_slices_have_owners_though_an_answer_about_them_was_lost(server, verdicts, monkeypatch):
    """The log may hold what the driver was not told of, and the ackers be again as before."""
    asking, _, _ = verdicts
    redis = connect(server.address, UID).redis
    asking.members(("acker-0", "acker-1", "acker-2"))
    asking.open(ATTEMPT, 10, one_task=False)
    asking.forget([ATTEMPT])
    append = AckLog.append_control

    def unanswered(*arguments, **named):
        append(*arguments, **named)
        raise AckLogAwayError("timed out")

    with monkeypatch.context() as lost:
        lost.setattr(AckLog, "append_control", unanswered)
        asking.members(("acker-0", "acker-2"))
    assert len(owners_told(redis)[-1]) == 4
    assert asking.ackers() == ()
    asking.members(("acker-0", "acker-1", "acker-2"))
    asking.open(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), 10, one_task=False)
    assert len(owners_told(redis)[-1]) == 6
    assert asking.ackers() == ("acker-0", "acker-1", "acker-2")


def test_owners_are_said_again_when_nobody_answers(server, verdicts):
    """What was given up may have reached the log behind what was said then."""
    asking, _, _ = verdicts
    asking._silence_s = 0.0
    redis = connect(server.address, UID).redis
    asking.members(("acker-0", "acker-1", "acker-2"))
    asking.open(ATTEMPT, 10, one_task=False)
    late = SliceOwners.of(1, ("acker-0", "acker-1"), {ATTEMPT: 6})
    AckLog(redis, UID).append_control(1, late)
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    until(lambda: len(owners_told(redis)[-1]) == 6, "the owners are said again", ANSWER_S)


def test_ackers_are_heard_of_while_spark_starts(server):
    stores = Stores(UID, shared(server.address.password))
    members = (server.address.member(),)
    stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("state-0",),)))
    asked, up = threading.Event(), threading.Event()

    def edges():
        asked.set()
        assert up.wait(ANSWER_S)
        return (">lines",)

    made = Verdicts(stores, edges, nobody, nobody, 64)
    made.members(("acker-0",))
    opening = threading.Thread(target=made.open, args=(ATTEMPT, 10, False))
    opening.start()
    assert asked.wait(ANSWER_S)
    hearing = threading.Thread(target=made.members, args=(("acker-0", "acker-1"),))
    hearing.start()
    hearing.join(1.0)
    heard = not hearing.is_alive()
    up.set()
    opening.join(ANSWER_S)
    hearing.join(ANSWER_S)
    assert heard
    assert set(owners_told(connect(server.address, UID).redis)[-1]) == {"acker-0", "acker-1"}
    made.stop()


def test_the_only_acker_may_go_while_the_log_is_begun(server, verdicts, monkeypatch):
    """The window that opens then waits for what comes next, as any would; the driver goes on."""
    asking, _, _ = verdicts
    reached = asking._stores.client
    heard = threading.Thread(target=asking.members, args=((),))

    def client(member):
        heard.start()
        while asking._ackers:
            time.sleep(0.001)
        return reached(member)

    monkeypatch.setattr(asking._stores, "client", client)
    asking.open(ATTEMPT, 10, one_task=False)
    heard.join()
    monkeypatch.undo()
    asking.members(("acker-1",))
    assert set(owners_told(connect(server.address, UID).redis)[-1]) == {"acker-1"}
    asking.members(())
    with pytest.raises(StateServerError, match="no acker is alive; windows wait until one is"):
        asking.open(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), 10, one_task=False)


def test_a_question_that_was_refused_is_put_again_until_it_is_answered(server, verdicts):
    asking, events, told = verdicts
    redis = connect(server.address, UID).redis
    asking.open(ATTEMPT, 10, one_task=False)
    marker = CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ())
    refuse(redis)
    asking.ask(marker)
    assert "Not enough good replicas" in told.get(timeout=ANSWER_S).text
    log = AckLog(redis, UID)
    assert not [f for _, f in log.read({log.control_key: "0-0"})[log.control_key] if b"close" in f]
    relent(redis)
    for _ in range(2):
        asking.ask(marker)
    given = Verdict(ATTEMPT, (0,), 0, (), True)
    log.answer(ATTEMPT, [given])
    assert events.get(timeout=ANSWER_S) == e.VerdictGiven(given)
    assert events.empty()
    entries = log.read({log.control_key: "0-0"})[log.control_key]
    assert len([fields for _, fields in entries if b"close" in fields]) == 1


def test_a_server_without_memory_takes_what_leads_to_a_verdict(server, verdicts):
    """The seal behind it gives memory back."""
    asking, events, told = verdicts
    redis = connect(server.address, UID).redis
    redis.config_set("maxmemory", 1)
    log = AckLog(redis, UID)
    asking.open(ATTEMPT, 10, one_task=False)
    asking.members(("acker-0", "acker-1"))
    with pytest.raises(AckLogFullError, match=r"of 0\.0 MiB are used"):
        log.append(ATTEMPT, [(0, b"xors")])
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    given = Verdict(ATTEMPT, (0,), 0, (), True)
    log.answer(ATTEMPT, [given])
    assert events.get(timeout=ANSWER_S) == e.VerdictGiven(given)
    asking.forget([ATTEMPT])
    assert not redis.exists(log.verdict_key(ATTEMPT))
    assert told.empty()
    redis.config_set("maxmemory", 0)


@pytest.mark.parametrize("one_task", [True, False])
def test_ackers_hear_at_once_of_many_roots_unless_they_are_one_task(server, verdicts, one_task):
    asking, _, _ = verdicts
    asking.open(ATTEMPT, EARLY_ROOTS, one_task=one_task)
    log = AckLog(connect(server.address, UID).redis, UID)
    (entries,) = log.read({log.control_key: "0-0"}).values()
    told = [decode_control(fields) for _, fields in entries]
    assert [one.id for one in told if isinstance(one, Open)] == ([] if one_task else [ATTEMPT])


@pytest.mark.parametrize("acks", [(), ((0, ""),)])
def test_what_a_judged_attempt_leaves_stays_until_the_next_where_it_is_little(
    server, verdicts, acks
):
    asking, events, _ = verdicts
    asking.open(ATTEMPT, 10, one_task=True)
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), (), acks=acks))
    redis = connect(server.address, UID).redis
    log, given = AckLog(redis, UID), Verdict(ATTEMPT, (0,), 0, (), True)
    log.answer(ATTEMPT, [given])
    assert events.get(timeout=ANSWER_S) == e.VerdictGiven(given)
    asking.forget([ATTEMPT])
    assert bool(redis.exists(log.verdict_key(ATTEMPT))) == bool(acks)
    asking.open(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), 10, one_task=True)
    assert not redis.exists(log.verdict_key(ATTEMPT))


def test_a_server_that_went_before_the_verdict_is_told(server, verdicts):
    asking, _, told = verdicts
    asking.open(ATTEMPT, 10, one_task=False)
    marker = CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ())
    asking.ask(marker)
    server.kill()
    notice = told.get(timeout=ANSWER_S)
    assert (notice.kind, notice.window, notice.warning) == ("WindowHeldUp", 1, True)
    assert "waits" in notice.text


def attend(server, name: str):
    """Be connected as an acker is."""
    address = server.address
    client = connect_acker(address.url, address.password, reader_name(UID, name))
    client.ping()
    return client


def test_an_acker_that_is_gone_is_not_waited_for_though_nobody_says_so(server, verdicts):
    """Whoever would tell of it may be gone as well; and one that comes back judges again."""
    asking, events, _ = verdicts
    redis = connect(server.address, UID).redis
    asking.members(("acker-0", "acker-1", "acker-2"))
    there = [attend(server, name) for name in ("acker-0", "acker-2")]
    asking.open(ATTEMPT, 10, one_task=False)
    assert set(owners_told(redis)[-1]) == {"acker-0", "acker-1", "acker-2"}
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    until(lambda: set(owners_told(redis)[-1]) == {"acker-0", "acker-2"}, "others judge", ANSWER_S)
    log = AckLog(redis, UID)
    log.answer(ATTEMPT, [Verdict(ATTEMPT, (p,), 0, (), True) for p in range(18)])
    assert isinstance(events.get(timeout=ANSWER_S), e.VerdictGiven)
    there.append(attend(server, "acker-1"))
    asking.open(replace(ATTEMPT, attempt=ATTEMPT.attempt + 1), 10, one_task=False)
    assert set(owners_told(redis)[-1]) == {"acker-0", "acker-1", "acker-2"}


@pytest.mark.parametrize("why", ["all may come back", "the server does not say"])
def test_while_it_is_not_known_who_is_there_nobody_counts_as_gone(server, verdicts, why):
    asking, _, told = verdicts
    asking._silence_s = 0.0
    redis = connect(server.address, UID).redis
    asking.members(("acker-0", "acker-1"))
    if why == "the server does not say":
        there = attend(server, "acker-0")
        assert AckLog(redis, UID).attending() == {"acker-0"}
        redis.execute_command("ACL", "SETUSER", "default", "-client|list")
        assert AckLog(there, UID).attending() is None
    asking.open(ATTEMPT, 10, one_task=False)
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    assert "no answer yet from acker-0, acker-1; " in told.get(timeout=ANSWER_S).text
    assert set(owners_told(redis)[-1]) == {"acker-0", "acker-1"}


def test_an_acker_that_asks_for_nothing_is_not_there(server, monkeypatch):
    """So it is when its host is gone, and nobody ends its connection."""
    monkeypatch.setattr(tracking_log, "ATTENDING_S", 1)
    there, log = attend(server, "acker-0"), AckLog(connect(server.address, UID).redis, UID)
    until(lambda: log.attending() == frozenset(), "nobody reads", ANSWER_S)
    there.ping()
    assert log.attending() == {"acker-0"}


def test_an_acker_that_may_have_no_name_is_served_without_one(server):
    redis = connect(server.address, UID).redis
    redis.execute_command("ACL", "SETUSER", "default", "-client|setname")
    assert attend(server, "acker-0").ping()
    assert AckLog(redis, UID).attending() == frozenset()


def test_of_two_threads_that_place_slices_the_last_word_counts(server, verdicts, monkeypatch):
    asking, _, _ = verdicts
    asking.open(ATTEMPT, 10, one_task=False)
    told, within, go_on = AckControl.set_ackers, threading.Event(), threading.Event()

    def slow(control, names):
        if names == ("acker-1",):
            within.set()
            assert go_on.wait(ANSWER_S)
        told(control, names)

    monkeypatch.setattr(AckControl, "set_ackers", slow)
    threads = [
        threading.Thread(target=asking.members, args=((name,),)) for name in ("acker-1", "acker-2")
    ]
    threads[0].start()
    assert within.wait(ANSWER_S)
    threads[1].start()
    threads[1].join(0.2)
    go_on.set()
    for thread in threads:
        thread.join(ANSWER_S)
    assert set(owners_told(connect(server.address, UID).redis)[-1]) == {"acker-2"}


def test_ackers_that_do_not_answer_are_named(server):
    """One that serves under another name than the driver was told of owns nothing, for example."""
    stores = Stores(UID, shared(server.address.password))
    members = (server.address.member(),)
    stores.use(View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, (("state-0",),)))
    told: queue.SimpleQueue[e.Notify] = queue.SimpleQueue()
    asking = Verdicts(stores, lambda: (">lines",), nobody, told.put, 64, silence_s=0.0)
    asking.members(("acker-0", "acker-1", "acker-2"))
    asking.open(ATTEMPT, 10, one_task=False)
    log = AckLog(connect(server.address, UID).redis, UID)
    owners = owners_told(connect(server.address, UID).redis)[-1]
    theirs = [p for p, owner in enumerate(owners) if owner == "acker-1"]
    log.answer(ATTEMPT, [Verdict(ATTEMPT, (p,), 0, (), True) for p in theirs])
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    notice = told.get(timeout=ANSWER_S)
    asking.stop()
    assert (notice.kind, notice.window, notice.warning) == ("WindowHeldUp", 1, True)
    assert "no answer yet from acker-0, acker-2; " in notice.text


def test_a_log_that_is_lost_before_the_question_is_told(server, verdicts):
    asking, events, _ = verdicts
    redis = connect(server.address, UID).redis
    asking.open(ATTEMPT, 10, one_task=False)
    redis.delete(AckLog(redis, UID).control_key)
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    assert events.get(timeout=ANSWER_S) == e.VerdictLost(ATTEMPT)


def test_a_verdict_that_cannot_be_read_stops_the_driver(server, verdicts):
    """No further attempt would fare better, and nobody must wait for ever."""
    asking, events, _ = verdicts
    redis = connect(server.address, UID).redis
    asking.open(ATTEMPT, 10, one_task=False)
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    key = AckLog(redis, UID).verdict_key(ATTEMPT)
    redis.xadd(key, {"0": '{"format": 99, "value": {}}'})
    failed = events.get(timeout=ANSWER_S)
    assert isinstance(failed, e.RunFailed)
    assert "99" in failed.text
