"""Documents that were written to break what reads them, and a generator of more.

``python hostile_documents.py SEED COUNT`` reads COUNT made-up documents, each with overrides, and
prints the most CPU seconds that one took and the process's peak memory in MB.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from millrace.topology.load import parse
from millrace.topology.problems import InvalidTopologyError

HEAD = "apiVersion: millrace.dev/v1alpha1\nkind: StreamTopology\nmetadata: {name: x}\nspec:\n"
BODY = (
    HEAD
    + "  sources: [{name: a, files: {path: t}}]\n"
    + "  sinks: [{name: o, inputs: [{from: a}], files: {path: o}}]\n"
)


def chain(parts: int, key: str = "") -> str:
    """A chain of so many processors."""
    lines = [f"{HEAD}  sources: [{{name: p0, generator: {{count: 1}}}}]\n  processors:\n"]
    lines += [
        f"    - {{name: p{n + 1}, function: 'm:f', inputs: [{{from: p{n}{key}}}]}}\n"
        for n in range(parts)
    ]
    last = f"  sinks: [{{name: o, inputs: [{{from: p{parts}}}], files: {{path: o}}}}]\n"
    return "".join([*lines, last])


def tangle(parts: int, inputs: int) -> str:
    """Every processor leads to every other, itself included."""
    edges = ", ".join(f"{{from: p{n}}}" for n in range(inputs))
    lines = [f"    - {{name: p{n}, function: 'm:f', inputs: [{edges}]}}\n" for n in range(parts)]
    return BODY + "  processors:\n" + "".join(lines)


def strangers(parts: int, inputs: int) -> str:
    """Inputs from names that nobody has."""
    lines = [
        f"    - {{name: p{n}, function: 'm:f', inputs: ["
        + ", ".join(f"{{from: q{n}x{m}}}" for m in range(inputs))
        + "]}\n"
        for n in range(parts)
    ]
    return BODY + "  processors:\n" + "".join(lines)


def _bomb(line: str, item: str) -> str:
    first = "  b0: &b0 [x, x, x]\n" if item == "list" else "  b0: &b0 {k: 1, l: 2}\n"
    return (
        HEAD
        + first
        + "".join(line.format(n=n, nine=", ".join([f"*b{n - 1}"] * 9)) for n in range(1, 13))
    )


DOCUMENTS: dict[str, str] = {
    "aliases": _bomb("  b{n}: &b{n} [{nine}]\n", "list"),
    "merges": _bomb("  b{n}: &b{n} {{<<: [{nine}], k{n}: 1}}\n", "map"),
    "20,000 parts": chain(20_000),
    "parts in 1 MB": chain(8_000),
    "too many parts": chain(1_100),
    "depth 5,000": HEAD + "  x: " + "[" * 5000 + "]" * 5000,
    "maps 5,000 deep": HEAD + "  x: " + "{a: " * 5000 + "1" + "}" * 5000,
    "blocks 1,000 deep": HEAD + "".join(" " * (2 + n) + "a:\n" for n in range(1000)),
    "tangle": tangle(60, 60),
    "strangers": strangers(500, 6),
    "unknown fields": BODY + "".join(f"  k{n}: 1\n" for n in range(9000)),
    "50,000 fields": BODY + "".join(f"  k{n}: 1\n" for n in range(50_000)),
    "long name": BODY + f"  {'k' * 900_000}: 1\n",
    "50 MB": BODY + f"  x: '{'a' * 50_000_000}'\n",
    "huge duration": BODY + f"  tupleTimeout: {'9' * 4000}h\n",
    "many terms": BODY + f"  tupleTimeout: '{'9h' * 400_000}'\n",
    "an age": BODY + "  tupleTimeout: 99999999h\n",
    "digits": BODY + f"  keyGroups: {'9' * 10_000}\n",
    "base 60": BODY + f"  keyGroups: {'1:' * 400_000}1\n",
    "nested arrays": BODY.replace(
        "path: t", f"path: t, format: csv, schema: 'a {'array<' * 5000}int{'>' * 5000}'"
    ),
    "nul": BODY + '  code: {path: "a\\0b"}\n',
    "escape": BODY + '  code: {path: "a\\e[31mb"}\n',
    "half a character": BODY + '  code: {path: "a\\ud800b"}\n',
    "right to left": BODY + '  code: {path: "a\\u202eb"}\n',
}

VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 2**200, 1.5, float("nan"), float("inf"), "", " ", "x" * 5000,
    "a\x1b[2Jb", "\0", "\u202e", "\ud800", [], {}, [[]] * 50, {"a": {"b": {}}}, "1h" * 60,
    "../..", "/", "*" * 300, "[" * 300, "**/*", "redis://[", "m:f", "a b", "{", "{x}", "é" * 90,
    "`", "array<" * 40, {"from": "p0"}, [{"from": "p1", "key": ["k"]}], "2024-02-30", "=", "<<",
]  # fmt: skip
STEPS = ["spec", "metadata", "sources", "sinks", "processors", "inputs", "window", "0", "9" * 30]
TOKENS = ["&a ", "*a", "<<: *a", "- ", ": ", "\t", "{", "}", "[", "]", "'", '"', "!!x ", "---\n"]


def document(chance: random.Random) -> str:
    """A topology of random parts and edges with some values spoilt, sometimes its text too."""
    names = [f"p{n}" for n in range(chance.randrange(1, 40))]

    def inputs() -> list[dict[str, Any]]:
        return [
            {
                "from": chance.choice(names),
                **chance.choice([{}, {"key": ["k"]}, {"broadcast": True}]),
            }
            for _ in range(chance.randrange(1, 4))
        ]

    sections: dict[str, list[dict[str, Any]]] = {"sources": [], "processors": [], "sinks": []}
    for name in names:
        section = chance.choice(list(sections))
        part: dict[str, Any] = {"name": name}
        if section == "sources":
            part["files"] = {"path": chance.choice(["t", "t/*", "**", "o", "../t"])}
        else:
            part["inputs"] = inputs()
            kind = {"processors": ("sql", {"select": ["*"]}), "sinks": ("files", {"path": "o"})}
            part |= dict([kind[section]])
        sections[section].append(part)
    data: Any = {**yaml.safe_load(HEAD), "spec": sections}
    for _ in range(chance.randrange(4)):
        _spoil(data, chance)
    text = yaml.safe_dump(data, allow_unicode=True)
    for _ in range(chance.choice([0, 0, 1, 5])):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(TOKENS) + text[at + chance.randrange(3) :]
    return text


def _spoil(data: Any, chance: random.Random) -> None:
    at = data
    while isinstance(at, dict | list) and at:
        place = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if chance.random() < 0.3 or not isinstance(at[place], dict | list):
            at[place] = chance.choice(VALUES)
            return
        at = at[place]


def overrides(chance: random.Random) -> list[str]:
    """Some ``--set`` texts, few of which fit."""
    found = []
    for _ in range(chance.randrange(3)):
        steps = [chance.choice(STEPS) for _ in range(chance.randrange(1, 6))]
        path = "".join(chance.choice(["[{}]", ".{}"]).format(step) for step in steps)
        value = chance.choice([str(chance.choice(VALUES)), "&a [*a]", "{<<: {}}", "[" * 100])
        found.append(f"spec{path}={value}")
    return found


def main() -> None:
    chance = random.Random(int(sys.argv[1]))
    most_s = 0.0
    outcomes = {"valid": 0, "refused": 0, "unexplained": 0}
    for _ in range(int(sys.argv[2])):
        try:
            text = document(chance)
        except (UnicodeEncodeError, ValueError):
            continue  # the generator's own YAML cannot hold it
        began_s = time.process_time()
        try:
            parse(text, overrides(chance), Path("/nowhere"), import_code=False)
            outcomes["valid"] += 1
        except InvalidTopologyError as error:
            told = [problem for problem in error.problems if problem.message and problem.remedy]
            outcomes["refused" if told else "unexplained"] += 1
        most_s = max(most_s, time.process_time() - began_s)
    print(json.dumps({"mostS": most_s, "peakMb": peak_mb(), **outcomes}))


def peak_mb() -> float:
    """The most memory that this process had; the kernel's ``maxrss`` begins with the parent's."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
