"""State servers of one's own, whose sockets have short paths however deep a test's folder is."""

from __future__ import annotations

import atexit
import itertools
import shutil
import socket
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from millrace.state.embedded import EmbeddedOptions, EmbeddedServer

_numbers = itertools.count()


def sockets() -> Path:
    """A new folder for some, which lives as long as this process."""
    return Path(tempfile.mkdtemp(dir=_folder()))


def remove() -> None:
    """Delete all of them at the end of the tests: who runs these for others ends without
    ``atexit``."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder.cache_clear()


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="millrace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def options(place: Path | int | None = None, **given: Any) -> EmbeddedOptions:
    """Options with a socket that no other server has, where no place is given."""
    return EmbeddedOptions(place or _folder() / f"{next(_numbers)}.sock", **given)


def connected(server: EmbeddedServer) -> socket.socket:
    """A connection to its socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server.address.url.removeprefix("unix://"))
    return connection


def started(folder: Path, name: str = "state-0", **given: Any) -> EmbeddedServer:
    """A server that runs."""
    return EmbeddedServer.start(folder, name, options(**given))
