"""Several copies, and every server that held one has ended: what is read from their files."""

from __future__ import annotations

import textwrap

from machine_script import Script

BEGIN = """
record old 1.1.1.4 sealed 2
record new 1.1.1.5 sealed 3
record half 1.1.1.6 sealed 4
record stale 1.1.0.9 sealed 1
start
-> ReadView
view 4 e1 open x1 a1 b1
-> CasView 4 e1 open x2 a1 b1
cas done
-> SendStamp a1 e1x2
-> SendStamp b1 e1x2
"""


def story(text: str) -> str:
    return BEGIN + textwrap.dedent(text)


def test_all_that_restart_on_their_files_are_sources() -> None:
    """Rule 24 with several copies: each file holds whatever was committed, or more."""
    Script().play(
        story(
            """
        propose a2 b2
        -> CasView 5 e2 moving x2 a1 b1 to a2 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b2 e2x2
        refused a1 runId
        stamped a2 old
        refused b1 runId
        stamped b2 new
        -> CopyObjects 1.1.1.5 from a2 b2
        copied
        -> SendRecord a2 1.2.2.1 sealed 3 published 3
        -> SendRecord b2 1.2.2.1 sealed 3 published 3
        """
        )
    )


def test_a_restarted_one_is_no_source_while_a_member_lives() -> None:
    """Rule 14: what a joiner's file holds may never have been committed."""
    Script().play(
        story(
            """
        propose a2 b1
        -> CasView 5 e2 moving x2 a1 b1 to a2 b1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        refused a1 runId
        stamped a2 half
        stamped b1 new
        -> CopyObjects 1.1.1.5 from b1
        """
        )
    )


def test_one_that_comes_back_empty_is_no_source_and_no_loss() -> None:
    Script().play(
        story(
            """
        propose a2 b2
        -> CasView 5 e2 moving x2 a1 b1 to a2 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b2 e2x2
        refused a1 runId
        stamped a2 none
        refused b1 runId
        stamped b2 new
        -> CopyObjects 1.1.1.5 from b2
        """
        )
    )


def test_one_that_is_not_back_yet_is_waited_for() -> None:
    """What came back is empty; the file of the other may hold all of it."""
    Script().play(
        story(
            """
        propose a2
        -> CasView 5 e2 moving x2 a1 b1 to a2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        refused a1 runId
        refused b1 runId
        stamped a2 none
        -> Notify StateMissing
        propose a2 b2
        -> CasView 6 e3 moving x2 a1 b1 to a2 b2
        """
        )
    )


def test_when_all_copies_are_gone_nothing_goes_on() -> None:
    script = Script().play(
        story(
            """
        propose a2 b2
        -> CasView 5 e2 moving x2 a1 b1 to a2 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b2 e2x2
        refused a1 runId
        refused b1 runId
        stamped a2 none
        stamped b2 stale
        -> Stop lost
        """
        )
    )
    assert script.machine.stopped is not None
    assert "all copies are gone" in script.machine.stopped.text
    assert "(a, b)" in script.machine.stopped.text


def test_one_member_that_lost_its_record_is_no_loss_of_all() -> None:
    Script().play(
        story(
            """
        stamped a1 none
        stamped b1 new
        -> Stop failed
        """
        )
    )


def test_all_members_without_a_record_have_lost_it() -> None:
    Script().play(
        story(
            """
        stamped a1 none
        stamped b1 none
        -> Stop lost
        """
        )
    )


COPIES = """
propose a2 b1
-> CasView 5 e2 moving x2 a1 b1 to a2 b1
cas done
-> SendStamp a1 e2x2
-> SendStamp b1 e2x2
-> SendStamp a2 e2x2
refused a1 runId
stamped a2 none
stamped b1 new
-> CopyObjects 1.1.1.5 from b1
"""


def test_an_object_that_no_server_has_ends_a_driver_whose_topology_can_be_restored() -> None:
    script = Script(restores=True).play(story(COPIES))
    # A server that may hold it is silent: that is no loss.
    script.play("uncopied x is nowhere\n-> Notify StateMissing")
    script.play("lost x is on no state server any more\n-> Stop lost")
    assert script.machine.stopped is not None
    assert script.machine.stopped.text == "x is on no state server any more"


def test_an_object_that_no_server_has_is_waited_for_where_nothing_is_to_be_restored() -> None:
    Script().play(story(COPIES)).play(
        """
        lost x is on no state server any more
        -> Notify StateMissing
        """
    )
