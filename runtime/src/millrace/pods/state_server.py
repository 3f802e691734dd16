"""The state server's pod: runs the server, says which incarnation it is, follows its password.

``python -m millrace.pods state-server``. The server's folder is the pod's volume, so a container
that is started again is a new incarnation that has what the last one had; an empty volume makes an
empty server. When the server ends the container ends with it: the kubelet starts both again.

A pod that is deleted, as in a drain of its node, is named to the driver as one that leaves
(``millrace_operator.reconcile.crew``), which has the others take over what it holds. So SIGTERM
does not end the server as long as somebody uses it (``Farewell``). Whoever does not wait for that,
since no operator runs or the copy takes too long, has lost a server as by any death.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis

from millrace.clock import Clock, SystemClock
from millrace.errors import ExitCode, MillraceError
from millrace.health import Answer, serve
from millrace.homes import pods
from millrace.homes.passwords import ACKER_USER, DEFAULT_USER
from millrace.homes.pods import Role
from millrace.pods.identity import Identity, PodError, accepted, passwords, required
from millrace.pods.logs import start_logs
from millrace.pods.termination import tell_end
from millrace.redisserver import open_client
from millrace.state.embedded import EmbeddedOptions, EmbeddedServer
from millrace.tracking.access import acker_rules

log = logging.getLogger("millrace.state-server")

LOOK_S = 1.0
"""How often the server and the file of its passwords are looked at."""

LEAVE_S = 60.0
"""How long it serves at most when it is to end."""

QUIET_S = 5.0
"""So long nobody asks for anything when it is needed no more: a driver asks each server of its view
every 2 s how full it is."""

OWN_NAME = "pod"
"""By which a server knows connections of its own pod."""

_ANSWER_S = 2.0
_STOP_S = 20.0
_START_S = 3600.0
"""A large file may be read for so long: the probe of life says that it goes on."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who gets in: with the server's ``own`` passwords, the first of which is used, or with those
    of which the digests are known, ``others`` as everybody and ``ackers`` as an acker."""

    own: tuple[str, ...] = field(repr=False)
    others: tuple[str, ...] = ()
    ackers: tuple[str, ...] = ()

    @property
    def used(self) -> str:
        return self.own[0]


class Farewell:
    """Whether a server that is to end since ``since_s`` is still needed, by who uses it: whoever
    has a view without it asks it for nothing, and whoever has ended is not connected.

    One that does not say who uses it may be busy with what they have asked for. It is needed, and
    what was asked meanwhile is seen only afterwards, so that nobody is quiet before that.
    """

    def __init__(self, since_s: float) -> None:
        self._since_s = self._said_s = since_s

    def goes_on(self, now_s: float, idle_s: float | None) -> bool:
        """``idle_s``: how long nobody else has asked for anything; None: nobody is connected."""
        if idle_s is None or self._over(now_s):
            return False
        return min(idle_s, now_s - self._said_s) < QUIET_S

    def goes_on_unsaid(self, now_s: float) -> bool:
        """The server lives, and does not say who uses it."""
        self._said_s = now_s
        return not self._over(now_s)

    def _over(self, now_s: float) -> bool:
        return now_s - self._since_s >= LEAVE_S


class ServerPod:
    """One container's life. ``run`` from the main thread; the answers from any."""

    def __init__(self, identity: Identity, secret: Path, folder: Path, options: EmbeddedOptions):
        self._identity = identity
        self._secret = secret
        self._folder = folder
        self._options = options
        self._server: EmbeddedServer | None = None
        self._accepted: Admitted | None = None
        self._unsure: dict[str, None] = {}
        self._stopped = threading.Event()
        self._uid = os.environ.get(pods.UID, "")

    def questions(self) -> dict[str, Callable[[], Answer]]:
        return {
            pods.LIVE_PATH: self.live,
            pods.READY_PATH: self.ready,
            pods.INCARNATION_PATH: self.incarnation,
        }

    def run(self) -> int:
        """Serve until the server ends, or ``stop`` is called and nobody uses it any more; an exit
        code. Raises ``MillraceError`` where it does not come up."""
        wanted = self._wanted()
        self._server = EmbeddedServer.start(self._folder, self._identity.pod, self._options)
        self._accept(wanted)
        log.info("serving as incarnation %s", self._server.address.run_id)
        while not self._stopped.wait(LOOK_S):
            if not self._server.alive():
                code = self._server.process.returncode
                raise PodError(
                    f"the state server ended with code {code}; the end of its log:\n"
                    f"{self._server.log_tail()}"
                )
            self._follow_passwords()
        self._take_leave(SystemClock())
        self._server.stop(_STOP_S)
        return ExitCode.OK

    def stop(self) -> None:
        self._stopped.set()

    def _take_leave(self, clock: Clock) -> None:
        farewell, pause = Farewell(clock.monotonic_s()), threading.Event()
        while self._goes_on(farewell, clock):
            pause.wait(LOOK_S)
            self._follow_passwords()
        log.info("nobody uses the server any more, or its time is over: it ends")

    def _goes_on(self, farewell: Farewell, clock: Clock) -> bool:
        assert self._server is not None
        if not self._server.alive():
            return False
        try:
            idle_s = self._idle_s()
        except redis.RedisError as error:
            log.info("the server does not say who uses it: %s", error)
            return farewell.goes_on_unsaid(clock.monotonic_s())
        return farewell.goes_on(clock.monotonic_s(), idle_s)

    def _idle_s(self) -> float | None:
        """As ``Farewell`` takes it. Raises ``RedisError`` where the server does not say it."""
        assert self._accepted is not None
        client = self._client(self._accepted.used)
        known = cast("list[Mapping[str, str]]", client.client_list())
        return min((float(one["idle"]) for one in known if one["name"] != OWN_NAME), default=None)

    def live(self) -> Answer:
        return Answer(True, "reads its file") if self._server is None else self._answers()

    def ready(self) -> Answer:
        return Answer(False, "reads its file") if self._server is None else self._answers()

    def incarnation(self) -> Answer:
        if self._server is None or self._accepted is None:
            return Answer(False, "there is none yet")
        address = self._server.address
        assert isinstance(self._options.place, int), "who is elsewhere has no other way to a pod"
        url = pods.state_url(self._identity.ip, self._options.place)
        return Answer(
            True, document={"name": self._identity.pod, "runId": address.run_id, "url": url}
        )

    def _answers(self) -> Answer:
        if self._accepted is None:
            return Answer(False, "its passwords are not set yet")
        try:
            self._client(self._accepted.used).ping()
        except redis.RedisError as error:
            return Answer(False, f"does not answer: {error}")
        return Answer(True, "answers")

    def _client(self, password: str | None) -> redis.Redis:
        assert self._server is not None
        url = self._server.address.url
        return open_client(url, password, answer_s=_ANSWER_S, name=OWN_NAME)

    def _wanted(self) -> Admitted:
        others = accepted(self._secret)
        ackers = tuple(others.get(ACKER_USER, ()))
        if ackers and not self._uid:
            required(os.environ, pods.UID)
        return Admitted(passwords(self._secret), tuple(others.get(DEFAULT_USER, ())), ackers)

    def _follow_passwords(self) -> None:
        """Whoever is connected stays so; the Secret may be half written or wrong for a while."""
        try:
            wanted = self._wanted()
            if wanted != self._accepted or self._unsure:
                self._accept(wanted)
                log.info("the Secret's passwords are accepted from now on, and no others")
        except (PodError, redis.RedisError) as error:
            log.warning("the passwords stay as they are: %s", error)

    def _accept(self, wanted: Admitted) -> None:
        """Accept these passwords and no others: of each user all at once.

        A change that is not answered may have been made all the same. So the server is asked with
        the password that it took last, or one of those that it may have been told since then.
        """
        assert self._server is not None
        used = self._accepted.used if self._accepted else self._server.address.password
        self._unsure[wanted.used] = None
        refused: redis.AuthenticationError | None = None
        for password in dict.fromkeys((used, *self._unsure)):
            try:
                self._admit(wanted, password)
                break
            except redis.AuthenticationError as error:
                refused = refused or error
        else:
            assert refused is not None
            raise refused
        self._accepted = wanted
        self._unsure.clear()

    def _admit(self, wanted: Admitted, password: str | None) -> None:
        client: Any = self._client(password)
        own = (f">{one}" for one in wanted.own)
        others = (f"#{one}" for one in wanted.others)
        if wanted.ackers:
            client.execute_command(
                "ACL", "SETUSER", ACKER_USER, *acker_rules(self._uid, wanted.ackers)
            )
        else:
            client.execute_command("ACL", "DELUSER", ACKER_USER)
        client.execute_command("ACL", "SETUSER", DEFAULT_USER, "resetpass", *own, *others)
        client.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pod's container to its end; returns an exit code."""
    parser = argparse.ArgumentParser(prog="millrace.pods state-server", description=__doc__)
    parser.add_argument("--secret", type=Path, default=Path(pods.SECRET_FOLDER))
    parser.add_argument("--work", type=Path, default=Path(pods.WORK_FOLDER))
    parser.add_argument("--port", type=int, default=pods.STATE_PORT)
    parser.add_argument("--health-port", type=int, default=pods.HEALTH_PORT)
    options = parser.parse_args(arguments)
    try:
        identity = Identity.of(os.environ)
        start_logs(Role.STATE_SERVER, identity)
        server = EmbeddedOptions(
            options.port,
            max_memory_bytes=_max_memory(os.environ.get(pods.MAX_MEMORY, "0")),
            start_timeout_s=_START_S,
            password=passwords(options.secret)[0],
            also=_also(identity.ip),
        )
        pod = ServerPod(identity, options.secret, options.work / "state", server)
        signal.signal(signal.SIGTERM, lambda *_: pod.stop())
        serve(pod.questions(), options.health_port)
        return pod.run()
    except MillraceError as error:
        tell_end(str(error))
        log.critical("%s", error)
        return error.exit_code


def _max_memory(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise PodError(f"{pods.MAX_MEMORY} is {text!r}; write a number of bytes, or 0 for no limit")
    return int(text)


def _also(ip: str) -> tuple[str, ...]:
    return () if ip == "127.0.0.1" else (ip,)


if __name__ == "__main__":
    sys.exit(main())
