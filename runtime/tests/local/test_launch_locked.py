"""A run judges the work folder when no other run has it any more, and ends none for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.errors import SinkError, TopologyError
from millrace.local import launch
from millrace.local.launch import LaunchOptions
from millrace.local.supervisor import RunResult
from millrace.local.workdir import WorkFolder, find_folder, start_over
from millrace.topology.load import LoadedTopology, load

CLOCK = SystemClock()
TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: edited}
spec:
  keyGroups: 16
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], files: {path: out}}]
"""


class World:
    """Runs without their processes; ``meanwhile`` is what an older run does before it lets go."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.told: list[str] = []
        self.taken_over = 0
        self.meanwhile: Callable[[Path], Any] = lambda _: None
        self._real = launch.take_over
        monkeypatch.setattr(launch, "take_over", self._take_over)
        monkeypatch.setattr(launch._Lives, "run", self._live)

    def _take_over(self, path: Path, *arguments: Any, **settings: Any) -> Any:
        self.taken_over += 1
        self.meanwhile(path)
        return self._real(path, *arguments, **settings)

    @staticmethod
    def _live(lives: Any) -> RunResult:
        launch._write_driver_file(lives._folder, lives._loaded, lives._options)
        return RunResult(0, "drained")

    def loaded(self, text: str = TEXT) -> LoadedTopology:
        file = self.base / "topology.yaml"
        file.write_text(text)
        return load(file, ())

    def run(self, text: str = TEXT, **options: Any) -> WorkFolder:
        wanted = LaunchOptions(self.base / "work", **options)
        loaded = self.loaded(text)
        return launch.run_topology(loaded, wanted, None, self.told.append, CLOCK)[0]  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    made.run()
    return made


def test_a_run_goes_on_with_what_the_older_one_started_over(world: World) -> None:
    before = find_folder(world.base / "work").uid
    world.meanwhile = lambda path: start_over(find_folder(path), CLOCK)
    uid = world.run().uid
    assert uid == find_folder(world.base / "work").uid != before


def test_edits_are_judged_by_what_the_older_run_had_accepted(world: World) -> None:
    other = TEXT.replace("keyGroups: 16", "keyGroups: 32")

    def edited(path: Path) -> None:
        fresh = start_over(find_folder(path), CLOCK)
        launch._write_driver_file(fresh, world.loaded(other), LaunchOptions())
        world.loaded()

    world.meanwhile = edited
    with pytest.raises(TopologyError, match="keyGroups"):
        world.run()
    world.meanwhile = lambda _: None
    assert world.run(other).path == world.base / "work"


@pytest.mark.parametrize("fresh", [True, False])
def test_what_is_refused_takes_no_run_over(world: World, fresh: bool) -> None:
    (world.base / "out").mkdir()
    (world.base / "out" / "own.jsonl").write_text("{}\n")
    world.taken_over = 0
    with pytest.raises((SinkError, TopologyError)):
        world.run(TEXT.replace("keyGroups: 16", "keyGroups: 32"), fresh=fresh)
    assert world.taken_over == 0


def test_an_edit_is_told_once(world: World) -> None:
    world.run(TEXT.replace("spec:\n", "spec:\n  window: {maxRecords: 10}\n"))
    assert sum(one.startswith("edited:") for one in world.told) == 1
