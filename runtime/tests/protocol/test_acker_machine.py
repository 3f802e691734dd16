"""The acker's decisions: XOR algebra with sabotage, losers, membership, restarts, any order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.ids import TRACKING_PARTITIONS, edge_id, name_id, root_id, tracking_id, tuple_id
from millrace.protocol import acker, codec
from millrace.protocol.acklog import (
    MOST_SLICES,
    ControlEntry,
    ForgetAttempt,
    Open,
    SliceOwners,
    check_partition,
    consumer_of,
    edge_name,
    local_index,
    partition_of,
    roots_of,
    sequences,
    source_edge,
)
from millrace.protocol.types import (
    AttemptId,
    CloseMarker,
    FailedRoot,
    Intent,
    Replay,
    RootRange,
    TaskId,
    Verdict,
)
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage, enclosed, read_enclosed

LINES = source_edge("lines")
SPLIT, AUDIT, WORDS = (
    edge_name("lines", "split"),
    edge_name("lines", "audit"),
    edge_name("split", "counts"),
)
TOTALS = edge_name("counts", "out")
EDGES = (LINES, SPLIT, AUDIT, WORDS, TOTALS)


# --- a window's history, event by event


@dataclass(frozen=True)
class Event:
    """One tuple emitted or processed by one task, or (root -1) something of the window's tree."""

    task: TaskId
    edge: str
    root: int
    value: int


@dataclass
class History:
    """What the tasks of one window attempt did, and who won."""

    attempt: AttemptId
    intent: Intent
    events: list[Event]
    winners: list[TaskId]
    losers: list[Event] = field(default_factory=list)
    excluded: frozenset[int] = frozenset()
    slices: int = TRACKING_PARTITIONS
    enclosed: frozenset[TaskId] = frozenset()
    """Winners whose messages the close marker has, and no stream."""

    def opened(self) -> Open:
        return Open(self.attempt, self.intent.roots, EDGES, self.slices)

    def messages(self) -> list[PlainMessage]:
        found: dict[tuple[TaskId, int], PlainMessage] = {}
        window = self.attempt.window
        home = check_partition(window, self.slices)
        for task in self.winners:
            found[task, home] = PlainMessage(self.attempt, task, home, defaultdict(dict), {})
        for event in [*self.events, *self.losers]:
            partition = home if event.root < 0 else partition_of(window, event.root, self.slices)
            key = (event.task, partition)
            if key not in found:
                found[key] = PlainMessage(
                    self.attempt, event.task, partition, defaultdict(dict), {}
                )
            nets = found[key].window_checks if event.root < 0 else found[key].nets[event.edge]
            at = event.edge if event.root < 0 else event.root
            nets[at] = nets.get(at, 0) ^ event.value  # type: ignore[index, call-overload]
        return list(found.values())

    def marker(self) -> CloseMarker:
        wrote: dict[TaskId, list[int]] = {task: [] for task in self.winners}
        for message in self.messages():
            if message.task in wrote:
                wrote[message.task].append(message.partition)
        winners = tuple((task, tuple(parts)) for task, parts in wrote.items())
        acks = tuple(
            (message.partition, enclosed(message))
            for message in self.messages()
            if message.task in self.enclosed
        )
        read = ((0, self.intent.roots),)
        return CloseMarker(self.attempt, self.intent, self.excluded, winners, read, acks=acks)

    def written(self) -> list[PlainMessage]:
        """The messages that are in no marker."""
        return [message for message in self.messages() if message.task not in self.enclosed]

    def enclosing(self, rng: random.Random) -> History:
        """The same, but that the marker has the messages of some winners, of all, or of none."""
        share = rng.choice((0.0, 0.5, 1.0))
        return enclosing(self, [task for task in self.winners if rng.random() < share])


def enclosing(what: History, tasks: Iterable[TaskId] | None = None) -> History:
    """With the messages of these winners in the marker, of all where none is named."""
    return replace(what, enclosed=frozenset(what.winners if tasks is None else tasks))


def history(seed: int, roots: int, tasks: int = 3, window: int = 5) -> History:
    """A faultless run: lines are split and audited, words counted, totals sent to a sink."""
    rng = random.Random(seed)
    attempt = AttemptId(2, window, 1)
    replays = tuple(Replay("lines", 9, 1000 + i, i + 1, 0.0) for i in range(min(roots, 2)))
    first = (roots - len(replays)) // 2
    ranges = (
        RootRange("lines", 3, 40, first),
        RootRange("lines", 4, 0, roots - len(replays) - first),
    )
    intent = Intent(window, ranges, replays)
    assert intent.roots == roots
    seeds = [
        tracking_id(root_id(name_id("lines"), p.partition, p.start + i), 0)
        for p in ranges
        for i in range(p.count)
    ] + [tracking_id(root_id(name_id("lines"), r.partition, r.offset), r.number) for r in replays]
    events = []
    maps = [TaskId(0, p, 10 + p) for p in range(tasks)]
    reduces = [TaskId(1, p, 20 + p) for p in range(tasks)]
    for root, seed_id in enumerate(seeds):
        reader = rng.choice(maps)
        events.append(Event(reader, LINES, root, seed_id))
        for edge, consumer in ((SPLIT, "split"), (AUDIT, "audit")):
            child = tuple_id(seed_id, 0, edge_id("lines", consumer))
            events += [Event(reader, edge, root, child)] * 2
            for ordinal in range(rng.randrange(3) if edge == SPLIT else 0):
                word = tuple_id(child, ordinal, edge_id("split", "counts"))
                events.append(Event(reader, WORDS, root, word))
                events.append(Event(rng.choice(reduces), WORDS, root, word))
    for reduce in reduces:
        total = rng.getrandbits(64)
        events += [Event(reduce, TOTALS, -1, total), Event(reduces[0], TOTALS, -1, total)]
    return History(attempt, intent, events, maps + reduces)


# --- a log in memory and ackers that read it in whatever order a random source says


@dataclass
class Log:
    control: list[ControlEntry] = field(default_factory=list)
    slices: dict[tuple[AttemptId, int], list[PlainMessage]] = field(
        default_factory=lambda: defaultdict(list)
    )
    answers: list[Verdict] = field(default_factory=list)

    def append(self, message: PlainMessage) -> None:
        self.slices[message.attempt, message.partition].append(message)


class Acker:
    """Drives one machine over a log, one step at a time."""

    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log
        self.restart()

    def restart(self) -> None:
        self.machine = acker.AckerMachine[PlainMessage](self.name, PlainFold, read_enclosed)
        self.control_at = 0
        self.at: dict[tuple[AttemptId, int], int] = {}
        self.pending: list[acker.AckerAction] = []

    def step(self, rng: random.Random) -> bool:
        """Do one thing; False when there is nothing to do."""
        unread = [k for k, at in self.at.items() if at < len(self.log.slices[k])]
        choices = ["act"] * bool(self.pending)
        choices += ["control"] * (self.control_at < len(self.log.control))
        choices += ["read"] * bool(unread)
        if not choices:
            return False
        match rng.choice(choices):
            case "act":
                self._act(self.pending.pop(0))
            case "control":
                self.control_at += 1
                self.pending += self.machine.control(self.log.control[self.control_at - 1])
            case "read":
                self._read(rng.choice(unread))
        return True

    def _read(self, key: tuple[AttemptId, int]) -> None:
        at = self.at[key]
        self.at[key] = at + 1
        self.machine.message(key[1], str(at), self.log.slices[key][at])

    def _act(self, action: acker.AckerAction) -> None:
        if isinstance(action, acker.Answer):
            self.log.answers.append(action.verdict)
            return
        key = (action.id, action.partition)
        if isinstance(action, acker.Follow):
            self.at[key] = 0
        elif isinstance(action, acker.Unfollow):
            self.at.pop(key, None)
        elif isinstance(action, acker.Drain):
            while key in self.at and self.at[key] < len(self.log.slices[key]):
                self._read(key)
            self.pending += self.machine.drained(*key)
        else:
            messages = [self.log.slices[key][int(entry)] for entry in action.entries]
            self.pending += self.machine.reread(*key, messages)


def settle(rng: random.Random, *ackers: Acker) -> None:
    while any(one.step(rng) for one in rng.sample(ackers, len(ackers))):
        pass


def judge(what: History, rng: random.Random, log: Log | None = None) -> Verdict:
    """The verdict of a single acker that reads everything, in an order that ``rng`` says."""
    log, what = log or Log(), what.enclosing(rng)
    one = Acker("a", log)
    log.control += [SliceOwners.of(2, ["a"], {what.attempt: what.slices}), what.opened()]
    messages = what.written()
    rng.shuffle(messages)
    for message in messages:
        log.append(message)
        if rng.random() < 0.5:
            one.step(rng)
    log.control.append(what.marker())
    settle(rng, one)
    verdict = acker.merge_verdicts(log.answers, what.slices)
    assert verdict is not None
    return verdict


def rngs() -> st.SearchStrategy[random.Random]:
    return st.integers(0, 1 << 32).map(random.Random)


ROOTS = st.sampled_from([0, 1, 2, 5, 255, 300])


@given(st.integers(0, 99), ROOTS, rngs())
@settings(deadline=None, max_examples=60)
def test_a_faultless_window_is_complete(seed: int, roots: int, rng: random.Random) -> None:
    verdict = judge(history(seed, roots), rng)
    assert verdict == Verdict(
        AttemptId(2, 5, 1), tuple(range(TRACKING_PARTITIONS)), roots, (), True
    )


def test_roots_span_every_slice() -> None:
    roots = 256 * TRACKING_PARTITIONS + 100
    verdict = judge(history(1, roots), random.Random(1))
    assert (verdict.complete, verdict.incomplete, verdict.window_complete) == (roots, (), True)


@given(st.integers(0, 99), st.integers(1, 300), st.data(), rngs())
@settings(deadline=None, max_examples=150)
def test_any_sabotaged_tuple_is_noticed(
    seed: int, roots: int, data: st.DataObject, rng: random.Random
) -> None:
    """Lost, doubled, altered, credited to another root or edge: exactly its roots break."""
    what = history(seed, roots)
    tuples = [i for i, event in enumerate(what.events) if event.root >= 0]
    at = data.draw(st.sampled_from(tuples), label="event")
    event = what.events[at]
    kind = data.draw(st.sampled_from(["lost", "doubled", "altered", "root", "edge"]), label="kind")
    hurt, blamed = {event.root}, event.edge
    if kind == "lost":
        what.events.pop(at)
    elif kind == "doubled":
        what.events.append(event)
    elif kind == "altered":
        flip = 1 << data.draw(st.integers(0, 63))
        what.events[at] = replace(event, value=event.value ^ flip)
    elif kind == "root":
        other = data.draw(st.integers(0, roots - 1))
        what.events[at] = replace(event, root=other)
        hurt = {event.root, other} if other != event.root else set()
    else:
        other_edge = data.draw(st.sampled_from(EDGES))
        what.events[at] = replace(event, edge=other_edge)
        blamed = min(event.edge, other_edge, key=EDGES.index)
        hurt = {event.root} if other_edge != event.edge else set()
    verdict = judge(what, rng)
    assert {root.sequence for root in verdict.incomplete} == hurt
    assert {root.processor for root in verdict.incomplete} <= {consumer_of(blamed)}
    assert verdict.complete == roots - len(hurt)
    assert verdict.window_complete


@given(st.integers(0, 99), st.data(), rngs())
@settings(deadline=None, max_examples=40)
def test_the_windows_own_tree_is_judged(seed: int, data: st.DataObject, rng: random.Random) -> None:
    what = history(seed, 5)
    combined = [i for i, event in enumerate(what.events) if event.root < 0]
    # The last task processes its own total, so one of its two events alone is a loss too.
    what.events.pop(data.draw(st.sampled_from(combined)))
    verdict = judge(what, rng)
    assert not verdict.window_complete
    assert verdict.complete == 5


def test_a_combined_tuple_on_the_wrong_edge_is_noticed() -> None:
    what = history(3, 5)
    at = next(i for i, event in enumerate(what.events) if event.root < 0)
    what.events[at] = replace(what.events[at], edge=WORDS)
    assert not judge(what, random.Random(0)).window_complete


@given(st.integers(0, 99), st.integers(1, 300), st.integers(0, 3), rngs())
@settings(deadline=None, max_examples=60)
def test_losers_and_repeats_change_nothing(
    seed: int, roots: int, repeats: int, rng: random.Random
) -> None:
    what = history(seed, roots)
    loser = TaskId(0, 1, 99)
    what.losers = [
        replace(event, task=loser, value=rng.getrandbits(64))
        for event in what.events
        if event.task.pass_no == 0 and rng.random() < 0.5
    ]
    log = Log()
    for _ in range(repeats):
        log.append(rng.choice(what.messages()))
    verdict = judge(what, rng, log)
    assert (verdict.complete, verdict.incomplete, verdict.window_complete) == (roots, (), True)


@given(st.integers(0, 99), st.integers(1, 300), rngs(), rngs())
@settings(deadline=None, max_examples=60)
def test_the_verdict_is_a_function_of_the_log(
    seed: int, roots: int, one: random.Random, other: random.Random
) -> None:
    """Whatever the order of reading, also with faults and losers: the same verdict."""
    what = history(seed, roots)
    rng = random.Random(seed)
    what.events = [event for event in what.events if rng.random() < 0.95]
    what.losers = [replace(e, task=TaskId(1, 0, 77)) for e in what.events if rng.random() < 0.1]
    assert judge(what, one) == judge(what, other)


@given(st.integers(0, 99), st.integers(1, 300), st.data(), rngs())
@settings(deadline=None, max_examples=60)
def test_a_lost_message_blames_nobody(
    seed: int, roots: int, data: st.DataObject, rng: random.Random
) -> None:
    what = history(seed, roots)
    log = Log()
    one = Acker("a", log)
    messages = what.messages()
    lost = messages.pop(data.draw(st.integers(0, len(messages) - 1)))
    for message in messages:
        log.append(message)
    log.control += [SliceOwners.of(2, ["a"]), what.opened(), what.marker()]
    settle(rng, one)
    verdict = acker.merge_verdicts(log.answers, TRACKING_PARTITIONS)
    assert verdict is not None
    assert not verdict.window_complete
    assert verdict.incomplete == ()
    assert verdict.complete == roots - roots_of(5, lost.partition, roots, TRACKING_PARTITIONS)


def test_a_message_that_does_not_fit_counts_as_lost() -> None:
    what = history(1, 5)
    what.events.append(Event(what.winners[0], "lines>nobody", 0, 7))
    verdict = judge(what, random.Random(1))
    assert not verdict.window_complete
    assert verdict.incomplete == ()


@given(st.integers(0, 99), st.integers(1, 300), st.sets(st.integers(0, 299)), rngs())
@settings(deadline=None, max_examples=60)
def test_excluded_roots_are_not_judged(
    seed: int, roots: int, excluded: set[int], rng: random.Random
) -> None:
    what = history(seed, roots)
    what.excluded = frozenset(root for root in excluded if root < roots)
    what.events = [
        event for event in what.events if event.root not in what.excluded or rng.random() < 0.5
    ]
    verdict = judge(what, rng)
    assert verdict.complete == roots - len(what.excluded)
    assert verdict.incomplete == ()


def test_a_root_that_nobody_read_breaks_at_its_source() -> None:
    what = history(4, 6)
    what.events = [event for event in what.events if event.root != 3]
    verdict = judge(what, random.Random(0))
    (broken,) = verdict.incomplete
    assert (broken.sequence, broken.processor) == (3, "lines")
    assert "not read once from source 'lines'" in broken.error


# --- several ackers, changes, crashes


@given(st.integers(0, 99), st.sampled_from([1, 300, 900]), st.sampled_from([16, 18, 20]), rngs())
@settings(max_examples=60, deadline=None)
def test_changes_and_crashes_give_the_same_verdict(
    seed: int, roots: int, slices: int, rng: random.Random
) -> None:
    """Ackers come and go, crash and are doubled, in the middle of a window."""
    what = replace(history(seed, roots), slices=slices)
    keep = random.Random(seed)
    what.events = [event for event in what.events if keep.random() < 0.99]
    what.losers = [replace(e, task=TaskId(1, 0, 77)) for e in what.events if keep.random() < 0.1]
    expected = judge(what, random.Random(0))
    log, what = Log(), what.enclosing(rng)
    names = ["a", "b", "c"]
    ackers = [Acker(name, log) for name in [*names, "a"]]
    live = {what.attempt: slices}
    log.control += [(members := SliceOwners.of(2, names[:1], live)), what.opened()]
    todo: list[PlainMessage | CloseMarker] = [*what.written()]
    rng.shuffle(todo)
    todo.append(what.marker())
    while todo:
        match rng.randrange(10):
            case 0:
                alive = rng.sample(names, rng.randint(1, 3))
                members = SliceOwners.of(2, alive, live, members)
                log.control.append(members)
            case 1:
                rng.choice(ackers).restart()
            case 2 | 3:
                entry = todo.pop(0)
                if isinstance(entry, CloseMarker):
                    log.control.append(entry)
                else:
                    log.append(entry)
            case _:
                rng.choice(ackers).step(rng)
    settle(rng, *ackers)
    if rng.random() < 0.5:
        log.control.append(SliceOwners.of(2, names[1:], live, members))
        settle(rng, *ackers)
    assert acker.merge_verdicts(log.answers, slices) == expected
    by_slice: dict[tuple[int, ...], Verdict] = {}
    for answer in log.answers:
        assert by_slice.setdefault(answer.partitions, answer) == answer


def test_roots_that_are_not_complete_are_named_in_order_whoever_answers_first() -> None:
    def answer(slice_: int, *sequences: int) -> Verdict:
        broken = tuple(FailedRoot(sequence, "split", "lost") for sequence in sequences)
        return Verdict(AttemptId(2, 5, 1), (slice_,), 10, broken, True)

    found = acker.merge_verdicts([answer(1, 256, 300), answer(0, 7, 520)], 2)
    assert found is not None
    assert [root.sequence for root in found.incomplete] == [7, 256, 300, 520]


def test_an_acker_without_a_share_answers_nothing() -> None:
    log = Log()
    one = Acker("b", log)
    what = history(1, 5)
    log.control += [SliceOwners.of(2, ["a"]), what.opened(), what.marker()]
    settle(random.Random(0), one)
    assert log.answers == []
    assert one.machine.owned(TRACKING_PARTITIONS) == frozenset()
    assert one.machine.slices_owned == 0


def test_how_many_slices_an_acker_owns_is_of_attempts_that_open_now() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    assert machine.slices_owned == 0
    owners = SliceOwners.of(2, ["a"])
    machine.control(owners)
    opened = history(1, 300).opened()
    machine.control(opened)
    assert machine.slices_owned == TRACKING_PARTITIONS
    three = SliceOwners.of(2, ["a", "b", "c"], {opened.id: opened.slices}, owners)
    assert three.others
    machine.control(three)
    assert machine.slices_owned == three.slices // 3


@pytest.mark.parametrize("what", [history(3, 300), enclosing(history(3, 300))])
def test_who_takes_over_after_the_close_answers_for_all(what: History) -> None:
    """With what is in the log, and with what the marker encloses."""
    log = Log()
    heir = Acker("b", log)
    log.control += [SliceOwners.of(2, ["a"]), what.opened(), what.marker()]
    for message in what.written():
        log.append(message)
    settle(random.Random(0), heir)
    assert log.answers == []
    log.control.append(SliceOwners.of(2, ["b"], {what.attempt: what.slices}))
    settle(random.Random(0), heir)
    verdict = acker.merge_verdicts(log.answers, TRACKING_PARTITIONS)
    assert verdict is not None
    assert (verdict.complete, verdict.window_complete) == (300, True)


def test_what_is_not_held_has_no_phase_and_takes_no_message() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    what = history(1, 5)
    assert machine.reading(what.attempt, 0) is None
    for message in what.messages():
        machine.message(message.partition, "1", message)
    assert machine.control(SliceOwners.of(0, ["a"])) == []
    assert machine.owned(TRACKING_PARTITIONS) == frozenset(range(TRACKING_PARTITIONS)), (
        "execution 0 is not too old"
    )


def test_a_slice_without_roots_is_followed_only_for_the_windows_own_tree() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    opened = history(1, 5).opened()
    machine.control(opened)
    followed = machine.control(SliceOwners.of(2, ["a"], {opened.id: opened.slices}))
    assert followed == [
        acker.Follow(opened.id, check_partition(opened.id.window, TRACKING_PARTITIONS))
    ]


def holding(what: History, *messages: PlainMessage) -> tuple[acker.AckerMachine[PlainMessage], int]:
    """A machine that has been handed these messages of a small window."""
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    machine.control(SliceOwners.of(2, ["a"]))
    machine.control(what.opened())
    for number, message in enumerate(messages):
        machine.message(home, str(number), message)
    return machine, home


def closed(what: History, *messages: PlainMessage) -> tuple[acker.AckerMachine[PlainMessage], int]:
    """The same, and its close marker."""
    machine, home = holding(what, *messages)
    machine.control(what.marker())
    return machine, home


def lost(what: History) -> list[acker.AckerAction]:
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    verdict = Verdict(what.attempt, (home,), 0, (), False)
    return [acker.Unfollow(what.attempt, home), acker.Answer(verdict)]


LOSER = TaskId(0, 0, 99)


def closing(
    machine: acker.AckerMachine[PlainMessage], marker: CloseMarker
) -> list[acker.AckerAction]:
    """What comes of a close marker for the slice that has all roots."""
    home = check_partition(marker.id.window, TRACKING_PARTITIONS)
    return [
        one
        for one in machine.control(marker)
        if (one.verdict.partitions if isinstance(one, acker.Answer) else (one.partition,))
        == (home,)
    ]


def verdict_of(actions: Sequence[acker.AckerAction]) -> Verdict:
    (_, answer) = actions
    assert isinstance(answer, acker.Answer)
    return answer.verdict


def test_what_the_close_marker_encloses_is_judged_at_once() -> None:
    what = enclosing(history(1, 5))
    machine, _ = holding(what)
    verdict = verdict_of(closing(machine, what.marker()))
    assert (verdict.complete, verdict.incomplete, verdict.window_complete) == (5, (), True)


def test_a_root_that_broke_is_found_in_what_the_marker_encloses() -> None:
    what = enclosing(history(1, 5))
    what.events = [event for event in what.events if event.edge != LINES or event.root != 3]
    machine, home = holding(what)
    assert closing(machine, what.marker()) == [acker.Reread(what.attempt, home, ())]
    verdict = verdict_of(machine.reread(what.attempt, home, ()))
    assert [(root.sequence, root.processor) for root in verdict.incomplete] == [(3, "lines")]


def test_what_was_read_of_a_slice_counts_no_more_where_the_marker_encloses_all() -> None:
    """A loser's message, one that makes no sense, and a winner's own: which of them has been read
    by now is chance, and the answer must not depend on it."""
    what = enclosing(history(1, 5))
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    loser = PlainMessage(what.attempt, LOSER, home, {LINES: {0: 7}})
    senseless = replace(what.messages()[0], nets={"lines>nobody": {0: 1}})
    for read in ([loser], [senseless], [loser, *what.messages()]):
        machine, _ = holding(what, *read)
        verdict = verdict_of(closing(machine, what.marker()))
        assert (verdict.complete, verdict.window_complete) == (5, True)


def test_what_the_marker_does_not_enclose_is_still_read() -> None:
    whole = history(1, 5)
    what = enclosing(whole, whole.winners[:2])
    machine, home = holding(what)
    assert closing(machine, what.marker()) == [acker.Drain(what.attempt, home)]
    for number, message in enumerate(what.written()):
        machine.message(home, str(number), message)
    assert verdict_of(machine.drained(what.attempt, home)).complete == 5


def test_what_is_enclosed_counts_though_something_senseless_came_in_its_place() -> None:
    """Whether it was read before the close or is read behind it."""
    whole = history(1, 5)
    what = enclosing(whole, whole.winners[:2])
    senseless = replace(what.messages()[0], nets={"lines>nobody": {0: 1}})
    for before, behind in (([senseless], []), ([], [senseless])):
        machine, home = holding(what, *before)
        machine.control(what.marker())
        for number, message in enumerate([*behind, *what.written()]):
            machine.message(home, str(number), message)
        assert verdict_of(machine.drained(what.attempt, home)).complete == 5


def test_a_message_that_is_enclosed_and_in_the_log_counts_once() -> None:
    whole = history(1, 5)
    what = enclosing(whole, whole.winners[:2])
    for before in ([], what.messages()):
        machine, home = holding(what, *before)
        closing(machine, what.marker())
        for number, message in enumerate(what.messages()):
            machine.message(home, str(number), message)
        verdict = verdict_of(machine.drained(what.attempt, home))
        assert (verdict.complete, verdict.window_complete) == (5, True)


def changed(text: str, **changes: object) -> str:
    message = read_enclosed(text)
    assert message is not None
    return enclosed(replace(message, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-9],
        lambda text: "",
        lambda text: changed(text, attempt=AttemptId(2, 5, 2)),
        lambda text: changed(text, partition=9),
        lambda text: changed(text, task=LOSER),
        lambda text: changed(text, nets={"lines>nobody": {0: 1}}),
    ],
)
def test_an_enclosed_message_that_is_none_of_its_winners_blames_no_root(
    spoil: Callable[[str], str],
) -> None:
    what = enclosing(history(1, 5))
    machine, home = holding(what)
    marker = what.marker()
    (slice_, text), *rest = marker.acks
    actions = closing(machine, replace(marker, acks=((slice_, spoil(text)), *rest)))
    if actions == [acker.Drain(what.attempt, home)]:
        actions = machine.drained(what.attempt, home)
    assert actions == lost(what)


def test_a_task_that_lost_is_not_heard_though_the_marker_encloses_it() -> None:
    what = enclosing(history(1, 5))
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    loser = PlainMessage(what.attempt, LOSER, home, {LINES: {0: 7}})
    marker = what.marker()
    machine, _ = holding(what)
    both = replace(marker, acks=((home, enclosed(loser)), *marker.acks))
    assert verdict_of(closing(machine, both)).complete == 5


def test_steps_that_nobody_waits_for_change_nothing() -> None:
    what = history(1, 5)
    machine, home = closed(what, *what.messages())
    other = replace(what.attempt, attempt=9)
    for attempt, partition in ((other, home), (what.attempt, home + 1)):
        assert machine.drained(attempt, partition) == []
        assert machine.reread(attempt, partition, what.messages()) == []
    assert machine.reread(what.attempt, home, what.messages()) == [], "it is being drained"
    assert machine.reading(what.attempt, home) is acker.Reading.DRAINING
    (_, answer) = machine.drained(what.attempt, home)
    assert isinstance(answer, acker.Answer)
    assert (answer.verdict.complete, answer.verdict.window_complete) == (5, True)
    assert machine.drained(what.attempt, home) == []


def test_a_losers_message_that_is_gone_from_the_log_loses_the_verdict() -> None:
    what = history(1, 5)
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    loser = PlainMessage(what.attempt, LOSER, home, {LINES: {0: 7}})
    machine, _ = closed(what, loser, *what.messages())
    assert machine.drained(what.attempt, home) == [acker.Reread(what.attempt, home, ("0",))]
    machine.message(home, "7", PlainMessage(what.attempt, LOSER, home, {LINES: {1: 7}}))
    assert machine.reread(what.attempt, home, [None]) == lost(what)


def test_a_winners_message_that_is_gone_from_the_log_loses_the_verdict() -> None:
    """It was folded, but where the tree broke cannot be told without it."""
    what = history(1, 5)
    what.events = [event for event in what.events if event.edge != LINES or event.root != 3]
    machine, home = closed(what, *what.messages())
    (again,) = machine.drained(what.attempt, home)
    assert isinstance(again, acker.Reread)
    assert machine.reading(what.attempt, home) is acker.Reading.LOCATING
    late = replace(what.messages()[0], task=LOSER)
    machine.message(home, "9", late)
    assert machine.reread(what.attempt, home, [None]) == lost(what)


def test_a_message_on_the_stream_of_another_slice_is_passed_over() -> None:
    what = history(1, 5)
    messages = what.messages()
    astray = replace(messages[0], partition=messages[0].partition + 1, nets={LINES: {0: 7}})
    machine, home = closed(what, astray, *messages)
    (_, answer) = machine.drained(what.attempt, home)
    assert isinstance(answer, acker.Answer)
    assert answer.verdict.complete == 5


def test_nothing_is_folded_any_more_while_losers_are_undone() -> None:
    """Not even from a winner that has nothing to say here, by its own word."""
    what = history(1, 5)
    home = check_partition(what.attempt.window, TRACKING_PARTITIONS)
    silent = TaskId(2, 0, 1)
    loser = PlainMessage(what.attempt, LOSER, home, {LINES: {0: 7}})
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    machine.control(what.opened())
    for number, message in enumerate((loser, *what.messages())):
        machine.message(home, str(number), message)
    marker = what.marker()
    machine.control(replace(marker, winners=(*marker.winners, (silent, ()))))
    assert machine.drained(what.attempt, home) == [acker.Reread(what.attempt, home, ("0",))]
    machine.message(home, "9", PlainMessage(what.attempt, silent, home, {LINES: {1: 7}}))
    (_, answer) = machine.reread(what.attempt, home, [loser])
    assert isinstance(answer, acker.Answer)
    assert (answer.verdict.complete, answer.verdict.window_complete) == (5, True)


def test_a_window_without_roots_is_judged_by_its_own_tree() -> None:
    """A final window has nothing else."""
    what = history(1, 0)
    assert judge(what, random.Random(0)).window_complete
    what.events = what.events[:-1]
    assert not judge(what, random.Random(0)).window_complete


def test_a_task_whose_first_message_made_no_sense_is_not_believed_later() -> None:
    what = history(1, 5)
    messages = what.messages()
    senseless = replace(messages[0], nets={"lines>nobody": {0: 1}})
    machine, home = closed(what, senseless, *messages)
    assert machine.drained(what.attempt, home) == lost(what)


def test_who_loses_a_slice_stops_reading_it() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    opened = history(1, 300).opened()
    slices = [check_partition(5, TRACKING_PARTITIONS), check_partition(5, TRACKING_PARTITIONS) + 1]
    assert machine.control(opened) == [acker.Follow(opened.id, p) for p in slices]
    gone = machine.control(SliceOwners.of(2, ["b"], {opened.id: opened.slices}))
    assert gone == [acker.Unfollow(opened.id, p) for p in slices]
    assert machine.owned(TRACKING_PARTITIONS) == frozenset()
    assert machine.drained(opened.id, slices[0]) == []


def test_a_winner_that_was_refused_where_none_was_expected_counts_as_lost() -> None:
    what = history(1, 300)
    log = Log()
    one = Acker("a", log)
    for message in what.messages():
        log.append(message)
    elsewhere = next(
        p for p in range(TRACKING_PARTITIONS) if roots_of(5, p, 300, TRACKING_PARTITIONS) == 44
    )
    marker = what.marker()
    task = marker.winners[0][0]
    unlisted = tuple((t, tuple(p for p in parts if p != elsewhere)) for t, parts in marker.winners)
    log.slices[what.attempt, elsewhere][:0] = [
        PlainMessage(what.attempt, task, elsewhere, {"lines>nobody": {256: 1}})
    ]
    log.control += [SliceOwners.of(2, ["a"]), what.opened(), replace(marker, winners=unlisted)]
    settle(random.Random(0), one)
    verdict = acker.merge_verdicts(log.answers, TRACKING_PARTITIONS)
    assert verdict is not None
    assert not verdict.window_complete


def test_only_slices_with_roots_are_followed() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    opened = history(1, 100).opened()
    assert machine.control(opened) == [
        acker.Follow(opened.id, check_partition(5, TRACKING_PARTITIONS))
    ]
    assert (
        machine.reading(opened.id, check_partition(5, TRACKING_PARTITIONS))
        is acker.Reading.FOLLOWING
    )
    assert machine.reading(opened.id, check_partition(6, TRACKING_PARTITIONS)) is None


def test_forget_lets_go() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    opened = history(1, 100).opened()
    machine.control(opened)
    assert machine.control(opened) == []
    gone = [acker.Unfollow(opened.id, check_partition(5, TRACKING_PARTITIONS))]
    assert machine.control(ForgetAttempt(opened.id)) == gone
    assert machine.control(ForgetAttempt(opened.id)) == []
    assert machine.attempts == ()


def test_members_name_what_is_alive() -> None:
    """What was trimmed out of the control stream unseen is forgotten all the same."""
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    old, new = history(1, 9).opened(), replace(history(1, 9).opened(), id=AttemptId(2, 6, 1))
    machine.control(old)
    machine.control(new)
    machine.control(SliceOwners.of(2, ["a"], live={new.id: new.slices}))
    assert machine.attempts == (new.id,)


def test_a_new_execution_ends_the_older_ones_attempts() -> None:
    machine = acker.AckerMachine[PlainMessage]("a", PlainFold, read_enclosed)
    machine.control(SliceOwners.of(2, ["a"]))
    old = history(1, 9).opened()
    machine.control(old)
    machine.control(SliceOwners.of(3, ["a"], live={old.id: old.slices}))
    assert machine.attempts == ()
    # What the fenced driver still appends is not listened to.
    assert machine.control(old) == []
    assert machine.control(SliceOwners.of(2, ["b"])) == []
    assert len(machine.owned(TRACKING_PARTITIONS)) == TRACKING_PARTITIONS


def test_a_second_close_and_late_messages_change_nothing() -> None:
    what = history(2, 5)
    log = Log()
    one = Acker("a", log)
    log.control += [SliceOwners.of(2, ["a"]), what.opened()]
    for message in what.messages():
        log.append(message)
    other = replace(what.marker(), winners=())
    log.control += [what.marker(), other]
    settle(random.Random(3), one)
    for message in what.messages():
        log.append(message)
    settle(random.Random(3), one)
    verdict = acker.merge_verdicts(log.answers, TRACKING_PARTITIONS)
    assert verdict is not None
    assert (verdict.complete, verdict.window_complete) == (5, True)
    assert len(log.answers) == TRACKING_PARTITIONS


# --- numbers and values


@given(st.integers(0, 40), st.integers(0, 9000), st.integers(1, 64))
@settings(deadline=None, max_examples=40)
def test_slices_partition_the_roots(window: int, roots: int, slices: int) -> None:
    seen = []
    busy = []
    for partition in range(slices):
        mine = list(sequences(window, partition, roots, slices))
        assert [partition_of(window, s, slices) for s in mine] == [partition] * len(mine)
        assert [local_index(window, partition, s, slices) for s in mine] == list(range(len(mine)))
        assert roots_of(window, partition, roots, slices) == len(mine)
        if mine or partition == check_partition(window, slices):
            busy.append(partition)
        seen += mine
    assert sorted(seen) == list(range(roots))
    assert Open(AttemptId(1, window, 1), roots, EDGES, slices).partitions() == busy


@pytest.mark.parametrize(
    "entry",
    [
        Open(AttemptId(1, 2, 3), 10, EDGES),
        Open(AttemptId(1, 2, 3), 10, EDGES, 18),
        SliceOwners.of(4, ["a", "b"], {AttemptId(4, 2, 3): 20}),
        ForgetAttempt(AttemptId(1, 2, 3)),
        history(1, 5).marker(),
    ],
)
def test_control_entries_survive_json(entry: ControlEntry) -> None:
    assert codec.decode(type(entry), codec.encode(entry)) == entry


def moved(before: SliceOwners, after: SliceOwners, slices: int) -> int:
    one, other = before.table(slices), after.table(slices)
    assert one is not None
    assert other is not None
    return sum(x != y for x, y in zip(one, other, strict=True))


def test_a_change_of_members_moves_few_slices_of_what_is_open() -> None:
    open_ = {AttemptId(1, 1, 1): 16}
    before = SliceOwners.of(1, ["a", "b"], open_)
    after = SliceOwners.of(1, ["a", "b", "c"], open_, before)
    assert moved(before, after, 16) == 16 // 3
    open_ = {AttemptId(1, 1, 1): 20}
    five = SliceOwners.of(1, [f"acker-{n}" for n in range(5)], open_)
    six = SliceOwners.of(1, [f"acker-{n}" for n in range(6)], open_, five)
    assert moved(five, six, 20) == 3


@pytest.mark.parametrize("ackers", range(1, 65))
def test_what_opens_is_shared_evenly_by_any_number_of_ackers(ackers: int) -> None:
    names = [f"acker-{n}" for n in range(ackers)]
    placed = SliceOwners.of(1, names, {AttemptId(1, 1, 1): 16})
    assert TRACKING_PARTITIONS <= placed.slices <= MOST_SLICES
    assert set(Counter(placed.owners).values()) == {placed.slices // ackers}
    # Striped: that many slices in a row, and the blocks in them, are on different ackers.
    assert placed.owners[:ackers] * (placed.slices // ackers) == placed.owners
    assert len(placed.table(16) or ()) == 16


def test_owners_of_what_nobody_has_open_any_more_are_not_told() -> None:
    open_ = {AttemptId(1, 1, 1): 16, AttemptId(1, 2, 1): 20}
    placed = SliceOwners.of(1, ["a", "b", "c"], open_)
    assert [len(table) for table in (placed.owners, *placed.others)] == [6, 3, 16, 20]
    again = placed.renewed({AttemptId(1, 2, 1): 20})
    assert (again.owners, again.live) == (placed.owners, (AttemptId(1, 2, 1),))
    assert again.others == (placed.others[0], placed.others[2])
    assert again.table(16) is None
    # Windows of few roots open at any moment: each acker has a slice of one.
    assert (again.fewest, sorted(again.others[0])) == (3, ["a", "b", "c"])
    # What was placed for 16 slices does not bind an attempt that opens with them later.
    later = SliceOwners.of(1, ["a", "b"], {AttemptId(1, 2, 1): 20}, placed)
    assert later.owners == SliceOwners.of(1, ["a", "b"]).owners


def test_an_acker_that_comes_back_has_what_it_had() -> None:
    names = [f"acker-{n}" for n in range(6)]
    open_ = {AttemptId(1, 1, 1): 18}
    six = SliceOwners.of(1, names, open_)
    five = SliceOwners.of(1, names[1:], open_, six)
    assert moved(six, five, 18) == 3
    assert SliceOwners.of(1, names, open_, five).owners == six.owners


def test_merging_waits_for_every_slice() -> None:
    attempt = AttemptId(1, 1, 1)
    parts = [Verdict(attempt, (p,), p, (), True) for p in range(TRACKING_PARTITIONS)]
    assert acker.merge_verdicts(parts[1:], TRACKING_PARTITIONS) is None
    assert acker.merge_verdicts([], TRACKING_PARTITIONS) is None
    merged = acker.merge_verdicts([*parts, *parts], TRACKING_PARTITIONS)
    assert merged is not None
    assert merged.complete == sum(range(TRACKING_PARTITIONS))
    with pytest.raises(ProtocolError, match="different window attempts"):
        acker.merge_verdicts(
            [*parts, replace(parts[0], id=AttemptId(1, 1, 2))], TRACKING_PARTITIONS
        )
