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
    """A restore that has begun. ``own``: the folder is the one that the snapshot was taken of."""

    snapshot: str
    own: bool


def mark(path: Path, manifest: Manifest, *, own: bool) -> None:
    """Say durably that a restore has begun. Raises ``OSError``."""
    document = {"format": 1, "snapshot": manifest.name, "window": manifest.window, "own": own}
    write_json(path / FILE, checked.with_checksum(document))


def marked(path: Path) -> Begun | None:
    """The restore that has begun in a work folder. Raises ``SnapshotError`` for a damaged mark."""
    try:
        found = checked.verified(checked.parse((path / FILE).read_bytes()), required=True)
        return Begun(str(found["snapshot"]), bool(found["own"]))
    except FileNotFoundError:
        return None
    except (OSError, checked.DamagedError, KeyError) as error:
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
        raise SnapshotError(
            f"work folder {path}: a restore of snapshot {begun.snapshot} was begun and is not "
            "done; do it again with millrace snapshot restore, or start over with --fresh"
        )
