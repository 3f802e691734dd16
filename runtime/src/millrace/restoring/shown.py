"""What sinks show beside a snapshot, and taking back what it does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millrace import crash
from millrace.errors import SinkError
from millrace.restoring.removed import RemovedSink
from millrace.sinks import Sink
from millrace.snapshots.manifest import Manifest

Shown = Sink | RemovedSink


def last_shown(
    sinks: Sequence[Shown],
    manifest: Manifest,
    elsewhere: str,
    before: Callable[[Shown], None] = lambda _: None,
) -> list[int]:
    """The last windows that the sinks show, which were prepared, at the latest by ``before``.

    Raises ``SinkError`` where one shows more than the snapshot knows and cannot take it back, or
    less than what was shown when it was taken; ``elsewhere`` says what to do then. A sink that was
    removed may show less: nothing is shown there any more.
    """
    found = []
    known = {one["name"] for one in manifest.document["spec"].get("sinks", ())}
    for sink in sinks:
        before(sink)
        try:
            last = sink.last_shown()
        except NotImplementedError:
            if not sink.retracts:
                raise _stays(sink, manifest, "cannot tell what it shows", elsewhere) from None
            continue
        window = -1 if last is None else last[0]
        if window > manifest.window and not sink.retracts:
            raise _stays(sink, manifest, f"shows windows up to {window}", elsewhere)
        stays = sink.name in known and not isinstance(sink, RemovedSink)
        if last is not None and window < manifest.window and stays:
            raise _lacks(sink, manifest, window, elsewhere)
        found.append(window)
    return found


def last_behind(manifest: Manifest, known: Iterable[int | None]) -> int | None:
    """The last of these windows, as far as they are known, that is behind the snapshot's."""
    later = (one for one in known if one is not None and one > manifest.window)
    return max(later, default=None)


def take_back(
    sinks: Sequence[Shown],
    manifest: Manifest,
    execution: int,
    elsewhere: str,
    fenced: Callable[[Sequence[int]], None] = lambda _: None,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Fence the sinks, then take back what they show behind the snapshot (rule 25), with a
    ``pause`` before each.

    An older driver may show windows until the sinks are fenced: so they are asked again then, which
    may refuse it all (``last_shown``), and ``fenced`` is told what they show before anything is
    taken back.
    """
    for sink in sinks:
        pause()
        sink.fence(execution)
    crash.reached("restore.fenced")
    fenced(last_shown(sinks, manifest, elsewhere, lambda _: pause()))
    for sink in sinks:
        if sink.retracts:
            pause()
            sink.retract(manifest.window)
    crash.reached("restore.retracted")


def _stays(sink: Shown, manifest: Manifest, what: str, elsewhere: str) -> SinkError:
    gone = f". {sink.why}" if isinstance(sink, RemovedSink) else ""
    return SinkError(
        f"sink {sink.name!r}: {what}, snapshot {manifest.name} ends with window "
        f"{manifest.window}, and it cannot take windows back (Sink.retract), so that "
        f"they would show twice. No sink was changed. Restore into {elsewhere}"
        f" and other places for the sinks, or define Sink.retract{gone}"
    )


def _lacks(sink: Shown, manifest: Manifest, window: int, elsewhere: str) -> SinkError:
    return SinkError(
        f"sink {sink.name!r}: shows windows up to {window}, snapshot {manifest.name} "
        f"ends with window {manifest.window}: the windows between were taken back by "
        "another restore and would never show again. Nothing was changed. Restore a snapshot "
        f"of window {window} or of one before it, or restore into {elsewhere}"
        " and other places for the sinks"
    )
