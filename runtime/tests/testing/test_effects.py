"""The parts of a call: what others can notice ends one, what stays in memory does not."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance_support import kitsteps

from millrace.testing import effects
from millrace.testing.lines import CodeLines, chosen
from millrace.testing.processes import Outcome, Workshop

Counted = Callable[[type[Any], str], Outcome]


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    shops: list[Workshop] = []

    def count(kind: type[Any], step: str) -> Outcome:
        shops.append(Workshop(kind, tmp_path, seed=len(shops) + 1))
        return shops[-1].copy("sink", kind("out", {}, tmp_path), tmp_path).ask("check", step=step)

    yield count
    for shop in shops:
        shop.close()


@pytest.mark.skipif(platform.machine() not in effects._NUMBERS, reason="unknown system calls")
@pytest.mark.parametrize(("step", "column"), [("count for kill", 0), ("count for sleep", 1)])
def test_a_part_ends_with_what_others_can_notice(
    step: str, column: int, counted: Counted, tmp_path: Path
) -> None:
    outcome = counted(kitsteps.Changes, step)
    assert outcome.done, outcome
    lines = Path(inspect.getfile(kitsteps)).read_text().splitlines()
    told = [int(lines[at - 1].split("#")[1].split()[column]) for _, at in outcome.places]
    found = [
        (lines[at - 1].strip(), part)
        for (_, at), part in zip(outcome.places, outcome.parts, strict=True)
    ]
    assert found == [(text, part) for (text, _), part in zip(found, told, strict=True)]
    # The forks have done none of it, but for what they may.
    assert (tmp_path / "other").read_text() == "once "
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("kind", [kitsteps.Shares, kitsteps.Threads])
def test_what_no_system_call_shows_leaves_each_line_alone(
    kind: type[Any], counted: Counted
) -> None:
    outcome = counted(kind, "count for kill")
    assert outcome.done, outcome
    lines = Path(inspect.getfile(kitsteps)).read_text().splitlines()
    parts = [
        part
        for (_, at), part in zip(outcome.places, outcome.parts, strict=True)
        if "number" in lines[at - 1]
    ]
    assert len(parts) >= 6
    assert len(set(parts)) == len(parts)


def test_exceptions_are_tried_at_each_line(counted: Counted) -> None:
    outcome = counted(kitsteps.Changes, "count")
    assert outcome.parts == tuple(range(len(outcome.places)))


def test_an_unknown_machine_has_a_part_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")

    def work() -> None:
        numbers = [1]
        numbers.append(2)
        numbers.append(3)

    _, places, parts = CodeLines(Path(__file__).parent).places(work, "changes")
    assert len(places) == 3
    assert parts == [0, 1, 2]


def test_one_line_of_a_part_is_chosen_and_of_a_loop_the_first_and_the_last() -> None:
    loop = [("a", 1), ("a", 2), ("a", 1), ("a", 2), ("a", 1), ("a", 2), ("a", 3)]
    assert chosen(loop, range(7)) == [0, 1, 4, 5, 6]
    assert chosen(loop, [0, 0, 1, 1, 1, 2, 2]) == [1, 4, 6]
    assert chosen(loop, [0] * 7) == [6]
