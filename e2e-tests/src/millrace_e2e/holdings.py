"""What state servers hold, asked of the servers of a work folder themselves: past driver and proxy.

Read from the documents as they are written, so that nothing here is the product's own opinion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from millrace_e2e import processes

ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Lack:
    """A piece of state, and an owner that does not have it."""

    name: str
    owner: str


def record(work: Path, server: str) -> dict[str, Any]:
    """The record that a server has; empty where it has none."""
    with _client(work, server) as client:
        data = client.get(_key(work, "record"))
    return dict(json.loads(data)["value"]) if data else {}


def lacking(work: Path) -> list[Lack]:
    """State of the newest record that not every owner has, by the view as it is.

    Only while no window runs under it: a seal supersedes what was read a moment before. Raises
    ``LookupError`` where no record names any state.
    """
    view = processes.view(work)
    records = [record(work, member["name"]) for member in view["target"]]
    newest = max(filter(None, records), key=_version)
    named = [segment for chain in newest["chains"].values() for segment in chain]
    if not named:
        raise LookupError("the record names no state, so that nobody can lack it")
    held = {member["name"]: _objects(work, member["name"]) for member in view["target"]}
    return [
        Lack(segment["name"], owner)
        for segment in named
        for owner in sorted(_owners(view, int(segment["groups"], 16)))
        if segment["name"] not in held[owner]
    ]


def _owners(view: dict[str, Any], groups: int) -> set[str]:
    """Those of all key groups of a bit mask."""
    return {
        owner
        for group, owners in enumerate(view["owners"])
        if groups >> group & 1
        for owner in owners
    }


def _version(found: dict[str, Any]) -> tuple[int, ...]:
    tag = found["tag"]
    return tuple(tag[part] for part in ("timeline", "execution", "epoch", "seq"))


def _objects(work: Path, server: str) -> set[str]:
    with _client(work, server) as client:
        return {str(name) for name in client.smembers(_key(work, "objects"))}


def _key(work: Path, name: str) -> str:
    return f"mr:{{{processes.view(work)['uid']}}}:{name}"


@contextmanager
def _client(work: Path, server: str) -> Iterator[redis.Redis]:
    (url,) = [one["url"] for one in processes.view(work)["target"] if one["name"] == server]
    password = (work / server / "password").read_text().strip()
    client = redis.Redis.from_url(
        url, password=password, socket_timeout=ANSWER_S, decode_responses=True
    )
    try:
        yield client
    finally:
        client.close()
