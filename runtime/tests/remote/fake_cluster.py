"""An API server that keeps objects, and leads into pods that are functions of the test.

It knows what the command line asks of one: objects and lists, merge patches under a resource
version, ``/scale``, deletions, ports of pods and commands in them over WebSockets.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from command_calls import called, command

from millrace.homes import codec, pods
from millrace.homes.documents import Proposal, RunEvent, Status
from millrace.ids import Epoch, Execution, Timeline
from millrace.protocol.codec import encode_view
from millrace.protocol.types import Member, Phase, View

NAMESPACE = "jobs"
UID = "uid-words"
TOPOLOGIES = f"/apis/millrace.dev/v1alpha1/namespaces/{NAMESPACE}/streamtopologies"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
SPEC = {
    "sources": [{"name": "lines", "files": {"path": "texts"}}],
    "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
}
Object = dict[str, Any]


@dataclass
class FakeCluster:
    """``objects`` by path; ``refused`` are statuses by how a path ends; ``ports`` and ``commands``
    are what is behind a pod, ``lost`` is called instead of an answer for it; ``asked`` is (method,
    path, body) of all that came."""

    folder: Path
    objects: dict[str, Object] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    ports: dict[str, Callable[[], socket.socket]] = field(default_factory=dict)
    lost: dict[str, Callable[[], None]] = field(default_factory=dict)
    commands: dict[str, Callable[[list[str]], tuple[str, int | None]]] = field(default_factory=dict)
    on_delete: Callable[[str], None] = lambda path: None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 5

    # -- what is there

    def put(self, path: str, **content: Any) -> Object:
        with self.lock:
            self.version += 1
            metadata = {
                "name": path.rpartition("/")[2],
                "namespace": NAMESPACE,
                "uid": f"uid-{path.rpartition('/')[2]}",
                **content.pop("metadata", {}),
                "resourceVersion": str(self.version),
            }
            self.objects[path] = {"metadata": metadata, **content}
            return self.objects[path]

    def topology(self, name: str = "words", spec: Object | None = None, **more: Any) -> Object:
        status = more.pop("status", {"phase": "Running", "observedGeneration": 1})
        metadata = {"generation": 1, **more.pop("metadata", {})}
        return self.put(
            f"{TOPOLOGIES}/{name}", spec=dict(spec or SPEC), status=status, metadata=metadata
        )

    def pod(self, name: str, role: str, *, ready: bool = True, **more: Any) -> Object:
        labels = {pods.TOPOLOGY_LABEL: "words", pods.ROLE_LABEL: role, **more.pop("labels", {})}
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {
            "phase": "Running",
            "startTime": "2026-01-01T10:00:00Z",
            "conditions": conditions,
            "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}],
            **more.pop("status", {}),
        }
        spec = {"nodeName": "node-1", **more.pop("spec", {})}
        metadata = {"labels": labels, **more.pop("metadata", {})}
        path = f"{more.pop('core', CORE)}/pods/{name}"
        return self.put(path, spec=spec, status=status, metadata=metadata)

    def config_map(self, name: str, **data: str) -> None:
        self.put(f"{CORE}/configmaps/{name}", data=data)

    def data(self, name: str) -> dict[str, str]:
        with self.lock:
            return dict(self.objects[f"{CORE}/configmaps/{name}"]["data"])

    def tell(self, *events: RunEvent, **figures: Any) -> None:
        """What the driver would tell."""
        known = {
            "uid": UID,
            "state": "running",
            "execution": 3,
            "spark": "running",
            "pending_replays": 0,
        }
        status = Status(**{**known, **figures})
        lines = [f"{at}-{e.kind} {codec.encode_line(e).rstrip()}" for at, e in enumerate(events)]
        data = {pods.STATUS: json.dumps(codec.encode(status)), pods.EVENTS: "\n".join(lines)}
        self.config_map(pods.journal_map("words"), **data)

    def view(self, *members: Member, execution: int = 3, phase: Phase = Phase.OPEN) -> None:
        names = tuple(member.name for member in members)
        owners = (names,) * 4
        lives = (Timeline(1), Epoch(2), phase, Execution(execution))
        view = View(UID, *lives, members, members, Epoch(2), owners)
        data = {pods.VIEW_VERSION: "4", pods.VIEW: encode_view(view).decode()}
        self.config_map(pods.view_map("words"), **data)

    def propose(self, *members: Member, leaving: tuple[Member, ...] | None = None) -> None:
        text = json.dumps(codec.encode(Proposal(members, ("words-acker-0",), 1, leaving=leaving)))
        self.config_map(pods.inbox_map("words"), **{pods.PROPOSAL: text})

    def running(self) -> None:
        """A topology all of whose pods are ready."""
        self.topology(metadata={"uid": UID})
        self.pod("words-driver-7", "driver")
        self.pod("words-acker-0", "acker")
        self.pod("words-state-0", "state-server")
        member = Member("words-state-0", "run-1", "redis://10.0.0.1:6379")
        self.view(member)
        self.propose(member)
        self.tell()

    # -- the command

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def millrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, cwd=self.folder, KUBECONFIG=str(self.kubeconfig))

    def called(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same in this process."""
        return called(*arguments, cwd=self.folder, KUBECONFIG=str(self.kubeconfig))

    # -- the answers

    def answer(self, method: str, path: str, body: Any, query: dict[str, list[str]]) -> Any:
        """(status, object)."""
        with self.lock:
            for ending, status in self.refused.items():
                if path.endswith(ending) and status == 404:
                    return 404, "404 page not found\n"  # as of an API that is not served
                if path.endswith(ending):
                    return status, {"message": f"{path} is refused to you"}
            if path.endswith("/scale"):
                return self._scale(path.removesuffix("/scale"), body)
            found = self.objects.get(path)
            if method == "GET" and found is None:
                return self._list(path, query)
            if method == "POST":
                made = self.put(f"{path}/{body['metadata']['name']}", **dict(body))
                return 201, made
            if found is None:
                return 404, {"message": f"{path} not found"}
            if method == "PATCH":
                return self._patch(path, found, body)
            if method == "DELETE":
                uid = ((body or {}).get("preconditions") or {}).get("uid")
                if uid not in (None, found["metadata"]["uid"]):
                    return 409, {"message": "the UID in the precondition does not match"}
                self.on_delete(path)
            return 200, found

    def _list(self, path: str, query: dict[str, list[str]]) -> Any:
        base, _, plural = path.rpartition("/")
        if plural not in ("streamtopologies", "pods", "nodes"):
            return 404, {"message": f"{path} not found"}
        wanted = dict(p.split("=") for p in query.get("labelSelector", [""])[0].split(",") if p)
        everywhere = base == "/api/v1"
        items = [
            one
            for place, one in self.objects.items()
            if (place.rpartition("/")[0] == path or (everywhere and f"/{plural}/" in place))
            and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]
        return 200, {"metadata": {"resourceVersion": "5"}, "items": items}

    def _patch(self, path: str, found: Object, body: Any) -> Any:
        wanted = (body.get("metadata") or {}).pop("resourceVersion", None)
        if wanted not in (None, found["metadata"]["resourceVersion"]):
            return 409, {"message": "it was changed"}
        merged = _merged(found, body)
        generation = found["metadata"].get("generation")
        if generation is not None and merged.get("spec") != found.get("spec"):
            merged["metadata"]["generation"] = generation + 1
        return 200, self.put(path, **merged)

    def _scale(self, path: str, body: Any) -> Any:
        replicas = body["spec"]["replicas"]
        self._patch(path, self.objects[path], {"spec": {"ackers": {"replicas": replicas}}})
        return 200, {"spec": {"replicas": replicas}}


def _merged(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    made = {**one}
    for key, value in other.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(one.get(key), value)
    return made


@contextmanager
def serving(folder: Path) -> Iterator[FakeCluster]:
    """A cluster, and a kubeconfig with the contexts ``here`` (namespace jobs) and ``away``."""
    cluster = FakeCluster(folder)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            query = parse_qs(parts.query)
            cluster.asked.append((self.command, parts.path, body))
            if self.headers.get("Upgrade", "").lower() == "websocket":
                self.close_connection = True
                _upgraded(cluster, self, parts.path, query)
                return
            status, found = cluster.answer(self.command, parts.path, body, query)
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *told: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{listening.server_address[1]}"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        told = {
            "clusters": [
                {"name": "c", "cluster": {"server": url}},
                {"name": "n", "cluster": {"server": nobody}},
            ],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}},
                {"name": "away", "context": {"cluster": "n", "user": "u"}},
            ],
            "current-context": "here",
        }
        cluster.kubeconfig.write_text(yaml.safe_dump(told))
        yield cluster
    listening.shutdown()
    listening.server_close()


# -- WebSockets


def _upgraded(cluster: FakeCluster, handler: Any, path: str, query: Any) -> None:
    pod, _, what = path.removeprefix(f"{CORE}/pods/").partition("/")
    behind = cluster.ports if what == "portforward" else cluster.commands
    pod = pod.rpartition("/")[2]
    if pod not in behind:
        handler.send_error(403, "Forbidden")
        return
    if pod in cluster.lost:
        cluster.lost[pod]()
        return
    key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    accepted = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    handler.send_header("Sec-WebSocket-Accept", accepted)
    handler.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    handler.end_headers()
    handler.wfile.flush()
    if what == "portforward":
        _forward(handler, cluster.ports[pod], int(query["ports"][0]))
        return
    said, code = cluster.commands[pod](query["command"])
    _send(handler.wfile, b"\x01" + said.encode())
    if code is not None:
        status: Object = {"status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {"status": "Failure", "details": {"causes": causes}}
        _send(handler.wfile, b"\x03" + json.dumps(status).encode())
    _send(handler.wfile, b"", 8)


def _forward(handler: Any, connect: Callable[[], socket.socket], port: int) -> None:
    number = struct.pack("<H", port)
    _send(handler.wfile, b"\x00" + number)
    _send(handler.wfile, b"\x01" + number)
    try:
        there = connect()
    except OSError as error:
        _send(handler.wfile, b"\x01" + f"error forwarding port {port}: {error}".encode())
        return

    def back() -> None:
        with suppress(OSError, ValueError):
            while data := there.recv(65536):
                _send(handler.wfile, b"\x00" + data)
            _send(handler.wfile, b"", 8)

    threading.Thread(target=back, daemon=True).start()
    with suppress(OSError, struct.error), there:
        while (frame := _receive(handler.rfile)) is not None:
            there.sendall(frame[1:])


def _send(file: Any, data: bytes, opcode: int = 2) -> None:
    size = len(data)
    head = bytes([0x80 | opcode])
    if size < 126:
        head += bytes([size])
    elif size < 1 << 16:
        head += bytes([126]) + struct.pack(">H", size)
    else:
        head += bytes([127]) + struct.pack(">Q", size)
    file.write(head + data)
    file.flush()


def _receive(file: Any) -> bytes | None:
    """The next frame of data; None at the end."""
    while len(head := file.read(2)) == 2:
        size = head[1] & 0x7F
        if size == 126:
            [size] = struct.unpack(">H", file.read(2))
        elif size == 127:
            [size] = struct.unpack(">Q", file.read(8))
        mask = file.read(4) if head[1] & 0x80 else bytes(4)
        data = file.read(size)
        if head[0] & 0x0F == 8:
            return None
        if head[0] & 0x0F in (1, 2):
            return bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    return None
