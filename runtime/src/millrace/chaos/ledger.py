"""What the sinks hold beside what they should hold: read from files or from a Redis-protocol
server, judged as plain rows.

Nothing of the runtime is imported here: it must not share its mistakes.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

_SHOWN = 5


class UnreadableError(Exception):
    """Rows that cannot be read, or that have no place to be compared."""


@dataclass(frozen=True, slots=True)
class SinkVerdict:
    """How many rows of a sink are lost, doubled, or there though nobody expects them (``wrong``).

    ``examples`` are lines for people, a few of each. Of ``totals`` only the last row of each key
    was compared.
    """

    expected: int
    seen: int
    lost: int
    duplicated: int
    wrong: int
    examples: tuple[str, ...] = ()
    totals: bool = False

    @property
    def exact(self) -> bool:
        """Whether the sink holds what it should and nothing else."""
        return not (self.lost or self.duplicated or self.wrong)


def read_rows(folder: Path) -> list[Row]:
    """The rows of all files of a folder that a plain reader takes for data, in the order of their
    names, which is that of the windows. Raises ``UnreadableError``."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] in "_." for part in path.relative_to(folder).parts)
    )
    try:
        return [row for path in files for row in _rows_of(path)]
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{folder}: cannot be read as rows ({error})") from error


def _rows_of(path: Path) -> Iterator[Row]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
    elif path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        yield from parquet.read_table(path).to_pylist()
    else:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def read_hashes(url: str, template: str, password: str | None = None) -> list[Row]:
    """The hashes of a Redis-protocol server whose keys are like ``wc:{word}``: a row each, with the
    columns of the key and a column for each field, all as texts. ``password`` counts where ``url``
    has none. Raises ``UnreadableError``."""
    parts = re.split(r"\{([^{}]*)\}", template)
    pattern = "".join(
        re.escape(part) if at % 2 == 0 else "(.*)" if at == len(parts) - 2 else "(.*?)"
        for at, part in enumerate(parts)
    )
    glob = "*".join(re.sub(r"([\\*?\[\]])", r"\\\1", part) for part in parts[::2])

    def rows(client: Any) -> Iterator[Row]:
        for key in sorted(client.scan_iter(glob, count=1000, _type="hash")):
            name = key.decode(errors="backslashreplace")
            found = re.fullmatch(pattern, name, re.DOTALL)
            if found is not None and not name.startswith("millrace:"):
                fields = client.hgetall(key).items()
                yield {**dict(zip(parts[1::2], found.groups(), strict=True)), **_texts(fields)}

    return _of_server(url, password, rows)


def read_stream(url: str, stream: str, password: str | None = None) -> list[Row]:
    """The entries of a stream in their order: a row each, all values as texts. ``password`` counts
    where ``url`` has none. Raises ``UnreadableError``."""

    def rows(client: Any) -> Iterator[Row]:
        after = b"-"
        while entries := client.xrange(stream, min=after, count=1000):
            yield from (_texts(fields.items()) for _, fields in entries)
            after = b"(" + entries[-1][0]

    return _of_server(url, password, rows)


def _of_server(url: str, password: str | None, rows: Callable[[Any], Iterator[Row]]) -> list[Row]:
    import redis

    try:
        with redis.Redis.from_url(
            url, password=password, socket_timeout=30, socket_connect_timeout=5
        ) as client:
            return list(rows(client))
    except (redis.RedisError, OSError, ValueError) as error:
        # An address may hold a password, also where an error repeats it.
        where = url.rpartition("@")[2].partition("?")[0]
        raise UnreadableError(f"{where}: cannot be read ({type(error).__name__})") from None


def _texts(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    how = "backslashreplace"
    return {name.decode(errors=how): value.decode(errors=how) for name, value in fields}


def judge(expected: Iterable[Row], seen: Iterable[Row], last: Sequence[str] = ()) -> SinkVerdict:
    """Compare rows as a bag; with ``last`` only the last row of each key of these columns counts.

    A row that is there more often than expected is a duplicate; one that nobody expects is wrong.
    With ``last`` a key is lost that has no row, or one whose numbers are all smaller where they
    differ, as when records were not counted; it is a duplicate where they are all greater, and
    wrong with any other row. Raises ``UnreadableError`` for rows without these columns.
    """
    wanted, found = list(expected), list(seen)
    if last:
        return _judge_last(_latest(wanted, last), _latest(found, last), len(found))
    return _judge_bag(Counter(map(_text, wanted)), Counter(map(_text, found)))


def _judge_bag(wanted: Counter[str], found: Counter[str]) -> SinkVerdict:
    lost = wanted - found
    more = found - wanted
    doubled = {row: count for row, count in more.items() if row in wanted}
    wrong = {row: count for row, count in more.items() if row not in wanted}
    return SinkVerdict(
        wanted.total(),
        found.total(),
        lost.total(),
        sum(doubled.values()),
        sum(wrong.values()),
        (*_examples("lost", lost), *_examples("twice", doubled), *_examples("wrong", wrong)),
    )


def _judge_last(wanted: Mapping[str, Row], found: Mapping[str, Row], seen: int) -> SinkVerdict:
    lost = {_text(row): 1 for key, row in wanted.items() if key not in found}
    doubled: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for key, row in found.items():
        due = wanted.get(key)
        if due is None:
            wrong[_text(row)] = 1
        elif _text(due) != _text(row):
            less = _less(row, due)
            among = wrong if less is None else lost if less else doubled
            among[f"{_text(row)}, expected {_text(due)}"] = 1
    examples = (
        *_examples("lost", lost),
        *_examples("doubled", doubled),
        *_examples("wrong", wrong),
    )
    counts = len(lost), len(doubled), len(wrong)
    return SinkVerdict(len(wanted), seen, *counts, examples, totals=True)


def _less(row: Row, due: Row) -> bool | None:
    """Whether all numbers that differ are smaller in the first one, or all greater; None where it
    is neither."""
    if row.keys() != due.keys():
        return None
    differing = [(_number(row[name]), _number(due[name])) for name in row if row[name] != due[name]]
    signs = {None if one is None or other is None else one < other for one, other in differing}
    return signs.pop() if len(signs) == 1 else None


def _number(value: object) -> float | None:
    """Redis-protocol servers and CSV files hold numbers as texts."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _latest(rows: Iterable[Row], columns: Sequence[str]) -> dict[str, Row]:
    latest = {}
    for row in rows:
        missing = [name for name in columns if name not in row]
        if missing:
            raise UnreadableError(f"a row has no column {missing[0]!r}: {_text(row)[:200]}")
        latest[_text({name: row[name] for name in columns})] = row
    return latest


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def _examples(what: str, rows: Mapping[str, int]) -> list[str]:
    return [
        f"{what}{f' ({count} times)' if count > 1 else ''}: {row[:200]}"
        for row, count in sorted(rows.items())[:_SHOWN]
    ]
