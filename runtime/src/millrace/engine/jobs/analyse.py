"""Asks Spark and the sources what is in a topology: ``python -m millrace.engine.jobs.analyse``.

A process of its own, so that nothing of Spark stays in the command that asks, and nothing of
what a JVM prints reaches the terminal. It reads one JSON object from standard input and writes
one to the file that it is told: columns by component, and what Spark refuses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark import SparkContext

from millrace.ddl import RESERVED_PREFIX, parse_type
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.start import code_path
from millrace.engine.program.program import SqlExpressions
from millrace.engine.program.schema import normal_schema
from millrace.engine.program.sql import SqlAnalyser, SqlFault
from millrace.engine.program.tables import Look
from millrace.engine.program.usercode import use_path
from millrace.errors import MillraceError, TopologyError, error_text
from millrace.loading import load_named
from millrace.sources import SourceSpec, make_source
from millrace.sources.arrow_types import arrow_schema, type_name
from millrace.topology.checks.facts import gather
from millrace.topology.columns import columns_of, columns_on
from millrace.topology.graph import Edge, graph_of
from millrace.topology.kinds.base import Columns
from millrace.topology.model import Processor, StreamTopology
from millrace.topology.parts import Role

HEAP = "512m"
"""Analysing reads no data."""

_JAVA_END_S = 20.0

Analyser = Callable[[], SqlAnalyser]


class Asked(Protocol):
    """An engine that says what it refuses of a step, and what the step puts out."""

    def faults(self, step: SqlExpressions, incoming: pa.Schema) -> list[SqlFault]: ...

    def __call__(self, name: str, step: SqlExpressions, incoming: pa.Schema) -> pa.Schema: ...


class Findings:
    """``columns``: names and types by component; ``problems``: (path, value, message, remedy);
    ``unknown``: sentences about what could not be looked at. ``silent`` says by source why its
    columns are not known, until a step is named for which they are wanted; ``refused`` are steps
    with problems."""

    def __init__(self) -> None:
        self.columns: dict[str, list[tuple[str, str | None]]] = {}
        self.problems: list[tuple[str, Any, str, str]] = []
        self.unknown: list[str] = []
        self.silent: dict[str, str] = {}
        self.refused: set[str] = set()

    def columns_so_far(self) -> dict[str, Columns]:
        """The same as ``columns``, for who computes with them."""
        return {name: tuple(found) for name, found in self.columns.items()}

    def unchecked(self, step: str, producer: str) -> None:
        """An SQL step is not checked, for want of the columns of what stands in front of it."""
        if producer in self.refused:
            return
        why = self.silent.pop(producer, "") or (
            f"the columns of {producer!r}, or their types, are not known"
        )
        self.unknown.append(f"the SQL of {step!r} was not checked: {why}")

    def document(self) -> dict[str, Any]:
        return {"columns": self.columns, "problems": self.problems, "unknown": self.unknown}


def analyse(
    topology: StreamTopology,
    folder: Path,
    sources: Collection[str],
    analyser: Analyser,
    *,
    import_code: bool = True,
    sql_too: bool = True,
) -> Findings:
    """Columns of ``sources``, of SQL steps, if these count too, as their engines type them, and of
    processors that are compiled with files; ``analyser`` is called once if Spark is one of the
    engines. What stands between is known from the file and, with ``import_code``, from the user's
    functions."""
    findings = Findings()
    schemas: dict[str, pa.Schema] = {}
    spec = topology.spec
    sql: SqlAnalyser | None = None
    use_path(str(code_path(topology, folder)))
    functions = gather(topology, folder, import_code=import_code).functions
    graph = graph_of(topology)
    for component in graph.order():
        name = component.name
        schema = None
        if component.role is Role.SOURCE and name in sources:
            try:
                source = make_source(SourceSpec.of(spec.sources[component.index], folder))
                schema = normal_schema(source.schema())
            except MillraceError as error:
                findings.silent[name] = f"the columns of {name!r} are not known: {error}"
            except Exception as error:  # noqa: BLE001 the boundary to a source of the user's own
                said = error_text(error)
                findings.silent[name] = f"the columns of {name!r} are not known: {said}"
        elif component.role is Role.PROCESSOR:
            processor = spec.processors[component.index]
            incoming = schemas.get(processor.inputs[0].producer)
            if processor.kind.looks:
                known = columns_of(topology, graph, functions, findings.columns_so_far())
                edge = graph.inputs(name)[0]
                _look(findings, processor, component.index, edge, known, folder)
            elif not sql_too:
                continue
            elif processor.kind.runs_in_jvm(processor.settings) and incoming is not None:
                sql = sql or analyser()
                schema = _step(findings, sql, processor, component.index, incoming)
            elif processor.kind.in_jvm and not processor.kind.runs_in_jvm(processor.settings):
                edge = graph.inputs(name)[0]
                if incoming is None:
                    known = columns_of(topology, graph, functions, findings.columns_so_far())
                    incoming = _schema(known.get(edge.producer))
                if incoming is not None:
                    schema = _in_worker(findings, processor, component.index, incoming)
                else:
                    findings.unchecked(name, edge.producer)
            elif processor.kind.in_jvm:
                findings.unchecked(name, processor.inputs[0].producer)
        if schema is not None:
            schemas[name] = schema
            findings.columns[name] = [(f.name, type_name(f.type)) for f in schema]
    findings.unknown += findings.silent.values()
    return findings


def _look(
    findings: Findings,
    processor: Processor,
    index: int,
    edge: Edge,
    known: Mapping[str, Columns | None],
    folder: Path,
) -> None:
    """What the files of a processor say, and whether they go with its input."""
    path = f"spec.processors[{index}].{processor.kind.name}"
    look: Look = load_named(processor.kind.looks)
    incoming = columns_on(edge, known.get(edge.producer))
    looked = look(processor.settings, path, folder, incoming, edge.producer)
    if looked.absent:  # it may be where the topology runs
        said = "; ".join(str(problem) for problem in looked.problems)
        findings.unknown.append(f"the table of {processor.name!r} was not looked at: {said}")
        return
    findings.problems += [(p.path, p.value, p.message, p.remedy) for p in looked.problems]
    if looked.problems:
        findings.refused.add(processor.name)
    elif looked.columns is not None:
        findings.columns[processor.name] = list(looked.columns)


def _schema(columns: Columns | None) -> pa.Schema | None:
    """Columns with their types; None where one of these is not known."""
    if columns is None:
        return None
    try:
        typed = [(name, parse_type(kind or "")) for name, kind in columns]
    except TopologyError:
        return None  # a type that the language of schemas has no word for, or none at all
    return arrow_schema(typed)


def _in_worker(
    findings: Findings, processor: Processor, index: int, incoming: pa.Schema
) -> pa.Schema | None:
    # Where there is no such step DuckDB is not needed, which takes memory.
    from millrace.engine.program.duck import DuckAnalyser

    declared = processor.inputs[0].columns
    absent = [of for of in declared.values() if incoming.get_field_index(of) < 0]
    if absent:
        return None  # which is said elsewhere
    if declared:
        fields = [incoming.field(of).with_name(name) for name, of in declared.items()]
        incoming = pa.schema(fields)
    return _step(findings, DuckAnalyser(), processor, index, incoming)


def _step(
    findings: Findings, sql: Asked, processor: Processor, index: int, incoming: pa.Schema
) -> pa.Schema | None:
    base = f"spec.processors[{index}].{processor.kind.name}"
    evaluated = processor.kind.evaluated(processor.settings)
    step = SqlExpressions(evaluated.select, evaluated.where)
    faults = sql.faults(step, incoming)
    findings.refused.add(processor.name)
    remedy = f"its input has {', '.join(incoming.names)}"
    for fault in faults:
        findings.problems.append((f"{base}.{fault.field}", fault.text, fault.message, remedy))
    if faults:
        return None
    try:
        schema = normal_schema(sql(processor.name, step, incoming))
    except TopologyError as error:
        message, _, remedy = str(error).rpartition("; ")
        findings.problems.append((base, list(step.select), message or remedy, remedy))
        return None
    reserved = [name for name in schema.names if name.startswith(RESERVED_PREFIX)]
    if reserved:
        message = "brings in columns that are not those of the input"
        findings.problems.append(
            (
                f"{base}.select",
                list(step.select),
                message,
                'write "*" as an element of its own or name columns',
            )
        )
        return None
    findings.refused.discard(processor.name)
    return schema


def main() -> int:
    """Answer one question; the exit code is 0 where there is an answer."""
    question = json.load(sys.stdin)
    topology = StreamTopology.model_validate(question["topology"])
    scratch = Path(question["scratch"])

    def analyser() -> SqlAnalyser:
        settings = SessionSettings(
            topology.name,
            scratch,
            threads=1,
            driver_memory=HEAP,
            conf=topology.spec.spark.conf,
            log_level="OFF",
        )
        session = build_session(settings)
        return SqlAnalyser(lambda: session)

    findings = analyse(
        topology,
        Path(question["folder"]),
        question["sources"],
        analyser,
        import_code=question["importCode"],
        sql_too=question["sql"],
    )
    (scratch / "answer.json").write_text(json.dumps(findings.document()))
    _end_java()
    return 0


def _end_java() -> None:
    """Wait for the JVM's end, so that it does not write into a folder that is being deleted."""
    gateway = SparkContext._gateway
    if gateway is not None:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_JAVA_END_S)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The JVM has threads that would hold the interpreter at its end.
    os._exit(code)
