"""Which of the proposals that an inbox shows counts, where one comes that is older than the last.

An operator that has been replaced, and does not know it yet, may write its proposal over that of
the one that leads. Its number is the lower one, and it is passed over: who leads sees it, too, and
says anew what counts. One that stays is all that there is: an inbox that was lost and made anew may
begin with low numbers again.
"""

from __future__ import annotations

import logging

from millrace.clock import Clock
from millrace.homes.documents import Proposal

log = logging.getLogger(__name__)

STALE_S = 20.0
"""For how long a proposal with a lower number is passed over."""


class Newest:
    """Told what every look at the inbox shows; used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._number = 0
        self._stale_since_s: float | None = None

    def counts(self, proposal: Proposal | None) -> bool:
        """Whether a proposal is to be followed; without one the next may have any number."""
        if proposal is None or proposal.number >= self._number or self._stays(proposal):
            self._number = proposal.number if proposal is not None else 0
            self._stale_since_s = None
            return proposal is not None
        return False

    def _stays(self, proposal: Proposal) -> bool:
        """Whether one with a lower number has been there for long enough."""
        now_s = self._clock.monotonic_s()
        if self._stale_since_s is None:
            self._stale_since_s = now_s
            log.warning(
                "proposal %d is passed over, since %d was there before: it counts once it has been "
                "there for %.0f s",
                proposal.number,
                self._number,
                STALE_S,
            )
        return now_s >= self._stale_since_s + STALE_S
