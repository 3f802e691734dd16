"""A look at a folder of many files takes about as many steps as there are files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from file_lives import Reader, lines, write
from test_files_identity import ModelEvidence, ModelFile, stat_of

from millrace.sources import content
from millrace.sources.content import CHAIN_START, mark_at
from millrace.sources.entries import FileEntry
from millrace.sources.identity import Change, Matched, Seen, match

MANY = 2000
STEPS = 80
"""Most calls of functions for each file; each file with each other one would be thousands."""


def entry_of(number: int, path: str, file: ModelFile) -> FileEntry:
    size = len(file.rows)
    mark = mark_at(size, CHAIN_START, file.rows)
    entry = FileEntry(number, path, mark, records=1, size=size)
    return entry.seen(path, stat_of(file), file.birth)


def copied(name: str, file: ModelFile) -> dict[str, ModelFile]:
    return {name: replace(file, inode=file.inode + MANY, birth=file.birth + MANY)}


def moved(name: str, file: ModelFile) -> dict[str, ModelFile]:
    return {f"{name}.1": copied(name, file)[name]}


def truncated(name: str, file: ModelFile) -> dict[str, ModelFile]:
    return {**moved(name, file), name: replace(file, rows=b"", modified=2, changed=2)}


def other(name: str, file: ModelFile) -> dict[str, ModelFile]:
    (copy,) = moved(name, file).values()
    return {f"{name}.1": replace(copy, rows=b"x" + file.rows[1:])}


def look(
    before: dict[str, ModelFile], after: dict[str, ModelFile]
) -> tuple[Matched, ModelEvidence, int]:
    entries = {n: entry_of(n, p, file) for n, (p, file) in enumerate(before.items())}
    evidence = ModelEvidence(after, {n: f.rows for n, f in enumerate(before.values())}, True)
    listing = {path: stat_of(file) for path, file in sorted(after.items())}
    steps = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        found = match(Seen(entries), listing, lambda _: {}, evidence)
    finally:
        sys.setprofile(None)
    return found, evidence, steps


TEXTS: dict[str, Callable[[int], bytes]] = {
    "like no other": lambda n: b"%06d" % n,
    "of any size": lambda n: b"%06d" % n + bytes(n % 500),
    "all the same": lambda n: b"000000",
}


@pytest.mark.parametrize(
    ("happens", "change", "texts"),
    [
        *((copied, Change.SAME, text) for text in TEXTS),
        *((moved, Change.RENAMED, text) for text in TEXTS),
        *((other, Change.GONE, text) for text in TEXTS),
        # A copy may have grown: of any size it would be compared with each length.
        (truncated, Change.ROTATED, "like no other"),
        (truncated, Change.ROTATED, "all the same"),
    ],
)
def test_what_became_of_many_files_takes_about_as_many_steps(
    happens: Callable[[str, ModelFile], dict[str, ModelFile]], change: Change, texts: str
) -> None:
    """Another disk, another folder, others of the same size, and a rotation by copies."""
    rows = TEXTS[texts]
    before = {f"{n:06d}": ModelFile(n + 1, n + 1, rows(n), 1, 1) for n in range(MANY)}
    after: dict[str, ModelFile] = {}
    for name, file in before.items():
        after.update(happens(name, file))
    found, evidence, steps = look(before, after)
    assert {fate.change for fate in found.fates.values()} == {change}
    new = {truncated: list(before), other: sorted(after)}.get(happens, [])
    assert list(found.new) == new
    assert evidence.asked < 10 * MANY
    assert steps < STEPS * MANY


def test_files_that_take_the_place_of_many_are_not_compared_with_each(
    inbox: Path, moment: Callable[[Reader], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        write(inbox / f"{number:03d}", lines(f"{number:03d}", 1))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 300
    shutil.rmtree(inbox)
    inbox.mkdir()
    for number in range(300):
        write(inbox / f"new {number:03d}", ["0123456789"])
    moment(reader)
    compared = 0
    real = content._begins

    def begins(*args: Any) -> bool:
        nonlocal compared
        compared += 1
        return real(*args)

    monkeypatch.setattr(content, "_begins", begins)
    assert len(reader.take()) == 300
    assert compared < 300


@pytest.mark.parametrize("size", [1, 30_000])
def test_a_copy_of_one_of_many_goes_on_for_a_file_that_is_truncated(
    inbox: Path, size: int, moment: Callable[[Reader], None]
) -> None:
    """Also where the first block is that of others, and with files of another length."""
    for name in "abc":
        write(inbox / name, [*lines("same", size), name])
    write(inbox / "longer", [*lines("same", 2 * size), "longer"])
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 5 * size + 4
    for name in ("b", "longer"):
        shutil.copy(inbox / name, inbox / f"{name}.1")
        write(inbox / name, [f"new {name}"])
    shutil.move(inbox / "c", inbox.parent / "c")
    shutil.copy(inbox.parent / "c", inbox / "c.1")
    moment(reader)
    assert sorted(reader.take()) == ["new b", "new longer"]
    for name in ("a", "b.1", "c.1", "longer.1"):
        with (inbox / name).open("a") as file:
            file.write(f"more of {name}\n")
    assert sorted(reader.take()) == [f"more of {name}" for name in ("a", "b.1", "c.1", "longer.1")]
