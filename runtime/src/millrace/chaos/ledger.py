"""What the sinks hold beside what they should hold: read from files or from a Redis-protocol
server, judged as plain rows.

Nothing of the runtime is imported here: it must not share its mistakes.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Row = Mapping[str, Any]

_Found = TypeVar("_Found")

_SHOWN = 5

_PART = re.compile(r"part-(\d+)-\d+\..*")

# Without this a field of more than 131,072 characters ends a reader.
csv.field_size_limit(2**31 - 1)


class UnreadableError(Exception):
    """Rows that cannot be read, or that have no place to be compared."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sink holds: its rows and the window that showed each of them, in their order.

    ``windows`` is None where the sink does not tell.
    """

    rows: list[Row]
    windows: list[int] | None = None


@dataclass(frozen=True, slots=True)
class RunningTotals:
    """What is known of rows of which the last one of each ``key`` counts.

    ``counts`` are the columns that count records. ``once``: a window shows a key once at most.
    ``rising``: each row of a key counts more than the one before it.
    """

    key: tuple[str, ...]
    counts: tuple[str, ...] = ()
    once: bool = False
    rising: bool = False


@dataclass(frozen=True, slots=True)
class SinkVerdict:
    """How many rows of a sink are lost, doubled, or there though nobody expects them (``wrong``).

    ``examples`` are lines for people, a few of each. Of ``totals`` only the last row of each key
    was compared with what is expected.
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


def read_rows(folder: Path) -> Seen:
    """The rows of all files of a folder that a plain reader takes for data, in the order of their
    names, which is that of the windows. Raises ``UnreadableError``."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] in "_." for part in path.relative_to(folder).parts)
    )
    named = [_PART.fullmatch(path.name) for path in files]
    rows: list[Row] = []
    windows: list[int] = []
    try:
        for path, name in zip(files, named, strict=True):
            found = list(_rows_of(path))
            rows += found
            windows += [int(name[1]) if name else 0] * len(found)
    except (OSError, ValueError, csv.Error) as error:
        raise UnreadableError(f"{folder}: cannot be read as rows ({error})") from error
    return Seen(rows, windows if all(named) else None)


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


def read_hashes(url: str, template: str, password: str | None = None) -> Seen:
    """The hashes of a Redis-protocol server whose keys are like ``wc:{word}``: a row each, with the
    columns of the key and a column for each field, all as texts. Which window wrote one it does not
    tell. ``password`` counts where ``url`` has none. Raises ``UnreadableError``."""
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

    return Seen(_of_server(url, password, rows))


def read_stream(url: str, stream: str, password: str | None = None) -> Seen:
    """The entries of a stream in their order: a row each, all values as texts. An entry's id begins
    with its window. ``password`` counts where ``url`` has none. Raises ``UnreadableError``."""

    def entries(client: Any) -> Iterator[tuple[bytes, Row]]:
        after = b"-"
        while found := client.xrange(stream, min=after, count=1000):
            yield from ((name, _texts(fields.items())) for name, fields in found)
            after = b"(" + found[-1][0]

    found = _of_server(url, password, entries)
    return Seen([row for _, row in found], [int(name.partition(b"-")[0]) for name, _ in found])


def _of_server(
    url: str, password: str | None, rows: Callable[[Any], Iterator[_Found]]
) -> list[_Found]:
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


def judge(
    expected: Iterable[Row],
    seen: Iterable[Row],
    totals: RunningTotals | None = None,
    windows: Sequence[int] | None = None,
) -> SinkVerdict:
    """Compare rows as a bag; of ``totals`` only the last row of each key counts.

    A row that is there more often than expected is a duplicate; one that nobody expects is wrong.
    Of totals a key is lost that has no row, or one that counts less than it should; it is a
    duplicate where it counts more, and wrong with any other row. What a sum, a mean or a least
    value that differs stands for nobody can tell: a record that is lost may make it smaller or
    greater.

    Where the ``windows`` of the rows are known, rows before the last ones are looked at, too: a
    second one of a key that a window shows ``once``, and one whose counts were there before where
    they are ``rising``, are duplicates, and one that counts less than the one before it is wrong.

    Raises ``UnreadableError`` for rows without the columns of the key.
    """
    wanted, found = list(expected), list(seen)
    if totals is None:
        return _judge_bag(Counter(map(_text, wanted)), Counter(map(_text, found)))
    strays = [] if windows is None else list(_strays(found, windows, totals))
    latest = _latest(wanted, totals.key), _latest(found, totals.key)
    return _judge_last(*latest, totals.counts, strays, len(found))


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


@dataclass(frozen=True, slots=True)
class _Stray:
    """A row of a key that does not fit behind those before it; whether it is the key's ``last``."""

    key: str
    last: bool
    doubled: bool
    told: str


def _strays(rows: Sequence[Row], windows: Iterable[int], totals: RunningTotals) -> Iterator[_Stray]:
    """The rows of a sink in its order that show again what was shown, or less than that. Those
    whose key has an empty text are passed over: a CSV file does not tell it from null.

    Raises ``UnreadableError`` for a row without the columns of the key.
    """
    counted = totals.counts if totals.rising else ()
    keys = [_key(row, totals.key) for row in rows]
    ends = {key: at for at, key in enumerate(keys)}
    before: dict[str, tuple[int, tuple[int, ...] | None]] = {}
    shown: set[tuple[str, tuple[int, ...]]] = set()
    for at, (key, row, window) in enumerate(zip(keys, rows, windows, strict=True)):
        if "" in map(row.get, totals.key):
            continue
        counts = _counts(row, counted)
        last_window, last = before.get(key, (None, None))
        where = f"{_text(row)[:150]} in window {window}"
        again = totals.once and window == last_window
        if again or (counts is not None and (key, counts) in shown):
            yield _Stray(key, at == ends[key], True, f"{where}, shown again")
        elif counts is not None and last is not None and not _rises(counts, last):
            behind = ", ".join(map(str, last))
            yield _Stray(key, at == ends[key], False, f"{where}, behind {behind}")
        if counts is not None:
            shown.add((key, counts))
        before[key] = window, counts if counts is not None else last


def _counts(row: Row, names: Sequence[str]) -> tuple[int, ...] | None:
    """None where there are none, or one of them is no number."""
    found = [_count(row.get(name)) for name in names]
    known = tuple(one for one in found if one is not None)
    return known if known and len(known) == len(found) else None


def _rises(counts: tuple[int, ...], last: tuple[int, ...]) -> bool:
    return all(one > other for one, other in zip(counts, last, strict=True))


def _judge_last(
    wanted: Mapping[str, Row],
    found: Mapping[str, Row],
    counts: Collection[str],
    strays: Iterable[_Stray],
    seen: int,
) -> SinkVerdict:
    lost = Counter(_text(row) for key, row in wanted.items() if key not in found)
    doubled, wrong = Counter[str](), Counter[str]()
    differing: set[str] = set()
    for key, row in found.items():
        due = wanted.get(key)
        if due is None:
            wrong[_text(row)] += 1
        elif _text(due) != _text(row):
            among = {-1: lost, 0: wrong, 1: doubled}[_counted(row, due, counts)]
            among[f"{_text(row)}, expected {_text(due)}"] += 1
        else:
            continue
        differing.add(key)
    for stray in strays:
        # A last row that is not the one that is due is told already.
        if not (stray.last and stray.key in differing):
            (doubled if stray.doubled else wrong)[stray.told] += 1
    examples = (
        *_examples("lost", lost),
        *_examples("doubled", doubled),
        *_examples("wrong", wrong),
    )
    sizes = lost.total(), doubled.total(), wrong.total()
    return SinkVerdict(len(wanted), seen, *sizes, examples, totals=True)


def _counted(row: Row, due: Row, counts: Collection[str]) -> int:
    """-1 where those counts of a row that differ are too small, 1 where they are too great, 0 where
    they do not say the same, or none differs."""
    if row.keys() != due.keys():
        return 0
    differing = [name for name in counts if row.get(name) != due.get(name)]
    signs = {_sign(_count(row[name]), _count(due[name])) for name in differing}
    return signs.pop() if len(signs) == 1 else 0


def _sign(one: int | None, other: int | None) -> int:
    """Of the difference of two counts; 0 where one of them is none."""
    return 0 if one is None or other is None else (one > other) - (one < other)


def _count(value: object) -> int | None:
    """Redis-protocol servers and CSV files hold numbers as texts."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _latest(rows: Iterable[Row], columns: Sequence[str]) -> dict[str, Row]:
    return {_key(row, columns): row for row in rows}


def _key(row: Row, columns: Sequence[str]) -> str:
    missing = [name for name in columns if name not in row]
    if missing:
        raise UnreadableError(f"a row has no column {missing[0]!r}: {_text(row)[:200]}")
    return _text({name: row[name] for name in columns})


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def _examples(what: str, rows: Mapping[str, int]) -> list[str]:
    return [
        f"{what}{f' ({count} times)' if count > 1 else ''}: {row[:200]}"
        for row, count in sorted(rows.items())[:_SHOWN]
    ]
