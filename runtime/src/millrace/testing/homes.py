"""What every home must do: checks for implementations of ``ViewStore``, ``Inbox`` and ``Journal``.

Each check takes a function that gives a new handle on one and the same store, empty at first, as
another process would have one. Run every check of ``VIEW_STORE``, ``INBOX`` and ``JOURNAL`` with a
store of its own; a check raises ``AssertionError``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from millrace.homes.documents import Ask, Proposal, Request, RunEvent, Status
from millrace.homes.stores import Inbox, Journal, ViewStore
from millrace.ids import Epoch, Execution, Timeline
from millrace.protocol.types import Member, Phase, Totals, View

UID = "uid-of-the-checks"
MEMBER = Member("state-0", "run-1", "redis://127.0.0.1:1")
VIEW = View(
    UID,
    Timeline(1),
    Epoch(1),
    Phase.OPEN,
    Execution(1),
    (MEMBER,),
    (MEMBER,),
    Epoch(1),
    (("state-0",),),
)

Views = Callable[[], ViewStore]
Inboxes = Callable[[], Inbox]
Journals = Callable[[], Journal]

_THREADS = 4
_ROUNDS = 12
_TRIES = 100_000


# -- views


def begins_empty(views: Views) -> None:
    assert views().read() == (0, None)


def only_the_expected_version_is_replaced(views: Views) -> None:
    one, other = views(), views()
    version = one.cas(0, VIEW)
    assert version is not None
    assert version > 0
    assert one.cas(0, replace(VIEW, execution=Execution(9))) is None
    assert other.cas(version + 1, replace(VIEW, execution=Execution(9))) is None
    assert other.read() == (version, VIEW)


def what_one_wrote_another_reads(views: Views) -> None:
    one, other = views(), views()
    version = 0
    for execution in range(1, 6):
        wanted = replace(VIEW, execution=Execution(execution))
        writer, reader = (one, other) if execution % 2 else (other, one)
        after = writer.cas(version, wanted)
        assert after is not None
        assert after > version
        assert reader.read() == (after, wanted)
        assert views().read() == (after, wanted)
        version = after


def the_same_words_are_another_version(views: Views) -> None:
    """A compare-and-swap compares versions: a view that is written again is a new one."""
    store = views()
    first = store.cas(0, VIEW)
    assert first is not None
    second = store.cas(first, VIEW)
    assert second is not None
    assert second > first
    assert store.cas(first, VIEW) is None


def of_several_writers_one_wins(views: Views) -> None:
    """Everybody counts up from what it read: nothing is lost, and no version is given twice."""
    views().cas(0, replace(VIEW, execution=Execution(0)))
    won: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def count_up() -> None:
        store = views()
        mine = tries = 0
        try:
            while mine < _ROUNDS:
                tries += 1
                assert tries < _TRIES, "nobody gets through"
                version, view = store.read()
                assert view is not None
                wanted = replace(view, execution=Execution(view.execution + 1))
                after = store.cas(version, wanted)
                if after is not None:
                    won.append((after, wanted.execution))
                    mine += 1
        except BaseException as error:  # noqa: BLE001 told by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=count_up) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    _, view = views().read()
    assert view is not None
    assert view.execution == _THREADS * _ROUNDS
    versions = [version for version, _ in sorted(won)]
    assert len(set(versions)) == len(versions)
    assert [execution for _, execution in sorted(won)] == list(range(1, len(won) + 1))


VIEW_STORE: tuple[Callable[[Views], None], ...] = (
    begins_empty,
    only_the_expected_version_is_replaced,
    what_one_wrote_another_reads,
    the_same_words_are_another_version,
    of_several_writers_one_wins,
)


# -- inboxes

REPLAY = Request(Ask.REPLAY, "1.2.1.1/dead", (0, 3))


def nothing_is_there_at_first(inboxes: Inboxes) -> None:
    assert inboxes().proposal() is None
    assert list(inboxes().requests()) == []


def the_last_proposal_counts(inboxes: Inboxes) -> None:
    one, other = inboxes(), inboxes()
    for run_id in ("run-1", "run-2", "run-3"):
        wanted = Proposal((replace(MEMBER, run_id=run_id),), ("acker-0", "acker-1"))
        one.propose(wanted)
        assert other.proposal() == wanted
        assert other.proposal() == wanted
    one.propose(Proposal((), ()))
    assert other.proposal() == Proposal((), ())


def requests_stay_until_they_are_done(inboxes: Inboxes) -> None:
    one, other = inboxes(), inboxes()
    token = one.ask(REPLAY)
    for inbox in (one, other, inboxes()):
        (asked,) = inbox.requests()
        assert (asked.token, asked.request) == (token, REPLAY)
    other.done(token)
    assert list(one.requests()) == []
    other.done(token)
    one.done("never-asked")


def requests_come_in_the_order_of_asking(inboxes: Inboxes) -> None:
    wanted = [replace(REPLAY, indexes=(number,)) for number in range(8)]
    wanted[5] = Request(Ask.STOP)
    tokens = [inboxes().ask(request) for request in wanted]
    assert len(set(tokens)) == len(tokens)
    found = inboxes().requests()
    assert [asked.request for asked in found] == wanted
    assert [asked.token for asked in found] == tokens
    inboxes().done(tokens[2])
    assert [asked.token for asked in inboxes().requests()] == tokens[:2] + tokens[3:]


INBOX: tuple[Callable[[Inboxes], None], ...] = (
    nothing_is_there_at_first,
    the_last_proposal_counts,
    requests_stay_until_they_are_done,
    requests_come_in_the_order_of_asking,
)


# -- journals


def events_are_followed_from_now_on(journals: Journals) -> None:
    one, other = journals(), journals()
    early, late = RunEvent(1.0, "Early", "before"), RunEvent(2.5, "Late", "ä\n\x1b", 7, True)
    one.add(early)
    follower = other.follow()
    assert list(follower.new()) == []
    one.add(late)
    other.add(early)
    assert list(follower.new()) == [late, early]
    assert list(follower.new()) == []


def events_of_several_writers_stay_whole(journals: Journals) -> None:
    follower = journals().follow()
    texts = [[f"{writer} {number} " + "x" * 300 for number in range(10)] for writer in range(4)]

    def write(mine: list[str]) -> None:
        journal = journals()
        for text in mine:
            journal.add(RunEvent(1.0, "Some", text))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = [event.text for event in follower.new()]
    assert sorted(told) == sorted(text for mine in texts for text in mine)
    for mine in texts:
        assert [text for text in told if text in mine] == mine, "one writer's events keep order"


def figures_are_replaced_whole(journals: Journals) -> None:
    one, other = journals(), journals()
    assert other.status() == Status()
    first = Status(pid=3, state="starting", updated=1.5)
    whole = Status(
        *(3, "running", "running", None, UID, 1, 1, "open", ("state-0",), 4, 3),
        totals=Totals(40, 4),
        pending_replays=0,
        dead_letters=0,
    )
    for wanted in (first, whole, replace(whole, sealed=5)):
        one.tell(wanted)
        assert other.status() == wanted
        assert journals().status() == wanted


JOURNAL: tuple[Callable[[Journals], None], ...] = (
    events_are_followed_from_now_on,
    events_of_several_writers_stay_whole,
    figures_are_replaced_whole,
)
