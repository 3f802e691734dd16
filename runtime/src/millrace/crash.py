"""Named crash points: SIGKILL of this very process right after a step, for tests of recovery.

``MILLRACE_CRASH_AT=point[:n][,point[:n]...]`` kills the process that reaches ``point`` for the
n-th time (first by default). With ``MILLRACE_CRASH_DIR`` set, a point fires once for that
folder, so that the process started in its place runs on. Without the variable a point costs one
look at a dictionary.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

POINTS = {
    "driver.claimed": "the execution is claimed, nothing stamped",
    "driver.stamped": "a member is stamped and has answered, its answer unseen",
    "driver.moving": "the view is moving, or a moving one is claimed",
    "driver.copied": "every object of the record is on its owners",
    "driver.opening": "the record is on every member of a moving view, which is not open yet",
    "driver.view-opened": "a moving view is open, nothing done under it",
    "driver.written-back": "the record is written back to every member",
    "driver.edited": "an edit of the topology is committed",
    "driver.opened": "a window's intent is committed",
    "driver.planned": "the next input is planned, not yet part of the record",
    "driver.started": "a window attempt has its ack log and is about to run",
    "driver.ran": "a window attempt has ended, nothing is judged yet",
    "driver.closed": "the close marker is in the ack log",
    "driver.judged": "the verdict is known",
    "driver.dead-written": "the dead letters of a window are stored",
    "driver.record-sent": "a record is written, its acknowledgement unseen",
    "driver.split": "a split is committed",
    "driver.sealed": "a seal is committed, nothing published",
    "publish.manifest": "the manifest of a window exists",
    "publish.rename": "one staged file has its final name",
    "publish.renamed": "all staged files have their final names",
    "publish.done": "the done mark is written",
    "publish.loaded": "the rows of a window are read for a sink's transaction, which is not sent",
    "publish.transaction": "a sink's transaction is committed",
    "driver.published": "the sinks have confirmed, the record does not know it",
    "driver.marked": "the published mark is committed",
    "driver.forgotten": "superseded objects are deleted",
    "worker.read": "a task has read its input",
    "worker.state-written": "a task's state objects are on their owners",
    "worker.staged": "a task's outputs are staged",
    "worker.acked": "a task's ack message is in the log, or in the report that it returns",
    "acker.opened": "an acker has seen a window attempt open",
    "acker.folded": "an acker has folded a message, or read one that a close marker encloses",
    "acker.answered": "an acker has answered",
}
"""Every crash point and the state of affairs when it fires."""

COPYING_POINTS = {
    "driver.copying": "one of the servers that lacked an object of the record has it now; what "
    "else is to be copied is not",
}
"""The same of a view with several servers: a single one never lacks what it holds."""

PREPARING_POINTS = {
    "driver.preparing": "a window that is not open yet has its ack log, where it is tracked, and "
    "no first pass so far",
    "driver.prepared": "its window is open and its first pass, begun before, is gone on with",
}
"""The same of windows that are prepared beside the window before: of few roots their log alone is
opened there, of others the first pass begun as well, where it only reads."""

AHEAD_POINTS = {
    "worker.ahead": "the first pass of a window that is not open yet is over, beside another "
    "attempt in the same worker; the ackers are told with the passes behind it",
}
"""The same of large windows that are one task and call no code of the user's."""

LEARNING_POINTS = {
    "driver.taught": "others have learned what a server leaves, or have what they are to hold when "
    "they join; the view has not moved",
}
"""The same of servers that come and go on purpose; the steps behind it are a view change's."""

TUNING_POINTS = {
    "driver.tuned": "a driver goes by settings that were edited while it runs; it has told nobody",
}
"""The same of edits in place."""

CONSOLE_POINTS = {
    "publish.print": "one part of a window is printed, and maybe not flushed",
}
"""The same of the console, which keeps nothing: the next driver prints all of the window again."""

SNAPSHOT_POINTS = {
    "snapshot.part": "a part of a snapshot is written, its manifest is not",
    "snapshot.manifest": "the manifest is written: the snapshot is there, nobody was told",
    "snapshot.unlisted": "the manifest of a snapshot that is deleted is gone, its parts are not",
    "restore.marked": "the work folder says that a restore is under way",
    "restore.fenced": "the sinks are fenced, nothing is retracted",
    "restore.retracted": "the sinks show nothing behind the snapshot",
    "restore.noted": "the new timeline is noted, the view not yet claimed for it",
    "restore.claimed": "the view is of the new timeline, and being created",
    "restore.cleared": "the state servers hold nothing but what the snapshot has",
    "restore.put": "all objects are on their owners, no record names them",
    "restore.recorded": "the record is written, the view not yet open",
    "restore.opened": "the view is open, the work folder still says that a restore is under way",
    "lost.restored": "a snapshot took the place of lost state, no driver was started since",
}
"""The same of snapshots."""

STANDBY_POINTS = {
    "standby.begun": "a driver that stands by has begun, nothing of it is up",
    "standby.ready": "all of it is up, and it waits",
    "standby.told": "it is told to take over, nothing is claimed",
}
"""The same of a driver that stands by; what it reaches from then on is a driver's."""

_counts: dict[str, int] = {}


def _wanted() -> dict[str, int]:
    wanted: dict[str, int] = {}
    for part in filter(None, os.environ.get("MILLRACE_CRASH_AT", "").split(",")):
        point, _, number = part.partition(":")
        wanted[point.strip()] = int(number or 1)
    return wanted


_WANTED = _wanted()


def reached(point: str) -> None:
    """Kill this process if the environment asks for it here."""
    if point not in _WANTED:
        return
    _counts[point] = _counts.get(point, 0) + 1
    if _counts[point] == _WANTED[point] and _first_time(point):
        os.kill(os.getpid(), signal.SIGKILL)


def _first_time(point: str) -> bool:
    folder = os.environ.get("MILLRACE_CRASH_DIR")
    if not folder:
        return True
    try:
        with (Path(folder) / point).open("x") as mark:
            mark.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
