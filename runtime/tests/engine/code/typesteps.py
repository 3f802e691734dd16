"""User code that hands every type on, in each form that a processor can have."""

from __future__ import annotations

import datetime as dt

from millrace import Processor, grouped, row, stateful, vectorized, where

COLUMNS = (
    "id long, b boolean, i int, l long, f float, d double, s string, x binary, t timestamp, "
    "y date, at array<timestamp>, ay array<date>, ax array<binary>, ai array<int>, "
    "nested array<array<string>>"
)


@row(output=COLUMNS)
def by_row(values):
    return dict(values)


@vectorized(output=COLUMNS)
def by_batch(batch):
    return batch, list(range(batch.num_rows))


@where
def all_of_them(values):
    return values["id"] >= 0


class ByClass(Processor):
    output = COLUMNS

    def process(self, values, out):
        out.emit(dict(values))


@stateful(output=COLUMNS, state=COLUMNS.replace("id long", "id long, seen long"))
def by_state(values, state):
    """Gives back what it kept of the tuple before, the first time the tuple itself."""
    kept = {name: state[name] for name in values} if state["seen"] else dict(values)
    state.update(values, seen=(state["seen"] or 0) + 1)
    return kept


@grouped(output=COLUMNS, state=COLUMNS)
def by_groups(batch, state):
    """Keeps the last tuple of each key; one that comes first is its own."""
    return batch.rows.take(batch.last), batch.rows, list(range(batch.rows.num_rows))


class ByKeyedClass(Processor):
    output = COLUMNS
    state = COLUMNS

    def process(self, values, out):
        out.state.update(values)
        out.emit(dict(out.state))


@row(output="t timestamp")
def instants_of_all_kinds(_):
    """One instant: without a zone, in UTC, and with the offset of Kathmandu."""
    noon = dt.datetime(2024, 2, 29, 12, 0, 0, 1)
    kathmandu = dt.timezone(dt.timedelta(hours=5, minutes=45))
    yield {"t": noon}
    yield {"t": noon.replace(tzinfo=dt.UTC)}
    yield {"t": noon.replace(tzinfo=dt.UTC).astimezone(kathmandu)}


@where
def every_one(_):
    return True
