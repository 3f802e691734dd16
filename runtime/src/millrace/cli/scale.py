"""``millrace scale``: another number of state servers or ackers for a run that goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, one_file
from millrace.cli.output import print_plain
from millrace.errors import MillraceError

StateServers = Annotated[
    int | None,
    typer.Option("--state-servers", metavar="N", help="State servers to run.", show_default=False),
]
Ackers = Annotated[
    int | None,
    typer.Option("--ackers", metavar="N", help="Ackers to run.", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Longest wait for it; 0 only asks."),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def scale(
        file: NamedTopology = None,
        topology: TopologyOption = None,
        workdir: WorkDir = None,
        namespace: Namespace = None,
        context: Context = None,
        state_servers: StateServers = None,
        ackers: Ackers = None,
        timeout: Timeout = 90.0,
    ) -> None:
        """Change how many state servers and ackers a running topology has, while windows go on.

        State moves to where it belongs then; servers that leave end when the others hold it.
        This counts until the run ends: to keep it, change the topology's file. On a cluster it is
        written into the resource, and stays.
        Exits with 1 where it has not come about in time; it goes on.
        """
        from millrace.homes.documents import Scale
        from millrace.local.inspect.reading import topology_of
        from millrace.local.scale import ask, await_scaled
        from millrace.local.workdir import find_folder

        if state_servers is None and ackers is None:
            raise typer.BadParameter("nothing is asked for: give --state-servers, --ackers or both")
        for name, value in (("--state-servers", state_servers), ("--ackers", ackers)):
            if value is not None and value < 0:
                raise typer.BadParameter(f"{name} {value}: cannot be less than 0")
        named = one_file(file, topology)
        remote = cluster_topology(named, workdir, namespace, context)
        if remote is not None:
            from millrace.cli.cluster import commands

            commands.scale(remote, state_servers, ackers, timeout)
            return
        folder = find_folder(named_folder(named, workdir))
        name = folder.identity.name
        declared = topology_of(folder)
        asked = ask(folder, declared, Scale(state_servers, ackers))
        if ackers is not None and asked.ackers != ackers:
            least, most = declared.spec.ackers.least, declared.spec.ackers.most
            print_plain(
                f"{name} has {least} to {most} ackers by spec.ackers.min and max, never {ackers}"
            )
            ackers = asked.ackers
        if timeout == 0:
            print_plain(f"{name} is asked to have {spoken(state_servers, ackers)}")
        elif await_scaled(folder, asked, timeout):
            print_plain(f"{name} has {spoken(state_servers, ackers)}, until the run ends")
        else:
            raise MillraceError(
                f"{name} does not have {spoken(state_servers, ackers)} within {timeout:g} s; "
                "what is asked for stands while the run lives: look at it with millrace status"
            )


def spoken(state_servers: int | None, ackers: int | None) -> str:
    """Of these what is asked for, in words."""
    parts = []
    if state_servers is not None:
        parts.append(f"{state_servers} state server{'s' if state_servers != 1 else ''}")
    if ackers is not None:
        parts.append(f"{ackers} acker{'s' if ackers != 1 else ''}")
    return " and ".join(parts)
