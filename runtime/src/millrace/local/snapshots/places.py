"""Where the snapshots of a topology lie, for commands."""

from __future__ import annotations

from pathlib import Path

from millrace.errors import WorkFolderError
from millrace.local.inspect.reading import base_of, topology_of
from millrace.local.workdir import WorkFolder
from millrace.snapshots.places import Place, open_place, snapshots_place
from millrace.topology.load import LoadedTopology


def place_of_folder(folder: WorkFolder, to: str | None) -> Place:
    """Where a topology that has run keeps its snapshots; ``to`` names another place, a relative
    one from the current folder.

    Raises ``WorkFolderError``, ``SnapshotError``.
    """
    if to is not None:
        return open_place(to, Path.cwd())
    try:
        base = base_of(folder)
    except WorkFolderError as error:
        raise WorkFolderError(f"{error}, or name the place with --place") from error
    wanted = topology_of(folder).spec.snapshots.to
    return open_place(snapshots_place(wanted, folder.path, base), base)


def place_of_file(loaded: LoadedTopology, workdir: Path, to: str | None) -> Place:
    """The same by the topology's file, which may never have run."""
    if to is not None:
        return open_place(to, Path.cwd())
    wanted = loaded.topology.spec.snapshots.to
    return open_place(snapshots_place(wanted, workdir, loaded.folder), loaded.folder)


def absolute(to: str | None) -> str | None:
    """A place as another process can name it."""
    return to if to is None or "://" in to else str(Path.cwd() / to)
