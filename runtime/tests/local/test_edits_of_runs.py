"""Edits that a run takes while it goes on: which they are, and who writes and proposes what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.errors import MillraceError
from millrace.homes import codec
from millrace.homes.documents import EditAsked
from millrace.homes.told import read_settings
from millrace.homes.tuning import FIELDS, Tuning
from millrace.local import launch, scale
from millrace.local.ackers import AckerPlan
from millrace.local.edits import ask, await_taken, between, in_force
from millrace.local.files import Watched, write_json
from millrace.local.launch import LaunchOptions
from millrace.local.logs import Display
from millrace.local.scale import beginning
from millrace.local.scale import read as read_scale
from millrace.local.supervisor import RunPlan, Supervisor
from millrace.local.takeover import Lease, take_over
from millrace.local.workdir import WorkFolder, open_folder
from millrace.protocol.ackerload import AckerBounds
from millrace.topology.load import LoadedTopology, load

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: edited}
spec:
  window: {maxRecords: 10}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], files: {path: out}}]
"""


class Listener:
    """What a run tells."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, event: Any) -> None:
        self.events.append((event.kind, event.text))

    def progress(self) -> None:
        pass

    def output(self, *_: object) -> None:
        pass


class World:
    """A run of a topology without its processes: files of its folder, lease and supervisor."""

    def __init__(self, base: Path) -> None:
        self.file = base / "topology.yaml"
        self.file.write_text(TEXT)
        self.folder = open_folder(base / "work", "edited", self.file, SystemClock())
        self.lease: Lease = take_over(self.folder.path, lambda _: None)
        self.listener = Listener()
        self.display = Display(self.listener)
        self.begin()

    def begin(self) -> None:
        """A life of the run; it has what is accepted."""
        self.lives = launch._Lives(
            self.loaded(), LaunchOptions(), self.folder, self.lease, self.display, SystemClock()
        )
        self.follow(self.lives)

    def follow(self, lives: Any) -> None:
        """The first supervisor of a run, or the next one."""
        accepted = launch._write_driver_file(self.folder, lives._loaded, LaunchOptions())
        ackers = AckerPlan(lambda *_: [], 0, AckerBounds(0, 0))
        plan = RunPlan([], ackers, lambda _: None, editing=lives._editing(accepted))  # type: ignore[arg-type, return-value]
        self.supervisor = Supervisor(self.folder, self.lease, plan, self.display, SystemClock())

    def loaded(self, *overrides: str) -> LoadedTopology:
        return load(self.file, overrides)

    def ask(self, *overrides: str) -> list[str]:
        return [edit.path for edit in ask(self.folder, self.loaded(*overrides).topology)]

    def turn(self) -> Tuning | None:
        """The supervisor looks once; what it proposes."""
        self.supervisor._look_at_edit()
        self.supervisor._publish()
        proposal = self.folder.inbox.proposal()
        assert proposal is not None
        return proposal.tuning

    def driver(self) -> tuple[int, int]:
        """What a driver that starts now begins with: number, and records of a window."""
        told = read_settings(self.folder.driver)
        return told.tuned, in_force(self.folder).spec.window.max_records


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lease.release()


VALUES = {
    "spec.window.maxRecords": "7",
    "spec.window.maxInterval": "3s",
    "spec.window.minInterval": "100ms",
    "spec.tupleTimeout": "9s",
    "spec.parallelism": "5",
}


def test_every_setting_that_a_driver_takes_is_taken(world: World) -> None:
    assert VALUES.keys() == FIELDS.keys()
    executors = "spec.spark.executors.instances=1"
    before = world.loaded(executors).topology
    for field, value in VALUES.items():
        wanted = world.loaded(executors, f"{field}={value}").topology
        assert [edit.path for edit in between(before, wanted)] == [field]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        ("spec.parallelism=5", "needs a restart: millrace run takes the run over"),
        ("spec.guarantee=AtLeastOnce", "needs a restart"),
        ("spec.ackers.backoff=9s", "needs a restart"),
        ("spec.keyGroups=64", "is refused"),
    ],
)
def test_what_is_not_taken_is_named_and_nothing_is_asked(
    world: World, edit: str, text: str
) -> None:
    with pytest.raises(MillraceError, match=text) as caught:
        world.ask(edit, "spec.window.maxRecords=7")
    assert edit.partition("=")[0] in str(caught.value)
    assert "maxRecords" not in str(caught.value)
    assert not world.folder.edit.exists()


def test_an_edit_is_in_force_before_it_is_proposed(world: World) -> None:
    assert world.turn() is None
    assert world.ask("spec.window.maxRecords=7") == ["spec.window.maxRecords"]
    assert world.driver() == (0, 10), "the supervisor alone writes what is accepted"
    wanted = world.loaded("spec.window.maxRecords=7").topology
    assert not await_taken(world.folder, wanted, 0.0)
    assert world.turn() == Tuning.of(wanted, 1)
    assert await_taken(world.folder, wanted, 0.0)
    assert world.driver() == (1, 7)
    assert world.listener.events == [("EditedInPlace", "without a restart: spec.window.maxRecords")]
    world.turn()
    assert len(world.listener.events) == 1, "once"
    # And back, and the same again.
    assert world.ask() == ["spec.window.maxRecords"]
    assert world.turn() == Tuning.of(world.loaded().topology, 2)
    assert world.ask() == []


def test_numbers_of_processes_are_asked_for_before_they_are_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies, or has no room, in between asks for the same again."""
    numbers = ("spec.ackers.replicas=3", "spec.stateServers.replicas=2")
    assert sorted(world.ask(*numbers)) == ["spec.ackers.replicas", "spec.stateServers.replicas"]
    with monkeypatch.context() as patched:
        patched.setattr(launch, "write_json", refuse)
        world.turn()
    assert world.driver()[0] == 0
    for _ in range(2):
        world.turn()
        asked = read_scale(world.folder.scale)
        assert asked is not None
        assert (asked.state_servers, asked.ackers) == (2, 3)
    assert [kind for kind, _ in world.listener.events] == ["EditPutOff", "EditedInPlace"]
    assert world.ask(*numbers) == []


def test_numbers_that_cannot_be_are_refused_and_nothing_is_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "refusal_of", lambda *_: "not so many")
    world.ask("spec.ackers.replicas=3", "spec.window.maxRecords=7")
    world.turn()
    ((kind, text),) = world.listener.events
    assert kind == "EditOvertaken"
    assert "not so many" in text
    assert world.driver() == (0, 10)


def test_the_next_life_of_the_run_has_it_too(world: World) -> None:
    """One behind a restore, in the same run."""
    world.ask("spec.window.maxRecords=7")
    world.turn()
    assert world.lives._loaded.topology.spec.window.max_records == 7
    world.follow(world.lives)
    told = len(world.listener.events)
    assert world.turn() == Tuning.of(world.lives._loaded.topology, 1)
    assert world.driver() == (1, 7)
    assert len(world.listener.events) == told, "what was asked is taken already"


def test_the_next_run_has_what_its_file_says_and_no_older_settings_are_proposed(
    world: World,
) -> None:
    world.ask("spec.window.maxRecords=7")
    world.turn()
    with beginning(world.folder):
        world.begin()
    assert world.driver() == (1, 10)
    assert world.turn() == Tuning.of(world.loaded().topology, 1)


def test_what_was_asked_of_the_run_before_is_forgotten(world: World) -> None:
    world.ask("spec.window.maxRecords=7")
    with beginning(world.folder):
        pass
    assert world.turn() is None


def test_an_edit_that_was_overtaken_is_refused_and_said_once(world: World) -> None:
    """The supervisor decides by what is in force, whatever the command has seen."""
    wanted = world.loaded("spec.guarantee=AtLeastOnce").topology
    write_json(world.folder.edit, codec.encode(EditAsked(wanted.document(), "m")))
    assert world.turn() is None
    assert world.turn() is None
    ((kind, text),) = world.listener.events
    assert kind == "EditOvertaken"
    assert "spec.guarantee" in text
    assert world.driver() == (0, 10)


def test_a_full_disk_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask("spec.window.maxRecords=7")
    with monkeypatch.context() as patched:
        patched.setattr(launch, "write_json", refuse)
        assert world.turn() is None
    tuning = world.turn()
    assert tuning is not None
    assert tuning.max_records == 7
    assert world.driver()[1] == 7


def test_nobody_is_asked_where_no_run_is_alive(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(TEXT)
    loaded = load(tmp_path / "topology.yaml", ())
    folder = open_folder(tmp_path / "w", "edited", loaded.file, SystemClock())
    with pytest.raises(MillraceError, match="not running; millrace run takes the edits"):
        ask(folder, loaded.topology)


def test_what_cannot_be_read_was_not_asked(world: World) -> None:
    asked = Watched(world.folder.edit, EditAsked)
    assert asked.look() is None
    world.folder.edit.write_text(json.dumps({"mark": "m"}))
    assert asked.look() is None
    found = EditAsked(world.loaded().topology.document(), "m")
    write_json(world.folder.edit, codec.encode(found))
    assert asked.look() == found


def test_an_edit_of_another_folder_is_none(tmp_path: Path) -> None:
    folder: WorkFolder = open_folder(tmp_path / "w", "new", tmp_path / "t", SystemClock())
    with pytest.raises(MillraceError, match="no topology has run there"):
        in_force(folder)
