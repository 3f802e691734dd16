"""From a topology file to a run: work folder, what an edit means, takeover, and the processes."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from millrace import checked
from millrace.clock import Clock
from millrace.errors import ExitCode, MillraceError, ProtocolError, TopologyError, WorkFolderError
from millrace.homes import codec
from millrace.homes.accepted import Accepted, accept
from millrace.homes.documents import Ask, EditAsked, Scale
from millrace.homes.passwords import ACKER_USER
from millrace.homes.settings import PASSWORD_VARIABLE, ROOT_KEY_VARIABLE, RetiredSink, in_folder
from millrace.homes.tuning import Tuning
from millrace.local import scratch
from millrace.local.accepted import read_accepted, write_accepted
from millrace.local.ackers import ACKER, AckerPlan
from millrace.local.children import ProcessSpec
from millrace.local.edits import Editing, between, size_of
from millrace.local.files import Watched, write_json
from millrace.local.logs import Display, Listener, RunLog, lines_may_be_lost
from millrace.local.scale import (
    Scaling,
    acker_bounds,
    beginning,
    refusal_of,
    server_names,
)
from millrace.local.scale import ask as ask_scale
from millrace.local.servers import Embedded, External, RunPasswords, StateServer, acker_name, reach
from millrace.local.snapshots.unfinished import marked, refuse_unfinished
from millrace.local.standby.keeper import STANDBY
from millrace.local.supervisor import DRIVER, RunPlan, RunResult, Supervisor
from millrace.local.takeover import Holder, Lease, fenced_by, take_over
from millrace.local.workdir import (
    WorkFolder,
    default_path,
    open_folder,
    start_over,
    unusable,
)
from millrace.startup import one_thread
from millrace.state.client import StateAddress, StateClient
from millrace.state.own import NAME, own_server
from millrace.state.viewfile import ViewFile, WatchedView
from millrace.topology.edits import Edit, classify, worst
from millrace.topology.kinds.base import Effect
from millrace.topology.load import LoadedTopology
from millrace.topology.model import OnStateLoss, StateServers, StreamTopology
from millrace.topology.scalars import memory_bytes
from millrace.topology.usercode import code_on_path

Tell = Callable[[str], None]

_CLEAN_UP_S = 2.0

_FRUITLESS_RESTORES = 3
"""How often in a row state may be lost before a window is sealed that was not yet restored."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to run. ``workdir`` None: ``.millrace/<name>`` beside the topology file.

    ``fresh`` forgets the state, ``overwrite`` lets the driver empty sinks that hold something,
    ``drop_removed`` gives up what sinks that were removed had still to show, ``drop_gone`` records
    that are to be replayed and cannot be read any more.
    """

    workdir: Path | None = None
    fresh: bool = False
    overwrite: bool = False
    drop_removed: bool = False
    drop_gone: bool = False


@dataclass(frozen=True, slots=True)
class Edits:
    """What was edited since the topology last ran."""

    edits: tuple[Edit, ...]

    @property
    def effect(self) -> Effect:
        return worst(self.edits)

    def refusal(self) -> TopologyError | None:
        """The error of edits that the state would not survive."""
        refused = [edit for edit in self.edits if edit.effect is Effect.REFUSED]
        if not refused:
            return None
        return TopologyError("\n".join(str(edit) for edit in refused))


def run_topology(
    loaded: LoadedTopology,
    options: LaunchOptions,
    listener: Listener,
    tell: Tell,
    clock: Clock,
) -> tuple[WorkFolder, RunResult]:
    """Run a topology to its end; ``tell`` is given sentences about the start.

    An older run of the same topology is ended first. Raises ``MillraceError`` for whatever keeps
    the run from starting; nothing of the work folder has been changed then.
    """
    topology = loaded.topology
    tell = _as_may_be(tell)
    path = options.workdir or default_path(topology.name, loaded.file, loaded.folder)
    named = topology.name, loaded.file, clock
    folder = open_folder(path, *named, held=False)
    # Nothing that is refused anyway ends a run that is alive.
    if options.fresh:
        _check_sinks(loaded, options.overwrite)
    elif not folder.identity.clearing:
        _survived_edits(folder, topology)

    def waiting(older: Holder) -> None:
        tell(f"another run of {topology.name} (process {older.pid}) is being taken over")

    if topology.spec.restore_from is not None and not folder.view.exists():
        raise TopologyError(
            f"{topology.name}: spec.restoreFrom is for a cluster; here take it out, and restore "
            "the snapshot with millrace snapshot restore before the first run"
        )
    try:
        lease = take_over(folder.path, waiting, begins=lambda: beginning(folder))
    except OSError as error:
        raise unusable(folder.path, error) from error
    try:
        # The older run may have started over, shown rows or taken edits before it let go.
        folder = open_folder(path, *named)
        if not options.fresh:
            _explain_edits(folder, topology, tell)
        else:
            _check_sinks(loaded, options.overwrite)
            _clean_own_server(folder, tell)
            scratch.clear(folder.path)
            folder = start_over(folder, clock)
        try:
            _forget_asked(folder)
        except OSError as error:
            raise unusable(folder.path, error) from error
        return folder, _Lives(loaded, options, folder, lease, Display(listener), clock).run()
    finally:
        scratch.remove_temporary(folder.path)
        lease.release()


def _as_may_be(tell: Tell) -> Tell:
    def told(text: str) -> None:
        with lines_may_be_lost():
            tell(text)

    return told


def edits_since(folder: WorkFolder, topology: StreamTopology) -> Edits:
    """Edits since the topology was last run in the folder; none if it never was.

    Raises ``WorkFolderError`` where the last topology cannot be read any more.
    """
    accepted = read_accepted(folder.accepted, folder.topology)
    if accepted is None:
        return Edits(())
    try:
        before = StreamTopology.model_validate(accepted.topology)
        return Edits(tuple(classify(before, topology)))
    except ValidationError as error:
        raise WorkFolderError(
            f"{folder.path}: the topology that ran last cannot be read by this release "
            f"({error.error_count()} problems); use the release that wrote it, or start over "
            "with --fresh"
        ) from error


def state_servers(
    folder: WorkFolder,
    topology: StreamTopology,
    sockets: Path,
    passwords: RunPasswords | None = None,
) -> list[StateServer]:
    """The state servers of a topology, not yet started: those that it asks for, and those that
    were members when it last ran, since they may hold the only copy of something. ``passwords``
    are those of embedded ones, whose sockets lie in the folder ``sockets``."""
    wanted = topology.spec.state_servers
    if wanted.url is not None:
        return [External(*own_server(wanted), folder.uid)]
    names = server_names(wanted.replicas)
    names += [name for name in members_of(folder) if name not in names]
    passwords = passwords or RunPasswords(folder.path, folder.uid)
    return [_embedded(folder, name, topology, sockets, passwords) for name in names]


def members_of(folder: WorkFolder, *, open_ones: bool = False) -> list[str]:
    """Names of the state servers that hold, or may hold, what a topology has done.

    ``open_ones``: only those of the last open view, which do hold it. Raises ``WorkFolderError``
    where the view cannot be read.
    """
    try:
        _, view = ViewFile(folder.view).read()
    except ProtocolError as error:
        raise WorkFolderError(str(error)) from error
    if view is None:
        return []
    members = view.last_open if open_ones else (*view.last_open, *view.target)
    return list(dict.fromkeys(member.name for member in members))


def _embedded(
    folder: WorkFolder,
    name: str,
    topology: StreamTopology,
    sockets: Path,
    passwords: RunPasswords,
) -> StateServer:
    limit = topology.spec.state_servers.memory
    limit_bytes = memory_bytes(limit) if limit is not None else 0
    return Embedded(name, folder.path, sockets, passwords, limit_bytes)


def _survived_edits(folder: WorkFolder, topology: StreamTopology) -> Sequence[Edit]:
    """What was edited. Raises ``TopologyError`` where the state would not survive that."""
    found = edits_since(folder, topology)
    refusal = found.refusal()
    if refusal is not None:
        raise refusal
    return found.edits


def _explain_edits(folder: WorkFolder, topology: StreamTopology, tell: Tell) -> None:
    edits = _survived_edits(folder, topology)
    if not edits:
        return
    sealed = folder.journal.status().sealed or 0
    for edit in edits:
        tell(f"edited: {edit}")
    tell(f"the run goes on behind window {sealed}, the last sealed one, with these edits")


def _write_driver_file(
    folder: WorkFolder, loaded: LoadedTopology, options: LaunchOptions, *, tuned: bool = False
) -> Accepted:
    """What a driver begins with from now on; ``tuned``: one that runs is to take it, too. Raises
    ``OSError``."""
    document = loaded.topology.document()
    accepted = accept(read_accepted(folder.accepted, folder.topology), document)
    accepted = replace(accepted, tuned=accepted.tuned + tuned)
    write_accepted(folder.accepted, accepted)
    write_json(folder.topology, checked.with_checksum(document))
    settings = replace(
        in_folder(folder.path, folder.uid, folder.topology, loaded.folder),
        components=accepted.components,
        retired=tuple(RetiredSink(one.name, one.number, one.sink) for one in accepted.retired),
        fresh=options.fresh,
        overwrite=options.overwrite,
        drop_removed=options.drop_removed,
        drop_gone=options.drop_gone,
        tuned=accepted.tuned,
    )
    write_json(folder.driver, codec.encode(settings))
    return accepted


def _forget_asked(folder: WorkFolder) -> None:
    """What was meant for a run that has ended."""
    for asked in folder.inbox.requests():
        if asked.request.action is Ask.STOP:
            folder.inbox.done(asked.token)


def _check_sinks(loaded: LoadedTopology, overwrite: bool) -> None:
    """Ask the sinks before the state goes, so that a refused fresh start loses nothing."""
    # Arrow takes a while to load, and only a fresh start needs it here.
    from millrace.sinks import SinkSpec, make_sink

    with code_on_path(loaded.code_path):
        for declared in loaded.topology.spec.sinks:
            make_sink(SinkSpec.of(declared, loaded.folder)).check_fresh(overwrite)


def _clean_own_server(folder: WorkFolder, tell: Tell) -> None:
    """Delete what the life of the topology that ends here left on a server of the user's own."""
    try:
        document = checked.decode(folder.topology.read_bytes())
        before = StateServers.model_validate(document["spec"]["stateServers"])
    except (OSError, checked.DamagedError, KeyError, TypeError, ValidationError):
        return
    if before.url is None:
        return
    try:
        url, password = own_server(before)
        client = StateClient(reach(NAME, url, password, _CLEAN_UP_S), folder.uid)
        client.wipe()
        client.close()
    except MillraceError as error:
        tell(f"the old state of {folder.identity.name} was not deleted there: {error}")


class _StopAskedError(Exception):
    """The run was asked to end while a snapshot was restored."""


@contextmanager
def _stops_counted() -> Iterator[Callable[[], None]]:
    """A signal to end does not end this process at once: what is given raises ``_StopAskedError``
    from then on. A second one does what it did before."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    found = {number: signal.getsignal(number) for number in signals}
    before = {n: handler for n, handler in found.items() if handler not in (None, signal.SIG_IGN)}
    asked = False

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()

    def look() -> None:
        if asked:
            raise _StopAskedError

    for number in before:
        signal.signal(number, note)
    try:
        yield look
    finally:
        restore()


class _Lives:
    """One supervisor after the other, with a restore between two where state was lost."""

    def __init__(
        self,
        loaded: LoadedTopology,
        options: LaunchOptions,
        folder: WorkFolder,
        lease: Lease,
        display: Display,
        clock: Clock,
    ) -> None:
        self._loaded = loaded
        self._options = options
        self._folder = folder
        self._lease = lease
        self._display = display
        self._clock = clock
        self._restarts: Counter[str] = Counter()
        self._restores = loaded.topology.spec.on_state_loss is OnStateLoss.RESTORE

    def run(self) -> RunResult:
        try:
            return self._run()
        except _StopAskedError:
            text = "asked to stop while a snapshot is restored: the next run goes on with that"
            log = RunLog(self._folder.journal, self._clock)
            self._display.event(log.add("StopAsked", text))
            return RunResult(ExitCode.INTERRUPTED, "asked", text, dict(self._restarts))

    def _run(self) -> RunResult:
        begun = None if self._options.fresh else marked(self._folder.path)
        if begun is not None and begun.lost and self._restores:
            self._restore()
        elif begun is not None:
            refuse_unfinished(self._folder.path)
        restored_to, fruitless = -1, 0
        while True:
            result = self._supervised()
            self._restarts.update(result.restarts)
            result = replace(result, restarts=dict(self._restarts))
            if result.reason != "lost" or not self._restores:
                return result
            # Servers that lose everything again and again have a cause that no restore mends.
            progressed = (self._folder.journal.status().sealed or 0) > restored_to
            fruitless = 0 if progressed else fruitless + 1
            if fruitless >= _FRUITLESS_RESTORES:
                return result
            try:
                restored_to = self._restore()
            except MillraceError as error:
                why = f"{result.message}\nno snapshot takes its place: {error}"
                return replace(result, code=error.exit_code, message=why)
            # Sinks and state are those of the snapshot, and nothing is to be emptied any more.
            self._options = replace(self._options, fresh=False, overwrite=False)

    def _supervised(self) -> RunResult:
        folder = self._folder
        try:
            accepted = _write_driver_file(folder, self._loaded, self._options)
            plan = _Plan(folder, self._loaded.topology, scratch.make(folder.path)).plan()
            plan = replace(plan, editing=self._editing(accepted))
        except OSError as error:
            raise unusable(folder.path, error) from error
        return Supervisor(folder, self._lease, plan, self._display, self._clock).run()

    def _editing(self, accepted: Accepted) -> Editing:
        tuned = accepted.tuned
        tuning = Tuning.of(self._loaded.topology, tuned) if tuned else None
        return Editing(Watched(self._folder.edit, EditAsked).look, self._take, tuning)

    def _take(self, asked: EditAsked) -> tuple[list[Edit], Tuning | None]:
        """The topology that a run goes on with, also behind a restore; nothing where it has that.
        Raises ``MillraceError``, ``OSError``."""
        try:
            wanted = StreamTopology.model_validate(asked.topology)
        except ValidationError as error:
            raise TopologyError(f"the topology has {error.error_count()} problems") from None
        edits = between(self._loaded.topology, wanted)
        if not edits:
            return [], None
        size = size_of(edits)
        if size != Scale():
            # Where all is tried again this has been asked for before, which is nothing.
            ask_scale(self._folder, wanted, size)
        loaded = replace(self._loaded, topology=wanted)
        accepted = _write_driver_file(self._folder, loaded, self._options, tuned=True)
        self._loaded = loaded
        return edits, Tuning.of(wanted, accepted.tuned)

    def _restore(self) -> int:
        """The window behind which the run goes on. Raises ``MillraceError``."""
        # Arrow takes a while to load, and only a restore needs it here.
        from millrace.local.snapshots.losses import restore_lost

        log = RunLog(self._folder.journal, self._clock)

        def warn(kind: str, text: str) -> None:
            self._display.event(log.add(kind, text, warning=True))

        with _stops_counted() as look:

            def pause() -> None:
                look()
                newer = self._lease.newer()
                if newer is not None:
                    raise fenced_by(newer)

            drop = self._options.drop_removed
            around = self._folder, self._clock, warn, pause
            restored = restore_lost(self._loaded, *around, drop_removed=drop)
            # Asked for behind the last pause: the next run finds nothing left to do.
            look()
        return restored.manifest.window


class _Plan:
    """Builds the specifications of the processes."""

    def __init__(self, folder: WorkFolder, topology: StreamTopology, temporary: Path) -> None:
        self._folder = folder
        self._temporary = temporary
        self._topology = topology
        own = topology.spec.state_servers.url is None
        self._passwords = RunPasswords(folder.path, folder.uid) if own else None

    def plan(self) -> RunPlan:
        servers = state_servers(self._folder, self._topology, self._temporary, self._passwords)
        bounds = acker_bounds(self._topology)
        count = bounds.clamped(self._topology.spec.ackers.replicas)
        ackers = AckerPlan(self.ackers, count, bounds)
        standby = self.standby if self._topology.spec.standbys else None
        heap_bytes = memory_bytes(self._topology.spec.spark.driver.memory)
        return RunPlan(servers, ackers, self.driver, self._scaling(), standby, heap_bytes)

    def _scaling(self) -> Scaling:
        folder, topology, sockets = self._folder, self._topology, self._temporary
        spec = topology.spec.state_servers
        passwords = self._passwords or RunPasswords(folder.path, folder.uid)
        if spec.url is not None:
            wanted = frozenset([NAME])
        else:
            wanted = frozenset(server_names(spec.replicas))
        return Scaling(
            copies=spec.copies,
            wanted=wanted,
            make=lambda name: _embedded(folder, name, topology, sockets, passwords),
            view=WatchedView(folder.view).look,
            asked=Watched(folder.scale, Scale).look,
            refusal=lambda scale: refusal_of(topology, scale),
        )

    def ackers(self, addresses: Sequence[StateAddress], count: int) -> Sequence[ProcessSpec]:
        return [self._acker(acker_name(number), addresses) for number in range(count)]

    def _acker(self, name: str, addresses: Sequence[StateAddress]) -> ProcessSpec:
        # The ack log has one copy, on the first member of the view, which may change.
        ready = self._folder.ackers / f"{name}.ready"
        command = (
            *(sys.executable, "-P", "-m", "millrace.local.acker", "--name", name),
            *("--view", str(self._folder.view), "--uid", self._folder.uid),
            *("--figures", str(self._folder.ackers / f"{name}.json")),
            *("--ready", str(ready)),
            *(() if self._passwords is None else ("--user", ACKER_USER)),
        )
        own = None if self._passwords is None else self._passwords.of(name)
        given = {**self._given(own or _password_of(addresses)), **one_thread()}
        return ProcessSpec(name, ACKER, command, given, self._folder.path, ready=ready)

    def driver(self, addresses: Sequence[StateAddress]) -> ProcessSpec:
        command = (
            sys.executable,
            "-P",
            "-m",
            "millrace.engine.driver.main",
            "--settings",
            str(self._folder.driver),
        )
        # Always, for this process may have been given the variable by accident.
        root_key = "" if self._passwords is None else self._passwords.root_key()
        given = {
            **self._given(None if root_key else _password_of(addresses)),
            ROOT_KEY_VARIABLE: root_key,
        }
        return ProcessSpec(DRIVER, DRIVER, command, given, self._folder.path, tree=True)

    def standby(self, addresses: Sequence[StateAddress]) -> ProcessSpec:
        ready = self._temporary / "standby.ready"
        driver = self.driver(addresses)
        command = (*driver.command, "--standby", str(ready))
        return replace(
            driver,
            name=STANDBY,
            role=STANDBY,
            command=command,
            ready=ready,
            ordered=True,
            expendable=True,
        )

    def _given(self, password: str | None) -> dict[str, str]:
        return {
            "TMPDIR": str(self._temporary),
            **({PASSWORD_VARIABLE: password} if password else {}),
        }


def _password_of(addresses: Sequence[StateAddress]) -> str | None:
    """Of the one server that a user names."""
    return addresses[0].password if addresses else None
