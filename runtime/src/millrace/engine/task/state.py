"""A task's keyed state: opened as of the sealed chain, written under the task's own names.

State is cut in *shards*, the key groups of one partition (group modulo parallelism), also where
one task plays all partitions: so what a process keeps fits whichever way the next window runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace import crash
from millrace.engine.program.program import Component
from millrace.engine.task.context import Task
from millrace.modes import NODE_VARIABLE
from millrace.protocol.types import Segment
from millrace.state.client import StateAddress
from millrace.state.keyed.cache import OpenState, StateCache, StateKey, Touched
from millrace.state.keyed.chunks import digest_of
from millrace.state.keyed.loading import Extent
from millrace.state.servers import WHOLE, ObjectPart, StateAccess, StateObject, StateServers


@dataclass(frozen=True, slots=True)
class Services:
    """What tasks reach outside: the state servers, and the server that holds the ack log."""

    access: StateAccess
    log: StateAddress | None = None

    @property
    def passwords(self) -> dict[str, str]:
        """Passwords by the names of the servers; they do not travel with the services."""
        addresses = [*self.access.addresses, *([self.log] if self.log is not None else [])]
        return {a.name: a.password for a in addresses if a.password is not None}

    def known(self, passwords: Mapping[str, str]) -> Services:
        """The same with the passwords put in."""

        def opened(address: StateAddress) -> StateAddress:
            return replace(address, password=passwords.get(address.name))

        addresses = tuple(opened(address) for address in self.access.addresses)
        log = opened(self.log) if self.log is not None else None
        return Services(replace(self.access, addresses=addresses), log)


class StateHost:
    """What a process keeps between tasks: cached states and connections."""

    def __init__(self) -> None:
        self.cache = StateCache()
        self._servers: dict[StateAccess, StateServers] = {}

    def servers(self, access: StateAccess) -> StateServers:
        found = self._servers.get(access)
        if found is None:
            for old in self._servers.values():
                old.close()
            found = StateServers(access, node=os.environ.get(NODE_VARIABLE))
            self._servers = {access: found}
        return found


class TaskState:
    """Keyed state of one task attempt, all processors together."""

    def __init__(self, task: Task, access: StateAccess, host: StateHost) -> None:
        self._task = task
        self._host = host
        self._access = replace(access, stamp=task.plan.stamp)
        self._opened: dict[tuple[str, int], OpenState[Any]] = {}

    def open(
        self,
        component: Component,
        shard: int,
        make: Callable[[], Any],
        touched: Touched | None = None,
    ) -> Any:
        """The state of one shard of a processor; ``make`` gives an empty one.

        At least the key groups ``touched`` of it are there, None: all; ``touched`` must cover
        whatever the task does with it. Raises ``EngineError`` where a second call wants more.
        """
        found = self._opened.get((component.name, shard))
        if found is None:
            program, plan = self._task.program, self._task.plan
            key = StateKey(program.uid, component.name, self._mask(shard))
            chain = plan.chains.get(component.name, ())
            found = self._host.cache.open(
                key, chain, make, self._load, touched, plan.intent.time_ms, plan.learning
            )
            self._opened[component.name, shard] = found
        elif not found.whole:
            found.require(found.key.groups & (-1 if touched is None else touched()))
        return found.state

    def servers(self) -> StateServers:
        """The state servers, under the stamp of the task's plan."""
        return self._host.servers(self._access)

    def shards(self) -> list[int]:
        """The shards that this task has."""
        if self._task.partitions == 1:
            return list(range(self._task.program.parallelism))
        return [self._task.id.partition]

    def write(self) -> tuple[tuple[str, Segment], ...]:
        """Store what changed on its owners; (processor, segment) of each object."""
        objects: list[StateObject] = []
        segments: list[tuple[str, Segment]] = []
        for (name, shard), opened in self._opened.items():
            written = opened.write(self._object(name, shard), self._task.plan.id.window)
            for segment, data in written:
                segments.append((name, segment))
                objects.append(StateObject(segment.name, data, segment.groups))
        if objects:
            self.servers().put(objects)
            crash.reached("worker.state-written")
        return tuple(segments)

    def _mask(self, shard: int) -> int:
        program = self._task.program
        return sum(1 << g for g in range(shard, program.key_groups, program.parallelism))

    def _object(self, name: str, shard: int) -> str:
        return self._task.object_name("state", f"{name}.{shard}")

    def _load(self, parts: Sequence[Extent]) -> Sequence[bytes]:
        wanted = []
        for part in parts:
            segment = part.segment
            size = part.size or segment.size_bytes or WHOLE
            asked = ObjectPart(segment.name, segment.groups, part.start, size, part.is_intact)
            wanted.append(asked)
        return self.servers().get_parts(wanted)


class TaskStaging:
    """Where a sink without files of its own keeps a task's staged rows: objects.

    ``servers`` gives the state servers under the task's stamp.
    """

    def __init__(self, servers: Callable[[], StateServers]) -> None:
        self._servers = servers

    def put(self, name: str, data: bytes) -> None:
        self._servers().put([StateObject(name, data)])

    def get(self, name: str, digest: str) -> bytes:
        whole = ObjectPart(name, is_intact=lambda data: digest_of(data) == digest)
        return self._servers().get_parts([whole])[0]
