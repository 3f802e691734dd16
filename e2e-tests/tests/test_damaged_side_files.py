"""Files beside the data that are damaged between two runs: refused with a remedy, or left out.

Either way every row is shown exactly once in the end.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from millrace_e2e import checker, feed, harness, ledger
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place
from millrace_e2e.topologies import measured

WORK_FOLDER, SINK = 4, 6


def document() -> dict[str, Any]:
    rows = {"name": "rows", "inputs": [{"from": "measure"}], "files": {"path": "rows"}}
    return measured("damages", [rows])


def grow_and_run(place: Place, first: int, last: int) -> str:
    """Feed more, run to the end, judge all rows so far; what the run said."""
    feed.append(place.texts / "a.txt", feed.text(range(first, last), 1))
    run = harness.run_to_end(place)
    fed, shown = ledger.read_fed(place.texts), ledger.read_rows(place.sink("rows"))
    assert len(fed.kinds) == last
    assert checker.check_rows(fed, shown, Promise.EXACTLY_ONCE, ledger.KINDS) == []
    return run.output()


def flipped(data: bytes) -> bytes:
    """One bit behind the middle is another one, so that it is valid JSON all the same."""
    for found in re.finditer(rb"[a-z]{3}", data[len(data) // 2 :]):
        at = len(data) // 2 + found.start()
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            json.loads(changed)
        except ValueError:
            continue
        return changed
    raise AssertionError(data)


ODD = [b"", b"{", b"[1, 2]", b'{"a": 1}', b"17", b"\xff\xfe\x00", b"[" * 100_000]


def damage_what_only_tells(place: Place) -> None:
    """Every file of which nothing follows, and foreign ones among those of which much does."""
    told = ("status", "processes", "proposal", "run", "tmp", "driver", "topology")
    for number, name in enumerate(told):
        file = place.work / f"{name}.json"
        assert file.exists() or name == "tmp", name
        file.write_bytes(flipped(file.read_bytes()) if name == "topology" else ODD[number])
    for folder in ("ackers", "requests"):
        (place.work / folder).mkdir(exist_ok=True)
    for number, odd in enumerate(ODD):
        (place.work / "requests" / f"{number}.json").write_bytes(odd)
        (place.work / "ackers" / f"acker-{number}.json").write_bytes(odd)
    for folder in ("windows", "executions", "staged", "."):
        for name in (".DS_Store", "notes.txt", "x.done", "1x", "99.json.bak", "~lock"):
            (place.sink("rows") / "_millrace" / folder / name).write_bytes(b"foreign")


def truths(place: Place) -> list[tuple[Path, int]]:
    """The files from which something follows, and the exit code of a run that cannot read one."""
    markers = place.sink("rows") / "_millrace"
    manifest = max((markers / "windows").glob("0*.json"))
    return [
        (place.work / "identity.json", WORK_FOLDER),
        (place.work / "accepted.json", WORK_FOLDER),
        (place.work / "view.json", WORK_FOLDER),
        (markers / "owner.json", SINK),
        (manifest, SINK),
    ]


def test_damaged_side_files_are_refused_or_left_out_and_no_row_is_lost_or_doubled(
    place: Place,
) -> None:
    place.write(document())
    grow_and_run(place, 0, 20)

    for number, (file, code) in enumerate(truths(place)):
        whole = file.read_bytes()
        damaged = ODD[number] if number % 2 else flipped(whole)
        file.write_bytes(damaged)
        with harness.running(place) as run:
            assert run.wait(harness.START_S) == code, run.tail()
            said = [line for line in run.output().splitlines() if line.startswith("error: ")]
        assert len(said) == 1, run.tail()
        assert file.name in said[0]
        assert "bring it back" in said[0] or "restore it" in said[0], said[0]
        file.write_bytes(whole)

    # What the refused runs wrote is damaged, too; nothing that they needed is.
    damage_what_only_tells(place)
    found = harness.status_command(place)
    assert any("status.json is damaged" in one for one in found["warnings"])
    grow_and_run(place, 20, 40)
