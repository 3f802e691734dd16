"""State that outgrows its server: windows wait, and go on where they were once there is room."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from millrace_e2e import feed, harness, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, Run, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED = 7
LINES = 6_000
"""As many kilobytes of state in the end, in a server of eight megabytes that holds it twice while
a window is sealed."""

LIMIT = "8m"


def fill(place: Place) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), SEED))
    place.gate.touch()


def await_full(run: Run) -> list[str]:
    """Wait until windows wait for room, and are tried again in vain; which servers are told of."""
    run.until(lambda: run.events("StateServerFull"), "a server that is full")
    held = run.status()["sealed"]
    first = run.until(lambda: run.status().get("window"), "an attempt")
    run.until(lambda: run.status().get("window") not in (first, None), "another attempt")
    assert run.status()["sealed"] == held
    for event in run.events("StateServerFull"):
        assert event["warning"]
        assert "of 8.0 MiB are used" in event["text"]
        assert "maxmemory (spec.stateServers.memory" in event["text"]
    return told_full(run)


def told_full(run: Run) -> list[str]:
    """Servers that were told to be full, each once however often a window is tried."""
    texts = [event["text"] for event in run.events("StateServerFull")]
    told = [name for text in texts for name in re.findall(r"state server (state-\d+)", text)[:1]]
    assert len(told) == len(texts) == len(set(told))
    return told


def test_servers_that_millrace_starts_wait_for_an_edit_of_their_limit(place: Place) -> None:
    """Of two copies neither is given up for the other one's room."""
    both = ("state-0", "state-1")
    shape = Shape(max_records=300, numbers="hoard", state_memory=LIMIT, servers=2, copies=2)
    fill(place)
    place.write(history(shape))
    with running(place) as run:
        full = await_full(run)
        memory = harness.status_command(place)["memory"]
        assert [(one["name"], one["limitBytes"]) for one in memory] == [(n, 8 << 20) for n in both]
        assert full
        assert {one["name"] for one in memory if one["full"]} >= set(full)
        code, told = harness.command(place, "status")
        assert code == 0
        assert "of 8.0 MiB (full: windows wait)" in " ".join(told.split())
        # An edit takes the run over; what waited goes on.
        place.write(history(replace(shape, state_memory="64m")))
        with running(place) as again:
            assert again.wait(START_S) == 0, again.tail()
    assert not run.events("DeadLetters")
    assert not run.events("WindowRunAgain")
    assert set(told_full(run)) <= set(both)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_server_of_ones_own_goes_on_as_soon_as_it_is_given_more(
    place: Place, tmp_path: Path
) -> None:
    fill(place)
    with valkey.serving(tmp_path / "own", "--maxmemory", "8mb") as server:
        place.write(history(Shape(max_records=300, numbers="hoard", state_url=server.url)))
        with running(place) as run:
            await_full(run)
            client = server.client()
            client.config_set("maxmemory", "64mb")
            client.close()
            assert run.wait(START_S) == 0, run.tail()
    assert [len(run.events(f"StateServer{kind}")) for kind in ("Full", "Back")] == [1, 1]
    assert not run.events("DeadLetters")
    assert not run.events("WindowRunAgain")
    assert judge(place, Promise.EXACTLY_ONCE) == []
