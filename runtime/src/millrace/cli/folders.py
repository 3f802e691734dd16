"""Which work folder a command means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millrace.errors import WorkFolderError

WorkDir = Annotated[
    Path | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="The work folder. Default: .millrace/<name of the topology> beside its file.",
        show_default=False,
    ),
]


NamedTopology = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The topology file. Not needed where only one topology of this folder has run.",
        show_default=False,
    ),
]


def named_folder(file: Path | None, workdir: Path | None) -> Path:
    """The work folder itself, that of a topology file, or the only one there is.

    Raises ``TopologyError`` for a file without a name and ``WorkFolderError`` where it is not
    clear which folder is meant.
    """
    from millrace.local.workdir import DEFAULT_PARENT, default_path
    from millrace.topology.load import locate, read_name

    if workdir is not None:
        return workdir
    if file is not None:
        return default_path(read_name(file), *locate(file))
    parent = Path.cwd() / DEFAULT_PARENT
    known = sorted(p.parent for p in parent.glob("*/identity.json"))
    if len(known) == 1:
        return known[0]
    if not known:
        raise WorkFolderError(
            f"{parent}: no topology of this folder has run; name a topology file or a --workdir"
        )
    names = ", ".join(path.name for path in known)
    raise WorkFolderError(
        f"{parent}: several topologies of this folder have run ({names}); name a topology file or "
        "a --workdir"
    )
