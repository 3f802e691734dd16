"""Every word from a Python processor to a stateful Python processor: ``make bench NAME=shuffle``.

Millrace sends each word, with its id, through an envelope exchange to a Python function with keyed
state; nothing is combined before. Plain PySpark does the same with ``mapInArrow`` and
``applyInPandasWithState``, whose function is called once for every key of a window, with the rows
of it. Millrace has both forms: a grouped function (``grouped``), which like that of pandas gets the
rows of each key together and puts out one total for each, and a stateful one (``rows``), which is
called for every word and puts out a running count, of which an aggregate keeps the last. All write
the changed totals of each window as JSON lines, which are compared with a count by plain Python.
Rounds interleave as in wordcount.py; windows have 20,000 lines, 200,000 words.

What ``applyInPandasWithState`` costs goes with the keys of a window, so there are two figures of
the grouped function: ``vs_pandas_state`` for a vocabulary of 20,000 words, and
``vs_pandas_state_4k`` for the licence texts. ``rows_vs_pandas_state`` and the same with ``_4k`` are
of the function that is called for every word.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from corpus import Corpus, corpus
from measure import Round, last_line, machine, ratio, round_windows, stop_cleanly
from sides import BaselineSide, MillraceSide
from wordcount import OUT, race, rates, word_count

CODE = Path(__file__).resolve().parent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--windows", type=round_windows, default=4, help="windows of a round")
    parser.add_argument("--lines", type=int, default=20_000, help="lines of a window")
    parser.add_argument("--only", choices=["uniform20k", "licences"], help="one text alone")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "shuffle"
    shutil.rmtree(run, ignore_errors=True)
    result = {}
    for name, end in (("uniform20k", ""), ("licences", "_4k")):
        if options.only in (None, name):
            texts = corpus(name, OUT / "corpora", options.windows, options.lines)
            print(f"\n{name}: windows of {texts.lines:,} lines")
            found = compare(texts, run / name, options)
            result[f"vs_pandas_state{end}"] = round(ratio(found["pandas"], found["grouped"]), 3)
            result[f"rows_vs_pandas_state{end}"] = round(ratio(found["pandas"], found["rows"]), 3)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line(result)


def compare(texts: Corpus, folder: Path, options: argparse.Namespace) -> dict[str, list[Round]]:
    """The rounds of each side."""
    found = race(
        [
            lambda: BaselineSide("pandas", "pandas", "memory", folder / "pandas"),
            lambda: MillraceSide("grouped", counting(texts.lines, "totals"), folder / "grouped"),
            lambda: MillraceSide("rows", counting(texts.lines), folder / "rows"),
        ],
        texts,
        options.rounds,
        options.warmups,
    )
    for name, rounds in found.items():
        print(f"  {name:10s} {rates(texts, rounds)}")
    return found


def counting(lines: int, function: str = "count") -> dict[str, Any]:
    """split -> count (by word, stateful) -> files.

    ``count`` puts out every word, and the last of each, that of the highest count, goes on.
    """
    spec = word_count(window=lines)
    spec["code"] = {"path": str(CODE)}
    spec["processors"] = [
        {"name": "split", "inputs": [{"from": "lines"}], "function": "shuffle_functions:split"},
        {
            "name": "count",
            "inputs": [{"from": "split", "key": ["word"]}],
            "function": f"shuffle_functions:{function}",
        },
    ]
    shown = "count"
    if function == "count":
        shown = "last"
        spec["processors"].append(
            {
                "name": "last",
                "inputs": [{"from": "count", "key": ["word"]}],
                "aggregate": {
                    "emit": "changes",
                    "columns": [{"name": "n", "function": "max", "of": "n"}],
                },
            }
        )
    spec["sinks"][0]["inputs"] = [{"from": shown}]
    return spec


if __name__ == "__main__":
    main()
