"""The state servers of a run: embedded ones that it starts, or one that the user names by URL.

Both are watched for new incarnations: an embedded server that dies is started again on its
folder, a server of the user's is asked for its run id once in a while.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from millrace import durable
from millrace.clock import Clock
from millrace.errors import MillraceError, StateServerError
from millrace.homes.documents import ProcessRow
from millrace.homes.passwords import ACKER_USER, digest, of_root_key
from millrace.homes.restarts import Again, Restarts
from millrace.local.processes import ProcessId
from millrace.local.workdir import MARK, unusable
from millrace.protocol.types import Member, Phase, View
from millrace.state.client import StateAddress, StateClient, discover
from millrace.state.embedded import (
    EmbeddedOptions,
    EmbeddedServer,
    StartingServer,
    new_password,
)
from millrace.state.errors import UnreachableError
from millrace.state.own import NAME
from millrace.topology.members import MOST_MEMBERS
from millrace.tracking.access import acker_rules

REACH_VARIABLE = "MILLRACE_REACH_S"
REACH_S = 30.0
"""How long a server that the user names may be away when a run starts; the variable sets it."""

ROOT_FILE = "root"
"""Name of the file in the work folder."""

_RETRY_S = 0.5
_WATCH_S = 1.0
_COMING_S = (0.02, 0.25)
"""How soon a server that comes up is looked at again, at least and at most; in between a tenth of
what it has taken, since the whole run turns with each look."""

_POLL_S = 0.005
_WATCH_TIMEOUT_S = 2.0


class StateServer(Protocol):
    """What the supervisor needs of a state server.

    ``address`` is the incarnation seen alive last, or None while there is none; ``handle`` is a
    pidfd of a process of ours, or None.
    """

    name: str
    address: StateAddress | None
    handle: int | None

    @property
    def pid(self) -> int | None: ...

    def start(self) -> StateAddress:
        """Bring it up, or make sure that it is up. Raises ``MillraceError`` and ``OSError``."""
        ...

    def begin(self) -> None:
        """Begin to bring it up, without waiting; ``arrived`` is asked then. Raises the same."""
        ...

    def arrived(self) -> StateAddress | None:
        """Its address once it is up, None until then. Raises the same, and nothing is left."""
        ...

    def ended(self) -> int | None:
        """Exit code of a process of ours that has ended, else None."""
        ...

    def stop(self) -> None:
        """End a process of ours; free what watches it."""
        ...

    def kill(self) -> None:
        """The same at once, whether it answers or hangs."""
        ...

    def discard(self) -> None:
        """The same, and delete what a server of ours kept: nobody needs it any more."""
        ...


class RunPasswords:
    """The passwords of a run's state servers and ackers, each its own (``homes.passwords``).

    The root key, a file of its user alone, is read or made when the first of them is asked for, and
    stays the same whatever becomes of that during the run. Servers are given their passwords anew
    whenever they start, so one that is lost or damaged is followed by another one, as the one
    password of all is that an older release has left in the folders of its servers.
    """

    def __init__(self, work_folder: Path, uid: str) -> None:
        self._file = work_folder / ROOT_FILE
        self._uid = uid
        self._root_key: str | None = None

    def of(self, name: str) -> str:
        """Of a state server or acker. Raises ``WorkFolderError``."""
        password = of_root_key(self.root_key(), self._uid)(name)
        assert password is not None
        return password

    def root_key(self) -> str:
        """What they are made of. Raises ``WorkFolderError``."""
        if self._root_key is None:
            self._root_key = _root_in(self._file) or _new_root(self._file)
        return self._root_key

    def users(self) -> dict[str, list[str]]:
        """Who else a state server takes, with their rules: the ackers that there may be."""
        known = [digest(self.of(acker_name(number))) for number in range(MOST_MEMBERS)]
        return {ACKER_USER: acker_rules(self._uid, known)}


def acker_name(number: int) -> str:
    """What an acker of a run on one machine is called."""
    return f"acker-{number}"


def _root_in(file: Path) -> str | None:
    try:
        found = file.read_text().strip()
    except (OSError, ValueError):
        return None
    return found if found.isascii() and found.isalnum() else None


def _new_root(file: Path) -> str:
    made = new_password()
    try:
        durable.replace(file, made.encode())
    except OSError as error:
        raise unusable(file.parent, error) from error
    return made


class Embedded:
    """A server of our own, in the folder of its name; its socket lies in ``sockets``. Its password
    is written before each start, since a folder that was lost begins anew."""

    def __init__(
        self,
        name: str,
        work_folder: Path,
        sockets: Path,
        passwords: RunPasswords,
        max_memory_bytes: int = 0,
    ) -> None:
        self.name = name
        self.address: StateAddress | None = None
        self.handle: int | None = None
        self._folder = work_folder / name
        self._work_folder = work_folder
        self._socket = sockets / f"{name}.sock"
        self._passwords = passwords
        self._max_memory_bytes = max_memory_bytes
        self._server: EmbeddedServer | None = None
        self._starting: StartingServer | None = None

    @property
    def pid(self) -> int | None:
        at_hand = self._server or self._starting
        return at_hand.pid if at_hand is not None else None

    def start(self) -> StateAddress:
        self.begin()
        while (address := self.arrived()) is None:
            time.sleep(_POLL_S)
        return address

    def begin(self) -> None:
        options = EmbeddedOptions(
            self._socket,
            max_memory_bytes=self._max_memory_bytes,
            password=self._passwords.of(self.name),
            users=self._passwords.users(),
        )
        self._starting = StartingServer(self._folder, self.name, options)

    def arrived(self) -> StateAddress | None:
        assert self._starting is not None
        try:
            with _environment(MARK, str(self._work_folder)):
                server = self._starting.look()
        except BaseException:
            # A server that lived on would hold the folder's lock.
            self._give_up()
            raise
        if server is None:
            return None
        self._starting = None
        try:
            self.handle = os.pidfd_open(server.pid)
        except OSError:
            server.kill()
            raise
        self._server = server
        self.address = server.address
        return self.address

    def ended(self) -> int | None:
        if self._server is None or self._server.alive():
            return None
        code = self._server.process.returncode
        self._forget()
        return code

    def stop(self) -> None:
        self._give_up()
        if self._server is not None:
            self._server.stop()
            self._forget()

    def kill(self) -> None:
        self._give_up()
        if self._server is not None:
            self._server.kill()
            self._forget()

    def discard(self) -> None:
        self.kill()
        # What stays would be brought up to date, should a server of this name come again.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self) -> None:
        if self._starting is not None:
            self._starting.kill()
            self._starting = None

    def _forget(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
        self.handle = self.address = self._server = None


class External:
    """A server of the user's own, at ``url``; a thread looks for new incarnations of it."""

    def __init__(self, url: str, password: str | None, uid: str) -> None:
        self.name = NAME
        self.address: StateAddress | None = None
        self.handle: int | None = None
        self._url = url
        self._password = password
        self._uid = uid
        self._stopped = threading.Event()

    @property
    def pid(self) -> int | None:
        return None

    def start(self) -> StateAddress:
        """Wait until it answers, check its settings, then watch it."""
        patience_s = float(os.environ.get(REACH_VARIABLE, REACH_S))
        self.address = reach(self.name, self._url, self._password, patience_s)
        client = StateClient(self.address, self._uid)
        try:
            client.check_settings()
        finally:
            client.close()
        threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True).start()
        return self.address

    def begin(self) -> None:
        return

    def arrived(self) -> StateAddress | None:
        return self.start()

    def ended(self) -> int | None:
        return None

    def stop(self) -> None:
        self._stopped.set()

    def kill(self) -> None:
        self.stop()

    def discard(self) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(_WATCH_S):
            try:
                found = discover(self.name, self._url, self._password, timeout_s=_WATCH_TIMEOUT_S)
            except StateServerError:
                # Away: the driver notices by itself and waits for it.
                continue
            self.address = found


@dataclass(slots=True)
class _Kept:
    """``leaving``: it is to go; ``released`` is the incarnation of it that is not proposed any
    more."""

    server: StateServer
    leaving: bool = False
    released: Member | None = None
    restarts: Restarts = field(default_factory=Restarts)
    due_s: float | None = None
    coming: bool = False
    begun_s: float = 0.0
    started_s: float = 0.0
    since: float = 0.0
    sealed: int = 0

    def wait_s(self, code: int, lived_s: float, progressed: bool) -> float:
        """Seconds until the next start: without its server the topology stands still."""
        decision = self.restarts.ended(code, lived_s, progressed)
        return decision.delay_s if isinstance(decision, Again) else 0.0


class ServerKeeper:
    """Keeps the state servers of a run alive; used from the supervisor's main thread.

    ``tell`` is called with a kind and a text for every end and every start after one; ``sealed``
    gives the last sealed window, by which a life is known to have been of use. ``copies`` is how
    many servers hold each piece of state.

    A server that is to leave is proposed until it has been a member of an open view, so that what
    it holds can be copied from it, and ends when a view without it is open. Where no life of it is
    in the open view, the others hold all that counts, and it is released at once. That is so only
    as long as as many of those that stay are in the view as there are to be copies: else the view
    would go on with fewer, although there are servers to hold them::

        proposed -- an open view has it, or none of its lives --> released
           ^                                                         |
           +-- it died: comes back; one that stays did, and is not --+
           |                                                         |
           |                                           an open view is without it
           |                                                         v
           +------ meanwhile a view has begun to have it --------- killed --> folder deleted

    One that is released is named as leaving, so that the others learn what it holds before the view
    goes without it. A driver may follow an older proposal. So the view is looked at once more when
    the process has ended: a view that does not have it by then can never open with this life.
    """

    def __init__(
        self,
        servers: Sequence[StateServer],
        clock: Clock,
        tell: Callable[[str, str], None],
        sealed: Callable[[], int],
        copies: int = 1,
    ) -> None:
        self._copies = copies
        self._kept = [_Kept(server) for server in servers]
        self._clock = clock
        self._tell = tell
        self._sealed = sealed

    def start_all(self) -> None:
        """Bring them up. Where fewer fail than there are copies the others have all that these
        hold: they are tried again. Raises the first error otherwise."""
        failed: list[tuple[_Kept, Exception]] = []
        for kept in self._kept:
            try:
                self._start(kept)
            except (MillraceError, OSError) as error:
                failed.append((kept, error))
                if len(failed) >= self._copies:
                    raise failed[0][1] from None
        for kept, why in failed:
            self._failed(kept, why)

    def look(self) -> None:
        """Notice servers that ended and start those that are due."""
        now = self._clock.monotonic_s()
        for kept in self._kept:
            code = kept.server.ended()
            if code is not None:
                progressed = self._sealed() > kept.sealed
                kept.due_s = now + kept.wait_s(code, now - kept.started_s, progressed)
                self._tell(
                    "StateServerEnded",
                    f"state server {kept.server.name} ended ({code}); it is started again on its "
                    f"folder, {self._meanwhile()}",
                )
                # What is proposed without it comes first; the next look follows at once.
                continue
            if kept.due_s is not None and kept.due_s <= now:
                self._begin_again(kept)
            if kept.coming:
                self._await(kept)

    def want(self, names: Collection[str], make: Callable[[str], StateServer]) -> None:
        """From now on there are to be these servers: the others leave, those that are not there
        are made, to be started with the next ``look``."""
        known = {kept.server.name for kept in self._kept}
        for kept in self._kept:
            kept.leaving = kept.server.name not in names
            if not kept.leaving:
                kept.released = None
        for name in sorted(set(names) - known):
            self._kept.append(_Kept(make(name), due_s=self._clock.monotonic_s()))

    def settle(self, view: View | None, again: Callable[[], View | None] | None = None) -> None:
        """Let go of servers that are to leave, as far as the view says that they may; ``again``
        reads the view anew."""
        if view is None:
            return
        leaving = [one for one in self._kept if one.leaving]
        if not view.can_spare_others(self._staying(), self._copies):
            for kept in leaving:
                kept.released = None
            return
        if view.phase is not Phase.OPEN:
            return
        for kept in leaving:
            address = kept.server.address
            member = address.member() if address is not None else None
            if member is not None and member in view.target:
                kept.released = member
            elif is_without(view, kept.server.name):
                if member in (kept.released, None):
                    self._part_with(kept, again or (lambda: view))
                else:
                    kept.released = member

    def _staying(self) -> list[Member]:
        """Incarnations seen alive of those that are not to leave."""
        found = (kept.server.address for kept in self._kept if not kept.leaving)
        return [address.member() for address in found if address is not None]

    @property
    def proposed(self) -> tuple[Member, ...]:
        """Incarnations seen alive that are to be members."""
        found = ((kept, kept.server.address) for kept in self._kept)
        members = [(kept, one.member()) for kept, one in found if one is not None]
        return tuple(member for kept, member in members if member != kept.released)

    @property
    def released(self) -> tuple[Member, ...]:
        """Incarnations seen alive that are to leave, and stay until a view is open without them."""
        found = ((kept, kept.server.address) for kept in self._kept if kept.leaving)
        members = [(kept, one.member()) for kept, one in found if one is not None]
        return tuple(member for kept, member in members if member == kept.released)

    @property
    def leaving(self) -> bool:
        """Whether a server is to leave that is still there."""
        return any(kept.leaving for kept in self._kept)

    @property
    def addresses(self) -> tuple[StateAddress, ...]:
        """Incarnations seen alive."""
        found = (kept.server.address for kept in self._kept)
        return tuple(address for address in found if address is not None)

    def handles(self) -> list[int]:
        """File descriptors that become readable when a server ends."""
        found = (kept.server.handle for kept in self._kept)
        return [handle for handle in found if handle is not None]

    def next_due_s(self) -> float | None:
        """When the next start is due, or one that comes up is to be looked at."""
        due = [k.due_s for k in self._kept if k.due_s is not None]
        now_s = self._clock.monotonic_s()
        soonest_s, latest_s = _COMING_S
        for kept in self._kept:
            if kept.coming:
                due.append(now_s + min(max(soonest_s, 0.1 * (now_s - kept.begun_s)), latest_s))
        return min(due, default=None)

    def pids(self) -> set[int]:
        """Pids of living servers."""
        return {pid for kept in self._kept if (pid := kept.server.pid) is not None}

    def rows(self) -> list[ProcessRow]:
        """Living servers as they stand in ``processes.json``."""
        rows = []
        for kept in self._kept:
            pid = kept.server.pid
            own = ProcessId.of(pid) if pid is not None and not kept.coming else None
            if own is not None:
                name, count = kept.server.name, kept.restarts.count
                rows.append(ProcessRow("state", name, own.pid, own.ticks, 0, kept.since, count))
        return rows

    def restarts(self) -> dict[str, int]:
        """How often each server was started again, those left out that never were."""
        return {k.server.name: k.restarts.count for k in self._kept if k.restarts.count}

    def stop_all(self) -> None:
        """End all of them for good."""
        for kept in self._kept:
            kept.due_s, kept.coming = None, False
            kept.server.stop()

    def _meanwhile(self) -> str:
        if self._copies == 1:
            return "windows wait for it"
        return "and others have copies of what it holds"

    def _start(self, kept: _Kept) -> None:
        kept.due_s = None
        kept.server.start()
        self._started(kept)

    def _started(self, kept: _Kept) -> None:
        kept.started_s = self._clock.monotonic_s()
        kept.since = self._clock.now_s()
        kept.sealed = self._sealed()

    def _begin_again(self, kept: _Kept) -> None:
        kept.due_s = None
        try:
            kept.server.begin()
        except (MillraceError, OSError) as error:
            self._failed(kept, error)
        else:
            kept.coming, kept.begun_s = True, self._clock.monotonic_s()

    def _await(self, kept: _Kept) -> None:
        """Its file may take a while to load, in which the rest of the run is looked after."""
        try:
            address = kept.server.arrived()
        except (MillraceError, OSError) as error:
            # Its disk may be full or gone for a while, which is no reason to end the others.
            self._failed(kept, error)
            return
        if address is not None:
            kept.coming = False
            self._started(kept)
            back = "is back" if kept.restarts.count else "is there"
            self._tell("StateServerStarted", f"state server {kept.server.name} {back}")

    def _part_with(self, kept: _Kept, look: Callable[[], View | None]) -> None:
        name = kept.server.name
        kept.coming = False
        kept.server.kill()
        if not is_without(look(), name):
            kept.released, kept.due_s = None, self._clock.monotonic_s()
            return
        self._kept.remove(kept)
        kept.server.discard()
        self._tell("StateServerLeft", f"state server {name} has left, as it was to")

    def _failed(self, kept: _Kept, error: Exception) -> None:
        wait_s = kept.wait_s(1, 0.0, progressed=False)
        kept.coming = False
        kept.due_s = self._clock.monotonic_s() + wait_s
        own = isinstance(error, MillraceError)
        text = str(error) if own else f"state server {kept.server.name} cannot be started: {error}"
        self._tell("StateServerFailed", f"{text}; that is tried again")


def is_without(view: View | None, name: str) -> bool:
    """Whether a view is open, and no life of a server has a part in it."""
    if view is None or view.phase is not Phase.OPEN:
        return False
    return name not in {member.name for member in (*view.target, *view.last_open)}


def reach(name: str, url: str, password: str | None, patience_s: float = REACH_S) -> StateAddress:
    """Ask a server who it is, again and again for ``patience_s`` while it does not answer.

    Raises ``UnreachableError`` in the end, and other ``StateServerError`` at once.
    """
    waited = threading.Event()
    tries = max(1, int(patience_s / _RETRY_S))
    for number in range(1, tries + 1):
        try:
            return discover(name, url, password, timeout_s=_WATCH_TIMEOUT_S)
        except UnreachableError as error:
            if number == tries:
                raise UnreachableError(
                    f"{error} (tried {tries} times in at least {patience_s:g} s)"
                ) from error
        waited.wait(_RETRY_S)
    raise AssertionError("unreachable")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for children; this process's own ``/proc`` entry does not show it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
