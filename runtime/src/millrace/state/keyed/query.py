"""State as rows, read from its objects alone: for those who look at it from outside.

A chain's objects are laid over each other, oldest first; of a key the last row counts, and a key
that was deleted has none. Nothing here needs the processor's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MillraceError
from millrace.protocol.types import Segment
from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.ages import FIELD, is_expired, parted
from millrace.state.keyed.aggregates import Aggregate, final
from millrace.state.keyed.chain import Link, links
from millrace.state.keyed.dictstate import DELETED
from millrace.state.keyed.keys import distinct, hash_keys, key_groups
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
    batches = _read(links(chain, groups), load)
    if not batches:
        return pa.RecordBatch.from_arrays([], names=[])
    current = _latest(pa.concat_batches(batches), keys)
    if DELETED in current.schema.names:
        current = current.filter(pc.invert(current.column(DELETED))).drop_columns([DELETED])
    current, times = parted(current)
    if lifetime.ttl_ms:
        expired = is_expired(times, lifetime.ttl_ms, lifetime.now_ms)
        current = current.filter(pa.array(~expired))
    names = current.schema.names[:keys]
    order = pc.sort_indices(current, [(name, "ascending") for name in names])
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


def parse_key(texts: Sequence[str], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """A key given as texts, one for each column, as columns of one row.

    Raises ``KeyTextError`` where there are more or fewer texts, or one is no value of its type.
    """
    if len(texts) != len(kinds):
        raise KeyTextError(f"the key has {len(kinds)} columns, {len(texts)} values were given")
    columns = []
    for text, kind in zip(texts, kinds, strict=True):
        try:
            columns.append(pa.array([text]).cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise KeyTextError(f"{text!r} is no value of type {kind}") from error
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
        same = pc.equal(column, value[0]) if value[0].is_valid else column.is_null()
        wanted = same if wanted is None else pc.and_kleene(wanted, same)
    return rows.filter(wanted)


def key_types(chain: Sequence[Segment], keys: int, load: Load) -> list[pa.DataType]:
    """Types of the key's columns, from the newest object; of a chain without any: none."""
    if not chain:
        return []
    (data,) = load([Extent(chain[-1])])
    batch = blobs.read(data, digest=chain[-1].digest)
    return [field.type for field in batch.schema][:keys]


def _read(parts: Sequence[Link], load: Load) -> list[pa.RecordBatch]:
    """Rows of all objects, with the columns of any: a processor may have had others before."""
    batches: list[pa.RecordBatch] = []
    for stored in (batch for found in read_links(parts, load) for batch in found):
        rows, times = parted(stored)
        batch = rows.replace_schema_metadata(None).append_column(FIELD, pa.array(times))
        batches.append(batch)
    if len({batch.schema for batch in batches}) <= 1:
        return batches
    try:
        whole = pa.concat_tables(
            [pa.Table.from_batches([batch]) for batch in batches], promote_options="default"
        )
    except pa.ArrowInvalid as error:
        raise StateSchemaError(
            f"state objects of one processor have columns ({_shown(batches[0].schema)}) and "
            f"({_shown(batches[-1].schema)}), and one column has two types; run the topology until "
            "all of it has been written anew"
        ) from error
    joined: list[pa.RecordBatch] = whole.combine_chunks().to_batches()
    return joined


def _latest(rows: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    """Of each key the last row."""
    if not rows.num_rows:
        return rows
    codes = distinct(rows.columns[:keys]).codes
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))
    return rows.take(pa.array(last))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
