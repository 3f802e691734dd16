"""Sources that cannot be read for a while, or never again: as a user runs them."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import ExitCode
from millrace_e2e import ledger, quickjvm
from millrace_e2e.harness import Place, read_events, running

COUNT = 40
END_S = 400.0

FEED = '''
import pyarrow as pa

from millrace.errors import SourceAwayError
from millrace.sources import ReadBatch, Source, SourcePlan


class Ticks(Source):
    """Ten at a time. It fails while there is a file ``plan-*`` or ``read-*``, each of which is for
    one failure, unless it is called ``*-always``."""

    def schema(self):
        return pa.schema([("tick", pa.int64())])

    def plan(self, offsets, max_records):
        start = offsets or 0
        if start == 10:
            if not any(self.folder.glob("rows/part-*")):
                return SourcePlan((), start)  # a driver may end before its first window has begun
            self.fail("plan", ConnectionResetError("the feed went away"))
        count = min(10, max_records, self.options["count"] - start)
        ranges = (self.range_of("ticks", start, count),) if count else ()
        return SourcePlan(ranges, start + count, drained=start + count == self.options["count"])

    def read(self, piece):
        if piece.start == 20:
            self.fail("read", SourceAwayError("the feed does not answer"))
        ticks = pa.array(range(piece.start, piece.start + piece.count), pa.int64())
        yield ReadBatch(pa.RecordBatch.from_arrays([ticks], schema=self.schema()))

    def fail(self, where, error):
        for file in sorted(self.folder.glob(f"{where}-*")):
            if not file.name.endswith("always"):
                file.unlink()
            raise error
'''


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path / "history").make()
    code = made.base / "code"
    code.mkdir()
    (code / "feed.py").write_text(FEED)
    source = {"class": "feed:Ticks", "options": {"count": COUNT}}
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    rows = {"path": "rows", "format": "jsonLines"}
    made.write(
        {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "StreamTopology",
            "metadata": {"name": "ticking"},
            "spec": {
                "code": {"path": "code"},
                "parallelism": 1,
                "spark": {"conf": quick, "driver": {"memory": "512m", "standby": 0}},
                "sources": [{"name": "ticks", "custom": source}],
                "sinks": [{"name": "rows", "inputs": [{"from": "ticks"}], "files": rows}],
            },
        }
    )
    return made


def fails(place: Place, where: str, *names: str) -> None:
    for name in names:
        (place.base / f"{where}-{name}").touch()


def events(place: Place, kind: str) -> list[dict[str, Any]]:
    """Of all runs up to now."""
    return [event for event in read_events(place.work) if event["kind"] == kind]


def shown(place: Place) -> list[int]:
    return sorted(one.row["tick"] for one in ledger.read_rows(place.sink("rows")))


def test_a_source_that_fails_holds_a_run_up_or_ends_it_with_its_words(place):
    """It fails at each place a few times, which ends nothing, and for ever. Then what is planned is
    shown, which only reading tells of (a plan fails once its first window is shown), nothing else
    is sealed, and the next run goes on from there."""
    fails(place, "plan", "always")
    assert_ended_by(place, "the feed went away", 10)

    (place.base / "plan-always").unlink()
    fails(place, "plan", *"123")
    fails(place, "read", "always")
    aways, backs = len(events(place, "SourceAway")), len(events(place, "SourceBack"))
    assert_ended_by(place, "the feed does not answer", 20)
    (away,) = events(place, "SourceAway")[aways:]
    assert "source 'ticks'" in away["text"]
    assert "ConnectionResetError: the feed went away" in away["text"]
    assert len(events(place, "SourceBack")) == backs + 1

    (place.base / "read-always").unlink()
    fails(place, "read", *"12")
    agains, begun = (len(events(place, kind)) for kind in ("WindowRunAgain", "DriverRecovered"))
    with running(place) as run:
        assert run.wait(END_S) == ExitCode.OK, run.tail()
    assert shown(place) == list(range(COUNT))
    again = [event["text"] for event in events(place, "WindowRunAgain")[agains:]]
    assert again
    assert all("the feed does not answer" in text for text in again)
    assert len(events(place, "DriverRecovered")) == begun + 1
    assert events(place, "DeadLetters") == []


def assert_ended_by(place: Place, said: str, before: int) -> None:
    """A run is, whose two drivers stop for the same; so many are shown."""
    stops = len(events(place, "DriverStopped"))
    with running(place) as run:
        assert run.wait(END_S) == ExitCode.SOURCE, run.tail()
    assert said in run.output()
    assert shown(place) == list(range(before))
    stopped = events(place, "DriverStopped")[stops:]
    assert len(stopped) == 2
    assert all(said in event["text"] for event in stopped)
