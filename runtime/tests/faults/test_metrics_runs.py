"""What drivers tell Prometheus of a history, compared with what was fed and what came out."""

from __future__ import annotations

import json

from faults_driver import CODE, Life
from prometheus_client.parser import text_string_to_metric_families as parse

from millrace.metrics import catalogue
from millrace.metrics.exposition import Exposition
from millrace_e2e import feed
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place
from millrace_e2e.judge import judge
from millrace_e2e.scrape import EVERY, unset
from millrace_e2e.topologies import Shape, history

WINDOW = 50
GROUPS = 16
BREAKING = "fault_blame:Breaking"


def text(life: Life) -> str:
    return Exposition(catalogue.DRIVER, life.driver.samples).text()


def told(life: Life) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in parse(text(life))
        for one in family.samples
    }


def words() -> dict[str, object]:
    files = {"path": "rows", "format": "jsonLines"}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "words"},
        "spec": {
            "window": {"maxRecords": WINDOW, "maxInterval": "50ms"},
            "ackers": {"maxReplays": 1, "backoff": "50ms"},
            "keyGroups": GROUPS,
            "code": {"path": str(CODE)},
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                {
                    "name": "step",
                    "inputs": [{"from": "lines"}],
                    "function": "fault_metrics:taken",
                }
            ],
            "sinks": [{"name": "rows", "inputs": [{"from": "step"}], "files": files}],
        },
    }


def shown(place: Place) -> int:
    return sum(len(file.read_text().splitlines()) for file in place.sink("rows").glob("part-*"))


def test_totals_are_those_of_the_history_also_for_the_next_driver(lab, live, place):
    place.write(words())
    lines = [f"boom {n}" if n in (7, 60, 61) else f"w{n}" for n in range(120)]
    feed.add_file(place.texts / "a.txt", "".join(f"{line}\n" for line in lines).encode())
    first = live()
    assert first.wait() == 0
    found = told(first)
    assert unset(text(first), "Driver", EVERY) == []
    assert shown(place) == 117
    assert found["millrace_roots_sealed_total",] == 117
    assert found["millrace_replays_total",] == 3
    assert found["millrace_replays_waiting",] == 0
    assert found["millrace_dead_letters_total",] == found["millrace_dead_letters_held",] == 3
    assert found["millrace_roots_dropped_total",] == 0
    assert found["millrace_lag_records",] == 0
    assert found["millrace_driver_state", "drained"] == 1
    assert found["millrace_driver_execution",] == 1
    windows = found["millrace_windows_sealed_total",]
    assert windows >= 3
    assert found["millrace_window_last_sealed",] == windows
    assert found["millrace_window_last_published",] == windows
    assert found["millrace_window_seal_seconds_count",] == windows
    assert found["millrace_window_publish_seconds_count",] == windows
    seals, shows = (found[f"millrace_window_{what}_seconds_sum",] for what in ("seal", "publish"))
    assert 0 < seals < shows
    assert found["millrace_window_attempts_total", "ran"] >= windows
    assert found["millrace_recovery_seconds_count", "driver"] == 1
    (server,) = [name for one, *name in found if one == "millrace_view_key_groups"]
    assert found["millrace_view_key_groups", *server] == GROUPS

    feed.add_file(place.texts / "b.txt", b"more\nand more\n")
    second = live(uid=first.uid)
    assert second.wait() == 0
    again = told(second)
    assert shown(place) == 119
    assert again["millrace_roots_sealed_total",] == 119
    assert again["millrace_dead_letters_total",] == 3
    assert again["millrace_driver_execution",] == 2
    own = again["millrace_windows_sealed_total",] - windows
    assert own > 0
    assert again["millrace_window_seal_seconds_count",] == own


def test_attempts_that_die_are_counted_and_are_one_recovery(lab, live, place):
    place.write(history(Shape(max_records=4500, guarantee="ExactlyOnce")))
    feed.add_file(place.texts / "a.txt", feed.text(range(3 * 4500), 1))
    lab.order({"breaks": {"window": 2, "attempts": 3}})
    life = live(transport=BREAKING)
    assert life.wait() == 0
    found = told(life)
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert found["millrace_window_attempts_total", "died"] == 3
    assert found["millrace_window_attempts_total", "waited"] == 0
    assert found["millrace_window_attempts_total", "failed"] == 0
    assert found["millrace_recovery_seconds_count", "attempt"] == 1
    assert found["millrace_recovery_seconds_sum", "attempt"] > 0
    assert found["millrace_dead_letters_total",] == 0
    assert found["millrace_replays_total",] == 0
    status = json.loads((place.work / "status.json").read_text())
    assert found["millrace_roots_sealed_total",] == status["totals"]["roots"]
