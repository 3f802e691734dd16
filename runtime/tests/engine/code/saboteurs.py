"""Transports that damage what they carry: one random tuple of one envelope of a task.

``HONEST`` saboteurs leave the header as it was; the others make it fit the damage, so that only
the ackers can notice.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.task.batch import ID
from millrace.engine.task.exchange import Transport, check_of
from millrace.ids import mix64

SEED = 0


class Saboteur(Transport):
    covers_up = False

    def send(self, parcels):
        rng = random.Random(SEED)
        full = [i for i, p in enumerate(parcels) if any(t.num_rows for t in p.tables.values())]
        parcels = list(parcels)
        if full:
            at = rng.choice(full)
            lane = rng.choice(sorted(k for k, t in parcels[at].tables.items() if t.num_rows))
            row = rng.randrange(parcels[at].tables[lane].num_rows)
            self.damage(parcels, at, lane, row)
        if self.covers_up:
            parcels = [covered_up(p) for p in parcels]
        yield from super().send(parcels)

    def damage(self, parcels, at, lane, row):
        table = parcels[at].tables[lane]
        parcels[at] = with_table(parcels[at], lane, self.altered(table, row))

    def altered(self, table, row):
        raise NotImplementedError


def with_table(parcel, lane, table):
    return replace(parcel, tables={**parcel.tables, lane: table})


def covered_up(parcel):
    checks = {lane: check_of(table) for lane, table in parcel.tables.items()}
    return replace(parcel, header=replace(parcel.header, checks=checks))


class Drop(Saboteur):
    def altered(self, table, row):
        return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


class Double(Saboteur):
    def altered(self, table, row):
        return pa.concat_tables([table, table.slice(row, 1)])


class Triple(Saboteur):
    def altered(self, table, row):
        return pa.concat_tables([table, table.slice(row, 1), table.slice(row, 1)])


class AlterId(Saboteur):
    def altered(self, table, row):
        if ID not in table.schema.names:
            return table
        ids = table.column(ID).to_numpy().copy()
        # Another change for each tuple: two equal ones would cancel in the window's one value.
        ids[row] ^= np.uint64(mix64(int(ids[row])))
        return table.set_column(table.schema.get_field_index(ID), ID, pa.array(ids))


class Misroute(Saboteur):
    def damage(self, parcels, at, lane, row):
        table = parcels[at].tables[lane]
        other = (at + 1) % len(parcels)
        theirs = parcels[other].tables.get(lane)
        moved = table.slice(row, 1)
        if theirs is not None:
            moved = pa.concat_tables([theirs, moved.cast(theirs.schema)])
        parcels[at] = with_table(parcels[at], lane, Drop().altered(table, row))
        parcels[other] = with_table(parcels[other], lane, moved)


class HiddenDrop(Drop):
    covers_up = True


class HiddenDouble(Double):
    covers_up = True


class HiddenAlterId(AlterId):
    covers_up = True


class HiddenMisroute(Misroute):
    covers_up = True


class MixedAttempts(Transport):
    """One reader is told that its envelope came from another attempt of the same task."""

    def send(self, parcels):
        for parcel in parcels:
            header = parcel.header
            if header.task.partition == 0 and header.reader == 1:
                task = replace(header.task, task_attempt=header.task.task_attempt + 1000)
                parcel = replace(parcel, header=replace(header, task=task))
            yield from super().send([parcel])


class LostEnvelope(Transport):
    """One reader gets nothing from one task."""

    def send(self, parcels):
        for reader, envelope in super().send(parcels):
            if parcels[0].header.task.partition or reader:
                yield reader, envelope
