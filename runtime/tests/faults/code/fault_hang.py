"""The history's ``parse``, whose first call in the ordered window never returns."""

from __future__ import annotations

import threading
from typing import Any

import history
from fault_orders import attempt, orders, strike

from millrace import row


@row(output="id string, bucket string, words array<string>")
def parse(line: dict[str, Any]) -> dict[str, Any]:
    if orders().get("hangs") == attempt()[1] and strike("hang"):
        threading.Event().wait()
    return history.parse(line)
