"""What is served, read by the parser of the library that Prometheus' own users read it with."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from millrace.metrics import catalogue
from millrace.metrics.catalogue import Metric, MetricType
from millrace.metrics.exposition import Exposition
from millrace.metrics.tally import Counts, Histogram, Sample, known, states

LABELLED = Metric("millrace_test_turns_total", MetricType.COUNTER, "Turns.", {"result": "how"})
GAUGE = Metric("millrace_test_depth", MetricType.GAUGE, "Depth.", {})
TOOK_S = Metric(
    "millrace_test_seconds", MetricType.HISTOGRAM, "Time.", {"of": "what"}, (0.1, 1.0, 5.0)
)
ALL = (LABELLED, GAUGE, TOOK_S)


def read(*samples: Sample) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by the name and the labels' values, in the order of the labels' names."""
    text = Exposition(ALL, lambda: samples).text()
    return {
        (one.name, tuple(value for _, value in sorted(one.labels.items()))): one.value
        for family in parse(text)
        for one in family.samples
        if one.name.startswith("millrace_")
    }


def test_all_metrics_are_declared_also_while_nothing_is_known_of_them() -> None:
    found = {family.name: family for family in parse(Exposition(ALL, tuple).text())}
    for metric in (*ALL, *catalogue.PROCESS):
        family = found.pop(metric.name.removesuffix("_total"))
        assert family.type == metric.type
    assert found == {}


def test_values_come_back_as_they_were() -> None:
    turns = Counts(LABELLED, [("well",), ("badly",)])
    for _ in range(3):
        turns.add("well")
    assert read(*turns.samples(), *known(GAUGE, 2.5)) == {
        ("millrace_test_turns_total", ("well",)): 3.0,
        ("millrace_test_turns_total", ("badly",)): 0.0,
        ("millrace_test_depth", ()): 2.5,
    }
    assert read(*known(GAUGE, None)) == {}
    assert read(*known(GAUGE, 0)) == {("millrace_test_depth", ()): 0.0}


def test_a_histogram_counts_what_is_at_most_its_bounds() -> None:
    took = Histogram(TOOK_S, ("turn",))
    for value in (0.1, 0.5, 5.0, 7.0):
        took.observe(value)
    found = read(*took.samples())
    buckets = {
        labels[0]: value
        for (name, labels), value in found.items()
        if name == "millrace_test_seconds_bucket"
    }
    assert buckets == {"0.1": 1.0, "1.0": 2.0, "5.0": 3.0, "+Inf": 4.0}
    assert found["millrace_test_seconds_count", ("turn",)] == 4.0
    assert found["millrace_test_seconds_sum", ("turn",)] == pytest.approx(12.6)


def test_one_state_holds_and_none_where_it_is_not_known() -> None:
    metric = Metric("millrace_test_state", MetricType.GAUGE, "State.", {"state": "state"})
    held = list(states(metric, "b", ["a", "b"]))
    assert [(one.labels, one.value) for one in held] == [(("a",), 0.0), (("b",), 1.0)]
    assert list(states(metric, None, ["a", "b"])) == []


def test_what_the_catalogue_does_not_name_is_not_served() -> None:
    other = Metric("millrace_test_other", MetricType.GAUGE, "Other.", {})
    with pytest.raises(KeyError, match="millrace_test_other"):
        read(Sample(other, 1.0))
    with pytest.raises(AssertionError):
        read(Sample(LABELLED, 1.0))
    with pytest.raises(KeyError):
        Counts(LABELLED, [("well",)]).add("so-so")


def test_nothing_is_lost_between_threads() -> None:
    turns, took = Counts(LABELLED, [("well",)]), Histogram(TOOK_S, ("turn",))

    def work() -> None:
        for _ in range(20_000):
            turns.add("well")
            took.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = read(*turns.samples(), *took.samples())
    assert found["millrace_test_turns_total", ("well",)] == 80_000
    assert found["millrace_test_seconds_count", ("turn",)] == 80_000
