"""The kind ``generator`` of sources: made-up records."""

from __future__ import annotations

from pydantic import Field

from millrace.topology.kinds.base import (
    OPENED,
    OTHER_SOURCE,
    Columns,
    Effect,
    FieldEdit,
    SourceKind,
)
from millrace.topology.parts import Part
from millrace.topology.scalars import Whole


class GeneratorSource(Part):
    """Made-up records, the same for the same seed: id long, key string, value double."""

    seed: Whole = Field(0, ge=0, le=2**63 - 1, description="What the values are computed from.")
    count: Whole | None = Field(
        None, ge=1, le=2**63 - 1, description="Records in all. Without it: endless."
    )
    rate: Whole | None = Field(
        None,
        ge=1,
        le=2**63 - 1,
        description="Records per second over all partitions. Without it: unlimited.",
    )
    partitions: Whole = Field(1, ge=1, le=1024, description="Independent sequences of records.")


class GeneratorSourceKind(SourceKind[GeneratorSource]):
    """Records that are computed from a seed and their number."""

    name = "generator"
    meaning = (
        "Made-up records, the same for the same seed: `id long` from 0 on, `key string` (`k0` to "
        "`k999`), `value double` from 0 to below 1."
    )
    settings = GeneratorSource
    runs = "millrace.sources.generator:GeneratorSource"
    edits = (
        FieldEdit(
            "seed",
            Effect.REFUSED,
            f"the same positions would hold other records; {OTHER_SOURCE}",
        ),
        FieldEdit(
            "partitions",
            Effect.REFUSED,
            f"there is a read position for each partition; {OTHER_SOURCE}",
        ),
        FieldEdit("", Effect.RESTART, OPENED),
    )

    def summary(self, settings: GeneratorSource) -> str:
        rate = f", {settings.rate}/s" if settings.rate else ""
        count = "endless" if settings.count is None else f"{settings.count} records"
        return f"generator ({count}{rate})"

    def columns(self, settings: GeneratorSource) -> Columns | None:
        return (("id", "long"), ("key", "string"), ("value", "double"))

    def endless(self, settings: GeneratorSource) -> bool:
        return settings.count is None


GENERATOR_SOURCE = GeneratorSourceKind()
