"""Errors of the client library as errors that name the server and the remedy."""

from __future__ import annotations

import redis

from millrace.errors import StateServerError
from millrace.redisserver import Trouble, trouble_of
from millrace.state.errors import OutOfMemoryError, UnreachableError


class translated:  # noqa: N801
    """Context that turns errors of the client library into this package's; ``shown`` is what
    messages call the server ``name``."""

    def __init__(self, shown: str, name: str) -> None:
        self._shown = shown
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, redis.RedisError):
            told = _translate(self._shown, error)
            if isinstance(told, UnreachableError):
                told.server = self._name
            raise told from error


_CAUSES: tuple[tuple[type[redis.RedisError] | None, str, str], ...] = (
    (redis.exceptions.NoPermissionError, "NOPERM", "let this user run EVALSHA, CONFIG and INFO"),
    (redis.exceptions.ReadOnlyError, "READONLY", "it is a replica; name its primary"),
    (redis.exceptions.ClusterError, "MOVED", "clusters are not supported; name single servers"),
    (None, "MISCONF", "it cannot write its append-only file; look at its log and its disk"),
    (None, "UNKNOWN COMMAND", "use Valkey, or Redis 7.2 or later"),
)
"""Kind of error, what it begins with (the client library cuts off codes it knows), remedy."""


def _translate(shown: str, error: redis.RedisError) -> StateServerError:
    text = str(error)
    trouble = trouble_of(error)
    if trouble is Trouble.PASSWORD:
        return StateServerError(
            f"state server {shown} does not accept the password ({text}); put the right one into "
            "the Secret that spec.stateServers.password names, or into its url, or remove the "
            "server's password"
        )
    if trouble is Trouble.LOADING:
        return UnreachableError(f"state server {shown} is still loading its append-only file")
    if trouble is Trouble.AWAY:
        return UnreachableError(
            f"state server {shown} cannot be reached ({text}); start it, or correct "
            "spec.stateServers.url"
        )
    if trouble is Trouble.FULL:
        return OutOfMemoryError(
            f"state server {shown}: its memory is full; raise its maxmemory "
            "(spec.stateServers.memory where Millrace starts it), or have less state (fewer keys, "
            "smaller windows)"
        )
    for kind, code, remedy in _CAUSES:
        if (kind is not None and isinstance(error, kind)) or text.upper().startswith(code):
            return StateServerError(f"state server {shown} answered {text!r}: {remedy}")
    return StateServerError(f"state server {shown} answered {text!r}")
