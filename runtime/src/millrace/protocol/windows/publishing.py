"""Shows committed windows on the sinks, in their order and one at a time (rule 4).

Crash rule: what is confirmed here and not in the record yet is published again by the next driver,
with the same mark, so that sinks confirm it at once.
"""

from __future__ import annotations

from millrace.ids import NO_WINDOW, Execution, WindowNumber
from millrace.protocol import events as e
from millrace.protocol.types import Record
from millrace.protocol.windows.doing import Surprise


class Publishing:
    """``confirmed`` is the last window that every sink has confirmed to this driver, ``window``
    the one that is on its way to them."""

    def __init__(self) -> None:
        self.confirmed = NO_WINDOW
        self.window: WindowNumber | None = None
        self.failed = False
        self._asked = NO_WINDOW

    def next(self, record: Record, execution: Execution) -> list[e.Action]:
        """The next window of a committed record, unless one is on its way."""
        if self.window is not None:
            return []
        for sealed in record.unpublished:
            if sealed.window > self.confirmed:
                self.window = sealed.window
                self._asked = max(self._asked, sealed.window)
                return [e.Publish(sealed, execution)]
        return []

    def surprise(self, event: e.Published) -> Surprise | None:
        """One that was asked for twice is confirmed twice: not to be told from the first time."""
        return Surprise.BUG if event.window > self._asked else None

    def published(self, event: e.Published) -> list[e.Action]:
        if event.window == self.window:
            self.window = None
            self.failed = False
        self.confirmed = max(self.confirmed, event.window)
        return []

    def publish_failed(self, event: e.PublishFailed) -> list[e.Action]:
        """A sink is away or full, also one that is being fenced."""
        self.failed = True
        return [e.Notify("PublishFailed", event.text, event.window, warning=True)]

    def again(self) -> None:
        """What has failed may be tried again."""
        if self.failed:
            self.failed = False
            self.window = None
