"""What sources are promised: of what the driver's threads ask them one thing after the other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from millrace.engine.driver.letters import encode_letters
from millrace.engine.driver.process import DriverProcess
from millrace.engine.program.cutting import cut_intent
from millrace.protocol.types import Intent, Replay, RootRange
from millrace.sources.base import Source

PIECE = RootRange("lines", 0, 0, 10)
LETTER = Replay("lines", 0, 1, 1, 0.0, None, "split", "no word", False)
CALLS = 20


class Busy(Source):
    """Notes whether two calls met."""

    def __init__(self) -> None:
        super().__init__("lines", {}, Path())
        self.free = threading.Lock()
        self.calls, self.met = 0, 0

    def _serve(self) -> None:
        alone = self.free.acquire(blocking=False)
        time.sleep(0.002)
        self.calls += 1
        self.met += not alone
        if alone:
            self.free.release()

    def schema(self):
        raise NotImplementedError

    def plan(self, offsets, max_records):
        raise NotImplementedError

    def read(self, piece):
        raise NotImplementedError

    def split(self, piece, at):
        self._serve()
        return super().split(piece, at)

    def locate(self, piece, index):
        self._serve()
        return

    def payload(self, replay):
        self._serve()
        return b"a line"


def test_split_locate_and_payload_are_called_one_after_the_other() -> None:
    source = Busy()
    named, driver = {"lines": source}, SimpleNamespace(_sources=[source])
    asks = (
        lambda: cut_intent(Intent(1, (PIECE,)), 4, named),
        lambda: encode_letters((LETTER,), named),
        lambda: DriverProcess._locate(driver, PIECE, 3),
    )
    with ThreadPoolExecutor(len(asks)) as threads:
        for answer in [threads.submit(ask) for _ in range(CALLS) for ask in asks]:
            answer.result()
    assert source.calls == CALLS * len(asks)
    assert source.met == 0
