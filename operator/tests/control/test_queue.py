"""The queue of topologies: each once, nothing lost."""

from __future__ import annotations

import threading

import pytest
from hand_clock import HandClock
from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.control.queue import FIRST_PAUSE_S, LONGEST_PAUSE_S, WorkQueue


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def queue(clock: HandClock) -> WorkQueue[str]:
    return WorkQueue(clock)


def test_what_is_added_twice_is_given_once(queue: WorkQueue[str]):
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert {queue.take(), queue.take()} == {"a", "b"}
    queue.done("a")
    queue.done("b")
    queue.close()
    assert queue.take() is None


def test_the_one_that_waits_longest_comes_first(queue: WorkQueue[str], clock: HandClock):
    queue.add("late", 5.0)
    queue.add("early", 2.0)
    clock.time_s += 10
    assert queue.take() == "early"


def test_the_earlier_of_two_times_counts(queue: WorkQueue[str], clock: HandClock):
    queue.add("a", 100.0)
    queue.add("a", 1.0)
    queue.add("a", 50.0)
    clock.time_s += 1
    assert queue.take() == "a"


def test_what_is_seen_during_a_turn_brings_another_turn(queue: WorkQueue[str], clock: HandClock):
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("b")
    # Nobody else gets it as long as one works at it.
    clock.time_s += 1
    assert queue.take() == "b"
    queue.done("a")
    assert queue.take() == "a"


def test_pauses_after_failures_grow_and_end_with_a_success(queue: WorkQueue[str], clock: HandClock):
    queue.add("a")
    pauses = []
    for _ in range(10):
        assert queue.take() == "a"
        pauses.append(queue.failed("a"))
        clock.time_s += pauses[-1]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a")
    assert queue.take() == "a"
    assert queue.failed("a") == FIRST_PAUSE_S


def test_a_pause_does_not_hold_up_what_is_heard(queue: WorkQueue[str]):
    queue.add("a")
    assert queue.take() == "a"
    queue.failed("a")
    queue.add("a")
    assert queue.take() == "a"


def test_what_hangs_and_what_waits_is_seen(queue: WorkQueue[str], clock: HandClock):
    assert queue.longest_s() == 0
    queue.add("a", 30.0)
    assert queue.longest_s() == 0
    clock.time_s += 40
    assert queue.longest_s() == 10
    queue.take()
    clock.time_s += 7
    assert queue.longest_s() == 7


def test_work_that_goes_on_is_not_silent(queue: WorkQueue[str], clock: HandClock):
    for key in ("a", "b"):
        queue.add(key)
        queue.take()
    for _ in range(3):
        clock.time_s += 5
        queue.beat("a")
        queue.beat("nobody works at this")
    assert queue.silent_s() == 15
    queue.done("b")
    assert queue.silent_s() == 0
    clock.time_s += 2
    assert queue.silent_s() == 2
    assert queue.longest_s() == 17
    queue.done("a")
    assert queue.silent_s() == 0


def test_a_key_is_held_until_its_work_is_done(queue: WorkQueue[str], clock: HandClock):
    assert not queue.holds("a")
    queue.add("a", 5.0)
    assert queue.holds("a")
    clock.time_s += 5
    queue.take()
    assert queue.holds("a")
    queue.done("a")
    assert not queue.holds("a")


def test_who_waits_is_woken(queue: WorkQueue[str]):
    taken: list[str | None] = []
    threads = [threading.Thread(target=lambda: taken.append(queue.take())) for _ in range(2)]
    for thread in threads:
        thread.start()
    queue.add("a")
    while "a" not in taken:
        threads[0].join(0.01)
        threads[1].join(0.01)
    queue.close()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, taken)) == ["None", "a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "turn"]))))
def test_each_key_is_looked_at_after_it_was_added_last(steps: list[tuple[str, str]]):
    clock = HandClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    owed: set[str] = set()
    for key, what in steps:
        clock.time_s += 1
        if what == "add":
            queue.add(key)
            owed.add(key)
        elif owed:
            taken = queue.take()
            assert taken in owed
            owed.discard(str(taken))
            queue.done(str(taken))
    while owed:
        taken = queue.take()
        owed.remove(str(taken))
        queue.done(str(taken))
