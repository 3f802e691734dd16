"""Certificates and kubeconfigs of a cluster, made with openssl; good for 30 days."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millrace_e2e.cluster.layout import API_SERVICE, CONTROL_PLANE, Layout, Node
from millrace_e2e.cluster.processes import run

_DAYS = "30"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
API_URL = f"https://{CONTROL_PLANE}:6443"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a certificate is for: ``subject`` is the user and its groups."""

    name: str
    subject: str
    alternative: str

    @classmethod
    def client(cls, name: str, user: str, group: str = "") -> Identity:
        return cls(name, f"{f'/O={group}' if group else ''}/CN={user}", f"DNS:{name}")


def identities(nodes: Iterable[Node]) -> list[Identity]:
    """All that take part."""
    own = (f"IP:{API_SERVICE}", f"IP:{CONTROL_PLANE}", "IP:127.0.0.1", "DNS:localhost")
    services = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    names = ",".join((*own, *(f"DNS:{name}" for name in services)))
    kubelets = (
        Identity(
            node.name,
            f"/O=system:nodes/CN=system:node:{node.name}",
            f"IP:{node.address},DNS:{node.name}",
        )
        for node in nodes
    )
    return [
        Identity("api", "/CN=kube-apiserver", names),
        Identity.client("admin", "admin", "system:masters"),
        Identity.client("kubelet-client", "kubelet-client", "system:masters"),
        Identity.client("controllers", "system:kube-controller-manager"),
        Identity.client("scheduler", "system:kube-scheduler"),
        Identity.client("proxy", "system:kube-proxy"),
        Identity.client("dns", "dns", "system:masters"),
        *kubelets,
    ]


def make(layout: Layout, nodes: Iterable[Node]) -> None:
    """Authority, keys, certificates and kubeconfigs that are not there yet.

    A certificate appears behind its key, so that one that is there has its key beside it.
    """
    pki = layout.pki
    pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (pki / "accounts.key").exists():
        draft = pki / "accounts.draft"
        run("openssl", "genpkey", "-algorithm", "RSA", "-out", str(draft))
        draft.rename(pki / "accounts.key")
    if not (pki / "ca.crt").exists():
        draft = pki / "ca.draft"
        names = ("-subj", "/CN=millrace-test-authority", "-days", _DAYS)
        files = ("-keyout", str(pki / "ca.key"), "-out", str(draft))
        run("openssl", "req", "-x509", *_KEY, *files, *names)
        draft.rename(pki / "ca.crt")
    for identity in identities(nodes):
        if not (pki / f"{identity.name}.crt").exists():
            _sign(pki, identity)
        _write(pki / f"{identity.name}.kubeconfig", kubeconfig(pki, identity.name))
    _write(layout.kubeconfig, kubeconfig(pki, "admin"))


def _sign(pki: Path, identity: Identity) -> None:
    stem = pki / identity.name
    key, request, draft = f"{stem}.key", f"{stem}.csr", f"{stem}.draft"
    extensions = Path(f"{stem}.ext")
    extensions.write_text(f"subjectAltName={identity.alternative}\n")
    names = ("-subj", identity.subject, "-keyout", key, "-out", request)
    run("openssl", "req", *_KEY, *names)
    authority = ("-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key"), "-CAcreateserial")
    output = ("-days", _DAYS, "-extfile", str(extensions), "-out", draft)
    run("openssl", "x509", "-req", "-in", request, *authority, *output)
    Path(draft).rename(f"{stem}.crt")


def kubeconfig(pki: Path, user: str) -> str:
    """A kubeconfig document (JSON is YAML) for one identity."""
    cluster = {"server": API_URL, "certificate-authority": str(pki / "ca.crt")}
    credentials = {
        "client-certificate": str(pki / f"{user}.crt"),
        "client-key": str(pki / f"{user}.key"),
    }
    name = "millrace"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    return json.dumps(document, indent=1)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
