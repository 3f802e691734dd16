"""What is sent to an API server and what its answers mean, by HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.client import Configuration

from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api
from millrace_operator.kube.objects import AT_ONCE, Objects, RefusedError, StaleError

MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m", "namespace": "jobs"},
    "data": {"a": "b"},
}
PATH = "/api/v1/namespaces/jobs/configmaps"


@dataclass
class Scripted:
    """``answers`` are given in order, the last one for ever; ``asked`` is what came."""

    answers: list[tuple[int, bytes]] = field(default_factory=lambda: [(200, b"{}")])
    asked: list[tuple[str, str, dict[str, list[str]], str, Any]] = field(default_factory=list)
    port: int = 0
    date: str | None = None

    @property
    def objects(self) -> Objects:
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{self.port}"
        return Objects(Api(configuration, answer_s=30.0))


@pytest.fixture
def server() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told = json.loads(body) if body else None
            kind = self.headers.get("Content-Type", "")
            query = parse_qs(parts.query)
            script.asked.append((self.command, parts.path, query, kind, told))
            status, text = script.answers[0]
            if len(script.answers) > 1:
                del script.answers[0]
            self.send_response_only(status)
            if script.date is not None:
                self.send_header("Date", script.date)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *told: object) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    script.port = listening.server_address[1]
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield script
    listening.shutdown()
    thread.join()
    listening.server_close()


def dated(*times: str) -> bytes:
    return json.dumps({"metadata": {"managedFields": [{"time": time} for time in times]}}).encode()


def test_an_object_is_as_old_as_its_last_write_by_the_servers_own_clock(server: Scripted):
    server.date = "Sun, 01 Feb 2026 10:00:30 GMT"
    server.answers = [(200, dated("2026-02-01T09:00:00Z", "2026-02-01T10:00:10Z"))]
    found, age_s = server.objects.aged(f"{PATH}/m")
    assert found is not None
    assert age_s == 20.0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 01 Feb 2026 10:00:30 -0000"])
def test_without_a_time_of_the_servers_no_age_is_known(server: Scripted, date: str | None):
    server.date = date
    server.answers = [(200, dated("2026-02-01T09:00:00Z"))]
    assert server.objects.aged(f"{PATH}/m")[1] is None


def test_an_object_without_times_has_no_known_age(server: Scripted):
    server.date = "Sun, 01 Feb 2026 10:00:30 GMT"
    server.answers = [(200, dated()), (404, b"{}")]
    assert server.objects.aged(f"{PATH}/m") == ({"metadata": {"managedFields": []}}, None)
    assert server.objects.aged(f"{PATH}/m") == (None, None)


def test_apply_is_server_side_with_our_manager(server: Scripted):
    server.objects.apply(MAP)
    method, path, query, kind, told = server.asked[0]
    assert (method, path, kind) == ("PATCH", f"{PATH}/m", "application/apply-patch+yaml")
    assert query == {"fieldManager": ["millrace-operator"], "force": ["true"]}
    assert told == MAP


def test_one_object_that_is_nested_without_an_end_holds_up_no_list(server: Scripted):
    deep = '{"f:a":' * 1200 + "{}" + "}" * 1200
    item = f'{{"metadata": {{"name": "deep", "managedFields": [{{"fieldsV1": {deep}}}]}}}}'
    other = '{"metadata": {"name": "other"}}'
    server.answers = [(200, f'{{"metadata": {{}}, "items": [{item}, {other}]}}'.encode())]
    found = list(server.objects.heads("StreamTopology", "jobs"))
    assert [one["metadata"]["name"] for one in found] == ["deep", "other"]


def test_a_status_goes_to_its_subresource(server: Scripted):
    server.objects.apply(MAP, "/status")
    assert server.asked[0][1] == f"{PATH}/m/status"


def test_a_deletion_says_what_it_is_about(server: Scripted):
    server.objects.delete(f"{PATH}/m", "u1", "7", 0)
    server.objects.delete(f"{PATH}/m", "u1")
    forced, plain = (asked[4] for asked in server.asked)
    assert forced["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert forced["gracePeriodSeconds"] == 0
    assert plain["preconditions"] == {"uid": "u1"}
    assert "gracePeriodSeconds" not in plain


def test_a_merge_leaves_other_fields_alone(server: Scripted):
    server.objects.merge(f"{PATH}/m", {"data": {"x": "y"}})
    assert server.asked[0][0] == "PATCH"
    assert server.asked[0][3:] == ("application/merge-patch+json", {"data": {"x": "y"}})


def test_a_list_is_asked_for_as_it_is_now_and_to_its_end(server: Scripted):
    pages = [
        {"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]},
        {"metadata": {}, "items": [{"metadata": {"name": "b"}}]},
    ]
    server.answers = [(200, json.dumps(page).encode()) for page in pages]
    found = server.objects.list("ConfigMap", "jobs", "a=b")
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        ("ConfigMap", "a"),
        ("ConfigMap", "b"),
    ]
    first, second = (asked[2] for asked in server.asked)
    assert first == {"limit": [str(AT_ONCE)], "labelSelector": ["a=b"]}
    assert second == {**first, "continue": ["next"]}


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
def test_an_answer_that_says_nothing_is_none(server: Scripted, status: int):
    server.answers = [(status, b'{"message": "later"}')]
    with pytest.raises(HomeAwayError, match="later"):
        server.objects.get(f"{PATH}/m")
    assert len(server.asked) == 1


def test_an_answer_that_is_no_json_is_none(server: Scripted):
    server.answers = [(200, b"<html>")]
    with pytest.raises(HomeAwayError):
        server.objects.get(f"{PATH}/m")


def test_a_server_that_is_not_there():
    with pytest.raises(HomeAwayError):
        Scripted(port=9).objects.get(f"{PATH}/m")


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_refusal_says_why(server: Scripted, status: int):
    server.answers = [(status, b'{"message": "exceeded quota"}')]
    with pytest.raises(RefusedError, match=r"ConfigMap m.*exceeded quota") as caught:
        server.objects.create(MAP)
    assert (caught.value.status, caught.value.message) == (status, "exceeded quota")


def test_what_is_there_is_not_made(server: Scripted):
    server.answers = [(409, b'{"reason": "AlreadyExists"}'), (201, b"{}")]
    assert [server.objects.create(MAP), server.objects.create(MAP)] == [False, True]


def test_what_is_not_made_as_its_quota_changes_is_not_taken_for_there(server: Scripted):
    """Many pods at once use up one quota, and of two that do the API server takes one."""
    said = "Operation cannot be fulfilled on resourcequotas: the object has been modified"
    server.answers = [(409, json.dumps({"reason": "Conflict", "message": said}).encode())]
    with pytest.raises(StaleError, match=f"ConfigMap m: {said}"):
        server.objects.create(MAP)


@pytest.mark.parametrize("status", [404, 409])
def test_what_changed_meanwhile_is_not_written(server: Scripted, status: int):
    server.answers = [(status, b'{"message": "another version"}')]
    for write in (
        lambda: server.objects.apply(MAP),
        lambda: server.objects.replace(MAP),
        lambda: server.objects.merge(f"{PATH}/m", {}),
    ):
        with pytest.raises(StaleError):
            write()


def test_every_answer_is_heard_and_that_there_is_none(server: Scripted):
    heard: list[str] = []
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    objects = Objects(Api(configuration, answer_s=30.0), lambda: heard.append("x"))
    page: dict[str, Any] = {"metadata": {"continue": "next"}, "items": []}
    last: dict[str, Any] = {"metadata": {}, "items": []}
    server.answers = [(200, json.dumps(one).encode()) for one in (page, page, last)]
    assert list(objects.heads("ConfigMap", "jobs")) == []
    assert len(heard) == 3
    server.answers = [(503, b"{}")]
    with pytest.raises(HomeAwayError):
        objects.get(f"{PATH}/m")
    assert len(heard) == 4


def test_nothing_there_is_none(server: Scripted):
    server.answers = [(404, b"{}")]
    assert server.objects.get(f"{PATH}/m") is None
    server.objects.delete(f"{PATH}/m", "u1")
