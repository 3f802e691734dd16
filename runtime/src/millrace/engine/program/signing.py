"""Pickles that only this run can have made: nothing else is ever unpickled.

A pickle is a program, so bytes from the exchange, a result or a file are looked at only after
their signature was compared: a keyed hash (BLAKE2b, 32 bytes in front) under the secret of the
run, over the bytes and over what they are meant to be. The driver makes the secret at its start
and hands it down in the environment of Spark's processes; it is neither stored nor shipped.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import secrets
from typing import Any

from millrace.errors import EngineError

SECRET_VARIABLE = "MILLRACE_RUN_SECRET"
"""Environment variable that hands the secret from the driver to its workers, in hex."""

TAG_BYTES = 32


class UnsignedError(EngineError):
    """Bytes that no process of this run has signed for this purpose; they were not looked at."""


_secret: bytes | None = None


def forget_secret() -> None:
    """Take no secret over from whoever started this process."""
    os.environ.pop(SECRET_VARIABLE, None)


def run_secret() -> bytes:
    """The secret of the run, made on first use where this process was given none.

    It leaves the environment at once, so that what user code starts does not inherit it.
    """
    global _secret
    if _secret is None:
        given = os.environ.pop(SECRET_VARIABLE, None)
        _secret = bytes.fromhex(given) if given else secrets.token_bytes(TAG_BYTES)
    return _secret


def handed_down() -> dict[str, str]:
    """What a process that is to know the secret has in its environment."""
    return {SECRET_VARIABLE: run_secret().hex()}


def tag_of(purpose: str, data: bytes | memoryview) -> bytes:
    """The signature of bytes; ``purpose`` has at most 16 characters of ASCII."""
    person = purpose.encode()
    return hashlib.blake2b(data, key=run_secret(), digest_size=TAG_BYTES, person=person).digest()


def is_tag_of(tag: bytes | memoryview, purpose: str, data: bytes | memoryview) -> bool:
    """Whether a signature is genuine, in time that says nothing about it."""
    return hmac.compare_digest(bytes(tag), tag_of(purpose, data))


def signed(purpose: str, value: object) -> bytes:
    """The signed pickle of a value."""
    data = pickle.dumps(value, protocol=5)
    return tag_of(purpose, data) + data


def verified(purpose: str, data: bytes | memoryview) -> Any:
    """The value of a pickle that this run has signed. Raises ``UnsignedError`` for any other."""
    view = memoryview(data)
    tag, rest = view[:TAG_BYTES], view[TAG_BYTES:]
    if not is_tag_of(tag, purpose, rest):
        raise UnsignedError(
            f"{len(view)} bytes that should be a {purpose} were not signed by this run; they were "
            "damaged on their way, or something else wrote them"
        )
    return pickle.loads(rest)  # noqa: S301 signed by a process of this run
