"""The texts that benchmarks read, one file of whole lines for each window.

``licences``
    The licence texts of the machine (Debian: 3,984 distinct words), repeated. Runs of white space
    are folded into one space and blank lines left out, so that splitting at spaces, at white space
    and ``bytes.split`` all give the same words.
``uniform`` and ``zipf``
    Ten words a line out of 500,000 generated ones, drawn with equal probability, or with one that
    falls with the rank (1/rank), as in natural text. A window of 200,000 lines touches 490,000
    and 262,000 distinct words. Every run makes the same files from the same seed.
``uniform20k``
    The same out of 20,000 words with equal probability.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LICENCES = Path("/usr/share/common-licenses")
SHIPPED = Path(__file__).resolve().parents[1] / "examples" / "wordcount" / "texts"
VOCABULARY = 500_000
WORDS_A_LINE = 10
_SYLLABLES = [c + v for c in "bcdfghjklmnpqrstvwxz" for v in "aeiou"]


@dataclass(frozen=True)
class Corpus:
    """``files[i]`` holds exactly ``lines`` lines; the files differ from each other."""

    name: str
    files: tuple[Path, ...]
    lines: int

    def words(self, path: Path) -> Counter[bytes]:
        """How often each word stands in one file, by plain Python."""
        return Counter(path.read_bytes().split())


def corpus(name: str, folder: Path, files: int, lines: int = 200_000) -> Corpus:
    """The files of a corpus under ``folder``, made where they are missing.

    Raises ``ValueError`` for an unknown name.
    """
    makers = {"licences": _licences, "uniform": _uniform, "zipf": _zipf, "uniform20k": _few}
    if name not in makers:
        raise ValueError(f"corpus {name!r} is unknown; choose one of {', '.join(makers)}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{name}-{lines}-{number:02d}.txt" for number in range(files))
    for number, path in enumerate(paths):
        if not path.exists():
            draft = path.with_suffix(".draft")
            draft.write_bytes(makers[name](number, lines))
            os.replace(draft, path)
    return Corpus(name, paths, lines)


def _licences(number: int, lines: int) -> bytes:
    text = list(_folded_lines())
    # Each file begins elsewhere, so that no two windows are the same bytes.
    turned = itertools.islice(itertools.cycle(text), number * 997, number * 997 + lines)
    return b"".join(line + b"\n" for line in turned)


def _folded_lines() -> Iterator[bytes]:
    folder = LICENCES if LICENCES.is_dir() else SHIPPED
    for path in sorted(folder.iterdir()):
        if path.is_file():
            for line in path.read_bytes().splitlines():
                words = line.split()
                if words:
                    yield b" ".join(words)


def _uniform(number: int, lines: int) -> bytes:
    random = np.random.default_rng([20_000, number])
    return _drawn(random.integers(0, VOCABULARY, lines * WORDS_A_LINE))


def _few(number: int, lines: int) -> bytes:
    random = np.random.default_rng([40_000, number])
    return _drawn(random.integers(0, 20_000, lines * WORDS_A_LINE))


def _zipf(number: int, lines: int) -> bytes:
    random = np.random.default_rng([30_000, number])
    shares = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1))
    draws = random.random(lines * WORDS_A_LINE) * shares[-1]
    return _drawn(np.minimum(np.searchsorted(shares, draws), VOCABULARY - 1))


def _drawn(ranks: np.ndarray) -> bytes:
    words = _vocabulary().take(pa.array(ranks))
    offsets = pa.array(np.arange(0, len(ranks) + 1, WORDS_A_LINE, dtype=np.int32))
    rows = pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")
    return "\n".join(rows.to_pylist()).encode() + b"\n"


def _vocabulary() -> pa.Array:
    # Three of a hundred syllables: a million words, thinned out by a step that is odd.
    numbers = (np.arange(VOCABULARY, dtype=np.int64) * 618_033) % 1_000_000
    syllables = pa.array(_SYLLABLES)
    parts = [syllables.take(pa.array(numbers // 100**power % 100)) for power in (2, 1, 0)]
    return pc.binary_join_element_wise(*parts, "")
