"""The acker of a local run: ``millrace.tracking.process`` that follows the view, and tells how much
it holds for a root.

The ack log lies on the first member of the view. When that is another one the acker reads there,
from the beginning, as after a crash. The figures are measured where a slice is judged: the bytes of
its array of check values, and the roots that the slice has. They go into a small JSON file, which
nothing depends on.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import ExitCode, MillraceError
from millrace.homes.settings import PASSWORD_VARIABLE
from millrace.local.files import write_json
from millrace.logs import stacks
from millrace.logs.repeats import quiet_repeats
from millrace.protocol.acklog import Open, roots_of
from millrace.protocol.types import CloseMarker, Member
from millrace.redisserver import open_client
from millrace.state.viewfile import WatchedView
from millrace.tracking.fold import ArrayFold
from millrace.tracking.log import AckLog, reader_name
from millrace.tracking.message import AckMessage, Seeds
from millrace.tracking.process import Acker

log = logging.getLogger("millrace.acker")

_WRITE_EVERY_S = 0.5

_LOOK_S = 0.25
"""How soon it is noticed that the log is elsewhere while nothing is written to it."""

_ANSWER_S = 3.0
"""The same where its server hangs."""

_NOBODY_S = 0.05
_NOWHERE = "redis://127.0.0.1:1"


@dataclass(slots=True)
class Figures:
    """Judged slices added up: their roots, and the bytes of their arrays. Messages that were
    folded, with the check values in them, and how often the log was read from its beginning."""

    roots: int = 0
    bytes: int = 0
    slices: int = 0
    messages: int = 0
    entries: int = 0
    readings: int = 0


class MeasuredFold(ArrayFold):
    """A fold that adds its size to ``figures`` when it is judged."""

    def __init__(self, opened: Open, partition: int, figures: Figures) -> None:
        super().__init__(opened, partition)
        self._judged_roots = roots_of(opened.id.window, partition, opened.roots, opened.slices)
        self._figures = figures

    def apply(self, message: AckMessage) -> None:
        super().apply(message)
        self._figures.messages += 1
        self._figures.entries += sum(
            net.count if isinstance(net, Seeds) else len(net.values) for net in message.nets
        )

    def seed(self, marker: CloseMarker) -> None:
        super().seed(marker)
        self._figures.slices += 1
        self._figures.roots += self._judged_roots
        self._figures.bytes += self.size_bytes


class LocalAcker(Acker):
    """An acker that reads the log on the server that ``where`` names, None while nobody knows.
    ``knows`` says whether somebody did at the last step.

    It writes ``path`` after what it judged, twice a second at most.
    """

    def __init__(
        self,
        name: str,
        where: Callable[[], Member | None],
        open_log: Callable[[str], AckLog],
        path: Path,
    ) -> None:
        self.figures = Figures()
        self._path = path
        self._written = (0, float("-inf"))
        self._where = where
        self._open_log = open_log
        self._at = where()
        self.knows = False
        super().__init__(name, open_log(self._url))

    def restart(self) -> None:
        super().restart()
        self.figures.readings += 1

    def fold(self, opened: Open, partition: int) -> MeasuredFold:
        return MeasuredFold(opened, partition, self.figures)

    def step(self, block_s: float = _LOOK_S) -> bool:
        at = self._where()
        self.knows = at is not None
        if at is None:
            time.sleep(_NOBODY_S)
            return False
        if at != self._at:
            self._move(at)
        found = super().step(block_s)
        roots, written_s = self._written
        told = self.figures
        if told.roots != roots and time.monotonic() - written_s >= _WRITE_EVERY_S:
            self._written = (told.roots, time.monotonic())
            with suppress(OSError):
                write_json(self._path, {"roots": told.roots, "bytes": told.bytes}, durable=False)
        return found

    def _move(self, at: Member) -> None:
        log.info("the ack log is on %s", at.name)
        there, self._at = self._at, at
        if there is None or at.url != there.url:
            self.reopen()
        self.restart()

    def reopen(self) -> None:
        """Connect anew to where the log is."""
        self.log.close()
        self.log = self._open_log(self._url)

    @property
    def _url(self) -> str:
        return self._at.url if self._at is not None else _NOWHERE


def follow(view: Path) -> Callable[[], Member | None]:
    """Where the log is, by a view file."""
    watched = WatchedView(view)

    def where() -> Member | None:
        found = watched.look()
        return found.log_member if found is not None else None

    return where


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an acker until it is ended; returns an exit code."""
    parser = argparse.ArgumentParser(prog="millrace.local.acker", description=__doc__)
    parser.add_argument("--name", required=True, help="name in the list of members")
    parser.add_argument("--view", required=True, type=Path, help="file of the view")
    parser.add_argument("--uid", required=True, help="uid of the topology")
    parser.add_argument("--figures", required=True, type=Path, help="file to write figures to")
    parser.add_argument("--user", help="as whom it is known to the servers")
    parser.add_argument("--ready", type=Path, help="file to make once the log can be read")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=os.environ.get("MILLRACE_LOG_LEVEL", "INFO"),
        format=f"%(asctime)s %(levelname)s {options.name} %(message)s",
        stream=sys.stderr,
    )
    quiet_repeats()
    stacks.write_on_request()
    # What an acker holds outlives it in the log: there is nothing to be put in order.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def open_log(url: str) -> AckLog:
        password, name = os.environ.get(PASSWORD_VARIABLE), reader_name(options.uid, options.name)
        client = open_client(url, password, answer_s=_ANSWER_S, name=name, user=options.user)
        return AckLog(client, options.uid)

    options.figures.parent.mkdir(mode=0o700, exist_ok=True)
    log.info("serving topology %s, process %d", options.uid, os.getpid())
    if options.ready is not None:
        with suppress(OSError):  # whoever waits for it gives up in time
            options.ready.touch(mode=0o600)
    try:
        LocalAcker(options.name, follow(options.view), open_log, options.figures).run()
    except MillraceError as error:
        log.critical("%s", error)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
