"""The same commands for resources of the kind ``TopologySnapshot`` on a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.table import Table

from millrace.cli.output import console, literal, print_plain, visible

if TYPE_CHECKING:
    from millrace.remote.cluster import Cluster


def list_resources(cluster: Cluster, topology: str | None, as_json: bool) -> None:
    """``millrace snapshot list``. Raises ``ClusterError``."""
    from millrace.remote.snapshots import listed

    rows = listed(cluster, topology)
    if as_json:
        for row in rows:
            print_plain(json.dumps(row.document()))
        return
    if not rows:
        of = "" if topology is None else f" of {topology}"
        print_plain(f"no snapshots{of} in {cluster.shown}")
        return
    table = Table("name", "topology", "phase", "window", "taken", "bytes", "place", box=None)
    for row in rows:
        window = "" if row.window is None else str(row.window)
        size = "" if row.size_bytes is None else f"{row.size_bytes:,}"
        cells = (row.name, row.topology, row.phase, window, row.taken or "", size, row.place or "")
        table.add_row(*(literal(cell) for cell in cells))
    console().print(table)


def show_resource(cluster: Cluster, name: str, as_json: bool) -> None:
    """``millrace snapshot show``. Raises ``ClusterError``."""
    from millrace.remote.snapshots import shown

    document = shown(cluster, name).document()
    if as_json:
        print_plain(json.dumps(document))
        return
    for field, value in document.items():
        if value is not None:
            print_plain(f"{field:15} {visible(str(value))}")


def delete_resource(cluster: Cluster, name: str) -> None:
    """``millrace snapshot delete``. Raises ``ClusterError``."""
    from millrace.remote.snapshots import deleted

    row = deleted(cluster, name)
    goes = row.deletion_policy == "Delete"
    files = "a driver deletes its files" if goes else "its files stay (deletionPolicy Retain)"
    print_plain(f"snapshot {name} is deleted; {files}")
