"""Plays a text script against the driver machine: commands in, actions out, both readable.

A script is a list of lines. A line that begins with ``->`` is an action that the machine must
answer with, in order; every other line is a command::

    start
    -> ReadView
    view 4 e1 open x1 a1 b1

Members are written name and life (``a1``), stamps ``e<epoch>x<execution>``, tags as
timeline.execution.epoch.seq. The time is only moved by ``wait``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from millrace.protocol import events as e
from millrace.protocol.cohorts import NO_LIMIT, DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff, first_record
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Evidence,
    FailedRoot,
    Guarantee,
    Intent,
    Member,
    Phase,
    Record,
    Replay,
    RootRange,
    Segment,
    Stamp,
    Tag,
    TaskId,
    TaskReport,
    Verdict,
    View,
)
from millrace.ring import owners

UID = "script"
GROUPS = 2


def member(text: str) -> Member:
    return Member(text[0], text[1:])


def stamp(text: str) -> Stamp:
    epoch, execution = text[1:].split("x")
    return Stamp(int(epoch), int(execution))


def tag(text: str) -> Tag:
    return Tag(*(int(part) for part in text.split(".")))


def place(
    copies: int, members: tuple[Member, ...], previous: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    return owners(GROUPS, [m.name for m in members], copies, previous=previous)


class Script:
    """One driver machine and what it was told and has answered."""

    def __init__(
        self,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        copies: int = 2,
        tracking: bool = False,
        max_replays: int = 1,
        dead_limit: DeadLimit = NO_LIMIT,
        components: Components | None = None,
        restores: bool = False,
        prepares_from: int | None = None,
        letters_together: int = 256,
    ) -> None:
        settings = Settings(
            uid=UID,
            guarantee=guarantee,
            tracking=tracking,
            backoff=Backoff(max_replays, 10.0),
            max_records=8,
            copies=copies,
            key_groups=GROUPS,
            dead_limit=dead_limit,
            restores=restores,
            prepares_from=prepares_from,
            components=components,
            letters_together=letters_together,
        )
        self.copies = copies
        self.machine = Driver(settings, partial(place, copies), lambda piece, index: index)
        self.now_s = 100.0
        self.actions: list[e.Action] = []
        self.records: dict[str, Record] = {}
        self.kept: dict[str, Record] = {}
        """By server: the newest record that it has acknowledged."""
        self.transcript: list[str] = []

    # -- playing

    def play(self, text: str) -> Script:
        """Run the commands of a script and compare with the actions that it expects."""
        wanted = [line for line in textwrap.dedent(text).strip().splitlines() if line.strip()]
        begin = len(self.transcript)
        for line in wanted:
            if not line.startswith("->"):
                self.transcript.append(line)
                self._do(line)
        assert "\n".join(self.transcript[begin:]) == "\n".join(wanted)
        return self

    def tell(self, *lines: str) -> None:
        """Run commands, whatever the machine answers."""
        for line in lines:
            self.transcript.append(line)
            self._do(line)

    def _do(self, line: str) -> None:
        words = line.split()
        if words[0] == "start":
            self._answer(self.machine.start(self.now_s))
        elif words[0] == "wait":
            self.now_s += float(words[1])
        elif words[0] == "record":
            self._record(words)
        else:
            event = getattr(self, f"_on_{words[0]}")(words[1:])
            self._answer(self.machine.handle(event, self.now_s))

    def _answer(self, actions: list[e.Action]) -> None:
        self.actions += actions
        shown = (describe(action) for action in actions)
        self.transcript += [f"-> {text}" for text in shown if text]

    def _last(self, kind: type) -> e.Action:
        return next(action for action in reversed(self.actions) if isinstance(action, kind))

    def _record(self, words: list[str]) -> None:
        """``record R 1.1.1.5 sealed 3 [open 4]``: a record that servers may hold."""
        record = replace(
            first_record(UID, tag(words[2])), sealed=int(words[4]), published=int(words[4])
        )
        if "open" in words:
            count = int(words[words.index("open") + 1])
            piece = RootRange("s", 0, 0, count, 0)
            record = replace(
                record, intents=(Intent(record.sealed + 1, (piece,)),), offsets={"s": count}
            )
        if "state" in words:
            segment = Segment(words[words.index("state") + 1], 1, 3, True)
            record = replace(record, chains={"p": (segment,)})
        self.records[words[1]] = record

    # -- events

    def _on_propose(self, words: list[str]) -> e.Event:
        split = words.index("leaving") if "leaving" in words else len(words)
        members, leaving = words[:split], words[split + 1 :]
        return e.MembersSeen(
            tuple(member(word) for word in members), 0, tuple(member(word) for word in leaving)
        )

    def _on_view(self, words: list[str]) -> e.Event:
        if words == ["none"]:
            return e.ViewRead(0, None)
        version, epoch, phase, execution, *names = words
        split = names.index("to") if "to" in names else len(names)
        source = tuple(member(name) for name in names[:split])
        target = tuple(member(name) for name in names[split + 1 :]) or source
        opened = int(epoch[1:]) if phase == "open" else int(epoch[1:]) - 1
        view = View(
            UID,
            1,
            int(epoch[1:]),
            Phase(phase),
            int(execution[1:]),
            source,
            target,
            opened,
            place(self.copies, target, ((),) * GROUPS),
        )
        return e.ViewRead(int(version), view)

    def _on_cas(self, words: list[str]) -> e.Event:
        action = self._last(e.CasView)
        assert isinstance(action, e.CasView)
        if words == ["lost"]:
            return e.CasLost(action.view)
        return e.CasDone(action.expected + 1, action.view)

    def _on_stamped(self, words: list[str]) -> e.Event:
        """``stamped a1 R``, or what it has acknowledged since; ``stamped a1 R cut`` where that is
        lost, ``stamped a1 none``, and ``stamped a1 R e1x2`` in answer to another stamp."""
        record = None if words[1] == "none" else self.records[words[1]]
        if words[-1] == "cut":
            words = words[:-1]
        elif record is not None and words[0][0] in self.kept:
            record = max(record, self.kept[words[0][0]], key=lambda one: one.tag)
        current = stamp(words[2]) if len(words) > 2 else self.machine.membership.stamp
        who = member(words[0])
        asked = (one for one in reversed(self.actions) if isinstance(one, e.SendStamp))
        held = (one.held for one in asked if (one.member, one.stamp) == (who, current))
        return e.Stamped(who, current, record, next(held, False))

    def _on_refused(self, words: list[str]) -> e.Event:
        return e.Refused(member(words[0]), self.machine.membership.stamp, words[1])

    def _on_unreachable(self, words: list[str]) -> e.Event:
        return e.Unreachable(member(words[0]), self.machine.membership.stamp)

    def _on_full(self, words: list[str]) -> e.Event:
        return e.Unreachable(member(words[0]), self.machine.membership.stamp, full=True)

    def _on_copied(self, words: list[str]) -> e.Event:
        return e.Copied(self.machine.membership.stamp, self._planned())

    def _on_uncopied(self, words: list[str]) -> e.Event:
        reason = " ".join(words)
        return e.CopyFailed(self.machine.membership.stamp, reason, planned=self._planned())

    def _on_nospace(self, words: list[str]) -> e.Event:
        """``uncopied``, since the first one of the words has no room."""
        name, reason = words[0], " ".join(words)
        stamp = self.machine.membership.stamp
        return e.CopyFailed(stamp, reason, planned=self._planned(), full=name)

    def _planned(self) -> View | None:
        """What the copy that was asked for last is of."""
        asked = [action for action in self.actions if isinstance(action, e.CopyObjects)]
        return asked[-1].planned if asked else None

    def _on_lost(self, words: list[str]) -> e.Event:
        """``uncopied``, since no server has an object."""
        return e.CopyFailed(self.machine.membership.stamp, " ".join(words), lost=True)

    def _on_ack(self, words: list[str]) -> e.Event:
        """``ack a1``, or ``ack a1 e1x2 7`` for an acknowledgement of another round."""
        if len(words) > 1:
            return e.RecordAck(member(words[0]), stamp(words[1]), int(words[2]))
        action = self._last(e.SendRecord)
        assert isinstance(action, e.SendRecord)
        self.kept[words[0][0]] = action.record
        return e.RecordAck(member(words[0]), action.stamp, action.record.tag.seq)

    def _on_fenced(self, words: list[str]) -> e.Event:
        """``fenced``, or ``fenced out`` with a sink that cannot tell what it shows."""
        return e.SinksFenced(self.machine.membership.execution, tuple(words))

    def _on_behind(self, words: list[str]) -> e.Event:
        return e.SinkRefused("a sink shows more", fenced=False, behind=True)

    def _on_look(self, words: list[str]) -> e.Event:
        """``look``: as ``view``, in answer to the last ``ReadView`` and no older one."""
        asked, found = self._last(e.ReadView), self._on_view(words)
        assert isinstance(asked, e.ReadView)
        assert isinstance(found, e.ViewRead)
        return replace(found, token=asked.token)

    def _on_planned(self, words: list[str]) -> e.Event:
        action = self._last(e.Plan)
        assert isinstance(action, e.Plan)
        start, count = int(action.offsets.get("s") or 0), int(words[0])
        ranges = (RootRange("s", 0, start, count, start),) if count else ()
        return e.Planned(action.token, ranges, {"s": start + count}, "drained" in words)

    def _on_done(self, words: list[str]) -> e.Event:
        """``done``, or ``done failing 1 2``, or ``done unreadable 1 2`` for what was never emitted,
        or ``done lasting 1 2`` for what no replay helps, or ``done combined`` for a failure after
        a combine.
        """
        action = self._last(e.Run)
        assert isinstance(action, e.Run)
        plan = action.plan
        failed: tuple[FailedRoot, ...] = ()
        if words[:1] in (["failing"], ["unreadable"], ["lasting"]):
            lost, lasting = words[0] == "unreadable", words[0] == "lasting"
            failed = tuple(
                FailedRoot(int(word), "p", "no good", unreadable=lost, lasting=lasting)
                for word in words[1:]
            )
        report = TaskReport(
            TaskId(0, 0, 0),
            roots_read=((0, plan.intent.roots),),
            failed=failed,
            combined_failures=(("p", 1, "no good"),) if words[:1] == ["combined"] else (),
        )
        return e.RunDone(plan.id, (1,), (report,))

    def _on_died(self, words: list[str]) -> e.Event:
        """``died`` in user code, ``died member`` for a state server that is away, ``died full a``
        for one that has no memory left, ``died away a`` for one that a task did not reach."""
        action = self._last(e.Run)
        assert isinstance(action, e.Run)
        if words == ["member"]:
            return e.RunDied(action.plan.id, "a server is away", member_lost=True)
        if words[:1] == ["full"]:
            return e.RunDied(action.plan.id, "its memory is full", True, full=words[1])
        if words[:1] == ["away"]:
            return e.RunDied(action.plan.id, "it cannot be reached", True, away=words[1])
        return e.RunDied(action.plan.id, "the worker died", evidence=Evidence.USER_CODE)

    def _on_broke(self, words: list[str]) -> e.Event:
        """The attempt failed, and not because of a root."""
        action = self._last(e.Run)
        assert isinstance(action, e.Run)
        return e.RunDied(action.plan.id, "an assertion in Spark")

    def _on_verdict(self, words: list[str]) -> e.Event:
        """``verdict ok``, ``verdict incomplete 0 2``, ``verdict short 1``, ``verdict lost``.

        A short one says nothing about so many roots, ``verdict broken`` is about the window's tree.
        """
        action = self._last(e.AskVerdict)
        assert isinstance(action, e.AskVerdict)
        marker = action.marker
        if words == ["lost"]:
            return e.VerdictLost(marker.id)
        missing = int(words[1]) if words[0] == "short" else 0
        named = words[1:] if words[0] == "incomplete" else []
        broken = tuple(FailedRoot(int(word), "p", "broken") for word in named)
        complete = marker.intent.roots - len(marker.excluded) - len(broken) - missing
        return e.VerdictGiven(Verdict(marker.id, (0,), complete, broken, words[0] != "broken"))

    def _on_dead(self, words: list[str]) -> e.Event:
        """``dead`` for the answer to the last ``WriteDead``, ``dead NAME`` for another one, ``dead
        alone`` where what was to be carried over could not be had."""
        action = self._last(e.WriteDead)
        assert isinstance(action, e.WriteDead)
        if words == ["alone"]:
            return e.DeadWritten(action.name)
        name = words[0] if words else action.name
        return e.DeadWritten(name, action.after is not None)

    def _on_split(self, words: list[str]) -> e.Event:
        """``split 4 4``: the window's range in pieces of these sizes, as a source cuts it."""
        action = self._last(e.Split)
        assert isinstance(action, e.Split)
        piece = action.intent.ranges[0]
        low, high = int(words[0]), int(words[1])
        first = replace(piece, count=low)
        second = replace(piece, start=piece.start + low, count=high)
        window = action.intent.window
        return e.SplitDone(window, Intent(window, (first,)), Intent(window, (second,)))

    def _on_published(self, words: list[str]) -> e.Event:
        return e.Published(int(words[0]))

    def _on_unpublished(self, words: list[str]) -> e.Event:
        return e.PublishFailed(int(words[0]), "the sink is away")

    def _on_stop(self, words: list[str]) -> e.Event:
        return e.StopAsked()

    def _on_tick(self, words: list[str]) -> e.Event:
        return e.Tick()


# -- actions in words


def describe(action: e.Action) -> str:
    """One action in few words; "" for those that no script asks about."""
    form = _FORMS.get(type(action))
    return form(action) if form is not None else type(action).__name__


def _view(view: View) -> str:
    source = " ".join(f"{m.name}{m.run_id}" for m in view.last_open)
    target = " ".join(f"{m.name}{m.run_id}" for m in view.target)
    names = source if source == target else f"{source} to {target}"
    return f"e{view.epoch} {view.phase.value} x{view.execution} {names}"


def _stamp(value: Stamp) -> str:
    return f"e{value.epoch}x{value.execution}"


def _tag(value: Tag) -> str:
    return f"{value.timeline}.{value.execution}.{value.epoch}.{value.seq}"


def _intent(intent: Intent) -> str:
    ranges = "".join(f" {r.start}+{r.count}" for r in intent.ranges)
    replays = "".join(f" {_replay(r)}" for r in intent.replays)
    return f"{intent.window}:{ranges}{replays}"


def _replay(replay: Replay) -> str:
    return f"{replay.offset}#{replay.number}"


def _contents(record: Record) -> str:
    parts = [f"{_tag(record.tag)} sealed {record.sealed} published {record.published}"]
    parts += [f"open {_intent(intent)}" for intent in record.intents]
    parts += [f"replay {_replay(replay)}" for replay in record.replays]
    parts += [_segment(one) for one in record.dead]
    return ", ".join(parts)


def _segment(segment: DeadSegment) -> str:
    begun = f" from {segment.first} on" if segment.first else ""
    return f"dead {segment.count} in {segment.name}{begun}"


def _write_dead(action: e.WriteDead) -> str:
    after = f" behind {action.after.name}" if action.after else ""
    return f"WriteDead {action.name} {' '.join(_replay(r) for r in action.letters)}{after}"


def _name(one: Member) -> str:
    return f"{one.name}{one.run_id}"


def _run(action: e.Run) -> str:
    plan = action.plan
    without = f" without {sorted(plan.excluded)}" if plan.excluded else ""
    single = f" uncombined {dict(plan.uncombined)}" if plan.uncombined else ""
    onward = " onward" if action.prepared else ""
    return f"Run {plan.id.attempt} of {_intent(plan.intent)}{without}{single}{onward}"


_FORMS: dict[type, Callable[..., str]] = {
    e.Wake: lambda a: "",
    e.Committed: lambda a: "",
    e.Forget: lambda a: "",
    e.OpenLog: lambda a: "",
    e.Plan: lambda a: f"Plan behind {dict(a.offsets)}",
    e.CasView: lambda a: f"CasView {a.expected} {_view(a.view)}",
    e.SendStamp: lambda a: f"SendStamp {_name(a.member)} {_stamp(a.stamp)}",
    e.SendRecord: lambda a: f"SendRecord {_name(a.member)} {_contents(a.record)}",
    e.CopyObjects: lambda a: (
        f"CopyObjects {_tag(a.record.tag)} from {' '.join(_name(m) for m in a.sources)}"
    ),
    e.FenceSinks: lambda a: f"FenceSinks x{a.execution}",
    e.Prepare: lambda a: f"Prepare {a.plan.id.attempt} of {_intent(a.plan.intent)}",
    e.Run: _run,
    e.Cancel: lambda a: f"Cancel {a.id.attempt} of {a.id.window}",
    e.AskVerdict: lambda a: f"AskVerdict {a.marker.id.attempt} of {a.marker.id.window}",
    e.WriteDead: _write_dead,
    e.Split: lambda a: f"Split {_intent(a.intent)} at {a.at}",
    e.Publish: lambda a: f"Publish {a.sealed.window}",
    e.Notify: lambda a: f"Notify {a.kind}",
    e.Stop: lambda a: f"Stop {a.kind}",
}
