"""How user code is written: functions with a decorator, or a class for full control.

A decorator only marks the function; it stays callable, so user code is tested without Millrace::

    from millrace import row

    @row(output="word string")
    def split(line):
        for word in line["value"].split():
            yield {"word": word}

Nothing here imports Arrow: a topology is validated where only the base package is installed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from millrace.ddl import Column, parse_schema
from millrace.errors import TopologyError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__millrace_function__"
_MIGRATIONS = "__millrace_migrations__"
_FORM = "__millrace_form__"


class FunctionKind(str, Enum):
    """How the engine calls a piece of user code."""

    ROW = "row"
    VECTORIZED = "vectorized"
    WHERE = "where"
    STATEFUL = "stateful"
    GROUPED = "grouped"
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class StateMigration:
    """How state that was kept with other columns becomes that of today: a dict for a dict."""

    state: tuple[Column, ...]
    function: Callable[[dict[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A piece of user code and what it declares.

    ``output`` is ``None`` where rows leave as they came in (``where``); ``state`` is ``None``
    where no state is kept. ``migrations`` are from columns that the state had before.
    """

    kind: FunctionKind
    target: Callable[..., Any]
    output: tuple[Column, ...] | None
    state: tuple[Column, ...] | None
    migrations: tuple[StateMigration, ...] = ()

    @property
    def keyed(self) -> bool:
        """Whether the processor needs a key on each of its inputs."""
        return self.state is not None


def row(*bare: object, output: str = "") -> Callable[[F], F]:
    """Marks ``f(row: dict) -> None | dict | Iterable[dict]``, called once for each tuple."""
    return _marker(FunctionKind.ROW, bare, output, None)


def vectorized(*bare: object, output: str = "") -> Callable[[F], F]:
    """Marks ``f(batch: pa.RecordBatch) -> (pa.RecordBatch | dict of arrays, parents)``.

    ``parents`` is an integer array as long as the output; ``parents[i]`` is the index in
    ``batch`` of the row that output row ``i`` comes from. It is called again with parts of the
    batch when it raises, so it must not depend on what it was called with before.
    """
    return _marker(FunctionKind.VECTORIZED, bare, output, None)


def where(function: F) -> F:
    """Marks ``f(row: dict) -> bool``: tuples for which it is false end here."""
    return _marker(FunctionKind.WHERE, (), None, None)(function)


def stateful(*bare: object, output: str = "", state: str = "") -> Callable[[F], F]:
    """Marks ``f(row: dict, state: dict) -> None | dict | Iterable[dict]``.

    ``state`` holds the declared columns for the tuple's key, all ``None`` for a new key; what
    the function assigns is kept, ``state.clear()`` deletes the key. Tuples of one key come in
    root order.
    """
    return _marker(FunctionKind.STATEFUL, bare, output, state)


def grouped(*bare: object, output: str = "", state: str = "") -> Callable[[F], F]:
    """Marks ``f(batch: GroupedBatch, state: pa.RecordBatch)``, called once for the rows of many
    keys.

    ``state`` has the declared columns and one row for each key of the batch, null in all of them
    for a new key. The function gives back ``(state, columns, parents)``: the state to keep, one row
    for each key in the same order (RecordBatch or dict of arrays; null in all columns: the key has
    none any more); the columns put out; and an integer array as long as these, ``parents[i]`` being
    the index in ``batch.rows`` of the row that output row ``i`` comes from. The state alone,
    where a call puts out nothing; ``output`` is declared all the same.

    A key with very many rows comes in several calls, in root order, each with the state that the
    one before gave back; so does one whose rows the function raised on, down to those that it
    cannot bear. So it must not depend on what it was called with before.
    """
    return _marker(FunctionKind.GROUPED, bare, output, state)


def migrates(target: Callable[..., Any], *, state: str) -> Callable[[F], F]:
    """Marks ``f(state: dict) -> dict | None``: what becomes of a key's state that ``target``, a
    stateful or grouped function or a class, kept when it declared ``state``.

    What it gives back has the columns that ``target`` declares now; those that it leaves out are
    ``None``, and without any the key has no state. It is called whenever such state is read, again
    and again until that was written anew, so it must always give the same for the same.
    """

    def mark(function: F) -> F:
        # Of a class its own, not what it has from the class that it is derived from.
        known = vars(target).get(_MIGRATIONS, ())
        setattr(target, _MIGRATIONS, (*known, (state, function)))
        return function

    return mark


def restores(target: Callable[..., Any]) -> Callable[[F], F]:
    """Marks ``f(columns: dict) -> object``: what ``target`` has as its state instead of a dict, a
    stateful function as its argument and a class in ``out.state``. A new key has ``None`` in all
    columns. The object is the target's own for one call, and ``makes`` says what is kept of it; a
    state has both hooks or none.
    """
    return _form(target, "restores")


def makes(target: Callable[..., Any]) -> Callable[[F], F]:
    """Marks ``f(object) -> dict | None``: the columns that are kept of what ``target`` had as its
    state; those that it leaves out are ``None``, and without any, or for ``None``, the key has no
    state. It is called behind each call that went well.
    """
    return _form(target, "makes")


def _form(target: Callable[..., Any], hook: str) -> Callable[[F], F]:
    def mark(function: F) -> F:
        # Of a class its own, not what it has from the class that it is derived from.
        known = vars(target).get(_FORM, {})
        if hook in known:
            raise TopologyError(
                f"{_name(function)} is the second function that {hook} the state of "
                f"{_name(target)}; keep one of them"
            )
        setattr(target, _FORM, {**known, hook: function})
        return function

    return mark


@dataclass(frozen=True)
class GroupedBatch:
    """The rows of many keys, those of one key beside each other and in root order.

    ``rows`` has the columns of the input; ``keys`` the key columns, one row for each of the k
    distinct keys, in the order in which they first come. The rows of key ``i`` are
    ``rows[offsets[i]:offsets[i + 1]]``; there is at least one. ``offsets`` is int64[k + 1]. All is
    read-only.
    """

    rows: pa.RecordBatch
    keys: pa.RecordBatch
    offsets: np.ndarray[Any, np.dtype[np.int64]]

    @cached_property
    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many rows each key has: int64[k]."""
        counts: np.ndarray[Any, np.dtype[np.int64]] = self.offsets[1:] - self.offsets[:-1]
        return counts

    @cached_property
    def last(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The index of each key's last row: int64[k]."""
        last: np.ndarray[Any, np.dtype[np.int64]] = self.offsets[1:] - 1
        return last

    @cached_property
    def key_of_row(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each row's key: int64, one for each row."""
        numbers = (self.counts > 0).cumsum() - 1  # 0, 1, 2, ..., without an import of numpy
        of_row: np.ndarray[Any, np.dtype[np.int64]] = numbers.repeat(self.counts)
        return of_row


class Row(dict[str, Any]):
    """A tuple as ``Processor.process`` sees it: a dict that can be named as an anchor.

    A copy of it (``dict(row)``) is no anchor any more.
    """

    __slots__ = ("at",)

    at: int
    """Where the engine keeps the tuple's tracking; not for user code."""


@dataclass(frozen=True, slots=True)
class Context:
    """What ``Processor.open`` is told about the task it runs in."""

    processor: str
    partition: int
    parallelism: int
    code_path: str


class Emitter(Protocol):
    """What ``process`` and ``finish`` are given to send tuples on."""

    @property
    def state(self) -> Any:
        """Typed state of the current tuple's key, where the class declares ``state``: a dict of the
        columns, or what ``restores`` makes of them."""
        ...

    def emit(self, values: Mapping[str, Any], anchors: Sequence[Row] | None = None) -> None:
        """Sends one tuple on.

        It is anchored to the current tuple, or to ``anchors``: rows given to ``process`` in this
        task. A tuple with several anchors belongs to the tree of each of their roots. With
        ``anchors=[]``, or in ``finish`` without anchors, it is untracked on purpose: if it
        fails later on, it is dropped and nothing is replayed.
        """
        ...

    def fail(self, reason: str) -> None:
        """Fails the root of the current tuple: it is set aside and replayed later."""
        ...


class Processor:
    """Base of processors in class form; one instance lives for one task.

    ``output`` declares the columns that ``emit`` takes. With ``state`` declared, the inputs must
    be keyed and ``out.state`` is the state of the current tuple's key.
    """

    output: ClassVar[str]
    state: ClassVar[str | None] = None

    def open(self, context: Context) -> None:
        """Called once before the first tuple."""

    def process(self, row: Row, out: Emitter) -> None:
        """Called for each tuple, in root order where the inputs are keyed."""
        raise NotImplementedError

    def finish(self, out: Emitter) -> None:
        """Called after the last tuple of the task's share of the window."""

    def close(self) -> None:
        """Called once at the end, after a failure too."""


def spec_of(target: object) -> FunctionSpec:
    """What ``target``, named by a topology as ``module:name``, declares.

    Raises ``TopologyError`` (with the remedy) for an object that has no decorator and is no
    ``Processor``, for a wrong signature, for ``async`` and for ``yield`` where nobody would take
    what comes, and for a schema that cannot be parsed.
    """
    if inspect.isclass(target):
        return _class_spec(target)
    mark = getattr(target, _MARK, None)
    if mark is None or not callable(target):
        raise TopologyError(
            f"{_name(target)} is not user code for Millrace; decorate the function with @row, "
            "@vectorized, @where, @stateful or @grouped, or derive the class from "
            "millrace.Processor"
        )
    kind, output, state = mark
    _check_signature(target, kind)
    _check_runs_at_once(target, kind)
    kept = _columns(target, "state", state)
    return FunctionSpec(
        kind=kind,
        target=_with_form(target, kind, kept),
        output=_columns(target, "output", output),
        state=kept,
        migrations=_migrations(target, kept),
    )


_PARAMETERS = {
    FunctionKind.ROW: ("row",),
    FunctionKind.VECTORIZED: ("batch",),
    FunctionKind.WHERE: ("row",),
    FunctionKind.STATEFUL: ("row", "state"),
    FunctionKind.GROUPED: ("batch", "state"),
    FunctionKind.CLASS: ("row", "out"),
}


def _marker(
    kind: FunctionKind, bare: tuple[object, ...], output: str | None, state: str | None
) -> Callable[[F], F]:
    if bare:  # the decorator was written without brackets, or with the columns as its argument
        wanted = 'output="name type"' + (', state="name type"' if state is not None else "")
        raise TopologyError(f"@{kind.value} needs the columns it puts out: @{kind.value}({wanted})")

    def mark(function: F) -> F:
        setattr(function, _MARK, (kind, output, state))
        return function

    return mark


def _class_spec(target: type) -> FunctionSpec:
    if not issubclass(target, Processor):
        raise TopologyError(f"class {_name(target)} must derive from millrace.Processor")
    output = getattr(target, "output", None)
    if not isinstance(output, str):
        raise TopologyError(
            f'class {_name(target)} needs the class attribute output, e.g. output = "word string"'
        )
    if target.process is Processor.process:
        raise TopologyError(f"class {_name(target)} needs the method process(self, row, out)")
    _check_signature(target.process, FunctionKind.CLASS, skip=1)
    for name in ("open", "process", "finish", "close"):
        _check_runs_at_once(getattr(target, name), FunctionKind.CLASS)
    _check_constructor(target)
    kept = _columns(target, "state", target.state)
    return FunctionSpec(
        kind=FunctionKind.CLASS,
        target=_with_form(target, FunctionKind.CLASS, kept),
        output=_columns(target, "output", output),
        state=kept,
        migrations=_migrations(target, kept),
    )


def _migrations(target: object, kept: tuple[Column, ...] | None) -> tuple[StateMigration, ...]:
    """What ``migrates`` has marked for it. Raises ``TopologyError`` for what can never be called,
    or by two."""
    found: list[StateMigration] = []
    for text, function in getattr(target, _MIGRATIONS, ()):
        what = f"{_name(function)}, which migrates the state of {_name(target)},"
        old = _columns(function, "state", text)
        assert old is not None
        if kept is None:
            raise TopologyError(f"{what} is of no use: there is no state; remove it")
        if old == kept:
            raise TopologyError(
                f"{what} is from the columns that are declared today ({text}); name those that "
                "the state had before"
            )
        if any(one.state == old for one in found):
            raise TopologyError(f"{what} is the second from ({text}); keep one of them")
        _check_one_argument(function, what)
        _check_runs_at_once(function, None)
        found.append(StateMigration(old, function))
    return tuple(found)


def _with_form(
    target: Callable[..., Any], kind: FunctionKind, kept: tuple[Column, ...] | None
) -> Callable[..., Any]:
    """The function or class as the engine calls it, with a dict, whatever form its state has.

    Raises ``TopologyError`` for hooks that are of no use.
    """
    hooks = getattr(target, _FORM, {})
    if not hooks:
        return target
    _check_may_have_form(target, kind, kept, hooks)
    for hook, other in (("restores", "makes"), ("makes", "restores")):
        if hook not in hooks:
            raise TopologyError(
                f"{_name(hooks[other])} {other} the state of {_name(target)}, and nothing {hook} "
                f"it; write the other function and mark it with @{hook}"
            )
        _check_one_argument(hooks[hook], f"{_name(hooks[hook])}, which {hook} a state,")
        _check_runs_at_once(hooks[hook], None)
    restore, make = hooks["restores"], hooks["makes"]
    if kind is FunctionKind.CLASS:
        return lambda: _Formed(target(), restore, make)

    @functools.wraps(target)
    def call(row: dict[str, Any], columns: dict[str, Any]) -> Any:
        state = restore(dict(columns))
        found = target(row, state)
        if isinstance(found, Iterable) and not isinstance(found, Mapping | str | bytes):
            # What is made on the way may change the state.
            found = list(found)
        _keep(make, state, columns)
        return found

    return call


def _keep(make: Callable[[Any], Any], state: object, columns: dict[str, Any]) -> None:
    """Have in ``columns`` what is kept of a state."""
    made = make(state)
    if made is not None and not isinstance(made, Mapping):
        raise TypeError(f"{_name(make)} gave a {type(made).__name__}, not a dict")
    columns.clear()
    columns.update(made or {})


class _Formed(Processor):
    """An instance of a class whose ``out.state`` is what ``restore`` makes of the columns."""

    def __init__(
        self,
        instance: Processor,
        restore: Callable[[dict[str, Any]], object],
        make: Callable[[Any], Any],
    ) -> None:
        self._instance, self._restore, self._make = instance, restore, make

    def open(self, context: Context) -> None:
        self._instance.open(context)

    def process(self, row: Row, out: Emitter) -> Any:
        columns = out.state
        state = self._restore(dict(columns))
        # What it gives back should be nothing; whoever calls this looks.
        found = self._instance.process(row, _FormedOut(state, out.emit, out.fail))  # type: ignore[func-returns-value]
        _keep(self._make, state, columns)
        return found

    def finish(self, out: Emitter) -> Any:
        return self._instance.finish(out)

    def close(self) -> None:
        self._instance.close()


@dataclass(frozen=True, slots=True)
class _FormedOut:
    """An ``Emitter`` for one call."""

    state: object
    emit: Callable[..., None]
    fail: Callable[[str], None]


def _check_may_have_form(
    target: object,
    kind: FunctionKind,
    kept: tuple[Column, ...] | None,
    hooks: Mapping[str, Callable[..., Any]],
) -> None:
    why = ""
    if kind is FunctionKind.GROUPED:
        why = (
            "which has the state of many keys as arrays: there is no dict to make an object of; "
            "remove it, and turn the arrays into what you need in the function itself"
        )
    elif kept is None:
        why = "which keeps no state; remove it"
    if why:
        hook, function = next(iter(hooks.items()))
        raise TopologyError(f"{_name(function)} {hook} a state for {_name(target)}, {why}")


def _check_one_argument(function: Callable[..., Any], what: str) -> None:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        raise TopologyError(f"{what} has the wrong signature; it is called with (state)") from None
    except ValueError:
        return  # builtins that do not tell are believed


_LAZY_REMEDIES = {
    FunctionKind.CLASS: "call out.emit for each row instead",
    FunctionKind.WHERE: "return True or False instead",
    FunctionKind.VECTORIZED: "return (columns, parents) instead",
    FunctionKind.GROUPED: "return (state, columns, parents) instead",
    None: "return a value instead",
}
"""What to do instead of a ``yield``, in what does not take one."""


def _check_runs_at_once(target: object, kind: FunctionKind | None) -> None:
    """Raises ``TopologyError`` for code that does nothing when it is called: nobody would await a
    coroutine, and a generator runs only where its rows are taken. ``kind`` is that of the
    processor, ``None`` for a hook of its state.
    """
    called: object = target
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        called = getattr(target, "__call__", target)  # noqa: B004
    for one in (target, called):
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise TopologyError(
                f"{_name(target)} is async, and nothing awaits it; write it with def instead of "
                "async def"
            )
        if kind in _LAZY_REMEDIES and inspect.isgeneratorfunction(one):
            raise TopologyError(
                f"{_name(target)} yields, and nothing takes what it yields; {_LAZY_REMEDIES[kind]}"
            )


def _check_constructor(target: type) -> None:
    try:
        inspect.signature(target).bind()
    except TypeError:
        raise TopologyError(
            f"class {_name(target)} is built without arguments; give every parameter of "
            "__init__ a default and do the preparation in open(self, context)"
        ) from None
    except ValueError:
        return


def _check_signature(target: object, kind: FunctionKind, skip: int = 0) -> None:
    wanted = _PARAMETERS[kind]
    try:
        signature = inspect.signature(target)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return  # builtins that do not tell are believed
    try:
        signature.bind(*range(len(wanted) + skip))
    except TypeError:
        raise TopologyError(
            f"{_name(target)}{signature} has the wrong signature for @{kind.value}; "
            f"it is called with ({', '.join(wanted)})"
        ) from None


def _columns(target: object, what: str, text: str | None) -> tuple[Column, ...] | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TopologyError(
            f'{what} of {_name(target)} is {text!r}; it must be text such as "word string"'
        )
    try:
        return tuple(parse_schema(text))
    except TopologyError as error:
        raise TopologyError(f"{what} of {_name(target)}: {error}") from None


def _name(target: object) -> str:
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or repr(target)
    return f"{module}.{name}" if module else name
