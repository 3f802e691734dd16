"""The acker's pod: ``python -m millrace.pods acker``, an acker that follows the view's ConfigMap.

It holds nothing that the log does not have, so it may end at any moment. An API server that is away
leaves it reading where it read last.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import redis

from millrace.connector import secret_value
from millrace.errors import ExitCode, MillraceError, StateServerError
from millrace.health import Answer, Beat, serve
from millrace.homes import pods
from millrace.homes.passwords import ACKER_USER
from millrace.homes.pods import Role
from millrace.kube.configmaps import ConfigMap, Held, own_api
from millrace.kube.viewmap import decode
from millrace.kube.watching import WatchedMap
from millrace.local.acker import LocalAcker
from millrace.metrics import catalogue
from millrace.metrics.tally import Sample
from millrace.pods.identity import (
    Identity,
    passwords,
    private_files,
    private_scratch,
    required,
)
from millrace.pods.logs import start_logs
from millrace.pods.metrics import told
from millrace.pods.reading import OwnServerReading, serve_readers
from millrace.pods.termination import tell_end
from millrace.protocol.types import Member, View
from millrace.redisserver import open_client
from millrace.state.client import StateAddress
from millrace.topology.secretrefs import SecretRef
from millrace.tracking.log import AckerLoad, AckLog, reader_name

log = logging.getLogger("millrace.acker")

LIVE_S = 60.0
LOAD_S = 1.0
"""How often an acker tells the driver what it has used, beside the log."""

_ANSWER_S = 3.0


class Whereabouts:
    """Where the log is, by the view; asked from the acker's thread, known to others."""

    def __init__(self, name: str, watched: WatchedMap, beat: Beat) -> None:
        self._name = name
        self._watched = watched
        self._beat = beat
        self._seen: Held | None = None
        self.view: View | None = None

    def __call__(self) -> Member | None:
        self._beat()
        held = self._watched.latest()
        if held != self._seen:
            self._seen = held
            try:
                _, self.view = decode(self._name, held)
            except MillraceError as error:
                # The driver ends by it; until it is mended this acker stays where it is.
                log.warning("%s", error)
        return self.view.log_member if self.view is not None else None


class Introduction:
    """As whom an acker gives its password: as an acker first. A state server of a release that
    knows no such user takes it from anybody, and so does one that shares a password with all."""

    def __init__(self, user: str | None = ACKER_USER) -> None:
        """``user`` None: it is always anybody, to a server of the user's own."""
        self.user = user
        self._ways = {user: None, None: user}

    def refused(self) -> None:
        """The other way is tried next, if there is one."""
        self.user = self._ways[self.user]


class PodAcker(LocalAcker):
    """An acker that knows whether it reads the log, and tells its figures and its load.

    A state server's mounted Secret is behind the operator's by up to two minutes, so a password
    that is refused is tried again, as ``introduction`` says.
    """

    refused_ends = False
    reads = False
    _told_s = float("-inf")

    def __init__(
        self,
        name: str,
        where: Callable[[], Member | None],
        open_log: Callable[[str], AckLog],
        path: Path,
        introduction: Introduction,
    ) -> None:
        self._introduction = introduction
        super().__init__(name, where, open_log, path)

    def restart(self) -> None:
        self.reads = False
        super().restart()

    def step(self, *block_s: float) -> bool:
        try:
            found = super().step(*block_s)
        except StateServerError as error:
            if isinstance(error.__cause__, redis.AuthenticationError):
                self._introduction.refused()
                self.reopen()
            raise
        self.reads = self.knows
        if not self.knows:
            return found
        if (now_s := time.monotonic()) - self._told_s >= LOAD_S:
            self._told_s = now_s
            # A server that is full or away has more to worry about.
            with suppress(StateServerError):
                self.log.tell_load(self.name, AckerLoad(time.process_time(), now_s))
        return found

    def samples(self) -> Iterator[Sample]:
        """All of ``catalogue.ACKER``, from any thread."""
        figures, machine = self.figures, self.machine
        yield Sample(catalogue.ACKER_READING, float(self.reads))
        yield Sample(catalogue.ACKER_ROOTS, figures.roots)
        yield Sample(catalogue.ACKER_SLICES, figures.slices)
        yield Sample(catalogue.ACKER_BYTES, figures.bytes)
        yield Sample(catalogue.ACKER_MESSAGES, figures.messages)
        yield Sample(catalogue.ACKER_ENTRIES, figures.entries)
        yield Sample(catalogue.ACKER_READINGS, figures.readings)
        yield Sample(catalogue.ACKER_OWNED, machine.slices_owned)
        yield Sample(catalogue.ACKER_OPEN, len(machine.attempts))


def password_of(own_server: str | None, secret: Path) -> str | None:
    """The acker's own as it stands now. ``own_server``: where that of a server of the user's own
    stands. Raises ``PodError``, ``StateServerError``."""
    if own_server is None:
        return passwords(secret)[0]
    if not own_server:
        return None
    name, _, key = own_server.partition("/")
    of = "spec.stateServers.password"
    return secret_value(SecretRef(name=name, key=key), of, StateServerError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pod's container to its end; returns an exit code."""
    parser = argparse.ArgumentParser(prog="millrace.pods acker", description=__doc__)
    parser.add_argument("--secret", type=Path, default=Path(pods.SECRET_FOLDER))
    parser.add_argument("--scratch", type=Path, default=Path(pods.SCRATCH_FOLDER))
    parser.add_argument("--health-port", type=int, default=pods.HEALTH_PORT)
    parser.add_argument("--reading-port", type=int, default=pods.READING_PORT)
    parser.add_argument(
        pods.OWN_SERVER_OPTION,
        metavar="SECRET/KEY",
        help="the state server is the user's own; where its password stands, empty for none",
    )
    options = parser.parse_args(arguments)
    # What an acker holds outlives it in the log: there is nothing to be put in order.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.OK))
    try:
        identity = Identity.of(os.environ)
        start_logs(Role.ACKER, identity)
        uid = required(os.environ, pods.UID)
        private_files()
        scratch = private_scratch(options.scratch)
        password_of(options.own_server, options.secret)
        # A server of the user's own knows no acker.
        introduction = Introduction(None if options.own_server is not None else ACKER_USER)

        def open_log(url: str) -> AckLog:
            password = password_of(options.own_server, options.secret)
            name, user = reader_name(uid, identity.pod), introduction.user
            client = open_client(url, password, answer_s=_ANSWER_S, name=name, user=user)
            return AckLog(client, uid)

        name, beat = pods.view_map(identity.topology), Beat(LIVE_S)
        watched = WatchedMap(ConfigMap(own_api(), identity.namespace, name))
        where = Whereabouts(name, watched, beat)
        figures = scratch / "figures.json"
        acker = PodAcker(identity.pod, where, open_log, figures, introduction)

        def address() -> StateAddress | None:
            if where.view is None:
                return None
            password = password_of(options.own_server, options.secret)
            return StateAddress.of(where.view.log_member, password)

        def ready() -> Answer:
            if not watched.known:
                return Answer(False, f"ConfigMap {name} was not read yet")
            if where.view is None:
                return Answer(True, "there is no view yet")
            text = "reads" if acker.reads else "does not read"
            return Answer(acker.reads, f"{text} the log on {where.view.log_member.name}")

        asked = {
            pods.LIVE_PATH: beat.answer,
            pods.READY_PATH: ready,
            pods.METRICS_PATH: told(catalogue.ACKER, acker.samples),
        }
        serve(asked, options.health_port)
        if options.own_server is not None:
            # Behind the end of all input nobody else is left who can read that server.
            known = partial(passwords, options.secret)
            serve_readers(OwnServerReading(uid, address, known), options.reading_port)
        log.info("serving topology %s", uid)
        acker.run()
    except MillraceError as error:
        tell_end(str(error))
        log.critical("%s", error)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
