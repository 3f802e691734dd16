"""The view of a topology as a ConfigMap: compare-and-swap by ``resourceVersion``.

The data says its version, which counts the views, since the object's own ``resourceVersion`` also
changes with labels; and which write brought it (``writtenBy``, a random word, in pods behind the
pod's name). A write whose answer is lost is settled by that word::

    PATCH under a resourceVersion -- answer --> new version, or None
               |
          answer lost --> read: written by this write?  yes --> new version
               ^               |
               |               no, and nothing has changed: sent again with the same word, under
               +-------------- the same resourceVersion, so that at most one of them counts
                               |
                               no, and the next version is another's --> None
                               no, and later ones are there: it may have come between --> not known

A process that dies at any of these points leaves the view as it was, or replaced as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from millrace.errors import ProtocolError
from millrace.homes import pods
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import ConfigMap, Held
from millrace.protocol.codec import decode_view, encode_view
from millrace.protocol.types import View

TRIES = 4
"""Sendings of one write; later the caller asks again."""


class ViewMap:
    """See ``homes.stores.ViewStore``. ``word`` gives the name of a write, never twice the same."""

    def __init__(
        self, config_map: ConfigMap, word: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        self._map = config_map
        self._word = word

    def read(self) -> tuple[int, View | None]:
        return decode(self._map.name, self._map.read())

    def cas(
        self, expected: int, view: View, beside: Mapping[str, str | None] | None = None
    ) -> int | None:
        """As ``ViewStore.cas``; ``beside`` are other keys of the ConfigMap that are written with
        the view or not at all, None where one goes."""
        word, after = self._word(), expected + 1
        data = {
            **(beside or {}),
            pods.VIEW_VERSION: str(after),
            pods.VIEW: encode_view(view).decode(),
            pods.WRITTEN_BY: word,
        }
        unsettled = False
        for _ in range(TRIES):
            held = self._map.read()
            version = _version(self._map.name, held)
            if version == after and held is not None and held.data.get(pods.WRITTEN_BY) == word:
                return after
            if version != expected:
                if unsettled and version > after:
                    break
                return None
            try:
                written = self._write(held, data)
            except HomeAwayError:
                unsettled = True
                continue
            if written:
                return after
        raise HomeAwayError(
            f"ConfigMap {self._map.name}: whether version {after} was written is not known"
        )

    def beside(self, key: str) -> str | None:
        """Another key of the ConfigMap, as the last write left it."""
        held = self._map.read()
        return None if held is None else held.data.get(key)

    def _write(self, held: Held | None, data: Mapping[str, str | None]) -> bool:
        if held is None:
            return self._map.create({k: text for k, text in data.items() if text is not None})
        return self._map.replace(held.resource_version, data)


def decode(name: str, held: Held | None) -> tuple[int, View | None]:
    """Version and view of what a ConfigMap holds. Raises ``ProtocolError``,
    ``NewerFormatError``."""
    version = _version(name, held)
    if held is None or not version:
        return 0, None
    if pods.VIEW not in held.data:
        raise ProtocolError(f"ConfigMap {name}: it has no {pods.VIEW!r}; {_REMEDY}")
    return version, decode_view(held.data[pods.VIEW].encode())


def _version(name: str, held: Held | None) -> int:
    if held is None or not held.data.keys() & {pods.VIEW_VERSION, pods.VIEW}:
        return 0
    text = held.data.get(pods.VIEW_VERSION, "")
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ProtocolError(
            f"ConfigMap {name}: its {pods.VIEW_VERSION!r} is {text!r}, no number; {_REMEDY}"
        )
    return int(text)


_REMEDY = "restore it from a copy"
