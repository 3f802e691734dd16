"""The scripts that state servers run; each is ``common.lua`` with its own body behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """Text of a script and the digest by which a server knows it."""

    name: str
    text: bytes
    sha: str


@cache
def load(name: str, when_full: bool = False) -> Script:
    """The script ``name``.lua with the common functions put below its first line; ``when_full``
    lets it write where memory is full, which its first line may do anyway."""
    folder = files(__package__)
    flags, _, body = (folder / f"{name}.lua").read_text().partition("\n")
    if when_full:
        flags += " flags=allow-oom"
    common = (folder / "common.lua").read_text()
    text = f"{flags}\n{common}\n{body}".encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest())
