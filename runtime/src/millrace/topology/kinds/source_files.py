"""The kind ``files`` of sources: records of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.topology.declared import declared_columns, unsound_schema
from millrace.topology.kinds.base import (
    OPENED,
    OTHER_SOURCE,
    Columns,
    Effect,
    FieldEdit,
    SourceKind,
    Written,
)
from millrace.topology.parts import Part
from millrace.topology.places import reads_from
from millrace.topology.problems import NOTHING, Problem, format_path
from millrace.topology.scalars import Flag, Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component


class SourceFormat(str, Enum):
    """How a files source finds records."""

    TEXT = "text"
    JSON_LINES = "jsonLines"
    CSV = "csv"
    PARQUET = "parquet"


class FileOrder(str, Enum):
    """Which of the files that have records is read next."""

    MODIFIED = "modified"
    NAME = "name"


class FilesSource(Part):
    """Records of the files in a folder, or of one file."""

    path: Text = Field(
        description="Folder or file. A relative path starts at this file's folder, on a cluster at "
        "/data."
    )
    format: SourceFormat = Field(
        SourceFormat.TEXT,
        description="text gives a column value string for each line; jsonLines, csv and parquet "
        "give their own columns.",
    )
    watch: Flag = Field(
        True,
        description="Go on with files that arrive or grow. With false the run ends with them.",
    )
    order: FileOrder = Field(
        FileOrder.MODIFIED,
        description="Which file is read next, when one is finished: modified takes the one whose "
        "last change is the oldest, then by name; name goes by name alone.",
    )
    columns: Text | None = Field(
        None,
        alias="schema",
        description='Columns of jsonLines and csv, e.g. "user string, n long". Types: string, '
        "long, int, double, float, boolean, binary, timestamp, date, array<type>.",
    )


class FilesSourceKind(SourceKind[FilesSource]):
    """Files that may grow, arrive and be renamed."""

    name = "files"
    meaning = "Records of files."
    settings = FilesSource
    runs = "millrace.sources.files:FileSource"
    local = True
    fillers = {"path": "unnamed"}
    edits = (
        FieldEdit(
            "path",
            Effect.REFUSED,
            f"the read position belongs to the files that were read; {OTHER_SOURCE}",
        ),
        FieldEdit(
            "format",
            Effect.REFUSED,
            f"the read position counts records of the old format; {OTHER_SOURCE}",
        ),
        FieldEdit("watch", Effect.RESTART, OPENED),
        FieldEdit("order", Effect.RESTART, "files that are not begun yet are read in it"),
        FieldEdit(
            "schema",
            Effect.RESTART,
            "what is not sealed yet is decoded with it; keyed state that it changes stops the run",
        ),
    )

    def on_disk(self, settings: FilesSource) -> Mapping[str, str]:
        return {"path": settings.path}

    def summary(self, settings: FilesSource) -> str:
        watched = ", watched" if settings.watch else ""
        return f"files {settings.path} ({settings.format.value}{watched})"

    def columns(self, settings: FilesSource) -> Columns | None:
        if settings.format is SourceFormat.TEXT:
            return (("value", "string"),)
        if settings.format is SourceFormat.PARQUET:
            return None
        return declared_columns(settings.columns)

    def endless(self, settings: FilesSource) -> bool:
        return settings.watch

    def reads(self, settings: FilesSource, written: Written, folder: Path | None) -> bool:
        return reads_from(settings.path, written.path, written.names, folder)

    def check(self, settings: FilesSource, component: Component, facts: Facts) -> Iterator[Problem]:
        """The schema must fit the format."""
        path = format_path((*component.path, "files", "schema"))
        declared = settings.format in (SourceFormat.JSON_LINES, SourceFormat.CSV)
        if settings.columns is None:
            if declared:
                message = f"is missing; {settings.format.value} does not say which columns it has"
                yield Problem(path, NOTHING, message, 'add it, e.g. schema: "user string, n long"')
        elif not declared:
            text = settings.format is SourceFormat.TEXT
            own = "the column value string" if text else "its own columns"
            message = f"does not apply: {settings.format.value} has {own}"
            yield Problem(path, settings.columns, message, "remove it")
        else:
            yield from unsound_schema(path, settings.columns)


FILES_SOURCE = FilesSourceKind()
