"""The secret and the config maps of a topology (``docs/pods.md``)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from millrace import checked
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.accepted import Accepted
from millrace.homes.passwords import secret_data
from millrace.homes.pods import PERIODIC_LABEL, TOPOLOGY_LABEL
from millrace.homes.settings import RestoreSettings
from millrace.topology.model import API_VERSION, StreamTopology
from millrace_operator.api.resources import TopologySnapshot
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.naming import Manifest, Owner
from millrace_operator.builders.pods import executor_pod

ACCEPTED_KEY = "accepted.json"
BOOKS_KEY = "snapshots.json"
"""In the config map ``books_name``."""

FORMAT = 1
"""Of the accepted topology."""


def secrets(owner: Owner, password: str, run_key: str, root_key: str) -> Manifest:
    """What pods know each other by; made once and never replaced, since servers go by it.
    ``password`` is what pods of releases without a ``root_key`` share."""
    data = {names.PASSWORD_KEY: password, names.RUN_KEY: run_key, names.ROOT_KEY: root_key}
    data |= secret_data(owner.name, owner.uid, data)
    body = {"type": "Opaque", "data": secret_values(data)}
    return owner.manifest("v1", "Secret", names.secret(owner.name), "state-server", body)


def secret_values(data: Mapping[str, str]) -> dict[str, str]:
    """Texts as a Secret holds them."""
    return {key: b64encode(text.encode()).decode() for key, text in data.items()}


def empty_map(owner: Owner, name: str) -> Manifest:
    """A config map that others fill."""
    return owner.manifest("v1", "ConfigMap", name, "driver", {})


def filled_maps(owner: Owner) -> tuple[str, ...]:
    """Names of the config maps of the driver and of those who speak to it."""
    return tuple(name(owner.name) for name in (names.view_map, names.inbox_map, names.journal_map))


def accepted_name(owner: Owner) -> str:
    """The config map of the accepted topology."""
    return names.accepted_map(owner.name)


def accepted_map(owner: Owner, accepted: Accepted) -> Manifest:
    """The topology as it was last accepted, with the lives of its components."""
    text = json.dumps(checked.with_checksum({"format": FORMAT, **asdict(accepted)}))
    body = {"data": {ACCEPTED_KEY: text}}
    return owner.manifest("v1", "ConfigMap", accepted_name(owner), "driver", body)


def books_name(owner: Owner) -> str:
    """The config map of what the operator knows of snapshots."""
    return names.snapshots_map(owner.name)


def books_map(owner: Owner, books: Any) -> Manifest:
    """Snapshots that have resources, or had, of which something follows when these go; a document
    of ``homes.codec``."""
    body = {"data": {BOOKS_KEY: json.dumps(codec.encode(books))}}
    return owner.manifest("v1", "ConfigMap", books_name(owner), "driver", body)


def periodic_snapshot(owner: Owner, name: str) -> Manifest:
    """The resource of a snapshot that a topology has taken by itself. It has no owner: it stays
    when the topology goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": TopologySnapshot.__name__,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {PERIODIC_LABEL: owner.uid, TOPOLOGY_LABEL: owner.name},
        },
        "spec": {"topology": owner.name},
    }


def driver_map(
    owner: Owner,
    settings: OperatorSettings,
    topology: StreamTopology,
    accepted: Accepted,
    number: int,
    fresh: bool,
    restore: RestoreSettings | None = None,
    drop_removed: bool = False,
) -> Manifest:
    """All that driver pod ``number`` is told; it never changes."""
    # JSON is YAML too.
    executor = executor_pod(owner, settings, topology)
    told = _told(owner, accepted, fresh, restore)
    if drop_removed:
        told["drop_removed"] = True
    data = {
        names.TOPOLOGY_KEY: json.dumps(checked.with_checksum(_document(accepted))),
        names.DRIVER_KEY: json.dumps(checked.with_checksum(told)),
        names.EXECUTOR_KEY: json.dumps(executor, indent=1),
    }
    name = names.pod_name(owner.name, names.Role.DRIVER, number)
    body = {"immutable": True, "data": data}
    return owner.manifest("v1", "ConfigMap", name, "driver", body)


def _document(accepted: Accepted) -> dict[str, Any]:
    """The topology as pods see it: modules of a config map lie in a folder there."""
    document = dict(accepted.topology)
    if document["spec"].get("code", {}).get("configMap") is not None:
        document["spec"] = {**document["spec"], "code": {"path": names.CODE_FOLDER}}
    return document


def _told(
    owner: Owner, accepted: Accepted, fresh: bool, restore: RestoreSettings | None
) -> dict[str, Any]:
    """``homes.settings.DriverSettings`` as they are kept."""
    places = zip(("view", "inbox", "journal"), filled_maps(owner), strict=True)
    return {
        "format": codec.FORMAT,
        "uid": owner.uid,
        "workdir": names.WORK_FOLDER,
        "topology": f"{names.CONFIG_FOLDER}/{names.TOPOLOGY_KEY}",
        "folder": names.DATA_FOLDER,
        **{
            place: {"kind": "configMap", "namespace": owner.namespace, "name": name}
            for place, name in places
        },
        "components": asdict(accepted.components),
        "retired": [asdict(one) for one in accepted.retired],
        "fresh": fresh,
        **({} if restore is None else {"restore": asdict(restore)}),
        **({"tuned": accepted.tuned} if accepted.tuned else {}),
    }
