"""However a driver ends, every source and sink that it made is closed, removed sinks too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.checked import with_checksum
from millrace.engine.driver.connectors import Connectors
from millrace.engine.driver.performer import RealPerformer
from millrace.engine.driver.process import DriverProcess
from millrace.engine.driver.stores import Stores
from millrace.errors import (
    ExitCode,
    FencedError,
    MillraceError,
    NewerFormatError,
    SinkError,
    SourceError,
)
from millrace.homes import codec
from millrace.homes.documents import Proposal
from millrace.homes.passwords import shared
from millrace.homes.settings import DriverSettings, RetiredSink, in_folder
from millrace.homes.told import read_topology
from millrace.local.files import write_json
from millrace.protocol import events as e
from millrace.protocol.record import first_record
from millrace.protocol.types import Components, Sealed, Staged, Tag
from millrace.state.inboxfiles import InboxFiles
from millrace.topology.load import parse

WAIT_S = 60.0

CODE = '''
import sys
from pathlib import Path

import pyarrow as pa

from millrace.errors import FencedError, SinkError, SourceError
from millrace.sinks import Sink
from millrace.sources import Source, SourcePlan


class Book:
    """Keeps an account of who was made and who was closed."""

    def __init__(self, name, options, folder):
        super().__init__(name, options, folder)
        if options.get("made") == "never":
            raise (SourceError if isinstance(self, Source) else SinkError)(f"no {name} today")
        if options.get("made") == "leaves":
            sys.exit()
        self.tell("made")

    def tell(self, what):
        with open(self.folder / "book", "a") as file:
            file.write(f"{what} {self.name}\\n")

    def close(self):
        self.tell("closed")
        if self.options.get("closes") == "badly":
            raise RuntimeError("stuck")
        if self.options.get("closes") == "leaves":
            sys.exit()


class Quiet(Book, Source):
    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        return SourcePlan((), offsets, False)

    def read(self, piece):
        return iter(())


class Mute(Book, Sink):
    def prepare(self, uid, fresh=False, overwrite=False):
        if self.options.get("prepares") == "never":
            raise SinkError(f"{self.name} belongs to another")
        if self.options.get("prepares") == "fenced":
            raise FencedError(f"{self.name} serves execution 9")
        if self.options.get("prepares") == "leaves":
            sys.exit()

    def check_fresh(self, overwrite):
        pass

    def fence(self, execution):
        pass

    def last_shown(self):
        return None

    def stage(self, name, batches):
        return None

    def publish(self, sealed, mine, execution, step=None):
        pass
'''


def spec(*sinks: dict[str, Any], **source: Any) -> dict[str, Any]:
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "closing"},
        "spec": {
            "sources": [
                {"name": "in", "custom": {"class": "bookkeeping:Quiet", "options": source}},
                {"name": "also", "custom": {"class": "bookkeeping:Quiet"}},
            ],
            "sinks": list(sinks) or [sink("out"), sink("beside")],
        },
    }


def sink(name: str, **options: Any) -> dict[str, Any]:
    custom = {"class": "bookkeeping:Mute", "options": options}
    return {"name": name, "inputs": [{"from": "in"}, {"from": "also"}], "custom": custom}


@pytest.fixture
def told(tmp_path: Path, uid: str) -> Callable[..., DriverSettings]:
    """What a driver is told of a topology in a folder of its own."""
    (tmp_path / "bookkeeping.py").write_text(CODE)

    def settings(document: dict[str, Any], **more: Any) -> DriverSettings:
        valid = parse(json.dumps(document), folder=tmp_path)
        file = tmp_path / "topology.json"
        whole = valid.document()
        write_json(file, with_checksum(whole))
        return replace(in_folder(tmp_path, uid, file, tmp_path), **more)

    return settings


@pytest.fixture
def password(state_server: Any) -> str:
    found: str = state_server.address.password
    return found


@pytest.fixture
def ended(tmp_path: Path, state_server: Any) -> Callable[[DriverProcess], int]:
    """The exit code of a driver that finds a state server and is asked to stop."""

    def run(driver: DriverProcess) -> int:
        inbox = InboxFiles(tmp_path / "proposal.json", tmp_path / "requests")
        inbox.propose(Proposal((state_server.address.member(),), ()))
        driver.ask_to_stop()
        return driver.run()

    return run


def book(folder: Path) -> dict[str, list[str]]:
    """Who was made, and who was closed, in order."""
    lines = (folder / "book").read_text().splitlines()
    return {word: [n for w, n in map(str.split, lines) if w == word] for word in ("made", "closed")}


def no_spark(*_: object) -> Any:
    raise AssertionError("nothing of this needs Spark")


ALL = ["in", "also", "out", "beside"]


def test_a_driver_that_is_asked_to_stop_closes_everything(told, password, ended, tmp_path):
    driver = DriverProcess(told(spec()), shared(password), start=no_spark)
    assert ended(driver) == ExitCode.INTERRUPTED
    assert book(tmp_path) == {"made": ALL, "closed": ALL}


def test_why_it_stopped_is_told_before_anything_is_closed(
    told, password, ended, tmp_path, monkeypatch
):
    """Closing may outlast what is left to a process that was told to end."""
    seen = []

    def close(performer):
        seen.append(json.loads((tmp_path / "status.json").read_text())["state"])
        closing(performer)

    closing = RealPerformer.close
    monkeypatch.setattr(RealPerformer, "close", close)
    driver = DriverProcess(told(spec()), shared(password), start=no_spark)
    assert ended(driver) == ExitCode.INTERRUPTED
    assert seen == ["asked"]


def test_a_driver_ends_with_the_code_of_what_it_ends_for(told, password, ended):
    """What the machine has ignored, since nobody waits for it any more, has no part in it."""
    driver = DriverProcess(told(spec()), shared(password), start=no_spark)
    driver._observe(e.PlanFailed(0, "a.txt has shrunk", ExitCode.SOURCE))
    for code in (None, ExitCode.SOURCE):
        stop = e.Stop(e.StopKind.FAILED, "the view document is gone", code)
        assert driver._code(stop) == (code or ExitCode.FAILED)
    assert ended(driver) == ExitCode.INTERRUPTED


@pytest.mark.parametrize("closes", ["badly", "leaves"])
def test_one_that_cannot_be_closed_keeps_no_other_open(told, password, ended, tmp_path, closes):
    document = spec(sink("out", closes=closes), sink("beside"), closes=closes)
    driver = DriverProcess(told(document), shared(password), start=no_spark)
    assert ended(driver) == ExitCode.INTERRUPTED
    assert book(tmp_path)["closed"] == ALL


def test_a_driver_whose_sink_cannot_be_prepared_closes_everything(told, password, tmp_path):
    document = spec(sink("out"), sink("beside", prepares="never"))
    with pytest.raises(SinkError, match="belongs to another"):
        DriverProcess(told(document), shared(password), start=no_spark).run()
    assert book(tmp_path) == {"made": ALL, "closed": ALL}


@pytest.mark.parametrize("meets", ["a sink that is prepared", "a thread"])
def test_a_driver_that_an_error_has_fenced_says_so(told, password, tmp_path, meets):
    """Its exit code alone is not believed."""
    prepares = {"prepares": "fenced"} if meets.startswith("a sink") else {}
    driver = DriverProcess(told(spec(sink("out", **prepares))), shared(password), start=no_spark)
    if not prepares:
        driver._loop.fail(FencedError("out serves execution 9"))
    with pytest.raises(MillraceError, match="serves execution 9") as raised:
        driver.run()
    assert raised.value.exit_code == ExitCode.FENCED
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("fenced", "out serves execution 9")


def test_a_driver_that_fails_under_way_closes_everything(told, password, tmp_path):
    settings = told(spec())
    (tmp_path / "proposal.json").write_text('{"format": 99}')
    driver = DriverProcess(settings, shared(password), start=no_spark)
    with pytest.raises(NewerFormatError):
        driver.run()
    assert book(tmp_path) == {"made": ALL, "closed": ALL}


MAIN = """
import logging, os, sys
from types import SimpleNamespace
from millrace.engine.driver import main as driver
from millrace.engine.jobs.starttimes import StartTimes
driver.SparkAhead = lambda *_, **__: SimpleNamespace(times=StartTimes(), await_jvm=lambda: None)
code = driver.main(sys.argv[1:])
logging.shutdown()
os._exit(code)
"""
"""The driver's process, without Spark."""


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (spec(made="leaves"), ExitCode.FAILED),
        (spec(sink("out", prepares="leaves")), ExitCode.FAILED),
        (spec(sink("out", prepares="never", closes="leaves")), ExitCode.SINK),
    ],
)
def test_code_that_asks_the_process_to_exit_does_not_say_that_all_is_done(
    told, tmp_path, document, code
):
    settings = tmp_path / "driver.json"
    settings.write_text(json.dumps(codec.encode(told(document))))
    command = [sys.executable, "-c", MAIN, "--settings", str(settings)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == code, done.stderr
    why = "SystemExit" if code is ExitCode.FAILED else "belongs to another"
    assert re.search(f"ERROR millrace.driver .*{why}", done.stderr)


@pytest.mark.parametrize(
    ("document", "error", "made"),
    [
        (spec(made="never"), SourceError, []),
        (spec(sink("out"), sink("beside", made="never")), SinkError, ["in", "also", "out"]),
    ],
)
def test_what_was_made_before_one_that_cannot_be_is_closed(
    told, password, tmp_path, document, error, made
):
    with pytest.raises(error, match="today"):
        DriverProcess(told(document), shared(password), start=no_spark)
    if made:
        assert book(tmp_path) == {"made": made, "closed": made}
    else:
        assert not (tmp_path / "book").exists()


@pytest.mark.parametrize("prepares", ["at once", "never"])
def test_a_removed_sink_is_closed_at_the_end(told, password, ended, tmp_path, prepares):
    gone = sink("gone", prepares=prepares)
    lives = Components(1, {"in": 0, "also": 0}, {}, {"out": 0, "beside": 0})
    retired = (RetiredSink("gone", 0, gone),)
    driver = DriverProcess(
        told(spec(), components=lives, retired=retired), shared(password), start=no_spark
    )
    opened = driver._retired()
    before = replace(lives, edit=0, sinks={**lives.sinks, "gone": 0})
    record = replace(
        first_record("u", Tag(1, 1, 1, 1)),
        components=before,
        sealed=3,
        unpublished=(Sealed(3, "d", (Staged("gone", "name", "d", 1, 1),)),),
    )
    if prepares == "never":
        with pytest.raises(SinkError, match="belongs to another"):
            opened.open(record)
    else:
        assert [one.name for one in opened.open(record)] == ["gone"]
    assert book(tmp_path)["closed"] == []
    assert ended(driver) == ExitCode.INTERRUPTED
    assert book(tmp_path) == {"made": [*ALL, "gone"], "closed": [*ALL, "gone"]}


def test_nothing_is_closed_twice(told, tmp_path):
    settings = told(spec())
    connectors = Connectors(tmp_path, Stores("u", shared(None)))
    connectors.sources(read_topology(Path(settings.topology)))
    connectors.close()
    connectors.close()
    assert book(tmp_path) == {"made": ["in", "also"], "closed": ["in", "also"]}


def test_what_one_has_closed_another_does_not_get(told, tmp_path):
    """A restore in a driver's pod comes behind the driver, in the same process."""
    topology = read_topology(Path(told(spec()).topology))
    first, second = (Connectors(tmp_path, Stores("u", shared(None))) for _ in range(2))
    before = first.sinks(topology)
    first.close()
    assert not {id(one) for one in before} & {id(one) for one in second.sinks(topology)}


@pytest.mark.parametrize("ttl", [{}, {"ttl": "1h"}])
def test_where_state_expires_a_clock_that_is_behind_is_told(told, password, ended, tmp_path, ttl):
    document = spec()
    document["spec"]["processors"] = [
        {
            "name": "counts",
            "inputs": [{"from": "in", "key": ["n"]}],
            "aggregate": {"columns": [{"name": "c", "function": "count"}]},
            **ttl,
        }
    ]
    document["spec"]["sinks"][0]["inputs"].append({"from": "counts"})
    driver = DriverProcess(told(document), shared(password), start=no_spark)
    assert ended(driver) == ExitCode.INTERRUPTED
    committed = first_record(driver._told.uid, Tag(1, 1, 1, 1))
    driver._committed(replace(committed, time_ms=1 << 45))
    assert ("ClockBehind" in (tmp_path / "events.jsonl").read_text()) == bool(ttl)
