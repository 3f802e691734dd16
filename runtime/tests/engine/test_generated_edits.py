"""Every kind of edit, in generated histories of files, inputs and deaths at any action."""

from __future__ import annotations

from dataclasses import replace

import edit_world
import pytest
from edit_world import Histories

from millrace.local import accepted
from millrace.protocol import edits
from millrace.protocol.driver import Driver
from millrace.protocol.windows.machine import Windows

HISTORIES = 400


@pytest.mark.parametrize("part", range(4))
def test_edits_mean_what_they_say(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        history = Histories(seed)
        try:
            history.play()
            history.judge()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def broken(windows: type[Windows]) -> type[Driver]:
    class Broken(Driver):
        def make_windows(self, locate):
            return windows(self.settings, self.membership, locate)

    return Broken


def forgetting(kept: str) -> type[Windows]:
    """An edit that forgets a part of the record."""

    class Forgetting(Windows):
        def edited(self, record):
            return replace(super().edited(record), **{kept: getattr(record, kept)})

    return Forgetting


class Twice(Windows):
    """Each driver makes the edit, whether the record shows it or not."""

    def resume(self, record):
        return super().resume(replace(record, components=None))


class Unshown(Windows):
    def _edit(self, record):
        return self._change(self.edited)


@pytest.mark.parametrize(
    "windows",
    [
        *(forgetting(name) for name in ("replays", "intents", "offsets", "chains", "totals")),
        Twice,
        Unshown,
    ],
    ids=["replays", "intents", "offsets", "chains", "totals", "twice", "unshown"],
)
def test_an_edit_that_does_less_or_more_is_noticed(windows: type[Windows]) -> None:
    for seed in range(HISTORIES):
        history = Histories(seed, broken(windows))
        try:
            history.play()
            history.judge()
        except (AssertionError, KeyError):
            return
    pytest.fail(f"{HISTORIES} histories with {windows.__name__} looked fine")


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
    for seed in range(HISTORIES):
        history = Histories(seed)
        try:
            history.play()
            history.judge()
        except (AssertionError, KeyError):
            return
    pytest.fail("numbers of lives change nothing")
