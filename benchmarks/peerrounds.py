"""Rounds of ``peers.py``: what is fed to a side, what it shows of that, and the count of both."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow.json
from arrival import Shown
from corpus import Corpus
from measure import SETTLE_S
from peersides import BytewaxSide, PeerSide

STEP_WORDS = 2_000_000
ROUND_S = 600.0
LATE_S = 60.0
_LOOK_S = 0.002
_MARK = re.compile(rb'"(mark\d+x\d+)"')


class Side(Protocol):
    """Reads files that come into a folder, shows totals in another one."""

    name: str
    output: Path

    def cpu_s(self) -> float: ...

    def stop(self) -> None: ...


class Totals(Protocol):
    """What comes into a folder of totals."""

    def more(self) -> Iterable[bytes]:
        """JSON lines that were not there before; waits for some, though not for ever."""
        ...


@dataclass(frozen=True)
class Done:
    """One side's round: by the clock and of CPU, in seconds, for so many words."""

    wall_s: float
    cpu_s: float
    words: int

    @property
    def words_per_s(self) -> float:
        return self.words / self.wall_s

    @property
    def step_cpu_s(self) -> float:
        """CPU of two million words."""
        return self.cpu_s / self.words * STEP_WORDS


def rest(side: Side) -> None:
    """Have a peer take nothing from the others, which its checkpoints would."""
    if isinstance(side, PeerSide):
        side.rest()


def wake(side: Side) -> None:
    """Before its turn."""
    if isinstance(side, PeerSide):
        side.wake()


def stop(side: Side) -> None:
    """Also one that rests."""
    wake(side)
    side.stop()


class Texts:
    """Files that are fed round by round; the last line of each is a mark of that round."""

    def __init__(self, texts: Corpus) -> None:
        self.name = texts.name
        self.lines = texts.lines
        self._bodies = [b"".join(_but_last(path)) for path in texts.files]
        self.counts: Counter[str] = Counter()
        for body in self._bodies:
            self.counts.update(map(bytes.decode, body.split()))
        self.words = self.counts.total() + len(self._bodies)

    def write(self, number: int, folder: Path) -> tuple[list[Path], list[str]]:
        """The files of a round, by names that sort as they come, and their marks."""
        folder.mkdir(exist_ok=True)
        files, marks = [], []
        for index, body in enumerate(self._bodies):
            files.append(folder / f"{number:05d}-{index:05d}.txt")
            marks.append(f"mark{number}x{index}")
            files[-1].write_bytes(body + marks[-1].encode() + b"\n")
        return files, marks


def _but_last(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)[:-1]


class Ledger:
    """A count of what a side was fed, and the totals that it showed.

    Totals only grow, so that the last one shown of a word is its largest.
    """

    def __init__(self) -> None:
        self._fed: Counter[str] = Counter()
        self._shown: dict[str, int] = {}

    def feed(self, counts: Mapping[str, int]) -> None:
        for word, count in counts.items():
            self._fed[word] += count

    def show(self, lines: bytes) -> None:
        """Take up totals as JSON lines, of ``word`` and ``n``."""
        if not lines:
            return
        rows = pyarrow.json.read_json(io.BytesIO(lines)).group_by("word").aggregate([("n", "max")])
        shown = self._shown
        for word, n in zip(rows["word"].to_pylist(), rows["n_max"].to_pylist(), strict=True):
            if shown.get(word, 0) < n:
                shown[word] = n

    def different(self) -> dict[str, tuple[int | None, int | None]]:
        """Words whose total is wrong, with what it should be and what was shown."""
        if self._fed == self._shown:
            return {}
        words = self._fed.keys() | self._shown.keys()
        both = {word: (self._fed.get(word), self._shown.get(word)) for word in words}
        return {word: pair for word, pair in both.items() if pair[0] != pair[1]}


class Runner:
    """Feeds one side, and reads what it shows."""

    def __init__(self, side: Side, texts: Texts, totals: Totals) -> None:
        self.side = side
        self._texts = texts
        self._totals = totals
        self._ledger = Ledger()

    def round(self, number: int) -> Done:
        """All files at once. Raises ``SystemExit`` when totals are late or wrong."""
        folder = self.side.output.parent
        files, marks = self._texts.write(number, folder / "drafts")
        wake(self.side)
        cpu_s = self.side.cpu_s()
        begin_s = time.monotonic()
        for file in files:
            file.rename(folder / "input" / file.name)
        shown = self._until(marks, begin_s + ROUND_S)
        wall_s = time.monotonic() - begin_s
        time.sleep(SETTLE_S)
        cpu_s = self.side.cpu_s() - cpu_s
        self._ledger.feed(self._texts.counts)
        self._ledger.feed(dict.fromkeys(marks, 1))
        self._ledger.show(b"".join(shown))
        self._compare()
        rest(self.side)
        return Done(wall_s, cpu_s, self._texts.words)

    def _until(self, marks: Sequence[str], deadline_s: float) -> list[bytes]:
        wanted = {mark.encode() for mark in marks}
        shown = []
        while wanted:
            for lines in self._totals.more():
                shown.append(lines)
                wanted.difference_update(_MARK.findall(lines))
            if isinstance(self.side, PeerSide):
                self.side.alive()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.side.name} shows no end of a round: {sorted(wanted)}")
        return shown

    def _compare(self) -> None:
        deadline_s = time.monotonic() + LATE_S
        while different := self._ledger.different():
            if time.monotonic() > deadline_s:
                some = dict(sorted(different.items())[:5])
                raise SystemExit(
                    f"{self.side.name} is wrong on {len(different)} words (expected, found): {some}"
                )
            for lines in self._totals.more():
                self._ledger.show(lines)


class Grown:
    """What is appended to the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def more(self) -> Iterator[bytes]:
        """Whole lines that were not there before."""
        time.sleep(_LOOK_S)
        for path in self._folder.iterdir():
            read = self._read.get(path, 0)
            if path.stat().st_size > read:
                with path.open("rb") as file:
                    file.seek(read)
                    lines, _, _ = file.read().rpartition(b"\n")
                if lines:
                    self._read[path] = read + len(lines) + 1
                    yield lines + b"\n"


def totals_of(side: Side) -> Totals:
    """How a side shows its totals: by files that appear, or that grow."""
    return Grown(side.output) if isinstance(side, BytewaxSide) else Shown(side.output)
