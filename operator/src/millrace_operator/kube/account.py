"""The operator's own service account, as the token of its pod names it.

The token is read and not checked: it is this pod's own, mounted by the kubelet, and what it says is
used for nothing but an owner reference, which the API server and its collector judge by themselves.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_CLAIM = "kubernetes.io"


def mounted_account(namespace: str, file: Path = TOKEN) -> dict[str, Any] | None:
    """An owner reference to the account of this pod, for objects of its own namespace; None outside
    of pods, with a kubeconfig, and where the account is in another namespace."""
    if os.environ.get("KUBECONFIG"):
        return None
    try:
        token = file.read_text()
    except OSError:
        return None
    return account_of(token, namespace)


def account_of(token: str, namespace: str) -> dict[str, Any] | None:
    """Who is deleted takes along what it owns, and an owner in another namespace is none: so it is
    named only if all is known."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        told = claims[_CLAIM]
        account = told["serviceaccount"]
        if told["namespace"] != namespace:
            return None
        named = {"name": account["name"], "uid": account["uid"]}
    except (IndexError, LookupError, TypeError, ValueError):
        return None
    return {"apiVersion": "v1", "kind": "ServiceAccount", **named}
