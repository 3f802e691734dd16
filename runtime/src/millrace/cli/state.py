"""``millrace state``: what processors remember of their keys, as of a sealed window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.folders import WorkDir, named_folder
from millrace.cli.options import TopologyOption
from millrace.cli.output import console, counted, literal, print_json, print_note, visible

if TYPE_CHECKING:
    from millrace.local.inspect.state import Holder, StateRows

Of = Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor that has the state.")]
Key = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY...",
        help="The key: one value for each of its columns, in order, as scan shows it; bytes are in "
        "base64.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, metavar="N", help="Show the first N keys only."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each key.")]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        name="state",
        help="What processors remember of their keys, behind the last sealed window.\n\n"
        "Windows go on meanwhile; an answer is always of one window as a whole.",
        no_args_is_help=True,
    )
    group.command()(get)
    group.command()(scan)
    app.add_typer(group)


def get(
    processor: Of,
    key: Key,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of one key. Exits with 1 where it has none."""
    from millrace.local.inspect import state as statereader

    with _holder(topology, workdir, namespace, context) as holder:
        found = statereader.get_of(holder, processor, key)
    if not found.rows.num_rows:
        raise statereader.NoStateError(
            f"{processor} has no state of key {', '.join(key)} behind window {found.window}"
        )
    _print(found, as_json)


def scan(
    processor: Of,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of all keys, in their order."""
    from millrace.local.inspect import state as statereader

    with _holder(topology, workdir, namespace, context) as holder:
        found = statereader.scan_of(holder, processor)
    _print(found, as_json, limit)
    shown = min(found.rows.num_rows, limit or found.rows.num_rows)
    of = f"{shown:,} of " if shown < found.rows.num_rows else ""
    print_note(f"{of}{counted(found.rows.num_rows, 'key')}, behind window {found.window}")


@contextmanager
def _holder(
    topology: Path | None, workdir: Path | None, namespace: str | None, context: str | None
) -> Iterator[Holder]:
    remote = cluster_topology(topology, workdir, namespace, context)
    if remote is not None:
        from millrace.cli.cluster import commands

        with commands.holding(remote) as holder:
            yield holder
        return
    from millrace.local.inspect.state import holder_of
    from millrace.local.workdir import find_folder

    with holder_of(find_folder(named_folder(topology, workdir))) as holder:
        yield holder


def _print(found: StateRows, as_json: bool, limit: int | None = None) -> None:
    from millrace.sinks.values import as_text, json_values, plain

    rows = found.rows.slice(0, limit)
    names = rows.schema.names
    if as_json:
        columns = [json_values(column).to_pylist() for column in rows.columns]
        for values in zip(*columns, strict=True):
            fields = [
                f"{json.dumps(name)}: {value}" for name, value in zip(names, values, strict=True)
            ]
            key, state = ", ".join(fields[: found.keys]), ", ".join(fields[found.keys :])
            print_json(f'{{"window": {found.window}, "key": {{{key}}}, "state": {{{state}}}}}')
        return
    table = Table(*(visible(name) for name in names), box=None)
    texts = [as_text(plain(column)).to_pylist() for column in rows.columns]
    for cells in zip(*texts, strict=True):
        table.add_row(*("" if cell is None else literal(cell) for cell in cells))
    console().print(table)
