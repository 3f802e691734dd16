"""An independent check of the word count: counts again, in plain Python, and compares.

    python count_words.py TEXTS COUNTS

``TEXTS`` is a folder of text files, ``COUNTS`` the folder that the sink wrote: JSON lines such as
``{"word": "mill", "n": 3}``, each a total that replaces the word's earlier one, in files whose
names carry the number of their window first. A name that begins with ``_`` or ``.`` is not read.

Prints one JSON object and ends with 0 if everything agrees, else with 1:

``equal``        every word has its total and no total has another word
``repeated``     rows that show no higher total than an earlier window did: shown twice
``words``        words in the texts, ``distinct`` different ones
``rows``         rows in the sink, ``windows`` windows that wrote some
``differences``  up to ten words with the true total and the one found
``top``          the twenty most frequent words

This file imports nothing of Millrace: it must not share its mistakes.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SHOWN = 10
TOP = 20


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder that a plain reader takes for data."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part[0] in "_." for part in path.relative_to(folder).parts)
    )


def count(texts: Path) -> Counter[str]:
    """Words between ASCII white space, from the bytes of the files."""
    words: Counter[bytes] = Counter()
    for path in visible_files(texts):
        words.update(path.read_bytes().split())
    return Counter({word.decode(): n for word, n in words.items()})


def window_of(path: Path) -> int:
    """The number of the window that wrote a file of the sink."""
    number = re.search(r"\d+", path.name)
    if number is None:
        raise SystemExit(f"{path}: its name carries no window number")
    return int(number[0])


def totals(counts: Path) -> tuple[dict[str, int], int, int, int]:
    """The last total of each word, and how many rows, windows and repeated rows there were."""
    found: dict[str, int] = {}
    rows = repeated = 0
    files = sorted(visible_files(counts), key=window_of)
    for path in files:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                rows += 1
                # The words of a line only ever add to a total.
                repeated += row["n"] <= found.get(row["word"], 0)
                found[row["word"]] = row["n"]
    return found, rows, len({window_of(path) for path in files}), repeated


def compare(texts: Path, counts: Path) -> dict[str, Any]:
    """The object that is printed."""
    expected = count(texts)
    found, rows, windows, repeated = totals(counts)
    wrong = sorted(w for w in expected.keys() | found.keys() if expected.get(w) != found.get(w))
    return {
        "equal": not wrong,
        "repeated": repeated,
        "words": expected.total(),
        "distinct": len(expected),
        "rows": rows,
        "windows": windows,
        "differences": [[w, expected.get(w, 0), found.get(w, 0)] for w in wrong[:SHOWN]],
        "top": expected.most_common(TOP),
    }


def main() -> int:
    """See the module's text."""
    if len(sys.argv) != 3:
        print("usage: count_words.py TEXTS COUNTS", file=sys.stderr)
        return 2
    result = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(result))
    return 0 if result["equal"] and not result["repeated"] else 1


if __name__ == "__main__":
    sys.exit(main())
