"""Showing windows: in their order, one at a time, until each is confirmed."""

from __future__ import annotations

from dataclasses import replace

from millrace.protocol import events as e
from millrace.protocol.record import first_record
from millrace.protocol.types import Sealed, Tag
from millrace.protocol.windows.doing import Surprise
from millrace.protocol.windows.publishing import Publishing

FOUR, FIVE = Sealed(4, "d4", ()), Sealed(5, "d5", ())
RECORD = replace(first_record("uid", Tag(1, 2, 1, 1)), sealed=5, published=3)
BOTH = replace(RECORD, unpublished=(FOUR, FIVE))


def test_windows_are_shown_in_order_and_one_at_a_time() -> None:
    publishing = Publishing()
    assert publishing.next(RECORD, 2) == []
    assert publishing.next(BOTH, 2) == [e.Publish(FOUR, 2)]
    assert publishing.next(BOTH, 2) == []
    assert publishing.published(e.Published(4)) == []
    assert publishing.confirmed == 4
    assert publishing.next(BOTH, 2) == [e.Publish(FIVE, 2)]
    publishing.published(e.Published(5))
    assert publishing.next(BOTH, 2) == []


def test_the_late_word_of_one_window_does_not_end_another() -> None:
    publishing = Publishing()
    publishing.next(BOTH, 2)
    publishing.published(e.Published(4))
    publishing.next(BOTH, 2)
    publishing.published(e.Published(4))
    assert publishing.next(BOTH, 2) == []
    assert publishing.confirmed == 4


def test_what_failed_is_shown_again_once_that_may_be() -> None:
    publishing = Publishing()
    publishing.next(BOTH, 2)
    notice = e.Notify("PublishFailed", "full", 4, warning=True)
    assert publishing.publish_failed(e.PublishFailed(4, "full")) == [notice]
    assert publishing.failed
    assert publishing.next(BOTH, 2) == []
    publishing.again()
    assert not publishing.failed
    assert publishing.next(BOTH, 2) == [e.Publish(FOUR, 2)]
    publishing.again()
    assert publishing.next(BOTH, 2) == [], "nothing has failed since"


def test_word_that_it_is_shown_after_all_ends_the_failure() -> None:
    publishing = Publishing()
    publishing.next(BOTH, 2)
    publishing.publish_failed(e.PublishFailed(4, "slow"))
    publishing.published(e.Published(4))
    assert not publishing.failed


def test_only_what_was_asked_for_can_be_confirmed() -> None:
    publishing = Publishing()
    assert publishing.surprise(e.Published(4)) is Surprise.BUG
    publishing.next(BOTH, 2)
    assert publishing.surprise(e.Published(4)) is None
    assert publishing.surprise(e.Published(5)) is Surprise.BUG
    publishing.published(e.Published(4))
    assert publishing.surprise(e.Published(4)) is None, "it may have been asked for twice"
    assert publishing.surprise(e.Published(3)) is None
