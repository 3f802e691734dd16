"""What the commands do for a topology of a cluster; what they print is that of a work folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millrace.cli.output import print_plain
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.local.inspect.letters import Letter
    from millrace.local.inspect.state import Holder
    from millrace.remote.snapshots import Taken
    from millrace.remote.topology import RemoteTopology


class Looking:
    """The overview, again and again: one that cannot be had leaves the last one, with a warning."""

    def __init__(self, topology: RemoteTopology) -> None:
        self._topology = topology
        self._last: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        from millrace.remote.cluster import ClusterError, NotThereError
        from millrace.remote.overview import overview

        try:
            self._last = overview(self._topology)
        except NotThereError:
            raise
        except ClusterError as error:
            if self._last is None:
                raise
            warnings = [*self._last["warnings"], f"not up to date: {error}"]
            return {**self._last, "warnings": warnings}
        return self._last


def scale(
    topology: RemoteTopology, state_servers: int | None, ackers: int | None, timeout: float
) -> None:
    """``millrace scale``. Raises ``ScaleError``, ``ClusterError``."""
    from millrace.cli.scale import spoken
    from millrace.homes.documents import Scale
    from millrace.local.scale import ScaleError, acker_bounds, refusal_of
    from millrace.remote.scaling import ask, await_scaled

    name, declared = topology.name, topology.model
    reason = refusal_of(declared, Scale(state_servers, ackers))
    if reason:
        raise ScaleError(f"{name}: {reason}")
    ask(topology, state_servers, ackers)
    if ackers is not None and (clamped := acker_bounds(declared).clamped(ackers)) != ackers:
        least, most = declared.spec.ackers.least, declared.spec.ackers.most
        print_plain(
            f"{name} has {least} to {most} ackers by spec.ackers.min and max, never {ackers}"
        )
        ackers = clamped
    wanted = spoken(state_servers, ackers)
    if timeout == 0:
        print_plain(f"{name} is asked to have {wanted}")
    elif await_scaled(topology, state_servers, ackers, timeout):
        print_plain(f"{name} has {wanted}; its resource says so from now on")
    else:
        raise MillraceError(
            f"{name} does not have {wanted} within {timeout:g} s; what is asked for stands in its "
            "resource: look at it with millrace status"
        )


@contextmanager
def holding(topology: RemoteTopology) -> Iterator[Holder]:
    """Its state servers, for ``millrace state``."""
    from millrace.local.inspect.state import Holder
    from millrace.remote.servers import reachable

    with reachable(topology) as clients:
        yield Holder(topology.model, clients)


def letters(topology: RemoteTopology) -> list[Letter]:
    """Its dead letters."""
    from millrace.local.inspect.letters import letters_on
    from millrace.remote.servers import reachable

    with reachable(topology) as clients, topology.speaking():
        return letters_on(clients, topology.inbox)


def ask_letters(topology: RemoteTopology, action: str, wanted: list[Letter]) -> bool:
    """Have them replayed or dropped; whether a driver is alive to do so now."""
    from millrace.local.inspect.letters import ask_in
    from millrace.remote.overview import driver_of

    with topology.speaking():
        ask_in(topology.inbox, action, wanted)
    return driver_of(topology, topology.pods()) is not None


def snapshot(
    topology: RemoteTopology, name: str | None, place: str | None, timeout: float
) -> Taken:
    """Take one, and wait for it."""
    from millrace.clock import SystemClock
    from millrace.local.snapshots.asking import new_name
    from millrace.remote.snapshots import take
    from millrace.snapshots.manifest import check_name

    clock = SystemClock()
    called = name or new_name(clock)
    check_name(called)
    return take(topology, called, place, timeout, clock, time.sleep)
