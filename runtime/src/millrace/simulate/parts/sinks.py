"""Sinks that publish in steps, between any two of which their driver may die.

``FilesSink``: manifest created exclusively -> staged files renamed one by one -> done mark.
``TransactionSink``: everything and the marker in one step. Both keep a high-water mark that
refuses to show a window again (rule 21) and are fenced by execution (rule 25).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millrace.ids import WindowNumber
from millrace.protocol.types import Mark, Sealed, Staged
from millrace.simulate import history as h


class SinkRefusalError(Exception):
    """The sink will not take it: fenced, or another digest under the same window."""

    def __init__(self, text: str, fenced: bool) -> None:
        super().__init__(text)
        self.fenced = fenced


class StagedLostError(h.ViolationError):
    """A sealed window names staged output that is gone."""


@dataclass(frozen=True, slots=True)
class _Manifest:
    digest: str
    parts: int


class Sink:
    """What all sinks of the simulation share; nothing here is lost in a crash. ``atomic``: its
    fence is looked at in the very step that shows something."""

    atomic = False

    def __init__(self, name: str, history: h.History) -> None:
        self.name = name
        self.history = history
        self.staged: dict[str, Staged] = {}
        self.fenced = 0
        self.high_water = 0

    def stage(self, staged: Staged) -> None:
        """Keep a task's output under its own name, invisible."""
        self.staged[staged.name] = staged

    def fence(self, execution: int) -> None:
        if execution < self.fenced:
            raise SinkRefusalError(f"{self.name}: execution {self.fenced} has taken over", True)
        self.fenced = execution
        self.history.add(h.SinkFenced(self.name, execution))

    def publish(self, sealed: Sealed, mine: Sequence[Staged], execution: int) -> Iterator[None]:
        """Show a window; each step is atomic. Raises ``SinkRefusalError``."""
        raise NotImplementedError

    def mark(self) -> Mark | None:
        """The last window of which anything is shown."""
        return Mark(self.name, WindowNumber(self.high_water)) if self.high_water else None

    def discard(self, covers: Callable[[str], bool]) -> None:
        """Drop staged leftovers."""
        for name in [name for name in self.staged if covers(name)]:
            del self.staged[name]

    def retract(self, window: WindowNumber) -> None:
        """Show nothing any more of what came behind a window; doing it again is nothing."""
        self.high_water = min(self.high_water, window)
        self.history.add(h.Retracted(self.name, window))

    def check(self, execution: int) -> None:
        if execution < self.fenced:
            raise SinkRefusalError(f"{self.name}: execution {self.fenced} has taken over", True)

    def show(self, sealed: Sealed, staged: Staged, execution: int) -> None:
        if staged.name not in self.staged:
            raise StagedLostError(
                "I7", f"{self.name}: {staged.name} of window {sealed.window} is gone"
            )
        del self.staged[staged.name]
        rows = self.history.rows(staged.name)
        self.history.add(h.Shown(self.name, sealed, staged.name, staged.digest, rows, execution))

    def confirm(self, sealed: Sealed, execution: int) -> None:
        self.high_water = max(self.high_water, sealed.window)
        self.history.add(h.SinkConfirmed(self.name, sealed.window, execution))


class FilesSink(Sink):
    """A folder: final files are named by window and part."""

    def __init__(self, name: str, history: h.History) -> None:
        super().__init__(name, history)
        self._manifests: dict[int, _Manifest] = {}
        self._final: dict[tuple[int, int], str] = {}

    def mark(self) -> Mark | None:
        window = max(self._manifests, default=0)
        if not window:
            return None
        return Mark(self.name, WindowNumber(window), self._manifests[window].digest)

    def retract(self, window: WindowNumber) -> None:
        self._manifests = {w: one for w, one in self._manifests.items() if w <= window}
        self._final = {key: one for key, one in self._final.items() if key[0] <= window}
        super().retract(window)

    def publish(self, sealed: Sealed, mine: Sequence[Staged], execution: int) -> Iterator[None]:
        self.check(execution)
        if sealed.window <= self.high_water:
            return
        wanted = _Manifest(sealed.digest, len(mine))
        if self._manifests.setdefault(sealed.window, wanted) != wanted:
            text = f"{self.name}: window {sealed.window} has another content already"
            raise SinkRefusalError(text, False)
        yield
        for part, staged in enumerate(mine):
            if self._final.get((sealed.window, part)) != staged.digest:
                self.show(sealed, staged, execution)
                self._final[sealed.window, part] = staged.digest
            yield
        self.confirm(sealed, execution)


class TransactionSink(Sink):
    """A database: rows and the window's marker change together."""

    atomic = True

    def __init__(self, name: str, history: h.History) -> None:
        super().__init__(name, history)
        self._digests: dict[int, str] = {}

    def mark(self) -> Mark | None:
        window = max(self._digests, default=0)
        return Mark(self.name, WindowNumber(window), self._digests[window]) if window else None

    def retract(self, window: WindowNumber) -> None:
        self._digests = {w: one for w, one in self._digests.items() if w <= window}
        super().retract(window)

    def publish(self, sealed: Sealed, mine: Sequence[Staged], execution: int) -> Iterator[None]:
        yield
        self.check(execution)
        if self._digests.get(sealed.window, sealed.digest) != sealed.digest:
            text = f"{self.name}: window {sealed.window} has another content already"
            raise SinkRefusalError(text, False)
        if sealed.window <= self.high_water:
            return
        self._digests[sealed.window] = sealed.digest
        for staged in mine:
            self.show(sealed, staged, execution)
        self.confirm(sealed, execution)
