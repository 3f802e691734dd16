"""A vectorised function that takes one row at a time."""

from __future__ import annotations

from millrace import vectorized


@vectorized(output="word string")
def alone(rows):
    """Each row as it is; more at once are too many."""
    if rows.num_rows > 1:
        raise ValueError("offset overflow")
    return {"word": rows.column("value")}, range(rows.num_rows)
