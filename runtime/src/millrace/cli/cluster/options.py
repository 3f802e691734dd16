"""When a command means a topology of a cluster, and which.

The rule: with ``--namespace`` or ``--context`` it is a cluster's, called by its name; without both
it is a work folder. Nothing is guessed from what exists.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.remote.cluster import Cluster
    from millrace.remote.topology import RemoteTopology

Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="A topology of a cluster, in this namespace; it is called by its name. Default with "
        "--context: the namespace of the context.",
        show_default=False,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A topology of a cluster, which this context of the kubeconfig names. Default with "
        "--namespace: the current one.",
        show_default=False,
    ),
]

_NEEDED = ".venv/bin/pip install kubernetes"


def cluster_topology(
    name: Path | None, workdir: Path | None, namespace: str | None, context: str | None
) -> RemoteTopology | None:
    """The topology of a cluster that is meant; None where a work folder is.

    Raises ``ClusterError``, and ``MillraceError`` without the package that it takes.
    """
    cluster = cluster_meant(workdir, namespace, context)
    if cluster is None:
        return None
    from millrace.remote.topology import find

    return find(cluster, None if name is None else str(name))


def cluster_meant(
    workdir: Path | None, namespace: str | None, context: str | None
) -> Cluster | None:
    """The namespace of a cluster that is meant; None where a work folder is. Raises as
    ``cluster_topology``."""
    if namespace is None and context is None:
        return None
    if workdir is not None:
        raise typer.BadParameter(
            "--workdir names a folder of this machine, --namespace and --context a cluster: leave "
            "one of them out"
        )
    for option, value in (("--namespace", namespace), ("--context", context)):
        if value == "":
            raise typer.BadParameter(f"{option} is empty: give a name, or leave it out")
    if find_spec("kubernetes") is None:
        raise MillraceError(
            f"--namespace and --context ask a cluster, which takes a package more: {_NEEDED}"
        )
    from millrace.remote.cluster import connect

    return connect(context, namespace)
