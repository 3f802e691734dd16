"""What a state server's pod is asked, and what of its answer is believed."""

from __future__ import annotations

import json
import logging
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from memory_world import running

from millrace.health import Answer, serve
from millrace_operator.control.logs import TopologyLines, about
from millrace_operator.kube.incarnations import Incarnations, ask_pod, said

PATH = "/incarnation"


@contextmanager
def answering(answer: Answer) -> Iterator[int]:
    """The pod's own server of answers, on a port of its own."""
    server = serve({PATH: lambda: answer}, 0)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_pod_says_its_incarnation():
    document = {"name": "words-state-0", "runId": "r1", "url": "redis://10.0.0.1:6379"}
    with answering(Answer(True, document=document)) as port:
        assert ask_pod("127.0.0.1", "words-state-0", port) == "r1"
        assert ask_pod("127.0.0.1", "words-state-1", port) is None
    assert ask_pod("127.0.0.1", "words-state-0", port) is None


def test_a_pod_that_has_none_yet():
    with answering(Answer(False, "there is none yet")) as port:
        assert ask_pod("127.0.0.1", "words-state-0", port) is None


@contextmanager
def sending(first: bytes, then: bytes, every_s: float) -> Iterator[int]:
    """Somebody who answers with ``first``, and goes on with ``then`` until it is refused."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def send() -> None:
            one, _ = listening.accept()
            with one, suppress(OSError):
                one.recv(4096)
                one.sendall(first)
                while not ended.wait(every_s):
                    one.sendall(then)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()


def asked_for(port: int, within_s: float = 20.0) -> list[str | None]:
    """What came of asking, so far."""
    told: list[str | None] = []

    def ask() -> None:
        told.append(ask_pod("127.0.0.1", "words-state-0", port))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(within_s)
    return told


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n",
    ],
)
def test_an_answer_that_comes_byte_by_byte_is_given_up(head: bytes):
    """Whoever runs a pod could hold up the operator for everybody, in the head or behind it."""
    with sending(head, b"H", 0.05) as port:
        assert asked_for(port) == [None]


def test_an_answer_without_an_end_costs_little():
    """It would be held in memory, of several pods at once."""
    lines = b"X: " + b"x" * 60_000 + b"\r\n"
    with sending(b"HTTP/1.1 200 OK\r\n" + 20 * lines, lines, 0.01) as port:
        tracemalloc.start()
        try:
            assert asked_for(port) == [None]
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The sender of this test has its own lines in the same memory, which are there before.
    assert most < 1 << 20


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: %d\r\n\r\n%b",
        b"Connection: close\r\nX-Size: %d\r\n\r\n%b",
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n",
    ],
)
def test_answers_of_all_lengths_are_read(head: bytes):
    """Something between the operator and the pod may send them on in its own way."""
    text = json.dumps({"name": "words-state-0", "runId": "r1"}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def tell() -> None:
            one, _ = listening.accept()
            with one:
                one.recv(4096)
                one.sendall(b"HTTP/1.1 200 OK\r\n" + head % (len(text), text))

        thread = threading.Thread(target=tell)
        thread.start()
        assert asked_for(listening.getsockname()[1]) == ["r1"]
        thread.join()


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"7", b"{}", b"\xff", b"[" * 4096),
        *(b'{"name": "a"}', b'{"name": "a", "runId": 7}'),
    ],
)
def test_what_is_no_answer_is_none(text: bytes):
    assert said("a", text) is None


def pod(name: str, container: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "status": running(container)}


def test_each_life_of_a_container_is_asked_until_it_answers():
    asked: list[str] = []
    answers = {"a": "r-a", "b": None}

    def ask(address: str, name: str) -> str | None:
        asked.append(name)
        return answers[name]

    known = Incarnations(ask)
    assert known.of("t", [pod("a", "1"), pod("b", "1")]) == {"u-a": "r-a"}
    assert known.of("t", [pod("a", "1"), pod("b", "1")]) == {"u-a": "r-a"}
    assert sorted(asked) == ["a", "b", "b"]
    answers["a"] = "r-a2"
    assert known.of("t", [pod("a", "2")]) == {"u-a": "r-a2"}


def test_a_pod_that_is_not_ready_says_nothing_and_is_asked_again_later():
    asked: list[str] = []

    def ask(address: str, name: str) -> str | None:
        asked.append(name)
        return "r"

    known, not_ready = Incarnations(ask), pod("a", "1")
    not_ready["status"] = running("1", "False")
    assert known.of("t", [not_ready]) == {}
    assert known.of("t", [{"metadata": {"name": "a", "uid": "u-a"}}]) == {}
    assert asked == []


def test_what_is_forgotten_is_asked_again():
    asked: list[str] = []

    def ask(address: str, name: str) -> str | None:
        asked.append(name)
        return "r"

    known = Incarnations(ask)
    known.of("t", [pod("a", "1")])
    known.forget("t")
    known.of("t", [pod("a", "1")])
    assert asked == ["a", "a"]


def test_what_is_logged_of_a_pod_says_of_which_topology_it_is():
    """Pods are asked by threads of their own."""
    lines: list[str] = []

    def ask(address: str, name: str) -> None:
        record = logging.LogRecord("x", logging.INFO, "f", 1, "%s is silent", (name,), None)
        lines.append(TopologyLines().format(record))

    pods = [
        {"metadata": {"uid": f"u{n}", "name": f"words-state-{n}"}, "status": running(f"c{n}")}
        for n in range(3)
    ]
    with about("jobs/words"):
        Incarnations(ask).of("t", pods)
    assert [json.loads(line)["topology"] for line in lines] == ["jobs/words"] * 3
