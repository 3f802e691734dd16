"""Pods that have not begun: of these nothing is lost, and some never begin as they were made.

A pod keeps for ever what it was made with. A name of an image that is not there, or a node that
nobody has, is mended where it is said, by an edit or by another operator, and the pod that waits
for it is made anew then. One that has begun goes on as it is, whatever the operator's release.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace_operator.builders.naming import DIGEST, Manifest
from millrace_operator.reconcile.observe import Pod


def made_otherwise(pod: Pod, make: Callable[[], Manifest]) -> bool:
    """Whether a pod that has not begun was made with something else than ``make`` would now. An
    older operator's does not say with what."""
    if pod.begun or not pod.digest:
        return False
    return bool(pod.digest != make()["metadata"]["annotations"][DIGEST])
