"""ConfigMaps as their stores see them: read, replace under compare-and-swap, merge, watch.

Only the HTTP part of the ``kubernetes`` package is used, with plain JSON: the models of its API
would be built and checked for nothing. Nothing is tried again here, neither by its HTTP client: an
answer that was lost is a ``HomeAwayError``, and who asked knows what to do about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace.kube.nesting import loads

ANSWER_S = 5.0
"""How long an answer is waited for."""

_MERGE = "application/merge-patch+json"
_JSON = "application/json"

_NOT_FOUND, _CONFLICT, _GONE = 404, 409, 410
_WAITED_FOR = (401, 403, 408, 429)
"""Refusals below 500 that pass: an API server that starts knows neither tokens nor rights yet, and
rights are given while a pod runs."""

_PASSING = (401, 408, 429)
"""Of these, the ones that say nothing about what was asked for."""


UNUSABLE = (
    *(ConfigException, yaml.YAMLError, OSError),
    *(ValueError, LookupError, TypeError, AttributeError),
)
"""What the package raises for a kubeconfig: one that is not there or lacks something, and what
comes of reading one of another form."""


class ApiRefusedError(MillraceError):
    """The API server refuses what is asked of it, and goes on to until somebody changes that."""


@dataclass(frozen=True, slots=True)
class Held:
    """A ConfigMap's data, and the ``resourceVersion`` of that moment."""

    resource_version: str
    data: Mapping[str, str]


class Api:
    """Connections to one API server; safe for several threads."""

    def __init__(self, configuration: Configuration, answer_s: float = ANSWER_S) -> None:
        configuration.retries = urllib3.Retry(0, redirect=2)
        self._client = ApiClient(configuration)
        self._answer_s = answer_s

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The JSON object of an answer. Raises ``HomeAwayError``, ``ApiException``."""
        response = self._send(method, path, body, kind, query, self._answer_s)
        return self._document(method, path, response)

    def answer(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = _JSON,
        accept: str = _JSON,
        query: Mapping[str, str] | None = None,
        answer_s: float | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer, also of one that refuses; ``accept`` names a form of
        it, ``answer_s`` how long it is waited for, where not as long as others. Raises
        ``HomeAwayError`` where none comes, or one that says no more than that it is to be tried
        again."""
        patience = self._answer_s if answer_s is None else (self._answer_s, answer_s)
        return self._answered(
            method, path, self._sent(method, path, body, kind, query, patience, accept)
        )

    def dated(self, path: str) -> tuple[int, dict[str, Any], datetime | None]:
        """``answer`` to a GET, and when the API server gave it by its own clock, to the second;
        None where it does not say."""
        response = self._sent("GET", path, None, _JSON, None, self._answer_s)
        try:
            given = parsedate_to_datetime(str(response.headers.get("Date")))
        except ValueError:
            given = None
        if given is not None and given.tzinfo is None:
            given = None
        return *self._answered("GET", path, response), given

    def _answered(self, method: str, path: str, response: Any) -> tuple[int, dict[str, Any]]:
        if response.status >= 500 or response.status in _PASSING:
            said = f"{response.status} {_message(response.read())}"
            raise self._away(method, path, said, response.status)
        return int(response.status), self._document(method, path, response)

    def _document(self, method: str, path: str, response: Any) -> dict[str, Any]:
        text = b""
        try:
            text = response.read()
            found = loads(text)
        except (ValueError, urllib3.exceptions.HTTPError, OSError) as error:
            if response.status < 400:
                raise self._away(method, path, error) from error
            said = f"{response.status} {_message(text)}"
            raise self._away(method, path, said, response.status) from error
        return cast("dict[str, Any]", found)

    def lines(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> Iterator[dict[str, Any]]:
        """JSON objects, a line each, until the server ends them or ``silence_s`` brings none.

        Raises as ``call``.
        """
        response = self._send("GET", path, None, _JSON, query, (self._answer_s, silence_s))
        raw = response.response
        rest = b""
        try:
            for chunk in raw.stream(65536, decode_content=False):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield loads(line)
        except (ValueError, urllib3.exceptions.HTTPError, OSError) as error:
            raise self._away("GET", path, error) from error
        finally:
            raw.close()

    def stream(
        self, path: str, query: Sequence[tuple[str, str]]
    ) -> tuple[Configuration, str, dict[str, str]]:
        """What a connection that is upgraded needs: configuration, whole URL and headers."""
        _, url, headers, _, _ = self._client.param_serialize(
            "GET",
            path,
            query_params=list(query),
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        return self._client.configuration, url, dict(headers)

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        kind: str,
        query: Mapping[str, str] | None,
        timeout: float | tuple[float, float],
    ) -> Any:
        response = self._sent(method, path, body, kind, query, timeout)
        if 200 <= response.status < 300:
            return response
        text = response.read()
        if response.status >= 500 or response.status in _WAITED_FOR:
            said = f"{response.status} {_message(text)}"
            raise self._away(method, path, said, response.status)
        raise ApiException(status=response.status, reason=_message(text))

    def _sent(
        self,
        method: str,
        path: str,
        body: object,
        kind: str,
        query: Mapping[str, str] | None,
        timeout: float | tuple[float, float],
        accept: str = _JSON,
    ) -> Any:
        client = self._client
        headers = {"Accept": accept, "Content-Type": kind}
        try:
            _, url, headers, sent, _ = client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            return cast("Any", client.rest_client).request(
                method, url, headers=headers, body=sent, _request_timeout=timeout
            )
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise self._away(method, path, error) from error

    def _away(
        self, method: str, path: str, error: object, status: int | None = None
    ) -> HomeAwayError:
        host = self._client.configuration.host
        text = f"{method} {host}{path}: no answer ({error}); it is tried again"
        return HomeAwayError(text, status)


def own_api() -> Api:
    """The API server that this process belongs to: its pod's, unless a kubeconfig is named.

    Raises ``ApiRefusedError``.
    """
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return in_cluster()
    return by_kubeconfig()


def in_cluster() -> Api:
    """The API server of the pod that this process runs in, as its service account.

    The mounted token is read again when it has changed. Raises ``ApiRefusedError`` outside a pod.
    """
    configuration = Configuration()
    try:
        cast("Any", load_incluster_config)(client_configuration=configuration)
    except ConfigException as error:
        raise ApiRefusedError(
            f"this process is in no pod of a cluster ({error}); the pod needs a service account "
            "whose token is mounted"
        ) from error
    return Api(configuration)


def by_kubeconfig(context: str | None = None, file: str | None = None) -> Api:
    """The API server of a kubeconfig. Raises ``ApiRefusedError`` where it cannot be used."""
    configuration = Configuration()
    try:
        cast("Any", load_kube_config)(
            config_file=file, context=context, client_configuration=configuration
        )
    except UNUSABLE as error:
        said = " ".join(str(error).split())
        raise ApiRefusedError(
            f"kubeconfig: cannot be used ({said}); mend it, or name a context that it has"
        ) from error
    return Api(configuration)


class ConfigMap:
    """One ConfigMap, which may not be there yet; safe for several threads.

    Every method raises ``HomeAwayError``, and ``ApiRefusedError`` for what waiting does not mend.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self.name = name
        self._all = f"/api/v1/namespaces/{namespace}/configmaps"
        self._path = f"{self._all}/{name}"

    def read(self) -> Held | None:
        """Its data as the last write left it, None where it does not exist."""
        try:
            return _held(self._api.call("GET", self._path))
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise self._refused(error) from error

    def replace(self, expected: str, data: Mapping[str, str | None]) -> bool:
        """Merge ``data`` into it if its ``resourceVersion`` is still ``expected``, without keys of
        None; else False."""
        body = {"metadata": {"resourceVersion": expected}, "data": data}
        return self._merged(body) is not None

    def create(self, data: Mapping[str, str]) -> bool:
        """Make it with this data; False where it exists."""
        meta = {"name": self.name, "namespace": self._namespace}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        try:
            self._api.call("POST", self._all, body)
        except ApiException as error:
            if error.status == _CONFLICT:
                return False
            raise self._refused(error) from error
        return True

    def merge(self, data: Mapping[str, str | None]) -> None:
        """Set keys, and remove those of None; the others stay as they are. Makes it if need be."""
        for _ in range(2):
            if self._merged({"data": data}) is not None:
                return
            there = {key: value for key, value in data.items() if value is not None}
            if self.create(there):
                return
        raise HomeAwayError(f"ConfigMap {self.name}: is made and deleted all the time")

    def changes(self, since: str, lasting_s: int, silence_s: float) -> Iterator[Held | None]:
        """What it becomes after the ``resourceVersion`` ``since``, for so long at most; None where
        it is deleted. Ends early where the server has forgotten what happened since then."""
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={self.name}",
            "resourceVersion": since,
            "timeoutSeconds": str(lasting_s),
        }
        try:
            for event in self._api.lines(self._all, query, silence_s):
                if event["type"] == "ERROR":
                    return
                yield None if event["type"] == "DELETED" else _held(event["object"])
        except ApiException as error:
            if error.status == _GONE:
                return
            raise self._refused(error) from error

    def _merged(self, body: object) -> Held | None:
        """None where it does not exist or has another ``resourceVersion``."""
        try:
            return _held(self._api.call("PATCH", self._path, body, kind=_MERGE))
        except ApiException as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                return None
            raise self._refused(error) from error

    def _refused(self, error: ApiException) -> ApiRefusedError:
        return ApiRefusedError(
            f"ConfigMap {self._namespace}/{self.name}: the API server refuses it "
            f"({error.status}: {error.reason}); correct what it names"
        )


def _held(found: Mapping[str, Any]) -> Held:
    return Held(found["metadata"]["resourceVersion"], found.get("data") or {})


def _message(body: bytes) -> str:
    try:
        return str(loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
