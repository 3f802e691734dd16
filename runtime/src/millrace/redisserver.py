"""Clients of Redis-protocol servers, and what their errors mean; whoever calls says the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S = 2.0


class Trouble(Enum):
    """What is wrong with a server. ``AWAY``, ``LOADING``, ``FULL`` and ``PASSING`` are waited for:
    nobody answers, it reads its file, its memory is full, it cannot write for now."""

    PASSWORD = "password"
    LOADING = "loading"
    AWAY = "away"
    FULL = "full"
    PASSING = "passing"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much memory a server's data takes, and how much it may take; 0: there is no limit."""

    used_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float:
        """The used part of the limit; 0 where there is none."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0

    def __str__(self) -> str:
        return f"{self.used_bytes / _MIB:.1f} of {self.limit_bytes / _MIB:.1f} MiB"


_MIB = 1 << 20

_PASSING = (
    *("BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED"),
    "WAITAOF cannot be used with replica",
)
"""How refusals begin that pass and have no class: a long script, a full disk, too few replicas, and
a server that has become a replica while it was waited for."""

_FAILOVER = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)
"""The client takes the codes that it has a class for off the text."""


def open_client(
    url: str,
    password: str | None = None,
    *,
    answer_s: float,
    connect_s: float = CONNECT_TIMEOUT_S,
    name: str | None = None,
    user: str | None = None,
) -> redis.Redis:
    """A client of one server; connects when it is first used.

    Its errors come at once, since trying again is up to the caller, and no answer is waited for
    longer than ``answer_s``. The server knows its connections by ``name``. ``user`` is whose
    password it is, None: the default one's.
    Raises ``ValueError`` or ``TypeError`` for a bad address.
    """
    options: dict[str, Any] = {"password": password} if password else {}
    if user is not None:
        options["username"] = user
    if not url.lower().startswith("unix:"):
        # Of connections that may be cut in the middle; the package knows it of no others.
        options["socket_keepalive"] = True
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=min(connect_s, answer_s),
        socket_timeout=answer_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        redis_connect_func=None if name is None else _named(name),
        **options,
    )


def _named(name: str) -> Callable[[Any], None]:
    def connected(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("CLIENT", "SETNAME", name)
        # A server may refuse that to this user, who is served without a name then.
        with suppress(redis.ResponseError):
            connection.read_response()

    return connected


def memory_of(client: redis.Redis) -> MemoryUse:
    """What a server says of its memory, counted as it does when it refuses a write."""
    told = cast("Mapping[str, Any]", client.info("memory"))
    uncounted = int(told.get("mem_not_counted_for_evict", 0))
    return MemoryUse(int(told["used_memory"]) - uncounted, int(told["maxmemory"]))


def trouble_of(error: redis.RedisError | OSError) -> Trouble:
    """What an error of a client means."""
    # The classes are nested: a refused password and a server that loads are connection errors.
    if isinstance(error, redis.exceptions.AuthenticationError):
        return Trouble.PASSWORD
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return Trouble.LOADING
    if isinstance(
        error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError
    ):
        return Trouble.AWAY
    # A script that met it is answered with an error of its own around it.
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command" in str(error):
        return Trouble.FULL
    passing = isinstance(error, _FAILOVER) or str(error).startswith(_PASSING)
    return Trouble.PASSING if passing else Trouble.OTHER
