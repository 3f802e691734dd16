"""Every field of a topology is edited: what the edit says is what the next start goes by.

A topology is accepted in a work folder, edited, and accepted again by what ``millrace run`` does
at its start; then the parts of a run are made from the files that it left, by the code that makes
them in a run, and say what they got. A refused edit leaves these files as they were. Whether roots,
state and sinks survive edits is judged over whole histories (``test_generated_edits``, ``e2e``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from millrace.clock import SystemClock
from millrace.engine.driver.process import DriverProcess, settings_of
from millrace.engine.jobs.ahead import session_settings
from millrace.engine.jobs.session import session_conf
from millrace.engine.jobs.start import code_path
from millrace.engine.program.compile import CompileOptions, compile_topology
from millrace.engine.program.program import Component, Program
from millrace.errors import TopologyError
from millrace.homes.passwords import shared
from millrace.homes.told import read_settings, read_topology
from millrace.local import launch
from millrace.local.workdir import WorkFolder, open_folder
from millrace.sources import Source
from millrace.topology.kinds.base import Effect
from millrace.topology.load import LoadedTopology, load
from millrace.topology.problems import InvalidTopologyError
from millrace.topology.schema import reference

RESTART, REFUSED, NONE = Effect.RESTART, Effect.REFUSED, Effect.NONE

CODE = """
import pyarrow as pa

from millrace import row, where
from millrace.sinks import Sink
from millrace.sources import ReadBatch, Source, SourcePlan
from millrace.topology.parts import Guarantee


@row(output="word string, size long")
def split(line):
    yield from ({"word": word, "size": len(word)} for word in line["value"].split())


@row(output="word string, size long")
def whole(line):
    yield {"word": line["value"], "size": len(line["value"])}


@where
def some(row):
    return True


class Steps(Source):
    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        return SourcePlan((), offsets, True)

    def read(self, piece):
        return iter(())


class Others(Steps):
    pass


class Mute(Sink):
    guarantees = tuple(Guarantee)

    def prepare(self, uid, fresh=False, overwrite=False):
        pass

    def check_fresh(self, overwrite):
        pass

    def fence(self, execution):
        pass

    def last_shown(self):
        return None

    def stage(self, name, batches):
        return None

    def publish(self, sealed, mine, execution, step=None):
        pass


class Deaf(Mute):
    pass
"""

BASE = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: edited}
spec:
  guarantee: AtLeastOnce
  sources:
    - {name: lines, files: {path: texts, watch: true}}
    - {name: rows, files: {path: rows, format: jsonLines, schema: "k string, v long", watch: false}}
    - {name: made, generator: {seed: 1, count: 10, rate: 5, partitions: 2}}
    - {name: own, custom: {class: "words:Steps", options: {step: 1}}}
  processors:
    - {name: split, inputs: [{from: lines}], function: "words:split"}
    - {name: picked, inputs: [{from: made}], sql: {select: ["id", "key"], where: "id > 0"}}
    - {name: kept, inputs: [{from: rows}], function: "words:some"}
    - {name: cut, inputs: [{from: rows}], split: {column: k, into: piece, delimiter: ","}}
    - name: read
      inputs: [{from: rows}]
      json: {column: k, columns: [{name: a, type: long}, {name: b, type: string}]}
    - name: found
      inputs: [{from: rows}]
      lookup:
        table: {path: held.txt, format: csv, schema: "k string, m string"}
        key: [{column: k}]
        columns: [{name: m}]
    - name: counts
      inputs: [{from: split, key: [word]}]
      aggregate: {columns: [{name: n, function: count}, {name: last, function: max, of: word}]}
  sinks:
    - {name: out, inputs: [{from: counts}], files: {path: out}}
    - {name: ids, inputs: [{from: picked}], redis: {url: "redis://h:1", key: "id:{id}"}}
    - {name: log, inputs: [{from: kept}], redis: {url: "redis://h:1", mode: stream, stream: log}}
    - {name: seen, inputs: [{from: kept}], console: {}}
    - {name: cuts, inputs: [{from: cut}], console: {}}
    - {name: reads, inputs: [{from: read}], console: {}}
    - {name: finds, inputs: [{from: found}], console: {}}
    - {name: mute, inputs: [{from: own}], custom: {class: "words:Mute", options: {tone: 1}}}
"""


@dataclass(frozen=True)
class Start:
    """What a run made of a topology at its start, by what it left in the work folder."""

    folder: WorkFolder
    loaded: LoadedTopology

    @cached_property
    def told(self) -> Any:
        return read_settings(self.folder.driver)

    @cached_property
    def topology(self) -> Any:
        return read_topology(Path(self.told.topology))

    @cached_property
    def protocol(self) -> Any:
        return settings_of(self.topology, self.told.uid)

    @cached_property
    def program(self) -> Program:
        folder = Path(self.told.folder)
        code = code_path(self.topology, folder)
        return compile_topology(self.topology, CompileOptions(self.told.uid, folder, code))

    @cached_property
    def conf(self) -> dict[str, str]:
        return session_conf(session_settings(self.topology, Path(self.told.workdir)))

    @cached_property
    def processes(self) -> Any:
        return launch._Plan(self.folder, self.topology, self.folder.path).plan()

    def part(self, name: str) -> Component:
        return self.program.components[name]

    def driver(self, see: Callable[[Any], Any]) -> Any:
        """What a driver that is put together has among its equipment."""
        performer = DriverProcess(self.told, shared(None))._performer()
        try:
            return see(performer._equipment)
        finally:
            performer.close()

    def source(self, name: str) -> Source:
        return next(
            one for one in DriverProcess(self.told, shared(None))._sources if one.name == name
        )

    def planned(self, name: str, behind: Any = None) -> Any:
        return self.source(name).plan(behind, 100)

    def read(self, name: str, behind: Any = None) -> list[dict[str, Any]]:
        """The records that a source has behind a position."""
        source = self.source(name)
        batches = (source.read(piece) for piece in source.plan(behind, 100).ranges)
        return [row for batch in chain.from_iterable(batches) for row in batch.data.to_pylist()]


@dataclass(frozen=True)
class Case:
    """One edit, as ``--set`` says it; what it is said to be; what sees it, before and after.
    ``before`` is what the topology had that is edited."""

    edit: tuple[str, ...]
    effect: Effect
    sees: Callable[[Start], Any] = lambda start: None
    gives: tuple[Any, Any] = (None, None)
    reason: str = ""
    before: tuple[str, ...] = ()


def case(
    *edit: str,
    to: Effect = RESTART,
    reason: str = "",
    before: tuple[str, ...] = (),
    **sees: Any,
) -> Case:
    return Case(edit, to, **sees, reason=reason, before=before)


def sees(look: Callable[[Start], Any], was: Any, becomes: Any) -> dict[str, Any]:
    return {"sees": look, "gives": (was, becomes)}


def refused(*edit: str, reason: str = "change it back", before: tuple[str, ...] = ()) -> Case:
    return case(*edit, to=REFUSED, reason=reason, before=before)


def plan_of_snapshots(start: Start) -> Any:
    return start.driver(lambda e: e.snapshots.plan)


def held(start: Start) -> Any:
    """What the one table holds."""
    (content,) = start.program.tables.values()
    return pa.ipc.open_file(content).read_all().to_pylist()


SOURCE, STEP, SINK = "spec.sources", "spec.processors", "spec.sinks"

CASES: dict[str, list[Case]] = {
    f"{STEP}[].ttl": [
        case(
            f"{STEP}[counts].ttl=24h",
            **sees(lambda s: s.part("counts").ttl_ms, 0, 86_400_000),
            reason="from the last update",
        )
    ],
    "metadata.name": [refused("metadata.name=other", reason="as a new topology")],
    "metadata.namespace": [
        refused(
            "metadata.namespace=other",
            reason="create it there",
            before=("metadata.namespace=some",),
        ),
        case("metadata.namespace=other", to=NONE, reason="only people"),
    ],
    "metadata.labels": [case("metadata.labels={a: b}", to=NONE, reason="only people")],
    "spec.suspend": [case("spec.suspend=true", to=NONE, reason="only a cluster")],
    **{
        f"spec.restoreFrom.{field}": [
            case(
                f"spec.restoreFrom.{field}=a",
                *(f"spec.restoreFrom.{other}=b" for other in others),
                to=NONE,
                reason="only a new topology",
            )
        ]
        for field, others in {
            "snapshot": (),
            "place": ("name",),
            "name": ("place",),
            "topology": ("snapshot",),
        }.items()
    },
    "spec.restartNonce": [case("spec.restartNonce=1", to=NONE, reason="only a cluster")],
    "metadata.annotations": [case("metadata.annotations={a: b}", to=NONE, reason="only people")],
    "spec.guarantee": [
        case(
            "spec.guarantee=AtMostOnce",
            **sees(
                lambda s: (
                    s.protocol.guarantee.value,
                    s.program.guarantee.value,
                    s.program.tracking,
                ),
                ("AtLeastOnce", "AtLeastOnce", True),
                ("AtMostOnce", "AtMostOnce", False),
            ),
        )
    ],
    "spec.window.maxRecords": [
        case(
            "spec.window.maxRecords=7",
            **sees(
                lambda s: (s.protocol.max_records, s.driver(lambda e: e.planner._max_records)),
                (200_000, 200_000),
                (7, 7),
            ),
        )
    ],
    "spec.window.maxInterval": [
        case(
            "spec.window.maxInterval=3s",
            **sees(lambda s: s.driver(lambda e: e.planner.pace.most_s), 0.1, 3.0),
        )
    ],
    "spec.window.minInterval": [
        case(
            "spec.window.minInterval=50ms",
            **sees(lambda s: s.driver(lambda e: e.planner.pace.least_s), 0.0, 0.05),
        )
    ],
    "spec.ackers.replicas": [
        case(
            "spec.ackers.replicas=3",
            **sees(lambda s: s.processes.ackers.count, 1, 3),
            reason="the next run begins with it",
        )
    ],
    "spec.ackers.min": [
        case(
            "spec.ackers.min=2",
            "spec.ackers.max=5",
            **sees(
                lambda s: (b := s.processes.ackers.bounds) and (b.least, b.automatic),
                (1, False),
                (2, True),
            ),
        )
    ],
    "spec.ackers.max": [
        case(
            "spec.ackers.max=5",
            "spec.ackers.min=1",
            **sees(lambda s: s.processes.ackers.bounds.most, 64, 5),
        )
    ],
    "spec.ackers.virtualNodes": [
        case(
            "spec.ackers.virtualNodes=9",
            **sees(lambda s: s.driver(lambda e: e.verdicts._virtual_nodes), 64, 9),
        )
    ],
    "spec.ackers.maxReplays": [
        case("spec.ackers.maxReplays=9", **sees(lambda s: s.protocol.backoff.max_replays, 3, 9))
    ],
    "spec.ackers.backoff": [
        case("spec.ackers.backoff=5s", **sees(lambda s: s.protocol.backoff.delay_s, 1.0, 5.0))
    ],
    "spec.deadLetters.maxShare": [
        case("spec.deadLetters.maxShare=9%", **sees(lambda s: s.protocol.dead_limit.percent, 50, 9))
    ],
    "spec.tracking": [
        case(
            "spec.tracking=Off",
            **sees(
                lambda s: (s.program.tracking, s.protocol.tracking, s.processes.ackers.count),
                (True, True, 1),
                (False, False, 0),
            ),
        )
    ],
    "spec.tupleTimeout": [
        case("spec.tupleTimeout=1m", **sees(lambda s: s.program.tuple_timeout_s, 30.0, 60.0))
    ],
    "spec.stateServers.replicas": [
        case(
            "spec.stateServers.replicas=3",
            **sees(
                lambda s: [one.name for one in s.processes.servers],
                ["state-0"],
                ["state-0", "state-1", "state-2"],
            ),
        )
    ],
    "spec.stateServers.copies": [
        case(
            "spec.stateServers.copies=2",
            "spec.stateServers.replicas=2",
            **sees(lambda s: (s.protocol.copies, s.processes.scaling.copies), (1, 1), (2, 2)),
        )
    ],
    "spec.stateServers.memory": [
        case(
            "spec.stateServers.memory=64m",
            **sees(
                lambda s: [one._max_memory_bytes for one in s.processes.servers], [0], [1 << 26]
            ),
            reason="windows that waited for room go on",
        )
    ],
    "spec.stateServers.url": [
        refused("spec.stateServers.url=redis://h"),
        refused("spec.stateServers.url=redis://g", before=("spec.stateServers.url=redis://h",)),
        refused("spec.stateServers.url=null", before=("spec.stateServers.url=redis://h",)),
    ],
    **{
        f"spec.stateServers.password.secretRef.{field}": [
            case(
                "spec.stateServers.password={secretRef: {name: other, key: other}}",
                before=("spec.stateServers.url=redis://h",),
                **sees(lambda s: s.processes.servers[0]._password, None, "sesame"),
                reason="given it at their start",
            )
        ]
        for field in ("name", "key")
    },
    "spec.snapshots.to": [
        case(
            "spec.snapshots.to=kept",
            **sees(lambda s: plan_of_snapshots(s).to.rpartition("/")[2], "snapshots", "kept"),
        )
    ],
    "spec.snapshots.every": [
        case(
            "spec.snapshots.every=1m",
            **sees(lambda s: plan_of_snapshots(s).every_s, None, 60.0),
        )
    ],
    "spec.snapshots.keep": [
        case(
            "spec.snapshots.keep=9",
            **sees(lambda s: plan_of_snapshots(s).retention.keep, 3, 9),
        )
    ],
    "spec.snapshots.maxAge": [
        case(
            "spec.snapshots.maxAge=1h",
            **sees(lambda s: plan_of_snapshots(s).retention.max_age_s, None, 3600.0),
        )
    ],
    "spec.onStateLoss": [
        case("spec.onStateLoss=Restore", **sees(lambda s: s.protocol.restores, False, True))
    ],
    "spec.parallelism": [
        case(
            "spec.parallelism=4",
            **sees(lambda s: s.program.parallelism, 2, 4),
        )
    ],
    "spec.keyGroups": [refused("spec.keyGroups=64")],
    "spec.code.path": [
        case(
            "spec.code.path=code",
            **sees(lambda s: Path(s.program.code_path).name, "topology", "code"),
        )
    ],
    "spec.code.image": [
        case(
            "spec.code.image=words:2",
            **sees(lambda s: Path(s.program.code_path).name, "topology", "topology"),
            reason="one machine goes by spec.code.path alone",
        )
    ],
    "spec.code.imagePullSecrets": [
        case(
            "spec.code.imagePullSecrets=[registry]",
            to=NONE,
            reason="only a cluster goes by it",
            before=("spec.code.image=words:2",),
        )
    ],
    "spec.code.configMap": [
        case(
            "spec.code.configMap=words",
            **sees(lambda s: Path(s.program.code_path).name, "topology", "topology"),
            reason="one machine goes by spec.code.path alone",
        )
    ],
    "spec.spark.conf": [
        case(
            'spec.spark.conf={spark.network.timeout: "77s"}',
            **sees(lambda s: s.conf.get("spark.network.timeout"), None, "77s"),
        )
    ],
    "spec.spark.driver.memory": [
        case(
            "spec.spark.driver.memory=3g",
            **sees(lambda s: s.conf["spark.driver.memory"], "1g", "3g"),
        )
    ],
    "spec.spark.driver.standby": [
        case(
            "spec.spark.driver.standby=0",
            **sees(lambda s: s.processes.standby is not None, True, False),
            reason="the next run begins with it",
        )
    ],
    "spec.spark.driver.standbyExecutors": [
        case("spec.spark.driver.standbyExecutors=Ready", to=NONE, reason="only a cluster")
    ],
    "spec.spark.executors.instances": [
        case(
            "spec.spark.executors.instances=2",
            **sees(lambda s: s.conf["spark.master"].partition("[")[0], "local", "local-cluster"),
        )
    ],
    **{
        f"spec.spark.executors.{field}": [
            case(
                f"spec.spark.executors.{field}=2",
                f"spec.spark.executors.{other}=2",
                "spec.spark.executors.instances=2",
                to=NONE,
                reason="only a cluster",
            )
        ]
        for field, other in (("min", "max"), ("max", "min"))
    },
    "spec.spark.executors.cores": [
        case(
            "spec.spark.executors.instances=2",
            "spec.spark.executors.cores=3",
            **sees(lambda s: s.conf["spark.master"].startswith("local-cluster[2,3,"), False, True),
        )
    ],
    "spec.spark.executors.memory": [
        case(
            "spec.spark.executors.memory=3g",
            **sees(lambda s: s.conf["spark.executor.memory"], "1g", "3g"),
        )
    ],
    f"{SOURCE}[].name": [
        refused(
            f"{SOURCE}[lines].name=texts",
            f"{STEP}[split].inputs=[{{from: texts}}]",
            reason="its read position belongs to the name",
        )
    ],
    f"{SOURCE}[].files.path": [refused(f"{SOURCE}[lines].files.path=rows")],
    f"{SOURCE}[].files.format": [refused(f"{SOURCE}[lines].files.format=parquet")],
    f"{SOURCE}[].files.watch": [
        case(
            f"{SOURCE}[lines].files.watch=false",
            **sees(lambda s: s.planned("lines").drained, False, True),
        )
    ],
    f"{SOURCE}[].files.order": [
        case(
            f"{SOURCE}[lines].files.order=name",
            **sees(lambda s: [r["value"] for r in s.read("lines")], ["z", "a"], ["a", "z"]),
        )
    ],
    f"{SOURCE}[].files.schema": [
        case(
            f'{SOURCE}[rows].files.schema="k string, v double"',
            **sees(lambda s: s.read("rows"), [{"k": "x", "v": 1}], [{"k": "x", "v": 1.0}]),
            reason="what is not sealed yet is decoded with it",
        )
    ],
    f"{SOURCE}[].generator.seed": [refused(f"{SOURCE}[made].generator.seed=2")],
    f"{SOURCE}[].generator.count": [
        case(
            f"{SOURCE}[made].generator.count=12",
            **sees(lambda s: s.source("made").options["count"], 10, 12),
        ),
        # Behind everything there is more now, or nothing.
        case(
            f"{SOURCE}[made].generator={{seed: 1, count: 12, partitions: 2}}",
            **sees(lambda s: len(s.read("made", {"n": [5, 5]})), 0, 2),
        ),
        case(
            f"{SOURCE}[made].generator={{seed: 1, count: 4, partitions: 2}}",
            **sees(lambda s: (p := s.planned("made", {"n": [3, 3]})).ranges and p.drained, (), ()),
        ),
    ],
    f"{SOURCE}[].generator.rate": [
        case(
            f"{SOURCE}[made].generator.rate=9",
            **sees(lambda s: s.source("made").rate, 5, 9),
        )
    ],
    f"{SOURCE}[].generator.partitions": [refused(f"{SOURCE}[made].generator.partitions=3")],
    f"{SOURCE}[].custom.class": [refused(f"{SOURCE}[own].custom.class=words:Others")],
    f"{SOURCE}[].custom.options": [
        case(
            f"{SOURCE}[own].custom.options={{step: 2}}",
            **sees(lambda s: s.source("own").options["step"], 1, 2),
        )
    ],
    f"{STEP}[].name": [
        case(
            f"{STEP}[kept].name=left",
            f"{SINK}[log].inputs=[{{from: left}}]",
            f"{SINK}[seen].inputs=[{{from: left}}]",
            **sees(
                lambda s: sorted(s.program.components.keys() & {"kept", "left"}), ["kept"], ["left"]
            ),
        ),
        refused(
            f"{STEP}[counts].name=totals",
            f"{SINK}[out].inputs=[{{from: totals}}]",
            reason="its state belongs to the name",
        ),
    ],
    f"{STEP}[].inputs[].from": [
        case(
            f"{STEP}[kept].inputs=[{{from: made}}]",
            f"{SINK}[log].inputs=[{{from: rows}}]",
            **sees(lambda s: s.part("kept").inputs[0].producer, "rows", "made"),
        )
    ],
    f"{STEP}[].inputs[].key": [
        case(
            f"{STEP}[split].inputs[0].key=[value]",
            **sees(
                lambda s: (s.part("split").inputs[0].route.value, s.part("split").keyed),
                ("local", ()),
                ("keyed", ("value",)),
            ),
        ),
        refused(
            f"{STEP}[counts].inputs=[{{from: split, key: [w], columns: {{w: word, word: word}}}}]"
        ),
    ],
    f"{STEP}[].inputs[].broadcast": [
        case(
            f"{STEP}[split].inputs[0].broadcast=true",
            **sees(lambda s: s.part("split").inputs[0].route.value, "local", "broadcast"),
        )
    ],
    f"{STEP}[].inputs[].columns": [
        case(
            f"{STEP}[kept].inputs[0].columns={{key: k}}",
            **sees(lambda s: s.part("kept").output.names, ["k", "v"], ["key"]),
        ),
    ],
    f"{STEP}[].function": [
        case(
            f"{STEP}[split].function=words:whole",
            **sees(lambda s: s.part("split").function, "words:split", "words:whole"),
        )
    ],
    f"{STEP}[].split.column": [
        case(
            f"{STEP}[cut].inputs[0].columns={{k: k, other: k}}",
            f"{STEP}[cut].split.column=other",
            **sees(lambda s: s.part("cut").settings.column, "k", "other"),
        )
    ],
    f"{STEP}[].split.into": [
        case(
            f"{STEP}[cut].split.into=word",
            **sees(lambda s: s.part("cut").output.names, ["piece"], ["word"]),
        )
    ],
    f"{STEP}[].split.delimiter": [
        case(
            f'{STEP}[cut].split.delimiter=";"',
            **sees(lambda s: s.part("cut").settings.delimiter, ",", ";"),
        )
    ],
    f"{STEP}[].split.pattern": [
        case(
            f'{STEP}[cut].split={{column: k, into: piece, pattern: "[,;]"}}',
            **sees(lambda s: s.part("cut").settings.pattern, None, "[,;]"),
        )
    ],
    f"{STEP}[].split.dropEmpty": [
        case(
            f"{STEP}[cut].split.dropEmpty=true",
            **sees(lambda s: s.part("cut").settings.drop_empty, False, True),
        )
    ],
    f"{STEP}[].split.keep": [
        case(
            f"{STEP}[cut].split.keep=[v]",
            **sees(lambda s: s.part("cut").output.names, ["piece"], ["piece", "v"]),
        )
    ],
    f"{STEP}[].json.column": [
        case(
            f"{STEP}[read].inputs[0].columns={{k: k, other: k}}",
            f"{STEP}[read].json.column=other",
            **sees(lambda s: s.part("read").settings.column, "k", "other"),
        )
    ],
    f"{STEP}[].json.columns[].name": [
        case(
            f"{STEP}[read].json.columns[0].name=c",
            **sees(lambda s: s.part("read").output.names, ["a", "b"], ["c", "b"]),
        )
    ],
    f"{STEP}[].json.columns[].type": [
        case(
            f"{STEP}[read].json.columns[0].type=double",
            **sees(lambda s: str(s.part("read").output.field("a").type), "int64", "double"),
        )
    ],
    f"{STEP}[].json.columns[].path": [
        case(
            f"{STEP}[read].json.columns[0].path=o.a",
            **sees(lambda s: s.part("read").settings.paths[0], ("a", ("a",)), ("a", ("o", "a"))),
        )
    ],
    f"{STEP}[].json.columns[].required": [
        case(
            f"{STEP}[read].json.columns[1].required=true",
            **sees(lambda s: s.part("read").settings.required, frozenset(), frozenset({"b"})),
        )
    ],
    f"{STEP}[].json.keep": [
        case(
            f"{STEP}[read].json.keep=[v]",
            **sees(lambda s: s.part("read").output.names, ["a", "b"], ["a", "b", "v"]),
        )
    ],
    f"{STEP}[].lookup.table.path": [
        case(
            f"{STEP}[found].lookup.table.path=held.csv",
            **sees(lambda s: held(s), [{"k": "x", "m": "1"}], [{"k": "y", "m": "2"}]),
            reason="reads the table at its start",
        )
    ],
    f"{STEP}[].lookup.table.format": [
        case(
            f"{STEP}[found].lookup.table={{path: held.csv, schema: 'k string, m string'}}",
            before=(f"{STEP}[found].lookup.table.path=held.csv",),
            **sees(lambda s: held(s), [{"k": "y", "m": "2"}], [{"k": "y", "m": "2"}]),
            reason="reads the table at its start",
        )
    ],
    f"{STEP}[].lookup.table.schema": [
        case(
            f'{STEP}[found].lookup.table.schema="k string, m long"',
            **sees(lambda s: held(s), [{"k": "x", "m": "1"}], [{"k": "x", "m": 1}]),
            reason="reads the table at its start",
        )
    ],
    f"{STEP}[].lookup.key[].column": [
        case(
            f"{STEP}[found].inputs[0].columns={{k: k, other: k}}",
            f"{STEP}[found].lookup.key=[{{column: other, of: k}}]",
            **sees(lambda s: s.part("found").settings.key, (("k", "k"),), (("other", "k"),)),
        )
    ],
    f"{STEP}[].lookup.key[].of": [
        case(
            f"{STEP}[found].lookup.key[0].of=m",
            **sees(lambda s: s.part("found").settings.key, (("k", "k"),), (("k", "m"),)),
        )
    ],
    f"{STEP}[].lookup.columns[].name": [
        case(
            f"{STEP}[found].lookup.columns=[{{name: n, of: m}}]",
            **sees(lambda s: s.part("found").output.names, ["k", "v", "m"], ["k", "v", "n"]),
        )
    ],
    f"{STEP}[].lookup.columns[].of": [
        case(
            f"{STEP}[found].lookup.columns[0].of=k",
            **sees(lambda s: s.part("found").settings.added, ("m",), ("k",)),
        )
    ],
    f"{STEP}[].lookup.missing": [
        case(
            f"{STEP}[found].lookup.missing=Drop",
            **sees(lambda s: s.part("found").settings.missing.value, "Keep", "Drop"),
        )
    ],
    f"{STEP}[].sql.select": [
        case(
            f'{STEP}[picked].sql.select=["id"]',
            **sees(lambda s: s.part("picked").sql.select, ("id", "key"), ("id",)),
        )
    ],
    f"{STEP}[].sql.engine": [
        case(
            f"{STEP}[picked].sql.engine=duckdb",
            **sees(lambda s: s.part("picked").in_jvm, True, False),
        )
    ],
    f"{STEP}[].sql.where": [
        case(
            f'{STEP}[picked].sql.where="id > 5"',
            **sees(lambda s: s.part("picked").sql.where, "id > 0", "id > 5"),
        )
    ],
    f"{STEP}[].aggregate.emit": [
        case(
            f"{SOURCE}[lines].files.watch=false",
            f"{STEP}[counts].aggregate.emit=final",
            **sees(
                lambda s: (s.part("counts").emit_final, s.protocol.emits_final),
                (False, False),
                (True, True),
            ),
        )
    ],
    f"{STEP}[].aggregate.columns[].name": [refused(f"{STEP}[counts].aggregate.columns[0].name=m")],
    f"{STEP}[].aggregate.columns[].function": [
        refused(f"{STEP}[counts].aggregate.columns[1].function=min")
    ],
    f"{STEP}[].aggregate.columns[].of": [refused(f"{STEP}[counts].aggregate.columns[1].of=size")],
    f"{SINK}[].name": [refused(f"{SINK}[out].name=other", reason="keep the name 'out'")],
    f"{SINK}[].inputs[].from": [
        case(
            f"{SINK}[seen].inputs=[{{from: rows}}]",
            **sees(lambda s: s.part("seen").inputs[0].producer, "kept", "rows"),
        )
    ],
    f"{SINK}[].inputs[].key": [
        case(
            f"{SINK}[seen].inputs[0].key=[k]",
            **sees(lambda s: s.part("seen").inputs[0].route.value, "local", "keyed"),
        )
    ],
    f"{SINK}[].inputs[].columns": [
        case(
            f"{SINK}[seen].inputs[0].columns={{key: k}}",
            **sees(lambda s: s.part("seen").output.names, ["k", "v"], ["key"]),
        )
    ],
    f"{SINK}[].files.path": [refused(f"{SINK}[out].files.path=elsewhere")],
    f"{SINK}[].files.format": [refused(f"{SINK}[out].files.format=csv")],
    f"{SINK}[].redis.url": [refused(f"{SINK}[ids].redis.url=redis://g:1")],
    **{
        f"{SINK}[].redis.password.secretRef.{field}": [
            case(
                f"{SINK}[ids].redis.password={{secretRef: {{name: other, key: other}}}}",
                **sees(
                    lambda s: json.loads(s.part("ids").connector.options)["password"],
                    None,
                    {"secretRef": {"name": "other", "key": "other"}},
                ),
                reason="opened with it",
            )
        ]
        for field in ("name", "key")
    },
    f"{SINK}[].redis.mode": [
        refused(f"{SINK}[ids].redis={{url: 'redis://h:1', mode: stream, stream: s}}")
    ],
    f"{SINK}[].redis.key": [refused(f'{SINK}[ids].redis.key="n:{{id}}"')],
    f"{SINK}[].redis.stream": [refused(f"{SINK}[log].redis.stream=other")],
    f"{SINK}[].console": [
        refused(
            f"{SINK}[seen]={{name: seen, inputs: [{{from: kept}}], files: {{path: seen}}}}",
            reason="a sealed window may still wait",
        )
    ],
    f"{SINK}[].custom.class": [refused(f"{SINK}[mute].custom.class=words:Deaf")],
    f"{SINK}[].custom.options": [refused(f"{SINK}[mute].custom.options={{tone: 2}}")],
}

ON_A_CLUSTER = {
    "spec.volumes": {
        "[].name": "[{name: d, mountPath: /data, emptyDir: {}}]",
        "[].mountPath": "[{name: v, mountPath: /d, emptyDir: {}}]",
        "[].subPath": "[{name: v, mountPath: /data, subPath: in, emptyDir: {}}]",
        "[].readOnly": "[{name: v, mountPath: /data, readOnly: true, emptyDir: {}}]",
        "[].persistentVolumeClaim.claimName": (
            "[{name: v, mountPath: /data, persistentVolumeClaim: {claimName: c}}]"
        ),
        "[].emptyDir.medium": "[{name: v, mountPath: /data, emptyDir: {medium: Memory}}]",
        "[].emptyDir.sizeLimit": "[{name: v, mountPath: /data, emptyDir: {sizeLimit: 1Gi}}]",
        "[].configMap.name": "[{name: v, mountPath: /data, configMap: {name: c}}]",
        "[].secret.secretName": "[{name: v, mountPath: /data, secret: {secretName: c}}]",
    },
    **{
        f"spec.pods.{pod}": {
            ".resources.requests": "{resources: {requests: {cpu: 2}}}",
            ".resources.limits": "{resources: {limits: {memory: 9Gi}}}",
            ".nodeSelector": "{nodeSelector: {disk: fast}}",
            ".tolerations[].key": "{tolerations: [{key: spot, value: a}]}",
            ".tolerations[].operator": "{tolerations: [{operator: Exists}]}",
            ".tolerations[].value": "{tolerations: [{key: k, value: b}]}",
            ".tolerations[].effect": "{tolerations: [{key: k, effect: NoSchedule}]}",
            ".tolerations[].tolerationSeconds": (
                "{tolerations: [{key: k, effect: NoExecute, tolerationSeconds: 3}]}"
            ),
            ".priorityClassName": "{priorityClassName: low}",
            ".labels": "{labels: {team: words}}",
            ".annotations": "{annotations: {team: words}}",
        }
        for pod in ("driver", "executors", "ackers", "stateServers")
    },
}
"""Fields that one machine does not go by."""

for _above, _fields in ON_A_CLUSTER.items():
    for _below, _value in _fields.items():
        _edit = f"{_above}={_value}"
        CASES[f"{_above}{_below}"] = [case(_edit, to=NONE, reason="only a cluster goes by it")]

FIXED = {
    "apiVersion": "apiVersion=millrace.dev/v2",
    "kind": "kind=Topology",
    f"{SINK}[].inputs[].broadcast": f"{SINK}[seen].inputs[0].broadcast=true",
}
"""Fields that can hold one value alone: an edit of theirs is no topology."""


def fields() -> list[str]:
    """Every field of the model that holds a value, as the reference lists them."""
    listed = re.findall(r"^\| `([^`]+)` \|", reference(), re.MULTILINE)
    return [f for f in listed if not any(g.startswith((f"{f}.", f"{f}[")) for g in listed)]


def test_every_field_of_the_model_is_edited() -> None:
    assert sorted(CASES) == sorted(set(fields()) - FIXED.keys())
    assert len(CASES) > 60
    assert all(CASES.values())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edits") / "topology"
    (folder / "texts").mkdir(parents=True)
    (folder / "rows").mkdir()
    (folder / "code").mkdir()
    for code in (folder, folder / "code"):
        (code / "words.py").write_text(CODE)
    for number, name in enumerate(("z", "a")):  # the older file has the later name
        (folder / "texts" / name).write_text(f"{name}\n")
        stamp = 1_600_000_000 + number * 1000
        os.utime(folder / "texts" / name, (stamp, stamp))
    (folder / "rows" / "a.jsonl").write_text('{"k": "x", "v": 1}\n')
    (folder / "held.txt").write_text("k,m\nx,1\n")
    (folder / "held.csv").write_text("k,m\ny,2\n")
    (folder / "topology.yaml").write_text(BASE)
    return folder


def accepted(place: Path, folder: WorkFolder, edits: tuple[str, ...], told: list[str]) -> Start:
    """What ``millrace run --set EDITS`` does before it starts processes."""
    loaded = load(place / "topology.yaml", edits)
    launch._explain_edits(folder, loaded.topology, told.append)
    launch._write_driver_file(folder, loaded, launch.LaunchOptions())
    return Start(folder, loaded)


def covers(field: str, told: str) -> bool:
    """Whether an edit is about a field, or what is above or below it, whatever parts are called."""
    path = re.sub(r"\[[^]]*\]", "[]", told.partition(": ")[0])
    below = any(
        one.startswith((f"{two}.", f"{two}[")) for one, two in ((path, field), (field, path))
    )
    return path == field or below


ALL = [(field, one) for field, cases in CASES.items() for one in cases]


@pytest.mark.parametrize(
    ("field", "one"), ALL, ids=[f"{field}-{n}" for n, (field, _) in enumerate(ALL)]
)
def test_an_edit_is_what_it_says(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, one: Case
) -> None:
    monkeypatch.setenv("MILLRACE_SECRET_OTHER__OTHER", "sesame")
    folder = open_folder(tmp_path / "work", "edited", place / "topology.yaml", SystemClock())
    before = accepted(place, folder, one.before, [])
    was = one.sees(before)
    kept = {file: file.read_bytes() for file in (folder.accepted, folder.topology, folder.driver)}
    told: list[str] = []
    if one.effect is REFUSED:
        with pytest.raises(TopologyError) as caught:
            accepted(place, folder, (*one.before, *one.edit), told)
        lines = str(caught.value).splitlines()
        assert {file: file.read_bytes() for file in kept} == kept
    else:
        after = accepted(place, folder, (*one.before, *one.edit), told)
        lines = [line.removeprefix("edited: ") for line in told if line.startswith("edited: ")]
        assert (was, one.sees(after)) == one.gives
    mine = [line for line in lines if covers(field, line)]
    assert mine, lines
    assert all(f": {one.effect.value}, " in line for line in mine), mine
    assert any(one.reason in line for line in mine), mine


@pytest.mark.parametrize("field", FIXED)
def test_a_field_with_one_value_cannot_be_edited(place: Path, field: str) -> None:
    with pytest.raises(InvalidTopologyError, match=field.rpartition(".")[2]):
        load(place / "topology.yaml", (FIXED[field],))


def test_a_topology_that_is_not_edited_is_told_nothing(place: Path, tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "work", "edited", place / "topology.yaml", SystemClock())
    told: list[str] = []
    accepted(place, folder, (), told)
    kept = json.loads(folder.accepted.read_bytes())
    accepted(place, folder, (), told)
    assert told == []
    assert json.loads(folder.accepted.read_bytes()) == kept
    assert yaml.safe_load(BASE)["metadata"]["name"] == folder.identity.name
