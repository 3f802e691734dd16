"""The history of a run as it lies on disk: what was fed, and what the sinks hold.

Reads bytes alone and imports nothing of the runtime: it must not share its mistakes. Nothing here
judges; ``checker`` does.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]

KINDS = ("ok", "flaky", "raise", "die")
"""What ``feed`` says of them; a line of any other kind is processed like any line."""


@dataclass(slots=True)
class Fed:
    """What was fed: every line by its id, and the words of the lines of each kind.

    ``kinds`` holds the kind of each id, in the order of the lines; a line that is fed twice would
    have to be two ids. ``firsts`` are the ids of the first lines of files, ``longest`` is how many
    words the longest line has.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    words: dict[str, Counter[str]] = field(default_factory=dict)
    buckets: dict[str, Counter[str]] = field(default_factory=dict)
    firsts: set[str] = field(default_factory=set)
    longest: int = 0

    def add(self, line: str, first: bool = False) -> None:
        """Take one line into account, the ``first`` of its file or another one. Raises
        ``ValueError`` for an id that was fed before."""
        name, kind, *words = line.split()
        kind = kind if kind in KINDS else "ok"
        if name in self.kinds:
            raise ValueError(f"line {name} was fed twice; ids must be unique in a history")
        self.kinds[name] = kind
        self.longest = max(self.longest, len(words))
        if first:
            self.firsts.add(name)
        self.words.setdefault(kind, Counter()).update(words)
        self.buckets.setdefault(kind, Counter()).update([bucket_of(name)])

    def ids(self, kinds: Iterable[str]) -> Counter[str]:
        """The ids of the lines of some kinds, each once."""
        wanted = set(kinds)
        return Counter(name for name, kind in self.kinds.items() if kind in wanted)

    def count(self, kinds: Iterable[str]) -> int:
        """How many lines of some kinds there are."""
        return self.ids(kinds).total()

    def word_counts(self, kinds: Iterable[str]) -> Counter[str]:
        """How often each word stands in the lines of some kinds."""
        return sum((self.words.get(kind, Counter()) for kind in kinds), Counter())

    def bucket_counts(self, kinds: Iterable[str]) -> Counter[str]:
        """How many lines of some kinds fall into each bucket."""
        return sum((self.buckets.get(kind, Counter()) for kind in kinds), Counter())


def bucket_of(name: str) -> str:
    """The bucket of a line: the last two digits of its id."""
    return f"b{name[-2:]}"


def read_fed(folder: Path) -> Fed:
    """Every line of the text files in a folder."""
    fed = Fed()
    for path in visible_files(folder):
        for number, line in enumerate(path.read_text().splitlines()):
            fed.add(line, first=number == 0)
    return fed


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder that a plain reader takes for data."""
    if not folder.exists():
        return []
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] in "_." for part in path.relative_to(folder).parts)
    )


def window_of(path: Path) -> int:
    """The number of the window that wrote a file of a sink: the first number of its name."""
    number = re.search(r"\d+", path.name)
    if number is None:
        raise ValueError(f"{path}: its name carries no window number")
    return int(number[0])


@dataclass(frozen=True, slots=True)
class Shown:
    """One row that a sink shows, with the window that its file names."""

    window: int
    row: Row


def read_rows(folder: Path) -> list[Shown]:
    """The rows of a files sink, in the order of the windows that wrote them."""
    files = sorted(visible_files(folder), key=lambda path: (window_of(path), path.name))
    return [Shown(window_of(path), row) for path in files for row in rows_of(path)]


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of one JSON-lines, CSV or Parquet file."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq

        yield from pq.read_table(path).to_pylist()
    else:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def read_hashes(client: Any, prefix: str) -> dict[str, dict[str, str]]:
    """The hashes of a Redis-protocol server whose names begin with ``prefix``, by the rest of it.

    ``client`` is any client with ``scan_iter`` and ``hgetall`` that answers in bytes.
    """
    found = {}
    for key in client.scan_iter(match=f"{prefix}*", count=1000, _type="hash"):
        fields = client.hgetall(key)
        name = key.decode().removeprefix(prefix)
        found[name] = {k.decode(): v.decode() for k, v in fields.items()}
    return found


def read_stream(client: Any, name: str) -> list[Row]:
    """The entries of a stream, oldest first."""
    return [
        {k.decode(): v.decode() for k, v in fields.items()} for _, fields in client.xrange(name)
    ]
