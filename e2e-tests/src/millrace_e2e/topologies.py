"""The topology of the fault histories, as the file that a user would write.

::

    lines ─ parse ─┬─ split ─ counts (aggregate by word) ─┬─ totals  (files)
                   │                                      └─ hashes  (redis, upserts)
                   ├─ measure ─┬─ rows    (files)
                   │           └─ entries (redis, stream)
                   └─ number (stateful, by bucket) ─ numbers (files)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace_e2e import quickjvm
from millrace_e2e.harness import APPS

HASHES = "wc:"
ENTRIES = "rows"


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between histories. ``redis`` is the URL of a server for two further sinks,
    ``numbers`` the function that numbers the lines of each bucket.

    ``standby`` None is the product's own default; a second Spark for each history that does not
    look at it would only make all of them slower.
    """

    guarantee: str = "ExactlyOnce"
    max_records: int = 1000
    redis: str | None = None
    executors: int = 0
    parallelism: int = 2
    ackers: int = 1
    max_replays: int = 1
    watch: bool = False
    tuple_timeout: str = "30s"
    state_url: str | None = None
    servers: int = 1
    copies: int = 1
    state_memory: str | None = None
    numbers: str = "number"
    ttl: str | None = None
    standby: int | None = 0
    conf: Mapping[str, str] = field(default_factory=dict)


def history(shape: Shape, name: str = "history") -> dict[str, Any]:
    """The topology's document; its folders lie beside the file."""
    sinks: list[dict[str, Any]] = [
        _files("totals", "counts"),
        _files("rows", "measure"),
        _files("numbers", "number"),
    ]
    if shape.redis is not None:
        hashes = {"url": shape.redis, "mode": "hash", "key": HASHES + "{word}"}
        entries = {"url": shape.redis, "mode": "stream", "stream": ENTRIES}
        sinks += [
            {"name": "hashes", "inputs": [{"from": "counts"}], "redis": hashes},
            {"name": "entries", "inputs": [{"from": "measure"}], "redis": entries},
        ]
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": name},
        "spec": {**_settings(shape), "processors": _processors(shape), "sinks": sinks},
    }


def _settings(shape: Shape) -> dict[str, Any]:
    quick = quickjvm.options()
    conf = {
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        **shape.conf,
    }
    servers: dict[str, Any] = {"replicas": shape.servers, "copies": shape.copies}
    if shape.state_url is not None:
        servers = {"url": shape.state_url}
    if shape.state_memory is not None:
        servers["memory"] = shape.state_memory
    return {
        "guarantee": shape.guarantee,
        "window": {"maxRecords": shape.max_records, "maxInterval": "50ms"},
        "ackers": {
            "replicas": shape.ackers,
            "maxReplays": shape.max_replays,
            "backoff": "50ms",
        },
        "tupleTimeout": shape.tuple_timeout,
        "stateServers": servers,
        "parallelism": shape.parallelism,
        "keyGroups": 16,
        "code": {"path": str(APPS)},
        "spark": {
            "conf": conf,
            "driver": {"memory": "512m"}
            | ({} if shape.standby is None else {"standby": shape.standby}),
            "executors": {"instances": shape.executors, "cores": 1, "memory": "512m"},
        },
        "sources": [
            {"name": "lines", "files": {"path": "texts", "format": "text", "watch": shape.watch}}
        ],
    }


def _processors(shape: Shape) -> list[dict[str, Any]]:
    return [
        {"name": "parse", "inputs": [{"from": "lines"}], "function": "history:parse"},
        {"name": "split", "inputs": [{"from": "parse"}], "function": "history:split"},
        {
            "name": "counts",
            "inputs": [{"from": "split", "key": ["word"]}],
            "aggregate": {"emit": "changes", "columns": [{"name": "n", "function": "count"}]},
        },
        {"name": "measure", "inputs": [{"from": "parse"}], "function": "history:measure"},
        {
            "name": "number",
            "inputs": [{"from": "parse", "key": ["bucket"]}],
            "function": f"history:{shape.numbers}",
            **({"ttl": shape.ttl} if shape.ttl is not None else {}),
        },
    ]


def _files(name: str, producer: str) -> dict[str, Any]:
    files = {"path": name, "format": "jsonLines"}
    return {"name": name, "inputs": [{"from": producer}], "files": files}


def measured(name: str, sinks: list[dict[str, Any]]) -> dict[str, Any]:
    """Two steps of the history behind one folder that is read to its end, in small windows.

    ``sinks`` have ``measure`` as their input.
    """
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": name},
        "spec": {
            "window": {"maxRecords": 10, "maxInterval": "50ms"},
            "code": {"path": str(APPS)},
            "parallelism": 1,
            "spark": {"conf": quick, "driver": {"memory": "512m", "standby": 0}},
            "sources": [
                {"name": "lines", "files": {"path": "texts", "format": "text", "watch": False}}
            ],
            "processors": [
                {"name": "parse", "inputs": [{"from": "lines"}], "function": "history:parse"},
                {"name": "measure", "inputs": [{"from": "parse"}], "function": "history:measure"},
            ],
            "sinks": sinks,
        },
    }


def remembered(of_a_window: int, watch: bool = False, **spec: Any) -> dict[str, Any]:
    """A count of words and a numbering of lines, both of which remember every key, in windows of
    so many lines; ``spec`` replaces fields."""
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "remembers"},
        "spec": {
            "window": {"maxRecords": of_a_window, "maxInterval": "50ms"},
            "code": {"path": str(APPS)},
            "parallelism": 2,
            "spark": {"conf": quick, "driver": {"memory": "512m", "standby": 0}},
            "sources": [
                {"name": "lines", "files": {"path": "texts", "format": "text", "watch": watch}}
            ],
            "processors": [
                {"name": "parse", "inputs": [{"from": "lines"}], "function": "history:parse"},
                {"name": "split", "inputs": [{"from": "parse"}], "function": "history:split"},
                {
                    "name": "count",
                    "inputs": [{"from": "split", "key": ["word"]}],
                    "aggregate": {"columns": [{"name": "n", "function": "count"}]},
                },
                {
                    "name": "number",
                    "inputs": [{"from": "parse", "key": ["bucket"]}],
                    "function": "history:number",
                },
            ],
            "sinks": [
                {"name": f"{name}s", "inputs": [{"from": name}], "files": {"path": f"{name}s"}}
                for name in ("count", "number")
            ],
            **spec,
        },
    }


def compiled_words(of_a_window: int, **spec: Any) -> dict[str, Any]:
    """A count of the words of lines that calls no code of the user's, in windows of so many lines;
    ``spec`` replaces fields."""
    topology = remembered(of_a_window, **spec)
    told = topology["spec"]
    split = {"column": "value", "into": "word"}
    told["processors"] = [
        {"name": "split", "inputs": [{"from": "lines"}], "split": split},
        *(one for one in told["processors"] if one["name"] == "count"),
    ]
    told["sinks"] = [one for one in told["sinks"] if one["name"] == "counts"]
    return topology


def word_count(source: Mapping[str, Any]) -> dict[str, Any]:
    """The example's sources, processors and sinks; ``source`` is what its files source has beside
    its path."""
    aggregate = {"columns": [{"name": "n", "function": "count"}]}
    written = {"path": "counts", "format": "jsonLines"}
    return {
        "sources": [{"name": "lines", "files": {"path": "texts", **source}}],
        "processors": [
            {"name": "split", "inputs": [{"from": "lines"}], "function": "wordcount:split"},
            {
                "name": "counts",
                "inputs": [{"from": "split", "key": ["word"]}],
                "aggregate": aggregate,
            },
        ],
        "sinks": [{"name": "totals", "inputs": [{"from": "counts"}], "files": written}],
    }
