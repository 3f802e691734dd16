"""The ack log on a real server: who may write, what is kept, what waiting for a verdict sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from trackingparts import Server

from millrace.errors import FencedError, NewerFormatError, ProtocolError, StateServerError
from millrace.ids import TRACKING_PARTITIONS, Execution
from millrace.protocol import codec
from millrace.protocol.acklog import ControlEntry, ForgetAttempt, Open, SliceOwners
from millrace.protocol.types import (
    AttemptId,
    CloseMarker,
    EnclosedAcks,
    FailedRoot,
    Intent,
    RootRange,
    Verdict,
)
from millrace.ring import diff
from millrace.tracking.control import EARLY_ROOTS, RENEW_AFTER_OPENS, AckControl
from millrace.tracking.log import (
    LOAD_KEPT_S,
    AckerLoad,
    AckLog,
    AckLogAwayError,
    AckLogFullError,
    AckLogLostError,
    decode_control,
)

EDGES = (">lines", "lines>out")


def attempt(window: int, execution: int = 3) -> AttemptId:
    return AttemptId(execution, window, 1)


@pytest.fixture
def log(client: redis.Redis, uid: str) -> AckLog:
    return AckLog(client, uid)


@pytest.fixture
def control(log: AckLog) -> AckControl:
    found = AckControl(log, 3, EDGES, early_roots=0)
    found.begin(["a"])
    return found


@pytest.fixture
def quiet(log: AckLog) -> AckControl:
    """One that tells of attempts when they are closed."""
    found = AckControl(log, 3, EDGES)
    found.begin(["a"])
    return found


def entries(log: AckLog) -> list[ControlEntry]:
    found = log.read({log.control_key: "0-0"})
    return [decode_control(fields) for _, fields in found.get(log.control_key, ())]


def keys(client: redis.Redis, uid: str) -> set[str]:
    return {key.decode().rpartition("ack:")[2] for key in client.keys(f"mr:{{{uid}}}:*")}


def parts(window: int) -> list[Verdict]:
    return [Verdict(attempt(window), (p,), 0, (), True) for p in range(TRACKING_PARTITIONS)]


def test_all_keys_lie_in_one_hash_slot(client: redis.Redis, uid: str, control: AckControl) -> None:
    control.open(attempt(1), 5)
    slots = {client.execute_command("CLUSTER KEYSLOT", key) for key in client.keys(f"*{uid}*")}
    assert len(slots) == 1
    assert keys(client, uid) == {"ctl", "execution", "3.1.1:v", "3.1.1:1"}


def test_what_ackers_use_is_told_beside_the_log(log: AckLog, client: redis.Redis, uid: str) -> None:
    assert log.loads() == {}
    log.tell_load("a", AckerLoad(1.25, 100.0))
    log.tell_load("b", AckerLoad(0.1, 7.5))
    log.tell_load("a", AckerLoad(2.5, 101.2))
    assert log.loads() == {"a": AckerLoad(2.5, 101.2), "b": AckerLoad(0.1, 7.5)}
    assert 0 < client.ttl(f"mr:{{{uid}}}:ack:load") <= LOAD_KEPT_S


def test_an_older_acker_says_not_when_and_an_older_driver_reads_numbers_alone(
    log: AckLog, client: redis.Redis, uid: str
) -> None:
    key = f"mr:{{{uid}}}:ack:load"
    client.hset(key, "older", repr(3.5))
    log.tell_load("newer", AckerLoad(1.0, 20.0))
    assert log.loads() == {"newer": AckerLoad(1.0, 20.0)}
    # As releases before this one read it: whom they know they find, and all is a number.
    as_before = {name.decode(): float(said) for name, said in client.hgetall(key).items()}
    assert (as_before["older"], as_before["newer"]) == (3.5, 1.0)


def test_messages_are_read_in_order(log: AckLog, control: AckControl) -> None:
    control.open(attempt(1), 5000)
    log.append(attempt(1), [(2, b"one"), (3, b"two")])
    log.append(attempt(1), [(2, b"three")])
    key = log.slice_key(attempt(1), 2)
    found = log.read({key: "0-0"})[key][1:]
    assert [fields for _, fields in found] == [{b"m": b"one"}, {b"m": b"three"}]
    assert log.read({key: found[0][0]}, count=1)[key] == found[1:]
    ids = [entry for entry, _ in found]
    again = list(log.fetch(key, [ids[1], "5-5", ids[0], *[ids[1]] * 20]))
    assert again == [{b"m": b"three"}, None, {b"m": b"one"}, *[{b"m": b"three"}] * 20]


def test_large_messages_are_added_in_several_calls(log: AckLog, control: AckControl) -> None:
    control.open(attempt(1), 5000)
    large = [(part, bytes([part]) * (700 << 10)) for part in (0, 1, 2, 1)]
    log.append(attempt(1), large)
    for part, count in ((0, 1), (1, 2), (2, 1)):
        found = log.read({log.slice_key(attempt(1), part): "0-0"})
        ((_, *messages),) = found.values()
        assert [fields for _, fields in messages] == [{b"m": large[part][1]}] * count


def test_nothing_of_the_log_is_written_to_the_servers_file(own_server: Server, uid: str) -> None:
    with own_server.client() as client:
        log = AckLog(client, uid)
        control = AckControl(log, 3, EDGES)
        before = client.info("persistence")["aof_current_size"]
        control.begin(["a"])
        control.open(attempt(1), 5000)
        log.append(attempt(1), [(0, b"one")])
        control.close(CloseMarker(attempt(1), Intent(1, ()), frozenset(), (), ()))
        log.answer(attempt(1), parts(1))
        assert keys(client, uid) > {"ctl", "execution"}
        control.forget([attempt(1)])
        assert keys(client, uid) == {"ctl", "execution"}
        assert client.info("persistence")["aof_current_size"] == before


def test_late_comers_leave_nothing_behind(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl
) -> None:
    control.open(attempt(1), 5)
    log.append(attempt(1), [(1, b"one")])
    control.forget([attempt(1)])
    with pytest.raises(AckLogLostError, match="window 1, attempt 1 of execution 3 is over"):
        log.append(attempt(1), [(1, b"two")])
    log.answer(attempt(1), parts(1))
    control.forget([attempt(1)])
    assert keys(client, uid) == {"ctl", "execution"}


def test_an_older_execution_may_not_write_control(log: AckLog, control: AckControl) -> None:
    control.open(attempt(1), 5)
    newer = AckControl(log, 4, EDGES)
    newer.begin(["a", "b"])
    before = entries(log)
    assert [type(entry) for entry in before] == [SliceOwners]
    for write in (
        lambda: control.open(attempt(2), 5),
        lambda: control.close(CloseMarker(attempt(1), Intent(1, ()), frozenset(), (), ())),
        lambda: control.set_ackers(["b"]),
        lambda: control.forget([attempt(1)]),
        lambda: control.begin(["a"]),
    ):
        with pytest.raises(FencedError, match="execution 4 has taken over from execution 3"):
            write()
    assert entries(log) == before


def test_a_new_execution_sweeps_what_older_ones_left(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl
) -> None:
    control.open(attempt(1), 5)
    log.append(attempt(1), [(1, b"one")])
    client.set(f"mr:{{{uid}}}:record", b"kept")
    AckControl(log, 4, EDGES).begin(["a"])
    assert keys(client, uid) == {"ctl", "execution", f"mr:{{{uid}}}:record"}


def test_a_log_that_is_here_again_is_swept_of_its_own_execution_too(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl
) -> None:
    """It was elsewhere since, and what was open in it is open no more."""
    control.open(attempt(1), 5)
    log.append(attempt(1), [(1, b"one")])
    AckControl(log, 3, EDGES).begin(["a"])
    assert keys(client, uid) == {"ctl", "execution"}
    (owners,) = entries(log)
    assert isinstance(owners, SliceOwners)
    assert owners.live == ()
    newer = attempt(1, execution=4)
    log.open(Execution(4), Open(newer, 5, EDGES))
    assert log.verdict_key(newer).rpartition("ack:")[2] in keys(client, uid)
    assert log.sweep(3) == 0


def test_a_window_keeps_its_slices_while_ackers_come_and_go(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl
) -> None:
    names = [f"acker-{n}" for n in range(6)]
    control.set_ackers(names)
    control.open(attempt(1), 100_000)
    assert control.slices(attempt(1)) == 6
    control.set_ackers(names[:5])
    control.open(attempt(2), 100_000)
    assert control.slices(attempt(2)) == 5
    opened = {e.id: e.slices for e in entries(log) if isinstance(e, Open)}
    assert opened == {attempt(1): 6, attempt(2): 5}
    *_, placed = (e for e in entries(log) if isinstance(e, SliceOwners))
    assert (len(placed.owners), [len(table) for table in placed.others]) == (5, [6])
    moved = diff(SliceOwners.of(Execution(3), names).owners, placed.others[0])
    assert moved.moves == moved.least == 1
    log.append(attempt(1), [(5, b"one")])
    with pytest.raises(AckLogLostError):
        log.append(attempt(2), [(5, b"one")])
    # Four answers are not enough, and what is over is deleted as a whole.
    log.answer(attempt(2), parts(2))
    assert log.wait_verdict(attempt(2), 5, 0.0) is None
    control.forget([attempt(1), attempt(2)])
    assert keys(client, uid) == {"ctl", "execution"}
    with pytest.raises(AckLogLostError, match="was not opened"):
        control.slices(attempt(1))


def test_the_control_stream_stays_short_and_complete(log: AckLog, control: AckControl) -> None:
    """An acker that starts at any time learns from it who owns what and which attempts are open."""
    control.open(attempt(1), 5)
    for window in range(2, 2 * RENEW_AFTER_OPENS):
        control.open(attempt(window), 5)
        control.forget([attempt(window)])
    found = entries(log)
    # Window 1 is open to this day, so everything since then had to stay.
    assert isinstance(found[0], Open)
    assert found[0].id == attempt(1)
    control.forget([attempt(1)])
    control.open(attempt(1000), 5)
    for window in range(2000, 2000 + RENEW_AFTER_OPENS):
        control.open(attempt(window), 5)
        control.forget([attempt(window)])
    control.close(CloseMarker(attempt(1000), Intent(1, ()), frozenset(), (), ()))
    found = entries(log)
    assert len(found) < 3 * RENEW_AFTER_OPENS
    opened = {e.id for e in found if isinstance(e, Open)}
    opened -= {e.id for e in found if isinstance(e, ForgetAttempt)}
    assert opened == {attempt(1000)}
    *_, members = (e for e in found if isinstance(e, SliceOwners))
    assert members.owners == ("a",) * TRACKING_PARTITIONS
    assert attempt(1000) in members.live


def test_close_markers_of_windows_that_are_over_take_no_memory(
    client: redis.Redis, log: AckLog, control: AckControl
) -> None:
    """Each holds the whole intent, which may have thousands of files."""
    ranges = tuple(RootRange("lines", n, 0, 48, {"f": f"part-{n:030}"}) for n in range(500))
    for window in range(1, RENEW_AFTER_OPENS - 1):
        one = attempt(window)
        control.open(one, 48 * 500)
        marker = CloseMarker(one, Intent(window, ranges), frozenset(), (), ((0, 48 * 500),))
        control.close(marker)
        control.close(marker)
        control.forget([one])
    assert not any(isinstance(entry, CloseMarker) for entry in entries(log))
    assert client.memory_usage(log.control_key, samples=0) < len(codec.encode(marker))
    # Whose answer was lost may be forgotten twice.
    control.forget([one])
    control.open(attempt(RENEW_AFTER_OPENS - 1), 5)
    assert [type(entry) for entry in entries(log)[-3:]] == [Open, ForgetAttempt, Open]


def closed(window: int) -> CloseMarker:
    return CloseMarker(attempt(window), Intent(window, ()), frozenset(), (), ())


def test_a_window_of_few_roots_is_told_when_it_is_closed_and_its_end_after_that(
    log: AckLog, quiet: AckControl
) -> None:
    """So that ackers wake once a window; tasks can write from the beginning."""
    quiet.open(attempt(1), EARLY_ROOTS - 1)
    log.append(attempt(1), [(0, b"one")])
    assert [type(entry) for entry in entries(log)] == [SliceOwners]
    quiet.close(closed(1))
    assert [type(entry) for entry in entries(log)[1:]] == [Open, CloseMarker]
    quiet.forget([attempt(1)])
    quiet.open(attempt(2), 5)
    assert [type(entry) for entry in entries(log)[1:]] == [Open]
    quiet.close(closed(2))
    over, opened = ForgetAttempt(attempt(1)), Open(attempt(2), 5, EDGES, 1)
    assert entries(log)[2:] == [over, opened, closed(2)]


def test_a_window_of_many_roots_is_told_at_once(log: AckLog, quiet: AckControl) -> None:
    quiet.open(attempt(1), 5)
    quiet.open(attempt(2), EARLY_ROOTS)
    assert entries(log)[1:] == [Open(attempt(2), EARLY_ROOTS, EDGES, TRACKING_PARTITIONS)]


def test_a_window_of_one_task_is_told_with_its_end_however_many_roots_it_has(
    log: AckLog, quiet: AckControl
) -> None:
    """Nothing of it can be folded before."""
    quiet.set_ackers(["a", "b", "c"])
    quiet.open(attempt(1), EARLY_ROOTS, one_task=True)
    assert [type(entry) for entry in entries(log)] == [SliceOwners]
    quiet.close(closed(1))
    assert entries(log)[1:] == [Open(attempt(1), EARLY_ROOTS, EDGES, 6), closed(1)]


ENCLOSED = ((0, "bWVzc2FnZQ=="), (3, ""))


def test_what_a_close_marker_encloses_is_read_with_it(log: AckLog, quiet: AckControl) -> None:
    quiet.open(attempt(1), 5)
    quiet.close(marker := replace(closed(1), acks=ENCLOSED))
    assert entries(log)[-1] == marker


def judged(
    quiet: AckControl, number: int, *failed: FailedRoot, acks: EnclosedAcks = ENCLOSED
) -> None:
    """Bring an attempt to its end, with what its marker encloses and who is to blame."""
    marker = replace(closed(number), acks=acks)
    quiet.open(attempt(number), 5)
    quiet.close(marker)
    quiet.judged(marker, Verdict(attempt(number), (0,), 5 - len(failed), failed, True))


def test_what_is_over_and_little_is_deleted_as_the_next_is_opened(
    client: redis.Redis, log: AckLog, quiet: AckControl
) -> None:
    judged(quiet, 1)
    quiet.forget([attempt(1)])
    quiet.forget([attempt(1)])
    left = [log.verdict_key(attempt(1)), log.slice_key(attempt(1), 0)]
    assert all(client.exists(key) for key in left)
    quiet.open(attempt(2), 5)
    assert not any(client.exists(key) for key in left)
    assert [type(entry) for entry in entries(log)[1:]] == [Open]


@pytest.mark.parametrize(
    ("failed", "acks"), [((FailedRoot(3, "split", "no"),), ENCLOSED), ((), ())]
)
def test_what_may_be_much_is_deleted_at_once(
    client: redis.Redis,
    log: AckLog,
    quiet: AckControl,
    failed: tuple[FailedRoot, ...],
    acks: EnclosedAcks,
) -> None:
    judged(quiet, 1, *failed, acks=acks)
    quiet.forget([attempt(1)])
    assert not client.exists(log.verdict_key(attempt(1)), log.slice_key(attempt(1), 0))
    assert [type(entry) for entry in entries(log)[1:]] == [Open]


def test_what_waits_to_be_deleted_is_gone_before_the_same_attempt_is_opened_again(
    log: AckLog, quiet: AckControl
) -> None:
    judged(quiet, 1)
    log.answer(attempt(1), [Verdict(attempt(1), (0,), 4, (), False)])
    quiet.forget([attempt(1)])
    quiet.open(attempt(1), 5)
    assert log.wait_verdict(attempt(1), 1, 0.0) is None
    assert [type(entry) for entry in entries(log)[1:]] == [Open]


def test_few_attempts_that_are_over_wait_for_the_next(
    client: redis.Redis, log: AckLog, quiet: AckControl
) -> None:
    numbers = range(1, 9)
    for number in numbers:
        judged(quiet, number)
    quiet.forget([attempt(number) for number in numbers])
    kept = [number for number in numbers if client.exists(log.verdict_key(attempt(number)))]
    assert kept == [1, 2, 3, 4]
    quiet.open(attempt(9), 5)
    assert not any(client.exists(log.verdict_key(attempt(number))) for number in numbers)


def test_what_waits_to_be_deleted_is_deleted_where_the_log_was_lost(
    client: redis.Redis, log: AckLog, quiet: AckControl
) -> None:
    judged(quiet, 1)
    quiet.forget([attempt(1)])
    client.delete(log.control_key)
    quiet.open(attempt(2), 5)
    assert not client.exists(log.verdict_key(attempt(1)))
    assert [type(entry) for entry in entries(log)] == [SliceOwners]


def test_each_acker_has_one_slice_of_a_window_of_few_roots(log: AckLog, quiet: AckControl) -> None:
    quiet.set_ackers(["a", "b", "c"])
    quiet.open(attempt(1), 5)
    quiet.set_ackers(["a", "b"])
    quiet.open(attempt(2), 5)
    quiet.close(closed(1))
    quiet.close(closed(2))
    told = entries(log)
    assert {one.id.window: one.slices for one in told if isinstance(one, Open)} == {1: 3, 2: 2}
    *_, members = (one for one in told if isinstance(one, SliceOwners))
    assert [members.table(slices) is not None for slices in (2, 3, 4)] == [True] * 3
    assert sorted(members.table(2) or ()) == ["a", "b"]


def test_a_window_is_told_with_its_own_end_and_not_with_that_of_another(
    log: AckLog, quiet: AckControl
) -> None:
    for window in (1, 2, 3):
        quiet.open(attempt(window), 5)
    quiet.forget([attempt(1)])
    assert [type(entry) for entry in entries(log)] == [SliceOwners]
    quiet.close(closed(3))
    quiet.close(closed(3))
    quiet.close(closed(2))
    third, second = (Open(attempt(window), 5, EDGES, 1) for window in (3, 2))
    over = ForgetAttempt(attempt(1))
    assert entries(log)[1:] == [over, third, closed(3), closed(3), second, closed(2)]


def test_trimming_keeps_what_was_told_of_a_window_and_loses_none_that_was_not(
    log: AckLog, quiet: AckControl
) -> None:
    for window in (1, 2, 3):
        quiet.open(attempt(window), 5)
    quiet.close(closed(2))
    quiet.close(closed(1))
    quiet.set_ackers(["a", "b"])
    first, second = (Open(attempt(window), 5, EDGES, 1) for window in (1, 2))
    *told, members = entries(log)
    assert told == [second, closed(2), first, closed(1)]
    assert isinstance(members, SliceOwners)
    assert members.live == (attempt(1), attempt(2), attempt(3))
    # The one that was told of first is kept, whichever was opened first.
    quiet.set_ackers(["a", "c"])
    assert entries(log)[0] == second
    quiet.forget([attempt(2)])
    quiet.set_ackers(["a", "b"])
    assert entries(log)[0] == first
    quiet.forget([attempt(1)])
    quiet.set_ackers(["a", "c"])
    (members,) = entries(log)
    assert isinstance(members, SliceOwners)
    assert members.live == (attempt(3),)
    quiet.close(closed(3))
    assert entries(log)[1:] == [Open(attempt(3), 5, EDGES, 1), closed(3)]


def test_attempts_that_end_before_anybody_is_told_of_them_do_not_pile_up(
    log: AckLog, quiet: AckControl
) -> None:
    """A window that is held up for days has many, and its end is told with all of them."""
    for number in range(1, 10 * RENEW_AFTER_OPENS):
        one = AttemptId(3, 1, number)
        quiet.open(one, 5)
        quiet.forget([one])
    quiet.open(attempt(2), 5)
    quiet.close(closed(2))
    *over, opened, marker = entries(log)
    assert (opened, marker) == (Open(attempt(2), 5, EDGES, 1), closed(2))
    assert isinstance(over[0], SliceOwners)
    assert len(over) <= RENEW_AFTER_OPENS


def test_an_attempt_is_over_though_what_it_left_could_not_be_deleted(
    log: AckLog, quiet: AckControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what came after it would have to stay for as long as it is not."""
    quiet.open(attempt(1), EARLY_ROOTS)

    def away(**_: object) -> None:
        raise redis.exceptions.TimeoutError("no answer")

    with monkeypatch.context() as lost:
        lost.setattr(log, "_delete_script", away)
        with pytest.raises(AckLogAwayError):
            quiet.forget([attempt(1)])
    quiet.set_ackers(["a", "b"])
    (members,) = entries(log)
    assert isinstance(members, SliceOwners)
    assert members.live == ()
    quiet.forget([attempt(1)])
    with pytest.raises(AckLogLostError, match="was not opened"):
        quiet.slices(attempt(1))


def test_what_may_have_been_told_is_told_again(
    log: AckLog, quiet: AckControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, not what was said; and what is over by then is not opened again."""
    quiet.open(attempt(1), 5)
    script = log._control_script

    def unanswered(**given: object) -> None:
        script(**given)
        raise redis.exceptions.TimeoutError("no answer")

    with monkeypatch.context() as lost:
        lost.setattr(log, "_control_script", unanswered)
        with pytest.raises(AckLogAwayError):
            quiet.close(closed(1))
    quiet.close(closed(1))
    assert [type(entry) for entry in entries(log)[1:]] == [Open, CloseMarker] * 2
    quiet.open(attempt(2), 5)
    with monkeypatch.context() as lost:
        lost.setattr(log, "_control_script", unanswered)
        with pytest.raises(AckLogAwayError):
            quiet.close(closed(2))
    quiet.forget([attempt(2)])
    quiet.open(attempt(3), 5)
    quiet.close(closed(3))
    assert [type(entry) for entry in entries(log)[-3:]] == [ForgetAttempt, Open, CloseMarker]


def test_changed_ackers_are_told_once(log: AckLog, control: AckControl) -> None:
    control.open(attempt(1), 5)
    control.set_ackers(["a", "b"])
    control.set_ackers(["b", "a"])
    *_, members = entries(log)
    assert [type(entry) for entry in entries(log)] == [Open, SliceOwners]
    assert isinstance(members, SliceOwners)
    assert members.live == (attempt(1),)
    assert sorted(set(members.owners)) == ["a", "b"]
    with pytest.raises(ProtocolError, match="none is alive"):
        control.set_ackers([])


def test_waiting_ends_with_the_last_slice(log: AckLog, control: AckControl) -> None:
    control.open(attempt(1), 5)
    assert log.wait_verdict(attempt(1), TRACKING_PARTITIONS, 0.0) is None
    some = parts(1)
    some[1] = Verdict(attempt(1), (1,), 4, (FailedRoot(2, "out", "broken"),), False)
    log.answer(attempt(1), some[:2])
    log.answer(attempt(1), some[1:3])
    assert log.wait_verdict(attempt(1), TRACKING_PARTITIONS, 0.01) is None
    log.answer(attempt(1), some[3:])
    assert log.wait_verdict(attempt(1), TRACKING_PARTITIONS, 5.0) == Verdict(
        attempt(1),
        tuple(range(TRACKING_PARTITIONS)),
        4,
        (FailedRoot(2, "out", "broken"),),
        False,
    )


def test_a_lost_log_is_told_from_a_slow_acker(
    client: redis.Redis, log: AckLog, control: AckControl
) -> None:
    control.open(attempt(1), 5)
    client.flushdb()
    with pytest.raises(AckLogLostError, match="a new attempt is needed"):
        log.wait_verdict(attempt(1), TRACKING_PARTITIONS, 60.0)


def test_a_log_that_was_lost_is_begun_again(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl
) -> None:
    control.open(attempt(1), 5)
    client.delete(log.control_key)
    with pytest.raises(AckLogLostError, match="its control stream is gone"):
        control.close(CloseMarker(attempt(1), Intent(1, ()), frozenset(), (), ()))
    control.forget([attempt(1)])
    assert keys(client, uid) == {"execution"}
    control.open(attempt(2), 5)
    members, opened = entries(log)
    assert isinstance(members, SliceOwners)
    assert (members.owners, members.live) == (("a",) * TRACKING_PARTITIONS, ())
    assert opened == Open(attempt(2), 5, EDGES, TRACKING_PARTITIONS)


def test_a_server_that_is_away_is_named(log: AckLog, server: object) -> None:
    away = AckLog(redis.Redis(port=1, retry=None), "wordcount-1")
    with pytest.raises(AckLogAwayError, match="ack log of topology wordcount-1: "):
        away.append(attempt(1), [(1, b"x")])
    with pytest.raises(StateServerError, match="is the state server up"):
        away.read({"x": "0-0"})


def test_a_full_server_that_is_gone_a_moment_later_is_waited_for_as_a_full_one(
    client: redis.Redis, uid: str, log: AckLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise redis.exceptions.OutOfMemoryError("OOM command not allowed")

    def gone(*_: object) -> None:
        raise redis.exceptions.ConnectionError("Connection closed by server.")

    monkeypatch.setattr(redis.client.Pipeline, "execute", refuse)
    monkeypatch.setattr(client, "evalsha", refuse)
    monkeypatch.setattr(client, "info", gone)
    with pytest.raises(AckLogFullError, match=r"smaller windows\)$"):
        log.append(attempt(1), [(1, b"x")])
    with pytest.raises(AckLogFullError, match="is full"):
        log.tell_load("a", AckerLoad(1.0, 2.0))


def test_both_versions_of_the_redis_protocol(server: object, uid: str) -> None:
    for version in (2, 3):
        client = redis.Redis(
            port=server.port,  # type: ignore[attr-defined]
            password=server.password,  # type: ignore[attr-defined]
            protocol=version,
        )
        with client:
            log = AckLog(client, f"{uid}-{version}")
            control = AckControl(log, 1, EDGES, early_roots=0)
            control.begin(["a"])
            control.open(attempt(1, 1), 5)
            assert len(entries(log)) == 2
            log.append(attempt(1, 1), [(1, b"one")])
            key = log.slice_key(attempt(1, 1), 1)
            (_, (entry, fields)) = log.read({key: "0-0"})[key]
            assert fields == {b"m": b"one"}
            assert list(log.fetch(key, [entry, "1-1"])) == [fields, None]


def test_an_unknown_kind_of_entry_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="kind b'drain' is not known"):
        decode_control({b"drain": b"{}"})
    with pytest.raises(ProtocolError, match="damaged"):
        decode_control({b"open": b"{}"})
    with pytest.raises(ProtocolError, match="without a field"):
        decode_control({})
