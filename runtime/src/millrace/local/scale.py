"""Makes a run larger or smaller while it goes on: how many state servers and ackers it has.

The command line leaves what is asked for in ``scale.json`` of the work folder, and the supervisor
follows it. It holds until the run ends: the next one goes by the topology's file again.
"""

from __future__ import annotations

import fcntl
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from millrace import checked
from millrace.errors import ExitCode, MillraceError, NewerFormatError
from millrace.homes import codec
from millrace.homes.documents import Scale, decode_processes
from millrace.local.files import write_json
from millrace.local.servers import StateServer
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder
from millrace.modes import private_opener
from millrace.protocol.ackerload import AckerBounds
from millrace.protocol.types import Phase, View
from millrace.state.viewfile import WatchedView
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.model import StreamTopology

_LOOK_S = 0.1


class ScaleError(MillraceError):
    """A run that cannot be made so large or small."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a supervisor needs to follow what is asked for.

    ``wanted`` are the names of the state servers that the topology's file asks for, ``asked`` is
    what was asked for since the run began, or None, and ``refusal`` says why it cannot be, or "".
    """

    copies: int
    wanted: frozenset[str]
    make: Callable[[str], StateServer]
    view: Callable[[], View | None]
    asked: Callable[[], Scale | None]
    refusal: Callable[[Scale], str]


def server_names(count: int) -> list[str]:
    """Names of so many state servers."""
    return [f"state-{number}" for number in range(count)]


def acker_bounds(topology: StreamTopology) -> AckerBounds:
    """How many ackers a topology may have while it runs; none where nothing is tracked."""
    ackers = topology.spec.ackers
    if not topology.spec.tracked:
        return AckerBounds(0, 0)
    if ackers.least is None or ackers.most is None:
        return AckerBounds(1, MOST_MEMBERS)
    return AckerBounds(ackers.least, ackers.most, automatic=True)


def refusal_of(topology: StreamTopology, scale: Scale) -> str:
    """Why a topology cannot be of that size; "" where it can."""
    spec = topology.spec
    servers, ackers = scale.state_servers, scale.ackers
    if servers is not None:
        if spec.state_servers.url is not None:
            return "spec.stateServers.url names a server of your own, which is the only one"
        least = spec.state_servers.copies
        if not least <= servers <= MOST_MEMBERS:
            return (
                f"{servers} state servers: there must be {least} to {MOST_MEMBERS}, since "
                f"spec.stateServers.copies is {least}"
            )
    if ackers is not None:
        if not spec.tracked:
            return "nothing is tracked, so there are no ackers"
        if not 1 <= ackers <= MOST_MEMBERS:
            return f"{ackers} ackers: there must be 1 to {MOST_MEMBERS}"
    return ""


def ask(folder: WorkFolder, topology: StreamTopology, scale: Scale) -> Scale:
    """Ask the run of a work folder for another size, beside what was asked for before; what is
    asked for now.

    Where the load decides between two numbers of ackers, only these and what lies between can be
    had: of another number the nearest one is asked for. Raises ``ScaleError`` where no run is
    alive, or it cannot be of that size.
    """
    name = folder.identity.name
    reason = refusal_of(topology, scale)
    if reason:
        raise ScaleError(f"{name}: {reason}")
    if scale.ackers is not None:
        scale = replace(scale, ackers=acker_bounds(topology).clamped(scale.ackers))
    with _alone(folder.scale):
        if current_holder(folder.path) is None:
            raise ScaleError(
                f"{name} is not running; put the numbers into its file, spec.stateServers.replicas "
                "and spec.ackers.replicas"
            )
        asked = _joined(read(folder.scale) or Scale(), scale, secrets.token_hex(8))
        write_json(folder.scale, codec.encode(asked))
    return scale


@contextmanager
def beginning(folder: WorkFolder) -> Iterator[None]:
    """Whoever asks asks the run before, which is forgotten here, or the one that begins here."""
    with _alone(folder.scale):
        folder.scale.unlink(missing_ok=True)
        folder.edit.unlink(missing_ok=True)
        yield


def _joined(before: Scale, scale: Scale, mark: str) -> Scale:
    """What was asked for before, but for what is asked for now, under a mark of its own."""
    if scale.state_servers is not None:
        before = replace(before, state_servers=scale.state_servers, state_servers_mark=mark)
    if scale.ackers is not None:
        before = replace(before, ackers=scale.ackers, ackers_mark=mark)
    return before


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Of two who ask at the same moment the second one sees what the first one asked for."""
    with open(path.with_suffix(".lock"), "a", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def news(followed: Scale | None, asked: Scale) -> Scale:
    """What of ``asked`` a run that has followed ``followed`` has not followed yet.

    The rest is not followed again: the load may have changed the number of ackers since.
    """
    if followed is None:
        return asked
    mark = asked.state_servers_mark
    if mark is not None and mark == followed.state_servers_mark:
        asked = replace(asked, state_servers=None)
    mark = asked.ackers_mark
    if mark is not None and mark == followed.ackers_mark:
        asked = replace(asked, ackers=None)
    return asked


def read(path: Path) -> Scale | None:
    """What was asked for; None where nothing was, or nothing that can be read."""
    try:
        return codec.decode(Scale, path.read_bytes())
    except (OSError, checked.DamagedError, NewerFormatError):
        return None


def await_scaled(folder: WorkFolder, scale: Scale, timeout_s: float) -> bool:
    """Wait until the run is of that size, or has ended; whether it is."""
    watched = WatchedView(folder.view)
    end_s = time.monotonic() + timeout_s
    while not is_scaled(folder, scale, watched.look()):
        if time.monotonic() >= end_s or current_holder(folder.path) is None:
            return False
        time.sleep(_LOOK_S)
    return True


def is_scaled(folder: WorkFolder, scale: Scale, view: View | None) -> bool:
    """Whether the view is open with the state servers asked for, those that were to leave have
    ended, and so many ackers run."""
    try:
        rows = decode_processes(folder.processes.read_bytes()).processes
    except (OSError, checked.DamagedError):
        return False
    if scale.state_servers is not None:
        wanted = set(server_names(scale.state_servers))
        if view is None or view.phase is not Phase.OPEN:
            return False
        if {member.name for member in view.target} != wanted:
            return False
        if not {row.name for row in rows if row.role == "state"} <= wanted:
            return False
    return scale.ackers is None or sum(row.role == "acker" for row in rows) == scale.ackers
