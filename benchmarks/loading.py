"""What the tasks of a first window after a restart load: ``make bench NAME=loading``.

The part of a recovery that depends on the state that is there, without Spark and in one process: a
count by key is written to a state server in windows of 200,000 keys, as tasks of two partitions
write it. Then a cache that is empty opens both halves for a window that touches ten keys, and once
more for one that needs everything. Printed are bytes read from the server, and CPU and elapsed
seconds of this process; the counts of the ten keys are compared with what was fed. In the end the
state server is killed, and started on its file: ``server`` is how long it takes until it answers.

State is counted as in the benchmark of recovery. The last line is one JSON object by size.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from keyedrun import KEYS_A_LINE, LINES_A_WINDOW, TOTAL_BYTES, TOUCHED
from measure import last_line, machine, stop_cleanly
from recovery_functions import KEY_BYTES, spread

from millrace.protocol.record import extend
from millrace.protocol.types import Segment, Stamp
from millrace.state.client import StateClient
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.cache import StateCache, StateKey
from millrace.state.keyed.keys import hash_keys, key_groups, mask_of
from millrace.state.keyed.loading import Extent
from millrace.state.servers import WHOLE, ObjectPart, StateAccess, StateObject, StateServers
from millrace_e2e.embedded import started

GROUPS = 128
PARTITIONS = 2
MASKS = [sum(1 << g for g in range(p, GROUPS, PARTITIONS)) for p in range(PARTITIONS)]
SCHEMA = pa.schema([("key", pa.string())])
STAMP = Stamp(1, 1)
ROOM = 8 << 30


class Counts:
    """The chain of a count by key on a state server; ``read_bytes`` is what was loaded of it."""

    def __init__(self, servers: StateServers) -> None:
        self.servers = servers
        self.chain: tuple[Segment, ...] = ()
        self.read_bytes = 0

    def fill(self, lines: int) -> None:
        """Count every key of so many lines once, in windows."""
        cache = StateCache(ROOM)
        for window, first in enumerate(range(0, lines, LINES_A_WINDOW), start=1):
            numbers = range(first, min(first + LINES_A_WINDOW, lines))
            rows = keys_of([f"{n * KEYS_A_LINE} {KEYS_A_LINE}" for n in numbers])
            groups = groups_of(rows)
            written = []
            for partition, mask in enumerate(MASKS):
                mine = rows.take(pa.array(np.flatnonzero(groups % PARTITIONS == partition)))
                opened = cache.open(key(mask), self.chain, empty, self.load)
                opened.state.update(mine)
                for segment, data in opened.write(f"{window}.{partition}", window):
                    self.servers.put([StateObject(segment.name, data, segment.groups)])
                    written.append(("counts", segment))
            self.chain = extend({"counts": self.chain}, written)["counts"]

    def load(self, extents: Sequence[Extent]) -> Sequence[bytes]:
        found = self.servers.get_parts(
            [
                ObjectPart(e.segment.name, e.segment.groups, e.start, e.size or WHOLE)
                for e in extents
            ]
        )
        self.read_bytes += sum(map(len, found))
        return found

    def first_window(self, touched: Callable[[], int] | None) -> tuple[float, float, float]:
        """MB read, and seconds of CPU and by the clock, of a process that has nothing yet."""
        self.read_bytes = 0
        cache = StateCache(ROOM)
        begun, begun_cpu = time.monotonic(), time.process_time()
        states = [cache.open(key(m), self.chain, empty, self.load, touched).state for m in MASKS]
        took, cpu = time.monotonic() - begun, time.process_time() - begun_cpu
        rows = keys_of([f"0 {TOUCHED}"])
        groups = groups_of(rows)
        for partition, state in enumerate(states):
            mine = rows.take(pa.array(np.flatnonzero(groups % PARTITIONS == partition)))
            if state.rows(state.update(mine)).column("n").to_pylist() != [2] * mine.num_rows:
                raise SystemExit("keys that were fed twice have another count")
        return self.read_bytes / 1e6, cpu, took


def key(mask: int) -> StateKey:
    return StateKey("loading", "counts", mask)


def empty() -> AggregateState:
    return AggregateState(SCHEMA, ["key"], [Aggregate("n", "count")], GROUPS)


def keys_of(lines: list[str]) -> pa.RecordBatch:
    """The keys that lines name, as the processor of the benchmark of recovery gives them."""
    columns, _ = spread(pa.RecordBatch.from_pydict({"value": lines}))
    return pa.RecordBatch.from_arrays([columns["key"]], schema=SCHEMA)


def groups_of(rows: pa.RecordBatch) -> np.ndarray:
    return key_groups(hash_keys([rows.column(0)]), GROUPS)


def main() -> None:
    """Measure every size and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100, 500], help="in MB")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    result: dict[str, float] = {}
    touched = mask_of(groups_of(keys_of([f"0 {TOUCHED}"])))
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(Path(folder), size, touched)
        result |= {f"{size}_mb_{name}": round(value, 3) for name, value in found.items()}
    last_line(result)


def measured(folder: Path, size_mb: int, touched: int) -> dict[str, float]:
    """Figures of one size."""
    result: dict[str, float] = {}
    with started(folder) as server:
        client = StateClient(server.address, "loading")
        client.stamp(STAMP)
        owners = ((server.address.name,),) * GROUPS
        servers = StateServers(StateAccess("loading", STAMP, (server.address,), owners))
        counts = Counts(servers)
        counts.fill(max(1, round(size_mb * 1e6 / (KEY_BYTES + TOTAL_BYTES) / KEYS_A_LINE)))
        stored = sum(segment.size_bytes for segment in counts.chain) / 1e6
        print(f"  {size_mb:4d} MB, {len(counts.chain)} objects of {stored:.1f} MB")
        for name, asked in (("touched", lambda: touched), ("whole", None)):
            read, cpu, took = counts.first_window(asked)
            print(f"    {name}: read {read:.1f} MB, {cpu:.2f} s of CPU, {took:.2f} s", flush=True)
            result |= {f"{name}_read_mb": read, f"{name}_cpu_s": cpu}
        servers.close()
        client.close()
        server.kill()
    begun = time.monotonic()
    with started(folder):
        result["server_s"] = time.monotonic() - begun
    print(f"    server: {result['server_s']:.2f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
