"""Finds, checks, reads and deletes snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millrace import crash
from millrace.errors import (
    MillraceError,
    NewerFormatError,
    SnapshotError,
    SnapshotsAwayError,
)
from millrace.snapshots.manifest import (
    Manifest,
    MisnamedError,
    SnapshotPart,
    check_name,
    decode,
    digest_of,
    is_name,
)
from millrace.snapshots.places import Place

MANIFEST = "manifest.json"

_FILE = r"([0-9a-f]{64}\.(arrow|letters)|manifest\.json)"
_OURS = re.compile(rf"{_FILE}|\.{_FILE}\.([0-9]+\.[0-9]+\.new|(-\.)?[0-9a-f]{{16}})")
"""What lies in the folder of a snapshot: its files, and drafts of them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What lies under a name: a snapshot, or (``fault``) why it is none; ``away`` where that is not
    known, since it cannot be read now; ``denied`` where that is not allowed; ``damaged`` where it
    never will be one."""

    name: str
    manifest: Manifest | None
    fault: str = ""
    unfinished: bool = False
    away: SnapshotsAwayError | None = None
    damaged: bool = False

    @property
    def denied(self) -> bool:
        return self.away is not None and isinstance(self.away.__cause__, PermissionError)


def find(place: Place, name: str) -> Manifest | None:
    """The manifest of a snapshot; None where there is no snapshot of that name.

    Raises ``SnapshotError`` for a damaged one, ``NewerFormatError``.
    """
    check_name(name)
    data = place.read(name, MANIFEST)
    return None if data is None else decode(data, name, f"{place.shown}/{name}/{MANIFEST}")


def believed(place: Place, name: str) -> Manifest | None:
    """The manifest of a snapshot; None for what is damaged or unfinished.

    Raises ``SnapshotsAwayError`` and ``NewerFormatError``.
    """
    try:
        return find(place, name)
    except SnapshotsAwayError:
        raise
    except SnapshotError:
        return None


def load(place: Place, name: str) -> Manifest:
    """The manifest of a snapshot. Raises ``SnapshotError``, ``NewerFormatError``."""
    manifest = find(place, name)
    if manifest is None and (files := place.files(name)):
        check_ours(place, name, files)
        raise SnapshotError(
            f"snapshot {name} in {place.shown}: was never finished, so it is not believed; it may "
            "still be written, else delete it"
        )
    if manifest is None:
        known = ", ".join(e.name for e in entries(place) if e.manifest) or "none"
        raise SnapshotError(f"snapshot {name}: is not in {place.shown}; snapshots there: {known}")
    return manifest


def entries(place: Place, wanted: Callable[[str], bool] = lambda _: True) -> list[Entry]:
    """The snapshots of a place with a ``wanted`` name, the oldest first, and behind them what is
    damaged or unfinished.

    A folder without a manifest that holds anything else is somebody else's, and left out; so is
    one that no snapshot may be called like.
    """
    found = []
    for name in place.folders():
        if not (is_name(name) and wanted(name)):
            continue
        try:
            manifest = find(place, name)
            files = place.files(name) if manifest is None else []
        except SnapshotsAwayError as error:
            found.append(Entry(name, None, str(error), away=error))
            continue
        except (SnapshotError, NewerFormatError) as error:
            damaged = not isinstance(error, NewerFormatError | MisnamedError)
            found.append(Entry(name, None, str(error), damaged=damaged))
            continue
        if manifest is not None:
            found.append(Entry(name, manifest))
        elif files and not _foreign(files):
            found.append(Entry(name, None, "was never finished", unfinished=True))
    return sorted(found, key=_order)


def _order(entry: Entry) -> tuple[float, str]:
    return (float("inf") if entry.manifest is None else entry.manifest.created), entry.name


def read_part(place: Place, manifest: Manifest, part: SnapshotPart) -> bytes:
    """A part, as it was written. Raises ``SnapshotError`` for one that is gone or damaged,
    ``SnapshotsAwayError`` where that is not known."""
    data = place.read(manifest.name, part.file)
    where = f"snapshot {manifest.name}: {place.shown}/{manifest.name}/{part.file}"
    if data is None:
        raise SnapshotError(f"{where} is gone; the snapshot cannot be restored, take another one")
    if (len(data), digest_of(data)) != (part.size_bytes, part.digest):
        raise SnapshotError(
            f"{where} has {len(data)} bytes that are not those that were written "
            f"({part.size_bytes} bytes); the snapshot cannot be restored, take another one"
        )
    return data


def faults(
    place: Place, manifest: Manifest, pause: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """What is wrong with the parts of a snapshot; all of them are read, with a ``pause`` before
    each.

    Raises ``SnapshotsAwayError`` where one cannot be read now, which says nothing of it.
    """
    for part in manifest.parts:
        pause()
        try:
            read_part(place, manifest, part)
        except SnapshotsAwayError:
            raise
        except MillraceError as error:
            yield str(error)


def delete(place: Place, name: str) -> None:
    """Delete a snapshot, or what is left of one; the manifest goes first, and again behind the
    parts, since who writes it may have made one that found them all.

    Raises ``SnapshotError``, also where nothing lies under that name, and where files lie there
    that no snapshot has: then nothing is deleted.
    """
    check_name(name)
    files = place.files(name)
    if not files:
        load(place, name)
    check_ours(place, name, files)
    place.remove(name, MANIFEST)
    crash.reached("snapshot.unlisted")
    place.remove_all(name, files)
    place.remove(name, MANIFEST)
    place.remove_all(name, ())


def discard(place: Place, name: str) -> None:
    """Delete what is left of a snapshot that was not finished; one that somebody has finished
    meanwhile stays, and so does a folder with files that no snapshot has.

    Raises ``SnapshotsAwayError``.
    """
    files = place.files(name)
    if MANIFEST in files or _foreign(files):
        return
    for file in files:
        # A later driver may make one of that name, of the same parts.
        if place.read(name, MANIFEST) is not None:
            return
        place.remove(name, file)
        if _names(place, name, file):
            # It came to be as the part went, so its writer may have found all: it is none.
            place.remove(name, MANIFEST)
    place.remove_all(name, ())


def _names(place: Place, name: str, file: str) -> bool:
    """Whether there is a snapshot that has this file."""
    try:
        manifest = believed(place, name)
    except NewerFormatError:
        return False
    return manifest is not None and file in {part.file for part in manifest.parts}


def _foreign(files: Sequence[str]) -> list[str]:
    """Names of files that no snapshot has."""
    return [file for file in files if not _OURS.fullmatch(file)]


def check_ours(place: Place, name: str, files: Sequence[str]) -> None:
    """Raises ``SnapshotError`` where one of the files of a folder is somebody else's."""
    if foreign := _foreign(files):
        raise SnapshotError(
            f"snapshot {name}: the folder {place.shown}/{name} holds {foreign[0]!r}, which is no "
            "file of a snapshot; nothing was changed. Move it away, or give another name"
        )
