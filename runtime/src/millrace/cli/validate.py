"""``millrace validate``: every problem of a topology file at once."""

from __future__ import annotations

import typer

from millrace.cli.options import Overrides, SkipCode, TopologyFile
from millrace.cli.output import print_plain
from millrace.topology.graph import graph_of
from millrace.topology.load import load


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def validate(file: TopologyFile, override: Overrides = None, no_code: SkipCode = False) -> None:
        """Check a topology file and print every problem with its remedy.

        User code is imported from its folder and its signatures are checked; nothing is run.
        Exits with 3 where there is a problem.
        """
        topology = load(file, override or (), import_code=not no_code).topology
        spec = topology.spec
        counts = ", ".join(
            _counted(len(parts), word)
            for parts, word in (
                (spec.sources, "source"),
                (spec.processors, "processor"),
                (spec.sinks, "sink"),
            )
        )
        passes = _counted(len(graph_of(topology).passes()), "pass")
        print_plain(f"{topology.name} is valid: {counts}; {passes}; {spec.guarantee.value}")


def _counted(count: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count} {word if count == 1 else plural}"
