"""Which snapshot fits a topology, and which is the newest that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from millrace.errors import SnapshotError
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.snapshots.reading import entries, faults
from millrace.snapshots.retention import is_of_another, is_own
from millrace.snapshots.timelines import Line
from millrace.topology.edits import classify
from millrace.topology.kinds.base import Effect
from millrace.topology.model import StreamTopology

Tell = Callable[[str], None]
Pause = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The snapshot that is restored; ``passed`` says what is wrong with those that are not, though
    they are newer or nobody knows how old."""

    manifest: Manifest
    passed: tuple[str, ...] = ()


def check_fit(
    topology: StreamTopology,
    manifest: Manifest,
    tell: Tell,
    of: str = "",
    *,
    new_life: bool = False,
) -> None:
    """The snapshot must be of this topology, or of the one called ``of``, and what was edited since
    must be allowed. In a ``new_life`` sinks may be any: nothing waits to be shown by those of the
    snapshot. Raises ``SnapshotError``."""
    told = f"snapshot {manifest.name}"
    if manifest.topology != (of or topology.name):
        raise SnapshotError(
            f"{told}: is of the topology {manifest.topology!r}, not of {of or topology.name!r}; "
            "name a snapshot of this one"
        )
    if manifest.key_groups != topology.spec.key_groups:
        raise SnapshotError(
            f"{told}: its state is cut into {manifest.key_groups} key groups, spec.keyGroups is "
            f"{topology.spec.key_groups}, and state cannot be cut anew; set it to "
            f"{manifest.key_groups}"
        )
    try:
        before = StreamTopology.model_validate(manifest.document)
    except ValidationError as error:
        raise SnapshotError(
            f"{told}: its topology cannot be read by this release ({error.error_count()} "
            "problems); use the release that took it"
        ) from error
    edits = classify(before, topology)
    # Where the state lies does not matter to a copy of it, nor whose pods it lay in.
    passing = {"spec.stateServers.url", "metadata.namespace", *(("metadata.name",) if of else ())}
    refused = [
        edit
        for edit in edits
        if edit.effect is Effect.REFUSED
        and edit.path not in passing
        and not (new_life and edit.path.startswith("spec.sinks["))
    ]
    if refused:
        raise SnapshotError("\n".join(f"{told}: {edit}" for edit in refused))
    for edit in edits:
        tell(f"edited since the snapshot: {edit}")


def unfit(
    topology: StreamTopology, place: Place, manifest: Manifest, pause: Pause = lambda: None
) -> str | None:
    """Why a snapshot of this very topology cannot be restored; None where it can be."""
    try:
        check_fit(topology, manifest, lambda _: None, manifest.topology)
    except SnapshotError as error:
        return str(error)
    return next(faults(place, manifest, pause), None)


def newest(
    found: Iterable[Manifest],
    topology: StreamTopology,
    place: Place,
    pause: Pause = lambda: None,
) -> Choice | list[str]:
    """The first that is whole and fits, or what is wrong with each; all of it is read, with a
    ``pause`` before each part."""
    reasons: list[str] = []
    for manifest in found:
        fault = unfit(topology, place, manifest, pause)
        if fault is None:
            return Choice(manifest, tuple(reasons))
        reasons.append(fault)
    return reasons


def candidates(
    place: Place, uid: str, line: Line | None, most: int | None
) -> tuple[list[Manifest], list[str]]:
    """Snapshots of the life ``uid`` on a way, the newest first, none of them behind a window above
    ``most``; and what is wrong with those that may be some but cannot be read.

    Without a way there is none. Raises ``SnapshotsAwayError`` where one cannot be read now; what
    may not be read, and is not called like those that the topology takes by itself, is somebody
    else's.
    """
    there = entries(place, lambda name: not is_of_another(name, uid))
    for entry in there:
        if entry.away is not None and (is_own(entry.name, uid) or not entry.denied):
            raise entry.away
    broken = [entry.fault for entry in there if entry.fault and not entry.unfinished]
    if line is None:
        return [], broken
    mine = []
    for manifest in (entry.manifest for entry in there):
        if manifest is None or manifest.uid != uid:
            continue
        timeline, window = manifest.decoded.tag.timeline, manifest.window
        if (most is None or window <= most) and line.has(timeline, window):
            mine.append(((window, timeline, manifest.created), manifest))
    return [one for _, one in sorted(mine, key=lambda pair: pair[0], reverse=True)], broken


def told(
    manifest: Manifest,
    topology: StreamTopology,
    timeline: int,
    last: int | None,
    *,
    lost: bool,
    passed: Iterable[str] = (),
) -> str:
    """From which window to which a topology went back, what of that is not read again, and which
    snapshots it passed over."""
    text = f"snapshot {manifest.name} is restored behind window {manifest.window}"
    text += f", as timeline {timeline}"
    if lost:
        text = f"all copies of some state were gone: {text}"
        if last is None:
            text += "; nothing was sealed behind it"
    if last is not None:
        text += f"; {windows(manifest.window, last)} given up, and processed again"
        text += unread(manifest, topology)
    return "; ".join([text, *(f"passed over: {' '.join(one.split())}" for one in passed)])


def unread(manifest: Manifest, topology: StreamTopology) -> str:
    """What is said of the snapshot's sources that a topology has no more; "" where it has all."""
    here = {source.name for source in topology.spec.sources}
    listed = [one["name"] for one in manifest.document["spec"].get("sources", ())]
    gone = [repr(name) for name in listed if name not in here]
    if not gone:
        return ""
    named = f"{'source' if len(gone) == 1 else 'sources'} {', '.join(gone)}"
    return f", but for what was read of {named}, which the file has no more: that is read no more"


def windows(behind: int, last: int) -> str:
    """The windows behind one, as the subject of a sentence."""
    if last == behind + 1:
        return f"window {last} is"
    return f"windows {behind + 1} to {last} are"
