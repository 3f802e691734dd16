"""What a files source says of files that are not as they should be: errors, and warnings once."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from millrace.errors import SourceAwayError, SourceError
from millrace.sources.entries import shown_name
from millrace.sources.lines import BadFileError
from millrace.sources.listing import Place

log = logging.getLogger(__name__)


class Complaints:
    """Texts that name the source, the file and the remedy.

    ``path`` is the option as declared, relative to ``folder``; with ``strict`` nothing that should
    be read may be left out.
    """

    def __init__(self, name: str, path: str, folder: Path, place: Place, strict: bool) -> None:
        self._name = name
        self._path = path
        self._folder = folder
        self._place = place
        self._strict = strict
        self._warned: set[tuple[str, str]] = set()

    def skip(self, path: str, why: str, unreadable: bool) -> None:
        """An entry of the folder is left out, which is told once."""
        if unreadable and self._strict:
            raise SourceError(
                f"source {self._name!r}: {self._place.root / shown_name(path)} {why}; make it "
                "readable or take it away"
            )
        self._tell_once(path, f"{why}; it is not read")

    def barred(self, path: str, waits: bool) -> None:
        """A file that was begun must not be read; ``waits``: it has records that are to be read."""
        why = f"cannot be read ({os.strerror(errno.EACCES)})"
        if waits and self._strict:
            file = self._place.root / shown_name(path)
            raise SourceAwayError(f"source {self._name!r}: {file} {why}; make it readable")
        self._tell_once(path, f"{why}; what comes in it waits until it can be")

    def _tell_once(self, path: str, what: str) -> None:
        if (path, what) not in self._warned:
            self._warned.add((path, what))
            log.warning("source %r: %s %s", self._name, self._place.root / shown_name(path), what)

    def lost(self, path: str, why: str) -> None:
        """Records of a file are lost, as far as can be told."""
        file = self._place.root / shown_name(path)
        log.warning(
            "source %r: file %s %s; what it held is not read unless it comes back",
            self._name,
            file,
            why,
        )

    def matches_nothing(self) -> SourceError:
        return SourceError(
            f"source {self._name!r}: files.path {self._path!r} matches no file in "
            f"{self._place.root}; correct the pattern"
        )

    def error(self, path: str, problem: BadFileError) -> SourceError:
        file = self._place.root / shown_name(path)
        return SourceError(f"source {self._name!r}: file {file} {problem}; {problem.remedy}")

    def failing(self, path: str, error: OSError) -> SourceAwayError:
        """A file that is there cannot be read for now, whatever is in it."""
        file, why = self._place.root / shown_name(path), error.strerror or error
        return SourceAwayError(
            f"source {self._name!r}: file {file} cannot be read ({why}); see to the file system "
            "that it lies in"
        )

    def unreadable(self, error: OSError) -> SourceError:
        file = shown_name(str(error.filename or self._place.root))
        if isinstance(error, FileNotFoundError):
            return SourceAwayError(
                f"source {self._name!r}: {file} does not exist; correct files.path "
                f"({self._path!r}, relative to {self._folder}) or put it there"
            )
        return SourceAwayError(
            f"source {self._name!r}: {file} cannot be read ({error.strerror}); make it readable"
        )
