"""A table that is looked up in and replaced: each window has one content, whoever dies."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from millrace_e2e import feed, harness, ledger, quickjvm
from millrace_e2e.harness import APPS, Place, running

LINES, WINDOW = 120, 10


def topology() -> dict[str, Any]:
    table = {"path": "table.csv", "schema": "bucket string, content string"}
    spec = {
        "window": {"maxRecords": WINDOW, "maxInterval": "50ms"},
        "code": {"path": str(APPS)},
        "spark": {
            "conf": {"spark.driver.extraJavaOptions": quickjvm.options()},
            "driver": {"memory": "512m"},
        },
        "sources": [
            {"name": "lines", "files": {"path": "texts", "format": "text", "watch": False}}
        ],
        "processors": [
            {"name": "parse", "inputs": [{"from": "lines"}], "function": "history:parse"},
            {
                "name": "named",
                "inputs": [{"from": "parse", "columns": {"id": "id", "bucket": "bucket"}}],
                "lookup": {
                    "table": table,
                    "key": [{"column": "bucket"}],
                    "columns": [{"name": "content"}],
                    "missing": "Fail",
                },
            },
        ],
        "sinks": [{"name": "rows", "inputs": [{"from": "named"}], "files": {"path": "rows"}}],
    }
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "tables"},
        "spec": spec,
    }


def put(path: Path, content: str) -> None:
    rows = [f"b{number:02d},{content}\n" for number in range(100)]
    draft = path.with_suffix(".new")
    draft.write_text("".join(["bucket,content\n", *rows]))
    os.replace(draft, path)


POINTS = ("driver.started:3", "driver.ran:3", "driver.record-sent:6")
"""The third window of a driver is planned, or has run as a whole, or is anywhere, when it dies."""


def test_a_window_has_one_content_and_the_next_driver_the_new_one(place: Place) -> None:
    feed.append(place.texts / "a.txt", feed.text(range(LINES), 5))
    place.write(topology())
    for number, point in enumerate(POINTS):
        put(place.base / "table.csv", f"content {number}")
        environment = {"MILLRACE_CRASH_AT": point, "MILLRACE_CRASH_DIR": str(place.marks)}
        with running(place, environment=environment) as run:
            run.until(lambda: len(place.fired()) > number, point)  # noqa: B023
    put(place.base / "table.csv", "content 3")
    harness.run_to_end(place)
    shown = ledger.read_rows(place.sink("rows"))
    ids = Counter(one.row["id"] for one in shown)
    assert ids == Counter(f"r{number:07d}" for number in range(LINES))
    contents: dict[int, set[str]] = {}
    for one in shown:
        contents.setdefault(one.window, set()).add(one.row["content"])
    assert all(len(found) == 1 for found in contents.values()), contents
    order = [content for _, (content,) in sorted(contents.items())]
    assert order == sorted(order)
    windows = Counter(order)
    assert set(windows) == {f"content {number}" for number in range(4)}
    assert (windows["content 0"], windows["content 1"]) == (2, 2)
