"""``python -m millrace_operator.trial``: whether an operator sees to a namespace.

What the chart's test runs: it makes a topology there that is suspended and names a state server, so
that no pod starts, waits until the operator has made its children and says that it is settled, and
deletes it. Needs the rights to create, get and delete topologies, and no others.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.clock import Clock, SystemClock
from millrace.errors import ExitCode, MillraceError
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import own_api
from millrace.topology.model import API_VERSION, KIND
from millrace_operator.kube import kinds
from millrace_operator.kube.objects import Objects

_POLL_S = 0.5


class UnsettledError(MillraceError):
    """The operator has not done its part in time."""


def manifest(namespace: str, name: str) -> dict[str, Any]:
    """A topology that asks for no pod."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "suspend": True,
            "guarantee": "AtLeastOnce",
            "stateServers": {"url": "redis://nobody.invalid:6379"},
            "sources": [{"name": "numbers", "generator": {"count": 1}}],
            "sinks": [{"name": "shown", "inputs": [{"from": "numbers"}], "console": {}}],
        },
    }


def settled(found: Mapping[str, Any]) -> bool:
    """Whether the operator has brought it to where it is to be."""
    conditions = found.get("status", {}).get("conditions", [])
    ready = [one for one in conditions if one["type"] == "Ready"]
    generation = found["metadata"]["generation"]
    return any(c["status"] == "True" and c["observedGeneration"] == generation for c in ready)


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
        while not (found := _found(objects, path)).settled:
            if clock.monotonic_s() > end_s:
                raise UnsettledError(
                    f"{path} is not settled after {patience_s:.0f} s ({found.message}); does an "
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


def _found(objects: Objects, path: str) -> Found:
    try:
        there = objects.get(path)
    except HomeAwayError as error:
        return Found(False, str(error))
    if there is None:
        raise UnsettledError(f"{path} was deleted by somebody else")
    return Found(
        settled(there), there.get("status", {}).get("message") or "its status says nothing"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Try it once; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m millrace_operator.trial", description=__doc__)
    parser.add_argument("--namespace", required=True, help="where the topology is made")
    parser.add_argument("--name", default="trial", help="what its name begins with")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds")
    options = parser.parse_args(arguments)
    name = f"{options.name}-{secrets.token_hex(3)}"
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
