"""A worker that has just started reads of a large state what its window touches, and no more."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from engine_support import Windows, write_lines

from millrace.engine.program.kit import Kit, store
from millrace.engine.task import worker
from millrace.protocol.types import Segment
from millrace.state.client import StateClient, connect
from millrace.state.keyed import chunks, query
from millrace.state.keyed.cache import SMALL_BYTES
from millrace.state.keyed.loading import Extent

K = 16
WORDS = [hashlib.shake_128(b"%d" % n).hexdigest(60) for n in range(44_000)]
LINES = [" ".join(WORDS[at : at + 500]) for at in range(0, len(WORDS), 500)]

SPEC = f"""
keyGroups: {K}
sources: [{{name: lines, files: {{path: texts}}}}]
processors:
  - {{name: split, function: "wordsteps:split_batch", inputs: [{{from: lines}}]}}
  - {{name: counts, inputs: [{{from: split, key: [word]}}], PROCESSOR}}
sinks:
  - name: totals
    inputs: [{{from: counts}}]
    files: {{path: totals, format: jsonLines}}
"""
PROCESSORS = {
    "aggregate": "aggregate: {columns: [{name: n, function: count}]}",
    "function": 'function: "wordsteps:running_count"',
    "grouped": 'function: "wordsteps:grouped_count"',
}


def group_of(word: str) -> int:
    return query.group_of([pa.array([word])], K)


class Reads:
    """Parts of objects that are read from the state server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[tuple[str, int, int]] = []
        get_parts = StateClient.get_parts

        def noted(client, stamp, parts):
            self.parts += parts
            return get_parts(client, stamp, parts)

        monkeypatch.setattr(StateClient, "get_parts", noted)

    def groups_in(self, run: Windows) -> set[int]:
        """Key groups of which rows were read, and nothing but rows and ends of objects."""
        found: set[int] = set()
        for name, start, size in self.parts:
            data = self.stored(run, name)
            read = chunks.read_index(data, len(data))
            if read is None:
                [segment] = [s for s in run.chains["counts"] if s.name == name]
                found |= {g for g in range(K) if segment.groups >> g & 1}
                continue
            for chunk in read[0].chunks:
                if start <= chunk.start and chunk.start + chunk.size <= start + size:
                    found |= {group for group, _ in chunk.spans}
        return found

    def size_bytes(self, run: Windows) -> int:
        return sum(
            min(size, len(self.stored(run, name)) - start) for name, start, size in self.parts
        )

    def stored(self, run: Windows, name: str) -> bytes:
        [found] = connect(run.address, run.program.uid).get(None, [name])
        return found.data


def restart() -> None:
    """What a worker process knows goes with it."""
    worker._PROCESS.clear()


def counted(run: Windows, tmp_path, words: list[str], name: str) -> dict[str, int]:
    write_lines(tmp_path, [" ".join(words)], name)
    outcome = run.go()
    assert outcome.verdict.complete
    return {row["word"]: row["n"] for row in outcome.rows["totals"]}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_first_window_reads_the_key_groups_that_it_touches(
    windows, tmp_path, monkeypatch, processor, whole
):
    write_lines(tmp_path, LINES)
    run = windows(SPEC.replace("PROCESSOR", PROCESSORS[processor]), whole)
    run.go()
    mine = [WORDS[0], next(w for w in WORDS if group_of(w) % 2 != group_of(WORDS[0]) % 2)]
    other = next(w for w in WORDS if group_of(w) not in map(group_of, mine))
    assert counted(run, tmp_path, [other], "b.txt") == {other: 2}
    assert counted(run, tmp_path, mine[:1], "c.txt") == {mine[0]: 2}

    restart()
    reads = Reads(monkeypatch)
    assert counted(run, tmp_path, mine, "d.txt") == {mine[0]: 3, mine[1]: 2}
    chain = run.chains["counts"]
    stored = sum(segment.size_bytes for segment in chain[:-2])
    assert stored > 2 * SMALL_BYTES
    assert reads.groups_in(run) == {group_of(word) for word in mine}
    assert reads.size_bytes(run) < stored * 3 / K
    of_other = [s.name for s in chain if s.rows == 1 and s.groups == 1 << group_of(other)]
    assert of_other
    assert not {name for name, _, _ in reads.parts} & set(of_other)

    # What is there already is not read again; what comes to it is.
    reads.parts.clear()
    assert counted(run, tmp_path, mine, "e.txt") == {mine[0]: 4, mine[1]: 3}
    assert reads.parts == []
    assert counted(run, tmp_path, [other, mine[1]], "f.txt") == {other: 3, mine[1]: 4}
    assert reads.groups_in(run) == {group_of(other)}
    expected = Counter([*WORDS, *WORDS, *mine, *mine, *mine, other, other])
    assert counted(run, tmp_path, WORDS, "g.txt") == expected
    reads.parts.clear()
    assert counted(run, tmp_path, [other], "h.txt") == {other: expected[other] + 1}
    assert reads.parts == []

    # Another server joins, with a password of its own: what a worker has stays with it.
    passwords = {**run.services.passwords, "state-7": "another"}
    run.kit = store(Kit(run.program, passwords), tmp_path / "kit")
    assert counted(run, tmp_path, [other], "i.txt") == {other: expected[other] + 2}
    assert reads.parts == []
    assert worker._PROCESS[str(run.kit)].passwords == passwords


def test_an_attempt_that_is_run_again_reads_nothing_twice_and_counts_once(
    windows, tmp_path, monkeypatch
):
    write_lines(tmp_path, LINES)
    run = windows(SPEC.replace("PROCESSOR", PROCESSORS["aggregate"]))
    run.go()
    restart()
    write_lines(tmp_path, [WORDS[0]], "b.txt")
    intent = run.plan()
    run.attempt(intent)
    reads = Reads(monkeypatch)
    run.seal(run.attempt(intent))
    assert reads.parts == []
    assert counted(run, tmp_path, [WORDS[0]], "c.txt") == {WORDS[0]: 3}


def test_totals_at_the_end_are_those_of_the_whole_state(windows, tmp_path, monkeypatch):
    write_lines(tmp_path, [*LINES, WORDS[0]])
    spec = SPEC.replace("PROCESSOR", PROCESSORS["aggregate"].replace("{", "{emit: final, ", 1))
    run = windows(spec.replace("path: texts", "path: texts, watch: false"))
    run.seal(run.attempt(run.plan(len(LINES))))
    restart()
    reads = Reads(monkeypatch)
    assert run.go().rows["totals"] == []
    assert reads.groups_in(run) == {group_of(WORDS[0])}
    final = run.attempt(replace(run.plan(), final=True))
    totals = {row["word"]: row["n"] for row in final.rows["totals"]}
    assert totals == {**dict.fromkeys(WORDS, 1), WORDS[0]: 2}


def test_parts_know_whether_they_are_intact() -> None:
    segments = Extent(Segment("a", 1, 0b11, True, digest=chunks.digest_of(b"whole")))
    assert segments.is_intact(b"whole")
    assert not segments.is_intact(b"whale")
    # Of these there is no digest.
    assert Extent(Segment("a", 1, 0b11, True)).is_intact(b"anything")
    assert replace(segments, size=3).is_intact(b"who")
    run = tuple(
        chunks.Chunk(start, 2, chunks.digest_of(data), ())
        for start, data in ((4, b"ab"), (6, b"cd"))
    )
    part = replace(segments, start=4, size=4, chunks=run)
    assert part.is_intact(b"abcd")
    assert not part.is_intact(b"abcx")
    assert not part.is_intact(b"abc")
