"""``millrace logs``: what the processes of a run wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.folders import WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import print_plain

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [ROLE]...",
        help="The topology file, and whose logs: driver, acker, state, or one process such as "
        "acker-0. Default: the driver's.",
        show_default=False,
    ),
]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each log.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written.")]

LOOK_S = 0.2


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def logs(
        names: Names = None,
        topology: TopologyOption = None,
        workdir: WorkDir = None,
        lines: Lines = 50,
        follow: Follow = False,
    ) -> None:
        """Show the end of the logs of a run's processes, alive or not.

        What user code prints is not in them: that goes where the run was started.
        """
        from millrace.local.inspect.tail import Tail, log_files
        from millrace.local.workdir import find_folder

        files, roles = _sorted(names or [])
        if len(files) > 1:
            raise typer.BadParameter(f"several topology files are named: {', '.join(files)}")
        file = one_file(Path(files[0]) if files else None, topology)
        folder = find_folder(named_folder(file, workdir))
        tails = [Tail(name, path) for name, path in log_files(folder, roles or ["driver"])]
        named = len(tails) > 1
        for tail in tails:
            _print(tail.last(lines), tail.name if named else None)
        try:
            while follow:
                time.sleep(LOOK_S)
                for tail in tails:
                    _print(tail.new(), tail.name if named else None)
                sys.stdout.flush()
        except KeyboardInterrupt:
            return


def _sorted(names: list[str]) -> tuple[list[str], list[str]]:
    """Topology files and roles among the arguments."""
    files = [n for n in names if "/" in n or n.endswith((".yaml", ".yml", ".json"))]
    return files, [n for n in names if n not in files]


def _print(lines: list[str], name: str | None) -> None:
    for line in lines:
        print_plain(line if name is None else f"{name}: {line}")
