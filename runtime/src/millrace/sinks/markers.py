"""The small files by which a folder remembers whose it is, whom it serves and what it has shown.

All of them only ever come into being, in the folder ``_millrace``:

``owner.json``               {format, uid, sink}: the life of a topology that the folder belongs to
``executions/<n>``           execution n may publish, lower ones may not
``windows/<w>.json``         the manifest of window w, created exclusively: what it shows
``windows/<w>.done``         all of window w is shown
``staged/``                  what tasks staged

The highest ``.done`` is the high-water mark: no window up to it is ever shown again, so manifests
far below it can go. Since marks are created and never overwritten, an old driver that wakes up
cannot move one back, whenever that is; nor can it make one, since a mark is a link to that of its
execution, which is gone, and a manifest one to a draft that names its execution, which is gone too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace import checked
from millrace.durable import create, make_folders, sync_folder
from millrace.errors import FencedError, NewerFormatError, SinkError

MARKER_FORMAT = 2
"""2: with a checksum."""
KEPT_WINDOWS = 16
"""Manifests that are kept below the high-water mark, so that another digest is noticed."""

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of one sink's folder. Methods raise ``OSError`` where the disk does."""

    sink: str
    root: Path

    @property
    def home(self) -> Path:
        return self.root / "_millrace"

    @property
    def staged(self) -> Path:
        return self.home / "staged"

    @property
    def windows(self) -> Path:
        return self.home / "windows"

    @property
    def executions(self) -> Path:
        return self.home / "executions"

    # -- whose folder it is

    def owner(self) -> str | None:
        """The uid that the folder belongs to. Raises ``NewerFormatError``, ``SinkError``."""
        try:
            text = (self.home / "owner.json").read_bytes()
        except FileNotFoundError:
            return None
        found = self._decode(text, "owner.json")
        if found["sink"] != self.sink:
            raise SinkError(
                f"sink {self.sink!r}: folder {self.root} belongs to the sink {found['sink']!r}; "
                "give each sink a folder of its own"
            )
        return str(found["uid"])

    def claim(self, uid: str) -> bool:
        """Mark the folder as ``uid``'s; ``False`` where another was quicker."""
        for folder in (self.staged, self.windows, self.executions):
            make_folders(folder, 0o777)
        document = {"format": MARKER_FORMAT, "uid": uid, "sink": self.sink}
        made = create(self.home / "owner.json", _encode(document))
        for folder in (self.home, self.root, self.root.parent):
            sync_folder(folder)
        return made or self.owner() == uid

    # -- whom it serves

    def fence(self, execution: int) -> None:
        """Refuse lower executions, and take their drafts away, so that none of these becomes a
        manifest any more. Raises ``FencedError`` where a higher one was here."""
        before = self._drafts()
        mark = self._execution(execution)
        mark.touch()
        sync_folder(self.executions)
        self.check_fence(execution)
        # Not sooner: who still writes a mark, and finds it gone, has to find the fence.
        self.sweep(before, execution)
        for old in os.listdir(self.executions):
            if old.isdecimal() and old < mark.name:
                (self.executions / old).unlink(missing_ok=True)

    def check_fence(self, execution: int) -> None:
        """Raises ``FencedError`` where a higher execution was here."""
        highest = max((int(n) for n in os.listdir(self.executions) if n.isdecimal()), default=0)
        if highest > execution:
            raise FencedError(
                f"sink {self.sink!r}: folder {self.root} serves execution {highest}, this is "
                f"execution {execution}; a newer run of the topology has taken over"
            )

    # -- what it has shown

    def high_water(self) -> int:
        """The last window that is shown, or -1."""
        marks = [n for n in os.listdir(self.windows) if n.endswith(".done")]
        return max((int(n[:-5]) for n in marks if n[:-5].isdecimal()), default=-1)

    def latest(self) -> tuple[int, str] | None:
        """The last window that is shown or was begun to be, and its digest ("" if not known)."""
        found = (name.partition(".") for name in os.listdir(self.windows))
        numbers = (n for n, _, kind in found if n.isdecimal() and kind in ("json", "done"))
        window = max(map(int, numbers), default=None)
        if window is None:
            return None
        manifest = self.manifest(window)
        return window, str(manifest["digest"]) if manifest is not None else ""

    def manifest(self, window: int) -> dict[str, Any] | None:
        try:
            text = self._path(window, "json").read_bytes()
        except FileNotFoundError:
            return None
        return self._decode(text, f"windows/{self._path(window, 'json').name}")

    def create_manifest(
        self, window: int, document: dict[str, Any], execution: int
    ) -> dict[str, Any]:
        """The manifest of a window: this one, or the one that was there before.

        Raises ``FencedError`` or, where it is fenced within, ``FileNotFoundError``.
        """
        path, data = self._path(window, "json"), _encode({"format": MARKER_FORMAT, **document})
        if create(path, data, _numbered(execution), lambda: self.check_fence(execution)):
            return document
        found = self.manifest(window)
        return document if found is None else found

    def done(self, window: int, execution: int) -> None:
        """Move the high-water mark up to a window, and forget what lies far below it.

        The mark is another name of the execution's own, so that the file system refuses it to one
        that was fenced meanwhile: windows may have been taken back by then. Raises ``FencedError``.
        """
        try:
            os.link(self._execution(execution), self._path(window, "done"))
        except FileExistsError:
            pass  # it was made before
        except FileNotFoundError:
            self.check_fence(execution)
            raise
        sync_folder(self.windows)
        for name in os.listdir(self.windows):
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) <= window - KEPT_WINDOWS:
                (self.windows / name).unlink(missing_ok=True)

    def retract(self, window: int) -> None:
        """Forget the marks of all windows above one."""
        for name in os.listdir(self.windows):
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) > window:
                (self.windows / name).unlink(missing_ok=True)
        sync_folder(self.windows)

    # -- clearing up

    def sweep(self, before: Collection[Path], execution: int) -> None:
        """Remove the drafts that were there ``before``, and all of executions below one: who wrote
        another may be a later one."""
        for draft in self._drafts():
            if draft in before or _execution_of(draft) < execution:
                draft.unlink(missing_ok=True)

    def _drafts(self) -> set[Path]:
        """Temporary files: what crashes left behind, and what is being written just now."""
        folders = (self.home, self.windows)
        return {f / name for f in folders for name in os.listdir(f) if name.startswith(".")}

    def clear(self) -> None:
        """Forget everything. The owner goes last, so that a crash leaves it to be done again."""
        for folder in (self.staged, self.windows, self.executions):
            for path in folder.iterdir() if folder.is_dir() else ():
                path.unlink()
        (self.home / "owner.json").unlink(missing_ok=True)

    def _execution(self, execution: int) -> Path:
        return self.executions / _numbered(execution)

    def _path(self, window: int, kind: str) -> Path:
        return self.windows / f"{window:0{_DIGITS}}.{kind}"

    def _decode(self, text: bytes, name: str) -> dict[str, Any]:
        try:
            found = checked.parse(text)
            number = int(found["format"])
            if number <= MARKER_FORMAT:
                found = checked.verified(found, required=number == MARKER_FORMAT)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise SinkError(
                f"sink {self.sink!r}: {self.home / name} cannot be read ({error}); bring it back "
                "from a copy, or start over with --fresh in another folder"
            ) from error
        if number > MARKER_FORMAT:
            raise NewerFormatError(
                f"sink {self.sink!r}: {self.home / name} has format {number}, this release reads "
                f"up to {MARKER_FORMAT}; use the newer release"
            )
        return found


def _numbered(execution: int) -> str:
    return f"{execution:0{_DIGITS}}"


def _execution_of(draft: Path) -> float:
    """The execution that writes it; none is as high where its name has none."""
    tag = draft.name.split(".")[-2]
    return int(tag) if tag.isdecimal() else math.inf


def _encode(document: dict[str, Any]) -> bytes:
    whole = checked.with_checksum(document)
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()
