"""Times as the API server has them in texts."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(time: datetime) -> str:
    """A time as Kubernetes writes it, in UTC and, where there are any, microseconds."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def until_s(time: str, now: datetime) -> float:
    """Seconds from now to a time, less than none where it has passed."""
    return (datetime.fromisoformat(time) - now).total_seconds()
