"""Which incarnation the state server in a pod is, as the pod itself says it.

A container that was started again is another incarnation, so that what it said counts as long as
its container is the same.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import Any, cast

from millrace.homes import pods as names

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
Ask = Callable[[str, str], str | None]
"""From a pod's IP and name to the run id of its server; None where it does not say one."""

_ANSWER_S = 2.0
_MOST_BYTES = 8192
_AT_ONCE = 8


def ask_pod(address: str, name: str, port: int = names.HEALTH_PORT) -> str | None:
    """What the pod says at ``/incarnation``. Nothing follows from whatever is no such answer, all
    of it within ``_ANSWER_S`` and ``_MOST_BYTES``."""
    try:
        # It takes a socket, and asks it for nothing but a file to read.
        with HTTPResponse(cast("socket.socket", _Heard(_heard(address, port)))) as response:
            response.begin()
            text = response.read(_MOST_BYTES)
    except (OSError, HTTPException) as error:
        log.info("pod %s does not say its incarnation: %s", name, error)
        return None
    return said(name, text) if response.status == HTTPStatus.OK else None


def _heard(address: str, port: int) -> bytes:
    """An answer to its end, with its head. It is read here, since a pod may be anybody's: it may
    send byte after byte, each in time, or more than there is memory for. Raises ``OSError``."""
    end_s = time.monotonic() + _ANSWER_S
    heard = bytearray()
    with socket.create_connection((address, port), _ANSWER_S) as connection:
        connection.sendall(_question(address))
        while len(heard) < _MOST_BYTES:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer within {_ANSWER_S:g} s")
            connection.settimeout(left_s)
            part = connection.recv(_MOST_BYTES - len(heard))
            if not part:
                return bytes(heard)
            heard += part
    raise OSError(f"the answer has {_MOST_BYTES} bytes or more")


def _question(address: str) -> bytes:
    host = f"[{address}]" if ":" in address else address
    lines = f"GET {names.INCARNATION_PATH} HTTP/1.1", f"Host: {host}", "Connection: close"
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was heard, as ``HTTPResponse`` takes it."""

    data: bytes

    def makefile(self, _: str) -> BytesIO:
        return BytesIO(self.data)


def said(name: str, text: bytes) -> str | None:
    """The run id in an answer of the pod of that name. An address may be another pod's by now."""
    try:
        found = json.loads(text)
        run_id = found["runId"]
        same = found["name"] == name
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return run_id if same and isinstance(run_id, str) and run_id else None


class Incarnations:
    """What the pods of all topologies said last. Safe for several threads as long as each topology
    is asked for by one at a time."""

    def __init__(self, ask: Ask = ask_pod) -> None:
        self._ask = ask
        self._known: dict[str, dict[tuple[str, str], str]] = {}

    def of(self, topology: str, pods: Sequence[Object]) -> dict[str, str]:
        """The run id by the uid of the pod, of those that are ready and say one; ``topology`` is
        the uid that the pods belong to."""
        before = self._known.get(topology, {})
        lives = {_life(pod): pod for pod in pods if _answers(pod)}
        known = {life: before[life] for life in lives if life in before}
        asked = [(life, pod) for life, pod in lives.items() if life not in known]
        if asked:
            with ThreadPoolExecutor(min(len(asked), _AT_ONCE)) as pool:
                # What these threads log is about the topology that this one works at.
                own = [copy_context() for _ in asked]
                answers = pool.map(lambda c, one: c.run(self._of_pod, one[1]), own, asked)
                for (life, _), run_id in zip(asked, answers, strict=True):
                    if run_id is not None:
                        known[life] = run_id
        self._known[topology] = known
        return {uid: run_id for (uid, _), run_id in known.items()}

    def forget(self, topology: str) -> None:
        """The topology of this uid is gone."""
        self._known.pop(topology, None)

    def _of_pod(self, pod: Object) -> str | None:
        return self._ask(pod["status"]["podIP"], pod["metadata"]["name"])


def _answers(pod: Object) -> bool:
    status = pod.get("status", {})
    conditions = status.get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and bool(status.get("podIP")) and bool(status.get("containerStatuses"))


def _life(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0].get("containerID", "")
