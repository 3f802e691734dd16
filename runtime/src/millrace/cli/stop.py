"""``millrace stop``: ends a running topology behind its window, and waits for that."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import print_plain
from millrace.errors import MillraceError

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Longest wait for the end.")
]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for what is sealed to be published.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def stop(
        file: NamedTopology = None,
        topology: TopologyOption = None,
        workdir: WorkDir = None,
        timeout: Timeout = 90.0,
        now: Now = False,
    ) -> None:
        """Ask a running topology to end, as Ctrl-C does, and wait until it has.

        What is sealed is published first; the next millrace run goes on where it stopped.
        Exits with 1 where the run has not ended in time; it goes on ending.
        """
        from millrace.local.stop import stop_run
        from millrace.local.workdir import find_folder

        folder = find_folder(named_folder(one_file(file, topology), workdir))
        name = folder.identity.name
        process = stop_run(folder.path, timeout, now=now)
        if process is None:
            print_plain(f"{name} is not running")
        elif process.alive:
            raise MillraceError(
                f"{name}: process {process.pid} has not ended within {timeout:g} s; it goes on "
                "ending, ask again, or with --now"
            )
        else:
            print_plain(f"{name} is stopped; the next millrace run goes on where it stopped")
