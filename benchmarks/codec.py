"""What it takes to write and to read a record, as every seal and every start does.

Three records: ``few`` as of one processor on four deltas, ``usual`` of three processors with
sixteen blobs each, ``large`` with 500 files in its offsets and 200 replays. Every figure is the
least of many calls in this process, in milliseconds; what is read is compared with what was
written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from measure import machine

from millrace.protocol import codec
from millrace.protocol.types import (
    Cohort,
    Components,
    Intent,
    Record,
    Replay,
    RootRange,
    Sealed,
    Segment,
    Staged,
    Tag,
    Totals,
)

WINDOW = 1000


def segments(processor: str, shards: int, length: int) -> tuple[Segment, ...]:
    """Chains of ``length`` blobs for each of ``shards`` shares of 128 key groups."""
    return tuple(
        Segment(
            f"3.{WINDOW + n}.1.1.{shard}.0/state/{processor}.{shard}",
            WINDOW + n,
            sum(1 << group for group in range(shard, 128, shards)),
            n == 0,
            1234,
            56789,
            "ab" * 16,
        )
        for shard in range(shards)
        for n in range(length)
    )


def locator(number: int) -> dict[str, Any]:
    """Where a piece of a file is found, as the files source writes it."""
    return {
        "entry": number,
        "path": f"/data/input/file-{number:05d}.log",
        "inode": 123456 + number,
        "first": "ab" * 16,
        "size": 123456,
        "blocks": [[0, 65536, "ef" * 8], [65536, 1200, "aa" * 8]],
    }


def record(processors: int, shards: int, length: int, files: int, replays: int) -> Record:
    """A record in the midst of a run."""
    partition = 1 << 63
    waiting = tuple(
        Replay("lines", partition, n, 1, 1.5, locator(0), "split", "ValueError: no", True)
        for n in range(replays)
    )
    staged = tuple(
        Staged("out", f"3.{WINDOW}.1.1.{n}.0/out/out", "cd" * 16, 1234, 56789) for n in range(2)
    )
    ranges = tuple(RootRange("lines", partition + n, 1 << 20, 20000, locator(n)) for n in (0, 1))
    names = [f"p{n}" for n in range(processors)]
    return Record(
        uid="ab" * 16,
        tag=Tag(1, 3, 2, WINDOW),
        sealed=WINDOW,
        offsets={"lines": {"entries": [locator(n) for n in range(files)]}},
        intents=(Intent(WINDOW + 1, ranges),),
        chains={name: segments(name, shards, length) for name in names},
        replays=waiting,
        dead=(),
        unpublished=(Sealed(WINDOW, "ef" * 16, staged),),
        published=WINDOW - 1,
        totals=Totals(10**8, WINDOW, 3, 2, 1),
        cohorts=(Cohort(WINDOW, 20000, 19999, 1),),
        components=Components(1, {"lines": 0}, dict.fromkeys(names, 0), {"out": 0}),
    )


RECORDS = {
    "few": record(1, 1, 4, 1, 0),
    "usual": record(3, 2, 8, 1, 0),
    "large": record(5, 8, 20, 500, 200),
}


def least_ms(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit into some seconds."""
    times = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - began_s)
    return 1000 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    seconds = parser.parse_args().seconds
    print(machine())
    figures = {}
    for name, value in RECORDS.items():
        data = codec.encode_record(value)
        if codec.decode_record(data) != value:
            raise SystemExit(f"{name}: what is read is not what was written")
        encode_ms = least_ms(lambda value=value: codec.encode_record(value), seconds)  # type: ignore[misc]
        decode_ms = least_ms(lambda data=data: codec.decode_record(data), seconds)  # type: ignore[misc]
        print(f"{name:8} {len(data):8} bytes: written {encode_ms:.3f} ms, read {decode_ms:.3f} ms")
        figures[name] = {"bytes": len(data), "encodeMs": encode_ms, "decodeMs": decode_ms}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
