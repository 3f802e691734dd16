"""What the catalogue names, and what docs/metrics.md says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace.engine.driver.figures import STATES, Ended, Recovery
from millrace.metrics import catalogue
from millrace.metrics.catalogue import CATALOGUE, Metric, MetricType, rows
from millrace.protocol.types import Phase

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
ALL = [one for metrics in CATALOGUE.values() for one in metrics]
OWN = [one for one in ALL if one not in catalogue.PROCESS]
UNITS = ("_seconds", "_bytes", "_timestamp_seconds")


@pytest.mark.parametrize("heading", CATALOGUE)
def test_the_table_of_the_documents_is_that_of_the_catalogue(heading: str) -> None:
    part = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(?:millrace|process)_.*$", part, re.M) == rows(CATALOGUE[heading])


def test_the_documents_name_no_other_metric() -> None:
    known = {one.name for one in ALL}
    known |= {f"{one.name}_bucket" for one in ALL if one.type is MetricType.HISTOGRAM}
    assert set(re.findall(r"\b(?:millrace|process)_[a-z_]+", TEXT)) <= known


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_keep_the_conventions(metric: Metric) -> None:
    """Those of Prometheus: what is counted ends in _total, units are base units and stand last."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", metric.name)
    counts = metric.name.endswith("_total")
    assert counts == (metric.type is MetricType.COUNTER)
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created", "_info"))
    for word in ("seconds", "bytes"):
        if f"_{word}" in metric.name:
            assert metric.name.removesuffix("_total").endswith(f"_{word}")
    assert not re.search(r"_(ms|millis|milliseconds|kb|mb|percent)\b", metric.name)
    if metric.type is MetricType.HISTOGRAM:
        assert metric.name.endswith(UNITS)
        assert list(metric.bounds) == sorted(set(metric.bounds))
    else:
        assert metric.bounds == ()
    assert metric.meaning.endswith(".")
    for name in metric.labels:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert name not in ("le", "quantile", "job", "instance", "namespace", "pod", "topology")


def test_ours_are_called_ours_and_each_name_is_one_metric() -> None:
    assert all(one.name.startswith("millrace_") for one in OWN)
    # A counter is a family without its ending, which no other metric may be called.
    families = [one.name.removesuffix("_total") for one in ALL]
    assert len(families) == len(set(families))


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (catalogue.DRIVER_STATE, STATES),
        (catalogue.VIEW_PHASE, [phase.value for phase in Phase]),
        (catalogue.ATTEMPTS, list(Ended)),
        (catalogue.RECOVERY_S, list(Recovery)),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_the_values_that_are_named_are_those_that_there_are(
    metric: Metric, values: list[str]
) -> None:
    (says,) = metric.labels.values()
    assert re.findall(r"`([A-Za-z]+)`", says) == [str(value) for value in values]
