"""The command's entry point: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import errno
import inspect
import sys
from typing import Annotated

import typer

import millrace
from millrace.cli import (
    chaos,
    dead_letters,
    describe,
    list_,
    logs,
    prepare,
    run,
    scale,
    schema,
    snapshot,
    state,
    status,
    stop,
    validate,
)
from millrace.cli.output import SafeConsole, exit_codes, print_error, visible
from millrace.errors import ExitCode, MillraceError, WorkFolderError
from millrace.logs import stacks

_COMMANDS = (
    validate,
    describe,
    run,
    status,
    logs,
    stop,
    scale,
    list_,
    dead_letters,
    state,
    snapshot,
    chaos,
    prepare,
    schema,
)
"""Modules with ``register(app)``, in the order of the help. New commands go here."""


def build_app() -> typer.Typer:
    """The command line with every command registered."""
    app = typer.Typer(
        name="millrace",
        help="Streaming with fault tolerance on Spark: tracked tuples, sealed windows, "
        "fenced drivers.",
        epilog=f"Exit codes: {exit_codes()}.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_print_version, is_eager=True, help="Show the version."
            ),
        ] = False,
    ) -> None:
        pass

    for module in _COMMANDS:
        module.register(app)
    for command in app.registered_commands:
        command.help = _flowing(inspect.getdoc(command.callback))
    return app


def _flowing(text: str | None) -> str | None:
    """Help text whose paragraphs are one line each, so that the terminal's width breaks them."""
    if text is None:
        return None
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def main() -> None:
    """Runs the command line; exits with a code of ``ExitCode``."""
    if any(visible(argument) != argument for argument in sys.argv):
        # Typer repeats arguments that it does not know; a pattern of the shell may name anything.
        from typer import rich_utils

        vars(rich_utils)["Console"] = SafeConsole
    stacks.write_on_request()
    try:
        build_app()()
    except MillraceError as error:
        print_error(error)
        raise SystemExit(int(error.exit_code)) from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        print_error(WorkFolderError(str(error)))
        raise SystemExit(int(ExitCode.WORK_FOLDER)) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {millrace.__version__}")
        raise typer.Exit


if __name__ == "__main__":
    main()
