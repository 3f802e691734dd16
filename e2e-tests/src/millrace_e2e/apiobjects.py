"""Everything that an API server holds, asked of the server itself: for what is left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.kube.configmaps import Api


def all_objects(api: Api) -> dict[str, str]:
    """The uid of every object by ``resource namespace/name``, but for events, Leases of the cluster
    itself, and what the API server registers by itself for each definition."""
    found = {}
    for path, resource in _resources(api):
        status, page = api.answer("GET", path)
        if status != 200:
            continue  # a definition that goes away meanwhile
        for item in page["items"]:
            metadata = item["metadata"]
            space = metadata.get("namespace", "")
            if resource in ("events", "apiservices") or (
                resource == "leases" and space.startswith("kube-")
            ):
                continue
            found[f"{resource} {space}/{metadata['name']}"] = metadata.get("uid", "")
    return found


def _resources(api: Api) -> Iterator[tuple[str, str]]:
    for path in _versions(api):
        status, page = api.answer("GET", path)
        if status != 200:
            continue
        for one in page["resources"]:
            if "list" in one["verbs"] and "/" not in one["name"]:
                yield f"{path}/{one['name']}", one["name"]


def _versions(api: Api) -> Iterator[str]:
    yield "/api/v1"
    groups: Mapping[str, Any] = api.call("GET", "/apis")
    for group in groups["groups"]:
        yield f"/apis/{group['preferredVersion']['groupVersion']}"
