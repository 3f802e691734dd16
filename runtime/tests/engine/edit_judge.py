"""What the edits of a history promised, against what came out (``edit_world``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from edit_files import Document, code_of, part, reached, totals
from edit_world import (
    LEAST_JUDGED,
    Histories,
    Life,
    Log,
    Row,
    Total,
    World,
    always_fails,
    model_of,
    roots_of,
)

from millrace.protocol.types import Guarantee, Record, Sealed

Root = tuple[Life, int]


@dataclass(frozen=True)
class Window:
    """A sealed window: the record that sealed it, by which life of a driver, and its rows."""

    sealed: Sealed
    record: Record
    log: Log
    rows: list[Row]

    @property
    def document(self) -> Document:
        return dict(self.log.accepted.topology)


def judge(history: Histories) -> None:
    """Raises ``AssertionError``."""
    Judge(history.world).judge()


class Judge:
    def __init__(self, world: World) -> None:
        self.world = world
        self.log = world.lives[-1]
        self.last = self.log.commits[-1]

    def judge(self) -> None:
        assert self.last.components == self.log.accepted.components
        assert (self.last.intents, self.last.replays, self.last.unpublished) == ((), (), ())
        self.judge_ends()
        self.judge_rows()
        self.judge_sources()
        self.judge_state()
        self.judge_sinks()
        self.judge_totals()
        for log in self.world.lives:
            self.judge_replays(log)
            self.judge_sizes(log)
            self.judge_edits_told(log)
            self.judge_at_most_once(log)
        self.judge_share()
        self.judge_counts()

    # -- what was sealed

    def commits(self) -> Iterator[tuple[Log, Record | None, Record]]:
        """Every committed record with the one before it and the life of a driver that wrote it."""
        before = None
        for log in self.world.lives:
            for record in log.commits:
                yield log, before, record
                before = record

    @cached_property
    def windows(self) -> dict[int, Window]:
        found: dict[int, Window] = {}
        for log, _, record in self.commits():
            for one in record.unpublished:
                if one.window not in found:
                    found[one.window] = Window(one, record, log, self.rows_of(one, record))
        return dict(sorted(found.items()))

    def rows_of(self, sealed: Sealed, record: Record) -> list[Row]:
        """What ran in the attempt that the record names objects of."""
        names = {one.name for one in sealed.staged}
        names |= {s.name for c in record.chains.values() for s in c if s.window == sealed.window}
        attempts = {name.partition("/")[0] for name in names}
        assert len(attempts) <= 1, f"window {sealed.window} is made of {attempts}"
        ran = {name: rows for log in self.world.lives for name, rows in log.ran.items()}
        return ran[attempts.pop()] if attempts else []

    @cached_property
    def rows(self) -> list[Row]:
        return [row for window in self.windows.values() for row in window.rows]

    @cached_property
    def counts(self) -> Counter[Root]:
        return Counter((row.source, row.offset) for row in self.rows)

    # -- promises

    def judge_ends(self) -> None:
        """A run ends by itself for one of the reasons that there were."""
        for log in self.world.lives[:-1]:
            limited = log.accepted.topology["spec"]["deadLetters"]["maxShare"] != "100%"
            retired = {(one.name, one.number) for one in log.accepted.retired}
            broken = bool(retired & self.world.broken) and not log.dropping
            allowed = {"died", "drained"}
            allowed |= {"deadLetters"} if limited else set()
            allowed |= {"failed"} if broken else set()
            assert log.ended in allowed, f"ended: {log.ended}"

    def judge_rows(self) -> None:
        """A row is processed by the file under which it is sealed."""
        for number, window in self.windows.items():
            document, lives = window.document, window.record.components
            assert lives is not None
            for row in window.rows:
                name = row.source[0]
                steps = [(p, lives.processors[p]) for p in reached(document, name)[0]]
                code = [code_of(document, p) for p, _ in steps]
                declared = part(document, "sources", name)["generator"]["seed"]
                assert row.source[1] == lives.sources[name]
                assert row.seed == declared, f"window {number} reads what was edited away"
                assert [s.life for s in row.steps] == steps, f"window {number} is wired otherwise"
                assert [s.code for s in row.steps] == code, f"window {number} runs other code"
        times = [record.time_ms for _, _, record in self.commits()]
        assert times == sorted(times), "the time of windows goes back"

    def judge_sources(self) -> None:
        """Each life of a source is read once, from its beginning, and reads one thing."""
        seeds = {(row.source, row.seed) for row in self.rows}
        assert len({life for life, _ in seeds}) == len(seeds), "a source reads something else"
        assert len({seed for _, seed in seeds}) == len(seeds), "two sources read the same"
        assert set(self.counts.values()) <= {1}, "a record of one life of a source is sealed twice"
        dead, lost = self.dead(), self.may_be_lost()
        for life in self.log.accepted.components.sources.items():
            there = {(life, n) for n in range(self.world.available[life[0]])}
            bad = {root for root in there if always_fails(root[1])}
            found = {root for root in self.counts if root[0] == life}
            assert found <= there - bad
            assert there - bad - found <= lost, f"{life} is not read whole, from its beginning"
            assert {root for root in dead if root[0] == life} <= bad
            assert bad - dead <= lost, f"dead letters of {life} are not there"

    def dead(self) -> set[Root]:
        found = set()
        for _, before, record in self.commits():
            sources = record.components.sources if record.components else {}
            for one in set(record.dead) - set(before.dead if before else ()):
                letters = self.world.letters[one.name]
                found |= {((one.source, sources[one.source]), one.offset) for one in letters}
        return found

    def may_be_lost(self) -> set[Root]:
        """What AtMostOnce does not promise: what was open as its driver began, and what failed."""
        found: set[Root] = set()
        for log in self.world.lives:
            if guarantee(log) is not Guarantee.AT_MOST_ONCE:
                continue
            found |= log.failed
            for record in log.commits[:1]:
                before = record.components.sources if record.components else {}
                for intent in record.intents:
                    found |= {((n, before.get(n, 0)), at) for n, at, _ in roots_of(intent)}
        return found

    def judge_state(self) -> None:
        """Each life of a processor keeps all its state, and what that is bound to stays."""
        places: dict[Life, list[int]] = {}
        under: dict[Life, set[object]] = {}
        code: dict[str, set[Life]] = {}
        for row in self.rows:
            for step in row.steps:
                places.setdefault(step.life, []).append(step.place)
                under.setdefault(step.life, set()).add((step.under, step.code is None))
                if step.code is not None:
                    code.setdefault(step.code, set()).add(step.life)
        for life, found in places.items():
            assert found == list(range(1, len(found) + 1)), f"{life} kept or lost state"
            assert len(under[life]) == 1, f"the state of {life} does not fit: {under[life]}"
        assert all(len(lives) == 1 for lives in code.values()), (
            "a processor lost its name and state"
        )

    def judge_sinks(self) -> None:
        """Each life of a sink shows the windows that were sealed while it was there, no others;
        what was still to be shown may be given up."""
        wanted: dict[Life, dict[int, list[Row | Total]]] = {}
        for number, window in self.windows.items():
            lives = window.record.components
            assert lives is not None
            for staged in window.sealed.staged:
                life = (staged.sink, lives.sinks[staged.sink])
                wanted.setdefault(life, {})[number] = self.world.rows[staged.name]
                due = [
                    r
                    for r in window.rows
                    if staged.sink in reached(window.document, r.source[0])[1]
                ]
                got = [r for r in self.world.rows[staged.name] if isinstance(r, Row)]
                assert got == due
        shown = {
            life: kept
            for life, windows in self.world.shown.items()
            if (kept := {window: rows for window, rows in windows.items() if rows})
        }
        missing = {
            (life, number)
            for life, windows in wanted.items()
            for number in windows
            if number not in shown.get(life, {})
        }
        assert missing <= self.given_up(), "a sink does not show what is sealed"
        left = {
            life: kept
            for life, windows in wanted.items()
            if (kept := {n: rows for n, rows in windows.items() if (life, n) not in missing})
        }
        assert shown == left
        assert all(len(kinds) == 1 for kinds in self.world.kinds.values()), "a sink is another"

    def given_up(self) -> set[tuple[Life, int]]:
        """What was still to be shown on sinks that were gone as a run began with
        ``--drop-removed``."""
        found = set()
        for log in self.world.lives:
            for record in log.commits[:1] if log.dropping else ():
                lives = record.components.sinks if record.components else {}
                now = log.accepted.components.sinks
                for one in record.unpublished:
                    for staged in one.staged:
                        life = (staged.sink, lives.get(staged.sink, 0))
                        if now.get(life[0]) != life[1]:
                            found.add((life, one.window))
        return found

    def judge_totals(self) -> None:
        """Totals are those of all that was sealed before, and shown wherever the last file says."""
        held: Counter[Life] = Counter()
        for window in self.windows.values():
            for staged in window.sealed.staged:
                for total in self.world.rows[staged.name]:
                    if isinstance(total, Total):
                        assert total.rows == held[total.processor], "totals of another state"
            held.update(step.life for row in window.rows for step in row.steps)
        spec = dict(self.log.accepted.topology)
        due = set(totals(spec))
        if not due:
            return
        number, window = list(self.windows.items())[-1]
        components = self.log.accepted.components
        for processor, sink in due:
            shown = self.world.shown[sink, components.sinks[sink]].get(number, [])
            life = (processor, components.processors[processor])
            assert Total(life, held[life]) in shown, f"totals of {processor} are not shown"

    # -- what settings promise

    def judge_replays(self, log: Log) -> None:
        """A root is replayed as often, and with such pauses, as the file says."""
        spec = model_of(dict(log.accepted.topology)).spec
        most, pause_s = spec.ackers.max_replays, spec.ackers.backoff.seconds
        for owner, before, record in self.commits():
            if owner is not log or before is None:
                continue
            for replay in set(record.replays) - set(before.replays):
                assert replay.number <= most, "a root is replayed too often"
                assert replay.delay_s == pause_s * 2 ** (replay.number - 1)
                assert guarantee(log) is not Guarantee.AT_MOST_ONCE
            for one in set(record.dead) - set(before.dead):
                for letter in self.world.letters[one.name]:
                    assert letter.number >= most, "a root is given up too early"

    def judge_sizes(self, log: Log) -> None:
        """Windows are as large as the file says, and from which one on the driver has said."""
        for owner, before, record in self.commits():
            known = before.intents if before is not None else ()
            for intent in record.intents if owner is log else ():
                if any(old.window == intent.window for old in known):
                    continue
                size = [size for first, size in log.sizes if first <= intent.window][-1]
                assert intent.roots <= size, f"window {intent.window} has {intent.roots} roots"

    def judge_edits_told(self, log: Log) -> None:
        """What is told of an edit is what it does to the record."""
        for owner, before, record in self.commits():
            if owner is not log or before is None or before.components == record.components:
                continue
            told = [text for seen, text in log.edits_told if seen.components == before.components]
            said = re.search(r"(\d+) open roots and (\d+) replays", told[-1]) if told else None
            count = sum(map(int, said.groups())) if said else 0
            assert record.totals.dropped - before.totals.dropped == count

    def judge_at_most_once(self, log: Log) -> None:
        """Whatever ran before, a window of it or an attempt, does not run again."""
        if guarantee(log) is not Guarantee.AT_MOST_ONCE:
            return
        older = self.world.lives[: self.world.lives.index(log)]
        before = {r for one in older for plan in one.plans for r in self.fresh(one, plan)}
        for plan in log.plans:
            assert not before & self.fresh(log, plan), "what had begun is run again"
            before |= self.fresh(log, plan)

    def fresh(self, log: Log, plan) -> set[Root]:
        lives = log.accepted.components.sources
        return {
            ((r.source, lives[r.source]), n)
            for r in plan.intent.ranges
            for n in range(r.start, r.start + r.count)
        }

    def judge_share(self) -> None:
        """Nothing is sealed with more dead letters than the file allows. So few roots are judged
        together."""
        good, dead = 0, 0
        for number, window in self.windows.items():
            fresh = [one for one in window.record.dead if one.window == number]
            letters = sum(one.count for one in fresh)
            good, dead = good + len(window.rows) + self.lost_in(window), dead + letters
            share = int(window.document["spec"]["deadLetters"]["maxShare"].rstrip("%"))
            if letters and good + dead >= LEAST_JUDGED:
                assert dead * 100 <= share * (good + dead), "too many dead letters are sealed"

    def lost_in(self, window: Window) -> int:
        """Roots of a window that AtMostOnce sealed without them."""
        if guarantee(window.log) is not Guarantee.AT_MOST_ONCE:
            return 0
        plans = [p for p in window.log.plans if p.intent.window == window.sealed.window]
        return plans[-1].intent.roots - len(window.rows) if plans else 0

    def judge_counts(self) -> None:
        """Whatever was planned of a source that is gone was sealed, is dead, or is counted."""
        planned: dict[Life, int] = {}
        for _, _, record in self.commits():
            for name, at in record.offsets.items():
                lives = record.components.sources if record.components else {}
                planned[name, lives.get(name, 0)] = at
        totals = self.last.totals
        letters = sum(one.count for one in self.last.dead)
        assert totals.roots == sum(self.counts.values())
        assert totals.dead == letters
        assert totals.dropped == sum(planned.values()) - sum(self.counts.values()) - letters


def guarantee(log: Log) -> Guarantee:
    return Guarantee(log.accepted.topology["spec"]["guarantee"])
