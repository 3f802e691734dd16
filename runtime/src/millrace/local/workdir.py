"""The work folder of a topology: everything that a run on one machine keeps.

========================  ====================================================================
``identity.json``         whose folder it is; the uid is made once and lives until ``--fresh``
``accepted.json``         the topology as it was last accepted, and the lives of its components
``topology.json``         the same topology alone
``driver.json``           what the driver process needs to know
``view.json``             the view (written by the driver under a lock)
``proposal.json``         state servers and ackers seen alive by the supervisor
``status.json``           the driver's figures
``processes.json``        the supervisor's processes
``events.jsonl``          what happened, one line each
``ackers/``               what the ackers say of their memory
``requests/``             dead letters to be replayed or dropped
``timelines.json``        which restores the topology has gone through
``root``                  the root key: of it passwords of state servers and ackers are made
``scale.json``            how many state servers and ackers the run is asked to have
``edit.json``             the topology that the run is asked to go on with
``state-<n>/``            the files of the embedded state servers
``snapshots/``            snapshots, where the topology names no other place for them
``spark/``              scratch of Spark and of its workers
``logs/``                 what the processes wrote, limited in size
``run.lock``, ``run.json`` who runs this topology now
========================  ====================================================================

A fresh start writes the new identity with ``clearing`` set, deletes what the old one left and
then writes it again without. Whoever opens a folder that says ``clearing`` goes on deleting, so a
crash in between never mixes two lives of a topology. Only who holds ``run.lock`` does any of that,
or believes what it has read here: a run that is alive may be starting over.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from millrace import checked, durable
from millrace.clock import Clock
from millrace.errors import ProtocolError, WorkFolderError
from millrace.local.files import create_json, write_json
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.viewfile import ViewFile

DEFAULT_PARENT = ".millrace"

_KEPT_BY_FRESH = {"identity.json", "run.lock", "run.json", "claim.lock", "logs", "snapshots"}
# What a run was asked for since it began, by somebody who may be asking now.
_KEPT_BY_FRESH |= {"scale.json", "scale.lock", "edit.json"}

_BEGUN = re.compile(r"\.probe\.\d+|\.identity\.json\.[0-9a-f]+|\.identity\.json\.\d+\.\d+\.new")
"""What a first start leaves that was killed before it wrote the identity, or is about to write."""

MARK = "MILLRACE_WORK_FOLDER"
"""Environment variable of every process of a run: the absolute path of its work folder."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose folder it is. ``created`` is wall-clock time in seconds."""

    uid: str
    name: str
    topology: str
    created: float
    clearing: bool = False


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """An existing, writable work folder with its identity; made by ``open_folder``."""

    path: Path
    identity: Identity

    @property
    def uid(self) -> str:
        return self.identity.uid

    @property
    def topology(self) -> Path:
        return self.path / "topology.json"

    @property
    def accepted(self) -> Path:
        return self.path / "accepted.json"

    @property
    def driver(self) -> Path:
        return self.path / "driver.json"

    @property
    def view(self) -> Path:
        return self.path / "view.json"

    @property
    def proposal(self) -> Path:
        return self.path / "proposal.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def processes(self) -> Path:
        return self.path / "processes.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def journal(self) -> JournalFiles:
        return JournalFiles(self.status, self.events)

    @property
    def inbox(self) -> InboxFiles:
        return InboxFiles(self.proposal, self.requests)

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def scale(self) -> Path:
        return self.path / "scale.json"

    @property
    def edit(self) -> Path:
        return self.path / "edit.json"

    @property
    def ackers(self) -> Path:
        return self.path / "ackers"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def mark(self) -> dict[str, str]:
        """Environment that marks a process as belonging to this folder."""
        return {MARK: str(self.path)}


def default_path(name: str, file: Path, folder: Path) -> Path:
    """Work folder of a topology when none is named: beside its ``file``, in ``folder``.

    Raises ``WorkFolderError`` where one that an earlier release made lies in the current folder:
    starting anew beside it would show everything twice.
    """
    path = default_place(name, folder / file.name)
    try:
        former = Path.cwd() / DEFAULT_PARENT / name
    except FileNotFoundError:
        return path  # the current folder was deleted, and whatever lay in it
    if former != path and _is_left(former, name, file):
        raise _misplaced(former, path, name)
    return path


def default_place(name: str, file: Path) -> Path:
    """Where the work folder of a topology file lies if none is named."""
    return file.parent / DEFAULT_PARENT / name


def _is_left(former: Path, name: str, file: Path) -> bool:
    """Whether a folder may hold what this topology has done.

    It does not where it lies beside the file of another topology, as its own.
    """
    identity = _read_identity(former)
    if identity is None or identity.name != name:
        return False
    owner = Path(identity.topology)
    is_anothers = owner.parent == former.parent.parent and owner.exists()
    return owner == file or not is_anothers


def _misplaced(former: Path, path: Path, name: str) -> WorkFolderError:
    known = f"work folder {former}: topology {name!r} has run with it, in the current folder"
    if (path / "identity.json").exists():
        return WorkFolderError(
            f"{known}, but there is also {path} beside the topology file; name the one that is "
            "meant with --workdir, or delete the one that is done with"
        )
    return WorkFolderError(
        f"{known}, but now its place is beside the topology file; while no run is alive move it "
        f"to {path}, or name it with --workdir"
    )


def open_folder(
    path: Path, name: str, topology: Path, clock: Clock, *, held: bool = True
) -> WorkFolder:
    """Open the work folder of topology ``name``, or create it with a new uid.

    Not ``held`` is one whose ``run.lock`` another run may have: what is there stays as it is.
    Raises ``WorkFolderError`` if it cannot be written or belongs to another topology.
    """
    path = path.resolve()
    _make_writable(path)
    identity = _read_identity(path)
    if identity is None:
        _refuse_strange_content(path)
        identity = _first_identity(
            path, Identity(uuid.uuid4().hex, name, str(topology.absolute()), clock.now_s())
        )
    folder = _checked(path, name, identity)
    _close_to_others(path)
    if not held:
        return folder
    if identity.clearing:
        return _clear(folder)
    if identity.topology != str(topology.absolute()):
        identity = replace(identity, topology=str(topology.absolute()))
        _write_identity(path, identity)
    for part in (folder.logs, folder.requests):
        part.mkdir(mode=0o700, exist_ok=True)
    return replace(folder, identity=identity)


def find_folder(path: Path, name: str | None = None) -> WorkFolder:
    """An existing work folder, to look at.

    Raises ``WorkFolderError`` if there is none, or it is another user's: what lies in it may name
    processes to be ended and files to be written.
    """
    path = path.resolve()
    if path.is_dir():
        _refuse_other_owner(path)
    identity = _read_identity(path)
    if identity is None:
        raise WorkFolderError(
            f"work folder {path}: nothing has run here; start the topology with millrace run, "
            "or name its folder with --workdir"
        )
    return _checked(path, name or identity.name, identity)


def start_over(folder: WorkFolder, clock: Clock) -> WorkFolder:
    """Delete all state and give the topology a new uid; its old run must have ended."""
    identity = replace(folder.identity, uid=uuid.uuid4().hex, created=clock.now_s(), clearing=True)
    _write_identity(folder.path, identity)
    return _clear(replace(folder, identity=identity))


def _clear(folder: WorkFolder) -> WorkFolder:
    try:
        for part in folder.path.iterdir():
            if part.name in _KEPT_BY_FRESH:
                continue
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()
        durable.sync_folder(folder.path)
        identity = replace(folder.identity, clearing=False)
        _write_identity(folder.path, identity)
        for sub in (folder.logs, folder.requests):
            sub.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unusable(folder.path, error) from error
    return replace(folder, identity=identity)


def _make_writable(path: Path) -> None:
    """Create the folder, for its user alone, and write to it once."""
    try:
        if not path.is_dir():
            durable.make_folders(path)
            path.chmod(0o700)  # whatever the umask is
        _refuse_other_owner(path)
        probe = path / f".probe.{os.getpid()}"
        probe.write_text("")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise unusable(path, error) from error


def _refuse_other_owner(path: Path) -> None:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise WorkFolderError(
            f"work folder {path}: belongs to the user with number {owner}, this is user "
            f"{os.geteuid()}; run as that user, or choose another folder with --workdir"
        )


def _close_to_others(path: Path) -> None:
    """State and passwords are its user's alone."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        try:
            path.chmod(mode & 0o700)
        except OSError as error:
            raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> WorkFolderError:
    """The error of a work folder that cannot be written."""
    return WorkFolderError(
        f"work folder {path}: cannot be written ({error.strerror or error}); make room or allow "
        "writing there, or choose another folder with --workdir"
    )


def _refuse_strange_content(path: Path) -> None:
    names = sorted(p.name for p in path.iterdir())
    strange = [n for n in names if n not in _KEPT_BY_FRESH and not _BEGUN.fullmatch(n)]
    if strange and "identity.json" not in names:  # else another first start has just been here
        raise WorkFolderError(
            f"work folder {path}: holds {strange[0]!r} but no identity.json, so it is no work "
            "folder; choose an empty or new folder with --workdir"
        )


def _checked(path: Path, name: str, identity: Identity) -> WorkFolder:
    if identity.name != name:
        raise WorkFolderError(
            f"work folder {path}: belongs to topology {identity.name!r}, not to {name!r}; choose "
            f"another folder with --workdir, or delete this one if {identity.name!r} is done with"
        )
    folder = WorkFolder(path, identity)
    if not identity.clearing:
        _check_view(folder)
    return folder


def _check_view(folder: WorkFolder) -> None:
    """The view must be of the same life of the topology as the identity."""
    if not folder.view.exists():
        return
    try:
        _, view = ViewFile(folder.view).read()
    except ProtocolError as error:
        raise WorkFolderError(str(error)) from error
    if view is not None and view.uid != folder.uid:
        raise WorkFolderError(
            f"work folder {folder.path}: identity.json has uid {folder.uid}, view.json has "
            f"{view.uid}; its files come from two folders: restore it from one copy, or start "
            "over with --fresh"
        )


def _read_identity(path: Path) -> Identity | None:
    file = path / "identity.json"
    if not file.exists():
        return None
    try:
        return Identity(**checked.decode(file.read_bytes()))
    except (TypeError, OSError, checked.DamagedError) as error:
        raise WorkFolderError(
            f"work folder {path}: its identity.json cannot be read ({error}); restore it from a "
            "copy, or choose another folder with --workdir"
        ) from error


def _first_identity(path: Path, identity: Identity) -> Identity:
    """This one, or that of another first start which came before: only one counts."""
    try:
        if create_json(path / "identity.json", checked.with_checksum(asdict(identity))):
            return identity
    except OSError as error:
        raise unusable(path, error) from error
    found = _read_identity(path)
    return _first_identity(path, identity) if found is None else found


def _write_identity(path: Path, identity: Identity) -> None:
    try:
        write_json(path / "identity.json", checked.with_checksum(asdict(identity)))
    except OSError as error:
        raise unusable(path, error) from error
