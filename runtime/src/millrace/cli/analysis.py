"""What ``validate`` and ``describe`` find out beyond the file: columns, and what Spark refuses."""

from __future__ import annotations

from collections.abc import Collection

from millrace.cli.output import print_note
from millrace.topology.checks.check import problems_of
from millrace.topology.checks.facts import Facts, gather
from millrace.topology.load import LoadedTopology
from millrace.topology.model import Source
from millrace.topology.parts import Role


def facts_of(
    loaded: LoadedTopology, *, import_code: bool, ask_spark: bool, every_source: bool
) -> Facts:
    """The facts of a valid topology, with the columns that Spark, the sources and tables tell.

    Sources are asked where SQL or a look-up stands behind them, with ``every_source`` all that do
    not say in the file what they have. Raises ``InvalidTopologyError`` for what shows only then,
    and notes on standard error what could not be checked.
    """
    facts = gather(loaded.topology, loaded.folder, import_code=import_code)
    processors = loaded.topology.spec.processors
    sql = [p.name for p in processors if p.kind.in_jvm]
    tables = [p.name for p in processors if p.kind.looks]
    steps = [*(sql if ask_spark else ()), *tables]
    jvm = ask_spark and any(p.kind.runs_in_jvm(p.settings) for p in processors)
    parts = {part.name: part for part in loaded.topology.spec.sources}
    wanted = {
        name
        for name, component in facts.graph.by_name.items()
        if component.role is Role.SOURCE
        and (
            any(edge.consumer in steps for edge in facts.graph.outputs(name))
            or (facts.columns.get(name) is None and (every_source or _leads_to(facts, name, steps)))
        )
        and (import_code or not _own_code(parts[name]))
    }
    if sql and not ask_spark:
        print_note("note: the SQL was not checked")
    if not steps and (not wanted or not ask_spark):
        return facts
    # Only these commands need it, and only for such topologies.
    from millrace.local.analysis import analysed

    if jvm:
        print_note("Spark checks the SQL; this takes some seconds, --no-sql leaves it out")
    analysis = analysed(loaded, wanted, import_code=import_code, sql_too=ask_spark)
    for sentence in analysis.unknown:
        print_note(f"note: {sentence}")
    facts = gather(loaded.topology, loaded.folder, analysis.columns, import_code=import_code)
    problems = [*analysis.problems, *problems_of(facts)]
    if problems:
        raise loaded.refused(problems)
    return facts


def _leads_to(facts: Facts, name: str, steps: Collection[str]) -> bool:
    """Whether something of a component reaches one of these steps."""
    waiting, seen = [name], {name}
    while waiting:
        for edge in facts.graph.outputs(waiting.pop()):
            if edge.consumer in steps:
                return True
            if edge.consumer not in seen:
                seen.add(edge.consumer)
                waiting.append(edge.consumer)
    return False


def _own_code(source: Source) -> bool:
    return source.kind.user_code(source.settings) is not None
