"""Rules about single parts and settings: kinds, sources, sinks, guarantee, acker and state."""

from __future__ import annotations

import re
from collections.abc import Iterator

from millrace.addresses import REDIS_REMEDY, redis_fault, shown_address
from millrace.ddl import parse_schema
from millrace.errors import TopologyError
from millrace.topology.facts import Facts
from millrace.topology.model import (
    Emit,
    FilesSource,
    Guarantee,
    RedisMode,
    RedisSink,
    SinkFormat,
    SourceFormat,
)
from millrace.topology.places import reads_from, real
from millrace.topology.problems import NOTHING, Problem, format_path

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
"""A column in the key of a Redis sink: ``wc:{word}``."""


def exactly_one_kind(facts: Facts) -> Iterator[Problem]:
    """A source, processor or sink must declare what it is, once."""
    spec = facts.topology.spec
    lists = (("sources", spec.sources), ("processors", spec.processors), ("sinks", spec.sinks))
    for name, parts in lists:
        for index, part in enumerate(parts):
            kinds = part.declared_kinds()
            if len(kinds) != 1:
                found = f"declares {' and '.join(kinds)}" if kinds else "declares no kind"
                yield Problem(
                    format_path(("spec", name, index)),
                    part.name,
                    found,
                    f"give it exactly one of {', '.join(part.kinds)}",
                )


def one_place_of_code(facts: Facts) -> Iterator[Problem]:
    """User code comes from one place."""
    code = facts.topology.spec.code
    places = {"path": code.path, "image": code.image, "configMap": code.config_map}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        message = f"declares {' and '.join(given)}"
        yield Problem("spec.code", NOTHING, message, "keep one of them")


def files_sources(facts: Facts) -> Iterator[Problem]:
    """The schema of a files source must fit its format."""
    for component, source in facts.sources():
        if source.files is not None:
            path = format_path((*component.path, "files", "schema"))
            yield from _files_schema(source.files, path)


def _files_schema(files: FilesSource, path: str) -> Iterator[Problem]:
    declared = files.format in (SourceFormat.JSON_LINES, SourceFormat.CSV)
    if files.columns is None:
        if declared:
            message = f"is missing; {files.format.value} does not say which columns it has"
            yield Problem(path, NOTHING, message, 'add it, e.g. schema: "user string, n long"')
    elif not declared:
        own = "the column value string" if files.format is SourceFormat.TEXT else "its own columns"
        yield Problem(
            path, files.columns, f"does not apply: {files.format.value} has {own}", "remove it"
        )
    else:
        try:
            parse_schema(files.columns)
        except TopologyError as error:
            fault = str(error).removeprefix(f"schema {files.columns!r}").lstrip(",: ")
            message, _, remedy = fault.rpartition("; ")
            yield Problem(path, files.columns, f"is no schema: {message or remedy}", remedy)


def redis_sinks(facts: Facts) -> Iterator[Problem]:
    """The fields of a Redis sink must fit its mode."""
    for component, sink in facts.consumers():
        redis = getattr(sink, "redis", None)
        if isinstance(redis, RedisSink):
            base = format_path((*component.path, "redis"))
            yield from _redis(redis, base)


def _address(path: str, address: str) -> Iterator[Problem]:
    fault = redis_fault(address)
    if fault is not None:
        yield Problem(path, shown_address(address), fault, REDIS_REMEDY)


def _redis(redis: RedisSink, base: str) -> Iterator[Problem]:
    yield from _address(f"{base}.url", redis.url)
    wanted, other = ("key", "stream") if redis.mode is RedisMode.HASH else ("stream", "key")
    if getattr(redis, wanted) is None:
        example = "wc:{word}" if wanted == "key" else "words"
        message = f"is missing in mode {redis.mode.value}"
        yield Problem(f"{base}.{wanted}", NOTHING, message, f'add it, e.g. {wanted}: "{example}"')
    if (extra := getattr(redis, other)) is not None:
        message = f"does not apply in mode {redis.mode.value}"
        yield Problem(f"{base}.{other}", extra, message, "remove it or change the mode")
    if redis.mode is RedisMode.HASH and redis.key and not PLACEHOLDER.search(redis.key):
        yield Problem(
            f"{base}.key",
            redis.key,
            "is the same for all rows, so each would overwrite the one before",
            "put a column in it, e.g. wc:{word}",
        )


def separate_folders(facts: Facts) -> Iterator[Problem]:
    """No two sinks write into one folder, and none into one that a source reads."""
    sources = [(c.name, s.files) for c, s in facts.sources() if s.files is not None]
    sinks: dict[str, str] = {}
    for index, sink in enumerate(facts.topology.spec.sinks):
        if sink.files is None:
            continue
        path = format_path(("spec", "sinks", index, "files", "path"))
        folder = real(sink.files.path, facts.folder)
        extension = _EXTENSIONS[sink.files.format]
        for name, files in sources:
            if reads_from(files.path, sink.files.path, extension, facts.folder):
                message = f"is a folder that source {name!r} reads"
                yield Problem(path, sink.files.path, message, "write into another folder")
                break
        if folder in sinks:
            message = f"is the folder of sink {sinks[folder]!r} too"
            yield Problem(path, sink.files.path, message, "write into another folder")
        sinks.setdefault(folder, sink.name)


_EXTENSIONS = {SinkFormat.JSON_LINES: "jsonl", SinkFormat.CSV: "csv", SinkFormat.PARQUET: "parquet"}


def guarantee_of_sinks(facts: Facts) -> Iterator[Problem]:
    """A sink must be able to give the guarantee."""
    wanted = facts.topology.spec.guarantee
    for index, sink in enumerate(facts.topology.spec.sinks):
        if sink.console is not None and wanted is Guarantee.EXACTLY_ONCE:
            yield Problem(
                format_path(("spec", "sinks", index, "console")),
                sink.name,
                "cannot give ExactlyOnce: what is printed cannot be taken back after a crash",
                "set spec.guarantee to AtLeastOnce, or use a files or redis sink",
            )
        given = getattr(facts.classes.get(sink.name), "guarantees", None)
        if sink.custom is not None and isinstance(given, tuple | list | set | frozenset):
            names = sorted(str(getattr(g, "value", g)) for g in given)
            if wanted.value not in names:
                yield Problem(
                    format_path(("spec", "sinks", index, "custom", "class")),
                    sink.custom.target,
                    f"cannot give {wanted.value}",
                    f"set spec.guarantee to {' or '.join(names)}" if names else "use another sink",
                )


def ackers_for_tracking(facts: Facts) -> Iterator[Problem]:
    """Tracking needs an acker."""
    spec = facts.topology.spec
    if spec.tracked and spec.ackers.replicas == 0:
        yield Problem(
            "spec.ackers.replicas",
            0,
            "leaves nobody to prove that tuple trees are complete",
            'use at least 1, or set spec.tracking: "Off"',
        )


def state_copies(facts: Facts) -> Iterator[Problem]:
    """Copies need as many servers; a server of one's own is one."""
    state = facts.topology.spec.state_servers
    if state.copies > state.replicas:
        yield Problem(
            "spec.stateServers.copies",
            state.copies,
            f"is more than there are servers ({state.replicas})",
            "raise spec.stateServers.replicas or lower the copies",
        )
    if state.url is not None:
        yield from _address("spec.stateServers.url", state.url)
        if state.replicas > 1:
            yield Problem(
                "spec.stateServers.replicas",
                state.replicas,
                "does not go with a server of your own, which is one",
                "use 1 or remove spec.stateServers.url",
            )


def final_needs_an_end(facts: Facts) -> Iterator[Problem]:
    """``emit: final`` emits when all sources upstream are drained, so they must end."""
    endless = {c.name for c, source in facts.sources() if _endless(source)}
    for index, processor in enumerate(facts.topology.spec.processors):
        if processor.aggregate is None or processor.aggregate.emit is not Emit.FINAL:
            continue
        names = sorted(facts.graph.upstream(processor.name) & endless)
        if names:
            yield Problem(
                format_path(("spec", "processors", index, "aggregate", "emit")),
                "final",
                f"never comes: source {', '.join(names)} has no end",
                "use changes, or bound the source (files: watch: false, generator: count)",
            )


def _endless(source: object) -> bool:
    files, generator = getattr(source, "files", None), getattr(source, "generator", None)
    return (files is not None and files.watch) or (
        generator is not None and generator.count is None
    )


RULES = (
    exactly_one_kind,
    one_place_of_code,
    files_sources,
    redis_sinks,
    separate_folders,
    guarantee_of_sinks,
    ackers_for_tracking,
    state_copies,
    final_needs_an_end,
)
