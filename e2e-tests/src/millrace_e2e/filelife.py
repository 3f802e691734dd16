"""What other programs do to a folder of log files while it is read, and what must come out.

Files are created, grow, are renamed, change names with each other, are rotated in chains, removed,
taken out of the folder and brought back, perhaps longer; some come as twins of equal content. A
file is taken away only when all its lines are shown and its name has been seen, and its name is
given to another file only when its absence has been seen, or at once to one that was begun, as the
documentation asks. The same seed does the same. Nothing of the runtime is imported.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace_e2e import ledger

OLDEST = 4
MOST_FILES = 14
MOST_MADE = 1_000
"""Files of a folder, so that those of folders that are read together have labels of their own."""

MOST_LINES = 30
"""Lines that a file grows by at once: less and more than the windows of the histories hold."""


@dataclass(eq=False)
class LogFile:
    """A file, by whatever name: ``lines`` were written; ``twin`` has an equal one beside it.

    ``named`` counts the files that were made before it had its present name.
    """

    label: str
    name: str
    lines: int = 0
    twin: bool = False
    named: int = 0


@dataclass
class Folder:
    """Lives of the files in ``inbox``; ``away`` is another folder of the same file system."""

    inbox: Path
    away: Path
    seed: int
    present: dict[str, LogFile] = field(default_factory=dict)
    absent: list[LogFile] = field(default_factory=list)
    every: list[LogFile] = field(default_factory=list)
    shown: Counter[tuple[str, int]] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    left: dict[str, tuple[LogFile, int]] = field(default_factory=dict)
    """The file that went from under a name, and how many files had been made by then."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._made = self.seed * MOST_MADE
        for folder in (self.inbox, self.away):
            folder.mkdir(parents=True, exist_ok=True)
        self._create("app.log")

    @property
    def due(self) -> int:
        """Lines that were written so far."""
        return sum(file.lines for file in self.every)

    def has(self, row: ledger.Row) -> bool:
        """Whether a row is of a line of this folder."""
        return int(row["file"][1:]) // MOST_MADE == self.seed

    def step(self) -> None:
        """One thing happens, by chance."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (8, self._append),
            (3, self._new),
            (1, self._twins),
            (3, self._rename),
            (2, self._swap),
            (3, self._rotate),
            (2, self._remove),
            (2, self._take_away),
            (2, self._bring_back),
        ]
        weights = [weight for weight, _ in kinds]
        ((_, act),) = self._chance.choices(kinds, weights)
        before = self.done.total()
        act()
        if self.done.total() > before:
            return
        self._append()

    # -- what happens

    def _append(self) -> None:
        file = self._pick(lambda f: not f.twin)
        if file is None:
            return
        data = self._more(file)
        cut = self._chance.randrange(len(data)) if self._chance.random() < 0.3 else len(data)
        for part in (data[:cut], data[cut:]):
            with (self.inbox / file.name).open("ab") as out:
                out.write(part)
        self.done["append"] += 1

    def _new(self) -> None:
        if len(self.present) < MOST_FILES:
            self._create(f"f{self._made:04d}.log")
            self.done["new"] += 1

    def _twins(self) -> None:
        if len(self.present) >= MOST_FILES:
            return
        label = f"t{self._made:04d}"
        lines = self._chance.randint(1, 30)
        for end in "ab":
            file = LogFile(label, f"{label}{end}.log", lines, twin=True)
            self._add(file, "".join(f"{label} {i}\n" for i in range(lines)).encode())
        self.done["twins"] += 1

    def _rename(self) -> None:
        file = self._pick(lambda f: not f.name.startswith("app"))
        if file is not None:
            self._made += 1
            self._move(file, f"r{self._made:04d}.log")
            self.done["rename"] += 1

    def _swap(self) -> None:
        """Two or three files change names, by way of names that are not read."""
        files = [f for f in self.present.values() if not f.name.startswith("app")]
        count = self._chance.choice((2, 2, 3))
        if len(files) < count:
            return
        chosen = self._chance.sample(sorted(files, key=lambda f: f.name), count)
        names = [f.name for f in chosen]
        for file in chosen:
            self._move(file, f".{file.name}.swap")
        for file, name in zip(chosen, [*names[1:], names[0]], strict=True):
            self._move(file, name)
        self.done["swap"] += 1

    def _rotate(self) -> None:
        """app.log → app.log.1 → …; the oldest is written over."""
        names = ["app.log", *(f"app.log.{number}" for number in range(1, OLDEST + 1))]
        if any(self._held(name) for name in names):
            return
        oldest, next_oldest = (self.present.get(f"app.log.{n}") for n in (OLDEST, OLDEST - 1))
        if oldest is not None:
            if not self._may_go(oldest) or (next_oldest and not self.shown[next_oldest.label, 0]):
                return
            del self.present[oldest.name]
        for number in range(OLDEST - 1, -1, -1):
            file = self.present.get(f"app.log.{number}" if number else "app.log")
            if file is not None:
                self._move(file, f"app.log.{number + 1}")
        if oldest is not None and oldest.name not in self.present:
            (self.inbox / oldest.name).unlink()
            self.left[oldest.name] = (oldest, self._made)
        self._create("app.log")
        self.done["rotate"] += 1

    def _remove(self) -> None:
        file = self._pick(self._may_go)
        if file is not None:
            (self.inbox / file.name).unlink()
            del self.present[file.name]
            self.left[file.name] = (file, self._made)
            self.done["remove"] += 1

    def _take_away(self) -> None:
        file = self._pick(lambda f: not f.twin and self._may_go(f))
        if file is not None:
            (self.inbox / file.name).rename(self.away / file.label)
            del self.present[file.name]
            self.left[file.name] = (file, self._made)
            self.absent.append(file)
            self.done["take away"] += 1

    def _bring_back(self) -> None:
        """Under its own name, or under another one."""
        if not self.absent:
            return
        file = self.absent.pop(self._chance.randrange(len(self.absent)))
        if self._chance.random() < 0.5:
            with (self.away / file.label).open("ab") as out:
                out.write(self._more(file))
        held = file.name in self.present or self._held(file.name, file)
        if held or self._chance.random() < 0.3:
            self._made += 1
            file.name = f"b{self._made:04d}.log"
        (self.away / file.label).rename(self.inbox / file.name)
        self.present[file.name] = file
        file.named = self._made
        self.done["bring back"] += 1

    # -- how

    def _create(self, name: str) -> None:
        file = LogFile(f"f{self._made:04d}", name)
        self._add(file, self._more(file))

    def _add(self, file: LogFile, data: bytes) -> None:
        self._made += 1
        (self.inbox / file.name).write_bytes(data)
        self.present[file.name] = file
        self.every.append(file)
        file.named = self._made

    def _more(self, file: LogFile) -> bytes:
        first, file.lines = file.lines, file.lines + self._chance.randint(1, MOST_LINES)
        return "".join(f"{file.label} {i}\n" for i in range(first, file.lines)).encode()

    def _move(self, file: LogFile, name: str) -> None:
        (self.inbox / file.name).rename(self.inbox / name)
        if self.present.get(file.name) is file:
            del self.present[file.name]
        file.name = name
        self.present[name] = file
        file.named = self._made

    def _pick(self, fits: Callable[[LogFile], bool]) -> LogFile | None:
        files = [f for _, f in sorted(self.present.items()) if fits(f)]
        return self._chance.choice(files) if files else None

    def _may_go(self, file: LogFile) -> bool:
        """All its lines are shown, and those of a file that came after it had its name."""
        copies = 2 if file.twin else 1
        if any(self.shown[file.label, i] < copies for i in range(file.lines)):
            return False
        return self._looked_since(file.named)

    def _held(self, name: str, by: LogFile | None = None) -> bool:
        """Whether another file than ``by`` went from a name and that may not have been seen."""
        file, made = self.left.get(name, (by, 0))
        return file is not by and not self._looked_since(made)

    def _looked_since(self, made: int) -> bool:
        """Whether a file is shown that came when so many had been made."""
        return any(int(f.label[1:]) >= made and self.shown[f.label, 0] for f in self.every)


@dataclass
class Sink:
    """The rows of a files sink, read as its files appear."""

    folder: Path
    rows: list[ledger.Row] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def read(self, *folders: Folder) -> int:
        """Take in what is new; answers with how many rows there are."""
        for path in ledger.visible_files(self.folder):
            if path not in self.seen:
                self.seen.add(path)
                for row in ledger.rows_of(path):
                    self.rows.append(row)
                    for folder in folders:
                        folder.shown[row["file"], row["line"]] += 1
        return len(self.rows)


def check(folder: Folder, rows: list[ledger.Row]) -> list[str]:
    """What is wrong: each line of each file is due once, in its order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        found.setdefault(row["file"], []).append((row["n"], row["line"]))
    problems = []
    twins = {file.label: file.lines for file in folder.every if file.twin}
    for label in sorted(found.keys() | {f.label for f in folder.every}):
        pairs = sorted(found.get(label, []))
        lines = [line for _, line in pairs]
        if [n for n, _ in pairs] != list(range(1, len(pairs) + 1)):
            problems.append(f"{label}: its lines are numbered {[n for n, _ in pairs]}")
        if label in twins:
            due = sorted([*range(twins[label])] * 2)
            lines = sorted(lines)
        else:
            due = list(range(sum(f.lines for f in folder.every if f.label == label)))
        if lines != due:
            problems.append(f"{label}: {len(due)} lines due, came {lines}")
    return problems


def topology(
    max_records: int, orders: Mapping[str, str], spark: dict[str, str]
) -> dict[str, object]:
    """The topology's document; its folders lie beside the file. ``orders`` has the folders that are
    read, each with the order of its files."""
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "files-life"},
        "spec": {
            "window": {"maxRecords": max_records, "maxInterval": "20ms"},
            "keyGroups": 16,
            "code": {"path": os.fspath(Path(__file__).with_name("apps"))},
            "spark": {"conf": spark, "driver": {"memory": "512m", "standby": 0}},
            "sources": [
                {"name": texts, "files": {"path": texts, "watch": True, "order": order}}
                for texts, order in orders.items()
            ],
            "processors": [
                {
                    "name": "parse",
                    "inputs": [{"from": texts} for texts in orders],
                    "function": "files_life:parse",
                },
                {
                    "name": "number",
                    "inputs": [{"from": "parse", "key": ["file"]}],
                    "function": "files_life:number",
                },
            ],
            "sinks": [
                {"name": "numbers", "inputs": [{"from": "number"}], "files": {"path": "numbers"}}
            ],
        },
    }
