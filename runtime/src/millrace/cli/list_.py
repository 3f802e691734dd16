"""``millrace list``: the topologies of a folder that have run, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from millrace.cli.output import console, literal, print_plain
from millrace.errors import MillraceError

Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR",
        help="The folder of the topology files. Default: the current one.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command("list")
    def list_(
        folder: Folder = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print one JSON object for each topology.")
        ] = False,
    ) -> None:
        """List the topologies of a folder that have run, alive or not.

        Work folders elsewhere, named by --workdir, are not looked for.
        """
        rows = [row_of(path) for path in _work_folders(folder or Path.cwd())]
        if as_json:
            for row in rows:
                print_plain(json.dumps(row))
            return
        if not rows:
            print_plain("no topology of this folder has run")
            return
        table = Table("topology", "state", "sealed", "roots", "dead letters", "file", box=None)
        for row in rows:
            cells = (row["name"], row["state"], row["sealed"], row["roots"], row["deadLetters"])
            table.add_row(*(literal(_shown(cell)) for cell in (*cells, row["topology"])))
        console().print(table)


def _work_folders(folder: Path) -> list[Path]:
    from millrace.local.workdir import DEFAULT_PARENT

    return sorted(p.parent for p in (folder / DEFAULT_PARENT).glob("*/identity.json"))


def row_of(path: Path) -> dict[str, Any]:
    """What is known of the topology with the work folder ``path``; ``state`` says what is wrong
    with a folder that cannot be read."""
    from millrace.local.inspect.overview import overview
    from millrace.local.workdir import find_folder

    try:
        document = overview(find_folder(path))
    except (MillraceError, OSError) as error:
        nothing = dict.fromkeys(("sealed", "roots", "deadLetters", "topology"))
        return {"name": path.name, "state": f"unreadable: {error}", **nothing, "workdir": str(path)}
    return {
        "name": document["name"],
        "state": document["state"],
        "sealed": document["sealed"],
        "roots": (document["totals"] or {}).get("roots"),
        "deadLetters": document["deadLetters"],
        "topology": document["topology"],
        "workdir": document["workdir"],
    }


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
