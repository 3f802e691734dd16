"""The mark of a work folder in which a restore has begun and is not done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millrace import checked, durable
from millrace.errors import SnapshotError
from millrace.local.files import write_json
from millrace.snapshots.manifest import Manifest

FILE = "restoring.json"


@dataclass(frozen=True, slots=True)
class Begun:
    """A restore that has begun, to ``window``.

    ``own``: the folder is the one that the snapshot was taken of. ``lost``: a run began it, since
    all copies of some state were gone, and the next run goes on with it. ``last`` is the last
    window that was sealed or shown, where that is known and behind ``window``.
    """

    snapshot: str
    window: int
    own: bool
    lost: bool = False
    last: int | None = None


def mark(
    path: Path, manifest: Manifest, *, own: bool, lost: bool = False, last: int | None = None
) -> None:
    """Say durably that a restore has begun. Raises ``OSError``."""
    document = {"format": 1, "snapshot": manifest.name, "window": manifest.window, "own": own}
    # An older release passes over these: it asks for the restore to be done by hand.
    document |= {"lost": lost, "last": last}
    write_json(path / FILE, checked.with_checksum(document))


def marked(path: Path) -> Begun | None:
    """The restore that has begun in a work folder. Raises ``SnapshotError`` for a damaged mark."""
    try:
        found = checked.verified(checked.parse((path / FILE).read_bytes()), required=True)
        last = found.get("last")
        return Begun(
            str(found["snapshot"]),
            int(found["window"]),
            bool(found["own"]),
            bool(found.get("lost", False)),
            None if last is None else int(last),
        )
    except FileNotFoundError:
        return None
    except (OSError, checked.DamagedError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"{path / FILE}: cannot be read ({error}); bring it back from a copy, or start over "
            "with --fresh"
        ) from error


def unmark(path: Path) -> None:
    """The restore is done. Raises ``OSError``."""
    (path / FILE).unlink(missing_ok=True)
    durable.sync_folder(path)


def refuse_unfinished(path: Path) -> None:
    """Raises ``SnapshotError`` where a restore has begun and is not done."""
    begun = marked(path)
    if begun is not None:
        on = "millrace run with onStateLoss: Restore goes on with it; else " if begun.lost else ""
        raise SnapshotError(
            f"work folder {path}: a restore of snapshot {begun.snapshot} was begun and is not "
            f"done; {on}do it again with millrace snapshot restore, or start over with --fresh"
        )
