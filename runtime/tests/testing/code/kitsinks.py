"""A good sink, and sinks that each break one rule."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Sealed, Staged
from millrace.sinks import Sink, SinkUnavailableError, StepHook

State = dict[str, Any]


class Ledger(Sink):
    """Rows and marks in one JSON file that is replaced whole, under a lock."""

    @property
    def file(self) -> Path:
        return self.folder / "ledger.json"

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        self.uid = uid
        with self.locked() as state:
            if state["uid"] != uid:
                self.check_room(state, fresh and overwrite)
                state |= {"uid": uid, "execution": 0, "w": -1, "digest": "", "rows": []}

    def check_fresh(self, overwrite: bool) -> None:
        with self.locked() as state:
            self.check_room(state, overwrite)

    def check_room(self, state: State, overwrite: bool) -> None:
        if (state["uid"] or state["rows"]) and not (state["uid"] and overwrite):
            raise SinkError("it holds rows of others")

    def fence(self, execution: int) -> None:
        with self.locked() as state:
            self.check_mark(state, execution)
            state["execution"] = execution

    def check_mark(self, state: State, execution: int) -> None:
        if state["uid"] != self.uid:
            raise SinkError("it belongs to another topology")
        if state["execution"] > execution:
            raise FencedError(f"it serves {state['execution']}")

    def last_shown(self) -> tuple[int, str] | None:
        state = self.read()
        return None if state["w"] < 0 else (state["w"], state["digest"])

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        return self.stage_rows(name, batches)

    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        with self.locked() as state:
            self.check_mark(state, execution)
            if self.is_shown(state, sealed):
                return
            state["rows"] += self.rows_of(mine)
            state |= {"w": sealed.window, "digest": sealed.digest}

    def is_shown(self, state: State, sealed: Sealed) -> bool:
        if sealed.window == state["w"] and sealed.digest != state["digest"]:
            raise SinkError("it is shown with other rows")
        return bool(sealed.window <= state["w"])

    def rows_of(self, mine: Sequence[Staged]) -> list[dict[str, Any]]:
        return [row for staged in mine for row in self.staged_rows(staged).to_pylist()]

    def read(self) -> State:
        try:
            found: State = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {"uid": None, "execution": 0, "w": -1, "digest": "", "rows": []}
        return found

    def write(self, state: State) -> None:
        draft = self.file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(state))
        draft.replace(self.file)

    @contextmanager
    def locked(self) -> Iterator[State]:
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            before = json.dumps(state)
            yield state
            if json.dumps(state) != before:
                self.write(state)


class TypedLedger(Ledger):
    """Takes rows of the declared types alone."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        for batch in batches:
            for field, kind in zip(batch.schema, ("string", "int32"), strict=False):
                if str(field.type) != kind:
                    raise SinkError(f"{field.name} is {field.type}")
        return super().stage(name, batches)


class StagesNothing(Ledger):
    """Stages also where there are no rows."""

    def stage(self, name, batches):
        return self.stage_bytes(name, b"", 0) if not batches[0].num_rows else super().stage(
            name, batches
        )  # fmt: skip


class CountsBatches(Ledger):
    def stage(self, name, batches):
        staged = super().stage(name, batches)
        return staged and replace(staged, rows=len(batches) + 1)


class ShowsWhileStaging(Ledger):
    def stage(self, name, batches):
        with self.locked() as state:
            state["rows"] += [row for batch in batches for row in batch.to_pylist()]
        return super().stage(name, batches)


class LosesATask(Ledger):
    def rows_of(self, mine):
        return super().rows_of(mine[:1])


class NeedsItsOwnStaging(Ledger):
    """Publishes what this very object staged."""

    def stage(self, name, batches):
        self.__dict__.setdefault("kept", {})[name] = batches
        return super().stage(name, batches)

    def rows_of(self, mine):
        kept = self.__dict__.get("kept", {})
        return super().rows_of([staged for staged in mine if staged.name in kept])


class MarksInMemory(Ledger):
    def is_shown(self, state, sealed):
        shown = self.__dict__.setdefault("shown", set())
        if sealed.window in shown:
            return super().is_shown(state, sealed)
        shown.add(sealed.window)
        return False


class TakesAnyDigest(Ledger):
    def is_shown(self, state, sealed):
        return bool(sealed.window <= state["w"])


class SkipsEmptyWindows(Ledger):
    """A window without rows leaves no mark."""

    def publish(self, sealed, mine, execution, step=None):
        if mine:
            super().publish(sealed, mine, execution, step)


class RetriesConflicts(Ledger):
    def is_shown(self, state, sealed):
        try:
            return super().is_shown(state, sealed)
        except SinkError as error:
            raise SinkUnavailableError(str(error)) from error


class TellsFromMemory(Ledger):
    def publish(self, sealed, mine, execution, step=None):
        super().publish(sealed, mine, execution, step)
        self.last = (sealed.window, sealed.digest)

    def last_shown(self):
        return self.__dict__.get("last")


class ShowsAllAttempts(Ledger):
    """Shows whatever was staged for a window."""

    def stage(self, name, batches):
        staged = super().stage(name, batches)
        if staged is not None:
            with (self.folder / "staged").open("a") as file:
                file.write(json.dumps([name, staged.digest, staged.rows, staged.size_bytes]) + "\n")
        return staged

    def rows_of(self, mine):
        lines = (self.folder / "staged").read_text().splitlines() if mine else []
        windows = {staged.name.split("/")[2] for staged in mine}
        all_ = [Staged(self.name, *json.loads(line)) for line in lines]
        return super().rows_of([s for s in all_ if f"/{s.name}".split("/")[3] in windows])


class DiscardsEverything(Ledger):
    def discard(self, covers: Callable[[str], bool]) -> None:
        for path in Path(self.staging._folder).iterdir():
            path.unlink()


class ShowsTheDamaged(Ledger):
    def rows_of(self, mine):
        rows = []
        for staged in mine:
            try:
                rows += super().rows_of([staged])
            except SinkError:
                continue
        return rows


class Unfenced(Ledger):
    def check_mark(self, state, execution):
        if state["uid"] != self.uid:
            raise SinkError("it belongs to another topology")


class FencesInMemory(Ledger):
    def check_mark(self, state, execution):
        super().check_mark({**state, "execution": self.__dict__.get("newest", 0)}, execution)

    def fence(self, execution):
        self.check_mark(self.read(), execution)
        self.newest = execution


class TakesAnyOwner(Ledger):
    def prepare(self, uid, fresh=False, overwrite=False):
        self.uid = uid
        with self.locked() as state:
            state["uid"] = uid


class RetriesForeigners(Ledger):
    def check_room(self, state, overwrite):
        try:
            super().check_room(state, overwrite)
        except SinkError as error:
            raise SinkUnavailableError(str(error)) from error


class PromisesAFreshStart(Ledger):
    def check_fresh(self, overwrite):
        return


class ChecksAloud(Ledger):
    def check(self):
        if self.read()["uid"] is not None:
            raise SinkError("it is marked")


class ChecksByWriting(Ledger):
    def check(self):
        with self.locked() as state:
            state["rows"].append({"word": "a try", "n": 0})


class KeepsOldRows(Ledger):
    def prepare(self, uid, fresh=False, overwrite=False):
        rows = self.read()["rows"]
        super().prepare(uid, fresh, overwrite)
        with self.locked() as state:
            state["rows"] = rows


class KeepsTheOldFence(Ledger):
    def prepare(self, uid, fresh=False, overwrite=False):
        execution = self.read()["execution"]
        super().prepare(uid, fresh, overwrite)
        with self.locked() as state:
            state["execution"] = execution


class ErasesItsOwn(Ledger):
    """Empties the target at each start that says overwrite."""

    def prepare(self, uid, fresh=False, overwrite=False):
        super().prepare(uid, fresh, overwrite)
        if overwrite:
            with self.locked() as state:
                state |= {"rows": [], "w": -1}


class ErasesOthers(Ledger):
    def check_room(self, state, overwrite):
        if (state["uid"] or state["rows"]) and not overwrite:
            raise SinkError("it holds rows of others")


class PreparesInHalves(Ledger):
    """The owner first, the rest by whoever marks it."""

    def prepare(self, uid, fresh=False, overwrite=False):
        self.uid = uid
        with self.locked() as state:
            if state["uid"] == uid:
                return
            self.check_room(state, fresh and overwrite)
            state["uid"] = uid
        with self.locked() as state:
            state |= {"execution": 0, "w": -1, "digest": "", "rows": []}


class FencesInHalves(Ledger):
    def fence(self, execution):
        with self.locked() as state:
            self.check_mark(state, execution)
            self.file.unlink()
            state["execution"] = execution


class StagesUnderALock(Ledger):
    def stage(self, name, batches):
        mark = self.folder / "staging"
        mark.touch(exist_ok=False)
        staged = super().stage(name, batches)
        mark.unlink()
        return staged


class WritesRowsFirst(Ledger):
    """The mark follows in a second write."""

    def publish(self, sealed, mine, execution, step=None):
        with self.locked() as state:
            self.check_mark(state, execution)
            if self.is_shown(state, sealed):
                return
            self.write({**state, "rows": state["rows"] + self.rows_of(mine)})
        with self.locked() as state:
            state |= {"w": sealed.window, "digest": sealed.digest}


class WritesTheMarkFirst(Ledger):
    def publish(self, sealed, mine, execution, step=None):
        with self.locked() as state:
            self.check_mark(state, execution)
            if self.is_shown(state, sealed):
                return
            self.write({**state, "w": sealed.window, "digest": sealed.digest})
        with self.locked() as state:
            state["rows"] += self.rows_of(mine)


class RemembersTooEarly(Ledger):
    def publish(self, sealed, mine, execution, step=None):
        if sealed.window <= self.__dict__.get("done", -1):
            if sealed.window <= self.read()["w"]:
                super().publish(sealed, mine, execution, step)
            return
        self.done = sealed.window
        super().publish(sealed, mine, execution, step)


class LooksBeforeItLocks(Ledger):
    def publish(self, sealed, mine, execution, step=None):
        state = self.read()
        self.check_mark(state, execution)
        if self.is_shown(state, sealed):
            return
        rows = self.rows_of(mine)
        with self.locked() as state:
            state["rows"] += rows
            state |= {"w": sealed.window, "digest": sealed.digest}


class FencesBackwards(Ledger):
    def fence(self, execution):
        self.check_mark(self.read(), execution)
        with self.locked() as state:
            state["execution"] = execution


class LeavesItsLock(Ledger):
    """A lock file that a dead process leaves behind keeps all others waiting."""

    @contextmanager
    def locked(self):
        mark = self.folder / "in-use"
        while True:
            try:
                mark.touch(exist_ok=False)
                break
            except FileExistsError:
                continue
        try:
            with super().locked() as state:
                yield state
        finally:
            mark.unlink()
