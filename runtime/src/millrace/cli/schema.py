"""``millrace schema``: the format of topology files."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from millrace.cli.output import print_note, print_plain
from millrace.topology.kinds.registry import complaints
from millrace.topology.schema import json_schema, reference


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def schema(
        markdown: Annotated[
            bool, typer.Option("--markdown", help="A table of all fields for people to read.")
        ] = False,
    ) -> None:
        """Print the JSON Schema of topology files, with descriptions and defaults.

        Save it and name it in your editor's YAML settings to get completion and hints.
        """
        for sentence in complaints():
            print_note(f"note: {sentence}")
        print_plain(reference() if markdown else json.dumps(json_schema(), indent=2))
