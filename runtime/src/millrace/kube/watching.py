"""What a ConfigMap holds, for those who look many times a second.

A thread watches it. The watch is a hint only: it may be silent for ever without an error. So what
it said last is believed for ``RESYNC_S`` and then read again, whatever the watch says.
A change is known at once where the watch works, and within ``RESYNC_S`` where it does not.

What is older than what is known is not believed of a watch, nor of a read that was under way when
that became known. A read that began behind it says what there is, whatever its ``resourceVersion``:
these fall where the API server's store is put back from a copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from millrace.clock import Clock, SystemClock
from millrace.errors import MillraceError
from millrace.kube.configmaps import ConfigMap, Held

log = logging.getLogger(__name__)

RESYNC_S = 10.0

WATCH_S = 8
"""How long one watch lasts; the server ends it, and the ConfigMap is read again."""

_SILENCE_S = RESYNC_S
_PAUSE_S = 1.0


class WatchedMap:
    """Safe for several threads; its own thread ends with the process, or behind ``close``."""

    def __init__(self, config_map: ConfigMap, clock: Clock | None = None) -> None:
        self._map = config_map
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._stored = 0
        """How often something became known."""
        self._known_s = float("-inf")
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> Held | None:
        """What it holds, None where it does not exist. Raises as ``ConfigMap.read``, where that
        was asked."""
        with self._lock:
            self._begin()
            if self._clock.monotonic_s() - self._known_s <= RESYNC_S:
                return self._held
        return self._reread()

    def latest(self) -> Held | None:
        """What it held when it was read last, without waiting for anybody; None before that too."""
        with self._lock:
            self._begin()
            return self._held

    @property
    def known(self) -> bool:
        """Whether it was read at all."""
        return self._known_s > float("-inf")

    def data(self) -> Mapping[str, str]:
        """The same, as its data alone."""
        held = self.look()
        return {} if held is None else held.data

    def close(self) -> None:
        self._closed.set()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def _reread(self) -> Held | None:
        with self._lock:
            begun = self._stored
        return self._keep(self._map.read(), begun)

    def _keep(self, found: Held | None, begun: int | None = None) -> Held | None:
        """Of a read that was ``begun`` when so often something had become known; None of a watch.
        An answer that was overtaken by a later one is not believed."""
        with self._lock:
            asked_behind = begun == self._stored
            overtaken = found is not None and self._held is not None and _older(found, self._held)
            if asked_behind or not overtaken:
                self._held = found
                self._stored += 1
            self._known_s = self._clock.monotonic_s()
            return self._held

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                held = self._reread()
                since = "0" if held is None else held.resource_version
                for change in self._map.changes(since, WATCH_S, _SILENCE_S):
                    self._keep(change)
                    if self._closed.is_set():
                        return
            except MillraceError as error:
                log.warning("watch of %s: %s", self._map.name, error)
                self._closed.wait(_PAUSE_S)
            except Exception:
                # The boundary of a thread: those who look go on with reads of their own.
                log.exception("watch of %s", self._map.name)
                self._closed.wait(_PAUSE_S)


def _older(one: Held, other: Held) -> bool:
    """Resource versions are opaque by the letter, and rising numbers in fact."""
    if one.resource_version.isdigit() and other.resource_version.isdigit():
        return int(one.resource_version) < int(other.resource_version)
    return False
