"""The one error of this package."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot be brought up, changed or taken down; the message says what to do."""
