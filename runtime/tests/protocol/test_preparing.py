"""The first pass of the next window runs beside the one that is open, and is used or given up."""

from __future__ import annotations

from machine_script import Script

from millrace.protocol.windows.machine import TIGHT_S

OPEN = """
    record R 1.1.1.5 sealed 3
    start
    -> ReadView
    view 4 e1 open x1 a1
    -> CasView 4 e1 open x2 a1
    cas done
    -> SendStamp a1 e1x2
    stamped a1 R
    -> CopyObjects 1.1.1.5 from a1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    ack a1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    ack a1
    -> Run 1 of 4: 0+4
    -> Plan behind {'s': 4}
"""


def opened() -> Script:
    """Window 4 runs; what has at least three roots is prepared."""
    return Script(prepares_from=3).play(OPEN)


def test_what_was_prepared_goes_on_with_the_same_attempt_once_its_window_is_open() -> None:
    opened().play(
        """
        planned 3
        -> Prepare 1 of 5: 4+3
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+3 onward
        -> Plan behind {'s': 7}
        """
    )


def test_what_is_small_is_not_prepared() -> None:
    opened().play(
        """
        planned 2
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+2
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+2
        -> Plan behind {'s': 6}
        """
    )


def test_its_second_attempt_is_a_whole_one() -> None:
    opened().play(
        """
        planned 3
        -> Prepare 1 of 5: 4+3
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+3 onward
        -> Plan behind {'s': 7}
        broke
        -> Cancel 1 of 5
        -> Notify WindowRunAgain
        -> Run 2 of 5: 4+3
        """
    )


def test_beside_a_second_attempt_nothing_is_prepared() -> None:
    """A worker that dies of what both need would say something about the window that runs."""
    opened().play(
        """
        broke
        -> Cancel 1 of 4
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4
        planned 3
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+3
        -> Plan behind {'s': 7}
        """
    )


def test_nothing_is_prepared_for_a_while_once_a_state_server_had_no_room() -> None:
    opened().play(
        f"""
        died full a
        -> Notify StateServerFull
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> Run 2 of 4: 0+4
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Notify StateServerBack
        -> Publish 4
        planned 3
        -> SendRecord a1 1.2.1.4 sealed 4 published 3, open 5: 4+3
        ack a1
        -> Run 1 of 5: 4+3
        -> Plan behind {{'s': 7}}
        planned 3
        wait {TIGHT_S:.0f}
        planned 3
        -> Prepare 1 of 6: 7+3
        """
    )


def test_a_change_of_members_gives_it_up() -> None:
    """Its owners are others from then on."""
    opened().play(
        """
        planned 3
        -> Prepare 1 of 5: 4+3
        propose b1
        -> Cancel 1 of 4
        -> Cancel 1 of 5
        -> CasView 5 e2 moving x2 a1 to b1
        """
    )


def test_a_stop_gives_it_up() -> None:
    script = opened()
    script.tell("planned 3", "stop")
    assert "-> Cancel 1 of 5" in script.transcript
