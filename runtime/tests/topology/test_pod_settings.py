"""What a topology says of pods, volumes and secrets is checked before any pod is made."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from topology_texts import changed, model, problems_in

from millrace.homes import pods as names
from millrace.topology.checks.pods import lost_place, on_cluster, plain_passwords
from millrace.topology.pods import (
    OWN_FOLDERS,
    Resources,
    Volume,
    in_pods,
    spot,
    volume_of,
    within,
)
from millrace.topology.scalars import quantity, quantity_bytes


def claim(place: str = "/data", name: str = "data", **more: Any) -> dict[str, Any]:
    kind = {"persistentVolumeClaim": {"claimName": "shared"}}
    return {"name": name, "mountPath": place, **(more or kind)}


def said(**spec: Any) -> list[tuple[str, str]]:
    """Path and message of each problem."""
    return [(p.path, p.message) for p in problems_in(changed(**spec))]


def pod(**settings: Any) -> list[tuple[str, str]]:
    return said(pods={"driver": settings})


@pytest.mark.parametrize(
    ("volumes", "path", "message"),
    [
        ([{"name": "a", "mountPath": "/a"}], "spec.volumes[0]", "declares no kind"),
        (
            [{**claim(), "emptyDir": {}}],
            "spec.volumes[0]",
            "declares persistentVolumeClaim and emptyDir",
        ),
        ([claim(), claim("/d")], "spec.volumes[1].name", "is the name of another volume too"),
        (
            [claim(), claim(name="more")],
            "spec.volumes[1].mountPath",
            "is the place of volume 'data' too",
        ),
        ([claim("/etc")], "spec.volumes[0].mountPath", "would hide /etc/millrace or lie in it"),
        ([claim("/tmp/x")], "spec.volumes[0].mountPath", "would hide /tmp or lie in it"),
        ([claim("/var/lib")], "spec.volumes[0].mountPath", "would hide /var/lib/millrace"),
        ([claim("data")], "spec.volumes[0].mountPath", "is no place for a volume"),
        ([claim("/a/../b")], "spec.volumes[0].mountPath", "is no place for a volume"),
        ([claim("/")], "spec.volumes[0].mountPath", "is no place for a volume"),
        (
            [{**claim(), "subPath": "../other"}],
            "spec.volumes[0].subPath",
            "is no path below a volume",
        ),
        (
            [claim(emptyDir={"sizeLimit": "1 GB"})],
            "spec.volumes[0].emptyDir.sizeLimit",
            "is no quantity of Kubernetes",
        ),
        (
            [claim(configMap={"name": "Tables"})],
            "spec.volumes[0].configMap.name",
            "cannot name an object of Kubernetes",
        ),
    ],
)
def test_volumes(volumes: list[Any], path: str, message: str):
    ((at, found),) = said(volumes=volumes)
    assert at == path
    assert message in found


def test_volumes_that_are_sound():
    assert said(volumes=[claim(), claim("/data/more", "more"), claim("/s", "s", emptyDir={})]) == []


def test_no_volume_lies_over_what_pods_are_given():
    """The folders of the contract, and the places where images keep what they run."""
    given = [value for name, value in vars(names).items() if name.endswith("_FOLDER")]
    for folder in {*given, "/usr/bin", "/opt/millrace/packages"} - {names.DATA_FOLDER}:
        assert any(within(folder, own) for own in OWN_FOLDERS), folder


@pytest.mark.parametrize(
    ("toleration", "message"),
    [
        ({}, "names no key, which Equal needs"),
        ({"key": "a", "operator": "Exists", "value": "b"}, "has a value"),
        ({"key": "a", "tolerationSeconds": 3}, "has tolerationSeconds without NoExecute"),
        (
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3},
            "has tolerationSeconds without NoExecute",
        ),
    ],
)
def test_tolerations(toleration: Any, message: str):
    ((path, found),) = pod(tolerations=[toleration])
    assert path == "spec.pods.driver.tolerations[0]"
    assert message in found


def test_tolerations_that_are_sound():
    sound = [
        {"operator": "Exists"},
        {"key": "a", "value": ""},
        {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    assert pod(tolerations=sound) == []


@pytest.mark.parametrize(
    ("field", "pairs", "message"),
    [
        ("labels", {"a b": "c"}, "is no name of a label"),
        ("labels", {"a": "b c"}, "is no value of a label"),
        ("labels", {"a": "x" * 64}, "is no value of a label"),
        ("labels", {"millrace.dev/topology": "other"}, "is a name that pods get from Millrace"),
        ("labels", {"app.kubernetes.io/component": "x"}, "is a name that pods get from Millrace"),
        ("labels", {"spark-role": "x"}, "is a name that pods get from Millrace or Spark"),
        ("annotations", {"millrace.dev/fingerprint": "x"}, "is a name that pods get from Millrace"),
        ("nodeSelector", {"disk": "a/b"}, "is no value of a label"),
    ],
)
def test_labels(field: str, pairs: dict[str, str], message: str):
    ((path, found),) = pod(**{field: pairs})
    assert path.startswith(f"spec.pods.driver.{field}")
    assert message in found


def test_labels_that_are_sound():
    assert (
        pod(labels={"example.com/a": "", "b": "C_1.d"}, annotations={"a": "any text, at all"}) == []
    )
    assert pod(nodeSelector={"kubernetes.io/arch": "arm64"}) == []


@pytest.mark.parametrize(
    ("resources", "path", "message"),
    [
        ({"requests": {"memory": "2Gi"}}, "requests.memory", "cannot be requested apart"),
        ({"requests": {"c pu": "2"}}, "requests.c pu", "is no name of a resource"),
        ({"limits": {"cpu": 0}}, "limits.cpu", "is nothing"),
        ({"limits": {"memory": "1Gi"}}, "limits.memory", "leaves nothing beside the heap of 1g"),
        (
            {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}},
            "requests.cpu",
            "is more than its limit (1500m)",
        ),
        ({"limits": {"cpu": "-1"}}, "limits.cpu", "is no quantity of Kubernetes"),
        ({"limits": {"cpu": 0.5}}, "limits.cpu", "is no quantity of Kubernetes"),
        ({"limits": {"cpu": True}}, "limits.cpu", "is read as a boolean"),
    ],
)
def test_resources(resources: Any, path: str, message: str):
    ((at, found),) = pod(resources=resources)
    assert at == f"spec.pods.driver.resources.{path}"
    assert message in found


def test_memory_of_state_servers_is_said_once():
    pods = {"stateServers": {"resources": {"limits": {"memory": "1Gi"}}}}
    ((path, message),) = said(pods=pods, stateServers={"memory": "1g"})
    assert path == "spec.pods.stateServers.resources.limits.memory"
    assert "spec.stateServers.memory (1g)" in message
    assert said(pods=pods, stateServers={"memory": "768m"}) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("500m", Decimal("0.5")),
        ("1.5Gi", 3 << 29),
        ("2k", 2000),
        ("1Ki", 1024),
        ("3M", 3_000_000),
        ("1Ti", 1 << 40),
    ],
)
def test_quantities(text: str, number: Any):
    assert quantity(text) == number
    assert quantity_bytes("1500m") == 2


def test_a_whole_number_is_a_quantity_as_kubernetes_takes_it():
    spec = model(changed(pods={"ackers": {"resources": {"requests": {"cpu": 2}}}})).spec
    assert spec.pods.ackers.resources.requests == {"cpu": "2"}


def test_what_is_not_asked_for_stays_as_it_is():
    assert Resources().over("1", "2Gi") == ({"cpu": "1", "memory": "2Gi"}, {"memory": "2Gi"})
    asked = Resources(limits={"cpu": "500m", "memory": "1Gi"}, requests={"gpu": "1"})
    requests, limits = asked.over("1", "2Gi")
    assert requests == {"cpu": "500m", "memory": "1Gi", "gpu": "1"}
    assert limits == {"cpu": "500m", "memory": "1Gi"}


def volumes(*places: dict[str, Any]) -> list[Volume]:
    return [Volume.model_validate(one) for one in places]


def test_files_lie_on_the_innermost_volume():
    given = volumes(
        {**claim(), "subPath": "team"},
        claim("/data/in", "in", persistentVolumeClaim={"claimName": "other"}),
        claim("/scratch", "scratch", emptyDir={}),
    )
    assert spot("/data/out", given) == ("shared", "team/out")
    assert spot("/data", given) == ("shared", "team")
    assert spot("/data/in/texts", given) == ("other", "texts")
    assert spot("/scratch/x", given) is None
    assert spot("/database", given) is None
    assert volume_of("/database", given) is None
    assert in_pods("../out", "/data") == "/out"
    assert in_pods("/a//b/", "/data") == "/a/b"


@pytest.mark.parametrize(
    ("snapshots", "said"),
    [
        ({}, None),
        ({"every": "1m", "to": "kept"}, None),
        ({"every": "1m", "to": "s3://bucket/words"}, None),
        ({"every": "1m"}, "is missing: snapshots would lie in the driver's pod"),
        ({"to": "/kept"}, "lies on no volume in pods (/kept)"),
        ({"every": "1m", "to": "file:///data/kept"}, None),
        ({"every": "1m", "to": "file:///kept"}, "lies on no volume in pods (/kept)"),
        ({"every": "1m", "to": "/scratch/kept"}, "lies on volume 'scratch', which is no claim"),
    ],
)
def test_snapshots_outlive_the_pod_that_takes_them(snapshots: Any, said: str | None):
    given = [claim(), claim("/scratch", "scratch", emptyDir={})]
    found = on_cluster(model(changed(volumes=given, snapshots=snapshots)), "/data")
    assert [p.path for p in found] == (["spec.snapshots.to"] if said else [])
    assert all(said in p.message for p in found)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("users.csv", None),
        ("/tables/users.csv", None),
        ("/opt/users.csv", None),  # it may come with the image
        ("../users.csv", "lies on no volume in pods (/users.csv)"),
        ("/scratch/users.csv", "lies on volume 'scratch', which is no claim"),
    ],
)
def test_tables_lie_where_the_drivers_pod_has_them(path: str, said: str | None):
    given = [
        claim(),
        claim("/scratch", "scratch", emptyDir={}),
        claim("/tables", "tables", configMap={"name": "users"}),
    ]
    lookup = {"table": {"path": path, "format": "csv", "schema": "word string"}}
    spec = changed(volumes=given)["spec"]
    spec["processors"].append(
        {
            "name": "known",
            "inputs": [{"from": "split"}],
            "lookup": {**lookup, "key": [{"column": "word"}], "missing": "Drop"},
        }
    )
    spec["sinks"].append({"name": "some", "inputs": [{"from": "known"}], "files": {"path": "some"}})
    found = on_cluster(model(changed(**spec)), "/data")
    assert [p.path for p in found] == (["spec.processors[2].lookup.table.path"] if said else [])
    assert all(said in p.message and "configMap" in p.remedy for p in found)


def sinks(url: str, **options: Any) -> Any:
    inputs = [{"from": "counts"}]
    redis = {"url": url, "mode": "stream", "stream": "s"}
    own = {"class": "words:Sink", "options": options}
    return model(
        changed(
            sinks=[
                {"name": "store", "inputs": inputs, "redis": redis},
                {"name": "own", "inputs": inputs, "custom": own},
            ]
        )
    )


@pytest.mark.parametrize(
    "url", ["redis://:pA5s@h:1", "rediss://me:pA5s@h:1/2", "redis://h:1?password=pA5s"]
)
def test_passwords_in_addresses_are_found_and_not_repeated(url: str):
    found = plain_passwords(sinks(url, places=[{"at": "sql://me:pA5s@h/db"}]))
    assert [p.path for p in found] == [
        "spec.sinks[0].redis.url",
        "spec.sinks[1].custom.options.places[0].at",
    ]
    assert all("pA5s" not in str(p) and "secretRef" in str(p) for p in found)


def test_so_are_those_in_places_of_snapshots():
    place = "sftp://me:pA5s@h/snapshots"
    found = plain_passwords(
        model(changed(snapshots={"to": place}, restoreFrom={"place": place, "name": "first"}))
    )
    assert [p.path for p in found] == ["spec.snapshots.to", "spec.restoreFrom.place"]
    assert all("pA5s" not in str(p) and "/etc/fsspec" in str(p) for p in found)
    astray = lost_place(model(changed()), place, "/data")
    assert astray is not None
    assert "holds a password" in astray
    assert lost_place(model(changed()), place.replace(":pA5s", ""), "/data") is None


def test_addresses_without_a_password_are_no_secret():
    ref = {"secretRef": {"name": "store", "key": "url"}}
    options = {"at": "sql://me@h/db", "note": "a:b@c", "whole": ref, "broken": "x://[:y@z"}
    assert plain_passwords(sinks("redis://h:1", **options)) == []


def test_what_is_restored_from_outlives_pods():
    given = changed(volumes=[claim()], onStateLoss="Restore")
    assert [p.path for p in on_cluster(model(given), "/data")] == ["spec.snapshots.to"]
    kept = changed(volumes=[claim()], onStateLoss="Restore", snapshots={"to": "snapshots"})
    assert on_cluster(model(kept), "/data") == []


def test_a_topology_on_a_cluster_is_called_as_a_service_may_be():
    named = model(changed(volumes=[claim()]))
    assert on_cluster(named, "/data") == []
    digit = named.metadata.model_copy(update={"name": "2-words"})
    (problem,) = on_cluster(named.model_copy(update={"metadata": digit}), "/data")
    assert (problem.path, problem.value) == ("metadata.name", "2-words")


def test_a_folder_beside_the_volume_is_not_on_it():
    spec = changed(
        volumes=[claim()],
        sinks=[{"name": "out", "inputs": [{"from": "counts"}], "files": {"path": "../out"}}],
    )
    (problem,) = on_cluster(model(spec), "/data")
    assert (problem.path, problem.value) == ("spec.sinks[0].files.path", "../out")
    assert "(/out)" in problem.message
    assert "persistentVolumeClaim" in problem.remedy
    assert on_cluster(model(changed(volumes=[claim()])), "/data") == []
