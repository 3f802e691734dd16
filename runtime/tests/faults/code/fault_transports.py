"""A transport that damages what it carries where its orders say so, and is honest elsewhere.

An order names a window, a kind of damage and a seed that picks task, edge, envelope and row. A
*hidden* kind makes the envelope's own checks fit, as if the row had gone astray before they were
taken: only the ackers can notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fault_orders import attempt, orders, strike, strikes

from millrace.engine.task.batch import ID
from millrace.engine.task.exchange import Parcel, Transport, check_of

Alter = Callable[[pa.Table, int], pa.Table]


def drop(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def double(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table, table.slice(row, 1)])


def triple(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table, table.slice(row, 1), table.slice(row, 1)])


def alter_id(table: pa.Table, row: int) -> pa.Table:
    if ID not in table.schema.names:
        return table
    ids = table.column(ID).to_numpy().copy()
    ids[row] ^= np.uint64(1 << 17)
    return table.set_column(table.schema.get_field_index(ID), ID, pa.array(ids))


ALTERATIONS: dict[str, Alter] = {
    "drop": drop,
    "double": double,
    "triple": triple,
    "alterId": alter_id,
}


class Ordered(Transport):
    """Carries out ``orders.json``: {"damage": [{"window", "kind", "seed"}, ...]}."""

    def send(self, parcels: Sequence[Parcel]) -> Iterator[tuple[int, bytes]]:
        sent = list(parcels)
        order = self._due()
        if order is not None:
            self._damage(sent, order, random.Random(order["seed"]))
        yield from super().send(sent)

    def receive(self, envelopes: Iterable[bytes]) -> list[Parcel]:
        parcels = super().receive(envelopes)
        lost = orders().get("loseMapOutput")
        if lost is not None and attempt()[1] == lost["window"]:
            self._lose(parcels, Path(lost["folder"]))
        return parcels

    def _due(self) -> dict[str, Any] | None:
        """The first order that is left, from the window on that it names; one in an attempt."""
        done = strikes()
        if list(attempt()) in [strike["attempt"] for strike in done.values()]:
            return None
        left = [o for o in orders().get("damage", ()) if name_of(o) not in done]
        return left[0] if left and left[0]["window"] <= attempt()[1] else None

    def _damage(self, parcels: list[Parcel], order: dict[str, Any], chance: random.Random) -> None:
        writer = chance.randrange(len(parcels))
        full = [i for i, p in enumerate(parcels) if any(t.num_rows for t in p.tables.values())]
        if parcels[0].header.task.partition != writer or not full:
            return
        at = chance.choice(full)
        lane = chance.choice(sorted(n for n, t in parcels[at].tables.items() if t.num_rows))
        row = chance.randrange(parcels[at].tables[lane].num_rows)
        if not strike(name_of(order), lane=lane, row=row, writer=writer, reader=at):
            return
        kind = order["kind"]
        name = kind.removeprefix("hidden-")
        if name == "misroute":
            _misroute(parcels, at, lane, row)
        else:
            table = ALTERATIONS[name](parcels[at].tables[lane], row)
            parcels[at] = _with_table(parcels[at], lane, table)
        if name != kind:
            parcels[:] = [_covered_up(parcel) for parcel in parcels]

    def _lose(self, parcels: Sequence[Parcel], folder: Path) -> None:
        """Delete one map output that this reader has read already and another still needs."""
        header = min((p.header for p in parcels), key=lambda h: h.task.partition)
        window = attempt()[1]
        if not strike(f"loseMapOutput-{window}", task=header.task.task_attempt):
            return
        for file in folder.rglob(f"shuffle_*_{header.task.task_attempt}_0.*"):
            file.unlink()


def name_of(order: dict[str, Any]) -> str:
    return f"{order['kind']}-{order['window']}"


def _misroute(parcels: list[Parcel], at: int, lane: str, row: int) -> None:
    table = parcels[at].tables[lane]
    other = (at + 1) % len(parcels)
    theirs = parcels[other].tables.get(lane)
    moved = table.slice(row, 1)
    if theirs is not None:
        moved = pa.concat_tables([theirs, moved.cast(theirs.schema)])
    parcels[at] = _with_table(parcels[at], lane, drop(table, row))
    parcels[other] = _with_table(parcels[other], lane, moved)


def _with_table(parcel: Parcel, lane: str, table: pa.Table) -> Parcel:
    return replace(parcel, tables={**parcel.tables, lane: table})


def _covered_up(parcel: Parcel) -> Parcel:
    checks = {lane: check_of(table) for lane, table in parcel.tables.items()}
    return replace(parcel, header=replace(parcel.header, checks=checks))
