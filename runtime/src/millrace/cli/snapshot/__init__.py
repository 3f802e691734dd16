"""``millrace snapshot``: copies of what a topology knows behind one sealed window."""

from millrace.cli.snapshot.commands import register

__all__ = ["register"]
