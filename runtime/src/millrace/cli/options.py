"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TopologyFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="The topology file.", show_default=False),
]
TopologyOption = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        "-t",
        metavar="FILE",
        help="The topology file, as FILE; every command about a topology takes it so.",
        show_default=False,
    ),
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
    typer.Option("--no-sql", help="Do not check SQL, by Spark or DuckDB; its types stay unknown."),
]


def one_file(file: Path | None, option: Path | None) -> Path | None:
    """The topology file, which may be named in front or by ``-t``, but once."""
    if file is not None and option is not None:
        raise typer.BadParameter("the topology file is named twice: leave FILE or --topology out")
    return file or option


def needed_file(file: Path | None, option: Path | None) -> Path:
    """The same, for a command that cannot do without."""
    named = one_file(file, option)
    if named is None:
        raise typer.BadParameter("no topology file is named: give FILE")
    return named
