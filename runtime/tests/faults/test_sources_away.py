"""Sources that cannot be read for a while, or never again: as a user runs them."""

from __future__ import annotations

import pytest

from millrace.errors import ExitCode
from millrace_e2e import ledger, quickjvm
from millrace_e2e.harness import Place, running

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


def shown(place: Place) -> list[int]:
    return sorted(one.row["tick"] for one in ledger.read_rows(place.sink("rows")))


def test_a_source_that_fails_a_few_times_holds_a_run_up_and_ends_nothing(place):
    fails(place, "plan", *"123")
    fails(place, "read", *"12")
    with running(place) as run:
        assert run.wait(END_S) == ExitCode.OK, run.tail()
    assert shown(place) == list(range(COUNT))
    (away,) = run.events("SourceAway")
    assert "source 'ticks'" in away["text"]
    assert "ConnectionResetError: the feed went away" in away["text"]
    assert len(run.events("SourceBack")) == 1
    again = [event["text"] for event in run.events("WindowRunAgain")]
    assert again
    assert all("the feed does not answer" in text for text in again)
    assert len(run.events("DriverRecovered")) == 1
    assert run.events("DeadLetters") == []


@pytest.mark.parametrize(
    ("where", "before", "said"),
    [("plan", 10, "the feed went away"), ("read", 20, "the feed does not answer")],
)
def test_one_that_never_comes_back_ends_the_run_with_its_words(place, where, before, said):
    """What is planned is shown, nothing else is sealed, and the next run goes on from there."""
    fails(place, where, "always")
    with running(place) as run:
        assert run.wait(END_S) == ExitCode.SOURCE, run.tail()
    assert said in run.output()
    assert shown(place) == list(range(before))
    stopped = run.events("DriverStopped")
    assert len(stopped) == 2
    assert all(said in event["text"] for event in stopped)
    (place.base / f"{where}-always").unlink()
    with running(place) as run:
        assert run.wait(END_S) == ExitCode.OK, run.tail()
    assert shown(place) == list(range(COUNT))
    assert run.events("DeadLetters") == []
