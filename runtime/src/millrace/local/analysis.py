"""What Spark and the sources say of a topology's columns, asked in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millrace.errors import JavaError
from millrace.local.java import find_java
from millrace.startup import SAFE_PATH
from millrace.topology.kinds.base import Columns
from millrace.topology.load import LoadedTopology
from millrace.topology.problems import Problem

ANSWER_S = 180.0
"""How long Spark may take; on an idle machine it takes some seconds."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """``columns`` by component as far as they could be found out, ``problems`` that Spark sees,
    and sentences about what could not be looked at."""

    columns: Mapping[str, Columns]
    problems: tuple[Problem, ...] = ()
    unknown: tuple[str, ...] = ()


def analysed(
    loaded: LoadedTopology,
    sources: Collection[str],
    *,
    import_code: bool = True,
    sql_too: bool = True,
) -> Analysis:
    """Ask ``sources`` for their columns, the engines of SQL about its steps, if these count too,
    and look at the tables of processors; where Spark is one of the engines this takes several
    seconds. ``unknown`` are whole sentences."""
    processors = loaded.topology.spec.processors
    what = ["the SQL"] if sql_too and any(p.kind.in_jvm for p in processors) else []
    what += ["the tables"] if any(p.kind.looks for p in processors) else []
    named = " and ".join(what) or "the SQL"
    missing = [name for name in ("pyspark", "pyarrow", "duckdb") if find_spec(name) is None]
    if missing:
        text = f"{' and '.join(missing)} is not installed: pip install millrace[engine]"
        return _nothing(named, text)
    if sql_too and any(p.kind.runs_in_jvm(p.settings) for p in processors):
        try:
            find_java()
        except JavaError as error:
            return _nothing(named, str(error))
    question = {
        "topology": loaded.topology.document(),
        "folder": str(loaded.folder),
        "sources": sorted(sources),
        "importCode": import_code,
        "sql": sql_too,
    }
    with TemporaryDirectory(prefix="millrace-", ignore_cleanup_errors=True) as scratch:
        return _ask(question | {"scratch": scratch}, Path(scratch), named)


def _ask(question: dict[str, Any], scratch: Path, named: str) -> Analysis:
    """The answer to a question about what ``named`` says, of a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "millrace.engine.jobs.analyse"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=ANSWER_S,
            env={**os.environ, **SAFE_PATH, "TMPDIR": str(scratch)},
        )
        answer: Any = json.loads((scratch / "answer.json").read_text())
    except subprocess.TimeoutExpired:
        return _nothing(named, f"Spark did not answer within {ANSWER_S:g} s")
    except (OSError, ValueError):
        lines = done.stderr.strip().splitlines()
        reason = lines[-1][:300] if lines else "without a reason"
        return _nothing(named, f"Spark did not start ({reason})")
    columns = {
        name: tuple((column, kind) for column, kind in found)
        for name, found in answer["columns"].items()
    }
    problems = tuple(Problem(*problem) for problem in answer["problems"])
    return Analysis(columns, problems, tuple(answer["unknown"]))


def _nothing(what: str, why: str) -> Analysis:
    were = "were" if what.endswith("s") else "was"
    return Analysis({}, (), (f"{what} {were} not checked: {why}",))
