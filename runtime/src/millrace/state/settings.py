"""Settings of a state server that decide whether a sealed window survives its crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import redis

from millrace.errors import StateServerError

_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")


def check_settings(client: redis.Redis, shown: str) -> None:
    """Refuse a server that may lose or evict what it acknowledged.

    ``shown`` names the server in messages. Raises ``StateServerError`` with the remedy, or the
    client library's own errors.
    """
    info = cast("Mapping[str, Any]", client.info())
    version = _version(info)
    if version < (7, 2):
        raise StateServerError(
            f"state server {shown} is version {'.'.join(map(str, version))}; use Valkey, or "
            "Redis 7.2 or later"
        )
    if info.get("role") != "master":
        raise StateServerError(
            f"state server {shown} is a replica (role {info.get('role')}); name its primary"
        )
    found = cast("Mapping[str, str]", client.config_get(*_SETTINGS))
    _require(shown, found, "appendonly", "yes", "or a sealed window is lost with the process")
    _require(shown, found, "maxmemory-policy", "noeviction", "or it drops state when it is full")
    _require(
        shown, found, "no-appendfsync-on-rewrite", "no", "or a seal waits until a rewrite has ended"
    )
    if found.get("appendfsync") not in ("always", "everysec"):
        raise StateServerError(
            f"state server {shown} has appendfsync {found.get('appendfsync')}: set it to always"
            " (fastest here), or to everysec"
        )


def _require(shown: str, found: Mapping[str, str], name: str, value: str, why: str) -> None:
    if found.get(name) != value:
        raise StateServerError(
            f"state server {shown} has {name} {found.get(name)}: set it to {value} "
            f"(CONFIG SET {name} {value}, and in its configuration file), {why}"
        )


def _version(info: Mapping[str, Any]) -> tuple[int, ...]:
    text = str(info.get("redis_version", "0.0"))
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
