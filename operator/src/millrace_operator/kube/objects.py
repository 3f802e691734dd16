"""Objects of one API server, as JSON: read, created, applied, deleted.

Nothing is tried again here. What an answer means is said by the error, and the plan that comes next
is made of what is there then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from millrace.errors import MillraceError
from millrace.kube.configmaps import Api
from millrace_operator.builders.naming import MANAGER
from millrace_operator.kube import kinds

CREATION_S = 15.0
"""How long the answer to a pod's creation is waited for. Admission webhooks are asked meanwhile,
for ten seconds where they do not say otherwise; one that answers late must not be cut off."""

Object = Mapping[str, Any]
Answer = tuple[int, dict[str, Any]]

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
AT_ONCE = 20
"""Objects in one answer of a list. Anybody may put objects of a megabyte each where they are listed
with those of a topology."""

_HEAD = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_HEADS = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class RefusedError(MillraceError):
    """The API server does not take what it is given. ``status`` is that of HTTP."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: the API server refuses it ({status}: {message})")
        self.status = status
        self.message = message


class StaleError(MillraceError):
    """What was read is not true any more; a plan made of it ends."""


class Objects:
    """Safe for several threads. ``answered`` is called after each answer, and where none came in
    time. Every method raises ``HomeAwayError`` where no answer comes, and
    ``RefusedError``; who changes something under a condition that does not hold any more gets
    ``StaleError``."""

    def __init__(self, api: Api, answered: Callable[[], None] = lambda: None) -> None:
        self._api = api
        self._answered = answered

    def _answer(self, method: str, path: str, body: object = None, **how: Any) -> Answer:
        try:
            return self._api.answer(method, path, body, **how)
        finally:
            self._answered()

    def get(self, path: str) -> Object | None:
        """One object; None where there is none."""
        status, found = self._answer("GET", path)
        if status == HTTPStatus.NOT_FOUND:
            return None
        return _taken(path, status, found)

    def aged(self, path: str) -> tuple[Object | None, float | None]:
        """One object, and how many seconds ago it was written last; both times are the API
        server's, to the second. None where there is no object, and where it does not tell."""
        try:
            status, found, now = self._api.dated(path)
        finally:
            self._answered()
        if status == HTTPStatus.NOT_FOUND:
            return None, None
        _taken(path, status, found)
        writes = [
            datetime.fromisoformat(write["time"])
            for write in found["metadata"].get("managedFields") or []
            if write.get("time")
        ]
        return found, (now - max(writes)).total_seconds() if now and writes else None

    def is_there(self, path: str) -> bool:
        """Whether there is such an object: what it holds is not even sent."""
        status, found = self._answer("GET", path, accept=_HEAD)
        if status == HTTPStatus.NOT_FOUND:
            return False
        _taken(path, status, found)
        return True

    def list(
        self, kind: str, namespace: str | None, selector: str = "", name: str = ""
    ) -> Iterator[Object]:
        """All objects of a kind, as they are now, by labels, or the one of a ``name``, which takes
        no other right; no more than ``AT_ONCE`` of them are held while they are looked through."""
        return self._pages(kind, namespace, selector, {}, name)

    def heads(self, kind: str, namespace: str | None, selector: str = "") -> Iterator[Object]:
        """The same with their metadata alone: what they hold is not even sent."""
        return self._pages(kind, namespace, selector, {"accept": _HEADS})

    def _pages(
        self,
        kind: str,
        namespace: str | None,
        selector: str,
        how: Mapping[str, str],
        name: str = "",
    ) -> Iterator[Object]:
        path = kinds.collection(kind, namespace)
        query = {"limit": str(AT_ONCE)}
        if selector:
            query["labelSelector"] = selector
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        while True:
            status, found = self._answer("GET", path, query=query, **how)
            if status == HTTPStatus.GONE:
                raise StaleError(f"{path}: changed faster than it could be read")
            page = _taken(path, status, found)
            more = page["metadata"].get("continue")
            # Those in a list do not say what they are; a list of heads without any has a null.
            yield from ({**item, "kind": kind} for item in page["items"] or [])
            del found, page
            if not more:
                return
            query = {**query, "continue": more}

    def create(self, manifest: Object) -> bool:
        """Whether it was made; False where one of that name is there. ``StaleError`` where the API
        server could not, as where a quota changes that others use at that moment."""
        metadata = manifest["metadata"]
        path = kinds.collection(manifest["kind"], metadata["namespace"])
        how: dict[str, Any] = {"query": {"fieldManager": MANAGER}}
        if manifest["kind"] == "Pod":
            how["answer_s"] = CREATION_S
        status, found = self._answer("POST", path, manifest, **how)
        what = f"{manifest['kind']} {metadata['name']}"
        if status == HTTPStatus.CONFLICT:
            if found.get("reason") == "Conflict":
                raise StaleError(f"{what}: {found.get('message', status)}")
            return False
        _taken(what, status, found)
        return True

    def apply(self, manifest: Object, subresource: str = "") -> Object:
        """Server-side apply. Fields of others are taken over, so that whoever calls this knows that
        the object is the operator's; a ``uid`` or ``resourceVersion`` in it is a condition."""
        metadata = manifest["metadata"]
        path = kinds.one(manifest["kind"], metadata["namespace"], metadata["name"]) + subresource
        query = {"fieldManager": MANAGER, "force": "true"}
        status, found = self._answer("PATCH", path, manifest, kind=_APPLY, query=query)
        return _changed(f"{manifest['kind']} {metadata['name']}", status, found)

    def replace(self, manifest: Object) -> Object:
        """Replace an object as a whole, under its ``resourceVersion``."""
        metadata = manifest["metadata"]
        path = kinds.one(manifest["kind"], metadata["namespace"], metadata["name"])
        query = {"fieldManager": MANAGER}
        status, found = self._answer("PUT", path, manifest, query=query)
        return _changed(f"{manifest['kind']} {metadata['name']}", status, found)

    def merge(self, path: str, body: object) -> None:
        """Set fields of an object that is there, and leave the others alone."""
        query = {"fieldManager": MANAGER}
        status, found = self._answer("PATCH", path, body, kind=_MERGE, query=query)
        _changed(path, status, found)

    def delete(
        self, path: str, uid: str, version: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete the very object of that uid, if it still is what it was at ``version``. One that
        is not there any more, or another in its place, is left alone."""
        conditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        options: dict[str, Any] = {"preconditions": conditions, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        status, found = self._answer("DELETE", path, options)
        if status == HTTPStatus.NOT_FOUND:
            return
        if status == HTTPStatus.CONFLICT:
            there = self.get(path)
            if there is None or there["metadata"]["uid"] != uid:
                return
        _changed(path, status, found)


def owner_uid(found: Object) -> str | None:
    """The uid of the controller that an object belongs to."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _changed(what: str, status: int, found: Object) -> Object:
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        raise StaleError(f"{what}: {found.get('message', status)}")
    return _taken(what, status, found)


def _taken(what: str, status: int, found: Object) -> Object:
    if 200 <= status < 300:
        return found
    raise RefusedError(what, status, str(found.get("message", "no reason given")))
