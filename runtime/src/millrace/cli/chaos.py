"""``millrace chaos``: kill the processes of a running topology, and prove that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import print_note, print_plain
from millrace.topology.duration import Duration

if TYPE_CHECKING:
    from millrace.chaos.campaign import Kill
    from millrace.chaos.plan import Strike

_HERE = "acker,driver,worker,state-server"
_THERE = "acker,driver,executor,state-server"

Kinds = Annotated[
    str | None,
    typer.Option(
        "--kill",
        metavar="KINDS",
        help="What to kill, with commas between, and + between kinds that die together: acker, "
        "driver, standby, executor, worker, state-server; on a cluster acker, driver, executor, "
        "state-server, operator, node. "
        f"Default: {_HERE}; on a cluster {_THERE}.",
        show_default=False,
    ),
]
SinksAt = Annotated[
    list[str] | None,
    typer.Option(
        "--sinks-at",
        metavar="[SINK=]PLACE",
        help="On a cluster: the folder where /data of the pods is seen from here, or where one "
        "sink's folder or Redis-protocol server is. May be repeated.",
        show_default=False,
    ),
]
NodeCommand = Annotated[
    str | None,
    typer.Option(
        "--node-command",
        metavar="COMMAND",
        help="On a cluster: ends the node whose name stands for {node} in it, for --kill node. It "
        "is run without a shell.",
        show_default=False,
    ),
]
OperatorNamespace = Annotated[
    str | None,
    typer.Option(
        "--operator-namespace",
        metavar="NAMESPACE",
        help="On a cluster: where the operator's pods are, for --kill operator. Default: anywhere.",
        show_default=False,
    ),
]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="Pause between two kills.")]
For = Annotated[str, typer.Option("--for", metavar="TIME", help="How long to go on killing.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed kills the same kinds again.")]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="MODULE:FUNCTION",
        help="Given the topology's folder, answers with the rows that each sink should hold, as "
        "{sink: [row, ...]}. Default: a twin of the topology runs over the same input.",
        show_default=False,
    ),
]
Last = Annotated[
    list[str] | None,
    typer.Option(
        "--last",
        metavar="SINK=COLUMN,...",
        help="Of this sink only the last row of each key counts, as it does behind an aggregate "
        "that emits changes. May be repeated.",
        show_default=False,
    ),
]
Settle = Annotated[
    str,
    typer.Option(
        "--settle", metavar="TIME", help="Longest wait until all is shown, and for the twin."
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE", help="Draw the timeline (svg, png, pdf).", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def chaos(
        file: NamedTopology = None,
        topology: TopologyOption = None,
        workdir: WorkDir = None,
        namespace: Namespace = None,
        context: Context = None,
        kill: Kinds = None,
        every: Every = "10s",
        for_: For = "1m",
        seed: Seed = 7,
        expect: Expect = None,
        last: Last = None,
        sinks_at: SinksAt = None,
        node_command: NodeCommand = None,
        operator_namespace: OperatorNamespace = None,
        settle: Settle = "5m",
        picture: Picture = None,
        as_json: AsJson = False,
    ) -> None:
        """Kill processes of a running topology by a plan, and judge what its sinks hold then.

        Waits until all input is shown, then compares the files of its sinks with what they should
        hold, which a function of yours says or a run of the same topology without kills. Exits with
        1 where a row is lost, doubled or wrong, as far as the guarantee forbids it, and where no
        kill of some kind hit work in flight.

        On a cluster pods are deleted, deleted without grace, and their processes killed, in turn,
        and a function (--expect) has to say what sinks should hold.
        """
        from millrace.chaos.local_run import Wanted, carry_out
        from millrace.chaos.picture import check, draw
        from millrace.chaos.plan import ChaosError, kinds_in
        from millrace.local.workdir import find_folder

        named = one_file(file, topology)
        remote = cluster_topology(named, workdir, namespace, context)
        wanted = Wanted(
            kinds_in(kill or (_HERE if remote is None else _THERE)),
            every_s=_seconds("every", every),
            for_s=_seconds("for", for_),
            settle_s=_seconds("settle", settle),
            seed=seed,
            expect=expect,
            last=_columns(last or []),
        )
        if picture is not None:
            check(picture)
        if remote is not None:
            from millrace.chaos import cluster_run

            around = cluster_run.Around(tuple(sinks_at or ()), operator_namespace, node_command)
            report = cluster_run.carry_out(remote, wanted, around, _tell, print_note)
        elif sinks_at or node_command or operator_namespace:
            raise typer.BadParameter(
                "--sinks-at, --node-command and --operator-namespace are about a cluster: name it "
                "with --namespace or --context"
            )
        else:
            folder = find_folder(named_folder(named, workdir))
            report = carry_out(folder, wanted, _tell, print_note)
        if as_json:
            print_plain(json.dumps(report.document()))
        else:
            for line in report.lines():
                print_plain(line)
        if picture is not None:
            draw(report, picture)
        if report.failure is not None:
            raise ChaosError(report.failure)


def _tell(what: Kill | Strike) -> None:
    from millrace.chaos.plan import Strike

    if isinstance(what, Strike):
        print_note(f"{what.number + 1}: no {what.kind} is there to kill")
        return
    number = what.strike.number + 1
    if what.recovery_s is not None:
        print_note(f"{number}: a window is sealed {what.recovery_s:.1f} s later")
        return
    idle = ", which had nothing to do" if what.in_flight is False else ""
    print_note(f"{number}: {what.victim.way} for {what.victim.name}{idle}")


def _seconds(option: str, text: str) -> float:
    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise typer.BadParameter(f"--{option} {text!r} {error}; write it like 10s or 2m") from None


def _columns(texts: list[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for text in texts:
        name, _, columns = text.partition("=")
        names = tuple(column.strip() for column in columns.split(",") if column.strip())
        if not name or not names:
            raise typer.BadParameter(f"--last {text!r}: write it as SINK=COLUMN,COLUMN")
        found[name] = names
    return found
