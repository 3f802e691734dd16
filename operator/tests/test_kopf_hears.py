"""kopf itself with our handlers and settings, on an API server that has lists and watches only."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kopf
import pytest
import yaml

from millrace_operator import handlers
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.workers import ALL, Queue
from millrace_operator.kube.observing import Key

VERBS = ["get", "list", "watch", "patch", "create", "delete"]
LABELS = {"millrace.dev/topology": "words"}


DEEP = "nested without an end"


def sent(told: object) -> bytes:
    deep = '{"a":' * 1200 + "1" + "}" * 1200
    return json.dumps(told).replace(json.dumps(DEEP), deep).encode()


def found(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "jobs", "uid": f"u-{name}", "resourceVersion": "5"}
    return {"metadata": {**metadata, **more.pop("metadata", {})}, **more}


class Server:
    """``changes`` are what a watch brings, by the plural; the first watch of those in
    ``silent`` brings nothing for ever. Nothing may be read in the namespace ``refused`` until it
    was asked for so many times. What is called ``DEEP`` is sent as what is nested without an end.
    ``asked`` is all that came."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.ended = threading.Event()
        self.silent: set[str] = set()
        self.refused: dict[str, int] = {}
        node = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.lists: dict[str, list[dict[str, Any]]] = {
            "streamtopologies": [found("words", metadata={"generation": 1})],
            "topologysnapshots": [],
            "pods": [],
            "configmaps": [],
            "nodes": [found("n", status=node)],
        }
        gone = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        self.changes: dict[str, tuple[str, dict[str, Any]]] = {
            "pods": ("ADDED", found("words-acker-0", metadata={"labels": LABELS})),
            "nodes": ("MODIFIED", found("n", status=gone)),
        }

    def answer(self, path: str) -> dict[str, Any]:
        match path:
            case "/api":
                return {"versions": ["v1"]}
            case "/apis":
                version = {"groupVersion": "millrace.dev/v1alpha1", "version": "v1alpha1"}
                group = {"name": "millrace.dev", "versions": [version]}
                return {"groups": [{**group, "preferredVersion": version}]}
            case "/api/v1":
                kinds = [("pods", "Pod", True), ("configmaps", "ConfigMap", True)]
                kinds += [("nodes", "Node", False), ("namespaces", "Namespace", False)]
                kinds += [("events", "Event", True)]
                return {"resources": [self._kind(*kind) for kind in kinds]}
            case "/apis/millrace.dev/v1alpha1":
                kinds = [("streamtopologies", "StreamTopology", True)]
                kinds += [("topologysnapshots", "TopologySnapshot", True)]
                return {"resources": [self._kind(*kind) for kind in kinds]}
            case _:
                items = self.lists[path.rpartition("/")[2]]
                return {"metadata": {"resourceVersion": "5"}, "items": items}

    def _kind(self, plural: str, kind: str, spaced: bool) -> dict[str, Any]:
        told = {"name": plural, "kind": kind, "namespaced": spaced, "verbs": VERBS}
        return {**told, "singularName": kind.lower()}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            made.asked.append((self.command, parts.path, query))
            space = parts.path.rpartition("/")[0].rpartition("/")[2]
            tried = sum(f"/{space}/" in path for _, path, _ in made.asked)
            refused = space in made.refused and tried <= made.refused[space]
            self.send_response(403 if refused else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if refused:
                self.wfile.write(b'{"kind": "Status", "code": 403, "message": "forbidden"}')
                return
            if "watch" not in query:
                self.wfile.write(sent(made.answer(parts.path)))
                return
            plural = parts.path.rpartition("/")[2]
            change = None if plural in made.silent else made.changes.pop(plural, None)
            made.silent.discard(plural)
            if change is not None:
                self.wfile.write(sent({"type": change[0], "object": change[1]}) + b"\n")
                self.wfile.flush()
            made.ended.wait(60)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *told: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{listening.server_address[1]}"
    told = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(told))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield made
    made.ended.set()
    listening.shutdown()
    listening.server_close()


def heard(queue: Queue, wanted: set[Any], stop: threading.Event) -> set[Any]:
    """Take from the queue until all that is wanted came."""
    taken: set[Any] = set()
    while not wanted <= taken and (key := queue.take()) is not None:
        taken.add(key)
        queue.done(key)
    stop.set()
    return taken


def run(wanted: set[Any], namespaces: tuple[str, ...]) -> set[Any]:
    """kopf until all that is wanted was heard; what was heard."""
    queue: Queue = WorkQueue()
    stop, taken = threading.Event(), set()

    def take() -> None:
        taken.update(heard(queue, wanted, stop))

    taker = threading.Thread(target=take)
    taker.start()
    limit = threading.Timer(90, lambda: (queue.close(), stop.set()))
    limit.start()
    asyncio.run(
        kopf.operator(
            registry=handlers.registry(handlers.Hints(queue)),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
    )
    limit.cancel()
    taker.join()
    return taken


@pytest.mark.parametrize("namespaces", [(), ("jobs",)])
def test_what_kopf_hears_becomes_work_and_nothing_is_written(
    server: Server, namespaces: tuple[str, ...]
):
    # Only its watch tells of this pod, so that kopf is not stopped before there is one.
    labels = {**LABELS, "millrace.dev/topology": "lines"}
    server.changes["pods"] = ("ADDED", found("lines-acker-0", metadata={"labels": labels}))
    early = found("early", metadata={"generation": 1}, spec={"topology": "wanted"})
    server.changes["topologysnapshots"] = ("ADDED", early)
    wanted = {Key("jobs", "words"), Key("jobs", "lines"), Key("jobs", "wanted"), ALL}
    assert run(wanted, namespaces) == wanted
    assert {method for method, _, _ in server.asked} == {"GET"}
    watches = [(path, query) for _, path, query in server.asked if "watch" in query]
    watched = {path.rpartition("/")[2]: query for path, query in watches}
    assert set(watched) <= {
        *("streamtopologies", "topologysnapshots"),
        *("pods", "configmaps", "nodes"),
    }
    spaced = f"/api/v1{'/namespaces/jobs' if namespaces else ''}/pods"
    assert spaced in [path for path, _ in watches]
    assert watched["pods"]["labelSelector"] == ["millrace.dev/topology"]
    assert watched["pods"]["timeoutSeconds"] == ["240"]


def test_a_namespace_without_rights_ends_no_watch_and_is_heard_of_once_they_are_given(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """As one that was deleted: kopf would end all of its watches for it."""
    server.refused = {"gone": 60}
    server.lists["streamtopologies"] = []
    server.changes = {"pods": ("ADDED", found("lines-acker-0", metadata={"labels": LABELS}))}
    server.silent = {"pods"}
    pauses = list(itertools.islice(handlers.settings().networking.error_backoffs, 100))
    assert (len(pauses), pauses[0], max(pauses)) == (100, 1.0, 30.0)
    monkeypatch.setattr(handlers, "LONGEST_PAUSE_S", 0.05)
    assert run({Key("jobs", "words")}, ("jobs", "gone")) == {Key("jobs", "words")}
    assert sum("watch" in query for _, path, query in server.asked if "/jobs/pods" in path) == 1


def test_a_topology_that_is_nested_without_an_end_ends_no_watch(server: Server):
    deep = found("deep", metadata={"generation": 1}, spec={"options": DEEP})
    late = found("late", metadata={"generation": 1}, spec={"options": DEEP})
    server.lists["streamtopologies"].insert(0, deep)
    server.changes["streamtopologies"] = ("ADDED", late)
    wanted = {Key("jobs", name) for name in ("deep", "words", "late")}
    assert run(wanted, ()) >= wanted


def test_a_watch_that_fell_silent_is_begun_anew(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A connection that died without a word: nothing else would ever end it."""
    monkeypatch.setattr(handlers, "SILENCE_S", 0.5)
    server.lists["streamtopologies"] = []
    server.silent = {"pods"}
    assert run({Key("jobs", "words")}, ()) >= {Key("jobs", "words")}
    assert sum("watch" in query for _, path, query in server.asked if path.endswith("/pods")) > 1
