"""State as rows, read from its objects alone: for those who look at it from outside.

A chain's objects are laid over each other, oldest first; of a key the last row counts, and a key
that was deleted has none. Nothing here needs the processor's code.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MillraceError
from millrace.protocol.types import Segment
from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.ages import is_expired, parted
from millrace.state.keyed.aggregates import Aggregate, final
from millrace.state.keyed.chain import links
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keybytes import Array
from millrace.state.keyed.keys import distinct, hash_keys, key_groups, shown_columns
from millrace.state.keyed.loading import Extent, Load, read_links
from millrace.topology.kinds.processor_aggregate import AggregateSettings


class KeyTextError(MillraceError):
    """A key that is given as text is no value of the key's columns."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What has expired: state that was not updated for ``ttl_ms`` up to ``now_ms``; 0: nothing."""

    ttl_ms: int = 0
    now_ms: int = 0


FOR_EVER = Lifetime()


def read_state(
    chain: Sequence[Segment], groups: int, keys: int, load: Load, lifetime: Lifetime = FOR_EVER
) -> pa.RecordBatch:
    """All rows of the key groups in the mask ``groups``, by key; the first ``keys`` columns are
    the key. A chain without rows of these groups gives a batch without columns.

    Raises ``BlobError`` for a damaged object, ``StateSchemaError`` where objects do not fit
    together, and what ``load`` raises.
    """
    parts = [_stored(batch) for found in read_links(links(chain, groups), load) for batch in found]
    if not parts:
        return pa.RecordBatch.from_arrays([], names=[])
    rows = pa.concat_batches(_alike([part.rows for part in parts]))
    latest = _latest(rows, keys)
    dropped = np.concatenate([part.deleted for part in parts])[latest]
    if lifetime.ttl_ms:
        times = np.concatenate([part.times for part in parts])[latest]
        dropped = dropped | is_expired(times, lifetime.ttl_ms, lifetime.now_ms)
    current = rows.take(pa.array(latest[~dropped]))
    columns = {str(at): column for at, column in enumerate(current.columns[:keys])}
    order = pc.sort_indices(pa.record_batch(columns), [(name, "ascending") for name in columns])
    return current.take(order)


def results(rows: pa.RecordBatch, aggregates: Sequence[Aggregate]) -> pa.RecordBatch:
    """Rows of an aggregation as it puts them out: partial columns become the declared results."""
    if not rows.num_columns:
        return rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    made: dict[str, pa.Array] = {}
    for aggregate in aggregates:
        average = aggregate.function == "avg"
        names = [f"{aggregate.name}.{p}" for p in ("sum", "count")] if average else [aggregate.name]
        made[aggregate.name] = final(aggregate, [columns.pop(name) for name in names])
    columns |= made
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def declared_results(settings: AggregateSettings, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a declared aggregate as it puts them out."""
    return results(rows, [Aggregate(c.name, c.function.value, c.of) for c in settings.columns])


def parse_key(texts: Sequence[str], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """A key given as texts as they are shown, one for each column, as columns of one row.

    Raises ``KeyTextError`` where there are more or fewer texts, or one is no value of its type.
    """
    if len(texts) != len(fields):
        raise KeyTextError(f"the key has {len(fields)} columns, {len(texts)} values were given")
    columns = []
    for text, field in zip(texts, fields, strict=True):
        binary = pa.types.is_binary(field.type)
        try:
            given = base64.b64decode(text, validate=True) if binary else text
            columns.append(pa.array([given]).cast(field.type))
        except (ValueError, pa.ArrowNotImplementedError) as error:
            form = ", whose bytes are given in base64" if binary else ""
            raise KeyTextError(
                f"key column {field.name}: {text!r} is no value of type {field.type}{form}"
            ) from error
    return columns


def group_of(key: Sequence[pa.Array], count: int) -> int:
    """The key group, of ``count``, of a key in columns of one row."""
    return int(key_groups(hash_keys(list(key)), count)[0])


def pick(rows: pa.RecordBatch, key: Sequence[pa.Array]) -> pa.RecordBatch:
    """The rows of one key: one or none."""
    if not rows.num_rows:
        return rows
    wanted = None
    for column, value in zip(rows.columns, key, strict=False):
        same = _same(column, value[0])
        wanted = same if wanted is None else pc.and_kleene(wanted, same)
    return rows.filter(wanted)


def _same(column: pa.Array, value: pa.Scalar) -> pa.Array:
    """Where a column has a value; NaN, which equals nothing, is one key like any other."""
    if not value.is_valid:
        return column.is_null()
    if pa.types.is_floating(column.type) and math.isnan(value.as_py()):
        return pc.is_nan(column)
    return pc.equal(column, value)


def key_fields(chain: Sequence[Segment], keys: int, load: Load) -> list[pa.Field]:
    """The key's columns and their types, from the newest object; of a chain without any: none."""
    if not chain:
        return []
    (data,) = load([Extent(chain[-1])])
    batch = blobs.read(data, digest=chain[-1].digest)
    return list(batch.schema)[:keys]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an object without its own columns: when each was updated, and whether deleted."""

    rows: pa.RecordBatch
    times: Array
    deleted: Array


def _stored(batch: pa.RecordBatch) -> _Rows:
    dicts = blobs.kind_of(batch.schema) == DictState.kind
    rows, times = parted(batch)
    rows = rows.replace_schema_metadata(None)
    if not dicts:
        return _Rows(rows, times, np.zeros(len(times), bool))
    mark = rows.columns[-1].to_numpy(zero_copy_only=False)
    schema = rows.schema.remove(len(rows.schema) - 1)
    return _Rows(pa.RecordBatch.from_arrays(rows.columns[:-1], schema=schema), times, mark)


def _alike(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Batches with the columns of any: a processor may have had others before."""
    if len({batch.schema for batch in batches}) <= 1:
        return batches
    try:
        whole = pa.concat_tables(
            [pa.Table.from_batches([batch]) for batch in batches], promote_options="default"
        )
    except pa.ArrowInvalid as error:
        raise StateSchemaError(
            f"state objects of one processor have columns ({shown_columns(batches[0].schema)}) "
            f"and ({shown_columns(batches[-1].schema)}), and one column has two types; run the "
            "topology until all of it has been written anew"
        ) from error
    joined: list[pa.RecordBatch] = whole.combine_chunks().to_batches()
    return joined


def _latest(rows: pa.RecordBatch, keys: int) -> Array:
    """Of each key the place (int64) of its last row."""
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    codes = distinct(rows.columns[:keys]).codes
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))
    return last
