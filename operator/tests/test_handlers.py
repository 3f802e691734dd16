"""What kopf is told to do: hear, and nothing else."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from millrace_operator import handlers
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.workers import ALL, Queue
from millrace_operator.kube.observing import Key

WORDS = Key("jobs", "words")
LABELS = {"millrace.dev/topology": "words"}


class Heard:
    """Hints, and what is in the queue after each."""

    def __init__(self) -> None:
        self.queue: Queue = WorkQueue()
        self.hints = handlers.Hints(self.queue)

    def keys(self) -> list[Any]:
        found = []
        self.queue.add(Key("", "end"))
        while (key := self.queue.take()) != Key("", "end"):
            self.queue.done(key)  # type: ignore[arg-type]
            found.append(key)
        self.queue.done(key)
        return found


@pytest.fixture
def heard() -> Heard:
    return Heard()


def topology(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "jobs", "name": "words", "uid": "u", **metadata}}


def test_a_topology_is_looked_at_when_it_is_new_edited_paused_or_goes(heard: Heard):
    paused = {"millrace.dev/paused": "true"}
    for kind, found in [
        (None, topology(generation=1)),
        ("MODIFIED", topology(generation=2)),
        ("MODIFIED", topology(generation=2, annotations=paused)),
        ("MODIFIED", topology(generation=2, deletionTimestamp="now")),
        ("DELETED", topology(generation=2, deletionTimestamp="now")),
        ("ADDED", topology(generation=2, deletionTimestamp="now")),
        ("ADDED", topology(generation=2, uid="another", deletionTimestamp="now")),
    ]:
        heard.hints.topology(kind, found)
        assert heard.keys() == [WORDS]


def test_its_own_status_is_no_news(heard: Heard):
    heard.hints.topology(None, topology(generation=1, resourceVersion="1"))
    heard.keys()
    heard.hints.topology("MODIFIED", topology(generation=1, resourceVersion="2"))
    assert heard.keys() == []


@pytest.mark.parametrize(
    ("name", "news"),
    [
        ("words-view", True),
        ("words-accepted", True),
        ("words-driver-1", True),
        ("words-journal", False),
        ("words-inbox", False),
    ],
)
def test_what_changes_often_and_means_nothing_is_let_pass(heard: Heard, name: str, news: bool):
    heard.hints.child({"metadata": {"namespace": "jobs", "name": name, "labels": LABELS}})
    assert heard.keys() == ([WORDS] if news else [])


def test_what_was_heard_is_not_kept():
    """kopf holds the very object for seconds."""
    metadata = {"name": "m", "uid": "u", "labels": LABELS, "annotations": {"a": "b" * 1000}}
    found = {"kind": "ConfigMap", "metadata": metadata, "data": {"a": "b" * 1000}}
    handlers.forget(found)
    assert found == {"kind": "ConfigMap", "metadata": {"name": "m", "uid": "u"}}


def test_a_label_without_a_name_is_nobody_s(heard: Heard):
    labels = {"millrace.dev/topology": ""}
    heard.hints.child({"metadata": {"namespace": "jobs", "name": "any", "labels": labels}})
    assert heard.keys() == []


def test_a_node_is_news_when_it_falls_silent_goes_or_is_back(heard: Heard):
    def node(ready: str) -> dict[str, Any]:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        return {"metadata": {"name": "n"}, "status": status}

    for kind, ready, news in [
        (None, "True", False),
        ("MODIFIED", "True", False),
        ("MODIFIED", "Unknown", True),
        ("MODIFIED", "Unknown", False),
        ("MODIFIED", "True", True),
        ("DELETED", "True", True),
    ]:
        heard.hints.node(kind, node(ready))
        assert heard.keys() == ([ALL] if news else []), (kind, ready)


def test_kopf_has_no_handler_that_would_write(heard: Heard):
    """Others make kopf put finalizers and annotations into what they handle."""
    made = handlers.registry(heard.hints)
    watching = [one.selector for one in made._watching.get_all_handlers()]
    assert sorted(str(one.plural or one.any_name) for one in watching if one) == [
        *("configmaps", "nodes", "pods", "streamtopologies", "topologysnapshots")
    ]
    for others in (made._changing, made._spawning, made._indexing, made._webhooks):
        assert list(others.get_all_handlers()) == []


def test_kopf_s_known_traps_have_a_setting():
    made = handlers.settings()
    watching = made.watching
    assert watching.server_timeout is not None
    assert watching.client_timeout is not None
    assert watching.server_timeout < watching.client_timeout < 600
    assert watching.connect_timeout is not None
    assert watching.inactivity_timeout < 120
    assert made.networking.request_timeout is not None
    assert watching.chunk_size is not None
    assert watching.chunk_size <= 50
    assert not made.posting.enabled
    assert made.peering.standalone
    assert made.scanning.disabled
    assert made.process.ultimate_exiting_timeout is not None
    assert made.process.ultimate_exiting_timeout < 30


def test_only_what_belongs_to_a_topology_is_watched():
    selectors = handlers.settings().watching.label_selectors
    for plural, kind in (("pods", "Pod"), ("configmaps", "ConfigMap")):
        resource = kopf.Resource("", "v1", plural, kind=kind, preferred=True)
        assert selectors.collect(resource) == ["millrace.dev/topology"]
    node = kopf.Resource("", "v1", "nodes", kind="Node", preferred=True)
    assert selectors.collect(node) == []


def test_kopf_and_we_speak_to_the_same_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert handlers._login() is kopf.login_with_service_account
    monkeypatch.setenv("KUBECONFIG", "file")
    assert handlers._login() is kopf.login_with_kubeconfig
