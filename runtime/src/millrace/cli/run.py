"""``millrace run``: a topology with all its processes on this machine."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.folders import WorkDir
from millrace.cli.options import Overrides, TopologyFile, TopologyOption, needed_file
from millrace.cli.output import (
    console,
    give_up_output,
    print_error,
    print_plain,
    print_warning,
)
from millrace.errors import ExitCode, MillraceError, message_of
from millrace.topology.load import LoadedTopology, load

if TYPE_CHECKING:
    from millrace.local.launch import LaunchOptions

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over: forget all state and read from the beginning.")
]
DropRemoved = Annotated[
    bool,
    typer.Option(
        "--drop-removed",
        help="Give up rows that a sink which the file no longer has could not be shown.",
    ),
]
DropGone = Annotated[
    bool,
    typer.Option(
        "--drop-gone",
        help="Give up records that are to be replayed, but cannot be read any more: they become "
        "dead letters without their payload.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="With --fresh: empty sinks that hold something from before."),
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show errors and what a console sink prints only.")
]
NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="Show events and the report, no figures meanwhile.")
]
FailOnDeadLetters = Annotated[
    bool,
    typer.Option(
        "--fail-on-dead-letters",
        help="Exit with 13 instead of 0 where dead letters are there at the end, old ones too.",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Longest wait for it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, as the last line.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def run(
        file: TopologyFile = None,
        topology: TopologyOption = None,
        override: Overrides = None,
        workdir: WorkDir = None,
        fresh: Fresh = False,
        overwrite: Overwrite = False,
        drop_removed: DropRemoved = False,
        drop_gone: DropGone = False,
        quiet: QuietFlag = False,
        no_progress: NoProgress = False,
        as_json: AsJson = False,
        fail_on_dead_letters: FailOnDeadLetters = False,
    ) -> None:
        """Run a topology on this machine until its input is drained or Ctrl-C.

        Starts a state server, acker processes and a Spark driver, and starts again what dies.
        Run it again to go on behind the last sealed window, also after a crash, also after an
        edit of the file: what the edit means is said at the start. A second run of the same
        topology takes over from the first.

        Ctrl-C ends cleanly: what is sealed is published. A second Ctrl-C does not wait for that.
        """
        if overwrite and not fresh:
            raise typer.BadParameter("--overwrite empties sinks only together with --fresh")
        loaded = load(needed_file(file, topology), override or ())
        _look_ahead(loaded)
        try:
            # What starts processes takes a while to load, and an error above needs none of it.
            from millrace.local.launch import LaunchOptions

            options = LaunchOptions(
                workdir,
                fresh=fresh,
                overwrite=overwrite,
                drop_removed=drop_removed,
                drop_gone=drop_gone,
            )
            code = _run(loaded, options, (quiet, not no_progress, as_json))
        except KeyboardInterrupt:
            # Before the driver was started: there is nothing to be drained.
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        if code == ExitCode.DEAD_LETTERS and not fail_on_dead_letters:
            code = ExitCode.OK
        raise typer.Exit(code)

    @app.command()
    def apply(
        file: TopologyFile = None,
        topology: TopologyOption = None,
        override: Overrides = None,
        workdir: WorkDir = None,
        timeout: Timeout = 30.0,
    ) -> None:
        """Have a run that is alive take the edits of its file, where no restart is needed.

        Sizes and intervals of windows, the tuple time-out, the parallelism of executors, and the
        numbers of state servers and ackers. All of the edits are taken or none: where one needs a
        restart this says so, and millrace run takes the run over instead.
        Exits with 1 where none is taken.
        """
        from millrace.local.edits import ask, await_taken
        from millrace.local.workdir import default_path, find_folder

        loaded = load(needed_file(file, topology), override or ())
        wanted = loaded.topology
        folder = find_folder(workdir or default_path(wanted.name, loaded.file, loaded.folder))
        edits = ask(folder, wanted)
        if not edits:
            print_plain(f"{wanted.name} runs as the file says; there is nothing to take")
            return
        if not await_taken(folder, wanted, timeout):
            raise MillraceError(
                f"{wanted.name} has not taken the edits within {timeout:g} s; the run's events say "
                "why"
            )
        for edit in edits:
            old, new = edit.sides()
            print_plain(f"{edit.path}: {old} → {new}")
        print_plain(f"{wanted.name} goes on with that")


def _look_ahead(loaded: LoadedTopology) -> None:
    """Refuse what cannot work before anything is started, once and with the remedy."""
    from millrace.local.java import find_java
    from millrace.local.preflight import obstacles

    find_java()
    found = [one.error for one in obstacles(loaded, connect=False) if not one.passing]
    for error in found:
        print_error(error)
    if found:
        raise typer.Exit(int(found[0].exit_code))


def _run(
    loaded: LoadedTopology,
    options: LaunchOptions,
    display: tuple[bool, bool, bool],
) -> int:
    """Run to the end; ``DEAD_LETTERS`` for one that went well, but has some."""
    from millrace.cli.progress import shown
    from millrace.cli.report import Report, sink_places, totals_in
    from millrace.clock import SystemClock
    from millrace.local.inspect.overview import bytes_per_root
    from millrace.local.launch import run_topology
    from millrace.local.logs import lines_may_be_lost
    from millrace.local.workdir import default_path

    quiet, progress, as_json = display
    name = loaded.topology.name
    path = (options.workdir or default_path(name, loaded.file, loaded.folder)).resolve()
    clock, out = SystemClock(), console()
    before, started_s = totals_in(path), clock.monotonic_s()
    options = replace(options, workdir=path)
    try:
        with shown(out, path, name, clock, quiet=quiet, progress=progress) as display_:
            folder, result = run_topology(loaded, options, display_, display_.tell, clock)
    except BaseException:
        with lines_may_be_lost(give_up_output):
            _flush()
        raise
    figures = folder.journal.status()
    totals = totals_in(path, folder.uid)
    if options.fresh:
        before = dict.fromkeys(before, 0)
    report = Report(
        name,
        folder,
        result,
        clock.monotonic_s() - started_s,
        totals,
        {key: max(0, totals[key] - before[key]) for key in totals},
        figures,
        sink_places(loaded),
        bytes_per_root(folder),
        loaded.file if loaded.file.is_file() else None,
    )
    if result.message:
        print_error(MillraceError(result.message))
    unshown: list[Exception] = []
    with lines_may_be_lost(unshown.append):
        if not quiet:
            report.show(out)
        if as_json:
            print_plain(json.dumps(report.document()))
        _flush()
    for error in unshown:
        give_up_output(error)
        if as_json or not quiet:
            told = message_of(error)
            print_warning(f"the report could not be written to standard output: {told}")
        if as_json and not result.code:
            return ExitCode.FAILED
    if report.dead_letters:
        print_warning(report.dead_letters)
    if not report.told and not result.code:
        print_warning(f"{folder.status} could not be written: look whether there are dead letters")
        return ExitCode.DEAD_LETTERS
    return ExitCode.DEAD_LETTERS if report.dead_letters and not result.code else result.code


def _flush() -> None:
    """Find out now whether standard output takes what it was given. That a reader has gone is found
    out by the end of the process."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()
