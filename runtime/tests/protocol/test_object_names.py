"""Names of attempts, tags and objects: what is written is read back, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.ids import Epoch, Execution, Seq, Timeline, WindowAttempt, WindowNumber
from millrace.protocol import events as e
from millrace.protocol.names import (
    LettersObject,
    TaskObject,
    read_attempt,
    read_name,
    spoken,
    tells_death,
)
from millrace.protocol.types import AttemptId, Stamp, Tag, TaskId

NUMBERS = st.integers(0, 10**12)
ATTEMPTS = st.builds(AttemptId, NUMBERS, NUMBERS, NUMBERS)
WORDS = st.text(min_size=0, max_size=8)
NAMES = st.one_of(
    st.builds(LettersObject, ATTEMPTS, NUMBERS),
    st.builds(
        TaskObject,
        ATTEMPTS,
        st.builds(TaskId, NUMBERS, NUMBERS, NUMBERS),
        WORDS.filter(lambda kind: "/" not in kind),
        WORDS,
    ),
)
ATTEMPT = AttemptId(Execution(1), WindowNumber(5), WindowAttempt(2))


def test_names_are_those_of_the_first_release() -> None:
    assert str(TaskObject(ATTEMPT, TaskId(0, 3, 7), "state", "counts.2")) == (
        "1.5.2.0.3.7/state/counts.2"
    )
    assert str(LettersObject(ATTEMPT, Epoch(4))) == "1.5.2.4/dead"
    assert spoken("1.5.2.4/dead") == "1.5.2.4"
    assert str(ATTEMPT) == "1.5.2"
    assert str(Tag(Timeline(1), Execution(2), Epoch(3), Seq(4))) == "1.2.3.4"


@given(NAMES)
def test_a_name_is_read_as_it_was_written(name: TaskObject | LettersObject) -> None:
    assert read_name(str(name)) == name


@given(ATTEMPTS)
def test_an_attempt_is_read_as_it_was_written(attempt: AttemptId) -> None:
    assert read_attempt(str(attempt)) == attempt


@given(st.builds(Tag, NUMBERS, NUMBERS, NUMBERS, NUMBERS))
def test_a_tag_is_read_as_it_was_written(tag: Tag) -> None:
    assert Tag.read(str(tag)) == tag


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dead",
        "/dead",
        "1.2.3/dead",
        "1.2.3.4",
        "1.2.3.4/letters",
        "1.2.3.4/dead/x",
        "1.2.3.4.5/state/a",
        "1.2.3.4.5.6",
        "1.2.3.4.5.6/state",
        "1.2.3.4.5.6.7/state/a",
        "01.2.3.4.5.6/state/a",
        "1.2.3.4.5.6 /state/a",
        "x.2.3.4.5.6/state/a",
    ],
)
def test_any_other_name_is_nobodys_and_never_deleted(text: str) -> None:
    assert read_name(text) is None
    forget = e.Forget(Stamp(Epoch(9), Execution(9)), WindowNumber(99), (), (), frozenset())
    assert not forget.covers(text)
    assert forget.covers("1.5.2.0.3.7/state/counts.2")


@pytest.mark.parametrize("text", ["", "1.2", "1.2.3.4", "01.2.3", "1.2.x", "1..3"])
def test_any_other_attempt_is_none(text: str) -> None:
    assert read_attempt(text) is None


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("1.5.2.0.3.7/death/4711", True),
        ("1.5.2.0.3.7/state/counts", False),
        ("1.5.2.4/dead", False),
        ("1.5.2.0.3/death/4711", False),
        ("1.5.2.0.3.07/death/4711", False),
        ("1.5.3.0.3.7/death/4711", False),
        ("1.5.20.0.3.7/death/4711", False),
        ("2.5.2.0.3.7/death/4711", False),
    ],
)
def test_the_end_of_a_worker_is_told_of_by_its_own_attempt_alone(text: str, tells: bool) -> None:
    assert tells_death(text, ATTEMPT) is tells


CONFUSED = """
from millrace.ids import Epoch, Execution, WindowAttempt, WindowNumber
from millrace.protocol.types import AttemptId, Stamp

window, execution, epoch = WindowNumber(1), Execution(2), Epoch(3)
Stamp({epoch}, execution)
AttemptId({execution}, window, WindowAttempt(1))
"""


def test_a_window_cannot_be_passed_as_an_epoch(tmp_path: Path) -> None:
    def checked(**numbers: str) -> tuple[int, str]:
        file = tmp_path / "confused.py"
        file.write_text(CONFUSED.format(**numbers))
        mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
        done = subprocess.run(mypy, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout

    assert checked(epoch="epoch", execution="execution") == (0, "")
    code, said = checked(epoch="window", execution="epoch")
    assert code == 1
    assert 'has incompatible type "WindowNumber"; expected "Epoch"' in said
    assert 'has incompatible type "Epoch"; expected "Execution"' in said
