"""Rows of which some fail for good."""

from __future__ import annotations

from typing import Any

from millrace import row


@row(output="word string")
def taken(line: dict[str, Any]) -> dict[str, Any]:
    if line["value"].startswith("boom"):
        raise ValueError(f"cannot take {line['value']}")
    return {"word": line["value"]}
