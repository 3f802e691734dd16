"""What a topology asks for in pods beside what Millrace gives them (``spec.pods``,
``spec.volumes``, ``secretRef``): nothing of it takes anything away that pods pass the restricted
standard with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millrace.addresses import tls_files
from millrace.homes import pods as names
from millrace.topology.model import StreamTopology
from millrace.topology.pods import CPU, MEMORY, PodSettings, Volume, volume_of
from millrace.topology.secretrefs import SecretRef, references
from millrace_operator.builders.naming import Manifest


def mount(spec: Manifest, name: str, volume: Manifest, folder: str, **more: Any) -> None:
    """Give a pod's container a volume; only an empty one can be written unless ``more`` says
    so."""
    made: Manifest = {"name": name, "mountPath": folder}
    if "emptyDir" not in volume:
        made["readOnly"] = True
    made |= more
    spec.setdefault("volumes", []).append({"name": name, **volume})
    spec["containers"][0].setdefault("volumeMounts", []).append(made)


def mount_volumes(spec: Manifest, volumes: Iterable[Volume]) -> None:
    """The topology's own volumes, at the places that it names."""
    for volume in volumes:
        writable = volume.persistent_volume_claim is not None or volume.empty_dir is not None
        more: Manifest = {"readOnly": volume.read_only or not writable}
        if volume.sub_path is not None:
            more["subPath"] = volume.sub_path
        # A name of their own: those of pods and of Spark begin otherwise.
        mount(spec, f"user-{volume.name}", _kind(volume), volume.mount_path, **more)


def _kind(volume: Volume) -> Manifest:
    """The one kind that a volume is, as a pod says it."""
    document = volume.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {name: document[name] for name in volume.kinds()}


def mount_secrets(
    spec: Manifest,
    topology: StreamTopology,
    retired: Sequence[Mapping[str, Any]] = (),
    more: Sequence[SecretRef] = (),
) -> None:
    """The keys of Secrets that sources and sinks refer to, and ``more``; no others.

    Who misses one says so by name; a kubelet would hold the pod back and tell nobody but events.
    """
    declared = topology.model_dump(by_alias=True, mode="json", include={"spec"})["spec"]
    found = references([declared["sources"], declared["sinks"], list(retired)])
    _mount_keys(spec, [*(ref for _, ref in found if ref is not None), *more])


def own_password(topology: StreamTopology) -> list[SecretRef]:
    """Where the password of a state server of the user's own stands; none where it takes none."""
    password = topology.spec.state_servers.password
    return [] if password is None else [password.secret_ref]


def own_server_option(topology: StreamTopology) -> str:
    """The same as ``names.OWN_SERVER_OPTION`` has it."""
    return "".join(f"{ref.name}/{ref.key}" for ref in own_password(topology))


def mount_own_server(spec: Manifest, topology: StreamTopology) -> None:
    """What an acker needs to reach such a server: its password, and the files of its TLS."""
    mount_volumes(spec, tls_volumes(topology))
    _mount_keys(spec, own_password(topology))


def tls_volumes(topology: StreamTopology) -> list[Volume]:
    """Volumes with files that the url of such a server names."""
    volumes = topology.spec.volumes
    files = tls_files(topology.spec.state_servers.url or "").values()
    needed = [volume_of(file, volumes) for file in files]
    return [volume for volume in volumes if volume in needed]


def _mount_keys(spec: Manifest, refs: Iterable[SecretRef]) -> None:
    keys: dict[str, set[str]] = {}
    for ref in refs:
        keys.setdefault(ref.name, set()).add(ref.key)
    for number, (name, found) in enumerate(sorted(keys.items())):
        items = [{"key": key, "path": key} for key in sorted(found)]
        secret = {"secretName": name, "defaultMode": 0o440, "optional": True, "items": items}
        mount(spec, f"secret-{number}", {"secret": secret}, f"{names.SECRETS_FOLDER}/{name}")


def asked(pod: Manifest, settings: PodSettings) -> Manifest:
    """The pod with what its settings add; what it has already goes before labels of theirs."""
    spec, metadata = pod["spec"], pod["metadata"]
    container = spec["containers"][0]
    usual = container["resources"]["requests"]
    requests, limits = settings.resources.over(usual[CPU], usual[MEMORY])
    container["resources"] = {"requests": requests, "limits": limits}
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [
            *spec.get("tolerations", []),
            *(
                one.model_dump(by_alias=True, mode="json", exclude_none=True)
                for one in settings.tolerations
            ),
        ]
    if settings.priority_class_name is not None:
        spec["priorityClassName"] = settings.priority_class_name
    metadata["labels"] = {**settings.labels, **metadata["labels"]}
    annotations = {**settings.annotations, **metadata.get("annotations", {})}
    if annotations:
        metadata["annotations"] = annotations
    return pod
