"""Edits mean what they say: the old file, a crash, the new file, and a count of what came out."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from millrace_e2e import feed, harness, ledger, quickjvm
from millrace_e2e.harness import APPS, Place, running

INVALID, SINK = 3, 6
EACH = 40
"""Lines of each source."""

WINDOW = 10

INPUT = ("a", "b")


def document(
    sources: str = "ab",
    processors: Iterable[str] = ("number",),
    sinks: Iterable[str] = ("rows", "extra"),
    **settings: Any,
) -> dict[str, Any]:
    """Sources a and b, read by turns; ``number`` counts the lines of a bucket."""
    inputs = [{"from": name} for name in sources]
    steps = [
        {"name": "parse", "inputs": inputs, "function": "history:parse"},
        {"name": "measure", "inputs": [{"from": "parse"}], "function": "history:measure"},
    ]
    outputs = [files(name, "measure") for name in sinks]
    for name in processors:
        keyed = [{"from": "parse", "key": ["bucket"]}]
        steps.append({"name": name, "inputs": keyed, "function": "history:number"})
        outputs.append(files(f"{name}s", name))
    spec = {
        "guarantee": "ExactlyOnce",
        "window": {"maxRecords": WINDOW, "maxInterval": "50ms"},
        "code": {"path": str(APPS)},
        "parallelism": 1,
        "keyGroups": 16,
        "spark": {
            "conf": {"spark.driver.extraJavaOptions": quickjvm.options()},
            "driver": {"memory": "512m"},
        },
        "sources": [
            {"name": name, "files": {"path": name, "format": "text", "watch": False}}
            for name in sources
        ],
        "processors": steps,
        "sinks": outputs,
        **settings,
    }
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "edited"},
        "spec": spec,
    }


def files(name: str, producer: str) -> dict[str, Any]:
    return {"name": name, "inputs": [{"from": producer}], "files": {"path": name}}


def fill(place: Place) -> None:
    """Line n of a is line n of the feed, line n of b is line 1000 + n."""
    for name, first in (("a", 0), ("b", 1000)):
        (place.base / name).mkdir()
        feed.append(place.base / name / "lines.txt", feed.text(range(first, first + EACH), 5))


def ids(first: int) -> Counter[str]:
    return Counter(f"r{number:07d}" for number in range(first, first + EACH))


def shown(place: Place, sink: str, windows: range = range(10**6)) -> Counter[str]:
    """How often a sink shows each line in these windows."""
    rows = ledger.read_rows(place.sink(sink))
    return Counter(one.row["id"] for one in rows if one.window in windows)


def die(place: Place, point: str) -> None:
    """Run until a driver has died at a point, and end everything there."""
    environment = {"MILLRACE_CRASH_AT": point, "MILLRACE_CRASH_DIR": str(place.marks)}
    with running(place, environment=environment) as run:
        run.until(place.fired, point)
    shutil.rmtree(place.marks)
    place.marks.mkdir()


@pytest.fixture(scope="module")
def died_at(tmp_path_factory: pytest.TempPathFactory, quick_jvm: None) -> Callable[[str], Place]:
    """A topology whose driver has died at a point: everything lies there as it did then, however
    often it is asked for, but its input, which no test changes."""
    place = Place(tmp_path_factory.mktemp("edits") / "history").make()
    fill(place)

    def made(point: str) -> Place:
        kept = place.base.parent / point
        if not kept.exists():
            empty(place.base)
            place.make()
            place.write(document())
            die(place, point)
            put(place.base, kept)
        empty(place.base)
        put(kept, place.base)
        place.write(document())
        return place

    return made


def empty(base: Path) -> None:
    """All but the input goes, which is known by what it is and not by its bytes alone."""
    for path in base.iterdir():
        if path.is_dir() and path.name not in INPUT:
            shutil.rmtree(path)


def put(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    sockets = shutil.ignore_patterns("*.sock")  # of workers that are gone
    for path in source.iterdir():
        if path.is_dir() and path.name not in INPUT:
            shutil.copytree(path, target / path.name, symlinks=True, ignore=sockets)


def status(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.work / "status.json").read_text())
    return found


@pytest.mark.parametrize("again", ["", "driver.record-sent:2", "driver.edited"])
def test_what_is_removed_is_forgotten_once_and_comes_back_as_another(
    died_at: Callable[[str], Place], again: str
) -> None:
    """With an open window of both sources, and with deaths around the record's own change."""
    place = died_at("driver.started:3")
    before = 2

    place.write(document("a", (), ("rows",)))
    if again:
        die(place, again)
    run = harness.run_to_end(place)
    told = [event["text"] for event in run.events("TopologyEdited")]
    assert len(told) >= 1
    if not again:
        assert told[0] in run.output(), "what the user reads"
    assert "source 'b' is gone with its read position" in told[0]
    assert "the state of 'number' is dropped" in told[0]
    middle = run.status()
    dropped = middle["totals"]["dropped"]
    assert f"{dropped} open roots and 0 replays" in told[0]
    # Of b exactly what was sealed is shown; what was open is counted, the rest is unread.
    assert shown(place, "rows") == shown(place, "extra") + (ids(0) - shown(place, "extra"))
    partly = shown(place, "rows") - ids(0)
    assert dropped == WINDOW // 2
    assert sum(partly.values()) == before * WINDOW // 2
    assert middle["totals"]["roots"] == EACH + before * WINDOW // 2

    # All of it comes back: b from its beginning, number and extra with nothing from before.
    place.write(document())
    last = harness.run_to_end(place)
    assert last.status()["totals"]["dropped"] == dropped
    since = range(middle["sealed"] + 1, 10**6)
    assert shown(place, "rows") == ids(0) + partly + ids(1000)
    assert shown(place, "rows", since) == shown(place, "extra", since) == ids(1000)
    seen: Counter[str] = Counter()
    for one in ledger.read_rows(place.sink("numbers")):
        if one.window in since:
            seen[one.row["bucket"]] += 1
            assert one.row["n"] == seen[one.row["bucket"]], "old state came back"
    assert sum(seen.values()) == EACH


def test_what_is_sealed_is_shown_on_a_removed_sink_first(died_at: Callable[[str], Place]) -> None:
    place = died_at("driver.sealed:3")
    sealed = 3
    assert sum(shown(place, "extra").values()) < sealed * WINDOW

    # The sink cannot show it any more: the run says so and waits for a decision.
    home = place.sink("extra") / "_millrace"
    staged = sorted((home / "staged").iterdir())
    assert staged
    for path in staged:
        path.rename(place.base / path.name)
    place.write(document(sinks=("rows",)))
    with running(place) as run:
        assert run.wait(harness.START_S) == SINK, run.tail()
        waiting = (
            r"Sink 'extra' is no longer in the file, but [123]0 rows of windows [123] to 3 wait"
        )
        assert re.search(waiting, run.output())
    assert sum(shown(place, "extra").values()) < sealed * WINDOW

    # Mended, it shows what was sealed, and nothing that came later.
    for path in staged:
        (place.base / path.name).rename(path)
    harness.run_to_end(place)
    assert shown(place, "rows") == ids(0) + ids(1000)
    assert sum(shown(place, "extra").values()) == sealed * WINDOW
    assert shown(place, "extra") == shown(place, "rows", range(sealed + 1))


def test_rows_of_a_removed_sink_are_given_up_only_when_asked(
    died_at: Callable[[str], Place],
) -> None:
    place = died_at("driver.sealed:3")
    shown_before = shown(place, "extra")
    shutil.rmtree(place.sink("extra"))
    place.write(document(sinks=("rows",)))
    run = harness.run_to_end(place, "--drop-removed")
    told = [event["text"] for event in run.events("TopologyEdited")]
    given_up = r"[123]0 rows of windows [123] to 3, not yet confirmed by sink 'extra', are given up"
    assert re.search(given_up, told[0])
    assert shown(place, "rows") == ids(0) + ids(1000)
    assert sum(shown_before.values()) <= 2 * WINDOW
    assert not place.sink("extra").exists()


def test_a_guarantee_that_drops_what_was_open_counts_it(died_at: Callable[[str], Place]) -> None:
    place = died_at("driver.started:3")
    place.write(document(guarantee="AtMostOnce"))
    run = harness.run_to_end(place)
    assert "AtMostOnce drops what was open and counts it" in run.output()
    totals = run.status()["totals"]
    assert totals["dropped"] == WINDOW
    assert sum(shown(place, "rows").values()) == totals["roots"] == 2 * EACH - WINDOW
    assert set(shown(place, "rows").values()) == {1}


def test_a_schema_that_state_was_not_made_with_stops_the_run_and_blames_no_record(
    place: Place,
) -> None:
    (place.base / "a").mkdir()
    lines = place.base / "a" / "lines.jsonl"
    lines.write_text("".join(f'{{"k": "k{n % 3}", "v": {n}}}\n' for n in range(20)))

    def summing(schema: str) -> dict[str, Any]:
        made = document("a", (), ())
        spec = made["spec"]
        spec["sources"][0]["files"] |= {"format": "jsonLines", "schema": schema}
        columns = [{"name": "total", "function": "sum", "of": "v"}]
        keyed = [{"from": "a", "key": ["k"]}]
        spec["processors"] = [{"name": "sums", "inputs": keyed, "aggregate": {"columns": columns}}]
        spec["sinks"] = [files("totals", "sums")]
        return made

    place.write(summing("k string, v long"))
    harness.run_to_end(place)
    before = ledger.read_rows(place.sink("totals"))
    with lines.open("a") as file:
        file.write('{"k": "k0", "v": 0.5}\n')
    place.write(summing("k string, v double"))
    with running(place) as run:
        assert run.wait(harness.START_S) == INVALID, run.tail()
        assert "keyed state that it changes stops the run" in run.output()
        assert "stored totals have columns" in run.output()
    assert status(place)["deadLetters"] == 0
    assert ledger.read_rows(place.sink("totals")) == before
    # Changed back it goes on; the record that was waiting is a dead letter by its own fault.
    place.write(summing("k string, v long"))
    harness.run_to_end(place)
    assert status(place)["deadLetters"] == 1


def test_a_run_takes_settings_while_it_goes_on_and_its_next_driver_has_them(place: Place) -> None:
    """The driver is not started again for it; killed behind that it begins with what was taken."""
    (place.base / "a").mkdir()
    lines = place.base / "a" / "lines.txt"
    feed.append(lines, feed.text(range(EACH), 5))

    def written(**settings: Any) -> None:
        made = document("a", (), ("rows",), **settings)
        made["spec"]["sources"][0]["files"]["watch"] = True
        made["spec"]["spark"]["driver"]["standby"] = 0
        place.write(made)

    written()
    with running(place) as run:
        run.await_sealed(EACH // WINDOW)
        written(parallelism=2, window={"maxRecords": 4, "maxInterval": "50ms"})
        code, text = harness.command(place, "apply", str(place.topology))
        assert code == 1
        assert "spec.parallelism: 1 → 2" in text
        assert "needs a restart" in text
        written(window={"maxRecords": 4, "maxInterval": "50ms"}, tupleTimeout="20s")
        code, text = harness.command(place, "apply", str(place.topology))
        assert (code, "spec.window.maxRecords: 10 → 4" in text) == (0, True), text
        (told,) = run.until(lambda: run.events("SettingsChanged"), "the driver takes them")
        assert "spec.window.maxRecords 4" in told["text"]
        assert "spec.tupleTimeout 20s" in told["text"]
        before = run.status()
        assert before["execution"] == 1
        feed.append(lines, feed.text(range(EACH, 2 * EACH), 5))
        run.await_sealed(before["sealed"] + EACH // 4)
        os.kill(run.status()["pid"], signal.SIGKILL)
        run.until(lambda: run.status().get("execution") == 2, "the next driver")
        sealed = run.status()["sealed"]
        feed.append(lines, feed.text(range(2 * EACH, 3 * EACH), 5))
        run.await_sealed(sealed + EACH // 4)
        assert len(run.events("SettingsChanged")) == 1, "it began with them"
        run.interrupt()
        run.wait(harness.START_S)
    assert shown(place, "rows") == ids(0) + ids(EACH) + ids(2 * EACH)
