"""Where ack messages go: few bytes of a window of one task in its report, all others to the log."""

from __future__ import annotations

import pytest
from engine_support import write_lines
from test_windows import COUNT, LINES, WORDS

from millrace.engine.task import acks
from millrace.tracking.message import read_enclosed

SPEC = COUNT.replace("FUNCTION", "split_batch")


@pytest.fixture
def counted(windows, tmp_path):
    """The outcome of one window, and how many messages of it are in the log."""

    def go(whole):
        write_lines(tmp_path, LINES)
        run = windows(SPEC, whole)
        outcome = run.attempt(run.plan())
        assert outcome.verdict.complete
        assert {r["word"]: r["n"] for r in outcome.rows["totals"]} == WORDS
        return outcome, len(list(run.messages(run.current, reports=())))

    return go


def test_a_window_of_one_task_writes_nothing_to_the_log(counted):
    outcome, in_log = counted(whole=True)
    (report,) = outcome.reports.values()
    assert in_log == 0
    assert [slice_ for slice_, _ in report.acks] == list(report.partitions)
    assert {read_enclosed(text).task for _, text in report.acks} == {report.task}


def test_tasks_of_a_window_of_several_write_to_the_log(counted):
    outcome, in_log = counted(whole=False)
    assert in_log == sum(len(report.partitions) for report in outcome.reports.values())
    assert not any(report.acks for report in outcome.reports.values())


def test_what_is_more_than_a_marker_should_enclose_goes_to_the_log(counted, monkeypatch):
    enclosed, _ = counted(whole=True)
    (report,) = enclosed.reports.values()
    size = sum(len(text) * 3 // 4 for _, text in report.acks)
    monkeypatch.setattr(acks, "ENCLOSED_BYTES", size // 2)
    outcome, in_log = counted(whole=True)
    (report,) = outcome.reports.values()
    assert report.acks == ()
    assert in_log == len(report.partitions) > 0
