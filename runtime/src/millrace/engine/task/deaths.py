"""How a worker ended: told by the process that forked it, under a name of the window attempt.

One signed object on the state servers, so that the driver hears of it wherever the worker was::

    worker begins a task    its page says what it works on and where its end is to be told
    worker ends within it   the daemon reaps it, and a child of the daemon stores the object
    job fails               the driver looks for objects of the attempt (``jobs.notices``)

What follows if one of them is gone too: without the daemon (with its executor, say) nobody tells,
and the attempt has died without evidence; a state server that is away is tried again for
``TELL_S``; an object that comes late is never looked at, since the next attempt has another name.
It is deleted with whatever else the attempt left (``Forget.covers``).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

from millrace.engine.program import signing
from millrace.engine.task.blackbox import Note, Page, Recipient, read_note
from millrace.errors import StateServerError
from millrace.protocol.types import AttemptId
from millrace.state.servers import StateObject, StateServers

TELL_S = 5
"""How long whoever tells of a death may take, in seconds; nobody waits longer for it."""

_AGAIN_S = 0.1
_PURPOSE = "death"


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended: ``signal`` if one ended it, else ``exit_code``.

    ``run`` is Spark's number, from 0, of the run of the task that ended with it.
    """

    pid: int
    exit_code: int
    signal: int
    note: Note | None
    run: int = 0

    def blames(self, attempt: AttemptId) -> bool:
        """Whether the worker died in user code on roots that it had from this attempt."""
        note = self.note
        if note is None or not (note.busy and note.batch):
            return False
        return (note.execution, note.window, note.attempt) == astuple(attempt)


def within_a_task(pid: int, status: int, page: Page) -> tuple[Death, Recipient] | None:
    """What is to be told of a process with this wait status; None for any other end."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = 0 if number else os.WEXITSTATUS(status)
    recipient = page.recipient()
    if recipient is None:
        return None
    note = page.note()
    if note is not None and note.pid != pid:
        note = None
    # A worker that ends in user code has not ended in order, whatever it calls its end.
    if not (number or code or (note is not None and note.busy and note.processor)):
        return None
    return Death(pid, code, number, note, recipient.run), recipient


def tell(death: Death, recipient: Recipient) -> None:
    """Store a death; whoever calls bounds the time. Raises ``StateServerError``."""
    servers = StateServers(recipient.access())
    told = StateObject(recipient.name, encode(recipient.name, death))
    while True:
        try:
            # Without it a window that waits for room would look like one that breaks the engine.
            return servers.put([told], when_full=True)
        except StateServerError as error:
            if not error.retryable:
                raise
        time.sleep(_AGAIN_S)


def encode(name: str, death: Death) -> bytes:
    """The content of the object ``name``."""
    data = json.dumps({"name": name, **asdict(death)}).encode()
    return signing.tag_of(_PURPOSE, data) + data


def decode(name: str, data: bytes) -> Death | None:
    """The death that the object ``name`` tells of; None for what this run has not signed for it."""
    tag, rest = data[: signing.TAG_BYTES], data[signing.TAG_BYTES :]
    if not signing.is_tag_of(tag, _PURPOSE, rest):
        return None
    told = json.loads(rest)
    if told.pop("name") != name:
        return None
    note = read_note(json.dumps(told.pop("note")).encode())
    return Death(note=note, **told)


def describe(death: Death, timeout_s: float) -> str:
    """A sentence about a death: what the worker did and what ended it."""
    cause = _cause(death, timeout_s)
    note = death.note
    if note is None:
        return f"worker process {death.pid} ended: {cause}"
    where = f"processor {note.processor!r}" if note.processor else "the engine's own code"
    span = f", roots {note.roots[0]} to {note.roots[1]}" if note.roots else ""
    return (
        f"worker process {death.pid} ended in {where} (pass {note.pass_no}, partition "
        f"{note.partition}{span}): {cause}"
    )


def main_cause(deaths: Sequence[Death], attempt: AttemptId) -> Death | None:
    """The death that explains the others.

    When one worker has ended a job, Spark kills those that still work for it with SIGKILL.
    """

    def rank(death: Death) -> tuple[bool, bool]:
        return death.signal == signal.SIGKILL, not death.blames(attempt)

    busy = [death for death in deaths if death.note is not None and death.note.busy]
    return next(iter([*sorted(busy, key=rank), *deaths]), None)


def _cause(death: Death, timeout_s: float) -> str:
    if death.signal == signal.SIGALRM:
        return f"no progress within tupleTimeout ({timeout_s:g} s)"
    if death.signal == signal.SIGKILL:
        return "killed (SIGKILL), as the kernel does when memory runs out"
    if death.signal:
        return f"killed by {_signal_name(death.signal)}"
    return f"exit code {death.exit_code}"


def _signal_name(number: int) -> str:
    """Those of real time have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
