"""The driver's state machine: the single writer of a topology's record.

It is told events and answers with actions (``protocol.events``); ``Membership`` brings it to an
open view with a committed record, ``Windows`` runs windows from there. Everything the driver
acts on comes from the last *committed* record, so its own memory may be lost at any point.

What recovery does if the driver dies right after a step of a window:

=============  =====================================================================
open           the record holds the intent: the next driver runs the same roots
run            objects under attempt names that no record names: forgotten later
judge          the verdict is a pure function of the log; the attempt is run again
dead letters   an object that no record names: forgotten later
edit           the record holds all of it or nothing: the next driver applies it, or finds it done
seal           not committed: the write-back makes it final or unseen, never half
publish        the record lists the window as unpublished: published again, same mark
mark           the sink confirms again at once
forget         the next sweep finds what is left
=============  =====================================================================
"""

from __future__ import annotations

from typing import assert_never

from millrace.ids import NO_WINDOW, WindowNumber
from millrace.protocol import events as e
from millrace.protocol.membership import Membership, Owners, Standing
from millrace.protocol.presence import Presence
from millrace.protocol.record import Locate
from millrace.protocol.settings import Settings
from millrace.protocol.windows.machine import Windows

RESEND_S = 1.0
"""How long an unanswered message is waited for before it is sent again."""

WATCH_TICKS = 5
"""How often, in resend intervals, a recovered driver looks whether a newer one has taken over."""

DRAIN_TICKS = 10
"""So many resend intervals without an open view are enough for a driver that is to stop."""

LOOK_AGAIN = 1
"""Token of the look at the view that decides whether a driver is fenced or its record old."""


class Driver:
    """Feed ``handle`` with events, one at a time, and carry out what it returns."""

    def __init__(self, settings: Settings, owners: Owners, locate: Locate) -> None:
        self.settings = settings
        self.membership = self.make_membership(owners)
        self.windows = self.make_windows(locate)
        self.presence = Presence()
        self.stopped: e.Stop | None = None
        self._fenced_sinks = False
        self._behind: str | None = None
        self._resend_s = 0.0
        self._ticks = 0
        self._unrecovered = 0

    def make_membership(self, owners: Owners) -> Membership:
        s = self.settings
        return Membership(
            s.uid, s.copies, s.key_groups, owners, learners=s.learners, restores=s.restores
        )

    def make_windows(self, locate: Locate) -> Windows:
        return Windows(self.settings, self.membership, locate)

    def start(self, now_s: float) -> list[e.Action]:
        """First actions of this driver's life."""
        self._resend_s = now_s + RESEND_S
        return [*self.membership.start(), e.Wake(self._resend_s)]

    def resize(self, max_records: int) -> WindowNumber | None:
        """Let windows have at most so many roots (``Windows.resize``); None if not now."""
        recovered = self.membership.standing is Standing.RECOVERED
        return self.windows.resize(max_records) if recovered else None

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        """React to one event at ``now_s``, seconds of a clock that never jumps."""
        if self.stopped is not None:
            return []
        before, sealed = self.membership.standing, self._sealed()
        self.membership.suspicion.heard(event)
        if isinstance(event, e.RunDied) and event.away:
            self.membership.unreached(event.away)
        actions = self.presence.observe(event, self.membership.view)
        actions += self._react(event, now_s)
        if self._sealed() > sealed:
            self.membership.suspicion.reached()
            actions += self.presence.sealed()
        if not any(isinstance(action, e.Stop) for action in actions):
            actions += self._after(before, now_s)
        if isinstance(event, e.Tick) and now_s >= self._resend_s:
            self._resend_s = now_s + RESEND_S
            actions.append(e.Wake(self._resend_s))
        self.membership.suspicion.asked(actions)
        for action in actions:
            if isinstance(action, e.Stop):
                self.stopped = action
        return actions

    def _sealed(self) -> WindowNumber:
        return self.windows.record.sealed if self.windows.record is not None else NO_WINDOW

    def _react(self, event: e.Event, now_s: float) -> list[e.Action]:
        match event:
            case e.ViewRead():
                return self._view_read(event)
            case e.CasDone():
                return self.membership.cas_done(event)
            case e.CasLost():
                return self.membership.cas_lost(event)
            case e.Stamped():
                return self.membership.stamped(event)
            case e.Copied():
                return self.membership.copied(event)
            case e.CopyFailed():
                return self.membership.copy_failed(event)
            case e.Refused():
                return self._refused(event)
            case e.Unreachable():
                return self._unreachable(event)
            case e.RecordAck():
                return self._acknowledged(event)
            case e.MembersSeen():
                return self._proposed(event)
            case e.SinksFenced():
                return self._sinks_fenced(event)
            case e.SinkRefused():
                return self._sink_refused(event)
            case e.Tick():
                return self._tick() if now_s >= self._resend_s else []
            case e.Published() | e.PublishFailed() | e.DeadLetterRequest() | e.StopAsked():
                # They count while members change, too.
                return self.windows.handle(event, now_s)
            case (
                e.Planned()
                | e.PlanFailed()
                | e.RunDone()
                | e.RunDied()
                | e.RunFailed()
                | e.VerdictGiven()
                | e.VerdictLost()
                | e.DeadWritten()
                | e.SplitDone()
            ):
                recovered = self.membership.standing is Standing.RECOVERED
                return self.windows.handle(event, now_s) if recovered else []
            case _:
                assert_never(event)

    # -- between membership and windows

    def _after(self, before: Standing, now_s: float) -> list[e.Action]:
        standing = self.membership.standing
        actions: list[e.Action] = []
        if standing is Standing.RECOVERED and before is not Standing.RECOVERED:
            actions += self._recovered()
        if standing is Standing.RECOVERED and self.windows.record is not None:
            self.membership.committed(self.windows.record.tag)
        if standing is Standing.RECOVERED and self._must_move():
            return [*actions, *self.windows.suspend(), *self.membership.move()]
        if standing is Standing.RECOVERED:
            actions += self._teach()
            actions += self.windows.advance(now_s)
        return actions

    def _teach(self) -> list[e.Action]:
        """Before members come or leave on purpose, those that are to hold something learn it,
        beside the windows."""
        record = self.windows.record
        if record is None or not self.membership.view_changed() or self.membership.prepared():
            return []
        return self.membership.teach(record)

    def _must_move(self) -> bool:
        """A lost member is replaced at once; between windows a new one is let in, and one that is
        to leave is let go."""
        if self.membership.member_gone():
            return True
        changed = self.membership.view_changed() and self.windows.between()
        return changed and self.membership.prepared()

    def _recovered(self) -> list[e.Action]:
        record, view = self.membership.record, self.membership.view
        assert record is not None
        assert view is not None
        self.presence.follow(view)
        text = f"execution {view.execution} goes on behind window {record.sealed}"
        actions: list[e.Action] = [e.Notify("DriverRecovered", text, record.sealed)]
        if not self._fenced_sinks:
            actions.append(e.FenceSinks(view.execution, record))
        actions += self.windows.resume(record)
        return actions

    # -- events that concern both

    def _refused(self, event: e.Refused) -> list[e.Action]:
        return self.membership.refused(event)

    def _unreachable(self, event: e.Unreachable) -> list[e.Action]:
        return self.membership.unreachable(event)

    def _acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        if self.membership.standing is Standing.RECOVERED:
            return self.windows.acknowledged(event)
        return self.membership.acknowledged(event)

    def _proposed(self, event: e.MembersSeen) -> list[e.Action]:
        return self.membership.propose(event.members, event.number, event.leaving)

    def _sinks_fenced(self, event: e.SinksFenced) -> list[e.Action]:
        if event.execution != self.membership.execution or self._fenced_sinks:
            return []
        self._fenced_sinks = True
        self.windows.sinks_fenced = True
        return [
            e.Notify(
                "SinkCannotTell",
                f"sink {name!r} cannot tell what it shows (Sink.last_shown): a work folder that is "
                "put back from an older copy would not be noticed by it",
                warning=True,
            )
            for name in event.untold
        ]

    def _sink_refused(self, event: e.SinkRefused) -> list[e.Action]:
        if event.behind and self._fenced_sinks:
            return []  # the answer to an earlier question: they show what this driver has shown
        if event.behind:
            # A successor may have shown more: only a look at the view from now on can tell.
            self._behind = event.text
            return [e.ReadView(LOOK_AGAIN)]
        kind = e.StopKind.FENCED if event.fenced else e.StopKind.FAILED
        return [e.Stop(kind, event.text)]

    def _view_read(self, event: e.ViewRead) -> list[e.Action]:
        view, actions = event.view, self.membership.view_read(event)
        if actions or self._behind is None or event.token != LOOK_AGAIN or view is None:
            return actions
        if view.execution != self.membership.execution:
            return []
        return [e.Stop(e.StopKind.BEHIND, self._behind)]

    def _tick(self) -> list[e.Action]:
        if self.windows.draining and self.presence.away:
            # What the next driver finds is as good as it gets: it goes on from the record.
            away = ", ".join(self.presence.away)
            return [e.Stop(e.StopKind.ASKED, f"stopped while {away} is away; the next run goes on")]
        if self.membership.standing is not Standing.RECOVERED:
            self._unrecovered += 1
            if self.windows.draining and self._unrecovered >= DRAIN_TICKS:
                text = "stopped while state servers are waited for; the next run goes on"
                return [e.Stop(e.StopKind.ASKED, text)]
            return [*self.membership.tick(), *self._watch()]
        self._unrecovered = 0
        again = self._signs_of_life()
        again += self.windows.resend()
        if not self._fenced_sinks:
            if self.windows.draining:
                text = "stopped before all sinks have answered; the next run goes on"
                return [e.Stop(e.StopKind.ASKED, text)]
            assert self.windows.record is not None
            again.append(e.FenceSinks(self.membership.execution, self.windows.record))
        if self._behind is not None:
            again.append(e.ReadView(LOOK_AGAIN))
        return [*again, *self._watch()]

    def _signs_of_life(self) -> list[e.Action]:
        """Stamp the members again where one may be the reason that something waits.

        One that hangs holds up the tasks of an attempt, which they tell late; where others have
        copies it is asked beside them, so that it is left out soon.
        """
        view = self.membership.view
        assert view is not None
        spare = self.membership.held > 1 and len(view.target) > 1
        beside = spare and self.windows.attempt is not None
        waits = self.windows.waits() or bool(self.presence.away)
        return self.membership.watch(waits or beside)

    def _watch(self) -> list[e.Action]:
        """A driver that waits for something would never notice that it has been replaced."""
        self._ticks += 1
        return [e.ReadView()] if self._ticks % WATCH_TICKS == 0 else []
