"""Makes a topology's sources and sinks, on the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millrace.engine.driver.stores import Stores
from millrace.engine.jobs.start import code_path
from millrace.engine.program.usercode import use_path
from millrace.sinks import Sink, SinkSpec, kept_sink, make_sink
from millrace.sources.base import Source
from millrace.sources.loader import SourceSpec, make_source
from millrace.topology.model import StreamTopology

log = logging.getLogger(__name__)


class Connectors:
    """Every source and sink that this driver has made, to be closed at its end, however it ends."""

    def __init__(self, folder: Path, stores: Stores) -> None:
        self._folder = folder
        self._stores = stores
        self._open: list[Source | Sink] = []

    def sources(self, topology: StreamTopology) -> list[Source]:
        """Sources in declared order. Raises ``SourceError``."""
        use_path(str(code_path(topology, self._folder)))
        found = []
        for declared in topology.spec.sources:
            found.append(make_source(SourceSpec.of(declared, self._folder)))
            self._open.append(found[-1])
        return found

    def sinks(self, topology: StreamTopology) -> list[Sink]:
        """New sinks in declared order: others may be closed. Raises ``SinkError``."""
        use_path(str(code_path(topology, self._folder)))
        return [
            self._kept(make_sink(SinkSpec.of(declared, self._folder)))
            for declared in topology.spec.sinks
        ]

    def retired(self, declaration: Mapping[str, Any]) -> Sink:
        """A sink that the topology no longer has. Raises ``SinkError``."""
        return self._kept(kept_sink(declaration, self._folder))

    def _kept(self, sink: Sink) -> Sink:
        self._open.append(sink)
        sink.staging = DriverStaging(self._stores.fetch)
        return sink

    def close(self) -> None:
        """Nothing runs any more that would use a source or sink. The second time does nothing."""
        while self._open:
            one = self._open.pop(0)
            try:
                one.close()
            except BaseException:
                # The boundary of a connector's code: the run has ended as it has.
                log.exception("closing %r", one.name)


class DriverStaging:
    """The driver's staging area: it publishes what tasks have staged and stages nothing itself."""

    def __init__(self, fetch: Callable[[str, int, str], bytes]) -> None:
        self._fetch = fetch

    def put(self, name: str, data: bytes) -> None:
        raise AssertionError(f"{name}: only tasks stage rows ({len(data)} bytes)")

    def get(self, name: str, digest: str) -> bytes:
        return self._fetch(name, 0, digest)
