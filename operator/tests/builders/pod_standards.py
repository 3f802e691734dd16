"""The restricted Pod Security Standard of Kubernetes, rule by rule, from its documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}


def violations(pod: dict[str, Any]) -> list[str]:
    """What the admission of a restricted namespace would refuse in a pod."""
    return list(_violations(pod["spec"]))


def _violations(spec: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"} <= _VOLUMES:
            yield f"volume {volume['name']}"
    whole = spec.get("securityContext", {})
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container.get("securityContext", {})
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
            yield "runAsNonRoot"
        if own.get("runAsUser", whole.get("runAsUser", 1)) == 0:
            yield "runAsUser"
        profile = own.get("seccompProfile", whole.get("seccompProfile", {}))
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []):
            yield "capabilities.drop"
        if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities.add"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield "hostPort"
