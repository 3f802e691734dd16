"""Small faults put into the protocol's code one at a time, as changes of its syntax tree.

A fault sits in one function (or in one constant of a module) and is known by the names of the
module and the function and by the text before and after, so that it is found again when lines move.
What only people read is left alone: texts, annotations, docstrings, assertions, ``__repr__``; so
are the defaults of arguments and fields.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType

import millrace.protocol

PROTOCOL = Path(millrace.protocol.__file__).parent

FILES = {p.stem: p for p in sorted(PROTOCOL.rglob("*.py")) if p.stem != "__init__"}
"""Modules of the protocol by the last part of their name, which no two of them share."""

MODULES = tuple(sorted(FILES))

TEXTS = frozenset({"text", "reason", "warning", "error", "message"})
"""Names of variables and arguments that hold what people read."""

SILENT = frozenset({"__repr__", "_name", "describe"})
"""Functions that only make text."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. ``function`` is the qualified name, or the constant's; ``number`` counts equal
    faults of one function from 1."""

    module: str
    function: str
    before: str
    after: str
    number: int = 1

    @property
    def name(self) -> str:
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.module} `{self.function}`: `{self.before}` → `{self.after}`{again}"


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, method or constant: what a fault is compiled with."""

    name: str
    node: ast.AST
    shell: ast.Module


@dataclass(frozen=True, slots=True)
class Change:
    """``node`` becomes ``after``; the texts say what differs."""

    node: ast.AST
    after: ast.AST
    before_text: str = ""
    after_text: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A mutant and how to make it."""

    mutant: Mutant
    scope: Scope
    change: Change

    def code(self) -> CodeType:
        """Code of a module that holds nothing but the changed function, in its class."""
        node, after = self.change.node, self.change.after
        kept = node.__class__, dict(node.__dict__)
        try:
            node.__class__ = after.__class__  # type: ignore[assignment]
            node.__dict__.clear()
            node.__dict__.update(after.__dict__)
            return compile(ast.fix_missing_locations(self.scope.shell), "<mutant>", "exec")
        finally:
            node.__class__ = kept[0]  # type: ignore[assignment]
            node.__dict__.clear()
            node.__dict__.update(kept[1])


def faults(module: str) -> Iterator[Fault]:
    """Every fault of one module of the protocol, in the order of its text."""
    tree = ast.parse(FILES[module].read_text())
    seen: Counter[Mutant] = Counter()
    for scope in _scopes(tree):
        for change in _changes(scope.node):
            before = change.before_text or _text(change.node)
            after = change.after_text or _text(change.after)
            mutant = Mutant(module, scope.name, before, after)
            seen[mutant] += 1
            yield Fault(replace(mutant, number=seen[mutant]), scope, change)


def _scopes(tree: ast.Module) -> Iterator[Scope]:
    """Functions, methods and constants with what is in them to be changed."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in SILENT:
            yield Scope(node.name, node, _shell(node))
        elif isinstance(node, ast.ClassDef) and not _is_protocol(node):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name not in SILENT:
                    shell = ast.ClassDef(node.name, [], [], [inner], [])
                    yield Scope(f"{node.name}.{inner.name}", inner, _shell(shell))
        elif isinstance(node, ast.Assign) and _is_number(node.value):
            yield Scope(_text(node.targets[0]), node.value, _shell(node))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _shell(node: ast.stmt) -> ast.Module:
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    return ast.Module([future, node], [])


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(_text(base).startswith("Protocol") for base in node.bases)


def _changes(scope: ast.AST) -> Iterator[Change]:
    decided = _decided(scope)
    setup = isinstance(scope, ast.FunctionDef) and scope.name == "__init__"
    for node in _visible(scope):
        if id(node) in decided and isinstance(node, ast.Compare | ast.UnaryOp | ast.BoolOp):
            if isinstance(node, ast.Compare):
                yield from _bounds(node)
            elif isinstance(node, ast.BoolOp):
                yield from _bool(node)
            continue
        if setup and isinstance(node, ast.Assign):
            continue
        for kind, make in _OPERATORS:
            if isinstance(node, kind):
                yield from make(node)


def _decided(scope: ast.AST) -> set[int]:
    """Conditions that are made true and false as a whole, or left out of one that is."""
    found: set[int] = set()
    for node in ast.walk(scope):
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        for test in tests:
            found.add(id(test))
            if isinstance(test, ast.BoolOp):
                found |= {id(value) for value in test.values}
    return found


def _visible(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it that decides something."""
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.arguments):
        return
    if isinstance(node, ast.Assign) and _text(node.targets[0]) in TEXTS:
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg in TEXTS:
                continue
            if isinstance(child, ast.AST):
                yield from _visible(child)


# --- what is changed

LEFT_OUT = "(left out)"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of one node with some fields of its own."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def _less(items: list[ast.AST], n: int) -> list[ast.AST]:
    return [item for m, item in enumerate(items) if m != n]


def _compare(node: ast.Compare) -> Iterator[Change]:
    for n, operator in enumerate(node.ops):
        ops = [*node.ops[:n], _COMPARED[type(operator)](), *node.ops[n + 1 :]]
        yield Change(node, _with(node, ops=ops))


def _bounds(node: ast.Compare) -> Iterator[Change]:
    if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        yield from _compare(node)


def _bool(node: ast.BoolOp) -> Iterator[Change]:
    for n, value in enumerate(node.values):
        left = _less(list(node.values), n)
        after = left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        word = "and" if isinstance(node.op, ast.And) else "or"
        yield Change(node, after, f"{word} {_text(value)}", LEFT_OUT)


def _not(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield Change(node, node.operand)


def _binary(node: ast.BinOp) -> Iterator[Change]:
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(side, ast.List | ast.Tuple):
            yield Change(node, side, _text(other), LEFT_OUT)
            return
    if type(node.op) in _COMPUTED:
        yield Change(node, ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield Change(node, ast.Constant(not node.value))
    elif isinstance(node.value, int | float):
        yield Change(node, ast.Constant(node.value + 1))


def _branch(node: ast.If | ast.While | ast.IfExp) -> Iterator[Change]:
    word = "while" if isinstance(node, ast.While) else "if"
    test = f"{word} {_text(node.test)}"
    yield Change(node.test, ast.Constant(False), test, "never")
    if word == "if":
        yield Change(node.test, ast.Constant(True), test, "always")


def _filter(node: ast.comprehension) -> Iterator[Change]:
    for test in node.ifs:
        yield Change(test, ast.Constant(True), f"if {_text(test)}", "always")


def _statement(node: ast.Expr) -> Iterator[Change]:
    if not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
        yield Change(node, ast.Pass(), "", LEFT_OUT)


def _assign(node: ast.Assign) -> Iterator[Change]:
    if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield Change(node, ast.Pass(), "", LEFT_OUT)


def _skip(node: ast.AST) -> Iterator[Change]:
    yield Change(node, ast.Pass(), "", LEFT_OUT)


def _return(node: ast.Return) -> Iterator[Change]:
    if isinstance(node.value, ast.Call | ast.BinOp):
        empty = ast.List([], ast.Load())
        yield Change(node, ast.Return(empty))


def _elements(node: ast.List | ast.Set | ast.Tuple) -> Iterator[Change]:
    """In a tuple only where the length is free: where something is unpacked in it."""
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return
    if isinstance(node, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in node.elts):
        return
    for n, element in enumerate(node.elts):
        left = _less(list(node.elts), n)
        after = _with(node, elts=left) if left or not isinstance(node, ast.Set) else None
        if after is not None:
            yield Change(node, after, f"{_text(element)},", LEFT_OUT)


def _dict(node: ast.Dict) -> Iterator[Change]:
    for n, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        after = _with(node, keys=_less(list(node.keys), n), values=_less(list(node.values), n))
        entry = f"{_text(key)}: {_text(value)}," if key is not None else f"**{_text(value)},"
        yield Change(node, after, entry, LEFT_OUT)


def _call(node: ast.Call) -> Iterator[Change]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _CALLED:
        yield Change(node.func, ast.Name(_CALLED[name], ast.Load()))
    if name == "replace":
        for n, keyword in enumerate(node.keywords):
            if keyword.arg not in TEXTS:
                after = _with(node, keywords=_less(list(node.keywords), n))
                yield Change(node, after, f"{keyword.arg}={_text(keyword.value)},", LEFT_OUT)
    if name == "sorted":
        yield Change(node, ast.Call(ast.Name("list", ast.Load()), node.args[:1], []))


_OPERATORS: tuple[tuple[type | tuple[type, ...], Callable[..., Iterator[Change]]], ...] = (
    (ast.Compare, _compare),
    (ast.BoolOp, _bool),
    (ast.UnaryOp, _not),
    (ast.BinOp, _binary),
    (ast.Constant, _constant),
    ((ast.If, ast.While, ast.IfExp), _branch),
    (ast.comprehension, _filter),
    (ast.Expr, _statement),
    (ast.Assign, _assign),
    ((ast.Delete, ast.Raise, ast.Continue, ast.Break, ast.AugAssign), _skip),
    (ast.Return, _return),
    ((ast.List, ast.Set, ast.Tuple), _elements),
    (ast.Dict, _dict),
    (ast.Call, _call),
)


def _text(node: ast.AST | None) -> str:
    """Source text of a node, on one line."""
    if node is None:
        return ""
    return " ".join(ast.unparse(node).split()).replace("`", "'")
