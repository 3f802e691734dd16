"""Rules about pods, volumes and secrets: what Kubernetes would refuse, and what would not work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from millrace.addresses import has_password, local_path, shown_address, tls_files
from millrace.topology.checks.facts import Facts
from millrace.topology.model import OnStateLoss, Processor, Sink, Source, StreamTopology
from millrace.topology.pods import (
    CPU,
    MEMORY,
    OWN_FOLDERS,
    STATE_DATA_SHARE,
    VOLUME_KINDS,
    PodSettings,
    Resources,
    TaintEffect,
    Toleration,
    TolerationOperator,
    in_pods,
    spot,
    volume_of,
    within,
)
from millrace.topology.problems import NOTHING, FieldPath, Problem, format_path
from millrace.topology.scalars import memory_bytes, quantity, quantity_bytes
from millrace.topology.secretrefs import SecretRef, references, variable_of

OWN_LABELS = ("app.kubernetes.io/", "millrace.dev/", "spark-")
"""What names of labels and annotations begin with that are not the user's to give."""

_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LONGEST_NAME = 317


def sound_volumes(facts: Facts) -> Iterator[Problem]:
    """A volume is one thing, and lies where nothing else does."""
    names: set[str] = set()
    places: dict[str, str] = {}
    for index, volume in enumerate(facts.topology.spec.volumes):
        path: FieldPath = ("spec", "volumes", index)
        kinds = volume.kinds()
        if len(kinds) != 1:
            found = f"declares {' and '.join(kinds)}" if kinds else "declares no kind"
            remedy = f"give it exactly one of {', '.join(VOLUME_KINDS)}"
            yield Problem(format_path(path), volume.name, found, remedy)
        if volume.name in names:
            message = "is the name of another volume too"
            yield Problem(format_path((*path, "name")), volume.name, message, "rename one of them")
        names.add(volume.name)
        at = volume.mount_path
        where = format_path((*path, "mountPath"))
        if at in places:
            message = f"is the place of volume {places[at]!r} too"
            yield Problem(where, at, message, "mount it elsewhere")
        places.setdefault(at, volume.name)
        own = next((one for one in OWN_FOLDERS if within(at, one) or within(one, at)), None)
        if own is not None:
            message = f"would hide {own} or lie in it, which pods need themselves"
            yield Problem(where, at, message, "mount it elsewhere, at /data for example")


def _pods(facts: Facts) -> Iterator[tuple[FieldPath, PodSettings]]:
    pods = facts.topology.spec.pods
    for name, field in type(pods).model_fields.items():
        yield ("spec", "pods", field.alias or name), getattr(pods, name)


def sound_tolerations(facts: Facts) -> Iterator[Problem]:
    """What Kubernetes demands of a toleration."""
    for path, pod in _pods(facts):
        for index, one in enumerate(pod.tolerations):
            fault = _fault_of(one)
            if fault is not None:
                message, remedy = fault
                where = format_path((*path, "tolerations", index))
                yield Problem(where, NOTHING, message, remedy)


def _fault_of(one: Toleration) -> tuple[str, str] | None:
    exists = one.operator is TolerationOperator.EXISTS
    if exists and one.value is not None:
        return "has a value, which Exists does not look at", "remove it or use Equal"
    if not exists and one.key is None:
        return "names no key, which Equal needs", "add the key, or use Exists for all taints"
    if one.toleration_seconds is not None and one.effect is not TaintEffect.NO_EXECUTE:
        return "has tolerationSeconds without NoExecute", "set effect: NoExecute or remove them"
    return None


def sound_labels(facts: Facts) -> Iterator[Problem]:
    """Labels and annotations have names that Kubernetes takes, and none of ours."""
    for path, pod in _pods(facts):
        maps: Mapping[str, Mapping[str, str]] = {
            "nodeSelector": pod.node_selector,
            "labels": pod.labels,
            "annotations": pod.annotations,
        }
        for field, pairs in maps.items():
            for name, value in pairs.items():
                where = format_path((*path, field, name))
                if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
                    remedy = "write it as in example.com/name or name"
                    yield Problem(where, name, "is no name of a label", remedy)
                elif field != "nodeSelector" and name.startswith(OWN_LABELS):
                    message = "is a name that pods get from Millrace or Spark"
                    yield Problem(where, name, message, "use another one")
                elif field != "annotations" and not _VALUE.fullmatch(value):
                    remedy = "use at most 63 letters, digits, '-', '_' and '.'"
                    yield Problem(where, value, "is no value of a label", remedy)


def sound_resources(facts: Facts) -> Iterator[Problem]:
    """What is requested fits what is limited, and memory holds what is to live in it."""
    for path, pod in _pods(facts):
        yield from _resources(path, pod.resources)
    spec = facts.topology.spec
    heaps = {
        "driver": ("spec.spark.driver.memory", spec.spark.driver.memory),
        "executors": ("spec.spark.executors.memory", spec.spark.executors.memory),
    }
    for name, (field, heap) in heaps.items():
        limit = getattr(spec.pods, name).resources.limits.get(MEMORY)
        if limit is not None and quantity(limit) <= memory_bytes(heap):
            message = f"leaves nothing beside the heap of {heap} ({field}), where Python runs"
            where = format_path(("spec", "pods", name, "resources", "limits", MEMORY))
            yield Problem(where, limit, message, "raise it, or leave it out: a heap has its share")
    limit, data = spec.pods.state_servers.resources.limits.get(MEMORY), spec.state_servers.memory
    if limit and data and quantity_bytes(limit) * STATE_DATA_SHARE < memory_bytes(data):
        message = f"is less than a third above spec.stateServers.memory ({data})"
        where = "spec.pods.stateServers.resources.limits.memory"
        yield Problem(where, limit, message, "keep one of the two: the other follows from it")


def _resources(path: FieldPath, resources: Resources) -> Iterator[Problem]:
    base = (*path, "resources")
    if MEMORY in resources.requests:
        yield Problem(
            format_path((*base, "requests", MEMORY)),
            resources.requests[MEMORY],
            "cannot be requested apart: it is requested as much as it is limited",
            "write it below limits alone",
        )
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, amount in amounts.items():
            where = format_path((*base, field, name))
            if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
                yield Problem(where, name, "is no name of a resource", "write it like cpu, memory")
            elif name in (CPU, MEMORY) and quantity(amount) == 0:
                yield Problem(where, amount, "is nothing", "write more or remove it")
    for name in resources.requests.keys() & resources.limits.keys() - {MEMORY}:
        asked, most = resources.requests[name], resources.limits[name]
        if quantity(asked) > quantity(most):
            where = format_path((*base, "requests", name))
            yield Problem(where, asked, f"is more than its limit ({most})", "lower it")


def sound_references(facts: Facts) -> Iterator[Problem]:
    """References to Secrets are well formed, and tell from each other on one machine."""
    variables: dict[str, tuple[str, str]] = {}
    for path, ref in _referred(facts):
        where = format_path(path)
        if ref is None:
            message = "is no reference to a Secret"
            yield Problem(where, NOTHING, message, "write secretRef: {name: …, key: …}")
            continue
        variable, mine = variable_of(ref), (ref.name, ref.key)
        other = variables.setdefault(variable, mine)
        if other != mine:
            message = (
                f"is read from {variable} on one machine, and so is key {other[1]!r} of "
                f"Secret {other[0]!r}"
            )
            yield Problem(where, ref.name, message, "rename one of the two")


def _referred(facts: Facts) -> Iterator[tuple[FieldPath, SecretRef | None]]:
    password = facts.topology.spec.state_servers.password
    if password is not None:
        yield ("spec", "stateServers", "password"), password.secret_ref
    for component, part in facts.components():
        for kind, settings in () if isinstance(part, Processor) else part.declared():
            document = settings.model_dump(by_alias=True, exclude_none=True)
            yield from references(document, (*component.path, kind.name))


def on_cluster(topology: StreamTopology, folder: str) -> list[Problem]:
    """What keeps a topology from running in pods, where relative paths start from ``folder``.

    A file that a sink writes in a pod and on no claim would go with the pod, though it was shown.
    What works on one machine alone so far is refused too: no promise is taken in silence.
    """
    found: list[Problem] = []
    called = topology.metadata.name
    if called[0].isdigit():
        why = "begins with a digit, which Kubernetes takes of no Service, and pods need some"
        found.append(Problem("metadata.name", called, why, "begin it with a letter"))
    for section, parts in _declared(topology):
        for index, part in enumerate(parts):
            for field, path in part.kind.on_disk(part.settings).items():
                where = format_path(("spec", section, index, part.kind.name, field))
                message = _astray(topology, section == "sinks", path, folder)
                if message is not None:
                    remedy = (
                        "add an element to spec.volumes, with a mountPath above it and "
                        "persistentVolumeClaim: {claimName: …}"
                    )
                    found.append(Problem(where, path, message, remedy))
    found += _tables_astray(topology, folder)
    return [*found, *_lost_snapshots(topology, folder), *_unreachable_server(topology)]


def _tables_astray(topology: StreamTopology, folder: str) -> Iterator[Problem]:
    """Files that processors are compiled with and that the driver's pod does not have."""
    for index, part in enumerate(topology.spec.processors):
        for field, path in part.kind.on_disk(part.settings).items():
            message = _astray(topology, False, path, folder)
            if message is not None:
                remedy = (
                    "add an element to spec.volumes, of a configMap or a persistentVolumeClaim, "
                    "with a mountPath above it; or write the whole path of a file in the image"
                )
                where = format_path(
                    ("spec", "processors", index, part.kind.name, *field.split("."))
                )
                yield Problem(where, path, message, remedy)


def _unreachable_server(topology: StreamTopology) -> Iterator[Problem]:
    """A server of the user's own that pods cannot come to, or not with the files that it asks
    for."""
    url, path = topology.spec.state_servers.url, "spec.stateServers.url"
    if url is None:
        return
    if url.lower().startswith("unix:"):
        message = "is a socket of one machine, which pods do not see"
        yield Problem(path, shown_address(url), message, "write redis://host:port")
    for option, file in tls_files(url).items():
        if volume_of(file, topology.spec.volumes) is None:
            message = f"names a file for {option} that lies on no volume"
            remedy = (
                "mount it by an element of spec.volumes, of a secret or configMap, and write its "
                "whole path"
            )
            yield Problem(path, file, message, remedy)


def _lost_snapshots(topology: StreamTopology, folder: str) -> Iterator[Problem]:
    """Snapshots that would go with the pod that takes them."""
    snapshots, path = topology.spec.snapshots, "spec.snapshots.to"
    restores = topology.spec.on_state_loss is OnStateLoss.RESTORE
    if snapshots.to is None and snapshots.every is None and not restores:
        return
    astray = lost_place(topology, None, folder)
    if astray is not None:
        given = NOTHING if snapshots.to is None else snapshots.to
        yield Problem(path, given, astray, f"name {_KEPT_PLACE}")


_KEPT_PLACE = "a folder on a persistentVolumeClaim of spec.volumes, or a URL"


_GOES = "snapshots would lie in the driver's pod and go with it"


def lost_place(topology: StreamTopology, to: str | None, folder: str) -> str | None:
    """Why snapshots cannot lie there, or in the topology's own place without a word, where relative
    paths start from ``folder``; None where they can."""
    if to is not None and has_password(to):
        return f"{_SEEN}; {_KEPT_APART}"
    to = to or topology.spec.snapshots.to
    if to is None:
        return f"is missing: {_GOES}"
    if to.startswith("memory:") or "::" in to:
        # Of a chain of file systems some lies where it is read, and may be all that is written.
        return f"is a place of one process, or a chain of places: {_GOES}"
    at = local_path(to)
    return None if at is None else _astray(topology, True, at, folder)


def sound_restore(facts: Facts) -> Iterator[Problem]:
    """What a topology begins with is named in one way."""
    given = facts.topology.spec.restore_from
    if given is None:
        return
    by_place = (given.place is not None, given.name is not None)
    path = "spec.restoreFrom"
    if (given.snapshot is not None) == any(by_place) or any(by_place) != all(by_place):
        message = "does not say which snapshot"
        remedy = "give it snapshot alone, the name of a TopologySnapshot, or both place and name"
        yield Problem(path, NOTHING, message, remedy)


_SEEN = "holds a password, for all who may read topologies to see"

_KEPT_APART = (
    "take it out, and give the pods what fsspec is configured by from a Secret, as a volume at "
    "/etc/fsspec"
)


def plain_passwords(topology: StreamTopology) -> list[Problem]:
    """Passwords in addresses of sources, sinks, a state server and places of snapshots. On a
    cluster whoever may read topologies reads them, and that are more people than may read
    Secrets."""
    spec = topology.spec
    remedy = "take it out, and name a key of a Secret instead: secretRef: {name: …, key: …}"
    begins = spec.restore_from
    addresses = [
        ("spec.stateServers.url", spec.state_servers.url, remedy),
        ("spec.snapshots.to", spec.snapshots.to, _KEPT_APART),
        ("spec.restoreFrom.place", None if begins is None else begins.place, _KEPT_APART),
    ]
    return [
        Problem(path, shown_address(text), _SEEN, apart)
        for path, text, apart in addresses
        if text is not None and has_password(text)
    ] + [
        Problem(format_path(path), shown_address(text), _SEEN, remedy)
        for section, parts in _declared(topology)
        for index, part in enumerate(parts)
        for path, text in _texts(
            part.settings.model_dump(by_alias=True, mode="json"),
            ("spec", section, index, part.kind.name),
        )
        if has_password(text)
    ]


def _texts(document: object, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    if isinstance(document, str):
        yield path, document
    elif isinstance(document, Mapping):
        for name, inner in document.items():
            yield from _texts(inner, (*path, str(name)))
    elif isinstance(document, list | tuple):
        for index, inner in enumerate(document):
            yield from _texts(inner, (*path, index))


def _declared(topology: StreamTopology) -> tuple[tuple[str, Sequence[Source | Sink]], ...]:
    return ("sources", topology.spec.sources), ("sinks", topology.spec.sinks)


def _astray(topology: StreamTopology, writes: bool, path: str, folder: str) -> str | None:
    """Why files cannot be there; an absolute path on no volume may come with the image."""
    at = in_pods(path, folder)
    volume = volume_of(at, topology.spec.volumes)
    if volume is None:
        if writes or not path.startswith("/"):
            return f"lies on no volume in pods ({at})"
        return None
    if volume.persistent_volume_claim is None and (writes or volume.empty_dir is not None):
        return f"lies on volume {volume.name!r}, which is no claim ({at})"
    if writes and volume.read_only:
        return f"is to be written, on volume {volume.name!r}, which is readOnly ({at})"
    return None


def moved_files(
    old: StreamTopology, new: StreamTopology, folder: str
) -> Iterator[tuple[str, str, tuple[str, str], tuple[str, str] | None]]:
    """Sources and sinks whose files would lie elsewhere under the volumes of ``new``: what it is,
    its name, and claim and path there, before and after.

    Other paths are another edit; so that is not asked for here. A sink that goes may have windows
    to show still.
    """
    stays = {source.name for source in new.spec.sources}
    for section, parts in _declared(old):
        role = section[:-1]
        for part in parts:
            if role == "source" and part.name not in stays:
                continue
            for path in part.kind.on_disk(part.settings).values():
                at = in_pods(path, folder)
                before, after = (spot(at, one.spec.volumes) for one in (old, new))
                if before is not None and before != after:
                    yield role, part.name, before, after


RULES = (
    sound_volumes,
    sound_tolerations,
    sound_labels,
    sound_resources,
    sound_references,
    sound_restore,
)
