"""The commands of ``millrace snapshot``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from millrace.cli.cluster.options import Context, Namespace, cluster_meant, cluster_topology
from millrace.cli.folders import NamedTopology, WorkDir, named_folder
from millrace.cli.options import TopologyOption, needed_file, one_file
from millrace.cli.output import console, counted, literal, print_plain, print_warning, visible
from millrace.errors import SnapshotError

if TYPE_CHECKING:
    from millrace.snapshots.manifest import Manifest
    from millrace.snapshots.places import Place

Name = Annotated[str, typer.Argument(metavar="NAME", help="The snapshot, as list shows it.")]
NewName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What to call it. Default: the time."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--place",
        metavar="PLACE",
        help="Where the snapshots lie: a folder, or a URL that fsspec reaches. Default: "
        "spec.snapshots.to, or the folder snapshots of the work folder.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Longest wait for it.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Read every object too; exit with 14 where one is damaged.")
]
DropRemoved = Annotated[
    bool,
    typer.Option(
        "--drop-removed",
        help="Leave sinks that the file no longer has as they are, also where they show windows "
        "that are given up.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(
        name="snapshot",
        help="Copies of what a topology knows behind one sealed window: its read positions, its "
        "state, its replays and dead letters.\n\n"
        "Windows go on while one is taken.",
        no_args_is_help=True,
    )
    group.command()(create)
    group.command(name="list")(list_snapshots)
    group.command()(show)
    group.command()(restore)
    group.command()(delete)
    app.add_typer(group)


def create(
    file: NamedTopology = None,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    name: NewName = None,
    place: Where = None,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of a topology, running or not, and wait for it.

    It is of the last sealed window, and done once the sinks show that window. On a cluster the
    driver takes it, so one has to be alive, and --place is as its pod sees it.
    """
    named = one_file(file, topology)
    remote = cluster_topology(named, workdir, namespace, context)
    if remote is not None:
        from millrace.cli.cluster import commands

        taken = commands.snapshot(remote, name, place, timeout)
        if as_json:
            print_plain(json.dumps({"name": taken.name, "window": taken.window}))
        else:
            print_plain(taken.text)
        return
    from millrace.clock import SystemClock
    from millrace.local.snapshots.asking import new_name, take
    from millrace.local.workdir import find_folder

    folder = find_folder(named_folder(named, workdir))
    clock = SystemClock()
    manifest = take(folder, name or new_name(clock), place, timeout, clock)
    if as_json:
        print_plain(json.dumps(_document(manifest)))
        return
    size = f"{counted(len(manifest.parts), 'object')}, {manifest.size_bytes:,} bytes"
    print_plain(f"snapshot {manifest.name} is taken behind window {manifest.window}: {size}")


def list_snapshots(
    file: NamedTopology = None,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    place: Where = None,
    as_json: AsJson = False,
) -> None:
    """List the snapshots of a place, the oldest first; also what was not finished, and what is
    damaged. On a cluster list resources of the kind TopologySnapshot, by name, also of topologies
    that are gone."""
    cluster = cluster_meant(workdir, namespace, context)
    if cluster is not None:
        from millrace.cli.snapshot.resources import list_resources

        _no_place(place)
        named = one_file(file, topology)
        list_resources(cluster, None if named is None else str(named), as_json)
        return
    from millrace.snapshots.reading import entries

    where = _place(one_file(file, topology), workdir, place)
    found = entries(where)
    if as_json:
        for entry in found:
            document = {"name": entry.name, "fault": entry.fault}
            print_plain(json.dumps(_document(entry.manifest) if entry.manifest else document))
        return
    if not found:
        print_plain(f"no snapshots in {where.shown}")
        return
    table = Table("name", "topology", "window", "taken", "objects", "bytes", box=None)
    for entry in found:
        if entry.manifest is None:
            continue
        one = entry.manifest
        cells = (one.name, one.topology, str(one.window), _time(one.created))
        numbers = (str(len(one.parts)), f"{one.size_bytes:,}")
        table.add_row(*(literal(cell) for cell in (*cells, *numbers)))
    if table.row_count:
        console().print(table)
    for entry in found:
        if entry.unfinished:
            print_warning(
                f"{entry.name} {entry.fault}: it is being written, or left by what was killed; "
                "delete it in that case"
            )
        elif entry.fault:
            print_warning(entry.fault)


def show(
    name: Name,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    place: Where = None,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Show what a snapshot holds; on a cluster what its resource says, NAME being that of the
    resource."""
    cluster = cluster_meant(workdir, namespace, context)
    if cluster is not None:
        from millrace.cli.snapshot.resources import show_resource

        _no_place(place)
        if check:
            raise typer.BadParameter(
                "--check reads every object, which pods alone can see: leave it out on a cluster"
            )
        show_resource(cluster, name, as_json)
        return
    from millrace.snapshots.reading import faults, load

    where = _place(topology, workdir, place)
    manifest = load(where, name)
    if as_json:
        print_plain(json.dumps(_document(manifest)))
    else:
        _print(manifest)
    found = list(faults(where, manifest)) if check else []
    if found:
        raise SnapshotError("\n".join(found))
    if check and not as_json:
        print_plain("every object is whole")


def restore(
    name: Name,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    place: Where = None,
    drop_removed: DropRemoved = False,
) -> None:
    """Restore a topology from a snapshot; the next millrace run goes on behind its window.

    In the work folder that the snapshot was taken of, what was sealed behind it is given up: the
    sinks take those windows back, or nothing is changed where one of them cannot. In a new work
    folder (--workdir) the topology begins a life of its own, with sinks that hold nothing. The
    file may ask for another parallelism, and for other numbers of state servers and ackers. On a
    cluster a new topology names the snapshot itself: spec.restoreFrom.
    """
    if cluster_meant(workdir, namespace, context) is not None:
        raise SnapshotError(
            f"snapshot {name}: on a cluster a new topology begins with a snapshot: apply one with "
            f"spec.restoreFrom: {{snapshot: {name}}}; one that runs is not set back"
        )
    from millrace.clock import SystemClock
    from millrace.local.snapshots.places import place_of_file
    from millrace.local.snapshots.restoring import restore as restore_here
    from millrace.local.workdir import default_path
    from millrace.restoring.fit import unread
    from millrace.topology.load import load

    loaded = load(needed_file(None, topology), ())
    path = (workdir or default_path(loaded.topology.name, loaded.file, loaded.folder)).resolve()
    where = place_of_file(loaded, path, place)
    around = SystemClock(), print_plain
    done = restore_here(loaded, path, where, name, *around, drop_removed=drop_removed)
    window = done.manifest.window
    if done.given_up is not None:
        taken = f"windows {window + 1} to {done.given_up} were taken back from the sinks"
        left = unread(done.manifest, loaded.topology)
        print_plain(f"{taken}, and are processed again{left}" if left else taken)
    print_plain(
        f"{loaded.topology.name} is restored behind window {window}, as timeline "
        f"{done.timeline}; the next millrace run goes on there"
    )


def delete(
    name: Name,
    topology: TopologyOption = None,
    workdir: WorkDir = None,
    namespace: Namespace = None,
    context: Context = None,
    place: Where = None,
) -> None:
    """Delete a snapshot, or what is left of one that was not finished; without --place one of this
    topology alone. On a cluster delete its resource; the files follow where its deletionPolicy is
    Delete."""
    cluster = cluster_meant(workdir, namespace, context)
    if cluster is not None:
        from millrace.cli.snapshot.resources import delete_resource

        _no_place(place)
        delete_resource(cluster, name)
        return
    if place is None:
        from millrace.local.snapshots.deleting import delete_of
        from millrace.local.workdir import find_folder

        delete_of(find_folder(named_folder(topology, workdir)), name)
    else:
        from millrace.snapshots.places import open_place
        from millrace.snapshots.reading import delete as delete_there

        delete_there(open_place(place, Path.cwd()), name)
    print_plain(f"snapshot {name} is deleted")


def _no_place(place: str | None) -> None:
    if place is not None:
        raise typer.BadParameter(
            "--place names files that pods alone can see: on a cluster it goes with create alone"
        )


def _place(file: Path | None, workdir: Path | None, place: str | None) -> Place:
    from millrace.local.snapshots.places import place_of_folder
    from millrace.local.workdir import find_folder
    from millrace.snapshots.places import open_place

    if place is not None:
        return open_place(place, Path.cwd())
    return place_of_folder(find_folder(named_folder(file, workdir)), None)


def _print(manifest: Manifest) -> None:
    from millrace.protocol.record import dead_letters

    record = manifest.decoded
    open_ = sum(intent.roots for intent in record.intents)
    size = f"{counted(len(manifest.parts), 'object')}, {manifest.size_bytes:,} bytes"
    print_plain(f"{manifest.name}: {manifest.topology} behind window {manifest.window}")
    print_plain(f"  taken         {_time(manifest.created)}")
    print_plain(f"  life          {manifest.uid}, timeline {record.tag.timeline}")
    print_plain(f"  holds         {size}, {manifest.key_groups} key groups")
    print_plain(
        f"  processed     {record.totals.roots:,} roots in {record.totals.windows:,} windows"
    )
    print_plain(f"  to be run     {open_:,} roots of open windows, {len(record.replays):,} replays")
    print_plain(f"  dead letters  {dead_letters(record):,}")
    for processor, columns in manifest.state.items():
        shown = ", ".join(f"{column.name} {column.type}" for column in columns)
        print_plain(f"  state of {visible(processor)}: {visible(shown)}")


def _document(manifest: Manifest) -> dict[str, Any]:
    from millrace.protocol.record import dead_letters

    record = manifest.decoded
    return {
        "name": manifest.name,
        "topology": manifest.topology,
        "uid": manifest.uid,
        "window": manifest.window,
        "timeline": record.tag.timeline,
        "created": manifest.created,
        "keyGroups": manifest.key_groups,
        "objects": len(manifest.parts),
        "sizeBytes": manifest.size_bytes,
        "offsets": record.offsets,
        "openRoots": sum(intent.roots for intent in record.intents),
        "replays": len(record.replays),
        "deadLetters": dead_letters(record),
        "state": {
            name: {column.name: column.type for column in columns}
            for name, columns in manifest.state.items()
        },
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
