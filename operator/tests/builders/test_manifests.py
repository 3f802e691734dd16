"""Children are what a careful administrator lets in, and fit each other."""

from __future__ import annotations

import copy
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pod_standards import violations
from pydantic import ValidationError

from millrace import checked
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.accepted import accept
from millrace.homes.settings import DriverSettings
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.model import StreamTopology
from millrace.topology.pods import PodSettings
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.access import access
from millrace_operator.builders.asked import asked
from millrace_operator.builders.documents import accepted_map, driver_map, secrets
from millrace_operator.builders.naming import (
    DIGEST,
    FINGERPRINT,
    MADE_WITH,
    Owner,
    selector_text,
)
from millrace_operator.builders.network import budgets, policies, services
from millrace_operator.builders.pods import acker_pod, driver_pod, state_server_pod
from millrace_operator.reconcile.observe import DROP_REMOVED, Resource

ROOT = Path(__file__).parents[3]
OWNER = Owner("words", "jobs", "uid-1", "0.1.0")
SETTINGS = OperatorSettings("runtime:1", "state:1", "system", pull_secrets=("registry",))


def topology(**spec: Any) -> StreamTopology:
    base = {
        "sources": [{"name": "lines", "files": {"path": "texts"}}],
        "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
    }
    return StreamTopology.model_validate(
        {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "StreamTopology",
            "metadata": {"name": "words"},
            "spec": {**base, **spec},
        }
    )


EXECUTING = topology(spark={"executors": {"instances": 2}})


def accepted(model: StreamTopology) -> Any:
    return accept(None, model.document())


def told(model: StreamTopology, number: int = 2, fresh: bool = True) -> dict[str, Any]:
    return driver_map(OWNER, SETTINGS, model, accepted(model), number, fresh)


def executor(**spec: Any) -> dict[str, Any]:
    data = told(topology(**spec))["data"]
    return yaml.safe_load(data["executor.yaml"])


ASKED: dict[str, Any] = {
    "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "8Gi", "example.com/gpu": 1}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "low",
    "labels": {"team": "words", "spark": "x"},
    "annotations": {"example.com/note": "ours"},
}
EVERYTHING: dict[str, Any] = {
    "code": {"configMap": "modules"},
    "volumes": [
        {
            "name": "data",
            "mountPath": "/data",
            "subPath": "words",
            "persistentVolumeClaim": {"claimName": "shared"},
        },
        {"name": "ro", "mountPath": "/ro", "readOnly": True, "emptyDir": {}},
        {
            "name": "scratch",
            "mountPath": "/s",
            "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"},
        },
        {"name": "tables", "mountPath": "/tables", "configMap": {"name": "tables"}},
        {"name": "secret", "mountPath": "/certs", "secret": {"secretName": "certs"}},
    ],
    "pods": dict.fromkeys(("driver", "executors", "ackers", "stateServers"), ASKED),
    "sources": [
        {
            "name": "lines",
            "custom": {
                "class": "words:Lines",
                "options": {"tokens": [{"secretRef": {"name": "api", "key": "token"}}]},
            },
        }
    ],
    "sinks": [
        {
            "name": "out",
            "inputs": [{"from": "lines"}],
            "redis": {
                "url": "redis://store:6379",
                "mode": "stream",
                "stream": "s",
                "password": {"secretRef": {"name": "store", "key": "password"}},
            },
        }
    ],
}
"""All that a topology can ask of its pods."""


def pods(**spec: Any) -> list[dict[str, Any]]:
    coded = topology(**(spec or {"code": {"configMap": "modules"}}))
    plain = topology(**spec)
    return [
        state_server_pod(OWNER, SETTINGS, plain, 0),
        acker_pod(OWNER, SETTINGS, plain, 1),
        driver_pod(OWNER, SETTINGS, coded, 2, "f"),
    ]


def all_pods(**spec: Any) -> list[dict[str, Any]]:
    """Those that Spark makes among them, complete as Spark would make them."""
    made = executor(**(spec or {"code": {"configMap": "modules"}}))
    made["metadata"]["name"] = "words-driver-2-exec-1"
    return [*pods(**spec), made]


def children() -> list[dict[str, Any]]:
    model = topology(stateServers={"replicas": 3, "copies": 2})
    return [
        *pods(),
        *access(OWNER, EXECUTING),
        *services(OWNER, model),
        *budgets(OWNER, model, 2),
        *policies(OWNER, "system"),
        secrets(OWNER, "p4ssword", "k3y", "r00t"),
        accepted_map(OWNER, accepted(model)),
        told(model),
    ]


def named(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


@pytest.mark.parametrize(
    "pod", [*all_pods(), *all_pods(**EVERYTHING)], ids=lambda pod: pod["metadata"]["name"]
)
def test_pods_pass_the_restricted_standard(pod: dict[str, Any]):
    assert violations(pod) == []
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsUser"] > 0
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/tmp"}
    mounted = {m["name"] for m in container["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["spec"]["volumes"]}


@pytest.mark.parametrize(
    "loosen",
    [
        lambda s, c: s.update(hostNetwork=True),
        lambda s, c: s["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        lambda s, c: s["securityContext"].pop("runAsNonRoot"),
        lambda s, c: s["securityContext"].pop("seccompProfile"),
        lambda s, c: s["securityContext"].update(runAsUser=0),
        lambda s, c: c["securityContext"].update(privileged=True),
        lambda s, c: c["securityContext"].pop("allowPrivilegeEscalation"),
        lambda s, c: c["securityContext"].pop("capabilities"),
        lambda s, c: c["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
        lambda s, c: c["ports"][0].update(hostPort=1),
    ],
)
def test_the_judge_sees_each_breach(loosen: Any):
    pod = copy.deepcopy(pods()[0])
    loosen(pod["spec"], pod["spec"]["containers"][0])
    assert len(violations(pod)) == 1


@pytest.mark.parametrize("child", children(), ids=lambda c: f"{c['kind']} {c['metadata']['name']}")
def test_children_belong_to_their_topology(child: dict[str, Any]):
    metadata = child["metadata"]
    assert metadata["namespace"] == "jobs"
    assert metadata["name"].startswith("words-")
    assert len(f"{'t' * 50}{metadata['name'].removeprefix('words')}") <= 63
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["kind"]) == ("uid-1", True, "StreamTopology")
    names = {"name", "instance", "version", "component", "part-of", "managed-by"}
    assert {f"app.kubernetes.io/{name}" for name in names} <= set(metadata["labels"])


def test_names_are_distinct_within_a_kind():
    seen = [(c["kind"], c["metadata"]["name"]) for c in children()]
    assert len(seen) == len(set(seen))


def test_services_and_policies_find_their_pods_alone():
    labels = {p["metadata"]["name"]: p["metadata"]["labels"] for p in pods()}
    found = {
        service["metadata"]["name"]: [
            name
            for name, own in labels.items()
            if service["spec"]["selector"].items() <= own.items()
        ]
        for service in services(OWNER, topology())
    }
    assert found == {"words-state": ["words-state-0"], "words-driver": ["words-driver-2"]}
    for service in services(OWNER, topology()):
        assert service["spec"]["clusterIP"] == "None"
    guarded = {
        p["metadata"]["name"]: p["spec"]["podSelector"]["matchLabels"]
        for p in policies(OWNER, "system")
    }
    assert guarded["words-state"]["app.kubernetes.io/component"] == "state-server"
    assert len(guarded) == 4


def test_state_servers_are_spoken_to_by_their_own_and_the_operator():
    state = named(policies(OWNER, "system"), "NetworkPolicy")["words-state"]["spec"]
    own, operator = state["ingress"]
    peers = [p["podSelector"]["matchLabels"] for p in own["from"]]
    assert {p[names.ROLE_LABEL] for p in peers} == {"driver", "executor", "acker"}
    assert {p[names.TOPOLOGY_LABEL] for p in peers} == {"words"}
    assert own["ports"] == [{"protocol": "TCP", "port": 6379}]
    (namespace,) = [p["namespaceSelector"]["matchLabels"] for p in operator["from"]]
    assert namespace == {"kubernetes.io/metadata.name": "system"}
    assert operator["ports"] == [{"protocol": "TCP", "port": 8081}]


def test_nobody_speaks_to_ackers():
    acker = named(policies(OWNER, "system"), "NetworkPolicy")["words-acker"]["spec"]
    assert (acker["policyTypes"], acker["ingress"]) == (["Ingress"], [])


@pytest.mark.parametrize("spaces", [(), ("monitoring", "more")])
def test_metrics_are_asked_for_from_where_the_operator_was_told(spaces: tuple[str, ...]):
    before = named(policies(OWNER, "system"), "NetworkPolicy")
    after = named(policies(OWNER, "system", spaces), "NetworkPolicy")
    port = [{"protocol": "TCP", "port": names.HEALTH_PORT}]
    for name in ("words-driver", "words-acker"):
        *others, asking = after[name]["spec"]["ingress"]
        assert others == before[name]["spec"]["ingress"]
        labels = [one["namespaceSelector"].get("matchLabels", {}) for one in asking["from"]]
        wanted = [{"kubernetes.io/metadata.name": space} for space in spaces]
        assert (labels, asking["ports"]) == (wanted or [{}], port)
    for name in ("words-state", "words-executor"):
        assert after[name] == before[name]
    # The port that is opened is the one that PodMonitors name.
    for pod in pods():
        if pod["metadata"]["labels"][names.ROLE_LABEL] in ("driver", "acker"):
            ports = pod["spec"]["containers"][0]["ports"]
            assert {"name": "health", "containerPort": names.HEALTH_PORT} in ports


def test_roles_are_bounded_by_names_where_kubernetes_can():
    roles = named(access(OWNER, EXECUTING), "Role")
    driver = roles["words-driver"]["rules"]
    assert not any("*" in [*r["verbs"], *r["resources"], *r["apiGroups"]] for r in driver)
    assert {r for rule in driver for r in rule["resources"]} == {"pods", "configmaps"}
    unbounded = [r["resources"] for r in driver if "resourceNames" not in r]
    assert unbounded == [["pods"]]
    assert not any("create" in r["verbs"] for r in driver if "configmaps" in r["resources"])
    bindings = named(access(OWNER, EXECUTING), "RoleBinding")
    for name, binding in bindings.items():
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"][0]["name"] == name
    accounts = set(named(access(OWNER, EXECUTING), "ServiceAccount"))
    used = {p["spec"].get("serviceAccountName") for p in pods()} - {None}
    assert used == accounts
    assert pods()[0]["spec"]["automountServiceAccountToken"] is False


Rights = set[tuple[str, str]]
"""Of what, and the verb."""


def rights_of(role: str, model: StreamTopology) -> Rights:
    return {
        (f"configmap `{name.replace('words', '<t>')}`" if name else resource, verb)
        for rule in named(access(OWNER, model), "Role")[f"words-{role}"]["rules"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def rights_told() -> dict[str, Rights]:
    """Those of the document, by what it calls whoever has them."""
    text = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
    part = text.partition("\n## Rights\n")[2].partition("\n## ")[0]
    found: dict[str, Rights] = {}
    who = what = ""
    for line in [line for line in part.splitlines() if line.startswith("|")][2:]:
        role, of, verb, reason = (cell.strip() for cell in line.strip("|").split("|"))
        who, what = role or who, of or what
        assert reason
        assert (what, verb) not in found.setdefault(who, set())
        found[who].add((what, verb))
    return found


def test_the_document_says_what_each_right_of_a_pod_is_for():
    """That each of them is used, tests of pods on an API server find in its audit log."""
    told = rights_told()
    assert rights_of("acker", topology()) == told.pop("acker")
    plain = told.pop("driver")
    assert rights_of("driver", topology()) == plain
    assert rights_of("driver", EXECUTING) == plain | told.pop("driver with executors")
    waiting = topology(spark={"driver": {"standby": 1}})
    beside = told.pop("driver without, where one stands by")
    assert rights_of("driver", waiting) == plain | beside
    both = topology(spark={"driver": {"standby": 1}, "executors": {"instances": 2}})
    assert rights_of("driver", both) == rights_of("driver", EXECUTING) >= beside
    assert not told


@pytest.mark.parametrize(
    ("state", "most", "pod"),
    [
        ({}, 768 << 20, "1024Mi"),
        ({"memory": "4g"}, 4 << 30, "5462Mi"),
        ({"memory": "64m"}, 64 << 20, "86Mi"),
        ({"memory": "64Mi"}, 64 << 20, "86Mi"),
    ],
)
def test_a_state_server_has_the_memory_that_the_topology_says(state: Any, most: int, pod: str):
    (container,) = state_server_pod(OWNER, SETTINGS, topology(stateServers=state), 0)["spec"][
        "containers"
    ]
    (limit,) = [v["value"] for v in container["env"] if v["name"] == names.MAX_MEMORY]
    assert int(limit) == most
    memory = {container["resources"][kind]["memory"] for kind in ("limits", "requests")}
    assert memory == {pod}


def test_a_state_server_stays_where_its_node_is_silent_for_a_while():
    """Kubernetes deletes pods of such a node after minutes, and with them the state on it."""
    spec = state_server_pod(OWNER, SETTINGS, topology(), 0)["spec"]
    for_ever = [one for one in spec["tolerations"] if "tolerationSeconds" not in one]
    assert {(one["key"], one["operator"], one["effect"]) for one in for_ever} == {
        ("node.kubernetes.io/not-ready", "Exists", "NoExecute"),
        ("node.kubernetes.io/unreachable", "Exists", "NoExecute"),
    }
    assert "tolerations" not in driver_pod(OWNER, SETTINGS, topology(), 1, "f")["spec"]


@pytest.mark.parametrize(
    ("state", "ackers", "least"),
    [
        ({"replicas": 1}, 1, {"words-state": 1}),
        ({"replicas": 3}, 1, {"words-state": 3}),
        ({"replicas": 3, "copies": 2}, 4, {"words-state": 2, "words-acker": 3}),
        ({"url": "redis://own"}, 2, {"words-acker": 1}),
    ],
)
def test_budgets_keep_the_only_copy(state: dict[str, Any], ackers: int, least: dict[str, int]):
    made = budgets(OWNER, topology(stateServers=state), ackers)
    assert {b["metadata"]["name"]: b["spec"]["minAvailable"] for b in made} == least


def test_of_pods_that_are_not_ready_only_ackers_may_always_be_evicted():
    """Else a drain waits for ever where ackers cannot run; they hold nothing."""
    made = budgets(OWNER, topology(stateServers={"replicas": 3, "copies": 2}), 2)
    policies = {b["metadata"]["name"]: b["spec"]["unhealthyPodEvictionPolicy"] for b in made}
    assert policies == {"words-state": "IfHealthyBudget", "words-acker": "AlwaysAllow"}


def test_while_a_copy_is_made_no_state_server_may_go():
    state = {"replicas": 3, "copies": 2}
    made = budgets(OWNER, topology(stateServers=state), 1, copied=False)
    assert [b["spec"]["minAvailable"] for b in made] == [3]


def test_a_driver_pod_is_one_life_and_others_come_back():
    policy = {p["metadata"]["name"]: p["spec"]["restartPolicy"] for p in pods()}
    assert policy == {
        "words-state-0": "Always",
        "words-acker-1": "Always",
        "words-driver-2": "Never",
    }


@pytest.mark.parametrize(
    ("heap", "memory"),
    [("1g", "1434Mi"), ("512m", "896Mi"), ("10g", "14336Mi"), ("10Gi", "14336Mi")],
)
def test_a_driver_has_memory_beside_its_heap(heap: str, memory: str):
    pod = driver_pod(OWNER, SETTINGS, topology(spark={"driver": {"memory": heap}}), 1, "f")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == memory


def test_user_code_comes_from_where_the_topology_says():
    image = driver_pod(OWNER, SETTINGS, topology(code={"image": "mine:1"}), 1, "f")
    assert image["spec"]["containers"][0]["image"] == "mine:1"
    modules = driver_pod(OWNER, SETTINGS, topology(code={"configMap": "m"}), 1, "f")
    assert {"name": "code", "configMap": {"name": "m"}} in modules["spec"]["volumes"]


def test_an_image_of_ones_own_is_pulled_with_secrets_of_its_own_behind_the_charts():
    code = {"image": "mine:1", "imagePullSecrets": ["mine", "registry", "more.of-mine"]}
    state, acker, driver, executors = all_pods(code=code)
    for pod in (driver, executors):
        named = [one["name"] for one in pod["spec"]["imagePullSecrets"]]
        assert named == ["registry", "mine", "more.of-mine"]
    for pod in (state, acker):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    bare = replace(SETTINGS, pull_secrets=())
    model = topology(code={"image": "mine:1", "imagePullSecrets": ["mine"]})
    pod = driver_pod(OWNER, bare, model, 1, "f")
    assert pod["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    assert "imagePullSecrets" not in driver_pod(OWNER, bare, topology(), 1, "f")["spec"]


def test_secrets_are_nowhere_but_in_their_own_object():
    text = json.dumps([c for c in children() if c["kind"] != "Secret"])
    held = secret_of(secrets(OWNER, "p4ssword", "k3y", "r00t"))
    values = {word for value in held.values() for word in value.split()} - {"acker", "default"}
    assert {"p4ssword", "k3y", "r00t"} < values
    assert [value for value in values if value in text] == []
    for pod in all_pods():
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "secret"]
        assert volume["secret"]["secretName"] == names.secret("words")
        assert volume["secret"]["defaultMode"] == 0o440
        role, own = pod["metadata"]["labels"][names.ROLE_LABEL], pod["metadata"]["name"]
        files = {item["key"]: item["path"] for item in volume["secret"].get("items", [])}
        assert (
            files
            == {
                "state-server": {f"password-{own}": "password", "accepted": "accepted"},
                "acker": {f"password-{own}": "password"},
                "executor": {"run-key": "run-key"},
                "driver": {},
            }[role]
        ), "all of it goes to drivers alone"


def secret_of(manifest: dict[str, Any]) -> dict[str, str]:
    return {key: b64decode(text).decode() for key, text in manifest["data"].items()}


def mounted(pod: dict[str, Any], held: dict[str, str]) -> str:
    """All that a pod reads of the topology's Secret."""
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "secret"]
    return "".join(held[item["key"]] for item in volume["secret"].get("items", [])) or str(held)


def test_a_pod_of_a_state_server_or_acker_reads_its_own_password_and_no_other():
    """What whoever has such a pod's mounted files has: SECURITY.md says it."""
    held = secret_of(secrets(OWNER, "p4ssword", "k3y", "r00t"))
    of = {key.removeprefix("password-"): held[key].strip() for key in held if "password-" in key}
    assert len(set(of.values())) == len(of) == 2 * MOST_MEMBERS
    alone = [pod for pod in all_pods() if pod["metadata"]["name"] in of]
    assert [pod["metadata"]["name"] for pod in alone] == ["words-state-0", "words-acker-1"]
    for pod in alone:
        text = mounted(pod, held)
        assert [name for name in of if of[name] in text] == [pod["metadata"]["name"]]
        assert not any(secret in text for secret in ("p4ssword", "k3y", "r00t"))
    (executing,) = [pod for pod in all_pods() if pod["metadata"]["name"].endswith("exec-1")]
    assert mounted(executing, held) == "k3y"


def test_the_document_says_which_pods_mount_which_keys():
    text = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
    rows = re.findall(
        r"^\| `(root|password-<pod>|accepted|password)` \| .* \| (.*) \|$", text, re.M
    )
    said = {key: who.partition(";")[0] for key, who in rows}
    assert said == {
        "root": "drivers",
        "password-<pod>": "that pod alone, as the file `password`",
        "accepted": "state servers",
        "password": "drivers",
    }
    mounting: dict[str, set[str]] = {key: set() for key in said}
    for pod in all_pods():
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "secret"]
        items = volume["secret"].get("items")
        keys = [item["key"] for item in items] if items else [*said]
        for key in keys:
            known = key.replace(pod["metadata"]["name"], "<pod>")
            if known in mounting:
                mounting[known].add(pod["metadata"]["labels"][names.ROLE_LABEL])
    assert mounting == {
        "root": {"driver"},
        "password-<pod>": {"driver", "state-server", "acker"},
        "accepted": {"driver", "state-server"},
        "password": {"driver"},
    }


def test_there_are_passwords_for_as_many_members_as_there_may_be():
    spec = topology(ackers={"replicas": MOST_MEMBERS}, stateServers={"replicas": MOST_MEMBERS}).spec
    assert (spec.ackers.replicas, spec.state_servers.replicas) == (MOST_MEMBERS, MOST_MEMBERS)
    for field in ("ackers", "stateServers"):
        with pytest.raises(ValidationError):
            topology(**{field: {"replicas": MOST_MEMBERS + 1}})


def test_a_driver_is_told_to_give_up_what_removed_sinks_hold_where_that_is_asked_for():
    model = topology()
    for drops in (False, True):
        document = {"metadata": {"annotations": {DROP_REMOVED: "true" if drops else "yes"}}}
        assert Resource("words", "jobs", "uid-1", 1, document).drops_removed == drops
        made = driver_map(OWNER, SETTINGS, model, accepted(model), 3, False, None, drops)
        settings = checked.verified(json.loads(made["data"]["driver.json"]), required=True)
        assert settings.get("drop_removed", False) == drops
    text = (ROOT / "docs" / "operator.md").read_text()
    assert f"{DROP_REMOVED}=true" in text


def test_what_a_driver_is_told_never_changes_and_is_checked():
    model = topology()
    made = told(model, 3, fresh=False)
    assert made["immutable"] is True
    text = json.loads(made["data"]["driver.json"])
    settings = checked.verified(text, required=True)
    assert settings["view"] == {"kind": "configMap", "namespace": "jobs", "name": "words-view"}
    # All but the places, which belong to the cluster, is what any driver is told.
    memory = {"kind": "memory", "name": "here"}
    plain = {**settings, "view": memory, "inbox": memory, "journal": memory}
    read = codec.decode(DriverSettings, json.dumps(checked.with_checksum(plain)))
    assert (read.uid, read.workdir, read.folder) == ("uid-1", "/var/lib/millrace", "/data")
    assert read.components == accepted(model).components
    assert (read.fresh, read.topology) == (False, "/etc/millrace/config/topology.json")
    document = checked.decode(made["data"]["topology.json"])
    assert StreamTopology.model_validate(document) == model
    pod = driver_pod(OWNER, SETTINGS, model, 3, "f")
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "config"]
    assert volume["configMap"]["name"] == made["metadata"]["name"]


def test_modules_of_a_config_map_are_a_folder_in_pods():
    document = checked.decode(told(topology(code={"configMap": "m"}))["data"]["topology.json"])
    assert document["spec"]["code"] == {"path": names.CODE_FOLDER}
    volumes = [v["name"] for v in executor(code={"configMap": "m"})["spec"]["volumes"]]
    assert "code" in volumes
    assert "code" not in [v["name"] for v in executor()["spec"]["volumes"]]


def test_executors_have_what_spark_leaves_to_us():
    spark = {"executors": {"instances": 2, "cores": 3, "memory": "2g"}}
    pod = executor(spark=spark)
    (container,) = pod["spec"]["containers"]
    assert container["name"] == names.EXECUTOR_CONTAINER
    assert container["resources"]["requests"] == {"cpu": "3", "memory": "2867Mi"}
    assert not {"image", "args", "command", "readinessProbe", "livenessProbe"} & set(container)
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod["metadata"]["name"])
def test_pods_are_as_their_contract_says(pod: dict[str, Any]):
    (container,) = pod["spec"]["containers"]
    role = names.Role(pod["metadata"]["labels"][names.ROLE_LABEL])
    number = int(pod["metadata"]["name"].rpartition("-")[2])
    assert pod["metadata"]["name"] == names.pod_name("words", role, number)
    assert container["args"] == [role.value]
    assert "command" not in container
    assert pod["spec"]["terminationGracePeriodSeconds"] == names.GRACE_S[role]
    given = {e["name"] for e in container["env"]}
    wanted = {*names.DOWNWARD, names.TOPOLOGY, names.UID}
    wanted |= {names.IMAGE, names.IMAGE_PULL_POLICY} if role is names.Role.DRIVER else set()
    wanted |= {names.SECRETS} if role is names.Role.DRIVER else set()
    wanted |= {names.MAX_MEMORY} if role is names.Role.STATE_SERVER else set()
    assert given == wanted
    probes = (container["readinessProbe"], container["livenessProbe"])
    assert [p["httpGet"]["path"] for p in probes] == [names.READY_PATH, names.LIVE_PATH]
    startup = container.get("startupProbe")
    assert (startup is not None) == (role is names.Role.DRIVER)
    if startup is not None:
        assert startup["httpGet"]["path"] == names.LIVE_PATH
        assert startup["periodSeconds"] * startup["failureThreshold"] == 300
    folders = {m["mountPath"] for m in container["volumeMounts"]}
    assert {names.SECRET_FOLDER, names.WORK_FOLDER, names.SCRATCH_FOLDER} <= folders
    assert (names.CONFIG_FOLDER in folders) == (role is names.Role.DRIVER)


@pytest.mark.parametrize("pod", all_pods(**EVERYTHING), ids=lambda pod: pod["metadata"]["name"])
def test_pods_get_what_the_topology_asks_for(pod: dict[str, Any]):
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "3", "memory": "8Gi"},
        "limits": {"memory": "8Gi", "example.com/gpu": "1"},
    }
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    toleration = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    own = pods()[0]["spec"]["tolerations"] if pod["metadata"]["name"] == "words-state-0" else []
    assert pod["spec"]["tolerations"] == [*own, toleration]
    assert pod["spec"]["priorityClassName"] == "low"
    assert (
        pod["metadata"]["labels"].items()
        >= {"team": "words", names.TOPOLOGY_LABEL: "words"}.items()
    )
    assert pod["metadata"]["annotations"]["example.com/note"] == "ours"


def test_what_a_topology_does_not_ask_for_is_as_it_was():
    for pod in all_pods():
        assert not {"nodeSelector", "priorityClassName"} & set(pod["spec"])
        (container,) = pod["spec"]["containers"]
        assert set(container["resources"]["limits"]) == {"memory"}
    (state, acker, driver) = pods()
    assert FINGERPRINT in driver["metadata"]["annotations"]
    for pod in (state, acker):
        (container,) = pod["spec"]["containers"]
        notes = pod["metadata"]["annotations"]
        assert notes == {MADE_WITH: container["image"], DIGEST: notes[DIGEST]}


def test_a_digest_of_a_pod_tells_all_that_it_is_made_with_but_not_by_which_release():
    def digests(owner: Owner, settings: OperatorSettings, asked: StreamTopology) -> list[str]:
        made = (
            state_server_pod(owner, settings, asked, 0),
            acker_pod(owner, settings, asked, 0),
            driver_pod(owner, settings, asked, 1, "f"),
        )
        return [pod["metadata"]["annotations"][DIGEST] for pod in made]

    first = digests(OWNER, SETTINGS, topology())
    assert digests(replace(OWNER, version="9.9"), SETTINGS, topology()) == first
    images = replace(SETTINGS, runtime_image="runtime:9", state_image="state:9")
    placed: dict[str, Any] = {"nodeSelector": {"disk": "fast"}}
    roles = ("stateServers", "ackers", "driver")
    for other in (
        digests(OWNER, images, topology()),
        digests(OWNER, replace(SETTINGS, pull_secrets=("other",)), topology()),
        digests(OWNER, SETTINGS, topology(pods=dict.fromkeys(roles, placed))),
    ):
        assert not set(other) & set(first)


def test_no_label_of_a_topology_takes_the_place_of_ours():
    """The checks refuse it; pods are found by these labels."""
    pod = {"metadata": {"labels": {"mine": "1"}}, "spec": copy.deepcopy(pods()[0]["spec"])}
    made = asked(pod, PodSettings(labels={"mine": "2", "more": "3"}))
    assert made["metadata"]["labels"] == {"mine": "1", "more": "3"}


def test_a_limit_of_cpu_bounds_what_is_requested():
    limits = {"limits": {"cpu": "50m"}}
    pod = acker_pod(OWNER, SETTINGS, topology(pods={"ackers": {"resources": limits}}), 0)
    resources = pod["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("50m", "50m")


def test_data_of_a_state_server_fits_the_memory_of_its_pod():
    limits = {"resources": {"limits": {"memory": "4Gi"}}}
    pod = state_server_pod(OWNER, SETTINGS, topology(pods={"stateServers": limits}), 0)
    (container,) = pod["spec"]["containers"]
    (most,) = [v["value"] for v in container["env"] if v["name"] == names.MAX_MEMORY]
    assert int(most) == 3 << 30
    assert container["resources"]["limits"]["memory"] == "4Gi"


def test_a_claim_with_many_files_does_not_hold_up_a_start():
    for pod in all_pods(**EVERYTHING):
        assert pod["spec"]["securityContext"]["fsGroup"] == names.USER_ID
        assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def mounts(pod: dict[str, Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Volume and mount by the place in the pod."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert len(volumes) == len(pod["spec"]["volumes"])
    found = pod["spec"]["containers"][0]["volumeMounts"]
    assert len({one["mountPath"] for one in found}) == len(found)
    return {one["mountPath"]: (volumes[one["name"]], one) for one in found}


def test_volumes_are_the_same_in_the_driver_and_in_executors_and_nowhere_else():
    state, acker, driver, executors = all_pods(**EVERYTHING)
    wanted = {"/data", "/ro", "/s", "/tables", "/certs"}
    for pod in (state, acker):
        assert not wanted & set(mounts(pod))
    found = mounts(driver)
    for place in wanted:
        assert found[place] == mounts(executors)[place]
    data, at = found["/data"]
    assert data["persistentVolumeClaim"] == {"claimName": "shared"}
    assert (at["subPath"], at["readOnly"]) == ("words", False)
    assert found["/s"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert found["/tables"][0]["configMap"] == {"name": "tables"}
    assert found["/certs"][0]["secret"] == {"secretName": "certs"}
    written = {place for place in wanted if not found[place][1]["readOnly"]}
    assert written == {"/data", "/s"}


def test_pods_that_run_sources_and_sinks_have_the_keys_that_they_refer_to():
    state, acker, driver, executors = all_pods(**EVERYTHING)
    for pod in (driver, executors):
        found = mounts(pod)
        for name, key in (("api", "token"), ("store", "password")):
            volume, at = found[f"{names.SECRETS_FOLDER}/{name}"]
            assert volume["secret"] == {
                "secretName": name,
                "defaultMode": 0o440,
                "optional": True,
                "items": [{"key": key, "path": key}],
            }
            assert at["readOnly"] is True
        given = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        assert given[names.SECRETS] == names.SECRETS_FOLDER
    for pod in (state, acker):
        assert not any(place.startswith(names.SECRETS_FOLDER) for place in mounts(pod))


def test_a_driver_has_the_secrets_of_sinks_that_are_gone():
    """What is sealed may have to be shown there."""
    before = accept(None, accepted(topology(**EVERYTHING)).topology)
    files = {"name": "texts", "inputs": [{"from": "lines"}], "files": {"path": "out"}}
    other = topology(sinks=[files])
    after = accept(before, accepted(other).topology)
    pod = driver_pod(OWNER, SETTINGS, other, 3, "f", after.retired)
    assert f"{names.SECRETS_FOLDER}/store" in mounts(pod)
    assert f"{names.SECRETS_FOLDER}/api" not in mounts(pod)


def test_a_reference_is_all_that_a_driver_is_told_of_a_secret():
    document = checked.decode(told(topology(**EVERYTHING))["data"]["topology.json"])
    redis = document["spec"]["sinks"][0]["redis"]
    assert redis["password"] == {"secretRef": {"name": "store", "key": "password"}}


def test_selectors_as_text():
    assert selector_text({"b": "2", "a": "1"}) == "a=1,b=2"


OWN_SERVER: dict[str, Any] = {
    "stateServers": {
        "url": "rediss://cache:6379?ssl_ca_certs=/certs/ca.crt&ssl_certfile=/certs/tls.crt",
        "password": {"secretRef": {"name": "cache", "key": "password"}},
    },
    "volumes": EVERYTHING["volumes"],
}
"""A state server of the user's own, and volumes of which one has the files of its TLS."""


def test_all_who_ask_a_server_of_ones_own_can_reach_it():
    model = topology(**OWN_SERVER)
    acker = acker_pod(OWNER, SETTINGS, model, 0)
    driver = driver_pod(OWNER, SETTINGS, model, 1, "f")
    executors = executor(**OWN_SERVER, spark={"executors": {"instances": 1}})
    assert violations(acker) == violations(driver) == []
    secret = f"{names.SECRETS_FOLDER}/cache"
    for pod in (acker, driver):
        volume, one = mounts(pod)[secret]
        assert volume["secret"]["items"] == [{"key": "password", "path": "password"}]
        assert volume["secret"]["optional"] is True
        assert one["readOnly"] is True
        env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
        assert env[names.SECRETS] == names.SECRETS_FOLDER
    for pod in (acker, driver, executors):
        assert mounts(pod)["/certs"][0]["secret"] == {"secretName": "certs"}
    # Workers are given the password by their driver.
    assert secret not in mounts(executors)
    assert not {"/data", "/ro", "/s", "/tables"} & set(mounts(acker))
    args = acker["spec"]["containers"][0]["args"]
    assert args == ["acker", names.OWN_SERVER_OPTION, "cache/password"]


def test_an_acker_says_which_server_it_was_made_for():
    plain = acker_pod(OWNER, SETTINGS, topology(), 0)
    assert FINGERPRINT not in plain["metadata"].get("annotations", {})
    assert names.OWN_SERVER_OPTION not in plain["spec"]["containers"][0]["args"]
    server = OWN_SERVER["stateServers"]
    other = {**server, "password": {"secretRef": {"name": "cache", "key": "other"}}}
    open_to_all = {"url": "redis://cache:6379"}
    prints = set()
    for settings in (server, other, open_to_all):
        pod = acker_pod(OWNER, SETTINGS, topology(**{**OWN_SERVER, "stateServers": settings}), 0)
        prints.add(pod["metadata"]["annotations"][FINGERPRINT])
    assert len(prints) == 3
    again = acker_pod(OWNER, SETTINGS, topology(**OWN_SERVER, parallelism=4), 0)
    assert again["metadata"]["annotations"][FINGERPRINT] in prints


def test_a_server_of_ones_own_has_no_service_and_no_policy_that_stands_in_its_way():
    model = topology(**OWN_SERVER)
    made = policies(OWNER, "system", state_servers=False)
    assert {one["metadata"]["name"] for one in made} == {
        *("words-driver", "words-acker", "words-executor"),
    }
    assert all(one["spec"]["policyTypes"] == ["Ingress"] for one in made)
    assert [one["metadata"]["name"] for one in services(OWNER, model)] == ["words-driver"]
    assert [one["metadata"]["name"] for one in budgets(OWNER, model, 1)] == []
