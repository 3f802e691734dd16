"""Sorting readings into bands, one row at a time."""

from __future__ import annotations

from typing import Any

from millrace import row


@row(output="band string, value double")
def band(reading: dict[str, Any]) -> dict[str, Any]:
    """A reading (``value`` in [0, 1)) with the name of its band: low, middle or high."""
    value = reading["value"]
    name = "low" if value < 0.25 else "middle" if value < 0.75 else "high"
    return {"band": name, "value": value}
