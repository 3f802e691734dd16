"""``python -m millrace_operator.trial``: whether an operator sees to a namespace.

What the chart's test runs: it makes a suspended topology there, waits until the operator has
made what such a topology has, down to the pod of its one state server, and deletes it. Whether that
pod runs is not waited for. Needs the rights to create, get and delete topologies and to get pods.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.clock import Clock, SystemClock
from millrace.errors import ExitCode, MillraceError
from millrace.homes.pods import Role, pod_name
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import own_api
from millrace.topology.model import API_VERSION, KIND
from millrace.topology.scalars import LONGEST_NAME
from millrace_operator.kube import kinds
from millrace_operator.kube.objects import Objects

_POLL_S = 0.5


class UnsettledError(MillraceError):
    """The operator has not done its part in time."""


def manifest(namespace: str, name: str) -> dict[str, Any]:
    """A topology that asks for one small pod, which a quota of CPU takes, too."""
    limited = {"resources": {"limits": {"cpu": "250m"}}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "suspend": True,
            "guarantee": "AtLeastOnce",
            "ackers": {"replicas": 1},
            "stateServers": {"replicas": 1, "copies": 1, "memory": "64m"},
            "pods": dict.fromkeys(("stateServers", "ackers", "driver"), limited),
            "sources": [{"name": "numbers", "generator": {"count": 1}}],
            "sinks": [{"name": "shown", "inputs": [{"from": "numbers"}], "console": {}}],
        },
    }


def called(prefix: str, end: str) -> str:
    """The name of the topology, which is shorter than that of a release may be, has no dot, and
    begins with a letter, as the names of its services have to."""
    prefix = prefix.replace(".", "-")
    prefix = prefix if prefix[:1].isalpha() else f"trial-{prefix}"
    return f"{prefix[: LONGEST_NAME - len(end) - 1].rstrip('-')}-{end}"


def stalls(found: Mapping[str, Any]) -> bool | None:
    """Whether the operator says that it cannot go on; None while it has not said anything of the
    topology as it is."""
    conditions = found.get("status", {}).get("conditions", [])
    generation = found["metadata"]["generation"]
    told = [one for one in conditions if one["type"] == "Stalled"]
    return next(
        (c["status"] == "True" for c in told if c["observedGeneration"] == generation), None
    )


def attempt(
    objects: Objects,
    namespace: str,
    name: str,
    patience_s: float,
    clock: Clock,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Raises ``UnsettledError``, and as ``Objects``."""
    path = kinds.one(KIND, namespace, name)
    if not objects.create(manifest(namespace, name)):
        raise UnsettledError(f"{path} is there already; try again")
    end_s = clock.monotonic_s() + patience_s
    try:
        while not (found := _found(objects, namespace, name)).settled:
            if clock.monotonic_s() > end_s:
                raise UnsettledError(
                    f"{path} has no pod after {patience_s:.0f} s ({found.message}); does an "
                    "operator run, and does it see to this namespace?"
                )
            pause(_POLL_S)
    finally:
        there = objects.get(path)
        if there is not None:
            objects.delete(path, there["metadata"]["uid"])


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of the topology."""

    settled: bool
    message: str


def _found(objects: Objects, namespace: str, name: str) -> Found:
    path = kinds.one(KIND, namespace, name)
    try:
        there = objects.get(path)
        pod = objects.get(kinds.one("Pod", namespace, pod_name(name, Role.STATE_SERVER, 0)))
    except HomeAwayError as error:
        return Found(False, str(error))
    if there is None:
        raise UnsettledError(f"{path} was deleted by somebody else")
    message = there.get("status", {}).get("message") or "its status says nothing"
    return Found(pod is not None and stalls(there) is False, message)


def stop_on_sigterm() -> None:
    """From now on a process that is told to end deletes the topology first: with Python's own
    answer to the signal it would stay, and its pods with it."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise UnsettledError("told to end before the operator had done its part")

    signal.signal(signal.SIGTERM, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try it once; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m millrace_operator.trial", description=__doc__)
    parser.add_argument("--namespace", required=True, help="where the topology is made")
    parser.add_argument("--name", default="trial", help="what its name begins with")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds")
    options = parser.parse_args(arguments)
    stop_on_sigterm()
    name = called(options.name, secrets.token_hex(3))
    try:
        objects = Objects(own_api())
        attempt(objects, options.namespace, name, options.patience, SystemClock())
    except MillraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"the operator sees to topologies in {options.namespace}")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
