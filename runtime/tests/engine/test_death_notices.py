"""What the driver hears of the deaths of workers, from a state server that others write to."""

from __future__ import annotations

import signal
import time

import pytest

from millrace.engine.jobs.notices import await_deaths
from millrace.engine.task import deaths
from millrace.engine.task.blackbox import Note
from millrace.engine.task.deaths import Death
from millrace.protocol.names import DEATH, TaskObject
from millrace.protocol.types import AttemptId, AttemptPlan, Intent, Stamp, TaskId
from millrace.state.client import connect
from millrace.state.errors import NotOwnerError
from millrace.state.servers import StateAccess, StateObject, StateServers

STAMP = Stamp(1, 1)
ATTEMPT = AttemptId(1, 4, 2)
PLAN = AttemptPlan(ATTEMPT, STAMP, Intent(4, (), ()), frozenset(), {}, {})
LONG_S = 60.0


@pytest.fixture
def access(state_server, uid):
    connect(state_server.address, uid).stamp(STAMP)
    return StateAccess(uid, STAMP, (state_server.address,), ((state_server.address.name,),))


def death(pid, run, attempt=ATTEMPT):
    note = Note(pid, attempt.execution, attempt.window, attempt.attempt, 0, 0, "split", (1, 2))
    return Death(pid, 0, signal.SIGSEGV, note, run)


def store(access, one, attempt=ATTEMPT, data=None):
    name = str(TaskObject(attempt, TaskId(0, 0, one.pid), DEATH, str(one.pid)))
    content = deaths.encode(name, one) if data is None else data
    StateServers(access).put([StateObject(name, content)])


def yes():
    return True


def test_what_comes_late_is_waited_for_until_the_death_that_ended_the_job_is_told(access):
    first, last = death(11, 0), death(12, 1)
    looks = []

    def while_waiting():
        looks.append(None)
        if len(looks) == 2:
            store(access, first)
        if len(looks) == 4:
            store(access, last)
        return True

    assert await_deaths(access, PLAN, while_waiting, LONG_S) == [first, last]
    assert len(looks) == 4


def test_only_what_this_run_has_signed_about_this_attempt_is_heard(access):
    """The others are there, and nothing is made of them."""
    own = death(21, 0)
    before = AttemptId(1, 4, 1)
    store(access, death(22, 1, before), before)
    store(access, death(23, 1), data=b"x" * 100)
    store(access, death(24, 1), data=deaths.encode("another", death(24, 1)))
    store(access, death(25, 1), data=b"")
    store(access, own)
    assert await_deaths(access, PLAN, yes, timeout_s=0.0) == [own]


def test_the_wait_is_bounded_and_ends_with_its_attempt(access):
    assert await_deaths(access, PLAN, yes, timeout_s=0.05) == []
    begun_s = time.monotonic()
    assert await_deaths(access, PLAN, lambda: False, LONG_S) == []
    assert time.monotonic() - begun_s < LONG_S


def test_a_server_that_cannot_be_asked_is_told(access, state_server, uid):
    connect(state_server.address, uid).stamp(Stamp(2, 2))
    with pytest.raises(NotOwnerError):
        await_deaths(access, PLAN, yes, LONG_S)
