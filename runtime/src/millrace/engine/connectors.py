"""Makes a topology's sources and sinks, on the driver."""

from __future__ import annotations

from pathlib import Path

from millrace.engine.code import use_path
from millrace.engine.staging import DriverStaging
from millrace.engine.start import code_path
from millrace.engine.stores import Stores
from millrace.sinks import Sink, SinkSpec, open_sink
from millrace.sources.base import Source
from millrace.sources.loader import SourceSpec, make_source
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
