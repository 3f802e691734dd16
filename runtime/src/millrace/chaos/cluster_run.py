"""A whole campaign against a topology on a cluster: kill, wait, expect, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from millrace.chaos import expected, ledger
from millrace.chaos.campaign import Campaign, Course, Kill
from millrace.chaos.cluster import PACE, ClusterTarget
from millrace.chaos.local_run import Wanted
from millrace.chaos.plan import ChaosError, Strike, plan, single_kinds
from millrace.chaos.report import Report
from millrace.chaos.sealing import Sealing
from millrace.clock import Clock, SystemClock
from millrace.homes.pods import DATA_FOLDER
from millrace.remote.topology import RemoteTopology
from millrace.topology.kinds.sink_files import FilesSink
from millrace.topology.kinds.sink_redis import RedisMode, RedisSink
from millrace.topology.model import Sink, StreamTopology
from millrace.topology.secretrefs import SecretRef

_TOLD_S = 30.0
"""A driver that tells nothing new for so long has nothing new to tell."""

_TOLD_EVERY_S = 5.0
"""What the driver tells is no older than that."""

_SERVERS = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class Around:
    """What a cluster needs beside. ``sinks_at``: ``PLACE`` is where ``/data`` of the pods is seen
    from here, ``SINK=PLACE`` where one sink's folder or server is."""

    sinks_at: tuple[str, ...] = ()
    operator_namespace: str | None = None
    node_command: str | None = None


@dataclass(frozen=True, slots=True)
class Readable:
    """A sink whose rows can be read from here, and how they are compared."""

    name: str
    read: Callable[[], ledger.Seen]
    compared: expected.Compared = expected.EVERY_ROW


def carry_out(
    topology: RemoteTopology,
    wanted: Wanted,
    around: Around,
    tell: Callable[[Kill | Strike], None],
    note: Callable[[str], None],
) -> Report:
    """Kill what runs of a topology, wait until it rests, and judge its sinks.

    What can be wrong with the asking is found before anything is killed. Raises ``ChaosError``,
    ``ClusterError``.
    """
    clock, folder = SystemClock(), Path.cwd()
    strikes = plan(wanted.kinds, wanted.every_s, wanted.for_s, wanted.seed)
    sealing = Sealing(topology, clock)
    target = ClusterTarget(
        topology,
        clock,
        time.sleep,
        operator_namespace=around.operator_namespace,
        node_command=around.node_command,
        seen=lambda: sealing.seen,
    )
    function = _expectation(target, wanted, folder)
    sinks, unread = readable_sinks(
        topology.model, around.sinks_at, wanted.last, topology.cluster.secret
    )
    _rows(sinks)  # a place that cannot be read is known before anything is killed
    if (ended := target.look().ended) is not None:
        raise ChaosError(
            f"{topology.name} is {ended}: there is nothing to kill; start it, and let it have "
            "enough to do"
        )
    target.check(single_kinds(wanted.kinds))
    campaign = Campaign(target, clock, time.sleep, wanted.seed, tell, PACE)
    sealing.start()
    try:
        course = campaign.run(strikes, wanted.settle_s)
        told = expected.asked(function, folder, [sink.name for sink in sinks])
        seen = _rows(sinks)
        _same_input(target, course, clock)
    finally:
        sealing.close()
        if target.nodes:
            note(f"nodes that were struck: {', '.join(target.nodes)}; see that they are back")
    if sealing.trouble and sealing.silent_s > _TOLD_EVERY_S:
        note(
            "times of recovery are as the driver told them, which is some seconds too long, where "
            f"the record could not be read: that was so for {sealing.silent_s:.0f} s at one go "
            f"({sealing.trouble})"
        )
    try:
        verdicts = {s.name: s.compared.judge(told[s.name], seen[s.name]) for s in sinks}
    except ledger.UnreadableError as error:
        raise ChaosError(str(error)) from error
    why = "cannot be read from here (--sinks-at)"
    guarantee = topology.model.spec.guarantee
    labels = wanted.labels
    return Report(topology.name, guarantee, wanted.seed, labels, course, verdicts, unread, why)


def _expectation(
    target: ClusterTarget, wanted: Wanted, folder: Path
) -> Callable[[Path], expected.Expected]:
    for kind in single_kinds(wanted.kinds):
        if kind in target.refused:
            raise ChaosError(f"--kill {kind}: {target.refused[kind]}")
    if wanted.expect is None:
        raise ChaosError(
            "--expect is missing: what the sinks of a topology on a cluster should hold is said by "
            "a function of yours, since a twin would need its sources here"
        )
    return expected.named_function(wanted.expect, folder)


def readable_sinks(
    topology: StreamTopology,
    sinks_at: Sequence[str],
    last: Mapping[str, tuple[str, ...]],
    secret: Callable[[SecretRef], str],
) -> tuple[tuple[Readable, ...], tuple[str, ...]]:
    """(sinks that can be read, names of the others).

    Files are read where ``sinks_at`` says it, Redis-protocol servers also where the topology says
    it; ``secret`` is asked for a password that the topology has by reference. Raises
    ``ChaosError`` for a name that is no sink, for files where no folder is, and where nothing can
    be read, and as ``secret``.
    """
    data, places = _places(sinks_at, [sink.name for sink in topology.spec.sinks])
    found, others = [], []
    for sink in topology.spec.sinks:
        read = _reader(sink, places.get(sink.name), data, secret)
        if read is None:
            others.append(sink.name)
            continue
        found.append(Readable(sink.name, read, expected.compared(topology, sink, last)))
    for name in last:
        if name not in {one.name for one in found}:
            raise ChaosError(f"--last {name}: is no sink of this topology that can be read")
    if not found:
        raise ChaosError(
            "no sink of this topology can be read from here, so that nobody could judge it: say "
            "with --sinks-at where its files, or its Redis-protocol server, are seen"
        )
    return tuple(found), tuple(others)


def _places(sinks_at: Sequence[str], names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    data, places = None, {}
    for text in sinks_at:
        name, equals, place = text.partition("=")
        if "://" in name:
            raise ChaosError(
                # An address may hold a password, so that it is not repeated.
                "--sinks-at: the address of a server needs the name of its sink in front: "
                f"SINK=redis://...; sinks: {', '.join(names)}"
            )
        if not equals or "/" in name:
            data = text
        elif name not in names or not place:
            raise ChaosError(
                # What stands behind the sign may hold a password.
                f"--sinks-at {name}=...: is no PLACE and no SINK=PLACE; sinks: {', '.join(names)}"
            )
        else:
            places[name] = place
    if data is not None and not Path(data).is_dir():
        raise ChaosError(f"--sinks-at {data}: is no folder")
    return data, places


def _reader(
    sink: Sink, place: str | None, data: str | None, secret: Callable[[SecretRef], str]
) -> Callable[[], ledger.Seen] | None:
    settings = sink.settings
    if isinstance(settings, FilesSink):
        if place is None:
            inside = PurePosixPath(DATA_FOLDER) / settings.path
            if data is None or not inside.is_relative_to(DATA_FOLDER):
                return None
            place = str(Path(data) / inside.relative_to(DATA_FOLDER))
        folder = Path(place)
        if not folder.is_dir():
            raise ChaosError(
                f"--sinks-at: {folder}, where the files of sink {sink.name} would be, is no "
                "folder; its driver makes it when it starts"
            )
        return lambda: ledger.read_rows(folder)
    if isinstance(settings, RedisSink):
        url = settings.url if place is None else place
        if not url.startswith(_SERVERS):
            raise ChaosError(
                f"--sinks-at {sink.name}: is no address of a server; one begins with "
                f"{', '.join(_SERVERS)}"
            )
        held = settings.password
        password = None if held is None else secret(held.secret_ref)
        if settings.mode is RedisMode.STREAM:
            stream = str(settings.stream)
            return lambda: ledger.read_stream(url, stream, password)
        template = str(settings.key)
        return lambda: ledger.read_hashes(url, template, password)
    return None


def _rows(sinks: Sequence[Readable]) -> dict[str, ledger.Seen]:
    found = {}
    for sink in sinks:
        try:
            found[sink.name] = sink.read()
        except ledger.UnreadableError as error:
            raise ChaosError(
                f"sink {sink.name}: {error}; say with --sinks-at {sink.name}=PLACE where it is "
                "seen from here"
            ) from error
    return found


def _same_input(target: ClusterTarget, course: Course, clock: Clock) -> None:
    """What came while the outcome was worked out is in one of both alone; it is told later."""
    read_s, end_s = clock.now_s(), clock.monotonic_s() + _TOLD_S
    while (look := target.look()).told_s < read_s and clock.monotonic_s() < end_s:
        if look.ended is not None:
            break
        time.sleep(PACE.look_s)
    if look.sealed != course.sealed[-1][1] or not look.at_rest:
        raise ChaosError(
            "input arrived while the outcome was judged: stop feeding the topology until the "
            "report is there"
        )
