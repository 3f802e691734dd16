"""Deletes a snapshot of a topology that has run here, and no other one."""

from __future__ import annotations

from millrace.errors import NewerFormatError, SnapshotError
from millrace.local.snapshots.places import place_of_folder
from millrace.local.workdir import WorkFolder
from millrace.snapshots.places import Place
from millrace.snapshots.reading import believed, delete
from millrace.snapshots.retention import is_of_another


def delete_of(folder: WorkFolder, name: str) -> None:
    """Delete a snapshot of the topology, or what is left of one, where the topology keeps them.

    Raises ``SnapshotError``, also for one of another topology, which stays, and
    ``WorkFolderError``.
    """
    place = place_of_folder(folder, None)
    of = _other(place, name, folder.uid)
    if of is not None:
        raise SnapshotError(
            f"snapshot {name}: is of {of}; that in {folder.path} has life {folder.uid}. Nothing "
            f"was deleted; to delete it all the same, name its place: --place {place.shown}"
        )
    delete(place, name)


def _other(place: Place, name: str, uid: str) -> str | None:
    """Of which other topology a snapshot is; None for an own one, and where that is not known. Of
    what has no manifest that can be read only the name tells."""
    try:
        manifest = believed(place, name)
    except NewerFormatError:
        manifest = None
    if manifest is None:
        named = is_of_another(name, uid)
        return "another topology, or of another life of this one" if named else None
    if manifest.uid == uid:
        return None
    return f"topology {manifest.topology!r} with life {manifest.uid}"
