"""What the simulated topology computes, task by task, as pure functions over a plan.

::

    source -> split -+-(by key)-> count -(by root, 3 passes only)-> totals -> sink "out"
                     +-(by key)-> side ------------------------------------> sink "side"

``count`` and ``totals`` keep, for each key, the list of all rows that ever reached it, so that
state, sink and feed can be compared exactly. With ``combined`` the tuples to ``count`` are merged
for each key before the exchange and belong to the window's own tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace import ids
from millrace.protocol.acklog import edge_name, source_edge
from millrace.protocol.types import AttemptPlan, FailedRoot, Segment
from millrace.simulate.history import Row, StateContent
from millrace.simulate.options import Options
from millrace.simulate.parts.workload import Root, RootKind, Workload, roots_of

SPLIT, COUNT, SIDE, TOTALS = "split", "count", "side", "totals"
OUT_SINK, SIDE_SINK = "out", "sideout"

SPLIT_COUNT = edge_name(SPLIT, COUNT)
SPLIT_SIDE = edge_name(SPLIT, SIDE)
COUNT_TOTALS = edge_name(COUNT, TOTALS)

REBASE_AT = 3
"""Chain length at which a task writes a base instead of a delta."""


class Item(NamedTuple):
    """One tuple on an edge; ``members`` are the rows in it (several after a combine).

    ``sequence`` is None for a tuple of the window's own tree.
    """

    sequence: int | None
    id: int
    key: str
    members: tuple[Row, ...]
    order: tuple[int, int]


@dataclass(slots=True)
class Work:
    """What one task attempt produces."""

    envelopes: dict[tuple[str, int], list[Item]] = field(default_factory=dict)
    nets: dict[str, dict[int, int]] = field(default_factory=dict)
    checks: dict[str, int] = field(default_factory=dict)
    tuples: dict[tuple[int | None, str, object], int] = field(default_factory=dict)
    failed: list[FailedRoot] = field(default_factory=list)
    combined_failures: list[tuple[str, int, str]] = field(default_factory=list)
    states: dict[str, tuple[bool, int, StateContent]] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    trees: dict[int, int] = field(default_factory=dict)
    killed: bool = False

    def net(self, edge: str, item: Item, sign: int) -> None:
        """Count an emission (+1) or a processing (-1) of a tuple on an edge."""
        if item.sequence is None:
            self.checks[edge] = self.checks.get(edge, 0) ^ item.id
        else:
            nets = self.nets.setdefault(edge, {})
            nets[item.sequence] = nets.get(item.sequence, 0) ^ item.id
        where = (item.sequence, edge, (item.key, item.order))
        self.tuples[where] = self.tuples.get(where, 0) + sign


class Ids:
    """How tuples are named; a deliberate bug replaces it."""

    def root(self, root_id: int, replay: int) -> int:
        return ids.tracking_id(root_id, replay)

    def child(self, parent: int, ordinal: int, edge: str) -> int:
        return ids.tuple_id(parent, ordinal, _edge_id(edge))

    def combined(self, plan: AttemptPlan, task: str, key: str, edge: str) -> int:
        return ids.tuple_id(ids.name_id(f"{plan.intent.window}/{task}/{key}"), 0, _edge_id(edge))


_EDGES: dict[str, int] = {}


def _edge_id(edge: str) -> int:
    if edge not in _EDGES:
        _EDGES[edge] = ids.edge_id(*edge.split(">"))
    return _EDGES[edge]


def edges(options: Options, workload: Workload) -> tuple[str, ...]:
    """All edges, sources' own first, in topological order."""
    sources = sorted({feed.source for feed in workload.feeds})
    inner = [SPLIT_COUNT]
    if options.side:
        inner.append(SPLIT_SIDE)
    if options.passes > 2:
        inner.append(COUNT_TOTALS)
    return (*(source_edge(s) for s in sources), *(edge_name(s, SPLIT) for s in sources), *inner)


def share_of(roots: int, partition: int, parts: int) -> range:
    """Even and consecutive shares of a window's sequence numbers."""
    return range(roots * partition // parts, roots * (partition + 1) // parts)


class Flow:
    """The topology; one object serves all attempts of a run."""

    def __init__(self, options: Options, workload: Workload, names: Ids) -> None:
        self._options = options
        self._workload = workload
        self._ids = names
        self._group_of = {f"k{n}": n % options.key_groups for n in range(7)}
        for n in range(4):
            self._group_of[f"t{n}"] = n % options.key_groups

    def group(self, key: str) -> int:
        return self._group_of[key]

    def partition(self, key: str) -> int:
        return self._group_of[key] % self._options.parallelism

    def share(self, roots: int, partition: int) -> range:
        """Sequence numbers that a partition of the source pass reads."""
        return share_of(roots, partition, self._options.parallelism)

    # -- pass 0

    def holes(self, plan: AttemptPlan, partition: int) -> list[int]:
        """Sequence numbers that a partition of the source pass finds no record under."""
        listed = roots_of(plan.intent)
        share = self.share(len(listed), partition)
        return [s for s in share if self._workload.is_hole(listed[s][0])]

    def source_task(
        self, plan: AttemptPlan, partition: int, salt: str, skipped: frozenset[int]
    ) -> Work:
        """Read, split, and combine where asked; ``skipped`` roots are silently not read."""
        work = Work()
        combine: dict[str, list[Row]] = {}
        listed = roots_of(plan.intent)
        for sequence in self.share(len(listed), partition):
            if sequence in plan.excluded or sequence in skipped:
                continue
            root, replay = listed[sequence]
            kind = self._workload.kinds[root]
            if kind is RootKind.HOLE:
                continue
            if kind is RootKind.UNREADABLE:
                text = f"{root} {kind.value}"
                work.failed.append(FailedRoot(sequence, root[0], text, unreadable=True))
                continue
            tracking = self._read_root(work, sequence, root, replay)
            self._split(work, plan, sequence, root, tracking, salt, combine)
            if work.killed:
                return work
        for key, rows in combine.items():
            number = self._ids.combined(plan, f"0.{partition}", key, SPLIT_COUNT)
            item = Item(None, number, key, tuple(rows), (partition, 0))
            self._emit(work, SPLIT_COUNT, item)
        return work

    def _read_root(self, work: Work, sequence: int, root: Root, replay: int) -> int:
        """A source processes the root itself and emits it to ``split``."""
        tracking = work.trees[sequence] = self._ids.root(self._workload.ids[root], replay)
        seed = source_edge(root[0])
        nets = work.nets.setdefault(seed, {})
        nets[sequence] = nets.get(sequence, 0) ^ tracking
        return tracking

    def _split(
        self,
        work: Work,
        plan: AttemptPlan,
        sequence: int,
        root: Root,
        tracking: int,
        salt: str,
        combine: dict[str, list[Row]],
    ) -> None:
        kind = self._workload.kinds[root]
        first = kind is RootKind.RAISES_ONCE and root not in self._workload.raised
        if kind is RootKind.KILLS:
            work.killed = True
        elif kind is RootKind.RAISES or first:
            self._workload.raised.add(root)
            work.failed.append(FailedRoot(sequence, SPLIT, f"{root} {kind.value}"))
        elif kind is RootKind.LASTING:
            text = f"{root} {kind.value}"
            work.failed.append(FailedRoot(sequence, SPLIT, text, lasting=True))
        if work.killed or kind in (RootKind.RAISES, RootKind.LASTING) or first:
            return
        parent = self._ids.child(tracking, 0, edge_name(root[0], SPLIT))
        keys = self._workload.keys[root]
        rows = [Row(root, n, len(keys), salt, key) for n, key in enumerate(keys)]
        for row in rows:
            if self._combines(plan, row.key):
                combine.setdefault(row.key, []).append(row)
            else:
                self._emit_row(work, SPLIT_COUNT, sequence, parent, row)
            if self._options.side:
                self._emit_row(work, SPLIT_SIDE, sequence, parent, row)

    def _emit_row(self, work: Work, edge: str, sequence: int, parent: int, row: Row) -> None:
        number = self._ids.child(parent, row.ordinal, edge)
        item = Item(sequence, number, row.key, (row,), (sequence, row.ordinal))
        self._emit(work, edge, item)

    def _combines(self, plan: AttemptPlan, key: str) -> bool:
        if not self._options.combined:
            return False
        return not plan.uncombined.get(COUNT, 0) >> self.group(key) & 1

    def _emit(self, work: Work, edge: str, item: Item) -> None:
        work.net(edge, item, 1)
        work.envelopes.setdefault((edge, self.partition(item.key)), []).append(item)

    # -- later passes

    def count(
        self, work: Work, plan: AttemptPlan, partition: int, inputs: Sequence[Item], states: States
    ) -> None:
        """Append each row to its key's list; fails on poison, on a whole key after a combine."""
        state = states.of(COUNT, partition)
        changed: dict[str, list[Row]] = {}
        for item in sorted(inputs, key=lambda one: (one.order, one.key)):
            work.net(SPLIT_COUNT, item, -1)
            self._count_item(work, plan, item, state, changed)
            if work.killed:
                return
        self._keep(work, plan, COUNT, partition, state, changed)

    def _count_item(
        self,
        work: Work,
        plan: AttemptPlan,
        item: Item,
        state: Mapping[str, tuple[Row, ...]],
        changed: dict[str, list[Row]],
    ) -> None:
        kinds = [self._workload.kinds[row.root] for row in item.members]
        if RootKind.KILLS_LATE in kinds:
            work.killed = True
            return
        bad = next((k for k in kinds if k in (RootKind.RAISES_LATE, RootKind.COMBINE)), None)
        if bad is not None and item.sequence is None:
            groups = 1 << self.group(item.key)
            work.combined_failures.append((COUNT, groups, f"{item.key} {bad.value}"))
            return
        if bad is not None and item.sequence is not None:
            work.failed.append(FailedRoot(item.sequence, COUNT, f"{item.key} {bad.value}"))
            return
        rows = changed.setdefault(item.key, list(state.get(item.key, ())))
        for n, row in enumerate(item.members):
            placed = Row(row.root, row.ordinal, row.count, row.salt, row.key, len(rows))
            rows.append(placed)
            self._counted(work, item, n, placed)

    def _counted(self, work: Work, item: Item, n: int, row: Row) -> None:
        if self._options.passes <= 2:
            work.rows.setdefault(OUT_SINK, []).append(row)
            return
        number = self._ids.child(item.id, n, COUNT_TOTALS)
        key = f"t{row.root[2] % 4}"
        order = (self._workload.index[row.root], row.ordinal)
        child = Item(item.sequence, number, key, (row,), order)
        self._emit(work, COUNT_TOTALS, child)

    def side(self, work: Work, inputs: Iterable[Item]) -> None:
        for item in inputs:
            work.net(SPLIT_SIDE, item, -1)
            work.rows.setdefault(SIDE_SINK, []).extend(item.members)

    def totals(
        self, work: Work, plan: AttemptPlan, partition: int, inputs: Sequence[Item], states: States
    ) -> None:
        state = states.of(TOTALS, partition)
        changed: dict[str, list[Row]] = {}
        for item in sorted(inputs, key=lambda one: (one.order, one.members[0].key, one.id)):
            work.net(COUNT_TOTALS, item, -1)
            rows = changed.setdefault(item.key, list(state.get(item.key, ())))
            rows.extend(item.members)
            work.rows.setdefault(OUT_SINK, []).extend(item.members)
        self._keep(work, plan, TOTALS, partition, state, changed)

    def _keep(
        self,
        work: Work,
        plan: AttemptPlan,
        processor: str,
        partition: int,
        state: Mapping[str, tuple[Row, ...]],
        changed: Mapping[str, list[Row]],
    ) -> None:
        """A delta of what changed, or a base of everything where the chain is long."""
        if not changed:
            return
        groups = self.groups_of(partition)
        base = len(mine(plan.chains.get(processor, ()), groups)) >= REBASE_AT
        full = {**(state if base else {}), **{key: tuple(rows) for key, rows in changed.items()}}
        content: dict[int, dict[str, tuple[Row, ...]]] = {}
        for key, rows in full.items():
            content.setdefault(self.group(key), {})[key] = tuple(rows)
        work.states[processor] = (base, groups, content)

    def groups_of(self, partition: int) -> int:
        """Key groups of a partition, as a bit mask."""
        parts = self._options.parallelism
        return sum(1 << g for g in range(self._options.key_groups) if g % parts == partition)


def mine(chain: Iterable[Segment], groups: int) -> list[Segment]:
    return [segment for segment in chain if segment.groups & groups]


class States:
    """State that a task starts from: the plan's chains, read from contents."""

    def __init__(self, flow: Flow, plan: AttemptPlan, contents: Mapping[str, object]) -> None:
        self._flow = flow
        self._plan = plan
        self._contents = contents

    def of(self, processor: str, partition: int) -> dict[str, tuple[Row, ...]]:
        groups = self._flow.groups_of(partition)
        return materialise(self._plan.chains.get(processor, ()), groups, self._contents)


def materialise(
    chain: Iterable[Segment], groups: int, contents: Mapping[str, object]
) -> dict[str, tuple[Row, ...]]:
    """Rows of every key of some key groups, from a chain of state objects."""
    state: dict[str, tuple[Row, ...]] = {}
    for segment in chain:
        wanted = segment.groups & groups
        content: StateContent = contents[segment.name]  # type: ignore[assignment]
        for group, keys in content.items():
            if wanted >> group & 1:
                state.update(keys)
    return state
