"""The kind ``redis`` of sinks: rows in a Redis-protocol server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.addresses import OWN_KEYS, redis_fault, redis_remedy, shown_address
from millrace.topology.edges import no_column
from millrace.topology.kinds.base import Effect, FieldEdit, SinkKind
from millrace.topology.parts import Part
from millrace.topology.problems import NOTHING, Problem, format_path
from millrace.topology.scalars import Text
from millrace.topology.secretrefs import SecretText

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
"""A column in the key: ``wc:{word}``."""


class RedisMode(str, Enum):
    """What a row becomes in Redis."""

    HASH = "hash"
    STREAM = "stream"


class RedisSink(Part):
    """Rows in a Redis-protocol server, one transaction for each window."""

    url: Text = Field(description="redis://[[user]:password@]host:port[/db], or rediss://")
    password: SecretText | None = Field(
        None,
        description="The password, where it is not to stand in the url: that names the user at "
        "most, redis://user@host:port.",
    )
    mode: RedisMode = Field(
        RedisMode.HASH, description="hash: upsert of a hash for each row. stream: one entry a row."
    )
    key: Text | None = Field(None, description='Name of a row\'s hash, e.g. "wc:{word}".')
    stream: Text | None = Field(None, description="Name of the stream.")


class RedisSinkKind(SinkKind[RedisSink]):
    """Hashes or a stream, shown and marked in one script."""

    name = "redis"
    meaning = "A Redis-protocol server."
    settings = RedisSink
    runs = "millrace.sinks.redis:RedisSink"
    fillers = {"url": "redis://unnamed"}
    edits = (
        FieldEdit("password", Effect.RESTART, "the sink is opened with it at the start"),
        *(replace(rule, field="url", but_password="password") for rule in SinkKind.edits),
        *SinkKind.edits,
    )

    def summary(self, settings: RedisSink) -> str:
        return f"redis {settings.mode.value} {settings.key or settings.stream}"

    def place(self, settings: RedisSink, folder: Path) -> str:
        shown = shown_address(settings.url)
        return f"{shown} {settings.key or settings.stream or ''}".rstrip()

    def check(self, settings: RedisSink, component: Component, facts: Facts) -> Iterator[Problem]:
        """The fields must fit the mode, and columns in the key must exist."""
        base = format_path((*component.path, "redis"))
        yield from address_problems(f"{base}.url", settings.url, settings.password is not None)
        hashes = settings.mode is RedisMode.HASH
        wanted, other = ("key", "stream") if hashes else ("stream", "key")
        if getattr(settings, wanted) is None:
            example = "wc:{word}" if wanted == "key" else "words"
            message = f"is missing in mode {settings.mode.value}"
            remedy = f'add it, e.g. {wanted}: "{example}"'
            yield Problem(f"{base}.{wanted}", NOTHING, message, remedy)
        if (extra := getattr(settings, other)) is not None:
            message = f"does not apply in mode {settings.mode.value}"
            yield Problem(f"{base}.{other}", extra, message, "remove it or change the mode")
        if (held := getattr(settings, wanted)) is not None and held.startswith(OWN_KEYS):
            message = f"begins with {OWN_KEYS}, as Millrace's own keys do"
            yield Problem(f"{base}.{wanted}", held, message, "name another one")
        if settings.key is None:
            return
        if hashes and settings.key and not _PLACEHOLDER.search(settings.key):
            yield Problem(
                f"{base}.key",
                settings.key,
                "is the same for all rows, so each would overwrite the one before",
                "put a column in it, e.g. wc:{word}",
            )
        for edge in facts.graph.inputs(component.name):
            columns = facts.columns_on(edge)
            for column in _PLACEHOLDER.findall(settings.key) if columns is not None else []:
                if columns is not None and column not in dict(columns):
                    yield no_column(f"{base}.key", column, edge.producer, columns)


def address_problems(path: str, address: str, apart: bool = False) -> Iterator[Problem]:
    """What is wrong with the address of a Redis-protocol server; ``apart``: its password stands
    elsewhere."""
    fault = redis_fault(address, apart=apart)
    if fault is not None:
        yield Problem(path, shown_address(address), fault, redis_remedy(apart=apart))


REDIS_SINK = RedisSinkKind()
