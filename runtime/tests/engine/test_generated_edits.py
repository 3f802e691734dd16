"""Every kind of edit, in generated histories of files, inputs and deaths at any action."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import edit_files
import edit_world
import pytest
from edit_judge import judge
from edit_world import Histories, Start

from millrace.errors import MillraceError
from millrace.local import accepted
from millrace.protocol import edits
from millrace.protocol.driver import Driver
from millrace.protocol.windows.machine import Windows
from millrace.topology.edits import classify
from millrace.topology.kinds.base import Effect

HISTORIES = 150


@pytest.mark.parametrize("part", range(4))
def test_edits_mean_what_they_say(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        history = Histories(seed)
        try:
            history.play()
            judge(history)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def noticed(windows: type[Windows] = Windows) -> bool:
    """Whether one of the histories shows that something is wrong."""
    for seed in range(HISTORIES):
        history = Histories(seed, broken(windows))
        try:
            history.play()
            judge(history)
        except (AssertionError, KeyError, MillraceError):
            return True
    return False


def broken(windows: type[Windows]) -> type[Driver]:
    class Broken(Driver):
        def make_windows(self, locate):
            return windows(self.settings, self.membership, locate)

    return Broken


def forgetting(kept: str, forgotten: Callable[[Any], Any]) -> type[Windows]:
    """An edit that forgets to change a part of the record, or to keep it."""

    class Forgetting(Windows):
        def edited(self, record):
            return replace(super().edited(record), **{kept: forgotten(record)})

    return Forgetting


class Twice(Windows):
    """Each driver makes the edit, whether the record shows it or not."""

    def resume(self, record):
        return super().resume(replace(record, components=None))


class Unshown(Windows):
    def _edit(self, record):
        return self._change(self.edited)


class Uncut(Windows):
    """What was found for the next window stays, however large windows may be now."""

    def resize(self, max_records):
        found = self.planning.found
        window = super().resize(max_records)
        if window is not None:
            self.planning.found = found
        return window


class Unabandoned(Windows):
    """What was open when its driver died runs again, also under AtMostOnce."""

    def resume(self, record):
        actions = super().resume(record)
        self._interrupted = False
        return actions


FORGETTING = {
    name: forgetting(name, lambda record, name=name: getattr(record, name))
    for name in ("replays", "intents", "offsets", "chains", "totals")
} | {"time": forgetting("time_ms", lambda record: 0)}


@pytest.mark.parametrize(
    "windows",
    [*FORGETTING.values(), Twice, Unshown, Uncut, Unabandoned],
    ids=[*FORGETTING, "twice", "unshown", "uncut", "unabandoned"],
)
def test_an_edit_that_does_less_or_more_is_noticed(windows: type[Windows]) -> None:
    assert noticed(windows)


def test_names_alone_would_bring_back_what_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two edits are accepted and no driver ran in between, only the numbers tell."""
    real = accepted.accept

    def by_name(before, topology):
        found = real(before, topology)
        zeros = {
            section: dict.fromkeys(getattr(found.components, section), 0)
            for section in ("sources", "processors", "sinks")
        }
        return replace(found, components=edits.Components(found.components.edit, **zeros))

    monkeypatch.setattr(edit_world, "accept", by_name)
    assert noticed()


@pytest.mark.parametrize("setting", ["guarantee", "backoff", "dead_limit", "emits_final"])
def test_a_setting_that_the_first_file_had_is_noticed(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    first: dict[int, Any] = {}
    real, life = edit_world.settings_of, edit_world.DriverLife.__init__

    def begin(self, world, *others):
        def stale(topology, uid):
            found = real(topology, uid)
            return replace(found, **{setting: getattr(first.setdefault(id(world), found), setting)})

        monkeypatch.setattr(edit_world, "settings_of", stale)
        life(self, world, *others)

    monkeypatch.setattr(edit_world.DriverLife, "__init__", begin)
    assert noticed()


@pytest.mark.parametrize("what", ["generator", "inputs", "function"])
def test_what_was_edited_away_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A component that comes back, is wired otherwise or has other code is as it was once."""
    seen: dict[Any, Any] = {}
    real = edit_world.DriverLife.__init__

    def begin(self, world, *others):
        real(self, world, *others)
        self.document = copy.deepcopy(self.document)
        for section in ("sources", "processors", "sinks"):
            for one in self.document["spec"][section]:
                if what in one:
                    one[what] = seen.setdefault((id(world), one["name"]), one[what])

    monkeypatch.setattr(edit_world.DriverLife, "__init__", begin)
    assert noticed()


@pytest.mark.parametrize("dropping", [False, True])
def test_rows_that_are_given_up_unasked_or_never_are_noticed(
    monkeypatch: pytest.MonkeyPatch, dropping: bool
) -> None:
    real = edit_world.RetiredSinks
    monkeypatch.setattr(
        edit_world, "RetiredSinks", lambda lives, _, make: real(lives, dropping, make)
    )
    assert noticed()


@pytest.mark.parametrize("spoil", edit_files.REFUSED, ids=lambda one: one.__name__.strip("_"))
def test_an_edit_has_to_be_refused(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any, Any], None]
) -> None:
    """Each edit that is refused would break a promise if it were not."""
    monkeypatch.setattr(edit_files, "REFUSED", (spoil,))
    monkeypatch.setattr(
        edit_world,
        "classify",
        lambda *sides: [one for one in classify(*sides) if one.effect is not Effect.REFUSED],
    )
    assert noticed()


def test_an_edit_that_is_refused_for_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        edit_world,
        "classify",
        lambda *sides: [replace(one, effect=Effect.REFUSED) for one in classify(*sides)],
    )
    assert noticed()


def test_settings_that_are_lost_with_the_driver_that_took_them_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver begins with what was accepted, also while another one ran."""
    real = edit_world.DriverLife.__init__

    def begin(self, world, start: Start, *others):
        tuned = start.accepted.tuned
        older = [one for one in world.lives if one.accepted.tuned < tuned]
        real(self, world, start, *others)
        if older:
            size = older[-1].accepted.topology["spec"]["window"]["maxRecords"]
            self.size = size

    monkeypatch.setattr(edit_world.DriverLife, "__init__", begin)
    assert noticed()


def test_counts_that_are_told_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = edits.told

    def told(record, *others):
        return real(replace(record, intents=()), *others)

    monkeypatch.setattr(edits, "told", told)
    assert noticed()
