"""Settings that a driver takes while it runs, with no new start: between windows those of windows,
and for the next attempt those of attempts.

Who accepts edits, operator or supervisor, numbers them (``Accepted.tuned``), so that nobody goes
back to older ones: a driver begins with those that are accepted when it is made, and takes of its
inbox those of a higher number. Whoever dies in between is followed by a driver that begins with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from millrace.homes.codec import STRICT
from millrace.topology.duration import Duration
from millrace.topology.edits import classify
from millrace.topology.kinds.base import Effect
from millrace.topology.model import StreamTopology, Window

Positive = Annotated[int, Field(ge=1)]

FIELDS: Mapping[str, str] = {
    "spec.window.maxRecords": "max_records",
    "spec.window.maxInterval": "max_interval_ms",
    "spec.window.minInterval": "min_interval_ms",
    "spec.tupleTimeout": "tuple_timeout_ms",
    "spec.parallelism": "parallelism",
}
"""Which field of a topology is which of a ``Tuning``."""

SCALED = frozenset({"spec.ackers.replicas", "spec.stateServers.replicas"})
"""Fields that whoever starts ackers and state servers follows, and no driver."""

_THREADS = "spec.parallelism"


def tuned_fields(topology: StreamTopology) -> frozenset[str]:
    """Fields that a driver of this topology takes while it runs. Without executors Spark has as
    many threads, from its start on, as the parallelism lets it have."""
    fields = frozenset(FIELDS)
    return fields if topology.spec.spark.executors.instances else fields - {_THREADS}


def same_driver(before: StreamTopology, after: StreamTopology) -> bool:
    """Whether a driver that was made ready for one topology can run the other one."""
    taken = tuned_fields(after) | SCALED
    edits = classify(before, after)
    return all(edit.effect is Effect.NONE or edit.path in taken for edit in edits)


@dataclass(frozen=True, slots=True)
class Tuning:
    """``min_interval_ms`` None: windows need not be apart."""

    __pydantic_config__ = STRICT

    number: Annotated[int, Field(ge=0)]
    max_records: Positive
    max_interval_ms: int
    tuple_timeout_ms: int
    parallelism: Positive
    min_interval_ms: int | None = None

    @classmethod
    def of(cls, topology: StreamTopology, number: int) -> Tuning:
        """What a topology says."""
        spec, least = topology.spec, topology.spec.window.min_interval
        return cls(
            number,
            spec.window.max_records,
            spec.window.max_interval.milliseconds,
            spec.tuple_timeout.milliseconds,
            spec.parallelism,
            None if least is None else least.milliseconds,
        )

    @property
    def window(self) -> Window:
        """As a topology has it."""
        least, most = self.min_interval_ms, Duration(self.max_interval_ms)
        said = {"maxRecords": self.max_records, "maxInterval": str(most)}
        if least is not None:
            said["minInterval"] = str(Duration(least))
        return Window.model_validate(said)

    def changed(self, before: Tuning) -> tuple[str, ...]:
        """The fields of the topology that are others now."""
        return tuple(
            field for field, name in FIELDS.items() if getattr(self, name) != getattr(before, name)
        )
