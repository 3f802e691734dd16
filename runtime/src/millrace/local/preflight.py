"""What would keep a topology from running, found out before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.connector import options_of
from millrace.errors import MillraceError, SinkError, SourceError, TopologyError, error_text
from millrace.loading import load_named
from millrace.state.client import StateClient, discover
from millrace.state.own import NAME, own_server
from millrace.topology.load import LoadedTopology
from millrace.topology.model import Processor
from millrace.topology.usercode import code_on_path

_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing in the way. ``passing``: a run waits for its end instead of refusing to start."""

    error: MillraceError
    passing: bool = False


def obstacles(loaded: LoadedTopology, *, connect: bool) -> list[Obstacle]:
    """What is in the way of the sources, sinks and tables; nothing is changed.

    Without ``connect`` only files, folders and secrets are looked at: a run leaves servers to its
    driver, which waits for them, and does not make the user's own sources and sinks twice.
    """
    # Arrow takes a while to load, and most commands do without.
    from millrace.sinks import SinkSpec, make_sink
    from millrace.sources import SourceSpec, make_source

    spec, folder = loaded.topology.spec, loaded.folder
    found: list[Obstacle] = []
    with code_on_path(loaded.code_path):
        for source in spec.sources:
            if connect or source.kind.local:
                with _noted(found, f"source {source.name!r}"):
                    make_source(SourceSpec.of(source, folder)).check()
            else:
                with _noted(found, f"source {source.name!r}"):
                    options_of(SourceSpec.of(source, folder), "source", SourceError)
        for sink in spec.sinks:
            if connect or sink.kind.local:
                with _noted(found, f"sink {sink.name!r}"):
                    make_sink(SinkSpec.of(sink, folder)).check()
            else:
                with _noted(found, f"sink {sink.name!r}"):
                    options_of(SinkSpec.of(sink, folder), "sink", SinkError)
    for index, processor in enumerate(spec.processors):
        if processor.kind.looks:
            with _noted(found, f"processor {processor.name!r}"):
                _look(processor, f"spec.processors[{index}].{processor.kind.name}", folder)
    if spec.state_servers.url is not None:
        with _noted(found, "spec.stateServers.url"):
            at = own_server(spec.state_servers, TopologyError)
            if connect:
                _ask(*at)
    return found


@contextmanager
def _noted(found: list[Obstacle], what: str) -> Iterator[None]:
    try:
        yield
    except MillraceError as error:
        found.append(Obstacle(error, error.retryable))
    except Exception as error:  # noqa: BLE001
        # The boundary to user code: a check may raise anything.
        said = error_text(error)
        found.append(Obstacle(MillraceError(f"{what}: its check failed: {said}; mend it")))


def _look(processor: Processor, path: str, folder: Path) -> None:
    """Raises ``TopologyError`` for a file that the processor cannot be compiled with."""
    producer = processor.inputs[0].producer
    looked = load_named(processor.kind.looks)(processor.settings, path, folder, None, producer)
    if looked.problems:
        raise TopologyError("\n".join(str(problem) for problem in looked.problems))


def _ask(url: str, password: str | None) -> None:
    """Whether a server of the user's own answers and has the settings that state needs."""
    client = StateClient(discover(NAME, url, password, timeout_s=_ANSWER_S), "")
    try:
        client.check_settings()
    finally:
        client.close()
