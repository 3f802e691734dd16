"""A state server of the user's own, which may be away at the start and go away in the middle."""

from __future__ import annotations

from pathlib import Path

from millrace_e2e import feed, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

STATE_SERVER = 5
SEED = 5


def test_a_state_server_by_url_that_is_away_twice(place: Place, tmp_path: Path) -> None:
    server = valkey.Server(tmp_path / "own")
    nobody = valkey.Server(tmp_path / "nobody")
    absent = Place(tmp_path / "absent").make()
    feed.add_file(absent.texts / "a.txt", feed.text(range(10), SEED))
    absent.write(history(Shape(state_url=nobody.url), name="absent"))

    feed.add_file(place.texts / "a.txt", feed.text(range(4_000), SEED))
    place.write(history(Shape(max_records=200, state_url=server.url)))
    with (
        running(absent) as hopeless,
        running(place, environment={"MILLRACE_E2E_CALL_S": "0.4"}) as run,
    ):
        try:
            # Away at the start: the run waits, and goes on as soon as it is there.
            run.until((place.work / "run.json").exists, "the start of the run")
            server.start()
            run.await_sealed(2)

            # Away in the middle: windows wait, nothing ends, and they go on when it is back.
            server.kill()
            run.until(lambda: run.events("WindowHeldUp"), "a window that is held up")
            held = run.status()["sealed"]
            assert held < 20
            server.start()
            run.await_sealed(held + 2)
            place.gate.touch()
            assert run.wait(START_S) == 0, run.tail()
        finally:
            server.kill()
        # Nobody came to the other one: it says where it looked and for how long.
        assert hopeless.wait(START_S) == STATE_SERVER
        assert f"127.0.0.1:{nobody.port}" in hopeless.output()
    assert judge(place, Promise.EXACTLY_ONCE) == []
