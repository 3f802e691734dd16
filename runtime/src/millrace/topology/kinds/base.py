"""What a kind of source, processor or sink declares about itself.

A kind is a field of a source, processor or sink in the topology file (``files``, ``redis``,
``aggregate``), and everything that Millrace has to know before it runs: what may stand below the
field, which columns come out, whether it ends, what is wrong with its settings, what it can
promise, what an edit of each field means, what it is called in texts, and the class that runs it.

A package adds a kind with an instance of ``SourceKind``, ``ProcessorKind`` or ``SinkKind`` and an
entry point that names it, the kind's name on its left, in the group ``millrace.sources``,
``millrace.processors`` or ``millrace.sinks``::

    [project.entry-points."millrace.sources"]
    table = "tables.kind:TABLE"

    class TableSettings(Part):
        \"""Rows of a table.\"""

        table: Text = Field(description="Name of the table.")

    class Table(SourceKind[TableSettings]):
        name = "table"
        meaning = "Rows of a table."
        settings = TableSettings
        runs = "tables.source:TableSource"
        edits = (FieldEdit("table", Effect.REFUSED, f"it is another table; {OTHER_SOURCE}"),)

        def summary(self, settings: TableSettings) -> str:
            return f"table {settings.table}"

    TABLE = Table()

The module with the kind is imported wherever a topology is looked at, in places without Arrow,
Spark and servers too: it imports ``millrace.topology`` and what needs none of them. The class that
``runs`` names may import anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from millrace.functions import FunctionSpec
from millrace.topology.parts import Guarantee, Input
from millrace.topology.problems import FieldPath, Problem

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component

Columns = tuple[tuple[str, str | None], ...]
"""Names and types of ``millrace.ddl``; a type that only Spark can tell is ``None``."""

FRESH = "or start over with --fresh"
UNDO = f"change it back, {FRESH}"
OTHER_SOURCE = f"change it back, add a source of another name, {FRESH}"
OTHER_PROCESSOR = f"change it back, add a processor of another name, {FRESH}"
OTHER_SINK = f"change it back, or add a sink of another name beside it, {FRESH}"

COMPILED = "the graph is compiled at the start"
OPENED = "sources are opened at the start"


class Effect(str, Enum):
    """What happens when an edit is applied, from nothing to impossible."""

    NONE = "none"
    RESTART = "restart"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FieldEdit:
    """What a change of a field of the settings means, and why. ``field`` is written as in files,
    with dots; what stands below it is meant too, and an empty one means every field.

    ``but_password`` is for the address of a Redis-protocol server: where the password in it alone
    is another one, a change of the field of this name is meant."""

    field: str
    effect: Effect
    reason: str
    but_password: str = ""


@dataclass(frozen=True, slots=True)
class UserCode:
    """Code of the user's own: the field below the kind that names it, ``module:name``, and the
    class that it must be derived from (empty for functions)."""

    field: FieldPath
    target: str
    base: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A folder that a sink writes, and names below it as its files are called."""

    path: str
    names: tuple[str, ...]


S = TypeVar("S")


class Kind(ABC, Generic[S]):
    """What all kinds declare. One instance stands for the kind; it holds nothing else."""

    name: ClassVar[str]
    """The field in the topology file."""
    meaning: ClassVar[str]
    """The field's description in the schema."""
    settings: ClassVar[Any]
    """What stands below the field: a model derived from ``millrace.topology.parts.Part``."""
    edits: ClassVar[tuple[FieldEdit, ...]] = ()
    """What changes of fields mean; the first that fits counts."""
    fillers: ClassVar[Mapping[str, Any]] = {}
    """Values that fit required fields; a check uses them to look past one that is missing."""

    @abstractmethod
    def summary(self, settings: S) -> str:
        """What it is, in a few words that begin with its name: ``files texts (text)``."""

    def check(self, settings: S, component: Component, facts: Facts) -> Iterator[Problem]:
        """What is wrong with settings whose single fields are valid."""
        return iter(())

    def user_code(self, settings: S) -> UserCode | None:
        """Code from the topology's own ``code.path``; what a package brings is none."""
        return None

    def on_disk(self, settings: S) -> Mapping[str, str]:
        """Fields with paths of files that it reads or writes itself, and these paths."""
        return {}


class Connector(Kind[S]):
    """What kinds of sources and sinks declare besides."""

    runs: ClassVar[str] = ""
    """The class as ``module:Class``, derived from ``millrace.sources.base.Source`` or
    ``millrace.sinks.base.Sink``. Its options are the settings as they stand in the file, with
    defaults."""
    local: ClassVar[bool] = False
    """Whether its class's ``check`` looks at this machine alone, so that every start asks it."""

    def target(self, settings: S) -> str:
        """The class that runs these settings."""
        return self.runs

    def options(self, settings: S) -> str:
        """The options of the class as JSON."""
        text: str = settings.model_dump_json(by_alias=True)  # type: ignore[attr-defined]
        return text


class SourceKind(Connector[S]):
    """A kind of source."""

    edits: ClassVar[tuple[FieldEdit, ...]] = (FieldEdit("", Effect.RESTART, OPENED),)

    def columns(self, settings: S) -> Columns | None:
        """The columns of its records; None where only the opened source can tell."""
        return None

    def endless(self, settings: S) -> bool:
        """Whether it is known never to be drained."""
        return False

    def reads(self, settings: S, written: Written, folder: Path | None) -> bool:
        """Whether it would read what a sink writes there; ``folder`` is the topology file's."""
        return False


class SinkKind(Connector[S]):
    """A kind of sink."""

    edits: ClassVar[tuple[FieldEdit, ...]] = (
        FieldEdit(
            "",
            Effect.REFUSED,
            f"a sealed window may still wait to be shown there; {OTHER_SINK}",
        ),
    )
    guarantees: ClassVar[tuple[Guarantee, ...]] = tuple(Guarantee)
    """Those that it can hold, the weakest first."""
    weakness: ClassVar[str] = ""
    """Why it cannot hold the others."""
    lasting: ClassVar[bool] = True
    """Whether what it has written stays and bears the sink's name."""

    @abstractmethod
    def place(self, settings: S, folder: Path) -> str:
        """Where its rows are to be found, for the report of a run; without passwords."""

    def writes(self, settings: S) -> Written | None:
        """The folder that it writes, if it does, relative to that of the topology file."""
        return None


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a processor gets: its inputs, the columns of the first, and its user code."""

    inputs: tuple[Input, ...]
    columns: Columns | None
    function: FunctionSpec | None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Expressions of Spark SQL, and a condition that rows must meet."""

    select: tuple[str, ...]
    where: str | None = None


class ProcessorKind(Kind[S]):
    """A kind of processor.

    ``compiler`` and ``step`` name functions (``module:function``) that the engine calls: the one
    makes its compiled component (``millrace.engine.program.kinds`` says how), the other the step
    that runs this in a task (``millrace.engine.task.steps.making``).
    """

    edits: ClassVar[tuple[FieldEdit, ...]] = (FieldEdit("", Effect.RESTART, COMPILED),)
    compiler: ClassVar[str]
    step: ClassVar[str]
    in_jvm: ClassVar[bool] = False
    """Whether it may run in the JVM while its source is read; ``runs_in_jvm`` says whether it
    does."""
    beside: ClassVar[bool] = False
    """Whether its step calls no code of the user's and may run on several threads of a worker, of
    one window and of another."""
    combines: ClassVar[bool] = False
    """Whether its inputs are combined by key before the exchange; their columns may differ. The
    compiled component says what is combined (``rows``, ``columns``), and its step is derived from
    ``millrace.engine.task.steps.base.CombiningStep``."""
    expressions: ClassVar[str] = ""
    """The field with SQL expressions, where a CAST gives a column another type."""
    shows: ClassVar[str] = ""
    """What makes rows to show of rows of kept state, as ``module:function`` of (settings, rows);
    empty where they are shown as they are kept."""
    looks: ClassVar[str] = ""
    """What looks at the files that it is compiled with, as ``module:function``
    (``millrace.engine.program.tables.look``); empty where it needs none."""
    totals: ClassVar[tuple[FieldEdit, ...]] = ()
    """Fields that say what its kept state means, and why they cannot be changed."""

    @abstractmethod
    def columns(self, settings: S, incoming: Incoming) -> Columns | None:
        """The columns that it puts out; None where they cannot be known."""

    def keeps_state(self, settings: S, function: FunctionSpec | None) -> str:
        """What keeps state for each key and so needs a key, in words; empty if nothing does."""
        return ""

    def runs_in_jvm(self, settings: S) -> bool:
        """Whether it runs in the JVM with these settings."""
        return self.in_jvm

    def evaluated(self, settings: S) -> Evaluated:
        """What the JVM evaluates, of a kind that runs there."""
        raise NotImplementedError(f"{self.name} does not run in the JVM")

    def at_end(self, settings: S) -> str:
        """The field that says that it emits only when all sources are drained; empty if none."""
        return ""
