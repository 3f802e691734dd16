"""Compiled loops over keys in their byte form, and over accumulators.

Keys are given as ``data`` (uint8), ``offsets`` (int64, one more than keys) and ``valid`` (uint8, a
flag for each key, or empty: all valid). A null key has hash ``NULL_HASH`` and length -1. A key
table keeps for its row ``r`` ``meta[r]`` (int64) = hash, start in ``arena`` (uint8), length, and
the last round that touched it; one row of ``meta`` is half a cache line.
``slots`` (uint64, a power of two of them) is open addressing with linear probing: the upper half
of a slot is the upper half of the hash, the lower half the row + 1, and 0 is empty.

Numba does not check bounds; callers check sizes and dtypes.

Source: hashing by words with overlapping reads at the end after wyhash (Wang Yi), each word mixed
as in MurmurHash3 (Appleby), finished with ``ids.mix64``. Not the values of either.
"""

# ruff: noqa: SIM110
# Numba compiles loops better than generators.

from __future__ import annotations

import numpy as np
from numba import njit

from millrace.compiled.pointers import load8, load32, load64, pointer, store32, store64
from millrace.mixers import GOLDEN, mix64

NULL_HASH = np.uint64(0x9AE16A3B2F90404F)

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_S27, _S31, _S32 = np.uint64(27), np.uint64(31), np.uint64(32)
_S33, _S37, _S8, _S16 = np.uint64(33), np.uint64(37), np.uint64(8), np.uint64(16)
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)
_U0, _U1 = np.uint64(0), np.uint64(1)

HASH, START, LENGTH, MARK = 0, 1, 2, 3
"""Columns of a key table's ``meta``."""

_BLOCK = 256
"""Keys looked up at a time, so that their cache misses overlap."""


_mix64 = njit(cache=True, inline="always")(mix64)


@njit(cache=True, inline="always")
def _absorb(h, word):  # type: ignore[no-untyped-def]
    word *= _C1
    word = ((word << _S31) | (word >> _S33)) * _C2
    h ^= word
    return ((h << _S27) | (h >> _S37)) * np.uint64(5) + np.uint64(0x52DCE729)


@njit(cache=True, inline="always")
def _hash(data, start, length):  # type: ignore[no-untyped-def]
    h = np.uint64(length) * GOLDEN
    end = start + length
    if length >= 8:
        at = start
        while at + 8 < end:
            h = _absorb(h, load64(data, at))
            at += 8
        h = _absorb(h, load64(data, end - 8))
    elif length >= 4:
        h = _absorb(h, load32(data, start) | (load32(data, end - 4) << _S32))
    elif length > 0:
        middle = load8(data, start + (length >> 1)) << _S8
        h = _absorb(h, load8(data, start) | middle | (load8(data, end - 1) << _S16))
    return _mix64(h)


@njit(cache=True, inline="always")
def _equal(a, at_a, b, at_b, length):  # type: ignore[no-untyped-def]
    if length >= 8:
        last = length - 8
        at = 0
        while at < last:
            if load64(a, at_a + at) != load64(b, at_b + at):
                return False
            at += 8
        return load64(a, at_a + last) == load64(b, at_b + last)
    if length >= 4:
        last = length - 4
        return load32(a, at_a) == load32(b, at_b) and (
            load32(a, at_a + last) == load32(b, at_b + last)
        )
    for at in range(length):
        if load8(a, at_a + at) != load8(b, at_b + at):
            return False
    return True


@njit(cache=True, nogil=True)
def hash_keys(data, offsets, valid, hashes):  # type: ignore[no-untyped-def]
    """Write the hash of each key."""
    nullable = valid.size > 0
    bytes_in = pointer(data)
    for i in range(hashes.size):
        if nullable and valid[i] == 0:
            hashes[i] = NULL_HASH
        else:
            hashes[i] = _hash(bytes_in, offsets[i], offsets[i + 1] - offsets[i])


@njit(cache=True, nogil=True)
def find_or_insert(  # type: ignore[no-untyped-def]
    data, offsets, valid, begin, slots, meta, arena, sizes, mark, rows, touched
):
    """Find the row of each key from ``begin`` on, and insert those that are new.

    ``sizes`` = (rows, arena bytes, rows touched) is read and updated. A row whose mark is not
    ``mark`` gets it and is appended to ``touched``. Stops where an array is full and returns
    how many keys are done; the caller makes room and calls again.
    """
    nullable = valid.size > 0
    bytes_in, kept = pointer(data), pointer(arena)
    mask = np.uint64(slots.size - 1)
    limit = min(meta.shape[0], slots.size // 2)
    n_rows, used, n_touched = sizes[0], sizes[1], sizes[2]
    wanted = np.empty(_BLOCK, np.uint64)
    lengths = np.empty(_BLOCK, np.int64)
    guess = np.empty(_BLOCK, np.int64)
    done = begin
    total = rows.size
    full = False
    while done < total and not full:
        count = min(_BLOCK, total - done)
        for j in range(count):
            i = done + j
            lengths[j] = offsets[i + 1] - offsets[i]
            if nullable and valid[i] == 0:
                lengths[j] = -1
                wanted[j] = NULL_HASH
            else:
                wanted[j] = _hash(bytes_in, offsets[i], lengths[j])
        # No iteration of the next three loops waits for another, so their misses overlap.
        for j in range(count):
            h = wanted[j]
            at = h & mask
            slot = slots[at]
            while slot != _U0 and (slot ^ h) & _HIGH != _U0:
                at = (at + _U1) & mask
                slot = slots[at]
            guess[j] = np.int64(slot & _LOW) - 1
        for j in range(count):
            row = guess[j]
            if row >= 0 and (
                np.uint64(meta[row, HASH]) != wanted[j] or meta[row, LENGTH] != lengths[j]
            ):
                guess[j] = -1
        for j in range(count):
            row = guess[j]
            if row >= 0 and not _equal(
                bytes_in, offsets[done + j], kept, meta[row, START], lengths[j]
            ):
                guess[j] = -1
        for j in range(count):
            row = guess[j]
            if row < 0:
                start = offsets[done + j]
                row, at = _probe(slots, meta, kept, bytes_in, start, lengths[j], wanted[j])
                if row < 0:
                    size = max(lengths[j], 0)
                    if n_rows >= limit or used + size > arena.size or n_touched >= touched.size:
                        count = j
                        full = True
                        break
                    row = n_rows
                    slots[at] = (wanted[j] & _HIGH) | np.uint64(row + 1)
                    meta[row, HASH] = np.int64(wanted[j])
                    meta[row, START] = used
                    meta[row, LENGTH] = lengths[j]
                    meta[row, MARK] = mark - 1
                    for k in range(size):
                        arena[used + k] = data[start + k]
                    used += size
                    n_rows += 1
            if meta[row, MARK] != mark:
                if n_touched >= touched.size:
                    count = j
                    full = True
                    break
                meta[row, MARK] = mark
                touched[n_touched] = row
                n_touched += 1
            rows[done + j] = row
        done += count
    sizes[0], sizes[1], sizes[2] = n_rows, used, n_touched
    return done


@njit(cache=True)
def _probe(slots, meta, kept, bytes_in, start, length, wanted):  # type: ignore[no-untyped-def]
    """Row of a key, or -1, and the slot where the search ended."""
    mask = np.uint64(slots.size - 1)
    at = wanted & mask
    while True:
        slot = slots[at]
        if slot == _U0:
            return np.int64(-1), at
        if (slot & _HIGH) == (wanted & _HIGH):
            row = np.int64(slot & _LOW) - 1
            if (
                np.uint64(meta[row, HASH]) == wanted
                and meta[row, LENGTH] == length
                and _equal(bytes_in, start, kept, meta[row, START], length)
            ):
                return row, at
        at = (at + _U1) & mask


@njit(cache=True, nogil=True)
def rebuild(slots, meta, count):  # type: ignore[no-untyped-def]
    """Fill empty slots with the first ``count`` rows, in their order."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        h = np.uint64(meta[row, HASH])
        at = h & mask
        while slots[at] != _U0:
            at = (at + _U1) & mask
        slots[at] = (h & _HIGH) | np.uint64(row + 1)


@njit(cache=True, nogil=True)
def remove_from(slots, meta, first, count):  # type: ignore[no-untyped-def]
    """Take the rows ``first`` to ``count`` - 1, the last ones inserted, out of the slots.

    Insertion moves nothing and these came last, so emptying their slots restores what was.
    """
    mask = np.uint64(slots.size - 1)
    for row in range(first, count):
        at = np.uint64(meta[row, HASH]) & mask
        while np.int64(slots[at] & _LOW) != row + 1:
            at = (at + _U1) & mask
        slots[at] = _U0


@njit(cache=True, nogil=True)
def put_numbers(data, ends, values, valid):  # type: ignore[no-untyped-def]
    """Append to each key a flag byte and, unless null, the 8 bytes of an int64."""
    nullable = valid.size > 0
    raw = values.view(np.uint8)
    for i in range(ends.size):
        at = ends[i]
        if nullable and valid[i] == 0:
            data[at] = 0
            ends[i] = at + 1
        else:
            data[at] = 1
            for k in range(8):
                data[at + 1 + k] = raw[8 * i + k]
            ends[i] = at + 9


@njit(cache=True, nogil=True)
def put_texts(data, ends, source, offsets, valid):  # type: ignore[no-untyped-def]
    """Append to each key a flag byte and, unless null, 4 bytes of length and the content."""
    nullable = valid.size > 0
    for i in range(ends.size):
        at = ends[i]
        if nullable and valid[i] == 0:
            data[at] = 0
            ends[i] = at + 1
            continue
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        data[at] = 1
        for k in range(4):
            data[at + 1 + k] = (length >> (8 * k)) & 255
        for k in range(length):
            data[at + 5 + k] = source[start + k]
        ends[i] = at + 5 + length


@njit(cache=True, nogil=True)
def take_numbers(data, ends, values, valid):  # type: ignore[no-untyped-def]
    """Undo ``put_numbers`` from ``ends`` on."""
    raw = values.view(np.uint8)
    for i in range(ends.size):
        at = ends[i]
        valid[i] = data[at]
        for k in range(8):
            raw[8 * i + k] = data[at + 1 + k] if valid[i] else 0
        ends[i] = at + (9 if valid[i] else 1)


@njit(cache=True, nogil=True)
def take_places(data, ends, places, valid):  # type: ignore[no-untyped-def]
    """Undo ``put_texts`` from ``ends`` on: (start, length) of each content."""
    for i in range(ends.size):
        at = ends[i]
        valid[i] = data[at]
        if valid[i] == 0:
            places[i, 0] = at
            places[i, 1] = 0
            ends[i] = at + 1
            continue
        length = np.int64(0)
        for k in range(4):
            length |= np.int64(data[at + 1 + k]) << (8 * k)
        places[i, 0] = at + 5
        places[i, 1] = length
        ends[i] = at + 5 + length


@njit(cache=True, nogil=True)
def pick_places(meta, rows, places):  # type: ignore[no-untyped-def]
    """(start, length) of the keys of table rows."""
    for i in range(rows.size):
        row = np.uint64(rows[i])
        places[i, 0] = meta[row, START]
        places[i, 1] = meta[row, LENGTH]


@njit(cache=True, nogil=True)
def gather(data, places, offsets, out):  # type: ignore[no-untyped-def]
    """Copy the contents at ``places`` behind each other; ``offsets`` are theirs in ``out``."""
    source, target = pointer(data), pointer(out)
    for i in range(places.shape[0]):
        start, at = places[i, 0], offsets[i]
        length = offsets[i + 1] - at
        if length >= 8:
            done = 0
            while done < length - 8:
                store64(target, at + done, load64(source, start + done))
                done += 8
            store64(target, at + length - 8, load64(source, start + length - 8))
        elif length >= 4:
            first, last = load32(source, start), load32(source, start + length - 4)
            store32(target, at, first)
            store32(target, at + length - 4, last)
        else:
            for k in range(length):
                out[at + k] = data[start + k]


@njit(cache=True, nogil=True)
def order_by_group(hashes, groups, order, starts):  # type: ignore[no-untyped-def]
    """Stable order of keys by key group; ``starts`` (groups + 1) are the groups' first places."""
    wide = np.uint64(groups)
    for i in range(hashes.size):
        starts[np.int64(((hashes[i] >> _S32) * wide) >> _S32) + 1] += 1
    for group in range(groups):
        starts[group + 1] += starts[group]
    cursor = starts.copy()
    for i in range(hashes.size):
        place = np.int64(((hashes[i] >> _S32) * wide) >> _S32)
        order[cursor[place]] = i
        cursor[place] += 1


@njit(cache=True, nogil=True)
def add_integers(totals, seen, rows, values, valid):  # type: ignore[no-untyped-def]
    """Add int64 values to the totals of their rows; null counts for nothing.

    ``seen`` (uint8) notes which totals have a value; ``values`` of length 1 stands for all.
    Totals wrap around; returns the last item that made one do so, or -1.
    """
    nullable = valid.size > 0
    step = np.int64(values.size == rows.size)
    overflow = np.int64(-1)
    for i in range(rows.size):
        if nullable and valid[i] == 0:
            continue
        row = np.uint64(rows[i])
        value, before = values[i * step], totals[row]
        # Unsigned: LLVM takes for granted that signed additions do not overflow.
        after = np.int64(np.uint64(before) + np.uint64(value))
        if ((before ^ after) & (value ^ after)) < 0:
            overflow = np.int64(i)
        totals[row] = after
        seen[row] = 1
    return overflow


@njit(cache=True, nogil=True)
def add_floats(totals, seen, rows, values, valid):  # type: ignore[no-untyped-def]
    """``add_integers`` for float64, which cannot overflow."""
    nullable = valid.size > 0
    for i in range(rows.size):
        if nullable and valid[i] == 0:
            continue
        row = np.uint64(rows[i])
        totals[row] += values[i]
        seen[row] = 1


@njit(cache=True, nogil=True)
def keep_extremes(held, seen, rows, values, valid, largest):  # type: ignore[no-untyped-def]
    """Keep the largest or smallest value of each row; NaN is larger than every number."""
    nullable = valid.size > 0
    for i in range(rows.size):
        if nullable and valid[i] == 0:
            continue
        row = np.uint64(rows[i])
        value, other = values[i], held[row]
        smaller = value < other or (other != other and value == value)
        equal = value == other or (value != value and other != other)
        if seen[row] == 0 or (not equal and smaller != largest):
            held[row] = value
            seen[row] = 1
