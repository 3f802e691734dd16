"""Restores by drivers of pods, on a real API server: killed in the middle, and judged exactly."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rights_of_pods import made_by_the_operator

from millrace.errors import ExitCode
from millrace.homes import pods
from millrace.homes.documents import Ask, Request
from millrace.homes.settings import RestoreSettings
from millrace.protocol.record import first_record
from millrace.protocol.types import Phase, Tag
from millrace.snapshots.places import FolderPlace
from millrace.snapshots.timelines import decoded
from millrace.snapshots.writing import Subject, write_snapshot
from millrace.topology.model import StandbyExecutors, StreamTopology
from millrace_e2e import kubeapi
from millrace_e2e.podprocess import TOPOLOGY, WAIT_S, Pod
from millrace_e2e.podworld import World
from millrace_e2e.waiting import until

RUN_S = 480.0
SNAPSHOTS = {"snapshots": {"to": "snapshots"}, "onStateLoss": "Restore"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with kubeapi.serving(tmp_path_factory.mktemp("api") / "server") as server:
        yield server


def begun(world: World, number: int) -> list[Pod]:
    servers = [world.state_server(0), world.state_server(1)]
    world.propose(servers, [world.acker(number)])
    return servers


def dies(world: World, number: int, point: str) -> None:
    """A driver that is killed right after a step of the restore."""
    driver = world.driver(number, MILLRACE_CRASH_AT=point)
    assert driver.wait(WAIT_S) == -signal.SIGKILL, driver.log.read_text()


def test_state_is_restored_once_whoever_dies(tmp_path: Path, server: kubeapi.ApiServer) -> None:
    """All copies gone: the driver goes back to the snapshot, dies in it, so does the next, and the
    one that stands by goes on. Then another life of the topology begins with that snapshot, and its
    drivers die in that."""
    world = World(tmp_path / "first", server, made_by_the_operator)
    try:
        world.feed(1_500, "first.txt")
        world.config({**SNAPSHOTS, "spark": {"driver": {"standby": 1}}}, watch=True)
        servers = begun(world, 0)
        driver = world.driver(1)
        until(lambda: (world.data / "counts").exists() and world.judge()["equal"], "counts", RUN_S)
        follower = world.journal.follow()
        world.inbox.ask(Request(Ask.SNAPSHOT, name="early"))
        manifest = world.data / "snapshots" / "early" / "manifest.json"
        until(manifest.exists, "the snapshot", RUN_S)
        early = json.loads(manifest.read_bytes())["window"]
        world.feed(1_500, "second.txt")
        until(lambda: world.judge()["equal"], "all is counted", RUN_S)
        # Figures are told once in seconds.
        until(lambda: world.sealed() > early, "windows behind the snapshot", RUN_S)

        for one in servers:
            one.kill()
            shutil.rmtree(world.folder / one.name)
        servers = [world.state_server(0), world.state_server(1)]
        world.propose(servers, [])
        driver.kill()
        lost = world.driver(2, MILLRACE_CRASH_AT="restore.retracted")
        assert lost.wait(WAIT_S) == -signal.SIGKILL, lost.log.read_text()
        _, view = world.view.read()
        assert view is not None
        assert (view.phase, view.timeline) == (Phase.CREATING, 2)
        # The next one stands by meanwhile, with a Spark, and leaves the restore to its driver.
        for number in (3, 4):
            world.driver_object(number)
        driver = world.driver(4, "--standby", StandbyExecutors.ON_TAKE_OVER.value)
        assert driver.until(pods.READY_PATH) == "stands by"
        assert world.view.read()[1] == view
        dies(world, 3, "restore.recorded")
        acker = world.acker(1)
        world.feed(500, "third.txt")
        world.propose(servers, [acker])
        world.driver_is(3, "Failed", terminated={"exitCode": 137, "reason": "Error"})
        until(lambda: world.judge()["equal"], "all is counted again", RUN_S)
        restored = [one for one in follower.new() if one.kind == "StateRestored"]
        assert len(restored) == 1
        assert f"snapshot early is restored behind window {early}" in restored[0].text
        assert "given up, and processed again" in restored[0].text
        verdict = world.judge()
        assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
        _, view = world.view.read()
        assert view is not None
        assert (view.phase, view.timeline) == (Phase.OPEN, 4)
        assert world.view.beside(pods.RESTORING) is None
        assert driver.end() == ExitCode.INTERRUPTED
    finally:
        world.close()

    again = World(tmp_path / "again", server, made_by_the_operator, "uid-2", world.data)
    try:
        wanted = RestoreSettings("early", "snapshots")
        again.config(SNAPSHOTS, wanted, "counts-again", watch=True)
        begun(again, 0)
        dies(again, 1, "restore.claimed")
        dies(again, 2, "restore.put")
        driver = again.driver(3)
        counted = again.data / "counts-again"
        until(lambda: counted.exists() and again.judge(counted.name)["equal"], "counts", RUN_S)
        driver.kill()
        # What was restored is not restored once more.
        again.feed(500, "fourth.txt")
        driver = again.driver(4)
        until(lambda: again.judge(counted.name)["equal"], "counts", RUN_S)
        verdict = again.judge(counted.name)
        assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
        _, view = again.view.read()
        assert view is not None
        assert view.timeline == 4
        assert again.sealed() > early
        # Another life reads nothing again that the snapshot knows.

        def roots() -> int:
            totals = again.journal.status().totals
            return 0 if totals is None else totals.roots

        until(lambda: roots() >= 4_000, "the figures of all windows", RUN_S)
        assert roots() == 4_000
        assert driver.end() == ExitCode.INTERRUPTED
    finally:
        again.close()


def kept(world: World, name: str, topology: str = TOPOLOGY) -> Path:
    """A snapshot of a topology that has done nothing yet; its folder."""
    document = json.loads((world.folder / "config" / pods.TOPOLOGY_KEY).read_text())
    del document["checksum"]
    document["metadata"]["name"] = topology
    whole = StreamTopology.model_validate(document)
    place = FolderPlace(world.data / "snapshots")
    record = first_record("an-earlier-life", Tag(1, 3, 2, 9))  # type: ignore[arg-type]
    plain = whole.document()
    groups = whole.spec.key_groups
    subject = Subject(topology, plain, groups, record, 1_770_000_000.0)
    write_snapshot(place, name, subject, lambda *_: b"", lambda: None)
    return world.data / "snapshots" / name


def test_what_cannot_be_restored_is_refused_and_what_can_is_restored_once(
    tmp_path: Path, server: kubeapi.ApiServer
) -> None:
    """Drivers end, or are killed, before they have a Spark."""
    world = World(tmp_path / "words", server, made_by_the_operator, "uid-4")
    try:
        world.config(SNAPSHOTS, watch=True)
        whole, torn = kept(world, "whole"), kept(world, "torn")
        kept(world, "foreign", "others")
        (torn / "manifest.json").write_bytes(b"{}")
        (world.data / "snapshots" / "begun").mkdir()
        (world.data / "snapshots" / "begun" / f"{'0' * 64}.arrow").write_bytes(b"")
        servers = [world.state_server(0), world.state_server(1)]
        world.propose(servers, [])
        for number, (name, why) in enumerate(
            [
                ("missing", "is not in"),
                ("begun", "was never finished"),
                ("torn", "is damaged and not believed"),
                ("foreign", "is of the topology 'others'"),
            ]
        ):
            world.config(SNAPSHOTS, RestoreSettings(name, "snapshots"), watch=True)
            driver = world.driver(number)
            assert driver.wait(WAIT_S) == ExitCode.SNAPSHOT, driver.log.read_text()
            assert why in driver.log.read_text()
            assert world.view.read() == (0, None)

        world.config(SNAPSHOTS, RestoreSettings("whole", "snapshots"), watch=True)
        dies(world, 10, "restore.claimed")
        # One that knows nothing of the restore does not begin with nothing in its place.
        world.config(SNAPSHOTS, watch=True)
        dies(world, 11, "restore.recorded")
        _, view = world.view.read()
        assert view is not None
        assert (view.phase, view.timeline) == (Phase.CREATING, 3)
        shutil.rmtree(whole)
        refused = world.driver(12)
        assert refused.wait(WAIT_S) == ExitCode.SNAPSHOT
        kept(world, "whole")
        dies(world, 13, "restore.opened")
        _, view = world.view.read()
        assert view is not None
        assert (view.phase, view.timeline) == (Phase.OPEN, 4)
        assert world.view.beside(pods.RESTORING) is None
        (fork,) = [f for f in decoded(world.view.beside(pods.TIMELINES)) if f.timeline == 4]
        assert (fork.snapshot, fork.parent, fork.lost) == ("whole", 1, False)
        # It is restored: the next driver goes on, whatever it is told.
        world.config(SNAPSHOTS, RestoreSettings("missing", "snapshots"), watch=True)
        dies(world, 14, "driver.claimed")
        _, after = world.view.read()
        assert after is not None
        assert (after.timeline, after.execution) == (4, view.execution + 1)
    finally:
        world.close()
