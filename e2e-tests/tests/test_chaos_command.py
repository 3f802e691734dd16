"""``millrace chaos`` kills a run that is fed all the while, and sees what was done to its sinks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from millrace_e2e import quickjvm
from millrace_e2e.harness import Place, command, running

SLOW_S = 400.0

CODE = '''
import time

from millrace import row


@row(output="id string, word string")
def split(record):
    """A slow step, so that kills hit work in flight."""
    time.sleep(0.002)
    name, *words = record["value"].split()
    for word in words:
        yield {"id": name, "word": word}


def expected(folder):
    """What the sinks should hold, counted without Millrace."""
    rows = [
        {"id": line.split()[0], "word": word}
        for path in sorted((folder / "texts").iterdir())
        for line in path.read_text().splitlines()
        for word in line.split()[1:]
    ]
    counts = {}
    for row in rows:
        counts[row["word"]] = counts.get(row["word"], 0) + 1
    totals = [{"word": word, "n": count} for word, count in counts.items()]
    return {"words": rows, "totals": totals}
'''


def document() -> dict[str, Any]:
    conf = {"spark.driver.extraJavaOptions": quickjvm.options()}
    aggregate = {"emit": "changes", "columns": [{"name": "n", "function": "count"}]}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "chased"},
        "spec": {
            "window": {"maxRecords": 500, "maxInterval": "200ms"},
            "spark": {"driver": {"standby": 0}, "conf": conf},
            "sources": [{"name": "lines", "files": {"path": "texts", "format": "text"}}],
            "processors": [
                {"name": "split", "inputs": [{"from": "lines"}], "function": "chased:split"},
                {
                    "name": "counts",
                    "inputs": [{"from": "split", "key": ["word"], "columns": {"word": "word"}}],
                    "aggregate": aggregate,
                },
            ],
            "sinks": [
                {"name": "words", "inputs": [{"from": "split"}], "files": {"path": "words"}},
                {
                    "name": "totals",
                    "inputs": [{"from": "counts"}],
                    "files": {"path": "totals", "format": "parquet"},
                },
            ],
        },
    }


def feed(texts: Path, lines: int) -> None:
    """One more file of lines, complete at once."""
    number = len(list(texts.iterdir()))
    draft = texts.parent / "draft"
    draft.write_text("".join(f"l{number}-{i} w{i % 7} v{i % 11}\n" for i in range(lines)))
    draft.rename(texts / f"{number:06d}.txt")


def chaos(place: Place, *arguments: str) -> tuple[int, Any]:
    """(exit code, report) of ``millrace chaos --json``."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "millrace.cli.app", "chaos", "--json"),
            *("--workdir", str(place.work), *arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        timeout=SLOW_S,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_kills_are_survived_and_what_is_done_to_a_sink_is_seen(place: Place) -> None:
    (place.base / "chased.py").write_text(CODE)
    place.write(document())
    picture = place.base / "timeline.svg"
    killing = ("--every", "3s", "--for", "9s", "--settle", "250s", "--picture", str(picture))
    feed(place.texts, 15_000)
    with running(place) as run:
        run.await_sealed(1)
        code, report = chaos(place, "--kill", "driver,acker,state-server", *killing)
        assert code == 0, report
        assert (report["kills"], report["failure"]) == (3, None)
        assert set(report["recovery_s"]) == {"acker", "driver", "state-server"}
        # The input takes 15 seconds at least, and a kill waits until a driver is at work.
        assert (report["in_flight"], report["unproven"]) == (3, [])
        times = [kill["recovery_s"] for kill in report["timeline"]]
        assert all(0 < time < 120 for time in times)
        assert {name: sink["seen"] > 0 for name, sink in report["sinks"].items()} == {
            "words": True,
            "totals": True,
        }
        assert "<svg" in picture.read_text()
        # The driver's own figures still say that all is well.
        victim = max(place.sink("words").glob("part-*.jsonl"))
        first, second, *rest = victim.read_text().splitlines()
        victim.write_text("\n".join([second, second, '{"id": "new", "word": "w"}', *rest]) + "\n")
        feed(place.texts, 2_000)
        again = ("--kill", "acker+state-server", "--every", "4s", "--for", "4s", "--expect")
        code, report = chaos(place, *again, "chased:expected")
        assert code == 1
        assert [kill["kind"] for kill in report["timeline"]] == ["acker", "state-server"]
        assert list(report["recovery_s"]) == ["acker+state-server"]
        assert (report["lost"], report["duplicated"], report["wrong"]) == (1, 1, 1)
        lost = json.dumps(json.loads(first), sort_keys=True)
        assert f"lost: {lost}" in report["sinks"]["words"]["examples"]
        assert report["sinks"]["totals"]["examples"] == []
        assert run.process.poll() is None
    code, said = command(place, "chaos")
    assert code == 1
    assert "chased does not run: start it with millrace run" in said
    code, said = command(place, "chaos", "--kill", "node,acker")
    assert (code, "the run is on this machine alone" in said) == (1, True)
