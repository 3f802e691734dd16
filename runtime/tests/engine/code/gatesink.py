"""A sink of files that waits before it writes anything, while there is a file ``gate``."""

from __future__ import annotations

import time
from pathlib import Path

from millrace.sinks.files import FileSink


class Gated(FileSink):
    """Says with a file ``waits`` that it does."""

    def __init__(self, name, options, folder):
        super().__init__(name, options, folder)
        self._folder = Path(folder)

    def stage(self, name, batches):
        while (self._folder / "gate").exists():
            (self._folder / "waits").touch()
            time.sleep(0.01)
        return super().stage(name, batches)
