"""Rules about what flows along the edges: keys, columns, merges and where SQL can stand."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.ddl import RESERVED_PREFIX
from millrace.topology.checks.facts import Facts
from millrace.topology.declared import unfit_key
from millrace.topology.edges import input_path, no_column
from millrace.topology.graph import Component, Edge
from millrace.topology.kinds.base import Columns
from millrace.topology.model import Processor
from millrace.topology.parts import Role
from millrace.topology.problems import NOTHING, Problem, format_path


def keys_where_needed(facts: Facts) -> Iterator[Problem]:
    """Aggregates and stateful functions need a key on each input."""
    for component, part in facts.consumers():
        if not isinstance(part, Processor):
            continue
        function = facts.functions.get(part.name)
        why = next((k.keeps_state(s, function) for k, s in part.declared()), "")
        if not why:
            continue
        for edge in facts.edges_of(component):
            if not edge.key and not edge.broadcast:
                columns = facts.columns_on(edge)
                some = columns[0][0] if columns else "column"
                yield Problem(
                    input_path(component, edge, "key"),
                    NOTHING,
                    f"is missing; {why} needs a key on each input",
                    f"add the columns that bring tuples together, e.g. key: [{some}]",
                )
            elif edge.broadcast:
                yield Problem(
                    input_path(component, edge, "broadcast"),
                    True,
                    f"does not go with {why}: its state lives in one place for each key",
                    "remove broadcast and add a key",
                )


def ttl_of_state(facts: Facts) -> Iterator[Problem]:
    """Only state expires."""
    for component, part in facts.consumers():
        if not isinstance(part, Processor) or part.ttl is None:
            continue
        function = facts.functions.get(part.name)
        known = function is not None or any(kind.name != "function" for kind, _ in part.declared())
        if known and not any(k.keeps_state(s, function) for k, s in part.declared()):
            yield Problem(
                format_path((*component.path, "ttl")),
                str(part.ttl),
                "does not apply: the processor keeps no state",
                "remove it, or declare state",
            )


def sound_edges(facts: Facts) -> Iterator[Problem]:
    """A key names each column once; broadcast excludes a key and leads into no sink."""
    for component, _ in facts.consumers():
        for edge in facts.edges_of(component):
            if edge.key and edge.broadcast:
                yield Problem(
                    input_path(component, edge, "broadcast"),
                    True,
                    "does not go with a key: a tuple goes to every partition or to one",
                    "keep one of the two",
                )
            if edge.broadcast and component.role is Role.SINK:
                yield Problem(
                    input_path(component, edge, "broadcast"),
                    True,
                    "would show every row once for each partition",
                    "remove it",
                )
            for column in sorted({c for c in edge.key if edge.key.count(c) > 1}):
                yield Problem(
                    input_path(component, edge, "key"),
                    column,
                    "stands twice in the key",
                    "remove one",
                )


def known_key_columns(facts: Facts) -> Iterator[Problem]:
    """Key columns must exist and be of a type that can be a key."""
    for component, _ in facts.consumers():
        for edge in facts.edges_of(component):
            columns = facts.columns_on(edge)
            if columns is None:
                continue
            types = dict(columns)
            for i, column in enumerate(edge.key):
                path = format_path((*component.path, "inputs", edge.index, "key", i))
                if column not in types:
                    yield no_column(path, column, edge.producer, columns)
                else:
                    yield from unfit_key(path, column, types[column])


def types_that_files_hold(facts: Facts) -> Iterator[Problem]:
    """Lengths of time, which SQL and Parquet know, have no form in files and sinks."""
    for component, part in facts.components():
        columns = facts.columns.get(component.name)
        fields = [k.expressions for k, _ in part.declared()] if isinstance(part, Processor) else []
        where = (component.kind, fields[0]) if fields and fields[0] else ()
        remedy = "CAST it to string or to a number" if where else "keep it as a number or a text"
        for name, kind in columns or ():
            if kind is not None and ("duration" in kind or "interval" in kind):
                path = format_path((*component.path, *where))
                yield Problem(path, name, f"has the type {kind}, which no file holds", remedy)


def mapped_columns(facts: Facts) -> Iterator[Problem]:
    """Columns that an input takes under other names must exist."""
    for component, _ in facts.consumers():
        for edge in facts.edges_of(component):
            path = (*component.path, "inputs", edge.index, "columns")
            known = facts.columns.get(edge.producer)
            for name, of in edge.columns:
                if name.startswith(RESERVED_PREFIX):
                    message = f"begins with {RESERVED_PREFIX!r}, which is reserved"
                    yield Problem(format_path(path), name, message, "use another name")
                if known is not None and of not in dict(known):
                    yield no_column(format_path((*path, name)), of, edge.producer, known)


def merges(facts: Facts) -> Iterator[Problem]:
    """Inputs that are merged must have equal columns, or for a key equal key columns."""
    for component, part in facts.consumers():
        edges = [e for e in facts.edges_of(component) if e.producer in facts.graph.by_name]
        combined = isinstance(part, Processor) and any(k.combines for k, _ in part.declared())
        keyed = [e for e in edges if e.key]
        for edge in keyed[1:]:
            first = keyed[0]
            if len(edge.key) != len(first.key) or (combined and edge.key != first.key):
                yield Problem(
                    input_path(component, edge, "key"),
                    ", ".join(edge.key),
                    f"differs from the key of the input from {first.producer!r} "
                    f"({', '.join(first.key)})",
                    "use the same key columns in each input",
                )
        if not combined:
            yield from _equal_columns(facts, component, edges)


def _equal_columns(facts: Facts, component: Component, edges: list[Edge]) -> Iterator[Problem]:
    known = [(e, columns) for e in edges if (columns := facts.columns_on(e)) is not None]
    for edge, columns in known[1:]:
        first, first_columns = known[0]
        if not _agree(columns, first_columns):
            yield Problem(
                input_path(component, edge, "from"),
                edge.producer,
                f"has the columns {_shown(columns)}, but {first.producer!r}, with which it is "
                f"merged, has {_shown(first_columns)}",
                "name them alike by columns: {name here: name there}, or put a processor in front",
            )


def _agree(a: Columns, b: Columns) -> bool:
    types_a, types_b = dict(a), dict(b)
    return types_a.keys() == types_b.keys() and all(
        types_b[name] in (kind, None) or kind is None for name, kind in types_a.items()
    )


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" if kind else name for name, kind in columns)


RULES = (
    keys_where_needed,
    ttl_of_state,
    sound_edges,
    known_key_columns,
    types_that_files_hold,
    mapped_columns,
    merges,
)
