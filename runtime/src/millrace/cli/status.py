"""``millrace status``: what a topology on this machine does, with all its processes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from millrace.cli.folders import WorkDir, named_folder
from millrace.cli.output import console, print_plain

TopologyOfStatus = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The topology file. Not needed where only one topology of this folder has run.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def status(
        file: TopologyOfStatus = None,
        workdir: WorkDir = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Show what a topology does: last sealed window, counts, and every process with its role.

        Reads the work folder only, so it answers whatever state the run is in.
        """
        from millrace.local.overview import overview
        from millrace.local.workdir import find_folder

        document = overview(find_folder(named_folder(file, workdir)))
        if as_json:
            print_plain(json.dumps(document))
        else:
            show(document, console())


def show(document: Mapping[str, Any], out: Console) -> None:
    """The overview for people."""
    out.print(f"[bold]{escape(document['name'])}[/] {document['state']}")
    for warning in document["warnings"]:
        out.print(f"[yellow]{escape(warning)}[/]")
    grid = Table.grid(padding=(0, 2))
    for label, text in _facts(document):
        grid.add_row(label, escape(text))
    out.print(grid)
    if document["processes"]:
        out.print(_processes(document["processes"]))


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("work folder", document["workdir"]), ("guarantee", str(document["guarantee"]))]
    totals = document["totals"]
    if totals is None:
        return facts
    facts += [
        ("sealed", f"window {document['sealed']}, published up to {document['published']}"),
        ("roots", f"{totals['roots']:,} in {totals['windows']:,} windows"),
        ("roots/s", f"{document['rootsPerS'] or 0:,.0f}"),
        ("pending", f"{document['pendingReplays']:,} roots wait for their replay"),
        ("replays", f"{totals['replays']:,}"),
        ("dead letters", f"{document['deadLetters']:,}"),
        ("execution", f"{document['execution']}, epoch {document['epoch']} ({document['phase']})"),
    ]
    if totals["dropped"]:
        facts.append(("dropped", f"{totals['dropped']:,}"))
    if document["requests"]:
        facts.append(("requests", f"{document['requests']} wait for the next seal"))
    window = document["window"]
    if document["alive"] and window:
        text = f"{window['number']}, attempt {window['attempt']}, {window['roots']:,} roots"
        facts.append(("window", text))
    if document["lagRecords"] is not None:
        facts.append(("lag", f"{document['lagRecords']:,} records"))
    return facts


def _processes(rows: list[dict[str, Any]]) -> Table:
    table = Table("process", "pid", "since", "started again", "memory", box=None, padding=(0, 2))
    for row in rows:
        since = time.strftime("%H:%M:%S", time.localtime(row["started"]))
        memory = f"{row['rssBytes'] / 1e6:,.0f} MB"
        again = str(row["restarts"]) if row["restarts"] else ""
        table.add_row(escape(row["name"]), str(row["pid"]), since, again, memory)
    return table
