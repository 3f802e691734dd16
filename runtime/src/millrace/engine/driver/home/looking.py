"""A thread beside the driver's loop that looks at something every so often."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

log = logging.getLogger(__name__)


class Looking(ABC):
    """Looks every ``every_s`` seconds, from ``start`` to ``stop``. A look that fails is logged, as
    one at ``what``, and is not the last."""

    def __init__(self, name: str, every_s: float, what: str) -> None:
        self._every_s = every_s
        self._what = what
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Look once."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what is under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self.look()
            except Exception:
                # The boundary of a thread: the next look may go well, or find more.
                log.exception("looking at %s", self._what)
