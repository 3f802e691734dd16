"""Acker processes against a real server: answers, kills in the middle, changes, sabotage."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import psutil
import pytest
import redis
from trackedwindow import EDGES, TrackedWindow
from trackingparts import Ackers, Server

from millrace.errors import ExitCode, StateServerError
from millrace.ids import BLOCK_ROOTS, TRACKING_PARTITIONS
from millrace.protocol.acklog import check_partition, roots_of
from millrace.protocol.types import AttemptId, CloseMarker, FailedRoot, TaskId, Verdict
from millrace.tracking import log as tracking_log
from millrace.tracking import process
from millrace.tracking.control import EARLY_ROOTS, AckControl
from millrace.tracking.log import AckLog, AckLogLostError, Entry
from millrace.tracking.message import AckMessage, Net, Seeds, decode, enclosed, encode
from millrace.tracking.process import ANSWER_ROOTS, Acker, connect
from millrace_e2e.waiting import until

PATIENCE_S = 60.0
ALL = tuple(range(TRACKING_PARTITIONS))


def window(number: int, roots: int, **options: object) -> TrackedWindow:
    return TrackedWindow(AttemptId(1, number, 1), roots, **options)  # type: ignore[arg-type]


def complete(one: TrackedWindow) -> Verdict:
    return Verdict(one.attempt, tuple(range(one.slices)), one.roots, (), True)


def broken(one: TrackedWindow, root: int) -> Verdict:
    why = "its tuples on edge 'split>counts' were not each processed once"
    failed = (FailedRoot(root, "counts", why),)
    return Verdict(one.attempt, tuple(range(one.slices)), one.roots - 1, failed, True)


def run(log: AckLog, control: AckControl, one: TrackedWindow) -> Verdict | None:
    """A whole window: open, messages, close, verdict, forget."""
    control.open(one.attempt, one.roots)
    for messages in one.messages():
        log.append(one.attempt, messages)
    verdict = control.judge(one.marker(), PATIENCE_S)
    control.forget([one.attempt])
    return verdict


@pytest.fixture
def log(client: redis.Redis, uid: str) -> AckLog:
    return AckLog(client, uid)


@pytest.fixture
def control(log: AckLog) -> AckControl:
    found = AckControl(log, 1, EDGES, early_roots=0)
    found.begin(["acker-0"])
    return found


@pytest.mark.parametrize("roots", [0, 100, 5000])
def test_windows_are_judged(
    server: Server, uid: str, ackers: Ackers, log: AckLog, control: AckControl, roots: int
) -> None:
    ackers.start(server, uid)
    for number in range(3):
        good = window(number, roots, loser=number == 1)
        assert run(log, control, good) == complete(good)
    if roots:
        bad = window(9, roots, lost_word=42, loser=True)
        assert run(log, control, bad) == broken(bad, 42)


@pytest.mark.parametrize(
    ("early", "point"),
    [
        (True, "acker.opened"),
        (True, "acker.folded:1"),
        (True, "acker.folded:4"),
        (False, "acker.opened"),
        (False, "acker.folded:1"),
        (False, "acker.folded:3"),
        (False, "acker.answered"),
    ],
)
def test_kill_in_the_middle_gives_the_same_verdict(
    server: Server, uid: str, ackers: Ackers, log: AckLog, point: str, early: bool
) -> None:
    control = AckControl(log, 1, EDGES, early_roots=0 if early else EARLY_ROOTS)
    control.begin(["acker-0"])
    first = ackers.start(server, uid, "acker-0", point)
    bad = window(1, 5000, lost_word=300, loser=True, slices=TRACKING_PARTITIONS if early else 1)
    control.open(bad.attempt, bad.roots)
    for messages in bad.messages():
        log.append(bad.attempt, messages)
    if not early:
        control.close(bad.marker())
    assert first.wait(PATIENCE_S) == -signal.SIGKILL
    ackers.start(server, uid)
    assert control.judge(bad.marker(), PATIENCE_S) == broken(bad, 300)


def test_kill_after_the_answer_answers_the_same_again(
    server: Server, uid: str, ackers: Ackers, client: redis.Redis, log: AckLog, control: AckControl
) -> None:
    first = ackers.start(server, uid, "acker-0", "acker.answered")
    good = window(1, 300)
    control.open(good.attempt, good.roots)
    for messages in good.messages():
        log.append(good.attempt, messages)
    control.close(good.marker())
    assert first.wait(PATIENCE_S) == -signal.SIGKILL
    ackers.start(server, uid)
    key = log.verdict_key(good.attempt)
    ((_, before),) = log.read({key: "0-0"}, block_s=PATIENCE_S)[key][1:]
    last = client.xinfo_stream(key)["last-generated-id"]
    found: dict[str, list[object]] = {}
    while not found:
        found = log.read({key: last}, block_s=PATIENCE_S)  # type: ignore[assignment]
    assert [fields for _, fields in log.read({key: "0-0"})[key][1:]] == [before, before]
    assert log.wait_verdict(good.attempt, TRACKING_PARTITIONS, PATIENCE_S) == complete(good)


def enclosing(one: TrackedWindow, count: int | None = None) -> CloseMarker:
    """The close marker with the first ``count`` of the winners' messages, or all of them."""
    told = [message for some in one.messages() for message in some]
    marker = one.marker()
    winners = {task for task, _ in marker.winners}
    said = [(p, data) for p, data in told if decode(data).task in winners]
    return replace(marker, acks=tuple((p, enclosed(data)) for p, data in said[:count]))


@pytest.mark.parametrize("crash", ["", "acker.opened", "acker.folded:1", "acker.answered"])
def test_windows_whose_marker_encloses_all_are_judged(
    server: Server, uid: str, ackers: Ackers, log: AckLog, quiet: AckControl, crash: str
) -> None:
    """By the marker alone, whatever is in the slice, and whenever the acker dies."""
    first = ackers.start(server, uid, "acker-0", crash)
    good, bad = window(1, 5000, slices=1), window(2, 5000, lost_word=42, slices=1)
    for one, verdict in ((good, complete(good)), (bad, broken(bad, 42))):
        quiet.open(one.attempt, one.roots, one_task=True)
        other = window(one.attempt.window, 5000, lost_word=7, loser=True, slices=1)
        for messages in other.messages():  # a loser's, and other ones of the very winners
            log.append(one.attempt, messages)
        quiet.close(enclosing(one))
        if crash:
            assert first.wait(PATIENCE_S) == -signal.SIGKILL
            ackers.start(server, uid)
            crash = ""
        assert log.wait_verdict(one.attempt, 1, PATIENCE_S) == verdict
        quiet.forget([one.attempt])


def test_what_the_marker_lacks_comes_from_the_log(
    server: Server, uid: str, ackers: Ackers, log: AckLog, quiet: AckControl
) -> None:
    ackers.start(server, uid)
    bad = window(1, 5000, lost_word=42, slices=1)
    quiet.open(bad.attempt, bad.roots)
    source, sink = bad.messages()
    assert len(source) == len(sink) == 1
    log.append(bad.attempt, sink)
    assert quiet.judge(enclosing(bad, 1), PATIENCE_S) == broken(bad, 42)


def test_a_marker_that_was_damaged_on_its_way_blames_no_root(
    server: Server, uid: str, ackers: Ackers, log: AckLog, quiet: AckControl
) -> None:
    ackers.start(server, uid)
    for number, text in enumerate(("", "?", enclosed(b"MA"), enclosed(b"MA" + bytes(99)))):
        one = window(number + 1, 300, slices=1)
        marker = enclosing(one)
        quiet.open(one.attempt, one.roots)
        found = quiet.judge(replace(marker, acks=((0, text), *marker.acks[1:])), PATIENCE_S)
        assert found == Verdict(one.attempt, (0,), 0, (), False)


@pytest.fixture
def quiet(log: AckLog) -> AckControl:
    """One that tells of small windows when they are closed, as drivers do."""
    found = AckControl(log, 1, EDGES)
    found.begin(["acker-0"])
    return found


def test_two_ackers_share_a_window(
    server: Server, uid: str, ackers: Ackers, log: AckLog, control: AckControl
) -> None:
    control.set_ackers(["acker-0", "acker-1"])
    ackers.start(server, uid, "acker-0")
    ackers.start(server, uid, "acker-1")
    bad = window(1, 5000, lost_word=4999)
    assert run(log, control, bad) == broken(bad, 4999)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ackers_share_windows_that_they_hear_of_with_their_ends(
    server: Server, uid: str, ackers: Ackers, log: AckLog, quiet: AckControl, count: int
) -> None:
    names = [f"acker-{number}" for number in range(count)]
    quiet.set_ackers(names)
    for name in names:
        ackers.start(server, uid, name)
    for number in range(1, 4):
        bad = window(number, 5000, lost_word=number, loser=True, slices=count)
        assert run(log, quiet, bad) == broken(bad, number)
        empty = window(10 + number, 0, slices=count)
        assert run(log, quiet, empty) == complete(empty)


def test_streams_that_a_driver_of_an_older_release_made_are_read(
    server: Server, uid: str, ackers: Ackers, client: redis.Redis, log: AckLog, quiet: AckControl
) -> None:
    """They begin with an entry that says nothing, at a moment; and are not made a second time."""
    ackers.start(server, uid)
    bad = window(1, 5000, lost_word=9, slices=1)
    made = [log.verdict_key(bad.attempt), log.slice_key(bad.attempt, 0)]
    for key in made:
        client.xadd(key, {"open": ""})
    assert run(log, quiet, bad) == broken(bad, 9)
    assert not any(client.exists(key) for key in made)


def test_members_change_in_the_middle(
    server: Server, uid: str, ackers: Ackers, log: AckLog, control: AckControl
) -> None:
    """acker-0 has folded a part when it dies; acker-1 takes over and then shares with a third."""
    first = ackers.start(server, uid, "acker-0", "acker.folded:3")
    bad = window(1, 5000, lost_word=7, loser=True)
    control.open(bad.attempt, bad.roots)
    loser, source, sink = bad.messages()
    log.append(bad.attempt, loser)
    assert first.wait(PATIENCE_S) == -signal.SIGKILL
    control.set_ackers(["acker-1"])
    ackers.start(server, uid, "acker-1")
    log.append(bad.attempt, source)
    control.set_ackers(["acker-1", "acker-2"])
    ackers.start(server, uid, "acker-2")
    log.append(bad.attempt, sink)
    control.close(bad.marker())
    control.set_ackers(["acker-2"])
    assert log.wait_verdict(bad.attempt, TRACKING_PARTITIONS, PATIENCE_S) == broken(bad, 7)


def test_members_change_before_ackers_hear_of_a_window_and_after(
    server: Server, uid: str, ackers: Ackers, log: AckLog, quiet: AckControl
) -> None:
    """Owners name it as live before it is said that it is open; one of two dies as it judges."""
    quiet.set_ackers(["acker-0", "acker-1"])
    ackers.start(server, uid, "acker-0")
    bad = window(1, 5000, lost_word=7, loser=True, slices=2)
    quiet.open(bad.attempt, bad.roots)
    loser, source, sink = bad.messages()
    log.append(bad.attempt, loser)
    quiet.set_ackers(["acker-1", "acker-2", "acker-3"])
    dies = ackers.start(server, uid, "acker-1", "acker.folded:1")
    log.append(bad.attempt, source)
    quiet.set_ackers(["acker-1", "acker-2"])
    ackers.start(server, uid, "acker-2")
    log.append(bad.attempt, sink)
    other = window(2, 100, slices=2)
    quiet.open(other.attempt, other.roots)
    quiet.close(bad.marker())
    assert dies.wait(PATIENCE_S) == -signal.SIGKILL
    quiet.set_ackers(["acker-2"])
    assert log.wait_verdict(bad.attempt, 2, PATIENCE_S) == broken(bad, 7)
    quiet.forget([bad.attempt])
    for messages in other.messages():
        log.append(other.attempt, messages)
    assert quiet.judge(other.marker(), PATIENCE_S) == complete(other)


def rewriting(client: redis.Redis) -> bool:
    """Whether a server rewrites its file, or is about to."""
    said = client.info("persistence")
    return bool(said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


@pytest.mark.parametrize("early_roots", [0, EARLY_ROOTS])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_server_that_comes_back_has_lost_what_was_open(
    own_server: Server, uid: str, ackers: Ackers, rewritten: bool, early_roots: int
) -> None:
    """Also where its file was rewritten meanwhile, and gives a part of the log back."""
    ackers.start(own_server, uid)
    with own_server.client() as client:
        log = AckLog(client, uid)
        control = AckControl(log, 1, EDGES, early_roots=early_roots)
        control.begin(["acker-0"])
        slices = 1 if early_roots else TRACKING_PARTITIONS
        warm = window(1, 100, slices=slices)
        assert run(log, control, warm) == complete(warm)
        bad = window(2, 5000, lost_word=8, loser=True, slices=slices)
        control.open(bad.attempt, bad.roots)
        loser, source, sink = bad.messages()
        log.append(bad.attempt, loser)
        if rewritten:
            client.bgrewriteaof()
            until(lambda: not rewriting(client), "the file is rewritten", PATIENCE_S)
        log.append(bad.attempt, source)
        own_server.kill()
        own_server.start()
        if rewritten:
            log.append(bad.attempt, sink)
            verdict = control.judge(bad.marker(), PATIENCE_S)
            assert verdict is not None
            assert (verdict.complete, verdict.incomplete, verdict.window_complete) == (0, (), False)
        else:
            with pytest.raises(AckLogLostError):
                log.append(bad.attempt, sink)
        again = replace(bad, attempt=replace(bad.attempt, attempt=2))
        assert run(log, control, again) == broken(again, 8)


def test_an_acker_waits_for_its_server(own_server: Server, uid: str, ackers: Ackers) -> None:
    own_server.kill()
    early = ackers.start(own_server, uid)
    own_server.start()
    with own_server.client() as client:
        log = AckLog(client, uid)
        control = AckControl(log, 1, EDGES, early_roots=0)
        control.begin(["acker-0"])
        good = window(1, 100)
        assert run(log, control, good) == complete(good)
    assert early.poll() is None


def test_a_wrong_password_is_not_waited_out(server: Server, uid: str, ackers: Ackers) -> None:
    wrong = Server(server.folder)
    wrong.port = server.port
    assert ackers.start(wrong, uid).wait(PATIENCE_S) == ExitCode.STATE_SERVER


def test_an_acker_dies_with_its_parent(server: Server, uid: str) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'millrace.tracking.process', '--name',"
        f" 'a', '--url', {server.url!r}, '--uid', {uid!r}, '--parent-pid', str(os.getpid())],"
        " stderr=subprocess.PIPE)\n"
        "child.stderr.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={"MILLRACE_STATE_PASSWORD": server.password},
    ) as parent:
        assert parent.stdout is not None
        acker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert psutil.wait_procs([acker], timeout=PATIENCE_S)[0] == [acker]


def test_an_acker_whose_parent_is_gone_already_does_not_start(
    server: Server, uid: str, ackers: Ackers
) -> None:
    orphan = ackers.start(server, uid, "acker-0", "", "--parent-pid", "1")
    assert orphan.wait(PATIENCE_S) == ExitCode.FAILED


# --- in this process: sabotage, memory, damage


@pytest.fixture
def log_of_acker(server: Server, uid: str) -> AckLog:
    return AckLog(connect(server.url, server.password), uid)


def finish(acker: Acker, log: AckLog, one: TrackedWindow) -> Verdict:
    """Let an acker in this process read all there is."""
    while acker.step(0.0):
        pass
    verdict = log.wait_verdict(one.attempt, TRACKING_PARTITIONS, 0.0)
    assert verdict is not None
    return verdict


def test_an_acker_that_skips_a_message_is_noticed(
    log: AckLog, control: AckControl, log_of_acker: AckLog
) -> None:
    class Skipping(Acker):
        taken = 0

        def take(self, partition: int, entry: str, message: AckMessage) -> None:
            self.taken += 1
            if self.taken != 3:
                super().take(partition, entry, message)

    good = window(1, 600)
    control.open(good.attempt, good.roots)
    for messages in good.messages():
        log.append(good.attempt, messages)
    control.close(good.marker())
    verdict = finish(Skipping("acker-0", log_of_acker), log, good)
    assert not verdict.window_complete
    assert verdict.incomplete == ()
    assert verdict.complete < 600


@pytest.mark.parametrize("damage", ["cut", "newer", "elsewhere", "empty"])
def test_a_damaged_message_counts_as_lost(
    log: AckLog, control: AckControl, log_of_acker: AckLog, damage: str
) -> None:
    good = window(1, 100)
    control.open(good.attempt, good.roots)
    (home, data), *_ = good.messages()[0]
    assert home == check_partition(1, TRACKING_PARTITIONS)
    bad = {
        "cut": data[:-8],
        "newer": data[:2] + b"\x63\0" + data[4:],
        "elsewhere": data[:4] + bytes([home + 1]) + data[5:],
        "empty": b"",
    }[damage]
    log.append(good.attempt, [(home, bad)])
    log.append(good.attempt, good.messages()[1])
    control.close(good.marker())
    verdict = finish(Acker("acker-0", log_of_acker), log, good)
    assert (verdict.window_complete, verdict.incomplete) == (False, ())


def test_a_window_in_which_every_root_failed_takes_little_memory(
    log: AckLog, control: AckControl, log_of_acker: AckLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice is answered before the next one is judged, so the largest slice bounds it."""
    roots = 60_000
    one = window(1, roots)
    task = TaskId(0, 0, 0)
    control.open(one.attempt, roots)
    for part in ALL:
        size = roots_of(1, part, roots, TRACKING_PARTITIONS)
        lost = Net(EDGES[1], 0, np.arange(1, size + 1, dtype=np.uint64))
        nets = (Seeds(EDGES[0], 0, size, 1, 0), lost)
        log.append(one.attempt, [(part, encode(AckMessage(one.attempt, task, part, nets, {})))])
    winners = ((task, ALL),)
    control.close(CloseMarker(one.attempt, one.intent, frozenset(), winners, ((0, roots),)))
    told: list[int] = []
    answer = log_of_acker.answer

    def answered(attempt: AttemptId, verdicts: Sequence[Verdict]) -> None:
        told.append(sum(len(verdict.incomplete) for verdict in verdicts))
        answer(attempt, verdicts)

    monkeypatch.setattr(log_of_acker, "answer", answered)
    acker = Acker("acker-0", log_of_acker)
    tracemalloc.start()
    while acker.step(0.0):
        pass
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    verdict = log.wait_verdict(one.attempt, TRACKING_PARTITIONS, 0.0)
    assert verdict is not None
    assert verdict.complete == 0
    assert [root.sequence for root in verdict.incomplete] == list(range(roots))
    why = "its tuples on edge 'lines>split' were not each processed once"
    assert {(root.processor, root.error) for root in verdict.incomplete} == {("split", why)}
    assert sum(told) == roots
    assert max(told) < ANSWER_ROOTS + roots // TRACKING_PARTITIONS + BLOCK_ROOTS
    assert peak_bytes < 12 << 20


class ReadCounts:
    """An acker's view of a log that notes of each read how many bytes of slices it gave."""

    def __init__(self, log: AckLog) -> None:
        self._log = log
        self._read = log.read
        self.bytes: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def read(
        self, after: Mapping[str, str], count: int | None = None, block_s: float = 0.0
    ) -> dict[str, list[Entry]]:
        found = self._read(after, count, block_s)
        slices = [entries for key, entries in found.items() if key != self._log.control_key]
        self.bytes.append(sum(len(f.get(b"m", b"")) for es in slices for _, f in es))
        self.asked.append((len(after.keys() - {self._log.control_key}), count or 0))
        return found


def test_an_acker_looks_into_slices_now_and_then_where_it_has_any(
    log: AckLog, control: AckControl, log_of_acker: AckLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not waked where it has none, by anything but the control stream."""
    acker = Acker("acker-0", log_of_acker)
    while acker.step(0.0):
        pass
    read, asked = log_of_acker.read, []

    def at_once(after: Mapping[str, str], count: int | None = None, block_s: float = 0.0) -> object:
        asked.append((len(after) - 1, block_s))
        return read(after, count)

    monkeypatch.setattr(log_of_acker, "read", at_once)
    acker.step(1.0)
    acker.step(1.0)
    assert asked == [(0, 1.0), (0, 1.0)]
    one = window(1, 5000)
    control.open(one.attempt, one.roots)
    acker.step(1.0)
    asked.clear()
    acker.step(1.0)
    acker.step(1.0)
    assert asked == [
        (0, process._FIRST_LOOK_S),
        (TRACKING_PARTITIONS, 0.0),
        (0, 2 * process._FIRST_LOOK_S),
        (TRACKING_PARTITIONS, 0.0),
    ]


@pytest.mark.parametrize("closed", [False, True])
def test_a_read_takes_no_more_than_its_bytes(
    log: AckLog,
    control: AckControl,
    log_of_acker: AckLog,
    monkeypatch: pytest.MonkeyPatch,
    closed: bool,
) -> None:
    """Tasks that leave dense values behind for every root, on all edges; one that follows reads as
    they come, one that starts when the window is closed reads all of it at once."""
    roots, tasks = 40_000, 5
    monkeypatch.setattr(process, "READ_BYTES", 2 << 20)
    one = window(1, roots)
    control.open(one.attempt, roots)
    for number in range(tasks):
        said = []
        for part in ALL:
            size = roots_of(1, part, roots, TRACKING_PARTITIONS)
            values = np.full(size, number + 1, np.uint64)
            nets = tuple(Net(edge, 0, values) for edge in EDGES)
            task = TaskId(0, number, 0)
            said.append((part, encode(AckMessage(one.attempt, task, part, nets, {}))))
        log.append(one.attempt, said)
    acker = Acker("acker-0", log_of_acker)
    counts = ReadCounts(log_of_acker)
    monkeypatch.setattr(log_of_acker, "read", counts.read)
    if not closed:
        while acker.step(0.0):
            pass
    winners = tuple((TaskId(0, number, 0), ALL) for number in range(tasks))
    control.close(CloseMarker(one.attempt, one.intent, frozenset(), winners, ((0, roots),)))
    verdict = finish(acker, log, one)
    assert (verdict.complete, len(verdict.incomplete)) == (0, roots)
    whole_bytes = tasks * roots * len(EDGES) * 8
    assert sum(counts.bytes) > whole_bytes
    assert max(counts.bytes) < process.READ_BYTES + (64 << 10) < whole_bytes


def test_who_could_add_only_some_of_its_messages_has_not_won(
    log: AckLog, control: AckControl, log_of_acker: AckLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_log, "_APPEND_BYTES", 1)
    one = window(1, 5000)
    control.open(one.attempt, one.roots)
    source, sink = one.messages()
    log.append(one.attempt, source)
    script, calls = log._append_script, []

    def once(**given: object) -> object:
        calls.append(given)
        if len(calls) > 1:
            raise redis.exceptions.TimeoutError("no answer")
        return script(**given)

    monkeypatch.setattr(log, "_append_script", once)
    with pytest.raises(StateServerError, match="no answer"):
        log.append(one.attempt, sink)
    assert len(calls) == 2 < len(sink)
    control.close(one.marker())
    verdict = finish(Acker("acker-0", log_of_acker), log, one)
    assert verdict.complete < one.roots
    assert verdict.incomplete == ()
    assert not verdict.window_complete


def test_small_windows_are_read_in_one_go(
    log: AckLog, control: AckControl, log_of_acker: AckLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    acker = Acker("acker-0", log_of_acker)
    for number in range(1, 4):
        control.open(window(number, 5000).attempt, 5000)
    acker.step(0.0)
    counts = ReadCounts(log_of_acker)
    monkeypatch.setattr(log_of_acker, "read", counts.read)
    acker.step(0.0)
    assert counts.asked == [(0, 16), (3 * TRACKING_PARTITIONS, 16)]


@pytest.mark.parametrize("closed", [False, True])
def test_what_is_over_while_slices_are_read_in_turn_is_left(
    log: AckLog, control: AckControl, log_of_acker: AckLog, monkeypatch: pytest.MonkeyPatch,
    closed: bool,
) -> None:  # fmt: skip
    """Slices that are too large together are read one by one, and control entries between them."""
    monkeypatch.setattr(process, "READ_BYTES", 1)
    acker = Acker("acker-0", log_of_acker)
    good = window(1, 5000)
    control.open(good.attempt, good.roots)
    acker.step(0.0)
    for messages in good.messages():
        log.append(good.attempt, messages)
    read, asked = log_of_acker.read, []

    def between(after: Mapping[str, str], *given: object) -> dict[str, list[Entry]]:
        asked.append(len(after))
        if len(asked) == 3:
            if closed:
                control.close(good.marker())
            else:
                control.forget([good.attempt])
                control.open(window(2, 5).attempt, 5)
        return read(after, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(log_of_acker, "read", between)
    while acker.step(0.0):
        pass
    assert len(asked) > 3
    if closed:
        assert log.wait_verdict(good.attempt, TRACKING_PARTITIONS, 0.0) == complete(good)
    else:
        assert acker.machine.attempts == (window(2, 5).attempt,)


def test_a_window_that_was_over_before_it_was_heard_of_is_not_followed(
    log: AckLog, control: AckControl, log_of_acker: AckLog
) -> None:
    control.open(window(1, 100).attempt, 100)
    control.forget([window(1, 100).attempt])
    acker = Acker("acker-0", log_of_acker)
    assert acker.step(0.0)
    good = window(2, 100)
    control.open(good.attempt, good.roots)
    for messages in good.messages():
        log.append(good.attempt, messages)
    control.close(good.marker())
    assert finish(acker, log, good) == complete(good)


def test_memory_goes_with_the_window(
    client: redis.Redis, uid: str, log: AckLog, control: AckControl, log_of_acker: AckLog
) -> None:
    acker = Acker("acker-0", log_of_acker)

    def one_window(number: int) -> None:
        good = window(number, 300, loser=True)
        control.open(good.attempt, good.roots)
        for messages in good.messages():
            log.append(good.attempt, messages)
        acker.step(0.0)
        acker.step(0.0)
        control.close(good.marker())
        assert finish(acker, log, good) == complete(good)
        control.forget([good.attempt])
        acker.step(0.0)

    def held_bytes() -> int:
        """Of what the acker has called for, and not what else goes on in this process."""
        gc.collect()
        called = tracemalloc.Filter(True, process.__file__, all_frames=True)
        held = tracemalloc.take_snapshot().filter_traces([called]).traces
        return sum(trace.size for trace in held)

    for number in range(10):
        one_window(number)
    tracemalloc.start(12)
    one_window(10)
    before = held_bytes()
    for number in range(11, 111):
        one_window(number)
    grown_bytes = held_bytes() - before
    tracemalloc.stop()
    # It hears that a window is over when the next one begins.
    assert acker.machine.attempts == (window(110, 300).attempt,)
    # A fraction of 100 arrays of 300 roots; the interpreter's own free lists take some.
    assert grown_bytes < 50_000 < 100 * 300 * 8
    left = {key.decode().rpartition(":")[2] for key in client.keys(f"mr:{{{uid}}}:*")}
    assert left == {"ctl", "execution"}
    assert client.xlen(log.control_key) < 500
