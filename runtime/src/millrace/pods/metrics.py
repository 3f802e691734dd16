"""The answer of a pod to ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millrace.health import Answer
from millrace.metrics.catalogue import Metric
from millrace.metrics.exposition import CONTENT_TYPE, Exposition
from millrace.metrics.tally import Sample


def told(metrics: Sequence[Metric], ask: Callable[[], Iterable[Sample]]) -> Callable[[], Answer]:
    """Tells ``metrics`` as they are when it is asked."""
    exposition = Exposition(metrics, ask)
    return lambda: Answer(True, exposition.text(), content_type=CONTENT_TYPE)
