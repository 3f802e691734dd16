"""The kit's processes: ``python -m millrace.testing.worker`` loads the class and forks copies.

The first line on standard input says what to load, each further one asks for a copy. A copy is a
process of its own with one object; it is told what to call through a socket and lives until that
closes. It runs no thread, and its parent ran none when it was forked.
"""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from millrace import pandaslater
from millrace.errors import FencedError, SinkError, SourceError, error_text
from millrace.guard import die_with
from millrace.testing import wire
from millrace.testing.acts import SINK_ACTS, SOURCE_ACTS, FolderArea
from millrace.testing.effects import Noticed
from millrace.testing.lines import CodeLines, Place

COUNTS: Mapping[str, Noticed | None] = {
    "count": None,
    "count for kill": "changes",
    "count for sleep": "looks",
}
"""Steps that only tell where a call can be stopped, and what tells its parts from one another.

An exception is told from another one by where it is raised. What is dead knows nothing of what it
saw; what sleeps acts on that when it is woken.
"""


def load(module: str, file: str, name: str) -> type[Any]:
    """A class by its name, or where its module cannot be imported by that, by its file."""
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        found = importlib.util.module_from_spec(spec)
        sys.modules[module] = found
        spec.loader.exec_module(found)
    for part in name.split("."):
        found = getattr(found, part)
    loaded: type[Any] = found
    return loaded


def root_of(file: str) -> Path:
    """The folder of the code under test: that of its module, with what lies below."""
    return Path(file).resolve().parent


def main() -> None:
    """Serve until standard input ends."""
    # What the code under test prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = wire.read(sys.stdin.buffer)
    if asked is None:
        return
    sys.path[:] = asked["path"]
    pandaslater.put_off()
    try:
        kind = load(asked["module"], asked["file"], asked["class"])
    except Exception as error:  # noqa: BLE001 importing runs the user's module
        wire.write(answers, {"error": error_text(error)})
        return
    wire.write(answers, {})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # what is here now stays shared with the copies
    lines = CodeLines(root_of(asked["file"]))
    parent = os.getpid()
    while (asked := wire.read(sys.stdin.buffer)) is not None:
        if os.fork() == 0:
            die_with(parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _Copy(kind, asked, lines).serve()
            finally:
                os._exit(0)


class _Copy:
    """One copy of the source or sink, in this process alone."""

    def __init__(self, kind: type[Any], asked: dict[str, Any], lines: CodeLines) -> None:
        self._kind = kind
        self._asked = asked
        self._lines = lines
        self._object: Any = None
        link = socket.socket(socket.AF_UNIX)
        link.connect(asked["socket"])
        self._in: BinaryIO = link.makefile("rb")
        self._out: BinaryIO = link.makefile("wb")
        wire.write(self._out, {"pid": os.getpid()})

    def serve(self) -> None:
        """Do what is asked until the other side is gone."""
        while (asked := wire.read(self._in)) is not None:
            wire.write(self._out, self._answer(asked))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        acts = SINK_ACTS if self._asked["role"] == "sink" else SOURCE_ACTS

        def work() -> Any:
            if self._object is None:
                self._object = self._make()
            return acts[asked["act"]](self._object, asked["args"])

        try:
            if asked["step"] in COUNTS:
                value, places, parts = self._lines.places(work, COUNTS[asked["step"]])
                return {"value": value, "places": places, "parts": parts}
            if asked["step"] is not None:
                act = self._act(asked["step"])
                return {"value": self._lines.run(work, asked["at"], act)}
            return {"value": work()}
        except Exception as error:  # noqa: BLE001 the boundary of the code under test
            return {"error": _described(error)}

    def _make(self) -> Any:
        asked = self._asked
        made = self._kind(asked["name"], json.loads(asked["options"]), Path(asked["folder"]))
        if asked["role"] == "sink":
            made.staging = FolderArea(Path(asked["area"]))
        return made

    def _act(self, step: str) -> Callable[[Place], None]:
        def kill(_: Place) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def fail(place: Place) -> None:
            raise OSError(errno.EIO, f"made by millrace.testing at line {place[1]}")

        def sleep(place: Place) -> None:
            sys.settrace(None)
            wire.write(self._out, {"asleep": place})
            if wire.read(self._in) is None:
                os._exit(0)

        return {"kill": kill, "fail": fail, "sleep": sleep}[step]


def _described(error: Exception) -> dict[str, Any]:
    kind = "other"
    for known, name in ((FencedError, "fenced"), (SinkError, "sink"), (SourceError, "source")):
        if isinstance(error, known):
            kind = name
    last = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "kind": kind,
        "type": type(error).__name__,
        "message": str(error),
        "retryable": bool(getattr(error, "retryable", False)),
        "where": f"{Path(last.filename).name}:{last.lineno}",
    }


if __name__ == "__main__":
    main()
