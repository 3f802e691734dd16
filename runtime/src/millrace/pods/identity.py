"""Who this pod is and what is mounted in it: environment and files that the operator rendered."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import MillraceError
from millrace.homes import pods
from millrace.homes.passwords import PasswordOf, accepted_in, lines, of_root_key, shared
from millrace.modes import UMASK_VARIABLE

SHORTEST_PASSWORD = 32
LONGEST_PASSWORD = 128


class PodError(MillraceError):
    """A pod that was not given what it needs; the message names what, and where it comes from."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This pod, by its environment."""

    topology: str
    namespace: str
    pod: str
    ip: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Identity:
        """Raises ``PodError`` for a variable that is missing."""
        return cls(
            required(environment, pods.TOPOLOGY),
            required(environment, pods.POD_NAMESPACE),
            required(environment, pods.POD_NAME),
            required(environment, pods.POD_IP),
        )


def required(environment: Mapping[str, str], name: str) -> str:
    """A variable that must be there. Raises ``PodError``."""
    found = environment.get(name, "")
    if not found:
        raise PodError(
            f"environment variable {name} is missing or empty; set it in the pod as "
            "docs/pods.md says"
        )
    return found


def passwords(folder: Path) -> tuple[str, ...]:
    """The passwords of this pod: the first is used, all are accepted. Raises ``PodError``."""
    return _passwords(folder / pods.PASSWORD_KEY)


def password_of(folder: Path, uid: str) -> PasswordOf:
    """The password of each state server of the topology with this uid, in a pod that may know all
    of them. Without a root key they share one, as in a release that knew none. Raises
    ``PodError``."""
    file = folder / pods.ROOT_KEY
    if file.exists():
        return of_root_key(_passwords(file)[0], uid)
    return shared(passwords(folder)[0])


def own_passwords(folder: Path, uid: str, name: str) -> tuple[str, ...]:
    """All passwords of the pod of this name, of each root key one; in a pod that may not know a
    root key, what its own file holds. Raises ``PodError``."""
    file = folder / pods.ROOT_KEY
    if not file.exists():
        return passwords(folder)
    known = [of_root_key(root_key, uid)(name) for root_key in _passwords(file)]
    return tuple(password for password in known if password is not None)


def accepted(folder: Path) -> dict[str, list[str]]:
    """What a state server takes beside its own passwords: digests by user. Raises ``PodError``."""
    file = folder / pods.ACCEPTED_KEY
    found: dict[str, list[str]] = {}
    # An operator of a release without roots has none.
    if not file.exists():
        return found
    try:
        for user, known in accepted_in(_read(file)):
            found.setdefault(user, []).append(known)
    except ValueError as error:
        raise PodError(
            f"{file}: line {error} is no user with the SHA-256 of a password; take the key out of "
            "the Secret that is mounted there, and the operator makes it anew"
        ) from error
    return found


def _passwords(file: Path) -> tuple[str, ...]:
    found = tuple(lines(_read(file)))
    if not found:
        raise PodError(f"{file}: is empty; write a password into the Secret that is mounted there")
    for number, one in enumerate(found, 1):
        usable = one.isascii() and one.isalnum()
        if not (usable and SHORTEST_PASSWORD <= len(one) <= LONGEST_PASSWORD):
            raise PodError(
                f"{file}: the password in line {number} has not {SHORTEST_PASSWORD} to "
                f"{LONGEST_PASSWORD} letters and digits alone; write another one into the Secret"
            )
    return found


def derived(folder: Path, nonce: str, purpose: str) -> bytes:
    """A key of one run, 32 bytes, for a ``purpose`` of at most 16 characters.

    Made of what only pods of the topology can read and of the nonce of one life of its driver, so
    that no run takes the word of another. Raises ``PodError``.
    """
    file = folder / pods.RUN_KEY
    secret = _read(file).strip().encode()
    if len(secret) < SHORTEST_PASSWORD:
        raise PodError(
            f"{file}: has less than {SHORTEST_PASSWORD} characters; write more random ones into "
            "the Secret that is mounted there"
        )
    key = hashlib.blake2b(secret, digest_size=64).digest()
    return hashlib.blake2b(
        nonce.encode(), key=key, digest_size=32, person=purpose.encode()
    ).digest()


def private_scratch(root: Path = Path(pods.SCRATCH_FOLDER)) -> Path:
    """A folder closed to others, for temporary files and sockets of this process and those below
    it; the same path in every pod."""
    folder = root / "millrace"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def private_files() -> None:
    """What this process and those below it make is their user's alone; outputs follow the umask
    that the container came with."""
    os.environ[UMASK_VARIABLE] = f"{os.umask(0o077):o}"


def write_private(file: Path, data: bytes) -> None:
    """Write a file that its user alone can read."""
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as writer:
        writer.write(data)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise PodError(
            f"{file}: cannot be read ({error}); mount the topology's Secret there"
        ) from error
