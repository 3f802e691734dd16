"""What a driver process is told at its start, as one document.

Who starts it, the supervisor of one machine or the operator of a cluster, writes the document; all
else the driver reads in the places that it names. Passwords are all that comes another way: in
environment variables, one of which the document names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from millrace.homes import codec, pods
from millrace.homes.codec import STRICT, Plain
from millrace.protocol.types import Components

PASSWORD_VARIABLE = "MILLRACE_STATE_PASSWORD"
"""Environment variable with a password: of a state server of the user's own, or an acker's."""

ROOT_KEY_VARIABLE = "MILLRACE_STATE_ROOT_KEY"
"""Environment variable of a driver of a run with state servers of its own: what their passwords are
made of; it goes before the other one. Empty: there is none."""

TAKE_OVER = b"take over\n"
"""What a driver that stands by reads from its standard input when the other one is gone."""


def answer_to(ready: Path) -> Path:
    """The file that a driver that stood by makes as soon as it has read that, beside the one that
    it makes when it is ready."""
    return ready.with_name(f"{ready.name}.told")


@dataclass(frozen=True, slots=True)
class ViewFilePlace:
    """The view as a file, its lock beside it."""

    __pydantic_config__ = STRICT

    path: str
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True)
class InboxFilesPlace:
    """``proposal`` is a file, ``requests`` a folder of files."""

    __pydantic_config__ = STRICT

    proposal: str
    requests: str
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True)
class JournalFilesPlace:
    """``status`` is a file that is replaced, ``events`` one that grows by lines."""

    __pydantic_config__ = STRICT

    status: str
    events: str
    kind: Literal["file"] = "file"


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The home ``name`` in the memory of this very process."""

    __pydantic_config__ = STRICT

    name: str
    kind: Literal["memory"] = "memory"


@dataclass(frozen=True, slots=True)
class ConfigMapPlace:
    """A ConfigMap, on the API server that the process belongs to."""

    __pydantic_config__ = STRICT

    namespace: str
    name: str
    kind: Literal["configMap"] = "configMap"


ViewPlace = Annotated[ViewFilePlace | MemoryPlace | ConfigMapPlace, Field(discriminator="kind")]
InboxPlace = Annotated[InboxFilesPlace | MemoryPlace | ConfigMapPlace, Field(discriminator="kind")]
JournalPlace = Annotated[
    JournalFilesPlace | MemoryPlace | ConfigMapPlace, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True)
class RetiredSink:
    """A sink that was removed: its name, the number of its life and its declaration, for what it
    has still to show."""

    __pydantic_config__ = STRICT

    name: str
    number: int
    sink: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """The snapshot that a new topology begins with: its name and place (a path as the driver sees
    it, or a URL). ``topology`` is the one that it was taken of, where that has another name."""

    __pydantic_config__ = STRICT

    snapshot: str
    place: str
    topology: str = ""


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """``topology`` is the file of the topology's document, ``folder`` where its relative paths
    start, ``workdir`` the scratch of this process and of Spark.

    ``fresh``: the topology begins; ``overwrite``: sinks may be emptied; ``drop_removed`` gives up
    what removed sinks have still to show, ``drop_gone`` records that cannot be read any more.
    ``restore``: before the first window, unless a driver before has done so. ``tuned``: number of
    the settings that the document has of those that can change while a driver runs (``tuning``).
    """

    __pydantic_config__ = STRICT

    uid: str
    workdir: str
    topology: str
    folder: str
    view: ViewPlace
    inbox: InboxPlace
    journal: JournalPlace
    components: Components | None = None
    retired: tuple[RetiredSink, ...] = ()
    fresh: bool = False
    overwrite: bool = False
    drop_removed: bool = False
    drop_gone: bool = False
    password_variable: str = PASSWORD_VARIABLE
    restore: RestoreSettings | None = None
    tuned: Annotated[int, Field(ge=0)] = 0


def in_folder(workdir: Path, uid: str, topology: Path, folder: Path) -> DriverSettings:
    """Settings of a driver all of whose places are files of a work folder."""
    return DriverSettings(
        uid,
        str(workdir),
        str(topology),
        str(folder),
        ViewFilePlace(str(workdir / "view.json")),
        InboxFilesPlace(str(workdir / "proposal.json"), str(workdir / "requests")),
        JournalFilesPlace(str(workdir / "status.json"), str(workdir / "events.jsonl")),
    )


def in_pods(topology: str, namespace: str, uid: str) -> DriverSettings:
    """Settings of a driver pod of a topology; ``uid`` is the one of the topology's object."""
    return DriverSettings(
        uid,
        pods.WORK_FOLDER,
        f"{pods.CONFIG_FOLDER}/{pods.TOPOLOGY_KEY}",
        pods.DATA_FOLDER,
        ConfigMapPlace(namespace, pods.view_map(topology)),
        ConfigMapPlace(namespace, pods.inbox_map(topology)),
        ConfigMapPlace(namespace, pods.journal_map(topology)),
    )


def decode_settings(data: bytes, workdir: Path) -> DriverSettings:
    """Settings of any format; ``workdir`` is where those of format 1 lay, which named no places.

    Raises ``NewerFormatError``, ``checked.DamagedError``.
    """

    def with_places(fields: Plain) -> Plain:
        known = in_folder(workdir, fields["uid"], Path(fields["topology"]), Path(fields["folder"]))
        return {**codec.plain(known), **fields, "workdir": str(workdir)}

    return codec.decode(DriverSettings, data, {1: with_places})
