"""Lines cut by the compiled loop, held to what Python's own ``split`` does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.compiled import newlines
from millrace.compiled.newlines import cut

LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=30)


def plain(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def found(text: bytes, lines: int) -> list[bytes]:
    made = cut(text, lines)
    whole, bounds = made.packed.tobytes(), made.offsets.tolist()
    assert made.ascii == text.isascii()
    assert made.returns == (b"\r" in text)
    return [whole[first:end] for first, end in pairwise(bounds)]


@given(LINES, st.booleans(), st.integers(0, 40))
def test_lines_are_those_of_split_however_many_were_expected(
    lines: list[bytes], ended: bool, expected: int
) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    assert found(text, expected) == plain(text)


@pytest.mark.parametrize("length", range(34))
def test_a_newline_is_seen_at_every_place(length: int) -> None:
    for place in range(length):
        for other in (b"x", b"\x0b", b"\x8a", b"\xff", b"\x00", b"\n", b"\r"):
            text = bytearray(other * length)
            text[place] = 0x0A
            assert found(bytes(text), 1) == plain(bytes(text)), (length, place, other)


def test_nothing_behind_the_text_is_read() -> None:
    """A text may end with its last byte, wherever that lies in eight."""
    for size in range(20):
        held = np.full(40, 0x0A, np.uint8)
        held[:size] = 0x61
        offsets, packed = np.empty(9, np.int32), np.full(size + 16, 0x5A, np.uint8)
        lines, flags = newlines._cut(held[:size], offsets, packed[:size])
        assert (packed[size:] == 0x5A).all()
        assert (lines, flags) == (1 if size else 0, 0)
        assert offsets[lines] == size
