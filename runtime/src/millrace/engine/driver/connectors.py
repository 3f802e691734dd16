"""Makes a topology's sources and sinks, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace.engine.driver.stores import Stores
from millrace.engine.jobs.start import code_path
from millrace.engine.program.usercode import use_path
from millrace.engine.task.staging import DriverStaging
from millrace.errors import SinkError
from millrace.sinks import Sink, SinkSpec, make_sink, open_sink
from millrace.sources.base import Source
from millrace.sources.loader import SourceSpec, make_source
from millrace.topology import model
from millrace.topology.model import StreamTopology


def build_sources(topology: StreamTopology, folder: Path) -> list[Source]:
    """Sources in declared order. Raises ``SourceError``."""
    use_path(str(code_path(topology, folder)))
    return [make_source(SourceSpec.of(one, folder)) for one in topology.spec.sources]


def build_sinks(topology: StreamTopology, folder: Path, stores: Stores) -> list[Sink]:
    """Sinks in declared order. Raises ``SinkError``."""
    use_path(str(code_path(topology, folder)))
    sinks = [open_sink(SinkSpec.of(one, folder)) for one in topology.spec.sinks]
    for sink in sinks:
        sink.staging = DriverStaging(stores.fetch)
    return sinks


def build_retired(declaration: Mapping[str, Any], folder: Path, stores: Stores) -> Sink:
    """A sink that the topology no longer has. Raises ``SinkError``."""
    try:
        declared = model.Sink.model_validate(declaration)
    except ValidationError as error:
        name = declaration["name"]
        raise SinkError(f"sink {name!r}: this release cannot read its declaration") from error
    sink = make_sink(SinkSpec.of(declared, folder))
    sink.staging = DriverStaging(stores.fetch)
    return sink
