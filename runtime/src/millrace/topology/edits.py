"""What an edit of a topology means for one that has run already.

A change is applied by a *restart* of the driver from the last sealed window, or it is *refused*,
because the state or the read positions would no longer fit. Each edit says why, and a refused one
what to do instead.

Components are compared by name: their order in the file means nothing. What is not in the file,
the text of user code above all, is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.addresses import differ_in_password
from millrace.topology.kinds.base import COMPILED, FRESH, UNDO, Effect, FieldEdit, Kind
from millrace.topology.kinds.registry import PROCESSORS, SINKS, SOURCES, Registry
from millrace.topology.model import Processor, StreamTopology
from millrace.topology.problems import NOTHING, FieldPath, format_path, shorten

_OTHER_NAME = "change it back, or run the file in a work folder of its own as a new topology"


@dataclass(frozen=True, slots=True)
class Edit:
    """One changed value; ``NOTHING`` stands for what is not there on one side.

    Components stand in paths by name: ``spec.sources[lines].files.path``.
    """

    path: str
    old: Any
    new: Any
    effect: Effect
    reason: str

    def sides(self) -> tuple[str, str]:
        """Both values as they may be shown."""
        old, new = (
            "nothing" if side is NOTHING else shorten(side, self.path)
            for side in (self.old, self.new)
        )
        return old, new

    def __str__(self) -> str:
        old, new = self.sides()
        return f"{self.path}: {old} → {new}: {self.effect.value}, {self.reason}"


def classify(
    old: StreamTopology, new: StreamTopology, stateful: Collection[str] | None = None
) -> list[Edit]:
    """The edits between two topologies, in the order of the model; empty where they are equal.

    ``stateful`` names the processors that keep state in ``old``. Without it every processor with
    a keyed input counts, which may refuse an edit of a keyed one that keeps none.
    """
    if stateful is None:
        stateful = {p.name for p in old.spec.processors if _keyed(p)}
    before, after = old.document(), new.document()
    edits = [
        _setting(path, was, now)
        for path, was, now in _differences(before, after, ())
        if path[:2] not in (("spec", "sources"), ("spec", "processors"), ("spec", "sinks"))
    ]
    for name in ("sources", "processors", "sinks"):
        edits += _components(name, before["spec"][name], after["spec"][name], stateful)
    return edits


def worst(edits: Collection[Edit]) -> Effect:
    """The effect of applying all edits together."""
    order = list(Effect)
    return max((edit.effect for edit in edits), key=order.index, default=Effect.NONE)


_SETTINGS: tuple[tuple[str, Effect, str], ...] = (
    (
        "metadata.name",
        Effect.REFUSED,
        f"state and marks in sinks belong to the name; {_OTHER_NAME}",
    ),
    (
        "metadata.namespace",
        Effect.REFUSED,
        "a topology cannot move to another namespace; create it there as a new one",
    ),
    ("metadata", Effect.NONE, "only people and tools read it"),
    (
        "spec.guarantee",
        Effect.RESTART,
        "what is not sealed yet runs under it; AtMostOnce drops what was open and counts it",
    ),
    ("spec.window", Effect.RESTART, "the next window is planned with it"),
    *(
        (
            f"spec.ackers.{field}",
            Effect.RESTART,
            "the next run begins with it; one that goes on may have been given another number",
        )
        for field in ("replicas", "min", "max")
    ),
    ("spec.ackers", Effect.RESTART, "the driver reads it at its start"),
    ("spec.deadLetters", Effect.RESTART, "the driver reads it at its start"),
    ("spec.tracking", Effect.RESTART, "passes are built with or without tracking"),
    ("spec.suspend", Effect.NONE, "only a cluster goes by it"),
    ("spec.restartNonce", Effect.NONE, "only a cluster goes by it"),
    ("spec.tupleTimeout", Effect.RESTART, "the driver reads it at its start"),
    (
        "spec.stateServers.url",
        Effect.REFUSED,
        f"the state lies on the server that was used so far; {UNDO}",
    ),
    (
        "spec.stateServers.password",
        Effect.RESTART,
        "the processes of a run are given it at their start",
    ),
    (
        "spec.stateServers.memory",
        Effect.RESTART,
        "the state servers are started with it; windows that waited for room go on",
    ),
    ("spec.stateServers", Effect.RESTART, "the members of the view change at the start"),
    ("spec.snapshots", Effect.RESTART, "the driver reads it at its start"),
    ("spec.onStateLoss", Effect.RESTART, "the driver reads it at its start"),
    ("spec.restoreFrom", Effect.NONE, "only a new topology on a cluster goes by it"),
    ("spec.parallelism", Effect.RESTART, "passes are built with as many partitions"),
    (
        "spec.keyGroups",
        Effect.REFUSED,
        f"state is cut into key groups and cannot be cut anew; {UNDO}",
    ),
    ("spec.code.imagePullSecrets", Effect.NONE, "only a cluster goes by it"),
    *(
        (
            f"spec.code.{field}",
            Effect.RESTART,
            "a cluster takes user code from there; one machine goes by spec.code.path alone",
        )
        for field in ("image", "configMap")
    ),
    ("spec.code", Effect.RESTART, "user code is loaded at the start"),
    ("spec.volumes", Effect.NONE, "only a cluster goes by it"),
    ("spec.pods", Effect.NONE, "only a cluster goes by it"),
    ("spec.spark.driver.standbyExecutors", Effect.NONE, "only a cluster goes by it"),
    ("spec.spark.driver.standby", Effect.RESTART, "the next run begins with it"),
    *(
        (f"spec.spark.executors.{field}", Effect.NONE, "only a cluster goes by it")
        for field in ("min", "max")
    ),
    ("spec.spark", Effect.RESTART, "the Spark session is built at the start"),
)

_KINDS: Mapping[str, Registry[Any]] = {"sources": SOURCES, "processors": PROCESSORS, "sinks": SINKS}


def meaning(path: str) -> tuple[Effect, str]:
    """What a change of a field outside of sources, processors and sinks means, and why."""
    for prefix, effect, reason in _SETTINGS:
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            return effect, reason
    return Effect.RESTART, "it is read at the start"


def _setting(path: FieldPath, was: Any, now: Any) -> Edit:
    text = format_path(path)
    effect, reason = meaning(text)
    if text == "spec.stateServers.url" and _same_server(was, now):
        effect, reason = meaning("spec.stateServers.password")
    elif text == "metadata.namespace" and NOTHING in (was, now):
        effect, reason = meaning("metadata")
    return Edit(text, was, now, effect, reason)


def _same_server(was: Any, now: Any) -> bool:
    """Whether a password alone was changed in an address, or has left it for a Secret."""
    texts = isinstance(was, str) and isinstance(now, str)
    return texts and differ_in_password(was, now)


def _components(
    section: str,
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    stateful: Collection[str],
) -> Iterator[Edit]:
    old = {part["name"]: part for part in before}
    new = {part["name"]: part for part in after}
    for name, part in old.items():
        place: FieldPath = ("spec", section, name)
        if name in new:
            yield from _changed(section, place, part, new[name], name in stateful)
        else:
            yield _removed(section, place, part, old, new, name in stateful)
    for name in new:
        if name not in old:
            reason = COMPILED
            if section == "sources":
                reason = "it is read from its beginning"
            elif section == "sinks":
                reason = "it shows windows that are sealed from now on"
            yield Edit(_place(("spec", section, name)), NOTHING, name, Effect.RESTART, reason)


def _removed(
    section: str,
    place: FieldPath,
    part: dict[str, Any],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    stateful: bool,
) -> Edit:
    name = part["name"]
    if section == "sinks":
        return _removed_sink(place, part, old, new)
    if section == "sources" or stateful:
        renamed = [n for n in new if n not in old and {**new[n], "name": name} == part]
        what = "its state" if stateful else "its read position"
        if renamed:
            return Edit(
                _place((*place, "name")),
                name,
                renamed[0],
                Effect.REFUSED,
                f"{what} belongs to the name and would be lost; keep the name {name!r}, {FRESH}",
            )
        also = "" if stateful else ", with its open roots and replays; its dead letters stay"
        return Edit(_place(place), name, NOTHING, Effect.RESTART, f"{what} is dropped{also}")
    return Edit(_place(place), name, NOTHING, Effect.RESTART, COMPILED)


def _removed_sink(
    place: FieldPath, part: dict[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> Edit:
    """What has been written to a place bears the name of its sink."""
    name = part["name"]
    kinds = [kind.name for kind in SINKS if kind.lasting]
    heirs = [
        n
        for n in new
        if n not in old and any(k in part and part[k] == new[n].get(k) for k in kinds)
    ]
    if heirs:
        return Edit(
            _place((*place, "name")),
            name,
            heirs[0],
            Effect.REFUSED,
            f"what it has written belongs to the name; keep the name {name!r}, give the new sink a "
            f"place of its own, {FRESH}",
        )
    reason = "what is sealed is shown there first"
    return Edit(_place(place), name, NOTHING, Effect.RESTART, reason)


def _changed(
    section: str,
    place: FieldPath,
    was: dict[str, Any],
    now: dict[str, Any],
    stateful: bool,
) -> Iterator[Edit]:
    kinds = [next((k.name for k in _KINDS[section] if k.name in part), "") for part in (was, now)]
    if kinds[0] != kinds[1]:
        yield _changed_kind(section, place, kinds, stateful)
        was = {k: v for k, v in was.items() if k != kinds[0]}
        now = {k: v for k, v in now.items() if k != kinds[1]}
    if stateful and _keys(was) != _keys(now):
        yield Edit(
            _place((*place, "inputs")),
            _keys(was),
            _keys(now),
            Effect.REFUSED,
            f"state is kept under the old key; {UNDO}",
        )
    kind: Kind[Any] = _KINDS[section][kinds[1]]
    for rule in getattr(kind, "totals", ()) if stateful and kinds[0] == kinds[1] else ():
        left, right = was[kind.name].get(rule.field), now[kind.name].get(rule.field)
        if left != right:
            path = (*place, kind.name, rule.field)
            yield Edit(_place(path), left, right, rule.effect, rule.reason)
            was, now = _less(was, kind.name, rule.field), _less(now, kind.name, rule.field)
    moved = _moved_keys(was, now) if stateful and _keys(was) == _keys(now) else []
    for producer, left, right in moved:
        path = (*place, "inputs", producer, "columns")
        reason = f"state is kept under the values of the old columns; {UNDO}"
        yield Edit(_place(path), left, right, Effect.REFUSED, reason)
    for path, left, right in _differences(was, now, place):
        text = format_path(path[len(place) :])
        if stateful and path[-1] == "key":
            continue  # reported above for all inputs together
        if path[3:4] == ("inputs",) and any(path[4:6] == (one[0], "columns") for one in moved):
            continue
        rule = _rule(kind, text)
        if rule.but_password and _same_server(left, right):
            rule = _rule(kind, f"{kind.name}.{rule.but_password}")
        yield Edit(_place(path), left, right, rule.effect, rule.reason)


def _rule(kind: Kind[Any], text: str) -> FieldEdit:
    """What a change of a component's field means: its kind says it of its own."""
    if text == kind.name or text.startswith((f"{kind.name}.", f"{kind.name}[")):
        for rule in kind.edits:
            prefix = f"{kind.name}.{rule.field}" if rule.field else kind.name
            if text == prefix or not rule.field or text.startswith((f"{prefix}.", f"{prefix}[")):
                return rule
        return FieldEdit("", Effect.RESTART, "it is read at the start")
    if text == "ttl":
        return FieldEdit(text, Effect.RESTART, "it counts from the last update of each key")
    return FieldEdit("", Effect.RESTART, COMPILED)


def _changed_kind(section: str, place: FieldPath, kinds: list[str], stateful: bool) -> Edit:
    path = _place(place)
    if section == "processors" and not stateful:
        return Edit(path, kinds[0], kinds[1], Effect.RESTART, COMPILED)
    why = {
        "sources": "the read position belongs to the old kind",
        "processors": "the state belongs to the old kind",
        "sinks": "a sealed window may still wait to be shown there",
    }[section]
    reason = f"{why}; change it back, add a {section[:-1]} of another name, {FRESH}"
    return Edit(path, kinds[0], kinds[1], Effect.REFUSED, reason)


def _differences(was: Any, now: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any, Any]]:
    """Leaves that differ; inputs are matched by producer, other lists are leaves."""
    if path[3:] == ("inputs",):
        was, now = ({edge["from"]: edge for edge in side} for side in (was, now))
    if isinstance(was, dict) and isinstance(now, dict):
        for name in [*was, *(n for n in now if n not in was)]:
            left, right = was.get(name, NOTHING), now.get(name, NOTHING)
            yield from _differences(left, right, (*path, name))
    elif was is NOTHING or now is NOTHING or was != now:
        yield path, was, now


def _place(path: FieldPath) -> str:
    """The path with the names of components and inputs in brackets."""
    section, name, *rest = path[1:]
    text = f"spec.{section}[{name}]"
    if rest[:1] == ["inputs"] and len(rest) > 1:
        text, rest = f"{text}.inputs[{rest[1]}]", rest[2:]
    tail = format_path(rest)
    return f"{text}.{tail}" if tail else text


def _keyed(processor: Processor) -> bool:
    return any(edge.key for edge in processor.inputs)


def _keys(part: Mapping[str, Any]) -> list[list[str]]:
    """The distinct keys of the inputs; adding an input of the same key changes nothing."""
    found: list[list[str]] = []
    for edge in part.get("inputs", []):
        key = list(edge.get("key", []))
        if key not in found:
            found.append(key)
    return sorted(found)


def _moved_keys(
    was: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """(producer, old, new columns) of inputs whose key is made of other columns of the producer."""
    before = {edge["from"]: edge for edge in was.get("inputs", [])}
    moved = []
    for edge in now.get("inputs", []):
        old = before.get(edge["from"])
        if old is not None and _of(old) != _of(edge):
            moved.append((edge["from"], old.get("columns", {}), edge.get("columns", {})))
    return moved


def _of(edge: Mapping[str, Any]) -> list[str]:
    """The producer's columns that make an input's key."""
    columns = edge.get("columns", {})
    return [columns.get(name, name) for name in edge.get("key", [])]


def _less(part: dict[str, Any], kind: str, field: str) -> dict[str, Any]:
    """A component without a field of its kind's settings."""
    return {**part, kind: {k: v for k, v in part[kind].items() if k != field}}
