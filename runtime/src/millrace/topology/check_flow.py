"""Rules about what flows along the edges: keys, columns, merges and where SQL can stand."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.ddl import RESERVED_PREFIX, SIMPLE_TYPES
from millrace.topology.check_graph import from_path
from millrace.topology.check_parts import PLACEHOLDER
from millrace.topology.columns import NUMERIC_TYPES, Columns, computable_types
from millrace.topology.facts import Facts
from millrace.topology.graph import Component, Edge, Role
from millrace.topology.model import AggregateFunction, Processor
from millrace.topology.problems import NOTHING, Problem, did_you_mean, format_path


def keys_where_needed(facts: Facts) -> Iterator[Problem]:
    """Aggregates and stateful functions need a key on each input."""
    for component, part in facts.consumers():
        if not isinstance(part, Processor):
            continue
        function = facts.functions.get(part.name)
        if part.aggregate is not None:
            why = "an aggregate"
        elif part.function is not None and function is not None and function.keyed:
            why = f"{part.function}, which keeps state"
        else:
            continue
        for edge in facts.edges_of(component):
            if not edge.key and not edge.broadcast:
                columns = facts.columns_on(edge)
                some = columns[0][0] if columns else "column"
                yield Problem(
                    _key_path(component, edge),
                    NOTHING,
                    f"is missing; {why} needs a key on each input",
                    f"add the columns that bring tuples together, e.g. key: [{some}]",
                )
            elif edge.broadcast:
                yield Problem(
                    _input_path(component, edge, "broadcast"),
                    True,
                    f"does not go with {why}: its state lives in one place for each key",
                    "remove broadcast and add a key",
                )


def sound_edges(facts: Facts) -> Iterator[Problem]:
    """A key names each column once; broadcast excludes a key and leads into no sink."""
    for component, _ in facts.consumers():
        for edge in facts.edges_of(component):
            if edge.key and edge.broadcast:
                yield Problem(
                    _input_path(component, edge, "broadcast"),
                    True,
                    "does not go with a key: a tuple goes to every partition or to one",
                    "keep one of the two",
                )
            if edge.broadcast and component.role is Role.SINK:
                yield Problem(
                    _input_path(component, edge, "broadcast"),
                    True,
                    "would show every row once for each partition",
                    "remove it",
                )
            for column in sorted({c for c in edge.key if edge.key.count(c) > 1}):
                yield Problem(
                    _key_path(component, edge), column, "stands twice in the key", "remove one"
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
                    yield _no_column(path, column, edge.producer, columns)
                elif types[column] not in (None, *SIMPLE_TYPES):
                    message = f"is of the type {types[column]}, which cannot be a key"
                    yield Problem(path, column, message, "use a column of a simple type")


def types_that_files_hold(facts: Facts) -> Iterator[Problem]:
    """Lengths of time, which SQL and Parquet know, have no form in files and sinks."""
    for component in facts.graph.components:
        columns = facts.columns.get(component.name)
        where = ("sql", "select") if component.kind == "sql" else ()
        remedy = "CAST it to string or to a number" if where else "keep it as a number or a text"
        for name, kind in columns or ():
            if kind is not None and ("duration" in kind or "interval" in kind):
                path = format_path((*component.path, *where))
                yield Problem(path, name, f"has the type {kind}, which no file holds", remedy)


def mapped_columns(facts: Facts) -> Iterator[Problem]:
    """Columns that an input takes under other names must exist, and SQL takes none so."""
    for component, part in facts.consumers():
        for edge in facts.edges_of(component):
            path = (*component.path, "inputs", edge.index, "columns")
            if edge.columns and isinstance(part, Processor) and part.sql is not None:
                yield Problem(
                    format_path(path),
                    dict(edge.columns),
                    "does not go with SQL, which selects and names columns itself",
                    'write it into select, e.g. "uid AS user"',
                )
            known = facts.columns.get(edge.producer)
            for name, of in edge.columns:
                if name.startswith(RESERVED_PREFIX):
                    message = f"begins with {RESERVED_PREFIX!r}, which is reserved"
                    yield Problem(format_path(path), name, message, "use another name")
                if known is not None and of not in dict(known):
                    yield _no_column(format_path((*path, name)), of, edge.producer, known)


def merges(facts: Facts) -> Iterator[Problem]:
    """Inputs that are merged must have equal columns, or for a key equal key columns."""
    for component, part in facts.consumers():
        edges = [e for e in facts.edges_of(component) if e.producer in facts.graph.by_name]
        aggregate = isinstance(part, Processor) and part.aggregate is not None
        keyed = [e for e in edges if e.key]
        for edge in keyed[1:]:
            first = keyed[0]
            if len(edge.key) != len(first.key) or (aggregate and edge.key != first.key):
                yield Problem(
                    _key_path(component, edge),
                    ", ".join(edge.key),
                    f"differs from the key of the input from {first.producer!r} "
                    f"({', '.join(first.key)})",
                    "use the same key columns in each input",
                )
        if not aggregate:
            yield from _equal_columns(facts, component, edges)


def _equal_columns(facts: Facts, component: Component, edges: list[Edge]) -> Iterator[Problem]:
    known = [(e, columns) for e in edges if (columns := facts.columns_on(e)) is not None]
    for edge, columns in known[1:]:
        first, first_columns = known[0]
        if not _agree(columns, first_columns):
            yield Problem(
                from_path(component, edge),
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


def sql_behind_sources(facts: Facts) -> Iterator[Problem]:
    """SQL runs in the JVM while a source is read, so it stands directly behind one."""
    for component, part in facts.consumers():
        if not isinstance(part, Processor) or part.sql is None:
            continue
        edges = facts.edges_of(component)
        if len(edges) > 1:
            yield Problem(
                format_path((*component.path, "inputs")),
                NOTHING,
                f"are {len(edges)}, and SQL runs while one source is read",
                "give each source its own SQL step and merge behind them",
            )
        for edge in edges:
            producer = facts.graph.by_name.get(edge.producer)
            if edge.exchanged:
                field = "key" if edge.key else "broadcast"
                yield Problem(
                    _input_path(component, edge, field),
                    ", ".join(edge.key) or True,
                    "does not go with SQL, which runs in the JVM before any exchange",
                    "put it on an edge behind the SQL step",
                )
            if producer is not None and producer.role is Role.PROCESSOR and producer.kind != "sql":
                yield Problem(
                    from_path(component, edge),
                    edge.producer,
                    "runs in Python, and SQL runs in the JVM while the source is read; it stands "
                    "only directly behind a source or another SQL step",
                    "move the SQL step there, or write it as a function",
                )


def aggregate_columns(facts: Facts) -> Iterator[Problem]:
    """Computed columns: distinct names, ``of`` where needed, of columns that fit."""
    for component, part in facts.consumers():
        if not isinstance(part, Processor) or part.aggregate is None:
            continue
        edges = facts.edges_of(component)
        taken = set(edges[0].key) if edges else set()
        for i, column in enumerate(part.aggregate.columns):
            path = format_path((*component.path, "aggregate", "columns", i))
            if column.name in taken:
                yield Problem(
                    f"{path}.name", column.name, "is a column of the output already", "rename it"
                )
            taken.add(column.name)
            name = column.function.value
            if column.function is AggregateFunction.COUNT:
                if column.of is not None:
                    message = "does not apply: count counts the tuples of a key"
                    yield Problem(f"{path}.of", column.of, message, "remove it")
            elif column.of is None:
                message = f"is missing; {name} is computed over a column"
                yield Problem(f"{path}.of", NOTHING, message, "add it, e.g. of: amount")
            else:
                yield from _fitting(facts, edges, f"{path}.of", column.of, column.function)


def _fitting(
    facts: Facts, edges: tuple[Edge, ...], path: str, column: str, function: AggregateFunction
) -> Iterator[Problem]:
    fitting = computable_types(function)
    needed = "numbers" if fitting == NUMERIC_TYPES else "what has an order"
    for edge in edges:
        columns = facts.columns_on(edge)
        if columns is None:
            continue
        kind = dict(columns).get(column, NOTHING)
        if kind is NOTHING:
            yield _no_column(path, column, edge.producer, columns)
        elif kind is not None and kind not in fitting:
            yield Problem(
                path,
                column,
                f"is {kind} in what comes from {edge.producer!r}, and {function.value} needs "
                f"{needed}",
                f"use a column of type {', '.join(fitting)}",
            )


def redis_key_columns(facts: Facts) -> Iterator[Problem]:
    """Columns named in the key of a Redis sink must exist."""
    for index, sink in enumerate(facts.topology.spec.sinks):
        if sink.redis is None or sink.redis.key is None:
            continue
        path = format_path(("spec", "sinks", index, "redis", "key"))
        for edge in facts.graph.inputs(sink.name):
            columns = facts.columns_on(edge)
            for column in PLACEHOLDER.findall(sink.redis.key) if columns is not None else []:
                if columns is not None and column not in dict(columns):
                    yield _no_column(path, column, edge.producer, columns)


def _no_column(path: str, column: str, producer: str, columns: Columns) -> Problem:
    names = [name for name, _ in columns]
    return Problem(path, column, f"is no column of {producer!r}", did_you_mean(column, names))


def _key_path(component: Component, edge: Edge) -> str:
    return _input_path(component, edge, "key")


def _input_path(component: Component, edge: Edge, field: str) -> str:
    return format_path((*component.path, "inputs", edge.index, field))


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" if kind else name for name, kind in columns)


RULES = (
    keys_where_needed,
    sound_edges,
    known_key_columns,
    types_that_files_hold,
    mapped_columns,
    merges,
    sql_behind_sources,
    aggregate_columns,
    redis_key_columns,
)
