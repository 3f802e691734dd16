"""The files sink: rows of sealed windows as files in a folder.

Tasks stage files in ``_millrace/staged``. Publishing window w is create-only:

1. every staged file is read and its digest compared with the sealed one;
2. the manifest of w is created exclusively: from here on w shows these files and no others;
3. each staged file is renamed to its final name ``part-<w>-<n>.<ext>``;
4. the done mark of w is created: from here on w is never shown again.

If the process dies behind any of them, publishing again starts over: a manifest that is there must
have the same digest, and a final file of equal digest counts as renamed. So a reader of the
folder that skips names beginning with ``_`` or ``.`` sees each row at most once, and once after
recovery.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash

from millrace.durable import sync_folder
from millrace.errors import SinkError
from millrace.modes import make_folder, open_up
from millrace.protocol.types import Sealed, Staged
from millrace.sinks.base import (
    RowsRefusedError,
    Sink,
    SinkFullError,
    SinkUnavailableError,
    StepHook,
    damaged,
    passed,
)
from millrace.sinks.encode import ENCODERS, ENCODING_ERRORS, misfits
from millrace.sinks.markers import KEPT_WINDOWS, Markers

_PART = re.compile(r"part-\d{12,}-\d{5,}\.(jsonl|csv|parquet)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_READ_BYTES = 1 << 20


class FileSink(Sink):
    """Options: ``path`` (a folder) and ``format`` (jsonLines, csv or parquet)."""

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path) -> None:
        super().__init__(name, options, folder)
        kind = str(self.options.get("format", "jsonLines"))
        if kind not in ENCODERS:
            raise SinkError(
                f"sink {name!r}: files.format {kind!r} is not known; use {', '.join(ENCODERS)}"
            )
        self.format = kind
        self.extension, self._encode = ENCODERS[kind]
        self.root = folder / str(self.options["path"])
        self._markers = Markers(name, self.root)
        self._uid = ""
        self._fenced = 0

    # -- whose folder it is

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        with self._disk("preparing it"):
            if self.root.exists() and not self.root.is_dir():
                raise SinkError(f"sink {self.name!r}: {self.root} is no folder; name another path")
            make_folder(self.root)
            owner = self._markers.owner()
            if owner != uid:
                self._make_room(owner, fresh, overwrite)
            if not self._markers.claim(uid):
                raise SinkError(
                    f"sink {self.name!r}: another topology has just taken folder {self.root}; "
                    "give each topology a folder of its own"
                )
        self._uid = uid

    def check(self) -> None:
        place = self.root
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        if not place.is_dir():
            raise SinkError(f"sink {self.name!r}: {place} is no folder; name another path")
        if not os.access(place, os.W_OK | os.X_OK):
            raise SinkError(
                f"sink {self.name!r}: folder {place} cannot be written; make it writable or name "
                "another path"
            )

    def check_fresh(self, overwrite: bool) -> None:
        if self.root.is_dir():
            with self._disk("looking into it"):
                self._leftovers(self._markers.owner(), fresh=True, overwrite=overwrite)

    def _make_room(self, owner: str | None, fresh: bool, overwrite: bool) -> None:
        """Empty the folder of what another life of a topology left, if that is asked for."""
        ours = self._leftovers(owner, fresh, overwrite)
        if owner is not None:
            for name in ours:
                (self.root / name).unlink()
            self._markers.clear()

    def _leftovers(self, owner: str | None, fresh: bool, overwrite: bool) -> list[str]:
        """Names of files that may be deleted. Raises ``SinkError`` where some may not."""
        visible = [n for n in os.listdir(self.root) if n[0] not in "_."]
        ours = [n for n in visible if owner is not None and _PART.fullmatch(n)]
        foreign = sorted(set(visible) - set(ours))
        if foreign:
            raise SinkError(
                f"sink {self.name!r}: folder {self.root} holds {len(foreign)} files that Millrace "
                f"did not write there, such as {foreign[0]!r}; name an empty folder or move them"
            )
        if owner is not None and (not fresh or (ours and not overwrite)):
            held = f"{len(ours)} files" if ours else "marks"
            raise SinkError(
                f"sink {self.name!r}: folder {self.root} holds {held} of another topology or of "
                "an earlier life of this one; name another folder, or delete what Millrace wrote "
                "there with --fresh --overwrite"
            )
        return ours

    def fence(self, execution: int) -> None:
        with self._disk("fencing it"):
            self._check_owner()
            self._markers.fence(execution)
            self._fenced = execution

    def last_shown(self) -> tuple[int, str] | None:
        with self._disk("looking at what it shows"):
            self._check_owner()
            return self._markers.latest()

    def _check_owner(self) -> None:
        if self._markers.owner() != self._uid:
            raise SinkError(
                f"sink {self.name!r}: folder {self.root} belongs to another topology now; give "
                "each topology a folder of its own"
            )

    # -- in workers

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return None
        path = self._staged_path(name)
        size = 0
        digest = xxhash.xxh3_128()
        with self._disk("staging rows"):
            try:
                with path.open("wb", buffering=0) as file:
                    open_up(file.fileno())
                    for data in self._encode(batches):
                        digest.update(data)
                        size += _write(file.fileno(), data)
                    os.fsync(file.fileno())
                sync_folder(path.parent)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            except ENCODING_ERRORS as error:
                path.unlink(missing_ok=True)
                raise self._refusal(batches, error) from error
        rows = sum(batch.num_rows for batch in batches)
        return Staged(self.name, name, digest.hexdigest(), rows, size)

    def _refusal(self, batches: Sequence[pa.RecordBatch], error: Exception) -> Exception:
        """What to raise for rows that cannot be encoded."""
        if isinstance(error, MemoryError):
            return error
        bad = misfits(lambda batch: list(self._encode([batch])), batches)
        as_what = f"cannot be written as {self.format}"
        if not bad:
            return SinkError(
                f"sink {self.name!r}: rows of its columns {as_what}: {error}; use another format "
                "or other column types"
            )
        return RowsRefusedError(
            {
                place: f"sink {self.name!r}: the row {as_what}: {text}; mend the value before it "
                "reaches the sink"
                for place, text in bad.items()
            }
        )

    def _staged_path(self, name: str) -> Path:
        return self._markers.staged / f"{quote(name, safe='')}.{self.extension}"

    # -- on the driver

    def verify(self, mine: Sequence[Staged]) -> None:
        with self._disk("checking staged files"):
            for staged in mine:
                self._verify(staged, self._staged_path(staged.name))

    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        with self._disk(f"publishing window {sealed.window}"):
            self._check_owner()
            self._markers.check_fence(execution)
            try:
                self._publish(sealed, mine, execution, step)
            except (SinkError, FileNotFoundError):
                # Who takes over sweeps away what others have begun: then the folder is in order.
                self._markers.check_fence(execution)
                raise

    def _publish(
        self, sealed: Sealed, mine: Sequence[Staged], execution: int, step: StepHook | None
    ) -> None:
        window = sealed.window
        if window <= self._markers.high_water():
            self._check_shown(sealed)
            return
        finals = [self._final_name(window, n) for n in range(len(mine))]
        try:
            for staged, final in zip(mine, finals, strict=True):
                self._check_whole(staged, final)
        except SinkError:
            # Another publisher of this window may have been at work, with other rows or these.
            if (found := self._markers.manifest(window)) is not None:
                self._check_same(sealed, found)
            if window <= self._markers.high_water():
                return
            raise
        manifest = self._markers.create_manifest(
            window, self._manifest(sealed, mine, finals), execution
        )
        self._check_same(sealed, manifest)
        passed(step, "manifest")
        # An old driver may wake up here: what was done meanwhile is not done again.
        if window <= self._markers.high_water():
            return
        for number, (staged, final) in enumerate(zip(mine, finals, strict=True)):
            self._markers.check_fence(execution)
            self._show(staged, final)
            passed(step, f"rename:{number}")
        sync_folder(self.root)
        passed(step, "renamed")
        self._markers.done(window, execution)
        passed(step, "done")

    def retract(self, window: int) -> None:
        """The mark of ``window`` comes first and the marks behind it go last, so that a crash
        leaves either to be done again and nothing that is shown twice. No mark is made that is
        higher than what is shown. A later execution may fence it and show windows meanwhile, so
        that is looked at before each file goes. Staged files go before those that are shown: an
        older driver that is about to give one its final name finds none."""
        with self._disk("taking windows back"):
            staged = os.listdir(self._markers.staged)
            self._markers.check_fence(self._fenced)
            if self._markers.high_water() > window:
                self._markers.done(window, self._fenced)
            for name in staged:
                (self._markers.staged / name).unlink(missing_ok=True)
            for name in os.listdir(self.root):
                if _PART.fullmatch(name) and int(name.split("-")[1]) > window:
                    self._markers.check_fence(self._fenced)
                    (self.root / name).unlink(missing_ok=True)
            sync_folder(self.root)
            self._markers.check_fence(self._fenced)
            self._markers.retract(window)

    def discard(self, covers: Callable[[str], bool]) -> None:
        with self._disk("dropping staged files"):
            for file in os.listdir(self._markers.staged):
                if covers(unquote(file.rpartition(".")[0])):
                    (self._markers.staged / file).unlink(missing_ok=True)

    def _final_name(self, window: int, number: int) -> str:
        return f"part-{window:012}-{number:05}.{self.extension}"

    def _manifest(
        self, sealed: Sealed, mine: Sequence[Staged], finals: Sequence[str]
    ) -> dict[str, Any]:
        files = [
            {"name": final, "staged": s.name, "digest": s.digest, "rows": s.rows}
            for s, final in zip(mine, finals, strict=True)
        ]
        return {
            "uid": self._uid,
            "window": sealed.window,
            "digest": sealed.digest,
            "files": files,
        }

    def _check_shown(self, sealed: Sealed) -> None:
        """A window up to the high-water mark: it must be the one that was shown."""
        manifest = self._markers.manifest(sealed.window)
        if manifest is not None:
            self._check_same(sealed, manifest)
        elif sealed.window > self._markers.high_water() - KEPT_WINDOWS:
            raise SinkError(
                f"sink {self.name!r}: folder {self.root} shows windows behind {sealed.window}, but "
                f"never showed {sealed.window} itself; two topologies may share it: give each a "
                "folder of its own"
            )

    def _check_same(self, sealed: Sealed, manifest: Mapping[str, Any]) -> None:
        if (manifest["uid"], manifest["digest"]) != (self._uid, sealed.digest):
            raise SinkError(
                f"sink {self.name!r}: folder {self.root} already shows window {sealed.window} with "
                f"the digest {manifest['digest']}, not {sealed.digest}; nothing was changed. Two "
                "topologies may share it: give each a folder of its own"
            )

    def _check_whole(self, staged: Staged, final: str) -> None:
        """A staged file is there with its digest, under its staged or its final name."""
        if self._is_shown(staged, final):
            return
        try:
            self._verify(staged, self._staged_path(staged.name))
        except SinkError:
            # It may have been renamed between the two looks.
            if not self._is_shown(staged, final):
                raise

    def _show(self, staged: Staged, final: str) -> None:
        target = self.root / final
        if not target.exists():
            try:
                os.rename(self._staged_path(staged.name), target)
                return
            except FileNotFoundError:
                # Another publisher of the same window may have renamed it just now.
                if not target.exists():
                    raise damaged(self.name, staged, "is gone") from None
        if not self._is_shown(staged, final):
            raise self._taken(final)
        self._staged_path(staged.name).unlink(missing_ok=True)

    def _is_shown(self, staged: Staged, final: str) -> bool:
        """Whether a final file is there; it must have the digest that was staged."""
        target = self.root / final
        if not target.exists():
            return False
        if _digest_of_file(target) != (staged.digest, staged.size_bytes):
            raise self._taken(final)
        return True

    def _taken(self, final: str) -> SinkError:
        return SinkError(
            f"sink {self.name!r}: {self.root / final} has other content than the window that it "
            "is named for; move it away, then the window is shown"
        )

    def _verify(self, staged: Staged, path: Path) -> None:
        try:
            digest, size = _digest_of_file(path)
        except FileNotFoundError:
            raise damaged(self.name, staged, "is gone") from None
        if (digest, size) != (staged.digest, staged.size_bytes):
            raise damaged(self.name, staged, f"has {size} bytes with the digest {digest}")

    @contextmanager
    def _disk(self, doing: str) -> Iterator[None]:
        """What goes wrong with the disk becomes a ``SinkError`` that says what to do."""
        try:
            yield
        except OSError as error:
            where = f"sink {self.name!r}: folder {self.root}"
            if error.errno in _FULL:
                raise SinkFullError(
                    f"{where}: no space is left ({error.strerror}) while {doing}; free some, "
                    "then Millrace goes on. Nothing is lost"
                ) from error
            if error.errno in _FORBIDDEN:
                raise SinkError(
                    f"{where}: {error.filename or self.root} cannot be written "
                    f"({error.strerror}) while {doing}; make it writable"
                ) from error
            if isinstance(error, FileNotFoundError):
                raise SinkError(
                    f"{where}: {error.filename} is gone while {doing}; bring the folder back, or "
                    "start over with --fresh"
                ) from error
            raise SinkUnavailableError(
                f"{where}: {error} while {doing}; it is tried again"
            ) from error


def _write(descriptor: int, data: pa.Buffer) -> int:
    view = memoryview(data)
    written = 0
    while written < len(view):
        written += os.write(descriptor, view[written:])
    return written


def _digest_of_file(path: Path) -> tuple[str, int]:
    """Digest and size of a file."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size
