"""A whole campaign against a run on this machine: kill, wait, expect, judge."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace import checked
from millrace.chaos import expected, ledger, letters
from millrace.chaos.campaign import Campaign, Course, Kill, Pace
from millrace.chaos.local import LocalTarget
from millrace.chaos.plan import (
    ChaosError,
    Strike,
    Together,
    VictimKind,
    label_of,
    plan,
    single_kinds,
)
from millrace.chaos.report import Report
from millrace.clock import SystemClock
from millrace.local.inspect.letters import read_letters
from millrace.local.inspect.reading import base_of, topology_of
from millrace.local.workdir import WorkFolder

PACE = Pace(work_s=60.0)
"""A driver that was killed is at work again within a minute; a kill before that would hit nothing,
and prove nothing of its kind."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a campaign. Times are in seconds; ``expect`` is ``module:function``, None
    for a twin; ``last`` names key columns by sink."""

    kinds: tuple[VictimKind | Together, ...]
    every_s: float
    for_s: float
    settle_s: float
    seed: int
    expect: str | None = None
    last: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """The kinds as they are called, those that die together as one."""
        return tuple(label_of(entry) for entry in self.kinds)


def carry_out(
    work: WorkFolder,
    wanted: Wanted,
    tell: Callable[[Kill | Strike], None],
    note: Callable[[str], None],
) -> Report:
    """Kill what runs in a work folder, wait until it rests, and judge its sinks.

    What can be wrong with the asking is found before anything is killed. Raises ``ChaosError``.
    """
    target = LocalTarget(work)
    strikes = plan(wanted.kinds, wanted.every_s, wanted.for_s, wanted.seed)
    for kind in single_kinds(wanted.kinds):
        if kind in target.refused:
            raise ChaosError(f"--kill {kind}: {target.refused[kind]}")
    if target.look().ended is not None:
        raise ChaosError(
            f"{work.identity.name} does not run: start it with millrace run, in another terminal, "
            "and let it have enough to do"
        )
    folder = base_of(work)
    topology = topology_of(work)
    sinks, unread = expected.judged_sinks(topology, folder, wanted.last)
    function = None if wanted.expect is None else expected.named_function(wanted.expect, folder)
    campaign = Campaign(target, SystemClock(), time.sleep, wanted.seed, tell, PACE)
    course = campaign.run(strikes, wanted.settle_s)
    dead: letters.LettersVerdict | None = None
    try:
        if function is not None:
            told = expected.asked(function, folder, [sink.name for sink in sinks])
        else:
            note("a twin runs over the same input, without kills")
            twin = _twin(work, folder, sinks, wanted.settle_s, course.last.roots)
            told = twin.rows
            dead = letters.compare(
                twin.letters, read_letters(work) if course.last.dead_letters else ()
            )
        seen = {sink.name: ledger.read_rows(sink.folder) for sink in sinks}
        _same_input(target, course)
        verdicts = {s.name: s.compared.judge(told[s.name], seen[s.name]) for s in sinks}
    except ledger.UnreadableError as error:
        raise ChaosError(str(error)) from error
    name, guarantee = work.identity.name, topology.spec.guarantee
    return Report(
        name, guarantee, wanted.seed, wanted.labels, course, verdicts, unread, letters=dead
    )


def _twin(
    work: WorkFolder,
    folder: Path,
    sinks: tuple[expected.Judged, ...],
    timeout_s: float,
    roots: int,
) -> expected.Twin:
    """Raises ``ChaosError`` where the twin read other input than the run did."""
    with tempfile.TemporaryDirectory(prefix="millrace-chaos-") as place:
        document = checked.decode(work.topology.read_bytes())
        twin = expected.run_twin(document, folder, Path(place), sinks, timeout_s)
    if twin.roots != roots:
        raise ChaosError(
            f"the twin read {twin.roots:,} records where the run has read {roots:,}, so it cannot "
            "say what is right: input was removed or changed since, a last line has no end yet, "
            "dead letters were dropped, a source has offsets without a record while windows were "
            "dropped, or the run began with a snapshot; say what is expected with --expect"
        )
    return twin


def _same_input(target: LocalTarget, course: Course) -> None:
    """What came while the outcome was worked out is in one of both alone."""
    look = target.look()
    if look.sealed != course.last.sealed or not look.at_rest:
        raise ChaosError(
            "input arrived while the outcome was judged: stop feeding the topology until the "
            "report is there"
        )
