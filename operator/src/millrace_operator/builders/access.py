"""Service accounts of pods, and the least that they may do.

State servers and executors ask nothing of the API server and have no account. The driver makes and
ends its executors, where there are to be any: for that it has a right to all pods of the namespace.
One that stands by looks at the pods of the drivers before it.
The view, and what it is told, it reads and changes by name: the operator has made these maps,
since creation cannot be bounded by name in Kubernetes. docs/pods.md says what each verb is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.homes.pods import inbox_map, view_map
from millrace.topology.model import StreamTopology
from millrace_operator.builders.documents import filled_maps
from millrace_operator.builders.naming import Manifest, Owner

_ROLES = "rbac.authorization.k8s.io"


def access(owner: Owner, topology: StreamTopology) -> list[Manifest]:
    """Accounts, roles and bindings of all components."""
    return [
        *_account(owner, "driver", _driver_rules(owner, topology)),
        *_account(
            owner, "acker", [_rule(["configmaps"], ["get", "watch"], [view_map(owner.name)])]
        ),
    ]


def _driver_rules(owner: Owner, topology: StreamTopology) -> list[Manifest]:
    lifecycle = ["create", "get", "list", "watch", "delete", "deletecollection"]
    rules = [
        _rule(["configmaps"], ["get", "patch"], filled_maps(owner)),
        _rule(["configmaps"], ["watch"], [inbox_map(owner.name)]),
    ]
    if topology.spec.spark.executors.instances > 0:
        rules.append(_rule(["pods"], lifecycle))
    elif topology.spec.standby_pods > 0:
        rules.append(_rule(["pods"], ["list", "watch"]))
    return rules


def _account(owner: Owner, component: str, rules: list[Manifest]) -> list[Manifest]:
    name = owner.child(component)
    reference = {"apiGroup": _ROLES, "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}
    binding = {"roleRef": reference, "subjects": [subject]}
    version = f"{_ROLES}/v1"
    return [
        owner.manifest(
            "v1", "ServiceAccount", name, component, {"automountServiceAccountToken": True}
        ),
        owner.manifest(version, "Role", name, component, {"rules": rules}),
        owner.manifest(version, "RoleBinding", name, component, binding),
    ]


def _rule(resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Manifest:
    made: Manifest = {"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}
    return {**made, "resourceNames": list(names)} if names else made
