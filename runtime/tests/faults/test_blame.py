"""What is no root's fault makes no dead letter: it is over soon, or it stops the run.

Then nothing of the window is sealed, and a later run finds every root where it was.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from faults_driver import CODE, sealed_attempts

from millrace.errors import ExitCode
from millrace.local.files import read_json
from millrace.state.client import connect
from millrace_e2e import feed, quickjvm
from millrace_e2e.checker import Promise
from millrace_e2e.harness import running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

WINDOW = 4500
"""Roots of a window: several tasks with an exchange (``conftest.live``)."""

BREAKING = "fault_blame:Breaking"


def totals(place):
    return (read_json(place.work / "status.json") or {})["totals"]


def windows_sealed(place):
    return {window for _, window, _ in sealed_attempts(place)}


def write_exchange(place, guarantee):
    place.write(history(Shape(max_records=WINDOW, guarantee=guarantee)))
    feed.add_file(place.texts / "a.txt", feed.text(range(2 * WINDOW), 1))


@pytest.mark.parametrize("guarantee", ["ExactlyOnce", "AtLeastOnce"])
def test_a_failure_of_the_engine_that_lasts_stops_the_run(lab, live, place, guarantee):
    write_exchange(place, guarantee)
    lab.order({"breaks": {"window": 2, "attempts": 99}})
    first = live(transport=BREAKING)
    assert first.wait() == ExitCode.ENGINE
    again = first.events("WindowRunAgain")
    assert len(again) >= 4
    assert all("AssertionError: the plumbing does not know this type" in e["text"] for e in again)
    (stopped,) = first.events("DriverStopped")
    assert "window 2: AssertionError: the plumbing" in stopped["text"]
    assert first.events("WindowSplit") == []
    assert windows_sealed(place) == {1}
    assert (totals(place)["dead"], totals(place)["replays"]) == (0, 0)
    lab.order({})
    second = live(transport=BREAKING, uid=first.uid)
    assert second.wait() == 0
    assert totals(place)["dead"] == 0
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_failure_of_the_engine_that_passes_is_waited_for(lab, live, place):
    write_exchange(place, "ExactlyOnce")
    lab.order({"breaks": {"window": 2, "attempts": 3}})
    life = live(transport=BREAKING)
    assert life.wait() == 0
    assert len(life.events("WindowRunAgain")) == 3
    assert life.events("WindowSplit") == []
    assert (totals(place)["dead"], totals(place)["replays"]) == (0, 0)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_line_that_ends_the_one_task_of_a_larger_window_is_blamed_by_several(
    lab, live, place, monkeypatch, caplog
):
    """That one task died says nothing of its roots: the window runs again first."""
    for bound in ("SEVERAL_S", "MOST_S"):  # however slow the machine is just now
        monkeypatch.setattr(f"millrace.engine.jobs.sizes.{bound}", 100.0)
    caplog.set_level("INFO", "millrace.driver")
    place.write(history(Shape(max_records=WINDOW)))
    deadly = {3 * WINDOW + 99: feed.DIE}
    feed.add_file(place.texts / "a.txt", feed.text(range(5 * WINDOW), 1, deadly))
    life = live()
    assert life.wait() == 0
    assert caplog.text.count("larger windows are several tasks for a while") == 1
    assert totals(place)["dead"] == 1
    assert judge(place, Promise.EXACTLY_ONCE) == []


def simple(function, sink):
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "simple"},
        "spec": {
            "window": {"maxInterval": "50ms"},
            "ackers": {"maxReplays": 1, "backoff": "50ms"},
            "keyGroups": 16,
            "code": {"path": str(CODE)},
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                {"name": "step", "inputs": [{"from": "lines"}], "function": function},
            ],
            "sinks": [{"name": "rows", "inputs": [{"from": "step"}], **sink}],
        },
    }


def test_a_worker_that_ends_without_a_note_blames_no_root(lab, live, place):
    """Nothing says what the worker did with its healthy roots."""
    words = [f"w{n}" for n in range(40)]
    files = {"files": {"path": "rows", "format": "jsonLines"}}
    place.write(simple("fault_blame:forget", files))
    feed.add_file(place.texts / "a.txt", "".join(f"{word}\n" for word in words).encode())
    lab.order({"forget": True})
    first = live()
    assert first.wait() == ExitCode.ENGINE
    assert first.events("WindowSplit") == []
    assert (totals(place)["roots"], totals(place)["dead"], totals(place)["replays"]) == (0, 0, 0)
    lab.order({})
    assert live(uid=first.uid).wait() == 0
    shown = [json.loads(line) for f in place.sink("rows").glob("part-*") for line in f.open()]
    assert Counter(r["word"] for r in shown) == Counter(words)
    assert totals(place)["dead"] == 0


def test_rows_without_a_key_become_dead_letters_and_the_stream_goes_on(
    lab, live, place, state_server
):
    address = state_server.address
    url = f"{address.url}?password={address.password}"
    sink = {"redis": {"url": url, "mode": "hash", "key": "blame:{word}"}}
    place.write(simple("fault_blame:keyed", sink))
    feed.add_file(place.texts / "a.txt", b"a\nbad\nb\nbad\nc\n")
    life = live()
    assert life.wait() == 0
    assert totals(place)["dead"] == 2
    assert totals(place)["roots"] == 3
    found = connect(address, life.uid).redis.keys("blame:*")
    assert {key.decode() for key in found} == {"blame:a", "blame:b", "blame:c"}


def test_the_command_ends_with_a_code_of_its_own_and_goes_on_once_the_cause_is_mended(place):
    options = {"path": "rows", "format": "jsonLines"}
    document = simple(
        "fault_blame:keyed", {"custom": {"class": "fault_blame:Refusing", "options": options}}
    )
    document["spec"]["spark"] = {
        "conf": {"spark.driver.extraJavaOptions": quickjvm.options()},
        "driver": {"memory": "512m"},
    }
    place.write(document)
    feed.add_file(place.texts / "a.txt", b"a\nb\nc\n")
    with running(place) as run:
        assert run.wait(240) == ExitCode.ENGINE, run.tail()
    told = "sink 'rows': staging rows raised RuntimeError: the table is locked"
    assert told in " ".join(run.output().split())
    assert list(place.sink("rows").glob("part-*")) == []
    assert totals(place)["dead"] == 0
    (place.base / "mended").touch()
    with running(place) as run:
        assert run.wait(120) == 0, run.tail()
    shown = [json.loads(line) for f in place.sink("rows").glob("part-*") for line in f.open()]
    assert sorted(r["word"] for r in shown) == ["a", "b", "c"]
