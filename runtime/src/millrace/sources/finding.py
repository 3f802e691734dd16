"""Finds the file of a locator again, whatever it is called by now.

A locator of a files source is ``{"e": entry, "f": path, "i": inode, "x": [length, digest], ...}``,
with what its format adds: the number of the entry, where its file was and which inode it had when
the range was planned, and the digest of the file's beginning. Locators of older releases have "f"
alone. Content decides: every format checks what it reads against digests in the locator, so a file
at the path is used if it holds what was planned, and else every other file of the folder is asked.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from millrace.sources.entries import plain_name
from millrace.sources.formats import FileFormat, Opened, open_regular
from millrace.sources.listing import Doubt, FileStat, Place, Stillness


def candidates(place: Place, form: FileFormat, locator: Any) -> Iterator[Opened]:
    """Files that may hold the records of a locator, the likeliest first, open for reading.

    Each is closed when the next is asked for. Raises ``OSError`` where the file at the path, or the
    one with the inode, cannot be read and no other one will do, or the folder cannot be listed.
    """
    path = plain_name(locator["f"])
    place.decide()
    tried: set[tuple[int, int]] = set()
    refused: PermissionError | None = None
    try:
        with suppress(FileNotFoundError, NotADirectoryError), _opened(place, path) as (file, stat):
            tried.add(stat.node)
            yield file
    except PermissionError as error:
        refused = error
    doubt = Doubt(time.monotonic())
    still: Stillness | None = None
    while True:
        stale = False
        listed = {**place.around([path]), **_look(place)}
        order = sorted(listed, key=lambda p: (listed[p].inode != locator.get("i"), p))
        for other in order:
            if listed[other].node in tried:
                continue
            try:
                with _opened(place, other) as (file, stat):
                    stale = stale or stat.node != listed[other].node
                    if stat.node not in tried and form.fits(file, locator):
                        tried.add(stat.node)
                        yield file
            except FileNotFoundError:
                stale = True
            except PermissionError as error:
                if listed[other].inode == locator.get("i"):
                    refused = error
        # It may have been renamed behind the listing: it is not there if names rested meanwhile.
        rested = not stale and still is not None and still.lasted()
        if rested or doubt.is_over(time.monotonic()):
            if refused is not None:
                raise refused
            if not place.was_there:
                # Of a folder that is away, perhaps.
                raise FileNotFoundError(errno.ENOENT, "", place.root / place.file)
            return
        still = Stillness(place, [path, *listed])


def _look(place: Place) -> dict[str, FileStat]:
    try:
        return dict(place.look())
    except FileNotFoundError:
        # One file that is read, and that has another name now.
        return {}


@contextmanager
def _opened(place: Place, path: str) -> Iterator[tuple[Opened, FileStat]]:
    descriptor, found = open_regular(place.root / path)
    try:
        yield Opened(descriptor, found.st_size), FileStat.of(found)
    finally:
        os.close(descriptor)
