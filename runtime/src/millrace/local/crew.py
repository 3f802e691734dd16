"""The processes that a supervisor keeps alive, apart from the state servers.

A crew starts, watches and logs; whether one that ended is started again is decided by its owner.
"""

from __future__ import annotations

import os
import re
import select
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from millrace.clock import Clock
from millrace.errors import MillraceError
from millrace.homes.documents import ProcessRow
from millrace.homes.restarts import Restarts
from millrace.local.children import Child, ProcessSpec
from millrace.local.logs import Lines, LogFile, LogPump
from millrace.local.workdir import WorkFolder

_TAIL_LINES = 40
_TAIL_BYTES = 1 << 16
"""Lines of a process that are kept for the cause of its end, and the longest of them."""

_CAUSE = re.compile(r"(?:^|\s)(?:ERROR \S+[^\s:]|error:|[\w.]*Error:)\s+(?P<text>.+)")
_CAUSE_OF_JVM = re.compile(r"(?:^|\s)ERROR \S+:\s+(?P<text>.+)")
"""Spark's JVM says of much that it is an error, also of what only follows from the driver's end."""


@dataclass(slots=True)
class Outlet:
    """Where a life's standard error and output go, which changes with its post."""

    log: Callable[[bytes], None]
    shown: Callable[[bytes], None]

    def write(self, data: bytes) -> None:
        self.log(data)

    def show(self, data: bytes) -> None:
        self.shown(data)


@dataclass(slots=True)
class Post:
    """One process that is to be kept alive: its present life, or when the next one begins.

    ``due_s`` and ``started_s`` are monotonic seconds.
    """

    spec: ProcessSpec
    restarts: Restarts
    child: Child | None = None
    due_s: float | None = None
    started_s: float = 0.0
    since: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    outlet: Outlet | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """A life that ended. ``code`` is the exit code or minus the signal's number; ``cause`` the
    last thing it wrote that looks like an error."""

    name: str
    role: str
    pid: int
    code: int
    lived_s: float
    cause: str

    @property
    def how(self) -> str:
        """``exit code 3`` or ``signal 9``."""
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A life that could not be begun, and why; nothing of it is left."""

    post: Post
    error: OSError | MillraceError


class Crew:
    """Used from the supervisor's main thread; ``output`` is called from another one."""

    def __init__(self, folder: WorkFolder, clock: Clock, output: Callable[[str], None]) -> None:
        self._folder = folder
        self._clock = clock
        self._output = output
        self._pump = LogPump()
        self._files: dict[str, LogFile] = {}
        self.posts: dict[str, Post] = {}

    def want(self, spec: ProcessSpec, final_codes: Mapping[int, int]) -> None:
        """Keep such a process alive from now on.

        A life under another specification is killed; the next one takes its place.
        """
        spec = replace(spec, environment={**spec.environment, **self._folder.mark})
        post = self.posts.get(spec.name)
        if post is None:
            self.posts[spec.name] = Post(
                spec, Restarts(final_codes), due_s=self._clock.monotonic_s()
            )
        elif post.spec != spec:
            post.spec = spec
            if post.child is not None:
                post.child.kill()
        if post is not None and post.child is None and post.due_s is None:
            # It was not wanted for a while, and had no life to end.
            post.due_s = self._clock.monotonic_s()

    def unwant(self, name: str) -> None:
        """Start no further life of a process."""
        post = self.posts.get(name)
        if post is not None:
            post.due_s = None

    def dismiss(self, names: Iterable[str], grace_s: float) -> None:
        """End processes that are not wanted any more, and forget them."""
        gone = list(names)
        self.end(gone, grace_s)
        for name in gone:
            del self.posts[name]

    def ready(self, name: str, after_s: float) -> bool:
        """Whether the present life of a process can do its work, or is so old that it should."""
        post = self.posts[name]
        if post.child is None:
            return False
        # Not Path.exists(), which raises where the folder cannot be read for a moment.
        said = post.spec.ready is None or os.path.exists(post.spec.ready)
        return said or self._clock.monotonic_s() - post.started_s >= after_s

    def start_due(self) -> tuple[list[Post], list[Failure]]:
        """Start what is due now: those that were started, and those that cannot be.

        The next try of a post that failed is up to its owner.
        """
        now = self._clock.monotonic_s()
        due = [p for p in self.posts.values() if p.due_s is not None and p.due_s <= now]
        started, failed = [], []
        for post in due:
            try:
                self._start(post)
            except (OSError, MillraceError) as error:
                failed.append(Failure(post, error))
            else:
                started.append(post)
        return started, failed

    def reap(self) -> list[Death]:
        """Lives that have ended since the last call."""
        deaths = []
        for post in self.posts.values():
            code = post.child.ended() if post.child is not None else None
            if code is not None:
                deaths.append(self._buried(post, code))
        return deaths

    def again(self, name: str, delay_s: float) -> None:
        """Start the next life of a process after a delay."""
        self.posts[name].due_s = self._clock.monotonic_s() + delay_s

    def hand_over(self, name: str, to: str) -> Child:
        """The life of one process goes on as that of another, whose own has ended."""
        giver, taker = self.posts[name], self.posts[to]
        assert giver.child is not None
        assert giver.outlet is not None
        taker.child, giver.child, taker.due_s = giver.child, None, None
        # What it waited is no life in this post.
        taker.started_s, taker.since = self._clock.monotonic_s(), giver.since
        taker.tail.clear()
        taker.outlet = giver.outlet
        taker.outlet.log, taker.outlet.shown = self._log_of(taker), Lines(self._output).write
        return taker.child

    def alive(self, role: str) -> list[str]:
        """Names of the living processes of a role."""
        return [
            name
            for name, post in self.posts.items()
            if post.spec.role == role and post.child is not None
        ]

    def child(self, name: str) -> Child | None:
        """The present life of a process."""
        post = self.posts.get(name)
        return post.child if post is not None else None

    def handles(self) -> list[int]:
        """File descriptors that become readable when a child ends."""
        return [p.child.handle for p in self.posts.values() if p.child is not None]

    def next_due_s(self) -> float | None:
        """When the next start is due."""
        return min((p.due_s for p in self.posts.values() if p.due_s is not None), default=None)

    def pids(self) -> set[int]:
        """Pids of living children and their guards."""
        children = [p.child for p in self.posts.values() if p.child is not None]
        return {pid for c in children for pid in (c.pid, c.guard) if pid}

    def rows(self) -> list[ProcessRow]:
        """Living processes as they stand in ``processes.json``."""
        return [
            ProcessRow(
                post.spec.role,
                name,
                post.child.pid,
                post.child.ticks,
                post.child.guard,
                post.since,
                post.restarts.count,
            )
            for name, post in self.posts.items()
            if post.child is not None
        ]

    def restarts(self) -> dict[str, int]:
        """How often each process was started again, those left out that never were."""
        return {n: p.restarts.count for n, p in self.posts.items() if p.restarts.count}

    def end(self, names: Iterable[str], grace_s: float) -> None:
        """End processes for good: SIGTERM, then SIGKILL where that takes over ``grace_s``."""
        posts = [self.posts[name] for name in names]
        for post in posts:
            post.due_s = None
            if post.child is not None:
                post.child.ask_to_stop()
        end_s = self._clock.monotonic_s() + grace_s
        for post in posts:
            if post.child is None:
                continue
            code = post.child.wait(max(0.0, end_s - self._clock.monotonic_s()))
            if code is None:
                post.child.kill()
                code = post.child.wait(10.0)
            self._buried(post, code if code is not None else -9)

    def close(self) -> None:
        """Write what is left of the logs; every process has been ended."""
        self._pump.close()
        for file in self._files.values():
            file.close()

    def _start(self, post: Post) -> None:
        post.due_s = None
        post.tail.clear()
        if post.spec.ready is not None:
            # What an earlier life said. A folder that takes no change takes no new word either.
            with suppress(OSError):
                post.spec.ready.unlink(missing_ok=True)
        log = self._log_of(post)
        shown = log if post.spec.ordered else Lines(self._output).write
        outlet = post.outlet = Outlet(log, shown)
        stderr = self._pump.pipe(outlet.write)
        try:
            stdout = self._pump.pipe(outlet.show) if post.spec.tree else stderr
            try:
                post.child = Child(post.spec, stdout, stderr)
            finally:
                if stdout != stderr:
                    os.close(stdout)
        finally:
            os.close(stderr)
        post.started_s = self._clock.monotonic_s()
        post.since = self._clock.now_s()

    def _log_of(self, post: Post) -> Callable[[bytes], None]:
        name = post.spec.name
        if name not in self._files:
            self._files[name] = LogFile(self._folder.logs / f"{name}.log")
        file, tail = self._files[name], Lines(post.tail.append, _TAIL_BYTES)

        def log(data: bytes) -> None:
            file.write(data)
            tail.write(data)

        return log

    def _buried(self, post: Post, code: int) -> Death:
        assert post.child is not None
        pid = post.child.pid
        post.child.close()
        post.child = None
        self._pump.settle()
        lived_s = self._clock.monotonic_s() - post.started_s
        return Death(post.spec.name, post.spec.role, pid, code, lived_s, cause_in(post.tail))


def cause_in(lines: Iterable[str]) -> str:
    """The text of the last line that reports an error, else of the last of the JVM's that does, or
    the last line at all."""
    last = cause = of_jvm = ""
    for line in lines:
        last = line.strip() or last
        if (match := _CAUSE_OF_JVM.search(line)) is not None:
            of_jvm = match["text"].strip()
        elif (match := _CAUSE.search(line)) is not None:
            cause = match["text"].strip()
    return cause or of_jvm or last


def await_any(handles: Iterable[int], timeout_s: float) -> None:
    """Sleep until one of the file descriptors is readable, or ``timeout_s`` has passed."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    poll.poll(max(0.0, timeout_s) * 1000)
