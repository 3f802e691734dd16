"""What stands beside the view about restores: which one has begun, which timelines there were, and
how often state was lost. Written with the view, in one write; see ``kube.viewmap``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millrace.homes import codec, pods
from millrace.protocol.types import Phase, View
from millrace.snapshots import timelines
from millrace.snapshots.timelines import Fork


@dataclass(frozen=True, slots=True)
class Begun:
    """The restore that has begun, of ``snapshot`` in ``place``. ``own``: of the same life of the
    topology, since its state was lost. ``last`` is the last window that was sealed or shown, where
    that is known and behind ``window``."""

    __pydantic_config__ = codec.STRICT

    snapshot: str
    place: str
    window: int
    own: bool
    topology: str = ""
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Losses:
    """State that was lost and restored under this ``spec.restartNonce``, since the timeline
    ``since`` began: another nonce forgives what was before."""

    __pydantic_config__ = codec.STRICT

    nonce: int
    since: int


class MarkedView(Protocol):
    """A ``ViewStore`` with other keys beside the view; see ``kube.viewmap``."""

    def read(self) -> tuple[int, View | None]: ...

    def beside(self, key: str) -> str | None: ...

    def cas(
        self, expected: int, view: View, beside: dict[str, str | None] | None = None
    ) -> int | None: ...


class Marks:
    """Reads them. ``nonce`` is the topology's ``spec.restartNonce``."""

    def __init__(self, view: MarkedView, nonce: int) -> None:
        self._view = view
        self._nonce = nonce

    def begun(self) -> Begun | None:
        """The restore that has begun and has not opened the view."""
        text = self._view.beside(pods.RESTORING)
        return None if text is None else codec.decode_line(Begun, text.encode())

    def losses(self) -> Losses | None:
        """Those under the present nonce; None where there are none."""
        text = self._view.beside(pods.LOSSES)
        losses = None if text is None else codec.decode_line(Losses, text.encode())
        return losses if losses is not None and losses.nonce == self._nonce else None

    def forks(self) -> tuple[Fork, ...]:
        """Of all timelines behind the first one."""
        return timelines.decoded(self._view.beside(pods.TIMELINES))

    def of_claim(self, view: View | None, begun: Begun, fork: Fork) -> dict[str, str | None]:
        """What is to stand beside a view that ``begun`` claims from ``view``."""
        beside: dict[str, str | None] = {
            pods.RESTORING: codec.encode_line(begun),
            pods.TIMELINES: timelines.encoded(self._opened(view), fork),
        }
        if begun.own:
            losses = self.losses() or Losses(self._nonce, fork.timeline)
            beside[pods.LOSSES] = codec.encode_line(losses)
        return beside

    def _opened(self, view: View | None) -> tuple[Fork, ...]:
        """Without that of a timeline that never was open: nothing was sealed in it, and a restore
        that keeps failing would fill the document."""
        forks = self.forks()
        if view is None or view.phase is not Phase.CREATING or self.begun() is None:
            return forks
        return tuple(fork for fork in forks if fork.timeline != view.timeline)
