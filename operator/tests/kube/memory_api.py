"""An API server in memory, as far as the operator speaks to it: the edge of HTTP, and no further.

What it does of versions, conditions and server-side apply is held against a real API server by the
tests of the cluster.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hand_clock import HandClock

from millrace.homes.stores import HomeAwayError

Json = dict[str, Any]


@dataclass
class MemoryApi:
    """``objects`` by path. ``refused`` are answers for creations, by the object's name, or by kind
    and name (``pods/x``); ``away`` is whether no answer comes. ``calls`` is what was asked."""

    objects: dict[str, Json] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    away: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)
    page: int = 500
    clock: HandClock | None = None
    """What objects and answers are dated by, where they are."""
    answers_by: HandClock | None = None
    """What answers are dated by, where that is another clock."""
    read: set[str] = field(default_factory=set)
    """Paths of objects that were asked for as a whole."""
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "",
        accept: str = "",
        query: Mapping[str, str] | None = None,
        answer_s: float | None = None,
    ) -> tuple[int, Json]:
        self.calls.append((method, path))
        heads = "as=PartialObjectMetadata" in accept
        if self.away:
            raise HomeAwayError(f"{method} {path}: no answer")
        body, query = copy.deepcopy(body), query or {}
        match method:
            case "GET" if path in self.objects:
                if not heads:
                    self.read.add(path)
                found = self.objects[path]
                return 200, copy.deepcopy({"metadata": found["metadata"]} if heads else found)
            case "GET" if _is_collection(path):
                return 200, self._list(path, query, {"metadata"} if heads else None)
            case "POST":
                return self._create(path, body)
            case "PATCH" if "apply" in kind:
                return self._apply(path, body)
            case "PATCH":
                return self._change(path, body, body)
            case "PUT":
                held = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}}
                return self._change(path, held, body, whole=True)
            case "DELETE":
                return self._delete(path, body)
        return _no(404, "not found")

    def dated(self, path: str) -> tuple[int, Json, datetime | None]:
        clock = self.answers_by or self.clock
        return *self.answer("GET", path), None if clock is None else _moment(clock)

    def writes(self) -> list[str]:
        return [f"{method} {path}" for method, path in self.calls if method != "GET"]

    def put(self, path: str, found: Json) -> Json:
        """An object that somebody else makes or changes."""
        metadata = found.setdefault("metadata", {})
        metadata.setdefault("uid", f"u{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        if self.clock is not None:
            time = _moment(self.clock).strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata["managedFields"] = [{"manager": "some", "time": time}]
        self.objects[path] = found
        return found

    def _list(self, path: str, query: Mapping[str, str], only: set[str] | None) -> Json:
        spaced, _, plural = path.rpartition("/")
        labelled = [w for w in query.get("labelSelector", "").split(",") if w]
        without = {w[1:] for w in labelled if w.startswith("!")}
        wanted = dict(w.split("=") for w in labelled if not w.startswith("!"))
        called = query.get("fieldSelector", "").removeprefix("metadata.name=")
        found = []
        for place, one in sorted(self.objects.items()):
            folder = place.rpartition("/")[0]
            apart = folder.startswith(f"{spaced}/namespaces/") and folder.endswith(f"/{plural}")
            labels = one["metadata"].get("labels") or {}
            if called not in ("", place.rpartition("/")[2]) or without & labels.keys():
                continue
            if (folder == path or apart) and wanted.items() <= labels.items():
                shown = {k: v for k, v in one.items() if k != "kind" and k in (only or one)}
                found.append(copy.deepcopy(shown))
        start = int(query.get("continue", "0"))
        more = start + min(self.page, int(query.get("limit", self.page)))
        told = {"continue": str(more)} if more < len(found) else {}
        # As real ones do: of heads there is a null where there are none.
        items = found[start:more]
        return {"metadata": told, "items": items or (None if only else [])}

    def _create(self, path: str, body: Json) -> tuple[int, Json]:
        name = body["metadata"]["name"]
        place = f"{path.rpartition('/')[2]}/{name}"
        for refused in (name, place):
            if refused in self.refused:
                return _no(*self.refused[refused])
        if f"{path}/{name}" in self.objects:
            return _no(409, "already exists")
        return 201, copy.deepcopy(self.put(f"{path}/{name}", body))

    def _apply(self, path: str, body: Json) -> tuple[int, Json]:
        place, _, sub = path.partition("/status")
        if place not in self.objects:
            if path.endswith("/status") or "uid" in body["metadata"]:
                return _no(409, "it is not there")
            folder = place.rpartition("/")[0]
            return self._create(folder, body)
        del sub
        return self._change(place, body, body, applied=True)

    def _change(
        self, path: str, held: Json, body: Json, whole: bool = False, applied: bool = False
    ) -> tuple[int, Json]:
        found = self.objects.get(path)
        if found is None:
            return _no(404, "not found")
        for name, status in (("resourceVersion", 409), ("uid", 422)):
            wanted = held.get("metadata", {}).pop(name, None)
            if wanted is not None and wanted != found["metadata"][name]:
                return _no(status, f"its {name} is another")
        before = copy.deepcopy(found)
        if whole:
            found["spec"] = body["spec"]
        elif applied and "status" in body:
            found["status"] = body["status"]
        else:
            _merge(found, body)
        if found != before:
            self.put(path, found)
        return 200, copy.deepcopy(found)

    def _delete(self, path: str, body: Json) -> tuple[int, Json]:
        found = self.objects.get(path)
        if found is None:
            return _no(404, "not found")
        for name, wanted in body["preconditions"].items():
            if found["metadata"][name] != wanted:
                return _no(409, f"its {name} is another")
        bound = found.get("spec", {}).get("nodeName")
        if bound and path.rpartition("/")[0].endswith("/pods") and "gracePeriodSeconds" not in body:
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(path, found)
        else:
            del self.objects[path]
        return 200, {}


def _moment(clock: HandClock) -> datetime:
    return datetime.fromtimestamp(int(clock.now_s()), UTC)


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    return len(rest) in (1, 3)


def _merge(found: Json, body: Json) -> None:
    for name, value in body.items():
        if isinstance(value, dict) and isinstance(found.get(name), dict):
            _merge(found[name], value)
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = value


def _no(status: int, message: str) -> tuple[int, Json]:
    return status, {"kind": "Status", "message": message}
