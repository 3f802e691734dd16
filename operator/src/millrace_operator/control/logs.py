"""Logs of the operator: one line of JSON each, with the key of the topology that it is about."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from millrace.logs.jsonlines import JsonLines
from millrace.logs.repeats import quiet_repeats

_about: ContextVar[str] = ContextVar("about", default="")


@contextmanager
def about(key: object) -> Iterator[None]:
    """Lines of this thread are about a topology until this ends."""
    token = _about.set(str(key))
    try:
        yield
    finally:
        _about.reset(token)


class TopologyLines(JsonLines):
    """Lines with ``topology`` as ``namespace/name`` where they are about one."""

    def about(self) -> Mapping[str, str]:
        return {"topology": _about.get()} if _about.get() else {}


def start_logs(level: str, text: bool) -> None:
    """Log to standard error from now on, as JSON or, for people, as text."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(plain if text else TopologyLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It says of each object that it was seen.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    quiet_repeats()
