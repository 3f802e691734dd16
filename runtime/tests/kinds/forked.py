"""Processes that begin with what takes long to import, and with the kinds of no package.

One process imports it and forks another one for each call, which then costs what it does itself.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

IMPORTED = (
    "rich.markdown",
    "typer.rich_utils",
    "yaml",
    "millrace.topology.kinds.processor_lookup",
    "millrace.topology.kinds.processor_sql",
    "millrace.topology.kinds.sink_files",
    "millrace.topology.kinds.sink_redis",
    "millrace.topology.kinds.source_files",
    "millrace.topology.kinds.source_generator",
    "millrace.topology.pods",
)

REGISTRY = "millrace.topology.kinds.registry"
"""Looks for the kinds of packages once, when it is imported: each call has one of its own."""

STREAMS = ("in", "out", "err")

ENDED_S = 60.0


class Forks:
    """Forks of one process, one at a time. Not thread-safe; ``close`` ends it."""

    def __init__(self, folder: Path) -> None:
        """What is said to a fork and by it goes through files of a folder."""
        self._folder = folder
        self._first = subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1", "TERMINAL_WIDTH": "200"},
        )

    def call(
        self, program: str, *arguments: str, site: Path, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """A program, as of ``python -c``, beside a folder whose packages are installed."""
        assert self._first.stdin is not None
        assert self._first.stdout is not None
        into, out, err = (self._folder / name for name in STREAMS)
        into.write_text(text)
        request = {"program": program, "arguments": arguments, "site": str(site)}
        print(json.dumps(request), file=self._first.stdin, flush=True)
        code = int(self._first.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def close(self) -> None:
        assert self._first.stdin is not None
        self._first.stdin.close()
        try:
            assert self._first.wait(ENDED_S) == 0
        finally:
            self._first.kill()


def serve(folder: Path) -> None:
    """Fork for each line of the input; answer with the exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert REGISTRY not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(folder, **json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(folder: Path, program: str, arguments: list[str], site: str) -> None:
    """Run the program, and end as a process that was started for it would."""
    for number, name in enumerate(STREAMS):
        how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        handle = os.open(folder / name, how, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(Path(site).parent)
    sys.path.insert(0, site)
    sys.argv = ["millrace", *arguments]
    exec(program, {"__name__": "__main__"})
    raise SystemExit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
