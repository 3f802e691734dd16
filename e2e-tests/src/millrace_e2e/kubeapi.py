"""A Kubernetes API server of a test's own, with its etcd: on loopback, in seconds, without nodes.

The binaries are those of the cluster of these tests (``kube-apiserver``, kept below the user's
cache) and of Debian's ``etcd-server``. Both processes end with the test.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millrace.guard import die_with
from millrace_e2e.cluster.layout import cache_folder

START_S = 120.0
_POLL_S = 0.05


def find_apiserver() -> Path | None:
    """The one on the path, else the newest below the user's cache; None where there is none."""
    named = shutil.which("kube-apiserver")
    if named:
        return Path(named)
    # Beside the programs images are built, whose folders come and go.
    programs = (cache_folder() / "bin").glob("*/kube-apiserver")
    found = [path for path in programs if os.access(path, os.X_OK)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def missing() -> str | None:
    """What is not there to start an API server; None where all is."""
    if find_apiserver() is None:
        return "no kube-apiserver was built: make cluster-up"
    if shutil.which("etcd") is None:
        return "no etcd: apt install etcd-server"
    return None


@dataclass(slots=True)
class ApiServer:
    """``token`` may do everything; ``kubeconfig`` is a file that says so. ``others`` are the tokens
    of more users, by name, which audit logs tell apart."""

    folder: Path
    port: int
    token: str
    etcd: subprocess.Popen[bytes]
    process: subprocess.Popen[bytes]
    others: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        file = self.folder / "kubeconfig"
        if not file.exists():
            file.write_text(json.dumps(_kubeconfig(self, self.token)))
        return file

    def kubeconfig_of(self, name: str) -> Path:
        """That of one of the others."""
        return self.kubeconfig_with(self.others[name], self.folder / f"{name}.kubeconfig")

    def kubeconfig_with(self, token: str, file: Path) -> Path:
        """Whoever has this token, as a file."""
        file.write_text(json.dumps(_kubeconfig(self, token)))
        return file

    def get(self, path: str) -> bytes:
        """Raises ``OSError`` for whatever is no answer of 200."""
        request = urllib.request.Request(self.url + path)
        request.add_header("Authorization", f"Bearer {self.token}")
        context = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(request, context=context, timeout=5) as answer:
            return bytes(answer.read())

    def end(self) -> None:
        for process in (self.process, self.etcd):
            process.kill()
            process.wait()


@contextmanager
def serving(
    folder: Path,
    users: Sequence[str] = (),
    more: Sequence[str] = (),
    rightless: Sequence[str] = (),
) -> Iterator[ApiServer]:
    """An API server that is ready, with more users than its one, who may do everything or have no
    rights yet, and more arguments."""
    binary = find_apiserver()
    assert binary is not None, missing()
    folder.mkdir(parents=True)
    etcd_port, peer_port, port = _free_ports(3)
    etcd = _start(folder, "etcd", _etcd(folder, etcd_port, peer_port))
    token = secrets.token_hex(16)
    others = {name: secrets.token_hex(16) for name in (*users, *rightless)}
    groups = dict.fromkeys(users, ",system:masters")
    lines = [f"{one},{name},{name}{groups.get(name, '')}\n" for name, one in others.items()]
    (folder / "tokens.csv").write_text("".join([f"{token},admin,admin,system:masters\n", *lines]))
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    command = [*_apiserver(folder, binary, etcd_port, port), *more]
    process = _start(folder, "apiserver", command)
    server = ApiServer(folder, port, token, etcd, process, others)
    try:
        _await_ready(server)
        yield server
    finally:
        server.end()


def _etcd(folder: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        *("etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
    ]


def _apiserver(folder: Path, binary: Path, etcd_port: int, port: int) -> list[str]:
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certs'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--disable-admission-plugins=ServiceAccount",
        # Debian's etcd is too old for lists by watching, which Spark's client would ask for.
        "--feature-gates=WatchList=false",
    ]


def _start(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )


def _await_ready(server: ApiServer) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            server.get("/readyz")
            return
        except (OSError, urllib.error.URLError) as error:
            ended = server.process.poll() is not None or server.etcd.poll() is not None
            if ended or time.monotonic() > end_s:
                log = (server.folder / "apiserver.log").read_text()[-2000:]
                raise AssertionError(f"the API server is not ready ({error}):\n{log}") from error
        time.sleep(_POLL_S)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _kubeconfig(server: ApiServer, token: str) -> dict[str, object]:
    cluster = {"server": server.url, "certificate-authority": str(server.ca)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
