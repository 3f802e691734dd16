"""The kind ``files`` of sinks: files in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from pydantic import Field

from millrace.topology.kinds.base import SinkKind, Written
from millrace.topology.parts import Part
from millrace.topology.scalars import Text


class SinkFormat(str, Enum):
    """How a files sink writes rows."""

    JSON_LINES = "jsonLines"
    CSV = "csv"
    PARQUET = "parquet"


class FilesSink(Part):
    """Files in a folder; only sealed windows appear in it."""

    path: Text = Field(
        description="Folder. A relative one starts at this file's, on a cluster at /data."
    )
    format: SinkFormat = Field(SinkFormat.JSON_LINES, description="How rows are written.")


_EXTENSIONS = {SinkFormat.JSON_LINES: "jsonl", SinkFormat.CSV: "csv", SinkFormat.PARQUET: "parquet"}


class FilesSinkKind(SinkKind[FilesSink]):
    """A folder that belongs to one sink."""

    name = "files"
    meaning = "Files in a folder."
    settings = FilesSink
    runs = "millrace.sinks.files:FileSink"
    local = True
    fillers = {"path": "unnamed"}

    def on_disk(self, settings: FilesSink) -> Mapping[str, str]:
        return {"path": settings.path}

    def summary(self, settings: FilesSink) -> str:
        return f"files {settings.path} ({settings.format.value})"

    def place(self, settings: FilesSink, folder: Path) -> str:
        return str((folder / settings.path).resolve())

    def writes(self, settings: FilesSink) -> Written:
        extension = _EXTENSIONS[settings.format]
        staged = f"_millrace/windows/000000000001.{extension}"
        return Written(settings.path, (f"part-000000000001-00000.{extension}", staged))


FILES_SINK = FilesSinkKind()
