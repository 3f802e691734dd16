"""What the operator must hold beside what it uses: a real API server refuses the roles of pods to
whoever has less than they give and, where it checks owner references, all children."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from rights_of_pods import made_by_the_operator

from millrace.kube.configmaps import Api, by_kubeconfig
from millrace.topology.model import StreamTopology
from millrace_e2e import kubeapi
from millrace_e2e.topologies import word_count
from millrace_e2e.waiting import until
from millrace_operator.kube.objects import Objects, RefusedError

ROOT = Path(__file__).parents[3]
RIGHTS = yaml.safe_load((ROOT / "charts" / "millrace" / "files" / "rights.yaml").read_text())
WAIT_S = 60.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MADE = made_by_the_operator(
    StreamTopology.model_validate(
        {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "StreamTopology",
            "metadata": {"name": "words"},
            "spec": {**word_count({}), "spark": {"executors": {"instances": 2}}},
        }
    )
)
GIVEN = sorted(
    {
        right
        for one in MADE
        for rule in one.get("rules", ())
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }
)
FINALIZERS = ("millrace.dev", "streamtopologies/finalizers", "update")
STRICT = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
OPERATOR = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "operator"}
Right = tuple[str, str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with serving(tmp_path_factory.mktemp("api") / "server") as server:
        yield server


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[kubeapi.ApiServer]:
    """An API server whose user ``operator`` has no rights yet."""
    with kubeapi.serving(folder, rightless=("operator",), more=more) as server:
        api = by_kubeconfig(file=str(server.kubeconfig))
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        api.call("POST", ROLES, {**role, "metadata": {"name": "operator"}, "rules": []})
        reference = {"apiGroup": OPERATOR["apiGroup"], "kind": "ClusterRole", "name": "operator"}
        binding = {**role, "kind": "ClusterRoleBinding", "metadata": {"name": "operator"}}
        told = {**binding, "roleRef": reference, "subjects": [OPERATOR]}
        api.call("POST", f"{ROLES.removesuffix('roles')}rolebindings", told)
        yield server


def without(right: Right | None) -> list[dict[str, Any]]:
    """The chart's rules for the namespaces of topologies, but for one right."""
    rules = []
    for rule in [*RIGHTS["topologies"], *RIGHTS["ownerReferences"]]:
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            if (group, resource, verb) != right:
                rules.append({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
    return rules


def let(server: kubeapi.ApiServer, right: Right | None) -> Objects:
    """The operator, without one of the chart's rights, once the API server has heard of it."""
    api = by_kubeconfig(file=str(server.kubeconfig))
    body, merge = {"rules": without(right)}, "application/merge-patch+json"
    api.call("PATCH", f"{ROLES}/operator", body, kind=merge)
    operator = by_kubeconfig(file=str(server.kubeconfig_of("operator")))
    for one in [*GIVEN, FINALIZERS]:
        until(lambda one=one: may(operator, one) is (one != right), f"{one} is known", WAIT_S)
    return Objects(operator)


def may(api: Api, right: Right) -> bool:
    group, resource, verb = right
    resource, _, part = resource.partition("/")
    asked = {"namespace": "default", "group": group, "resource": resource, "verb": verb}
    asked |= {"subresource": part} if part else {}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = api.call("POST", path, {**kind, "spec": {"resourceAttributes": asked}})
    return bool(answer["status"]["allowed"])


def test_with_the_rights_of_the_chart_pods_are_given_theirs(server: kubeapi.ApiServer) -> None:
    objects = let(server, None)
    for one in MADE:
        objects.apply(one)


@pytest.mark.parametrize("right", GIVEN, ids=lambda right: " ".join(right[1:]))
def test_without_one_of_them_no_role_has_it(server: kubeapi.ApiServer, right: Right) -> None:
    _, resource, verb = right
    for number, one in enumerate(MADE):
        rules = [rule for rule in one.get("rules", ()) if resource in rule["resources"]]
        if not any(verb in rule["verbs"] for rule in rules):
            continue
        # Made anew: nobody is asked about a role that stays as it is.
        fresh = {**one["metadata"], "name": f"{resource}-{verb}-{number}"}
        with pytest.raises(RefusedError, match="attempting to grant RBAC permissions") as refused:
            let(server, right).apply({**one, "metadata": fresh})
        assert refused.value.status == 403


def test_where_owner_references_are_checked_no_child_is_made_without_the_right_to_finalizers(
    tmp_path: Path,
) -> None:
    """As on OpenShift, whose API server checks them."""
    child = MADE[0]

    def refused(objects: Objects, name: str) -> str:
        try:
            objects.apply({**child, "metadata": {**child["metadata"], "name": name}})
        except RefusedError as error:
            return f"{error.status}: {error.message}"
        return ""

    with serving(tmp_path / "server", STRICT) as server:
        api = by_kubeconfig(file=str(server.kubeconfig))
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            api.call("POST", DEFINITIONS, yaml.safe_load(file.read_text()))
        objects = let(server, None)
        # It hears of a definition up to ten seconds later.
        until(lambda: refused(objects, "with") == "", "a child is made", WAIT_S)
        told = refused(let(server, FINALIZERS), "without")
        assert told.startswith("403: ")
        assert "can't set finalizers on" in told
