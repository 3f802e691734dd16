"""Logs of a pod: one line of JSON each, with the key of the resource that it belongs to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from millrace.homes import pods
from millrace.homes.pods import Role
from millrace.logs.jsonlines import JsonLines
from millrace.logs.repeats import quiet_repeats
from millrace.pods.identity import Identity


class PodLines(JsonLines):
    """Lines that say which pod they are of."""

    def __init__(self, role: Role, identity: Identity) -> None:
        super().__init__()
        self._of = {
            "topology": identity.topology,
            "namespace": identity.namespace,
            "pod": identity.pod,
            "role": role.value,
        }

    def about(self) -> Mapping[str, str]:
        return self._of


def start_logs(role: Role, identity: Identity) -> None:
    """Log to standard error from now on, at the level of the environment."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PodLines(role, identity))
    level = os.environ.get(pods.LOG_LEVEL, "INFO").upper()
    known = logging.getLevelNamesMapping()
    logging.basicConfig(level=known.get(level, logging.INFO), handlers=[handler], force=True)
    if level not in known:
        logging.warning("%s is %r; use one of %s", pods.LOG_LEVEL, level, ", ".join(known))
    logging.getLogger("py4j").setLevel(logging.WARNING)
    quiet_repeats()
