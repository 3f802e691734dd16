"""``millrace status``: what a topology on this machine does, with all its processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import console, counted, literal, moment, print_plain

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it anew every second, until Ctrl-C.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, with --watch one a line.")
]

EVERY_S = 1.0


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def status(
        file: NamedTopology = None,
        topology: TopologyOption = None,
        workdir: WorkDir = None,
        namespace: Namespace = None,
        context: Context = None,
        watch: Watch = False,
        as_json: AsJson = False,
    ) -> None:
        """Show what a topology does: last sealed window, counts, and every process with its role.

        Reads the work folder only, so it answers whatever state the run is in; of a topology on a
        cluster its resource, its pods and what the driver told last.
        """
        look = _looking(one_file(file, topology), workdir, namespace, context)
        try:
            if as_json:
                _print_json(look, watch)
            elif watch:
                _watch(look)
            else:
                console().print(drawn(look()))
        except KeyboardInterrupt:
            return


def _looking(
    file: Path | None, workdir: Path | None, namespace: str | None, context: str | None
) -> Callable[[], dict[str, Any]]:
    remote = cluster_topology(file, workdir, namespace, context)
    if remote is not None:
        from millrace.cli.cluster.commands import Looking

        return Looking(remote)
    from millrace.local.inspect.overview import overview
    from millrace.local.workdir import find_folder

    folder = find_folder(named_folder(file, workdir))
    return lambda: overview(folder)


def _print_json(look: Callable[[], dict[str, Any]], watch: bool) -> None:
    print_plain(json.dumps(look()))
    while watch:
        sys.stdout.flush()
        time.sleep(EVERY_S)
        print_plain(json.dumps(look()))


def _watch(look: Callable[[], dict[str, Any]]) -> None:
    """In a terminal one picture that changes, elsewhere one below the other."""
    out = console()
    if not out.is_terminal:
        while True:
            out.print(moment(time.time()), drawn(look()), "", sep="\n")
            time.sleep(EVERY_S)
    with Live(drawn(look()), console=out, auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_S)
            live.update(drawn(look()), refresh=True)


def drawn(document: Mapping[str, Any]) -> RenderableType:
    """The overview for people."""
    parts: list[RenderableType] = [
        Text.assemble(literal(document["name"], "bold"), literal(f" {_state(document)}"))
    ]
    parts += [literal(warning, "yellow") for warning in document["warnings"]]
    grid = Table.grid(padding=(0, 2))
    for label, text in _facts(document):
        grid.add_row(label, literal(text))
    parts.append(grid)
    if document.get("processes"):
        parts.append(_processes(document["processes"]))
    if document.get("pods"):
        parts.append(_pods(document["pods"]))
    return Group(*parts)


STATES = {
    "starting": "is starting",
    "running": "is running",
    "ending": "is ending",
    "drained": "is drained: all input is processed and published",
    "asked": "was stopped; the next millrace run goes on where it stopped",
    "fenced": "was fenced: a newer run has taken over",
    "failed": "failed; nothing is lost",
    "engine": "stopped: the engine, a connector or Spark fails; nothing is lost",
    "deadLetters": "stopped: most of what is read fails for good; nothing is lost",
    "lost": "stopped: all copies of some state are gone",
    "behind": "stopped: a sink is further than the record, which an older copy took the place of",
    "killed": "was killed; the next millrace run goes on behind the last sealed window",
    "suspended": "is suspended: its state servers hold its state, and nothing is read",
    "stalled": "is stalled: the operator cannot go on until somebody mends what it names",
    "deleting": "is being deleted",
}


def _state(document: Mapping[str, Any]) -> str:
    state = document["state"]
    if state == "running" and document["spark"] == "starting":
        # Windows wait for it; what the record says is known already.
        return f"is running, Spark is starting ({state})"
    return f"{STATES.get(state, '')} ({state})".lstrip()


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who it is, what is done, what is to be done, what went wrong, how it runs."""
    facts = [
        *_place(document),
        ("guarantee", f"{document['guarantee']}, tracking {document['tracking']}"),
    ]
    totals = document["totals"]
    if totals is None:
        return facts
    sealed = "no window yet"
    if document["sealed"]:
        sealed = f"window {document['sealed']} is the last that counts for good"
        sealed += f"; sinks show up to window {document['published']}"
    facts += [
        ("sealed", sealed),
        ("roots", f"{counted(totals['roots'], 'root')} in {counted(totals['windows'], 'window')}"),
        ("roots/s", f"{document['rootsPerS'] or 0:,.0f}"),
    ]
    window = document["window"]
    if document["alive"] and window:
        doing = f"{window['number']} is processed, attempt {window['attempt']}"
        facts.append(("window", f"{doing}, {counted(window['roots'], 'root')}"))
    if document["lagRecords"] is not None:
        lag = document["lagRecords"]
        verb = "waits" if lag == 1 else "wait"
        facts.append(("unread", f"{counted(lag, 'record')} {verb} in the sources"))
    facts += [
        ("pending", f"{counted(document['pendingReplays'], 'root')} to be replayed"),
        ("replays", f"{counted(totals['replays'], 'replay')} so far"),
        ("dead letters", f"{counted(document['deadLetters'], 'root')} failed for good"),
    ]
    if totals["dropped"]:
        facts.append(("dropped", f"{counted(totals['dropped'], 'root')} failed and left out"))
    if document["requests"]:
        facts.append(("requests", f"{document['requests']:,} to be done with the next seal"))
    starts = f"{document['execution']} (lives of the driver)"
    changes = f"{document['epoch']} (changes of the state servers), {document['phase']}"
    facts.append(("execution", f"{starts}, epoch {changes}"))
    members = document["members"] or ()
    if len(members) > 1:
        facts.append(("state servers", ", ".join(members)))
    limited = [one for one in document["memory"] or () if one["limitBytes"]]
    if limited:
        facts.append(("state memory", "; ".join(map(_memory, limited))))
    if document.get("restored"):
        facts.append(("restored", _restored(document["restored"])))
    return facts


def _place(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "workdir" in document:
        return [
            ("topology", str(document["topology"])),
            ("work folder", str(document["workdir"])),
        ]
    resource = document["resource"]
    told = f"{resource['phase'] or 'not seen by the operator yet'}"
    if resource["message"]:
        told += f": {resource['message']}"
    if resource["observedGeneration"] != resource["generation"]:
        told += " (of the edit before the last; the operator has not come to it yet)"
    return [
        ("namespace", f"{document['namespace']} of {document['context']}"),
        ("resource", told),
    ]


def _memory(server: Mapping[str, Any]) -> str:
    used, limit = server["usedBytes"] / 2**20, server["limitBytes"] / 2**20
    full = " (full: windows wait)" if server["full"] else ""
    return f"{server['name']} uses {used:,.1f} of {limit:,.1f} MiB{full}"


def _restored(fork: Mapping[str, Any]) -> str:
    """What began the present timeline."""
    window, last = fork["window"], fork["last"]
    text = f"snapshot {fork['snapshot']} behind window {window}, {moment(fork['atS'])}"
    if fork["lost"]:
        text += ", since all copies of some state were gone"
    if last is not None:
        given_up = (
            f"windows {window + 1} to {last} were" if last > window + 1 else (f"window {last} was")
        )
        text += f"; {given_up} given up"
    return f"{text} (timeline {fork['timeline']})"


def _pods(rows: list[dict[str, Any]]) -> Table:
    table = Table("pod", "is", "node", "since", "started again", box=None, padding=(0, 2))
    for row in rows:
        stands = "ready" if row["ready"] else row["trouble"] or row["phase"]
        stands = "ends" if row["ending"] else stands
        since = moment(row["started"]) if row["started"] else ""
        again = str(row["restarts"]) if row["restarts"] else ""
        cells = (literal(row["name"]), literal(stands), literal(row["node"] or ""))
        table.add_row(*cells, since, again)
    return table


def _processes(rows: list[dict[str, Any]]) -> Table:
    table = Table("process", "pid", "since", "started again", "memory", box=None, padding=(0, 2))
    for row in rows:
        since = moment(row["started"])
        memory = f"{row['rssBytes'] / 1e6:,.0f} MB"
        again = str(row["restarts"]) if row["restarts"] else ""
        table.add_row(literal(row["name"]), str(row["pid"]), since, again, memory)
    return table
