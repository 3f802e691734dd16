"""``millrace dead-letters``: roots that failed for good, to be looked at, replayed or dropped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import console, counted, literal, print_plain, print_warning
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.local.inspect.letters import Letter

_PAYLOAD_SHOWN = 60

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids as list shows them; without the part behind the colon all of that window.",
        show_default=False,
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="All letters, or those that --processor and --source choose.")
]
OfProcessor = Annotated[
    str | None, typer.Option("--processor", metavar="NAME", help="Only where this one failed.")
]
OfSource = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Only roots of this source.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each letter.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Print the payloads alone, byte for byte, as they came in.")
]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        name="dead-letters",
        help="Roots that failed for good: look at them, replay them, drop them.\n\n"
        "A root becomes a dead letter when its last replay has failed too (ackers.maxReplays).",
        no_args_is_help=True,
    )
    for command in (list_letters, show, replay, drop):
        group.command("list" if command is list_letters else None)(command)
    app.add_typer(group)


def list_letters(
    file: NamedTopology = None,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    processor: OfProcessor = None,
    source: OfSource = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters, oldest window first."""
    where = Where(one_file(file, topology), workdir, namespace, context)
    _, letters = _letters(where, processor, source)
    if as_json:
        _print_json(letters)
        return
    if not letters:
        print_plain("no dead letters")
        return
    _warn_of_damaged(letters)
    table = Table("id", "processor", "source", "replays", "error", "payload", box=None)
    for segment, damaged in _by_object(letters).items():
        table.add_row(*(literal(text) for text in _damaged_row(segment, damaged)))
    for letter in letters:
        if letter.damaged:
            continue
        error = letter.error.strip().splitlines()[-1] if letter.error.strip() else ""
        asked = f" ({letter.asked} asked)" if letter.asked else ""
        found = f"{letter.source}: {letter.where or f'offset {letter.offset}'}"
        table.add_row(
            *(literal(text) for text in (letter.id + asked, letter.processor, found)),
            str(letter.replays),
            *(literal(text) for text in (error, _short(letter.payload))),
        )
    console().print(table)


def show(
    ids: Ids = None,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    as_json: AsJson = False,
    raw: Raw = False,
) -> None:
    """Show letters in full, all of them without an id: origin, error, payload.

    What would steer a terminal is written out, as \\x1b.
    """
    from millrace.local.inspect.letters import chosen

    _, letters = _letters(Where(topology, workdir, namespace, context), None, None)
    wanted = chosen(letters, ids) if ids else letters
    if as_json:
        _print_json(wanted)
        return
    _warn_of_damaged(wanted)
    wanted = [letter for letter in wanted if not letter.damaged]
    if raw:
        for letter in wanted:
            sys.stdout.buffer.write(letter.payload or b"")
        return
    for letter in wanted:
        tried = counted(letter.replays, "replay")
        where = letter.where or f"offset {letter.offset}"
        print_plain(f"{letter.id}  source {letter.source}: {where}, {tried}")
        print_plain(f"failed in {letter.processor or 'the source'}:")
        print_plain(_indented("\n".join(filter(None, (letter.error, letter.trace)))))
        print_plain("payload:")
        payload = letter.payload
        text = "(no longer there)" if payload is None else payload.decode(errors="backslashreplace")
        print_plain(_indented(text) + "\n")


def replay(
    ids: Ids = None,
    everything: All = False,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    processor: OfProcessor = None,
    source: OfSource = None,
) -> None:
    """Process letters once more, after the cause has been mended; with the next seal."""
    where = Where(topology, workdir, namespace, context)
    _ask("replay", where, _Wanted(ids, everything, processor, source))


def drop(
    ids: Ids = None,
    everything: All = False,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    processor: OfProcessor = None,
    source: OfSource = None,
) -> None:
    """Forget letters for good; with the next seal."""
    where = Where(topology, workdir, namespace, context)
    _ask("drop", where, _Wanted(ids, everything, processor, source))


@dataclass(frozen=True, slots=True)
class Where:
    """Whose letters: of a work folder, or of a topology of a cluster."""

    topology: Path | None
    workdir: Path | None
    namespace: str | None
    context: str | None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which of them."""

    ids: list[str] | None
    everything: bool
    processor: str | None
    source: str | None


Ask = Callable[[str, list["Letter"]], bool]
"""Asks for an action on letters; whether a driver is alive to do so now."""


def _ask(action: str, where: Where, which: _Wanted) -> None:
    ask, letters = _letters(where, which.processor, which.source)
    if (which.processor, which.source) != (None, None):
        # Nobody knows whose those are that cannot be read.
        _warn_of_damaged(letters)
        letters = [letter for letter in letters if not letter.damaged]
    wanted = _wanted(letters, which.ids, which.everything)
    if action == "replay":
        wanted = _replayable(wanted, which.everything)
    new = [letter for letter in wanted if letter.asked is None]
    alive = ask(action, wanted)
    verb = "replayed" if action == "replay" else "dropped"
    next_one = "millrace run, no run" if where.namespace is None and where.context is None else ""
    when = f"by the next {next_one or 'driver, no driver'} is alive now"
    when = "with the next seal" if alive else when
    print_plain(f"{counted(len(new), 'dead letter')} will be {verb} {when}")
    if len(new) < len(wanted):
        print_plain(f"left alone, since asked for before: {len(wanted) - len(new)}")


def _letters(where: Where, processor: str | None, source: str | None) -> tuple[Ask, list[Letter]]:
    ask, found = _all_letters(where)
    letters = [
        letter
        for letter in found
        if letter.damaged
        or (processor in (None, letter.processor) and source in (None, letter.source))
    ]
    return ask, letters


def _all_letters(where: Where) -> tuple[Ask, list[Letter]]:
    remote = cluster_topology(where.topology, where.workdir, where.namespace, where.context)
    if remote is not None:
        from millrace.cli.cluster import commands

        return partial(commands.ask_letters, remote), commands.letters(remote)
    from millrace.local.inspect.letters import ask, read_letters
    from millrace.local.workdir import find_folder

    folder = find_folder(named_folder(where.topology, where.workdir))
    return partial(ask, folder), read_letters(folder)


def _by_object(letters: Sequence[Letter]) -> dict[str, list[Letter]]:
    """The damaged ones by the object that holds them."""
    found: dict[str, list[Letter]] = {}
    for letter in letters:
        if letter.damaged:
            found.setdefault(letter.object, []).append(letter)
    return found


def _damaged_row(name: str, letters: Sequence[Letter]) -> Iterator[str]:
    asked = "".join(sorted({f" ({letter.asked} asked)" for letter in letters if letter.asked}))
    yield from (name + asked, "", "", "", f"damaged: {counted(len(letters), 'dead letter')}", "")


def _warn_of_damaged(letters: Sequence[Letter]) -> None:
    for name, damaged in _by_object(letters).items():
        count = counted(len(damaged), "dead letter")
        print_warning(
            f"{name} ({count} of {damaged[0].windows}) cannot be read: {damaged[0].damaged}"
        )


def _wanted(letters: list[Letter], ids: Sequence[str] | None, everything: bool) -> list[Letter]:
    from millrace.local.inspect.letters import chosen

    if bool(ids) == everything:
        raise typer.BadParameter(
            "both ids and --all are given: leave one of them out"
            if ids
            else "no dead letter is named: give ids as millrace dead-letters list shows them, "
            "or --all"
        )
    return letters if everything else chosen(letters, ids or ())


def _replayable(letters: list[Letter], everything: bool) -> list[Letter]:
    """Those that are whole and whose source is still there; one that is named and is not is an
    error."""
    damaged = [letter for letter in letters if letter.damaged]
    if damaged and not everything:
        raise MillraceError(
            f"dead letter {damaged[0].id}: cannot be replayed: {damaged[0].damaged}"
        )
    _warn_of_damaged(damaged)
    letters = [letter for letter in letters if not letter.damaged]
    gone = [letter for letter in letters if letter.gone]
    if gone and not everything:
        raise MillraceError(
            f"dead letter {gone[0].id}: cannot be replayed, since its source {gone[0].source!r} "
            "was removed from the topology (one that came back under the name is read from its own "
            "beginning); its payload is in millrace dead-letters show, and drop forgets it"
        )
    if gone:
        names = ", ".join(sorted({repr(letter.source) for letter in gone}))
        print_plain(f"left alone, since their source {names} was removed: {len(gone)}")
    return [letter for letter in letters if not letter.gone]


def _print_json(letters: Sequence[Letter]) -> None:
    for letter in letters:
        print_plain(json.dumps(letter.document()))


def _short(payload: bytes | None) -> str:
    if payload is None:
        return "(no longer there)"
    text = " ".join(payload.decode(errors="backslashreplace").split())
    return text if len(text) <= _PAYLOAD_SHOWN else text[: _PAYLOAD_SHOWN - 1] + "…"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
