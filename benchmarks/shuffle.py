"""Every word from a Python processor to a stateful Python processor: ``make bench NAME=shuffle``.

Millrace sends each word, with its id, through an envelope exchange to a stateful function that is
called for every word; nothing is combined before. Plain PySpark does the same with
``mapInArrow`` and ``applyInPandasWithState``, which is called once for every key of a window.
Both write the changed totals of each window as JSON lines; Millrace's function puts out a running
count for every word, of which an aggregate keeps the last. Both outputs are compared with a count
by plain Python. Rounds interleave as in wordcount.py; windows have 20,000 lines, 200,000 words.

What ``applyInPandasWithState`` costs goes with the keys of a window, so there are two figures:
``vs_pandas_state`` for a vocabulary of 20,000 words, ``vs_pandas_state_4k`` for the licence texts.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from corpus import Corpus, corpus
from measure import last_line, machine, ratio, stop_cleanly
from sides import BaselineSide, MillraceSide
from wordcount import OUT, race, rates, word_count

CODE = Path(__file__).resolve().parent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--windows", type=int, default=4, help="windows of a round")
    parser.add_argument("--lines", type=int, default=20_000, help="lines of a window")
    parser.add_argument("--only", choices=["uniform20k", "licences"], help="one text alone")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "shuffle"
    shutil.rmtree(run, ignore_errors=True)
    result = {}
    for name, key in (("uniform20k", "vs_pandas_state"), ("licences", "vs_pandas_state_4k")):
        if options.only in (None, name):
            texts = corpus(name, OUT / "corpora", options.windows, options.lines)
            print(f"\n{name}: windows of {texts.lines:,} lines")
            result[key] = round(compare(texts, run / name, options), 3)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line(result)


def compare(texts: Corpus, folder: Path, options: argparse.Namespace) -> float:
    """How many times the words a second of pandas are those of Millrace."""
    found = race(
        [
            lambda: BaselineSide("pandas", "pandas", "memory", folder / "pandas"),
            lambda: MillraceSide("millrace", counting(texts.lines), folder / "millrace"),
        ],
        texts,
        options.rounds,
        options.warmups,
    )
    for name, rounds in found.items():
        print(f"  {name:10s} {rates(texts, rounds)}")
    return ratio(found["pandas"], found["millrace"])


def counting(lines: int) -> dict[str, Any]:
    """split -> count (by word, stateful) -> last (by word, the highest count) -> files."""
    spec = word_count(window=lines)
    spec["code"] = {"path": str(CODE)}
    spec["processors"] = [
        {"name": "split", "inputs": [{"from": "lines"}], "function": "shuffle_functions:split"},
        {
            "name": "count",
            "inputs": [{"from": "split", "key": ["word"]}],
            "function": "shuffle_functions:count",
        },
        {
            "name": "last",
            "inputs": [{"from": "count", "key": ["word"]}],
            "aggregate": {
                "emit": "changes",
                "columns": [{"name": "n", "function": "max", "of": "n"}],
            },
        },
    ]
    spec["sinks"][0]["inputs"] = [{"from": "last"}]
    return spec


if __name__ == "__main__":
    main()
