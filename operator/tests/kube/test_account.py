"""Whose account a token names, and that a Lease goes with it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hand_clock import HandClock
from memory_api import MemoryApi
from memory_world import NOW_S

from millrace_operator.kube.account import account_of, mounted_account
from millrace_operator.kube.lease import DURATION_S, Lease
from millrace_operator.kube.objects import Objects

PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/op"
CLAIMS = {"namespace": "system", "serviceaccount": {"name": "operator", "uid": "u-1"}}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "operator", "uid": "u-1"}


def token(claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2ln"


def test_the_account_is_named():
    assert account_of(token({"kubernetes.io": CLAIMS}), "system") == ACCOUNT


@pytest.mark.parametrize(
    "text",
    [
        *("", "no token", "a.b.c", "a.é.c"),
        token([]),
        token({"kubernetes.io": "x"}),
        token({"kubernetes.io": {**CLAIMS, "namespace": "other"}}),
        token({"kubernetes.io": {**CLAIMS, "serviceaccount": {"name": "operator"}}}),
    ],
)
def test_nobody_is_named_where_something_is_not_known(text: str):
    assert account_of(text, "system") is None


def test_a_kubeconfig_is_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "token"
    file.write_text(token({"kubernetes.io": CLAIMS}))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert mounted_account("system", file) == ACCOUNT
    assert mounted_account("system", tmp_path / "none") is None
    monkeypatch.setenv("KUBECONFIG", "somewhere")
    assert mounted_account("system", file) is None


def test_a_lease_keeps_the_owner_that_it_was_made_with():
    api, clock = MemoryApi(), HandClock(NOW_S)
    written: list[Any] = []
    answer = api.answer

    def heard(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if method in ("POST", "PUT"):
            written.append(body["metadata"].get("ownerReferences"))
        return answer(method, path, body, **more)

    api.answer = heard  # type: ignore[method-assign]
    objects = Objects(api)  # type: ignore[arg-type]
    one = Lease(objects, "system", "op", "one", clock, ACCOUNT)
    two = Lease(objects, "system", "op", "two", clock, {**ACCOUNT, "uid": "u-2"})
    for lease in (one, one, two):
        lease.turn()
    clock.time_s += DURATION_S + 1
    two.turn()
    two.give_back()
    assert written == [[ACCOUNT]] * 4
    assert api.objects[PATH]["metadata"]["ownerReferences"] == [ACCOUNT]
