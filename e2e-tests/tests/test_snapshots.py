"""Snapshots of a running topology, and what goes on from them.

What a snapshot holds is counted here from the lines that its windows read, never taken from what
the topology says of itself; rows on the sinks are compared with the input the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.app import main
from millrace_e2e import feed, harness, ledger, objectstore
from millrace_e2e.harness import Place, running
from millrace_e2e.topologies import remembered

LINES, OF_A_WINDOW = 400, 10
SNAPSHOT = 14

CALL_S = {"MILLRACE_E2E_CALL_S": "15"}
"""The input must not end before the snapshot; what waits for a call goes on once the gate is open.
"""


def millrace(place: Place, *arguments: str, code: int = 0, **environment: str) -> str:
    """What a command writes; it must end with ``code``. What loads a user's code, or goes by an
    environment of its own, has a process of its own."""
    plain = {"NO_COLOR": "1", "COLUMNS": "300"}
    if not environment and arguments[:2] != ("snapshot", "restore"):
        found, said = harness.called(main, *arguments, **plain)
        assert found == code, (arguments, found, said)
        return said
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **plain, **environment},
    )
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def create(place: Place, *arguments: str, **environment: str) -> dict[str, Any]:
    named = ("--workdir", str(place.work), "--json", *arguments)
    shown = millrace(place, "snapshot", "create", *named, **environment)
    found: dict[str, Any] = json.loads(shown)
    return found


def restore(place: Place, name: str, *arguments: str, code: int = 0, **environment: str) -> str:
    named = ["-t", str(place.topology), "--workdir", str(place.work), *arguments]
    return millrace(place, "snapshot", "restore", name, *named, code=code, **environment)


def scan(place: Place, processor: str) -> tuple[int, dict[str, int]]:
    """The window that the state is of, and the state: key → n."""
    shown = millrace(
        place, "state", "scan", processor, "--json", "--workdir", str(place.work)
    ).splitlines()
    rows = [json.loads(line) for line in shown if line.startswith("{")]
    (window,) = {row["window"] for row in rows}
    return window, {next(iter(row["key"].values())): row["state"]["n"] for row in rows}


def counts(lines: int) -> dict[str, Counter[str]]:
    """What so many lines leave, counted here."""
    read = [feed.line(number, 1).split() for number in range(lines)]
    return {
        "count": Counter(word for _, _, *words in read for word in words),
        "number": Counter(f"b{name[-2:]}" for name, *_ in read),
    }


def judge_state(place: Place, window: int) -> None:
    for processor in ("count", "number"):
        assert scan(place, processor) == (window, counts(window * OF_A_WINDOW)[processor])


def judge_rows(place: Place, first: int, last: int) -> None:
    """The sinks show lines first..last-1: each line is numbered once, with its place among all
    lines of its bucket, and of each word that these lines have the last count is that of them all.
    """
    seen: Counter[str] = Counter()
    numbered = set()
    for number in range(last):
        name = feed.line(number, 1).split()[0]
        seen[f"b{name[-2:]}"] += 1
        if number >= first:
            numbered.add((name, seen[f"b{name[-2:]}"]))
    shown = [(one.row["id"], one.row["n"]) for one in ledger.read_rows(place.sink("numbers"))]
    assert len(shown) == len(set(shown)) == last - first
    assert set(shown) == numbered
    of_them = counts(last)["count"]
    touched = {word for n in range(first, last) for word in feed.line(n, 1).split()[2:]}
    latest: dict[str, int] = {}
    for one in ledger.read_rows(place.sink("counts")):
        latest[one.row["word"]] = max(latest.get(one.row["word"], 0), one.row["n"])
    assert latest == {word: of_them[word] for word in touched}


def numbered_by(code: str) -> list[dict[str, Any]]:
    """The processors with other code, whose state has one more column and is an object to it."""
    processors: list[dict[str, Any]] = remembered(OF_A_WINDOW)["spec"]["processors"]
    processors[-1]["function"] = f"history:{code}"
    return processors


def fed(place: Place, spec: dict[str, Any] | None = None) -> Place:
    place.write(remembered(OF_A_WINDOW, **(spec or {})))
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    return place


def beside(place: Place, name: str, **spec: Any) -> Place:
    """Another place with the same input."""
    other = Place(place.base.parent / name).make()
    other.write(remembered(OF_A_WINDOW, **spec))
    for file in place.texts.iterdir():
        shutil.copy2(file, other.texts / file.name)
    return other


def taken(place: Place) -> int:
    """Run a topology to its end, and take a snapshot, ``early``, meanwhile; behind which window."""
    fed(place, {"stateServers": {"replicas": 3, "copies": 2}})
    with running(place, environment=CALL_S) as run:
        run.await_sealed(3)
        early = create(place, "--name", "early")
        place.gate.touch()
        assert run.wait(harness.START_S) == 0, run.tail()
    assert 3 <= early["window"] < LINES // OF_A_WINDOW, "the input had ended before the snapshot"
    judge_rows(place, 0, LINES)
    return int(early["window"])


def test_what_goes_on_from_a_snapshot_is_exact_elsewhere_and_in_its_own_place(
    place: Place,
) -> None:
    window = taken(place)
    it_goes_on_elsewhere_with_other_numbers_of_everything(place, window)
    its_own_topology_goes_back_to_it_and_the_sinks_with_it(place, window)


def it_goes_on_elsewhere_with_other_numbers_of_everything(place: Place, window: int) -> None:
    servers = {"replicas": 2, "copies": 2}
    spec = {"parallelism": 3, "stateServers": servers, "ackers": {"replicas": 2}}
    other = beside(place, "other", processors=numbered_by("number_by_tally"), **spec)
    where = ("--place", str(place.work / "snapshots"))
    shown = millrace(place, "snapshot", "show", "early", "--check", *where)
    assert "every object is whole" in shown
    said = restore(other, "early", *where)
    assert f"remembers is restored behind window {window}, as timeline 2" in said
    judge_state(other, window)
    harness.run_to_end(other)
    judge_rows(other, window * OF_A_WINDOW, LINES)
    judge_state(other, LINES // OF_A_WINDOW)
    # What it was taken of is as it was.
    judge_rows(place, 0, LINES)


def its_own_topology_goes_back_to_it_and_the_sinks_with_it(place: Place, window: int) -> None:
    last = LINES // OF_A_WINDOW
    servers = {"replicas": 3, "copies": 2}
    code = numbered_by("NumberByTally")
    place.write(remembered(OF_A_WINDOW, processors=code, stateServers=servers))
    said = restore(place, "early")
    assert f"windows {window + 1} to {last} were taken back from the sinks" in said
    judge_state(place, window)
    judge_rows(place, 0, window * OF_A_WINDOW)
    harness.run_to_end(place)
    judge_rows(place, 0, LINES)
    judge_state(place, last)
    # A snapshot of the new timeline is one like any other, also while nothing runs.
    late = create(place)
    assert (late["window"], late["timeline"]) == (last, 2)
    listed = millrace(place, "snapshot", "list", "--workdir", str(place.work)).splitlines()
    assert [line.split()[0] for line in listed] == ["name", "early", late["name"]]
    millrace(place, "snapshot", "delete", "early", "--workdir", str(place.work))
    said = restore(place, "early", code=SNAPSHOT)
    assert f"snapshot early: is not in {place.work / 'snapshots'}" in said
    judge_rows(place, 0, LINES)


@pytest.mark.skipif(not objectstore.is_installed(), reason=objectstore.WITHOUT)
def test_snapshots_lie_in_an_object_store_as_in_a_folder(place: Place, tmp_path: Path) -> None:
    """S3's protocol, by the package that users have for it."""
    with objectstore.serving(tmp_path / "store") as store:
        to, reached = f"{store.url}/of/words", store.environment
        fed(place, {"snapshots": {"to": to}})
        with running(place, environment={**CALL_S, **reached}) as run:
            run.await_sealed(3)
            early = create(place, "--name", "early", **reached)
            place.gate.touch()
            run.interrupt()
            run.wait(harness.END_S)
        window = int(early["window"])
        assert 3 <= window < LINES // OF_A_WINDOW, "the input had ended before the snapshot"
        its_upload_is_cut_off_and_nobody_believes_what_is_left(place, to, reached)

        shown = millrace(place, "snapshot", "show", "early", "--check", "--place", to, **reached)
        assert "every object is whole" in shown
        other = beside(place, "other", parallelism=3)
        said = restore(other, "early", "--place", to, **reached)
        assert f"remembers is restored behind window {window}, as timeline 2" in said
        judge_state(other, window)
        harness.run_to_end(other)
        judge_rows(other, window * OF_A_WINDOW, LINES)


def its_upload_is_cut_off_and_nobody_believes_what_is_left(
    place: Place, to: str, reached: dict[str, str]
) -> None:
    late = ("snapshot", "create", "--name", "late", "--workdir", str(place.work))
    millrace(place, *late, code=-signal.SIGKILL, MILLRACE_CRASH_AT="snapshot.part:2", **reached)
    listed = millrace(place, "snapshot", "list", "--workdir", str(place.work), **reached)
    (told,) = [line for line in listed.splitlines() if "late" in line]
    assert "was never finished" in told
    other = beside(place, "unfinished")
    said = restore(other, "late", "--place", to, code=SNAPSHOT, **reached)
    assert "was never finished, so it is not believed" in said
    assert not other.work.exists()
    millrace(place, "snapshot", "delete", "late", "--workdir", str(place.work), **reached)
    said = restore(other, "late", "--place", to, code=SNAPSHOT, **reached)
    assert f"snapshot late: is not in {to}; snapshots there: early" in said
