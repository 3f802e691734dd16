"""Bare pods of a topology: drivers, ackers, state servers, and what executors are made from.

What they are called, given and asked is ``millrace.homes.pods`` (``docs/pods.md``). All of them
pass the restricted standard. State servers and ackers come back in their pod when a process ends:
with its file a state server goes on as a new incarnation. A driver's pod is one life of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from millrace.homes import pods as names
from millrace.homes.accepted import Retired
from millrace.homes.pods import Role
from millrace.topology.model import StreamTopology
from millrace.topology.pods import MEMORY, STATE_DATA_SHARE
from millrace.topology.scalars import memory_bytes, quantity_bytes
from millrace_operator.api.settings import OperatorSettings, Quantity
from millrace_operator.builders.asked import (
    asked,
    mount,
    mount_own_server,
    mount_secrets,
    mount_volumes,
    own_password,
    own_server_option,
    tls_volumes,
)
from millrace_operator.builders.naming import FINGERPRINT, MADE_WITH, Manifest, Owner, digested

_LEAST_OVERHEAD_MI = 384
_OVERHEAD = 0.4
"""Of the heap: Python beside the JVM, as Spark reckons on Kubernetes."""


def state_server_pod(
    owner: Owner, settings: OperatorSettings, topology: StreamTopology, index: int
) -> Manifest:
    """State server ``index``: its file lives as long as the pod."""
    role, most = Role.STATE_SERVER, data_bytes(settings, topology)
    size = Quantity(settings.state_server.cpu, math.ceil(most / STATE_DATA_SHARE / (1 << 20)))
    container = _container(owner, settings, role, settings.state_image, size)
    container["env"].append(_variable(names.MAX_MEMORY, str(most)))
    container["ports"] = _ports(state=names.STATE_PORT, health=names.HEALTH_PORT)
    keys = {**_own_key(owner, role, index), names.ACCEPTED_KEY: names.ACCEPTED_KEY}
    spec = _spec(owner, settings, role, container, keys)
    spec["subdomain"] = owner.child("state")
    # A node that comes back after minutes still has its state.
    spec["tolerations"] = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
        for key in ("not-ready", "unreachable")
    ]
    spec["automountServiceAccountToken"] = False
    spec["topologySpreadConstraints"] = [_spread(owner, role)]
    return digested(asked(_pod(owner, role, index, spec), topology.spec.pods.state_servers))


def data_bytes(settings: OperatorSettings, topology: StreamTopology) -> int:
    """The most that a state server's data may take: what the topology says of it or of the pod, or
    what the operator gives a server without a word."""
    said = topology.spec.state_servers.memory
    if said is not None:
        return memory_bytes(said)
    limit = topology.spec.pods.state_servers.resources.limits.get(MEMORY)
    if limit is not None:
        return int(quantity_bytes(limit) * STATE_DATA_SHARE)
    return int(settings.state_server.memory_mi * STATE_DATA_SHARE) << 20


def acker_pod(
    owner: Owner, settings: OperatorSettings, topology: StreamTopology, index: int
) -> Manifest:
    """Acker ``index``: it holds nothing that the ack log does not. One that was made for a state
    server of the user's own says so in its ``FINGERPRINT``."""
    role = Role.ACKER
    container = _container(owner, settings, role, settings.runtime_image, settings.acker)
    container["ports"] = _ports(health=names.HEALTH_PORT)
    spec = _spec(owner, settings, role, container, _own_key(owner, role, index))
    spec["serviceAccountName"] = owner.child("acker")
    spec["topologySpreadConstraints"] = [_spread(owner, role)]
    told = acker_print(topology)
    if told:
        container["args"] += [names.OWN_SERVER_OPTION, own_server_option(topology)]
        container["env"].append(_variable(names.SECRETS, names.SECRETS_FOLDER))
        mount_own_server(spec, topology)
    notes = {FINGERPRINT: told} if told else {}
    return digested(asked(_pod(owner, role, index, spec, notes), topology.spec.pods.ackers))


def acker_print(topology: StreamTopology) -> str:
    """What an acker is to have been made with, to reach a state server of the user's own; empty
    where there is none."""
    if topology.spec.state_servers.url is None:
        return ""
    volumes = [one.model_dump(by_alias=True, mode="json") for one in tls_volumes(topology)]
    text = json.dumps([own_server_option(topology), volumes], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def driver_pod(
    owner: Owner,
    settings: OperatorSettings,
    topology: StreamTopology,
    number: int,
    fingerprint: str,
    retired: Sequence[Retired] = (),
    standby: str = "",
) -> Manifest:
    """Driver pod ``number``, told what lies in the config map of its own name. It has the secrets
    of removed sinks too, which may have windows to show. ``standby``: it is to stand by, and what
    its executors do meanwhile."""
    role = Role.DRIVER
    size = Quantity(settings.driver_cpu, _pod_memory_mi(topology.spec.spark.driver.memory))
    image = code_image(settings, topology)
    container = _container(owner, settings, role, image, size)
    container["env"] += [
        _variable(names.IMAGE, image),
        _variable(names.IMAGE_PULL_POLICY, settings.pull_policy),
    ]
    # User code is imported and sources are opened before it can answer.
    container["startupProbe"] = _probe(names.LIVE_PATH, 2, 5, 150)
    container["ports"] = _ports(
        spark=names.SPARK_DRIVER_PORT,
        blocks=names.SPARK_BLOCKS_PORT,
        tasks=names.RESIDENT_PORT,
        health=names.HEALTH_PORT,
    )
    spec = _spec(owner, settings, role, container)
    name = _name(owner, role, number)
    mount(spec, "config", {"configMap": {"name": name}}, names.CONFIG_FOLDER)
    _bring_code(spec, topology)
    mount_volumes(spec, topology.spec.volumes)
    mount_secrets(spec, topology, [one.sink for one in retired], own_password(topology))
    spec["subdomain"] = owner.child("driver")
    spec["serviceAccountName"] = owner.child("driver")
    told = {FINGERPRINT: fingerprint}
    if standby:
        container["args"] += ["--standby", standby]
        told[names.STANDBY_ANNOTATION] = standby
    if topology.spec.standby_pods:
        spec["topologySpreadConstraints"] = [_spread(owner, role)]
        spec["tolerations"] = _short_silence()
    return digested(asked(_pod(owner, role, number, spec, told), topology.spec.pods.driver))


SILENCE_S = 20
"""How long a driver stays on a node that does not answer: Kubernetes then marks it for deletion, by
which the one that stands by knows, with the operator dead too."""


def _short_silence() -> list[Manifest]:
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": SILENCE_S,
        }
        for key in ("not-ready", "unreachable")
    ]


def executor_pod(owner: Owner, settings: OperatorSettings, topology: StreamTopology) -> Manifest:
    """What Spark makes executors from; it adds name, image, arguments, ports and owner."""
    role = Role.EXECUTOR
    executors = topology.spec.spark.executors
    size = Quantity(str(executors.cores), _pod_memory_mi(executors.memory))
    container = _container(owner, settings, role, code_image(settings, topology), size)
    container["name"] = names.EXECUTOR_CONTAINER
    for set_by_spark in ("image", "args", "readinessProbe", "livenessProbe"):
        del container[set_by_spark]
    # What the driver tells it of state servers comes with its program.
    spec = _spec(owner, settings, role, container, {names.RUN_KEY: names.RUN_KEY})
    _bring_code(spec, topology)
    mount_volumes(spec, topology.spec.volumes)
    mount_secrets(spec, topology)
    spec["automountServiceAccountToken"] = False
    spec["topologySpreadConstraints"] = [_spread(owner, role)]
    metadata = {"labels": owner.labels(role)}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return asked(made, topology.spec.pods.executors)


def code_image(settings: OperatorSettings, topology: StreamTopology) -> str:
    """The image that holds the runtime, and the user's code where it comes in one."""
    return topology.spec.code.image or settings.runtime_image


def _pod(
    owner: Owner,
    role: Role,
    number: int,
    spec: Manifest,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Manifest:
    notes = {**notes, MADE_WITH: spec["containers"][0]["image"]}
    return owner.manifest("v1", "Pod", _name(owner, role, number), role, {"spec": spec}, notes)


def _own_key(owner: Owner, role: Role, number: int) -> dict[str, str]:
    """A pod's own password, where pods of every release look for it."""
    return {names.password_key(_name(owner, role, number)): names.PASSWORD_KEY}


def _name(owner: Owner, role: Role, number: int) -> str:
    return names.pod_name(owner.name, role, number)


def _spec(
    owner: Owner,
    settings: OperatorSettings,
    role: Role,
    container: Manifest,
    keys: Mapping[str, str] | None = None,
) -> Manifest:
    """``keys`` of the secret are mounted, each as a file of its own name; all where there are
    none."""
    secret: Manifest = {"secretName": names.secret(owner.name), "defaultMode": 0o440}
    if keys:
        secret["items"] = [{"key": key, "path": path} for key, path in keys.items()]
    spec: Manifest = {
        "containers": [container],
        "restartPolicy": "Never" if role in (Role.DRIVER, Role.EXECUTOR) else "Always",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": names.GRACE_S[role],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": names.USER_ID,
            "runAsGroup": names.USER_ID,
            "fsGroup": names.USER_ID,
            # Else every start of a pod walks through all files of a claim.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    mount(spec, "secret", {"secret": secret}, names.SECRET_FOLDER)
    mount(spec, "work", {"emptyDir": {}}, names.WORK_FOLDER)
    mount(spec, "scratch", {"emptyDir": {}}, names.SCRATCH_FOLDER)
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return spec


def _bring_code(spec: Manifest, topology: StreamTopology) -> None:
    """Modules of a config map are mounted; an image may need Secrets of its own to be pulled."""
    code = topology.spec.code
    if code.config_map is not None:
        mount(spec, "code", {"configMap": {"name": code.config_map}}, names.CODE_FOLDER)
    given = spec.get("imagePullSecrets", [])
    own = [{"name": name} for name in code.image_pull_secrets or ()]
    if own:
        # Kubernetes knows them by name, and server-side apply takes no name twice.
        spec["imagePullSecrets"] = [*given, *(one for one in own if one not in given)]


def _container(
    owner: Owner, settings: OperatorSettings, role: Role, image: str, size: Quantity
) -> Manifest:
    memory = f"{size.memory_mi}Mi"
    return {
        "name": role.value,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "args": [role.value],
        "env": [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in names.DOWNWARD.items()
            ),
            _variable(names.TOPOLOGY, owner.name),
            *(
                [_variable(names.SECRETS, names.SECRETS_FOLDER)]
                if role in (Role.DRIVER, Role.EXECUTOR)
                else []
            ),
            *([] if role is Role.EXECUTOR else [_variable(names.UID, owner.uid)]),
        ],
        "resources": {
            "requests": {"cpu": size.cpu, "memory": memory},
            # No limit of CPU: throttling would look like a hang.
            "limits": {"memory": memory},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "readinessProbe": _probe(names.READY_PATH, 1, 3, 2),
        "livenessProbe": _probe(names.LIVE_PATH, 10, 5, 6),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probe(path: str, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": names.HEALTH_PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _ports(**named: int) -> list[Manifest]:
    return [{"name": name, "containerPort": port} for name, port in named.items()]


def _variable(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _spread(owner: Owner, role: Role) -> Manifest:
    """Over nodes, as far as there are any: copies on one node would be lost together."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": owner.selector(role)},
    }


def _pod_memory_mi(heap: str) -> int:
    """Memory of the whole pod for a heap as Spark writes it (``1g``)."""
    heap_mi = memory_bytes(heap) / (1 << 20)
    return round(heap_mi + max(_LEAST_OVERHEAD_MI, heap_mi * _OVERHEAD))
