"""State servers whose folder is lost or cannot be used: the others go on, and it comes back with
its password."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from standins import until

from millrace.clock import SystemClock
from millrace.errors import MillraceError, WorkFolderError
from millrace.local.launch import state_servers
from millrace.local.servers import Embedded, RunPasswords, ServerKeeper
from millrace.local.workdir import open_folder
from millrace.state import embedded
from millrace.state.client import StateClient
from millrace.state.embedded import password_in
from millrace.topology.load import parse
from millrace_e2e.embedded import sockets

TOPOLOGY = parse("""
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: several}
spec:
  stateServers: {replicas: 2, copies: 2}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], custom: {class: "nowhere:Sink"}}]
""")


class World:
    """State servers of a folder, kept alive; ``told`` are kinds and texts."""

    def __init__(self, folder: Path, count: int = 2, copies: int = 2) -> None:
        self.folder = folder
        self.told: list[tuple[str, str]] = []
        self.passwords = RunPasswords(folder, "u")
        servers = [self.make(f"state-{number}") for number in range(count)]
        self.keeper = ServerKeeper(
            servers, SystemClock(), lambda *told: self.told.append(told), lambda: 0, copies
        )

    def make(self, name: str) -> Embedded:
        return Embedded(name, self.folder, sockets(), self.passwords)

    def names(self) -> set[str]:
        return {member.name for member in self.keeper.proposed}

    def given(self) -> dict[str, str | None]:
        return {address.name: address.password for address in self.keeper.addresses}

    def kill(self, name: str) -> None:
        os.kill(next(row.pid for row in self.keeper.rows() if row.name == name), signal.SIGKILL)
        self.looked_until("StateServerEnded")

    def looked_until(self, kind: str) -> str:
        def look() -> list[str]:
            self.keeper.look()
            return [text for told, text in self.told if told == kind]

        return until(look, kind)[0]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.keeper.stop_all()


def answers(world: World) -> bool:
    """Whether each server takes the password that its name has in this run."""
    for address in world.keeper.addresses:
        client = StateClient(address.of(address.member(), world.passwords.of(address.name)), "u")
        client.peek()
        client.close()
    return True


@pytest.mark.parametrize("lost", ["state-0", "state-1"])
def test_a_server_whose_folder_is_lost_has_the_password_that_it_had(
    tmp_path: Path, worlds: list[World], lost: str
) -> None:
    world = World(tmp_path)
    worlds.append(world)
    world.keeper.start_all()
    before = world.given()
    shutil.rmtree(tmp_path / lost)
    # Those who run know it whatever becomes of the file that it was made of.
    (tmp_path / "root").unlink()
    world.kill(lost)
    world.looked_until("StateServerStarted")
    assert world.names() == {"state-0", "state-1"}
    assert world.given() == before
    assert len(set(before.values())) == 2
    assert answers(world)


@pytest.mark.parametrize("trouble", ["none", "lost", "differs", "damaged", "older", "no root"])
def test_servers_of_the_next_run_have_each_their_own(tmp_path: Path, trouble: str) -> None:
    folder = open_folder(tmp_path, "several", Path("t.yaml"), SystemClock())

    def run() -> list[str | None]:
        servers = state_servers(folder, TOPOLOGY, sockets())
        try:
            given = [server.start().password for server in servers]
            assert [password_in(tmp_path / one.name) for one in servers] == given
            return given
        finally:
            for server in servers:
                server.stop()

    before = run()
    assert len(set(before)) == 2
    if trouble == "lost":
        shutil.rmtree(tmp_path / "state-0")
    elif trouble in ("differs", "damaged"):
        (tmp_path / "state-1" / "password").write_text("other" if trouble == "differs" else "")
    elif trouble == "older":
        # A release without roots left one password for all of them.
        (tmp_path / "root").unlink()
        for name in ("state-0", "state-1"):
            (tmp_path / name / "password").write_text("shared")
    elif trouble == "no root":
        (tmp_path / "root").write_text("?\n")
    after = run()
    assert len(set(after)) == 2
    assert (after == before) is (trouble not in ("older", "no root"))


def test_servers_that_are_named_but_not_started_leave_nothing_behind(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, "several", Path("t.yaml"), SystemClock())
    state_servers(folder, TOPOLOGY, sockets())
    assert not list(tmp_path.glob("state-*"))


def gone(folder: Path) -> None:
    """What a mount that has gone looks like: nothing can be made there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("")


def test_a_server_that_cannot_come_back_for_now_is_told_of_and_tried_again(
    tmp_path: Path, worlds: list[World]
) -> None:
    world = World(tmp_path)
    worlds.append(world)
    world.keeper.start_all()
    gone(tmp_path / "state-1")
    world.kill("state-1")
    text = world.looked_until("StateServerFailed")
    assert "state-1" in text
    assert "tried again" in text
    assert world.names() == {"state-0"}
    (tmp_path / "state-1").unlink()
    world.looked_until("StateServerStarted")
    assert world.names() == {"state-0", "state-1"}


def test_an_error_of_the_system_is_told_of_and_leaves_no_server_behind(
    tmp_path: Path, worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    worlds.append(world)
    world.keeper.start_all()
    real = os.pidfd_open

    def refused(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    world.kill("state-1")
    assert "state-1 cannot be started" in world.looked_until("StateServerFailed")
    monkeypatch.setattr(os, "pidfd_open", real)
    # A server that was left behind would hold the lock of the folder.
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT_S", 0.5)
    failures = len(world.told)
    world.looked_until("StateServerStarted")
    assert [kind for kind, _ in world.told[failures:]] == ["StateServerStarted"]


def test_a_server_that_cannot_be_asked_does_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def refused(address: object, pid: int) -> None:
        pids.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(embedded, "_ask", refused)
    with pytest.raises(OSError, match="Too many open files"):
        World(tmp_path).make("state-0").start()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_run_begins_where_fewer_servers_fail_than_there_are_copies(
    tmp_path: Path, worlds: list[World]
) -> None:
    gone(tmp_path / "state-0")
    world = World(tmp_path, count=3)
    worlds.append(world)
    world.keeper.start_all()
    assert world.names() == {"state-1", "state-2"}
    assert [kind for kind, _ in world.told] == ["StateServerFailed"]
    (tmp_path / "state-0").unlink()
    world.looked_until("StateServerStarted")
    assert world.names() == {"state-0", "state-1", "state-2"}
    assert len(set(world.given().values())) == 3


@pytest.mark.parametrize(("copies", "bad"), [(1, ["state-0"]), (2, ["state-0", "state-1"])])
def test_a_run_does_not_begin_where_as_many_fail(
    tmp_path: Path, worlds: list[World], copies: int, bad: list[str]
) -> None:
    for name in bad:
        gone(tmp_path / name)
    world = World(tmp_path, count=3, copies=copies)
    worlds.append(world)
    with pytest.raises(WorkFolderError, match="state-0") as raised:
        world.keeper.start_all()
    assert isinstance(raised.value, MillraceError)
    assert world.told == []


def test_servers_asked_for_in_a_folder_that_takes_nothing_end_no_run(
    tmp_path: Path, worlds: list[World]
) -> None:
    world = World(tmp_path, count=1, copies=1)
    worlds.append(world)
    world.keeper.start_all()
    gone(tmp_path / "state-1")
    world.keeper.want({"state-0", "state-1"}, world.make)
    world.looked_until("StateServerFailed")
    assert world.names() == {"state-0"}


def looks_again_in(world: World) -> float:
    """Seconds until a server is to be looked at again."""
    now_s = SystemClock().monotonic_s()
    due_s = world.keeper.next_due_s()
    assert due_s is not None
    return due_s - now_s


def test_the_others_are_proposed_and_looked_after_while_a_server_loads_its_file(
    tmp_path: Path, worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    worlds.append(world)
    world.keeper.start_all()
    # A server that never gets ready, as one does that loads a file without an end.
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o700)
    monkeypatch.setenv(embedded.BINARY_VARIABLE, str(endless))
    world.kill("state-1")
    # Nothing has been begun yet: what is proposed is written first.
    assert world.names() == {"state-0"}
    assert len(world.keeper.pids()) == 1
    assert world.keeper.next_due_s() is not None
    until(lambda: world.keeper.look() or len(world.keeper.pids()) == 2, "a life that comes up")
    assert {row.name for row in world.keeper.rows()} == {"state-0"}
    # The whole run turns with each look: that is not done fifty times a second for a minute.
    until(lambda: looks_again_in(world) > 0.05, "that it is looked at less often")
    # The other one dies meanwhile, and that is seen.
    world.told.clear()
    monkeypatch.delenv(embedded.BINARY_VARIABLE)
    world.kill("state-0")
    world.looked_until("StateServerStarted")
    assert world.names() == {"state-0"}
    # One that comes up is of the run: it ends with it.
    pids = world.keeper.pids()
    world.keeper.stop_all()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
