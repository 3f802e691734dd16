"""Manifests of a topology's pods, written by hand after docs/pods.md: no operator takes part.

Whatever the operator makes later, these are what the pods need and no more: tests apply them to
find out that the document says enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace import checked
from millrace.homes import codec, pods
from millrace.homes.passwords import secret_data
from millrace.homes.pods import Role
from millrace.homes.settings import in_pods

Manifest = dict[str, Any]

READ_ONLY = {"readOnly": True}


@dataclass(frozen=True, slots=True)
class Pods:
    """One topology; ``claim`` is the volume claim of its data, ``version`` the images' tag."""

    name: str
    namespace: str
    uid: str
    claim: str
    version: str = "0.1.0"
    prefix: str = "millrace/"

    # -- what is there before any pod

    def objects(self, root: str, run_key: str) -> list[Manifest]:
        """The Secret, empty ConfigMaps, accounts and their rights."""
        own = [pods.view_map(self.name), pods.inbox_map(self.name), pods.journal_map(self.name)]
        content = {pods.ROOT_KEY: root, pods.RUN_KEY: run_key}
        content |= secret_data(self.name, self.uid, content)
        executors = ["get", "list", "watch", "create", "delete", "deletecollection"]
        driver = [
            _rule("configmaps", ["get", "patch"], own),
            _rule("configmaps", ["watch"], own[1:2]),
            _rule("pods", executors),
        ]
        return [
            self._made("v1", "Secret", pods.secret(self.name), {"stringData": content}),
            *(self._made("v1", "ConfigMap", name, {}) for name in own),
            *self._account(Role.DRIVER, driver),
            *self._account(Role.ACKER, [_rule("configmaps", ["get", "watch"], own[:1])]),
        ]

    def config(self, topology: Mapping[str, Any], number: int) -> Manifest:
        """What driver ``number`` mounts."""
        data = {
            pods.TOPOLOGY_KEY: json.dumps(checked.with_checksum(topology)),
            pods.DRIVER_KEY: json.dumps(codec.encode(in_pods(self.name, self.namespace, self.uid))),
            pods.EXECUTOR_KEY: json.dumps(self._executor()),
        }
        name = pods.pod_name(self.name, Role.DRIVER, number)
        return self._made("v1", "ConfigMap", name, {"immutable": True, "data": data})

    # -- pods

    def state_server(self, number: int) -> Manifest:
        mounts = [_mount("secret", pods.SECRET_FOLDER, READ_ONLY), *_scratch()]
        accepted = {"key": pods.ACCEPTED_KEY, "path": pods.ACCEPTED_KEY}
        secret = self._secret(self._own(Role.STATE_SERVER, number), accepted)
        volumes = [secret, _empty("work"), _empty("tmp")]
        container = self._container(Role.STATE_SERVER, "state-server", mounts)
        container |= _probes()
        spec = {"automountServiceAccountToken": False, "restartPolicy": "Always"}
        return self._pod(Role.STATE_SERVER, number, container, volumes, spec)

    def acker(self, number: int) -> Manifest:
        mounts = [_mount("secret", pods.SECRET_FOLDER, READ_ONLY), *_scratch()]
        secret = self._secret(self._own(Role.ACKER, number))
        volumes = [secret, _empty("work"), _empty("tmp")]
        container = self._container(Role.ACKER, "runtime", mounts) | _probes()
        spec = {"serviceAccountName": f"{self.name}-acker", "restartPolicy": "Always"}
        return self._pod(Role.ACKER, number, container, volumes, spec)

    def driver(self, number: int) -> Manifest:
        mounts = [
            _mount("config", pods.CONFIG_FOLDER, READ_ONLY),
            _mount("secret", pods.SECRET_FOLDER, READ_ONLY),
            _mount("data", pods.DATA_FOLDER),
            *_scratch(),
        ]
        name = pods.pod_name(self.name, Role.DRIVER, number)
        config = {"name": "config", "configMap": {"name": name}}
        volumes = [config, self._secret(), self._data(), _empty("work"), _empty("tmp")]
        container = self._container(Role.DRIVER, "runtime", mounts) | _probes()
        container["env"].append({"name": pods.IMAGE, "value": self._image("runtime")})
        spec = {"serviceAccountName": f"{self.name}-driver", "restartPolicy": "Never"}
        return self._pod(Role.DRIVER, number, container, volumes, spec)

    def _executor(self) -> Manifest:
        mounts = [
            _mount("secret", pods.SECRET_FOLDER, READ_ONLY),
            _mount("data", pods.DATA_FOLDER),
            *_scratch(),
        ]
        container = self._container(Role.EXECUTOR, "runtime", mounts)
        # Arguments and image are Spark's to set.
        container = {k: v for k, v in container.items() if k not in ("args", "image")}
        secret = self._secret({"key": pods.RUN_KEY, "path": pods.RUN_KEY})
        volumes = [secret, self._data(), _empty("work"), _empty("tmp")]
        spec = {"automountServiceAccountToken": False, "restartPolicy": "Never"}
        metadata = {"labels": self._labels(Role.EXECUTOR)}
        body = {**spec, **_spec(Role.EXECUTOR, container, volumes)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}

    # -- parts

    def _image(self, name: str) -> str:
        return f"{self.prefix}{name}:{self.version}"

    def _labels(self, role: Role) -> dict[str, str]:
        return {pods.TOPOLOGY_LABEL: self.name, pods.ROLE_LABEL: role.value}

    def _made(self, version: str, kind: str, name: str, body: Mapping[str, Any]) -> Manifest:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}

    def _account(self, role: Role, rules: list[Manifest]) -> list[Manifest]:
        name, group = f"{self.name}-{role.value}", "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": group, "kind": "Role", "name": name}
        binding = {"roleRef": reference, "subjects": [subject]}
        return [
            self._made("v1", "ServiceAccount", name, {}),
            self._made(f"{group}/v1", "Role", name, {"rules": rules}),
            self._made(f"{group}/v1", "RoleBinding", name, binding),
        ]

    def _container(self, role: Role, image: str, mounts: list[Manifest]) -> Manifest:
        env: list[Manifest] = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in pods.DOWNWARD.items()
        ]
        env += [
            {"name": pods.TOPOLOGY, "value": self.name},
            {"name": pods.UID, "value": self.uid},
        ]
        return {
            "name": role.value,
            "image": self._image(image),
            "imagePullPolicy": "IfNotPresent",
            "args": [role.value],
            "env": env,
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounts,
        }

    def _pod(
        self,
        role: Role,
        number: int,
        container: Manifest,
        volumes: list[Manifest],
        spec: Mapping[str, Any],
    ) -> Manifest:
        body = {"spec": {**spec, **_spec(role, container, volumes)}}
        made = self._made("v1", "Pod", pods.pod_name(self.name, role, number), body)
        made["metadata"]["labels"] = self._labels(role)
        return made

    def _own(self, role: Role, number: int) -> Manifest:
        """A pod's own password, as an item of the Secret's volume."""
        key = pods.password_key(pods.pod_name(self.name, role, number))
        return {"key": key, "path": pods.PASSWORD_KEY}

    def _secret(self, *items: Manifest) -> Manifest:
        """All of it where no items are named."""
        source: Manifest = {"secretName": pods.secret(self.name), "defaultMode": 0o440}
        if items:
            source["items"] = list(items)
        return {"name": "secret", "secret": source}

    def _data(self) -> Manifest:
        return {"name": "data", "persistentVolumeClaim": {"claimName": self.claim}}


def _spec(role: Role, container: Manifest, volumes: list[Manifest]) -> Manifest:
    return {
        "terminationGracePeriodSeconds": pods.GRACE_S[role],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pods.USER_ID,
            "runAsGroup": pods.USER_ID,
            "fsGroup": pods.USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }


def _probes() -> Manifest:
    def ask(path: str, every_s: int, answer_s: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": pods.HEALTH_PORT},
            "periodSeconds": every_s,
            "timeoutSeconds": answer_s,
            "failureThreshold": failures,
        }

    return {
        "readinessProbe": ask(pods.READY_PATH, 1, 3, 2),
        "livenessProbe": ask(pods.LIVE_PATH, 10, 5, 6),
    }


def _rule(resource: str, verbs: list[str], names: list[str] | None = None) -> Manifest:
    made: Manifest = {"apiGroups": [""], "resources": [resource], "verbs": verbs}
    return {**made, "resourceNames": names} if names else made


def _mount(name: str, path: str, more: Mapping[str, Any] | None = None) -> Manifest:
    return {"name": name, "mountPath": path, **(more or {})}


def _scratch() -> list[Manifest]:
    return [_mount("work", pods.WORK_FOLDER), _mount("tmp", pods.SCRATCH_FOLDER)]


def _empty(name: str) -> Manifest:
    return {"name": name, "emptyDir": {}}
