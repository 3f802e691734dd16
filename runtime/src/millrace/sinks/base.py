"""What a sink is, for those that ship with Millrace and for your own.

A sink lives twice: every worker stages rows with a copy of its own, and the driver publishes what
a sealed window names. Between the two lies the seal, so what is staged must be durable, and what
is published must be decided by the sealed record alone:

====================  ==========================================================================
the process dies      what recovery does
====================  ==========================================================================
while staging         nothing names the staged rows; ``discard`` drops them later
after staging         the same, unless the window was sealed: then it is published
while publishing      the next driver publishes the window again; ``publish`` goes on, or finds it
                      done and does nothing
after publishing      the same: it finds it done
====================  ==========================================================================

A sink of one's own is a class that the topology names::

    sinks:
      - name: totals
        inputs: [{from: counts}]
        custom: {class: "stores:Table", options: {file: totals.db}}

with ``stores.py`` beside the topology file. docs/code.md has a complete one for SQLite, which keeps
its marker in the database that it writes to; both change in one transaction, and that is what makes
``ExactlyOnce`` hold. ``millrace.testing.check_sink`` tries a sink against every rule here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import xxhash

from millrace import crash
from millrace.errors import SinkError
from millrace.protocol.types import Guarantee, Sealed, Staged

StepHook = Callable[[str], None]
"""Told the name of each step of a publication right after it, so that tests can stop there."""


class SinkFullError(SinkError):
    """A sink without room. Nothing is lost; staging or publishing again succeeds once there is."""

    retryable = True


class SinkUnavailableError(SinkError):
    """A sink that does not answer. Publishing again succeeds once it does."""

    retryable = True


class RowsRefusedError(SinkError):
    """Rows that a sink cannot take, whatever it is asked again: their roots alone fail.

    ``rows`` says why, by the place of each among all rows that ``stage`` was given, in order.
    """

    def __init__(self, rows: Mapping[int, str]) -> None:
        if not rows:
            raise ValueError("RowsRefusedError needs at least one row")
        texts = list(rows.values())
        more = f" (and {len(texts) - 1} more rows)" if len(texts) > 1 else ""
        super().__init__(texts[0] + more)
        self.rows = dict(rows)


class StagingArea(Protocol):
    """Where sinks without files of their own keep staged rows until they are published.

    The engine keeps them as objects on the state servers and deletes them itself.
    """

    def put(self, name: str, data: bytes) -> None:
        """Store an object; returns when it is durable."""
        ...

    def get(self, name: str, digest: str) -> bytes:
        """Read an object, from a copy with this digest where there is one.

        Raises ``MillraceError`` where it is gone.
        """
        ...


class Sink(ABC):
    """A sink that shows each sealed window once.

    ``options`` are the topology file's, ``folder`` is where that file lies and what relative paths
    start from. ``staging`` is set before ``stage`` and ``publish`` are called, where the engine
    has an area. Workers call ``stage`` only, the driver everything else, from one thread at a
    time.
    """

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee)
    """The guarantees that a topology with this sink can have."""

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.options = dict(options)
        self.folder = folder
        self.staging: StagingArea | None = None

    @abstractmethod
    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        """Make the sink ready for the topology life ``uid``; called at each start of a driver.

        A sink that is marked with this uid is taken as it is; an empty one is marked. One that
        holds something else is refused (``SinkError``), unless both ``fresh`` and ``overwrite``
        are set: then what Millrace wrote there, and nothing else, is deleted.
        """

    def check_fresh(self, overwrite: bool) -> None:  # noqa: B027
        """Raise what ``prepare`` would raise for a fresh start, and change nothing.

        Asked before ``--fresh`` deletes the topology's state.
        """

    def check(self) -> None:  # noqa: B027
        """Raise the ``SinkError`` that showing rows would raise now; change nothing.

        Asked by ``validate --connect``, of files also before a run starts anything.
        """

    @abstractmethod
    def fence(self, execution: int) -> None:
        """Refuse executions below this one from now on. Raises ``FencedError`` for a lower one."""

    def last_shown(self) -> tuple[int, str] | None:
        """The last window of which this sink shows anything, and its digest ("" if not known).

        ``None`` where it shows nothing yet, or never keeps anything. Asked at each start of a
        driver, after ``prepare`` and before ``fence``, in a restore behind ``fence`` once more, and
        must change nothing: a sink that is further than the record means that the work folder was
        put back from an older copy, and the start is refused. Without it (the default) such a copy
        is not noticed by this sink: what it has shown already may be passed over; a warning at each
        start says so.
        """
        raise NotImplementedError

    @property
    def retracts(self) -> bool:
        """Whether ``retract`` can be asked for."""
        return type(self).retract is not Sink.retract

    def retract(self, window: int) -> None:
        """Make room for other content of all windows above ``window``, durably.

        Asked where a topology is restored from a snapshot, behind ``prepare`` and ``fence`` and
        while no driver lives. What is shown of those windows is taken back, or counts as shown no
        more because it will be shown over; ``last_shown`` is at most ``window`` afterwards. Doing
        it twice, or going on where a crash ended it, is the same. A sink without it (the default)
        that shows such windows cannot be restored.
        """
        raise NotImplementedError

    @abstractmethod
    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        """Write rows durably and invisibly under a task attempt's ``name``, in a worker.

        ``None`` where there are no rows. The digest is over what was written.

        Raises ``RowsRefusedError`` for rows that can never be staged: it is called again without
        them, and their roots fail as if a processor had raised on them. Any other ``SinkError``
        stops the run, or holds it up where it is ``retryable``; whatever else is raised counts as
        a failure of the sink, too, and never as one of the rows.
        """

    @abstractmethod
    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        """Show a sealed window: ``mine`` is this sink's part of what it staged, in order.

        Idempotent; windows come in rising order, one that was shown may come again. Nothing is
        shown of rows whose digest is not the staged one, of another digest under a window that
        was shown (``SinkError``), or for an execution below the fence (``FencedError``). An error
        that is ``retryable`` is tried again until it passes, and one that is no ``MillraceError``
        a few times.
        """

    def verify(self, mine: Sequence[Staged]) -> None:  # noqa: B027
        """Check that staged rows are there and whole; ``publish`` does so itself.

        Raises ``SinkError``. Called before the seal it turns a damaged output into a new window
        attempt instead of a stop.
        """

    def discard(self, covers: Callable[[str], bool]) -> None:  # noqa: B027
        """Drop staged rows whose names ``covers`` accepts. They belong to nothing any more."""

    def close(self) -> None:  # noqa: B027
        """Called once on the driver at the end of a run that was not killed.

        Workers are ended without; what an exception says is logged and changes nothing.
        """

    # -- for sinks that keep staged rows in the staging area

    def stage_rows(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        """Keep rows as an Arrow IPC stream in the staging area."""
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return None
        data = pa.BufferOutputStream()
        with pa.ipc.new_stream(data, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return self.stage_bytes(name, data.getvalue().to_pybytes(), rows)

    def stage_bytes(self, name: str, data: bytes, rows: int) -> Staged:
        """Keep bytes in the staging area."""
        self._area().put(name, data)
        return Staged(self.name, name, digest_of(data), rows, len(data), stored=True)

    def staged_bytes(self, staged: Staged) -> bytes:
        """The staged bytes. Raises ``SinkError`` where they are not those that were staged."""
        data = self._area().get(staged.name, staged.digest)
        if digest_of(data) != staged.digest:
            raise damaged(self.name, staged, f"has {len(data)} bytes")
        return data

    def staged_rows(self, staged: Staged) -> pa.Table:
        """The staged rows. Raises ``SinkError`` where they are not those that were staged."""
        with pa.ipc.open_stream(self.staged_bytes(staged)) as reader:
            return reader.read_all()

    def _area(self) -> StagingArea:
        if self.staging is None:
            raise SinkError(
                f"sink {self.name!r}: there is no staging area; the engine must set one"
            )
        return self.staging


def digest_of(data: bytes | memoryview | pa.Buffer) -> str:
    """Digest of staged bytes (XXH3-128): finds damage, not forgery."""
    return xxhash.xxh3_128_hexdigest(data)


@contextmanager
def explained(why: str) -> Iterator[None]:
    """What goes wrong with a sink also says why it is needed, and what else can be done."""
    try:
        yield
    except SinkError as error:
        kind = SinkUnavailableError if error.retryable else SinkError
        raise kind(f"{error}. {why}") from error


def damaged(sink: str, staged: Staged, what: str) -> SinkError:
    """The error for staged rows that are not those that a worker staged."""
    return SinkError(
        f"sink {sink!r}: staged output {staged.name} {what}, but {staged.size_bytes} bytes with "
        f"the digest {staged.digest} were staged; nothing of the window is shown. Bring the staged "
        "output back from a copy, or start over with --fresh"
    )


def passed(step: StepHook | None, name: str) -> None:
    """A step of a publication is done: the place of the crash point ``publish.<name>``."""
    crash.reached(f"publish.{name.partition(':')[0]}")
    if step is not None:
        step(name)
