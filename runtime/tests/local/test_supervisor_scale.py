"""Ackers come and go while a run goes on: asked for from outside, or brought by their load."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standins import Run, running, until

from millrace.homes import codec
from millrace.homes.documents import Scale
from millrace.local import ackers as keeping
from millrace.local.ackers import AckerKeeper, AckerPlan, cpu_s
from millrace.local.children import ProcessSpec
from millrace.local.crew import Crew, Death
from millrace.local.files import write_json
from millrace.local.workdir import open_folder
from millrace.protocol.ackerload import GROW_AFTER_S, SHRINK_AFTER_S, AckerBounds
from millrace.state.client import StateAddress
from millrace.topology.members import MOST_MEMBERS


def ask(folder: Path, ackers: int) -> None:
    write_json(folder / "scale.json", codec.encode(Scale(ackers=ackers)))


def names(count: int) -> list[str]:
    return [f"acker-{n}" for n in range(count)]


def proposed(folder: Path) -> list[str]:
    return list(json.loads((folder / "proposal.json").read_text())["ackers"])


def living(run: Run) -> list[str]:
    return sorted(name for name in run.processes() if name.startswith("acker-"))


def scaled(run: Run) -> list[str]:
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [event["text"] for event in found if event["kind"] == "ScaleAsked"]


def test_ackers_come_and_go_as_they_are_asked_for(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        driver = run.processes()["driver"]["pid"]
        ask(tmp_path, 3)
        until(lambda: proposed(tmp_path) == names(3), "three ackers")
        until(lambda: living(run) == names(3), "their processes")
        ask(tmp_path, 1)
        until(lambda: proposed(tmp_path) == names(1), "one acker that is proposed")
        until(lambda: living(run) == names(1), "the end of the others")
        # More than is allowed is cut, and that is told.
        ask(tmp_path, 9)
        until(lambda: proposed(tmp_path) == names(4), "four ackers")
        assert scaled(run) == [
            "the run is to have 3 ackers",
            "the run is to have 1 acker",
            "the run is to have 4 ackers (not 9: spec.ackers allows 1 to 4)",
        ]
        assert run.processes()["driver"]["pid"] == driver
        assert run.processes()["driver"]["restarts"] == 0


def test_a_request_for_state_servers_does_not_repeat_the_one_for_ackers(tmp_path: Path) -> None:
    """The load may have changed the number of ackers since."""
    with running(tmp_path) as run:
        run.up()
        file, before = tmp_path / "scale.json", Scale(ackers=2, ackers_mark="a")
        write_json(file, codec.encode(before))
        until(lambda: living(run) == names(2), "two ackers")
        after = replace(before, state_servers=2, state_servers_mark="b")
        write_json(file, codec.encode(after))
        until(lambda: "state-1" in run.processes(), "the second state server")
        write_json(file, codec.encode(replace(after, ackers_mark="c")))
        until(lambda: len(scaled(run)) == 3, "the third request")
        assert scaled(run) == [
            "the run is to have 2 ackers",
            "the run is to have 2 state servers",
            "the run is to have 2 ackers",
        ]


def test_one_that_was_killed_before_it_went_is_not_started_again(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        ask(tmp_path, 2)
        until(lambda: proposed(tmp_path) == names(2), "two ackers")
        until(lambda: living(run) == names(2), "their processes")
        before = run.processes()
        ask(tmp_path, 1)
        until(lambda: proposed(tmp_path) == names(1), "one acker that is proposed")
        pid = before["acker-1"]["pid"]
        with suppress(ProcessLookupError):  # this machine is so slow that it has gone already
            os.kill(pid, signal.SIGKILL)
        until(lambda: living(run) == names(1), "the end of the other")
        ask(tmp_path, 2)
        until(lambda: proposed(tmp_path) == names(2), "a new one of its name")
        until(lambda: living(run) == names(2), "its process")
        assert run.processes()["acker-1"]["pid"] != pid


# --- the keeper, with a clock and a crew of its own


class Still:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def monotonic_s(self) -> float:
        return self.at_s

    def now_s(self) -> float:
        return self.at_s


class Places:
    """A crew that only remembers; what is wanted lives."""

    def __init__(self) -> None:
        self.posts: dict[str, Any] = {}
        self.unready: set[str] = set()
        self.ended: list[str] = []

    def want(self, spec: ProcessSpec, _: object) -> None:
        self.posts.setdefault(spec.name, type("Post", (), {"spec": spec}))

    def unwant(self, name: str) -> None:
        assert name in self.posts

    def dismiss(self, names: list[str], _: float) -> None:
        for name in names:
            del self.posts[name]
            self.ended.append(name)

    def alive(self, role: str) -> list[str]:
        return [name for name, post in self.posts.items() if post.spec.role == role]

    def ready(self, name: str, _: float) -> bool:
        return name not in self.unready

    def child(self, name: str) -> Any:
        return type("Child", (), {"pid": 1000 + int(name.removeprefix("acker-"))})


HERE = (StateAddress("state-0", "redis://127.0.0.1:1", None, "run"),)


def keeper(bounds: AckerBounds, count: int) -> tuple[AckerKeeper, Places, Still, list[str]]:
    crew, clock, told = Places(), Still(), []
    plan = AckerPlan(
        lambda _, number: [ProcessSpec(name, "acker", ("true",)) for name in names(number)],
        count,
        bounds,
    )
    crew.posts["driver"] = type("Post", (), {"spec": ProcessSpec("driver", "driver", ("true",))})
    made = AckerKeeper(plan, crew, clock, lambda _, text: told.append(text))  # type: ignore[arg-type]
    made.follow(HERE)
    return made, crew, clock, told


def test_one_that_goes_reads_on_until_the_driver_may_know() -> None:
    kept, crew, clock, _ = keeper(AckerBounds(1, MOST_MEMBERS), 3)
    kept.scale(2)
    assert kept.proposed() == ("acker-0", "acker-1")
    clock.at_s += keeping.LEAVE_S / 2
    kept.look()
    assert crew.alive("acker") == names(3)
    # It is wanted again before it went: the same life is proposed again.
    kept.scale(3)
    assert kept.proposed() == tuple(names(3))
    clock.at_s += keeping.LEAVE_S
    kept.look()
    assert crew.ended == []
    kept.scale(1)
    assert kept.next_due_s() == clock.at_s + keeping.LEAVE_S
    clock.at_s += keeping.LEAVE_S
    kept.look()
    assert crew.ended == ["acker-1", "acker-2"]
    assert "driver" in crew.posts


def test_one_that_does_not_read_yet_is_not_proposed() -> None:
    kept, crew, _, _ = keeper(AckerBounds(1, MOST_MEMBERS), 2)
    crew.unready = {"acker-1"}
    assert kept.proposed() == ("acker-0",)
    crew.unready = set()
    assert kept.proposed() == ("acker-0", "acker-1")


def test_more_come_one_after_the_other_beside_the_windows() -> None:
    kept, crew, clock, _ = keeper(AckerBounds(1, 8), 2)
    assert crew.alive("acker") == names(2)  # the first ones begin together
    crew.unready = set(names(8))
    kept.scale(5)
    kept.look()
    assert crew.alive("acker") == names(3)
    assert kept.next_due_s() == clock.at_s + keeping.COMING_S
    crew.unready.remove("acker-2")
    kept.look()
    assert crew.alive("acker") == names(4)
    # One that never says that it reads holds up nobody for ever.
    clock.at_s += keeping.READY_S
    kept.look()
    assert crew.alive("acker") == names(5)
    kept.scale(2)
    clock.at_s += keeping.LEAVE_S
    kept.look()
    kept.look()
    assert crew.alive("acker") == names(2)
    assert kept.next_due_s() is None


def test_whoever_ends_is_started_again_unless_it_was_going() -> None:
    kept, _, _, _ = keeper(AckerBounds(1, MOST_MEMBERS), 2)
    ended = Death("acker-1", "acker", 1, -9, 1.0, "")
    assert not kept.ended(ended)
    kept.scale(1)
    assert kept.ended(ended)
    assert kept.next_due_s() is None


def test_the_load_changes_their_number_between_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, crew, clock, told = keeper(AckerBounds(1, 3, automatic=True), 1)
    used: dict[int, float] = {}
    share = 1.0
    monkeypatch.setattr(keeping, "cpu_s", lambda pid: used.get(pid, 0.0))

    def pass_s(seconds: float) -> None:
        for _ in range(int(seconds)):
            clock.at_s += 1.0
            for pid in range(1000, 1000 + len(crew.alive("acker"))):
                used[pid] = used.get(pid, 0.0) + share
            kept.look()

    pass_s(GROW_AFTER_S + 3)
    assert kept.proposed() == tuple(names(2))
    pass_s(GROW_AFTER_S + 3)
    assert kept.proposed() == tuple(names(3))
    pass_s(60)
    assert kept.proposed() == tuple(names(3))
    share = 0.0
    pass_s(2 * SHRINK_AFTER_S + 10)
    assert kept.proposed() == tuple(names(1))
    assert kept.scale(9) == "3 ackers (not 9: spec.ackers allows 1 to 3)"
    pass_s(1)
    assert kept.proposed() == tuple(names(3))
    assert told == [
        "2 ackers instead of 1, as the load asks for",
        "3 ackers instead of 2, as the load asks for",
        "2 ackers instead of 3, as the load asks for",
        "1 acker instead of 2, as the load asks for",
    ]


def test_the_cpu_of_a_process_is_what_the_kernel_counts() -> None:
    before_s = cpu_s(os.getpid())
    spent = 0
    while cpu_s(os.getpid()) < before_s + 0.05:
        spent += sum(range(1000))
    assert spent
    assert cpu_s(2**22 + 1) == 0.0


def test_one_that_waits_for_its_next_life_is_wanted_again(tmp_path: Path) -> None:
    """It is asked for fewer and for more again while an acker that died is not yet back."""
    clock = Still()
    folder = open_folder(tmp_path, "standin", Path("t.yaml"), clock)
    crew = Crew(folder, clock, lambda _: None)
    spec = [ProcessSpec(name, "acker", ("sleep", "600"), folder=tmp_path) for name in names(2)]
    plan = AckerPlan(lambda _, number: spec[:number], 2, AckerBounds(1, MOST_MEMBERS))
    kept = AckerKeeper(plan, crew, clock, lambda *_: None)
    kept.follow(HERE)
    crew.start_due()
    try:
        dying = crew.child("acker-1")
        assert dying is not None
        dying.kill()
        [death] = until(crew.reap, "its death")
        crew.again(death.name, 5.0)
        kept.scale(1)
        kept.scale(2)
        crew.start_due()
        assert crew.alive("acker") == names(2)
    finally:
        crew.end(list(crew.posts), 0.0)
        crew.close()
