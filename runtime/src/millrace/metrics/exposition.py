"""Metrics in the text format of Prometheus. The only module that needs ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from millrace.metrics.catalogue import Metric, MetricType
from millrace.metrics.tally import Distribution, Sample

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Exposition:
    """What one process tells: all of ``metrics``, with what ``ask`` gives at that moment, and the
    figures of the process itself. Safe for several threads if ``ask`` is."""

    def __init__(self, metrics: Sequence[Metric], ask: Callable[[], Iterable[Sample]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Asking(metrics, ask))
        ProcessCollector(registry=self._registry)

    def text(self) -> str:
        """The answer to ``/metrics``; its type is ``CONTENT_TYPE``."""
        return generate_latest(self._registry).decode()


class _Asking(Collector):
    def __init__(self, metrics: Sequence[Metric], ask: Callable[[], Iterable[Sample]]) -> None:
        self._metrics = tuple(metrics)
        self._ask = ask

    def collect(self) -> Iterator[Family]:
        """A family for each metric, also where nothing is known of it yet. Raises ``KeyError`` for
        a sample of another one."""
        families = {one.name: _family(one) for one in self._metrics}
        for sample in self._ask():
            _add(families[sample.metric.name], sample)
        yield from families.values()


def _family(metric: Metric) -> Family:
    labels = list(metric.labels)
    match metric.type:
        case MetricType.COUNTER:
            return CounterMetricFamily(metric.name, metric.meaning, labels=labels)
        case MetricType.GAUGE:
            return GaugeMetricFamily(metric.name, metric.meaning, labels=labels)
        case MetricType.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.meaning, labels=labels)


def _add(family: Family, sample: Sample) -> None:
    value = sample.value
    assert len(sample.labels) == len(sample.metric.labels), sample
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Distribution)
        bounds = [*map(str, sample.metric.bounds), "+Inf"]
        buckets = list(zip(bounds, value.counts, strict=True))
        family.add_metric(sample.labels, buckets, value.total)
    else:
        assert not isinstance(value, Distribution)
        family.add_metric(sample.labels, value)
