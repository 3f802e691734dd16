"""The file of a topology as its user edits it: whatever a document can say that the protocol goes
by is drawn, and what the product has to refuse is drawn on its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Document = dict[str, Any]
Part = dict[str, Any]

NAMES = {"sources": "abc", "processors": "pq", "sinks": "xyz"}
RENAMED = "renamed"
TTLS = (None, "5s", "1h")


class TopologyFile:
    """One file. A component that is new, or comes back, reads, runs or shows something that no
    component of the file has had so far."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._made = 0
        self.spec: Document = {"keyGroups": 4, "stateServers": {"replicas": 2}}
        self.spec.update({section: [] for section in NAMES})
        self._held = self._named()
        for section in NAMES:
            self._choose(section)
        for setting in _SETTINGS:
            setting(self)
        self._wire()

    def document(self) -> Document:
        return copy.deepcopy(
            {
                "apiVersion": "millrace.dev/v1alpha1",
                "kind": "StreamTopology",
                "metadata": {"name": "edited"},
                "spec": self.spec,
            }
        )

    def edit(self) -> None:
        """An edit that a restart applies, or several at once."""
        self._held = self._named()
        for _ in range(self.rng.choice((1, 1, 2))):
            self.rng.choice(_EDITS)(self)
        self._wire()

    def resize(self) -> int:
        """An edit that a driver takes while it runs: gives the new size of windows."""
        size = self.rng.choice([n for n in (1, 2, 3, 7) if n != self.max_records])
        self.spec["window"] = {"maxRecords": size}
        return size

    def refused(self) -> tuple[str, Document]:
        """An edit that state, offsets or sinks would not survive, and its document."""
        spoil = self.rng.choice(REFUSED)
        document = self.document()
        spoil(document["spec"], self)
        return spoil.__name__.strip("_"), document

    @property
    def max_records(self) -> int:
        return self.spec["window"]["maxRecords"]

    def new(self) -> int:
        self._made += 1
        return self._made

    # -- components

    def choose(self) -> None:
        self._choose(self.rng.choice(list(NAMES)))

    def _choose(self, section: str) -> None:
        held = {**self._held[section], **self._named()[section]}
        chosen = [name for name in NAMES[section] if self.rng.random() < 0.6]
        chosen = chosen or [self.rng.choice(NAMES[section])]
        self.spec[section] = [held.get(n) or self._make(section, n) for n in chosen]

    def _named(self) -> dict[str, dict[str, Part]]:
        return {section: {p["name"]: p for p in self.spec[section]} for section in NAMES}

    def _make(self, section: str, name: str) -> Part:
        if section == "sources":
            return {"name": name, "generator": {"seed": self.new()}}
        if section == "sinks":
            return {"name": name, "inputs": [], "console": {}}
        key = self.rng.choice(("key", "other"))
        what: Part = {"function": f"words:v{self.new()}"}
        if self.rng.random() < 0.4:
            column = {"name": f"n{self.new()}", "function": "count"}
            what = {"aggregate": {"columns": [column], "emit": "changes"}}
        return {"name": name, "inputs": [{"from": "", "key": [key]}], **what}

    def steps(self) -> list[Part]:
        return self.spec["processors"]

    def version(self) -> None:
        for step in self.steps():
            if "function" in step:
                step["function"] = f"words:v{self.new()}"

    def emit(self) -> None:
        for step in self.steps():
            if "aggregate" in step:
                step["aggregate"]["emit"] = self.rng.choice(("changes", "final"))

    def ttl(self) -> None:
        for step in self.steps():
            step["ttl"] = self.rng.choice(TTLS)

    # -- edges

    def rewire(self) -> None:
        for part in (*self.steps(), *self.spec["sinks"]):
            if self.rng.random() < 0.6:
                part["inputs"] = [{**part["inputs"][0], "from": ""}] if part["inputs"] else []

    def _wire(self) -> None:
        """Every edge has both ends, and every component somebody who reads it."""
        sources = [part["name"] for part in self.spec["sources"]]
        before = list(sources)
        for step in self.steps():
            self._feed(step, before, step["inputs"][0]["key"])
            if "function" in step:
                before.append(step["name"])
        everything = [*sources, *(step["name"] for step in self.steps())]
        for sink in self.spec["sinks"]:
            self._feed(sink, everything, [])
        read = {
            one["from"] for part in (*self.steps(), *self.spec["sinks"]) for one in part["inputs"]
        }
        for name in everything:
            if name not in read:
                self.rng.choice(self.spec["sinks"])["inputs"].append({"from": name, "key": []})

    def _feed(self, part: Part, producers: list[str], key: list[str]) -> None:
        kept = [one["from"] for one in part["inputs"] if one["from"] in producers]
        if not kept:
            kept = self.rng.sample(producers, self.rng.randint(1, min(2, len(producers))))
        part["inputs"] = [{"from": name, "key": key} for name in kept]

    # -- settings

    def guarantee(self) -> None:
        self.spec["guarantee"] = self.rng.choice(
            ("ExactlyOnce", "ExactlyOnce", "AtLeastOnce", "AtMostOnce")
        )

    def replays(self) -> None:
        self.spec["ackers"] = {
            "maxReplays": self.rng.randint(1, 3),
            "backoff": self.rng.choice(("500ms", "2s")),
        }

    def share(self) -> None:
        self.spec["deadLetters"] = {"maxShare": self.rng.choice(("100%", "100%", "12%"))}

    def size(self) -> None:
        self.spec["window"] = {"maxRecords": self.rng.choice((1, 2, 3, 7))}

    def copies(self) -> None:
        self.spec["stateServers"] = {"replicas": 2, "copies": self.rng.randint(1, 2)}

    def tracking(self) -> None:
        self.spec["tracking"] = self.rng.choice(("On", "Off"))


_SETTINGS: tuple[Callable[[TopologyFile], None], ...] = (
    TopologyFile.guarantee,
    TopologyFile.replays,
    TopologyFile.share,
    TopologyFile.size,
    TopologyFile.copies,
    TopologyFile.tracking,
)

_EDITS: tuple[Callable[[TopologyFile], None], ...] = (
    *(TopologyFile.choose,) * 6,
    *(TopologyFile.rewire, TopologyFile.version, TopologyFile.emit, TopologyFile.ttl),
    *_SETTINGS,
)


def _seed(spec: Document, file: TopologyFile) -> None:
    file.rng.choice(spec["sources"])["generator"]["seed"] = file.new()


def _renamed_source(spec: Document, file: TopologyFile) -> None:
    _rename(spec, file.rng.choice(spec["sources"]))


def _renamed_step(spec: Document, file: TopologyFile) -> None:
    _rename(spec, file.rng.choice(spec["processors"]))


def _rename(spec: Document, part: Part) -> None:
    old, part["name"] = part["name"], RENAMED
    for reader in (*spec["processors"], *spec["sinks"]):
        for edge in reader["inputs"]:
            edge["from"] = RENAMED if edge["from"] == old else edge["from"]


def _key(spec: Document, file: TopologyFile) -> None:
    step = file.rng.choice(spec["processors"])
    for edge in step["inputs"]:
        edge["key"] = ["other" if edge["key"] == ["key"] else "key"]


def _kind_of_step(spec: Document, file: TopologyFile) -> None:
    step = file.rng.choice(spec["processors"])
    if step.pop("aggregate", None) is None:
        del step["function"]
        column = {"name": "n", "function": "count"}
        step["aggregate"] = {"columns": [column], "emit": "changes"}
    else:
        step["function"] = f"words:v{file.new()}"


def _kind_of_sink(spec: Document, file: TopologyFile) -> None:
    sink = file.rng.choice(spec["sinks"])
    del sink["console"]
    sink["files"] = {"path": "out"}


def _key_groups(spec: Document, file: TopologyFile) -> None:
    spec["keyGroups"] = 8


REFUSED: tuple[Callable[[Document, TopologyFile], None], ...] = (
    _seed,
    _renamed_source,
    _renamed_step,
    _key,
    _kind_of_step,
    _kind_of_sink,
    _key_groups,
)


# -- what a document promises


def part(document: Document, section: str, name: str) -> Part:
    return next(one for one in document["spec"][section] if one["name"] == name)


def reached(document: Document, source: str) -> tuple[list[str], set[str]]:
    """The processors and sinks that a record of a source comes to. What an aggregate puts out at
    the end is another record."""
    here, steps = {source}, []
    for step in document["spec"]["processors"]:
        if here & {edge["from"] for edge in step["inputs"]}:
            steps.append(step["name"])
            if not final(step):
                here.add(step["name"])
    sinks = {
        s["name"] for s in document["spec"]["sinks"] if here & {e["from"] for e in s["inputs"]}
    }
    return steps, sinks


def final(step: Part) -> bool:
    return step.get("aggregate", {}).get("emit") == "final"


def totals(document: Document) -> Iterator[tuple[str, str]]:
    """(processor, sink) of all totals that are shown at the end."""
    ends = [step["name"] for step in document["spec"]["processors"] if final(step)]
    for sink in document["spec"]["sinks"]:
        read = {edge["from"] for edge in sink["inputs"]}
        yield from ((name, sink["name"]) for name in ends if name in read)


def kept_under(document: Document, name: str) -> tuple[Any, ...]:
    """What a processor's state is bound to: its kind, key, columns and the key groups."""
    step = part(document, "processors", name)
    columns = [repr(one) for one in step.get("aggregate", {}).get("columns", ())]
    return (*step["inputs"][0]["key"], *columns, document["spec"]["keyGroups"])


def code_of(document: Document, name: str) -> str | None:
    return part(document, "processors", name).get("function")
