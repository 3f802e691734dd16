"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TopologyFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The topology file.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value, e.g. --set spec.window.maxRecords=1000 or "
        "--set 'spec.sources\\[lines].files.path=other'. May be repeated.",
        show_default=False,
    ),
]
SkipCode = Annotated[
    bool, typer.Option("--no-code", help="Do not import user code; its columns stay unknown.")
]
SkipSql = Annotated[
    bool,
    typer.Option("--no-sql", help="Do not start Spark to check SQL; its types stay unknown."),
]
