"""State servers that the driver alone cannot reach, or tasks alone: all others still do.

A proxy between these and the servers cuts, delays or swallows; everybody else goes around it.
"""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import pytest

from millrace.state import scripts
from millrace_e2e import feed, holdings, ledger, processes
from millrace_e2e.checker import Promise
from millrace_e2e.detour import Detour, Way, detour
from millrace_e2e.harness import Place, Run, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

WINDOW = 200
WINDOWS = 40
"""What a history takes, with many to spare: who waits for a server that is tried again and again
waits for seconds. Those that are left are soon done."""

SEALS = 16
"""Windows of a history that is about one of its seals."""

WAIT_S = 240.0
NAMES = [f"state-{number}" for number in range(5)]
LEFT_OUT = "StateServerLeftOut"
AWAY = "StateServerAway"
SENT = "driver.record-sent"
DEATH_S = 10.0
CALL_S = {"MILLRACE_E2E_CALL_S": "2"}
"""Whoever waits for something sees few windows go by, and always one in flight."""


class Parted:
    """A run whose driver reaches its servers through a proxy."""

    def __init__(self, place: Place, run: Run, proxy: Detour, names: list[str]) -> None:
        self.place = place
        self.run = run
        self.proxy = proxy
        self.names = names

    def view(self) -> dict[str, Any]:
        return processes.view(self.place.work)

    def socket(self, name: str) -> str:
        (url,) = [one["url"] for one in self.view()["target"] if one["name"] == name]
        return str(url).removeprefix("unix://")

    def record_epoch(self, name: str) -> int:
        """Of which view the record is that a server holds."""
        return int(holdings.record(self.place.work, name)["tag"]["epoch"])

    def await_members(self, names: list[str]) -> None:
        self.run.until(lambda: self.run.status().get("members") == names, f"{names}", WAIT_S)

    def go_on(self, windows: int = 2) -> None:
        self.run.await_sealed(self.run.status()["sealed"] + windows, WAIT_S)

    def part(self, name: str, way: Way) -> str:
        """Part the driver from a server; where that listens."""
        path = self.socket(name)
        before = self.proxy.carried[path]
        assert before > 0, "nobody comes this way"
        self.proxy.lead(path, way)
        return path

    def without(self, name: str) -> None:
        """The server is left out, and windows go on."""
        self.await_members([one for one in self.names if one != name])
        self.go_on()

    def heal(self, path: str) -> None:
        """The server is let in again, the same life of it."""
        self.proxy.lead(path, Way.FREE)
        self.await_members(self.names)
        self.go_on(1)


@pytest.mark.parametrize(("seed", "servers", "copies"), [(11, 3, 2), (12, 5, 3), (13, 3, 2)])
def test_a_server_that_only_the_driver_cannot_reach_is_left_out_and_let_in_again(
    seed: int, servers: int, copies: int, place: Place
) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(WINDOWS * WINDOW), seed))
    place.write(history(Shape(max_records=WINDOW, servers=servers, copies=copies)))
    names = NAMES[:servers]
    (place.marks / SENT).touch()
    crashes = {"MILLRACE_CRASH_AT": SENT, "MILLRACE_CRASH_DIR": str(place.marks)}
    with detour() as proxy:
        environment = {**CALL_S, **crashes, **proxy.environment}
        with running(place, environment=environment) as run:
            parted = Parted(place, run, proxy, names)
            run.await_sealed(2, WAIT_S)
            parted.await_members(names)
            lives = processes.listed(place.work, "state")
            # Half open: nothing comes back, and nobody says so. The first has the ack log.
            path = parted.part("state-0", Way.SWALLOWED)
            parted.without("state-0")
            assert len(run.events(LEFT_OUT)) == 1
            parted.heal(path)
            # Refused at once, and a driver that starts meanwhile finds it so. It dies when some of
            # the others have the record, while to one of them the way is too long.
            far = parted.socket("state-2")
            proxy.lead(far, Way.FREE, loses=scripts.load("write_record").sha.encode())
            path = parted.part("state-1", Way.CUT)
            (driver,) = processes.listed(place.work, "driver")
            (place.marks / SENT).unlink()
            epoch = parted.view()["epoch"]
            assert processes.signalled(driver, signal.SIGKILL)
            run.until(lambda: SENT in place.fired(), "a record on its way", WAIT_S)
            assert parted.view()["phase"] == "moving"
            held = {name: parted.record_epoch(name) for name in names if name != "state-1"}
            assert held["state-2"] <= epoch < max(held.values())
            proxy.lead(far, Way.FREE)
            parted.without("state-1")
            assert run.status()["execution"] >= 3
            parted.heal(path)
            # Slow is not silent.
            told = len(run.events(LEFT_OUT))
            proxy.lead(parted.socket("state-2"), Way.FREE, 0.3)
            parted.go_on(3)
            assert len(run.events(LEFT_OUT)) == told
            proxy.lead(parted.socket("state-2"), Way.FREE)
            # More than may be lost: windows wait for them, and for nothing else.
            away = len(run.events(AWAY))
            paths = [parted.part(name, Way.CUT) for name in names[:copies]]
            run.until(lambda: len(run.events(AWAY)) >= away + copies, "those that are away", WAIT_S)
            for path in paths:
                proxy.lead(path, Way.FREE)
            parted.go_on()
            assert run.status()["members"] == names
            assert len(run.events(LEFT_OUT)) == told
            assert processes.listed(place.work, "state") == lives
            place.gate.touch()
            assert run.wait(WAIT_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []


def shown(place: Place, window: int) -> str:
    """The digest with which a sink shows a window, by the manifest of that."""
    folder = place.sink("rows") / "_millrace" / "windows"
    (manifest,) = [path for path in folder.glob("*.json") if int(path.stem) == window]
    return str(json.loads(manifest.read_bytes())["digest"])


@pytest.mark.parametrize("survives", [True, False], ids=["survives", "emptied"])
def test_a_driver_dies_as_one_server_alone_has_a_seal(survives: bool, place: Place) -> None:
    """Rules 3, 9 and 18: what is not on every member is not committed, so nothing of it is shown.

    Where the server is still there the next driver finds the seal and has it written everywhere:
    the window is final. Where it died with all that it had nobody knows of the seal, and the window
    runs again.
    """
    feed.add_file(place.texts / "a.txt", feed.text(range(SEALS * WINDOW), 15))
    place.write(history(Shape(max_records=WINDOW, servers=3, copies=2)))
    holder, *others = NAMES[:3]
    with detour() as proxy:
        environment = {**CALL_S, **proxy.environment}
        with running(place, environment=environment) as run:
            parted = Parted(place, run, proxy, NAMES[:3])
            run.await_sealed(2, WAIT_S)
            parted.await_members(parted.names)
            view, (driver,) = parted.view(), processes.listed(place.work, "driver")

            def sealed_by() -> list[int]:
                """The last window that each server knows to be sealed, the holder first."""
                return [holdings.record(place.work, n)["sealed"] for n in (holder, *others)]

            def parts() -> bool:
                """Whether one server alone comes to have the seal of the window under way. If one
                of the others was written to before both were led elsewhere, they are led back."""
                sealed = run.status()["sealed"]
                run.until(lambda: run.status()["sealed"] > sealed, "a window that begins", WAIT_S)
                for name in others:
                    proxy.lead(parted.socket(name), Way.FREE, loses=record)
                run.until(lambda: sealed_by()[0] > min(sealed_by()), "a seal on one server", WAIT_S)
                one, two, three = sealed_by()
                if one > two == three:
                    return True
                for name in others:
                    proxy.lead(parted.socket(name), Way.FREE)
                run.until(lambda: len(set(sealed_by())) == 1, "the seal everywhere", WAIT_S)
                return False

            record = scripts.load("write_record").sha.encode()
            # While nobody starts another driver.
            with processes.frozen(run.pid):
                assert any(parts() for _ in range(5))
                assert processes.killed(driver, DEATH_S)
                held = {name: holdings.record(place.work, name) for name in parted.names}
                window = held[holder]["sealed"]
                assert {held[name]["sealed"] for name in others} == {window - 1}
                assert (parted.view()["phase"], parted.view()["epoch"]) == ("open", view["epoch"])
                (lone,) = [one for one in held[holder]["unpublished"] if one["window"] == window]
                rows = ledger.read_rows(place.sink("rows"))
                assert max(row.window for row in rows) < window
                for name in others:
                    proxy.lead(parted.socket(name), Way.FREE)
                if not survives:
                    assert processes.killed(processes.pid_of(place.work, holder), DEATH_S)
                    shutil.rmtree(place.work / holder)
            run.await_sealed(window + 2, WAIT_S)
            assert run.status()["execution"] > held[holder]["tag"]["execution"]
            run.until(lambda: run.status()["published"] > window, "the window is shown", WAIT_S)
            assert (shown(place, window) == lone["digest"]) == survives
            parted.await_members(parted.names)
            assert (parted.view()["epoch"] == view["epoch"]) == survives
            place.gate.touch()
            assert run.wait(WAIT_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_server_that_only_tasks_cannot_reach_is_left_out_and_let_in_again(place: Place) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(WINDOWS * WINDOW), 14))
    place.write(history(Shape(max_records=WINDOW, servers=3, copies=2)))
    names = NAMES[:3]
    with detour() as proxy:
        environment = {**CALL_S, **proxy.for_tasks}
        with running(place, environment=environment) as run:
            parted = Parted(place, run, proxy, names)
            run.await_sealed(2, WAIT_S)
            parted.await_members(names)
            lives = processes.listed(place.work, "state")
            # The first has the ack log.
            for name in ("state-1", "state-0"):
                before = len(run.events(LEFT_OUT))
                path = parted.part(name, Way.CUT)
                parted.without(name)
                # More than once where it was tried again meanwhile.
                told = [event["text"] for event in run.events(LEFT_OUT)[before:]]
                assert told
                said = f"state server {name} answers the driver, and tasks have not reached it"
                assert all(text.startswith(said) for text in told)
                parted.heal(path)
            assert run.events(AWAY) == []
            assert processes.listed(place.work, "state") == lives
            place.gate.touch()
            assert run.wait(WAIT_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []
