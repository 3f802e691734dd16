"""What an edit of a topology means on a cluster.

The classification is the runtime's own (``millrace.topology.edits``). A cluster adds that some
edits need no restart, since the operator carries them out by pods and proposals. A refused edit
changes nothing: what was accepted before stays in force until the edit is taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from pydantic import ValidationError

from millrace.homes.accepted import Accepted, accept
from millrace.homes.pods import DATA_FOLDER
from millrace.homes.tuning import Tuning, tuned_fields
from millrace.topology.checks.pods import moved_files, on_cluster, plain_passwords
from millrace.topology.checks.views import large_view, view_bytes
from millrace.topology.edits import Edit, classify
from millrace.topology.kinds.base import Effect
from millrace.topology.load import parse
from millrace.topology.model import API_VERSION, KIND, StreamTopology
from millrace.topology.problems import NOTHING, InvalidTopologyError, format_path
from millrace_operator.reconcile.observe import Resource

IN_PLACE = frozenset(
    {
        "spec.ackers.replicas",
        "spec.ackers.min",
        "spec.ackers.max",
        "spec.stateServers.memory",
        "spec.stateServers.replicas",
        "spec.suspend",
        "spec.spark.driver.standby",
        "spec.spark.driver.standbyExecutors",
        "spec.pods.ackers",
        "spec.pods.stateServers",
    }
)
"""Fields that pods and proposals follow; the driver has no need to know of them. What pods of
ackers and state servers get counts for those that are made from then on."""

RESTARTING = frozenset(
    {
        "spec.restartNonce",
        "spec.restoreFrom",
        "spec.code.imagePullSecrets",
        "spec.volumes",
        "spec.pods.driver",
        "spec.pods.executors",
        "spec.spark.executors.min",
        "spec.spark.executors.max",
    }
)
"""Fields that mean nothing on one machine, and a restart here."""

_BEGINNING = frozenset({"spec.restoreFrom"})

_SHOWN = 3
"""Problems, or edits, that a message names; the command line shows all."""


class EditKind(StrEnum):
    """What became of the topology as it was last written."""

    FIRST = "First"
    NONE = "None"
    IN_PLACE = "InPlace"
    RESTART = "Restart"
    REFUSED = "Refused"
    INVALID = "Invalid"
    UNREAD = "Unread"


@dataclass(frozen=True, slots=True)
class Edited:
    """``accepted`` is what is in force, None where nothing ever was; ``topology`` is the same as a
    model. ``text`` says for people what was changed, or why it was not. Both are None too where
    what is in force cannot be read: nothing follows from it, and nothing takes its place.
    ``tuned``: the driver that runs has to follow it."""

    kind: EditKind
    accepted: Accepted | None
    topology: StreamTopology | None
    text: str = ""
    tuned: bool = False


def edited(resource: Resource, before: Accepted | None, begun: bool = False) -> Edited:
    """Hold a resource against what was accepted before; ``begun``: there is state, or about to
    be."""
    try:
        was = StreamTopology.model_validate(before.topology) if before is not None else None
    except ValidationError as error:
        return Edited(EditKind.UNREAD, None, None, _foreign(error))
    try:
        wanted = parse(json.dumps(_document(resource)), import_code=False)
    except InvalidTopologyError as error:
        return _kept(EditKind.INVALID, before, was, _shown([str(p) for p in error.problems]))
    # What an older release accepted can be edited still: another address would be another sink.
    known = {problem.value for problem in plain_passwords(was)} if was is not None else set()
    told = [problem for problem in plain_passwords(wanted) if problem.value not in known]
    grows = was is None or view_bytes(wanted) > view_bytes(was)
    astray = [*on_cluster(wanted, DATA_FOLDER), *told, *(large_view(wanted) if grows else ())]
    if astray:
        return _kept(EditKind.INVALID, before, was, _shown([str(problem) for problem in astray]))
    if before is None or was is None:
        return Edited(EditKind.FIRST, accept(None, wanted.document()), wanted)
    document = _arranged(wanted.document(), was.document())
    wanted = StreamTopology.model_validate(document)
    edits = [*classify(was, wanted), *_moved(was, wanted)]
    if begun and wanted.spec.restore_from is not None:
        edits = [_too_late(edit) if _among(edit.path, _BEGINNING) else edit for edit in edits]
    refused = [edit for edit in edits if edit.effect is Effect.REFUSED]
    if refused:
        return _kept(EditKind.REFUSED, before, was, _shown([str(edit) for edit in refused]))
    followed = in_place(wanted)
    kinds = [kind_of(edit.path, edit.effect, followed) for edit in edits]
    kind = max(kinds, key=_ORDER.index, default=EditKind.NONE)
    # What restarts comes first, since a message names but a few.
    paths = [
        edit.path
        for level in (EditKind.RESTART, EditKind.IN_PLACE)
        for edit, one in zip(edits, kinds, strict=True)
        if one is level
    ]
    # A driver that is started anew begins with them.
    tuned = kind is EditKind.IN_PLACE and Tuning.of(wanted, 0) != Tuning.of(was, 0)
    accepted = accept(before, document)
    # Should what restarts be taken back in time, the driver that runs has to follow the rest.
    given = any(_among(edit.path, tuned_fields(wanted)) for edit in edits)
    accepted = replace(accepted, tuned=accepted.tuned + given)
    return Edited(kind, accepted, wanted, _shown(paths), tuned)


def _arranged(document: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """With components and inputs in the order in which they were accepted: another one means
    nothing, and a driver is compared by all that its topology says."""
    spec = dict(document["spec"])
    for section in ("sources", "processors", "sinks"):
        known = {part["name"]: part for part in before["spec"][section]}
        parts = []
        for part in _as_before(spec[section], known):
            if "inputs" in part and part["name"] in known:
                edges = [edge["from"] for edge in known[part["name"]].get("inputs", ())]
                part = {**part, "inputs": _as_before(part["inputs"], edges, "from")}
            parts.append(part)
        spec[section] = parts
    return {**document, "spec": spec}


def _as_before(
    parts: list[dict[str, Any]], known: Iterable[str], field: str = "name"
) -> list[dict[str, Any]]:
    """What is not known comes last, as it is given."""
    places = {name: place for place, name in enumerate(known)}
    return sorted(parts, key=lambda part: places.get(part[field], len(places)))


_ORDER = (EditKind.NONE, EditKind.IN_PLACE, EditKind.RESTART)


def in_place(topology: StreamTopology) -> frozenset[str]:
    """Fields whose edits need no restart."""
    return IN_PLACE | tuned_fields(topology)


def fingerprint(accepted: Accepted) -> str:
    """What a driver has to be started with: two that differ need a restart between them. Fields
    that say what would go without saying count for nothing, so that a release with more of them
    restarts nobody."""
    return fingerprints(accepted)[0]


def fingerprints(accepted: Accepted) -> tuple[str, str]:
    """The prints that a driver has which was started with this: that of today's rule, and that of
    releases whose drivers were started anew for fields that are tuned now. Such a driver follows
    no edit of these: its print is none of these behind one, and it is started anew as ever."""
    topology = StreamTopology.model_validate(accepted.topology)
    document = topology.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    edit = accepted.components.edit
    return _print(document, edit, in_place(topology)), _print(document, edit, IN_PLACE)


def declared(accepted: Accepted) -> str:
    """A print of all that is declared: any edit makes another one, also one in place."""
    topology = StreamTopology.model_validate(accepted.topology)
    document = topology.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    return _print(document, accepted.components.edit, frozenset())


def _print(document: Mapping[str, Any], edit: int, followed: frozenset[str]) -> str:
    rest = _without(document, frozenset(path.partition(".")[2] for path in followed))
    text = json.dumps([rest, edit], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _without(document: Mapping[str, Any], fields: frozenset[str]) -> Mapping[str, Any]:
    """The spec without fields."""
    return _pruned(document["spec"], fields)


def _pruned(part: Mapping[str, Any], fields: frozenset[str]) -> Mapping[str, Any]:
    made: dict[str, Any] = {}
    for name, value in part.items():
        inner = {path.partition(".")[2] for path in fields if path.partition(".")[0] == name}
        if "" in inner:
            continue
        if inner and isinstance(value, Mapping):
            value = _pruned(value, frozenset(inner))
            if not value:
                continue
        made[name] = value
    return made


def kind_of(path: str, effect: Effect, followed: frozenset[str]) -> EditKind:
    """What an edit of a field is on a cluster; ``effect`` is what it is on one machine,
    ``followed`` what needs no restart (``in_place``)."""
    if effect is Effect.REFUSED:
        return EditKind.REFUSED
    if _among(path, followed):
        return EditKind.IN_PLACE
    restarts = effect is Effect.RESTART or _among(path, RESTARTING)
    return EditKind.RESTART if restarts else EditKind.NONE


def _among(path: str, fields: frozenset[str]) -> bool:
    """Whether a path is one of the fields, or lies below one."""
    return any(path == field or path.startswith((f"{field}.", f"{field}[")) for field in fields)


def _moved(was: StreamTopology, wanted: StreamTopology) -> list[Edit]:
    """Volumes that would put what was read or written elsewhere, as another path would."""
    return [
        Edit(
            "spec.volumes",
            ":".join(before),
            NOTHING if after is None else ":".join(after),
            Effect.REFUSED,
            f"files of {role} {name!r} lie there; change it back, or remove the {role} first",
        )
        for role, name, before, after in moved_files(was, wanted, DATA_FOLDER)
    ]


def _too_late(edit: Edit) -> Edit:
    reason = (
        "only a topology that has not begun can begin with a snapshot; change it back or take it "
        "out, or make another topology"
    )
    return replace(edit, effect=Effect.REFUSED, reason=reason)


def _kept(kind: EditKind, before: Accepted | None, was: StreamTopology | None, text: str) -> Edited:
    return Edited(kind, before, was, text)


def _foreign(error: ValidationError) -> str:
    fields = [format_path(tuple(found["loc"])) for found in error.errors(include_input=False)]
    return (
        f"another release accepted what this one does not know ({_shown(fields)}); run that "
        "operator again, or a newer one"
    )


def _document(resource: Resource) -> Mapping[str, Any]:
    """The topology in a resource; labels and annotations belong to tools, and mean nothing here."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": resource.name, "namespace": resource.namespace},
        "spec": resource.document.get("spec", {}),
    }


def _shown(texts: list[str]) -> str:
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
