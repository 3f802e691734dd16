"""A work folder, or the file of its state server, that is put back from an older copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from millrace_e2e import feed, harness, ledger, valkey
from millrace_e2e.harness import Place, running
from millrace_e2e.topologies import measured

SINK = 6


def document(redis: str) -> dict[str, Any]:
    """One source and a sink of each kind, all showing the same rows."""
    inputs = [{"from": "measure"}]
    return measured(
        "copies",
        [
            {"name": "rows", "inputs": inputs, "files": {"path": "rows"}},
            {
                "name": "entries",
                "inputs": inputs,
                "redis": {"url": redis, "mode": "stream", "stream": "entries"},
            },
            custom("telling", "Telling"),
            custom("mute", "Mute"),
        ],
    )


def custom(name: str, kind: str) -> dict[str, Any]:
    part = {"class": f"stores:{kind}", "options": {"file": f"{name}.json"}}
    return {"name": name, "inputs": [{"from": "measure"}], "custom": part}


def grow(place: Place, first: int, last: int) -> None:
    feed.append(place.texts / "a.txt", feed.text(range(first, last), 1))


def held(place: Place, server: valkey.Server) -> dict[str, Any]:
    """Everything that the sinks hold, marks and fences with it."""
    files = {
        str(path.relative_to(place.base)): path.read_bytes()
        for path in sorted(place.sink("rows").rglob("*"))
        if path.is_file()
    }
    with server.client() as client:
        stream = client.xrange("entries")
        marker = client.hgetall("millrace:sink:entries")
    stores = [json.loads((place.base / f"{name}.json").read_text()) for name in ("telling", "mute")]
    return {"files": files, "stream": stream, "marker": marker, "stores": stores}


def ids(place: Place, server: valkey.Server) -> list[list[str]]:
    """The ids of the lines that each sink shows."""
    found = held(place, server)
    return [
        sorted(one.row["id"] for one in ledger.read_rows(place.sink("rows"))),
        sorted(fields[b"id"].decode() for _, fields in found["stream"]),
        *(sorted(row["id"] for row in store["rows"]) for store in found["stores"]),
    ]


def put_back(copy: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(copy, target)


def refused(place: Place, server: valkey.Server, newest: str) -> str:
    """Run, and be refused with nothing changed on any sink; what was said."""
    before = held(place, server)
    with running(place) as run:
        assert run.wait(harness.START_S) == SINK, run.tail()
        text = run.output()
    assert held(place, server) == before
    for name in ("rows", "entries", "telling"):
        assert f"sink '{name}' shows windows up to {newest}" in text, text
    assert "put back from an older copy" in text
    assert "is drained" not in text
    return text


def test_an_older_copy_is_refused_by_every_sink_and_the_newest_goes_on(
    place: Place, sink_server: valkey.Server
) -> None:
    """Of the work folder, and of the state server alone: from an earlier run, and from the same
    life of the server."""
    place.write(document(sink_server.url))
    grow(place, 0, 20)
    harness.run_to_end(place)
    older = place.base / "older"
    shutil.copytree(place.work, older)
    with running(place, "--set", "spec.sources[lines].files.watch=true") as run:
        grow(place, 20, 40)
        run.until(lambda: run.status().get("published", 0) >= 4, "window 4")
        same_life = place.base / "same-life"
        shutil.copytree(place.work / "state-0", same_life)
        grow(place, 40, 60)
        run.until(lambda: run.status().get("published", 0) >= 6, "window 6")
        run.kill()
    newest = place.base / "newest"
    shutil.copytree(place.work, newest)
    grow(place, 60, 70)

    put_back(older, place.work)
    text = refused(place, sink_server, "6")
    assert "the last window of the record is 2" in text
    refused(place, sink_server, "6")

    put_back(newest, place.work)
    put_back(same_life, place.work / "state-0")
    refused(place, sink_server, "6")

    put_back(newest, place.work)
    put_back(older / "state-0", place.work / "state-0")
    before = held(place, sink_server)
    with running(place) as run:
        assert run.wait(harness.START_S) == SINK, run.tail()
        assert "its append-only file is out of date; bring the newest file back" in run.output()
    assert held(place, sink_server) == before

    # The refused starts have not raised what the sinks serve: the newest folder is taken at once.
    put_back(newest, place.work)
    last = harness.run_to_end(place)
    wanted = [f"r{number:07d}" for number in range(70)]
    assert ids(place, sink_server) == [wanted] * 4
    # A sink that cannot tell is named at each start.
    assert "sink 'mute' cannot tell what it shows (Sink.last_shown)" in last.output()
