"""``millrace validate``: every problem of a topology file at once."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.analysis import facts_of
from millrace.cli.options import (
    Overrides,
    SkipCode,
    SkipSql,
    TopologyFile,
    TopologyOption,
    needed_file,
)
from millrace.cli.output import counted, print_error, print_note, print_plain
from millrace.topology.graph import graph_of
from millrace.topology.kinds.registry import complaints
from millrace.topology.load import LoadedTopology, load

Connect = Annotated[
    bool,
    typer.Option(
        "--connect", help="Look whether sources are there and sinks and servers can be reached."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def validate(
        file: TopologyFile = None,
        topology: TopologyOption = None,
        override: Overrides = None,
        no_code: SkipCode = False,
        no_sql: SkipSql = False,
        connect: Connect = False,
    ) -> None:
        """Check a topology file and print every problem with its remedy.

        User code is imported from its folder and its signatures are checked; no record is
        processed. SQL is checked by its engine where that is installed: by DuckDB at once, by Spark
        in some seconds, which it takes to start. Exits with 3 where there is a problem.
        """
        for sentence in complaints():
            print_note(f"note: {sentence}")
        loaded = load(needed_file(file, topology), override or (), import_code=not no_code)
        facts_of(loaded, import_code=not no_code, ask_spark=not no_sql, every_source=False)
        if connect:
            _connect(loaded)
        spec = loaded.topology.spec
        counts = ", ".join(
            counted(len(parts), word)
            for parts, word in (
                (spec.sources, "source"),
                (spec.processors, "processor"),
                (spec.sinks, "sink"),
            )
        )
        passes = counted(len(graph_of(loaded.topology).passes()), "pass")
        print_plain(f"{loaded.topology.name} is valid: {counts}; {passes}; {spec.guarantee.value}")


def _connect(loaded: LoadedTopology) -> None:
    from millrace.local.preflight import obstacles

    found = [obstacle.error for obstacle in obstacles(loaded, connect=True)]
    for error in found:
        print_error(error)
    if found:
        raise typer.Exit(int(found[0].exit_code))
