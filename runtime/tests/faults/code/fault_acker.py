"""An acker that skips messages: started in the place of the real one.

``MILLRACE_FAULTS`` names the folder with its orders, {"skipMessages": {"windows", "of", "seed"}}:
in the first attempt of each of these windows it skips one message out of its first ``of``.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from millrace.tracking import process
from millrace.tracking.message import AckMessage


class DeafAcker(process.Acker):
    """Leaves out the message of a window whose turn is drawn by lot."""

    heard: dict[tuple[int, int, int], int] = {}

    def take(self, partition: int, entry: str, message: AckMessage) -> None:
        if not self._skips(message):
            super().take(partition, entry, message)

    def enclosed(self, text: str) -> AckMessage | None:
        message = super().enclosed(text)
        return None if message is None or self._skips(message) else message

    def _skips(self, message: AckMessage) -> bool:
        folder = Path(os.environ["MILLRACE_FAULTS"])
        order = json.loads((folder / "orders.json").read_text()).get("skipMessages")
        attempt = (message.attempt.execution, message.attempt.window, message.attempt.attempt)
        if order is None or attempt[1] not in order["windows"]:
            return False
        turn = random.Random(f"{order['seed']}/{attempt[1]}").randrange(order["of"])
        number = self.heard[attempt] = self.heard.get(attempt, -1) + 1
        mark = folder / f"skipMessages-{attempt[1]}.mark"
        if number != turn or mark.exists():
            return False
        mark.write_text(json.dumps({"attempt": attempt, "pid": os.getpid(), "message": number}))
        return True


if __name__ == "__main__":
    process.Acker = DeafAcker  # type: ignore[misc]
    sys.exit(process.main())
