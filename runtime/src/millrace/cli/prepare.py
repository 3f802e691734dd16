"""``millrace prepare``: what makes Spark start sooner, done once after an installation."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.output import print_note, print_plain

Again = Annotated[bool, typer.Option("--again", help="Also where it has been done.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def prepare(again: Again = False) -> None:
        """Make Spark start sooner: once for each installation of Java and of Spark.

        Keeps the classes that a start loads as an archive in the user's cache folder
        (XDG_CACHE_HOME, or ~/.cache). Runs work without it, and ignore one that does not fit.
        """
        from millrace.local.java import archive_is_used, archive_path, find_java, make_archive

        find_java()
        path = archive_path()
        if archive_is_used() and not again:
            print_plain(f"{path} is there already")
            return
        print_note("starting Spark once to see what it loads; this takes a minute at most")
        make_archive()
        print_plain(f"Spark starts sooner now: {path}, {path.stat().st_size / 1e6:.0f} MB")
