"""Where snapshots lie: a folder, or whatever fsspec reaches by a URL.

A place holds folders of files. A write shows all of its bytes or none, and is durable on return; a
local folder does that by drafts, links and fsync, an object store by its own nature. What goes
wrong is a ``SnapshotsAwayError`` that names the place: it says nothing of what lies there.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from millrace import durable
from millrace.addresses import local_path, place_of
from millrace.errors import SnapshotError, SnapshotsAwayError
from millrace.modes import private_opener

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Place(Protocol):
    """Folders of files. Every method raises ``SnapshotsAwayError``, one that removes something
    ``SnapshotError`` for a name that leads elsewhere."""

    shown: str

    def folders(self) -> list[str]:
        """Names of all folders, sorted; none where the place itself is not there yet."""
        ...

    def files(self, folder: str) -> list[str]:
        """Names of the files of a folder, sorted; what else lies there may be told too, by a name
        that ends with a slash."""
        ...

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Bytes of each file of a folder, None where the place does not say."""
        ...

    def read(self, folder: str, file: str) -> bytes | None:
        """A file's content; None where no file is there."""
        ...

    def write(self, folder: str, file: str, data: bytes) -> None:
        """Write a file, or replace one."""
        ...

    def create(self, folder: str, file: str, data: bytes) -> bool:
        """Write a file; ``False`` where it was there before, which is left as it is."""
        ...

    def try_create(self, folder: str, file: str) -> None:
        """Raise ``SnapshotError`` where ``create`` cannot be had at all, whatever is there."""
        ...

    def remove(self, folder: str, file: str) -> None:
        """Remove a file, if it is there."""
        ...

    def remove_all(self, folder: str, files: Sequence[str]) -> None:
        """Remove these files of a folder, and the folder where it has no other."""
        ...


def open_place(to: str, base: Path) -> Place:
    """The place that a path (relative ones from ``base``) or a URL names.

    Raises ``SnapshotError`` for a URL that fsspec cannot use, ``SnapshotsAwayError`` where what it
    names does not answer.
    """
    path = local_path(to)
    return StorePlace(to) if path is None else FolderPlace(base / path)


def snapshots_place(to: str | None, workdir: Path, folder: Path) -> str:
    """Where a topology keeps its snapshots: what it names (relative to its ``folder``), else in
    its work folder."""
    if to is None:
        return str(workdir / "snapshots")
    return to if "://" in to else str(folder / to)


class FolderPlace:
    """A local folder; see ``Place``. Its files are their user's alone."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.shown = str(self.root)

    def folders(self) -> list[str]:
        with _explained(self.shown, "listed"):
            if not self.root.exists():
                return []
            found = (one for one in self.root.iterdir() if not one.is_symlink())
            return sorted(one.name for one in found if one.is_dir())

    def files(self, folder: str) -> list[str]:
        with _explained(self.shown, "listed"):
            try:
                with os.scandir(self.root / folder) as found:
                    return sorted(f"{one.name}/" if one.is_dir() else one.name for one in found)
            except FileNotFoundError:
                return []

    def sizes(self, folder: str) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for file in self.files(folder):
            with _explained(self.shown, "listed"), suppress(FileNotFoundError):
                found[file] = (self.root / folder / file).stat().st_size
        return found

    def read(self, folder: str, file: str) -> bytes | None:
        with _explained(self.shown, "read"):
            try:
                return (self.root / folder / file).read_bytes()
            except (FileNotFoundError, IsADirectoryError):
                return None

    def write(self, folder: str, file: str, data: bytes) -> None:
        with _explained(self.shown, "written"):
            self._make(folder)
            durable.replace(self.root / folder / file, data)

    def create(self, folder: str, file: str, data: bytes) -> bool:
        with _explained(self.shown, "written"):
            self._make(folder)
            return durable.create(self.root / folder / file, data)

    def try_create(self, folder: str, file: str) -> None:
        with _explained(self.shown, "written"):
            self._make(folder)
            # Called like what ``durable.create`` leaves behind if it is killed.
            tries = [self.root / folder / f".{file}.-.{secrets.token_hex(8)}" for _ in range(2)]
            try:
                with open(tries[0], "xb", opener=private_opener):
                    pass
                self._try_link(*tries)
            finally:
                for one in tries:
                    one.unlink(missing_ok=True)

    def _try_link(self, old: Path, new: Path) -> None:
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise SnapshotError(
                f"snapshots in {self.shown}: the file system has no hard links ({error.strerror}), "
                "without which two could write one snapshot; name another place"
            ) from error

    def remove(self, folder: str, file: str) -> None:
        self._refuse_link(folder)
        # Somebody else may take the whole folder away at any moment.
        with _explained(self.shown, "cleared"), suppress(FileNotFoundError, NotADirectoryError):
            (self.root / folder / file).unlink(missing_ok=True)
            durable.sync_folder(self.root / folder)

    def remove_all(self, folder: str, files: Sequence[str]) -> None:
        self._refuse_link(folder)
        with _explained(self.shown, "cleared"):
            if (self.root / folder).is_dir():
                for file in files:
                    (self.root / folder / file).unlink(missing_ok=True)
                try:
                    (self.root / folder).rmdir()
                except OSError as error:
                    # Somebody else deletes the same, or writes there.
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                        raise
                durable.sync_folder(self.root)

    def _refuse_link(self, folder: str) -> None:
        if (self.root / folder).is_symlink():
            raise SnapshotError(
                f"snapshot {folder}: {self.root / folder} is a symbolic link, so nothing was "
                "changed; name what it leads to, or remove the link"
            )

    def _make(self, folder: str) -> None:
        durable.make_folders(self.root / folder)


class StorePlace:
    """What fsspec reaches; see ``Place``. Credentials come from the environment."""

    def __init__(self, url: str) -> None:
        # Needed for places that are no folder alone.
        import fsspec

        self.shown = place_of(url)
        try:
            self._store, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            kind = SnapshotsAwayError if isinstance(error, OSError) else SnapshotError
            raise kind(
                f"snapshots in {self.shown}: {error}; install what fsspec needs for such a URL, or "
                "name a folder"
            ) from error
        # Listings of others' changes are never answered from memory.
        self._store.use_listings_cache = False
        self._root = str(root).rstrip("/")

    def folders(self) -> list[str]:
        return sorted(_last(one["name"]) for one in self._list("") if one["type"] == "directory")

    def files(self, folder: str) -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int | None]:
        found = self._list(folder)
        return {_last(one["name"]): one.get("size") for one in found if one["type"] == "file"}

    def read(self, folder: str, file: str) -> bytes | None:
        with _explained(self.shown, "read"):
            try:
                data: bytes = self._store.cat_file(self._at(folder, file))
            except (FileNotFoundError, IsADirectoryError):
                return None
            return data

    def write(self, folder: str, file: str, data: bytes) -> None:
        with _explained(self.shown, "written"):
            self._make(folder)
            self._store.pipe_file(self._at(folder, file), data)

    def create(self, folder: str, file: str, data: bytes) -> bool:
        with _explained(self.shown, "written"):
            self._make(folder)
            try:
                self._store.pipe_file(self._at(folder, file), data, mode="create")
            except FileExistsError:
                return False
        # Not every store refuses to write over what is there; of two who write the later one wins.
        return self.read(folder, file) == data

    def try_create(self, folder: str, file: str) -> None:
        """A store says nothing of that; see ``create``."""

    def remove(self, folder: str, file: str) -> None:
        with _explained(self.shown, "cleared"):
            try:
                self._store.rm_file(self._at(folder, file))
            except FileNotFoundError:
                return

    def remove_all(self, folder: str, files: Sequence[str]) -> None:
        for file in files:
            self.remove(folder, file)
        if self.files(folder):
            return
        with _explained(self.shown, "cleared"):
            try:
                self._store.rmdir(self._at(folder))
            except (FileNotFoundError, NotImplementedError):
                return  # an object store has none of its own

    def _list(self, folder: str) -> list[dict[str, Any]]:
        with _explained(self.shown, "listed"):
            self._store.invalidate_cache()
            try:
                found: list[dict[str, Any]] = self._store.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return []
            return found

    def _make(self, folder: str) -> None:
        self._store.makedirs(self._at(folder), exist_ok=True)

    def _at(self, *parts: str) -> str:
        return "/".join((self._root, *(part for part in parts if part)))


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@contextmanager
def _explained(place: str, doing: str) -> Iterator[None]:
    """What a place answers becomes an error that names it and says what to do."""
    try:
        yield
    except SnapshotError:
        raise
    except Exception as error:
        # The boundary to file systems of others, each of which has errors of its own.
        why = getattr(error, "strerror", None) or str(error) or repr(error)
        if isinstance(error, OSError) and error.errno in _FULL:
            remedy = "free some space, or name another place"
        elif isinstance(error, PermissionError):
            remedy = "allow it, or name another place"
        else:
            remedy = "mend that, or name another place"
        text = f"snapshots in {place}: cannot be {doing} ({why}); {remedy}"
        raise SnapshotsAwayError(text) from error
