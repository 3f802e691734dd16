"""A run whose display cannot be written goes on, and says what nobody will see."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from standins import running
from test_supervisor_ends import claimed

from millrace.errors import ExitCode
from millrace.homes.documents import RunEvent
from millrace.local.logs import Display


@pytest.mark.parametrize(("full_for", "lost", "shown"), [(9, 3, []), (1, 1, ["row 2", "row 3"])])
def test_lines_of_a_console_sink_that_are_lost_are_told_at_the_end(
    tmp_path: Path, full_for: int, lost: int, shown: list[str]
) -> None:
    (tmp_path / "driver-exit").write_text("[0]")
    with claimed(tmp_path), running(tmp_path, STANDIN_FULL=str(full_for)) as run:
        result = run.result()
    assert (result["reason"], result["code"]) == ("drained", ExitCode.SINK)
    lines = "1 line" if lost == 1 else f"{lost} lines"
    assert f"did not take {lines} of the driver's (No space left on device)" in result["message"]
    assert [line["output"] for line in run.lines if "output" in line] == shown
    told = [line for line in run.lines if line.get("kind") == "OutputLost"]
    assert [(one["warning"], "No space left" in one["text"]) for one in told] == [(True, True)]


def test_a_display_that_is_full_loses_lines_and_not_the_run(tmp_path: Path) -> None:
    """Neither of the events nor of the figures, of which none has a row of a sink."""
    (tmp_path / "driver-exit").write_text("[0]")
    with claimed(tmp_path), running(tmp_path, STANDIN_FULL="0") as run:
        result = run.result()
    assert (result["reason"], result["code"], result["message"]) == ("drained", 0, "")
    assert [line["output"] for line in run.lines if "output" in line] == ["row 1", "row 2", "row 3"]


class Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def event(self, event: RunEvent) -> None:
        raise self.error

    def progress(self) -> None:
        raise self.error

    def output(self, line: str) -> None:
        raise self.error


def test_a_reader_that_has_gone_is_no_full_disk() -> None:
    """What follows from it is for the caller to say, as it was: ``| head`` asks for no more."""
    for error in (OSError(errno.EPIPE, "Broken pipe"), SystemExit(1)):
        display = Display(Raising(error))
        with pytest.raises(type(error)):
            display.output("row")
        with pytest.raises(type(error)):
            display.progress()
        assert (display.lost, display.shortfall) == (0, "")


def test_what_the_encoding_of_a_terminal_lacks_is_lost_too() -> None:
    display = Display(Raising(UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)")))
    display.event(RunEvent(1.0, "Some", "é"))
    display.output("é")
    assert display.lost == 1
    assert "ordinal not in range" in display.shortfall
