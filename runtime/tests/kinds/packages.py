"""Packages that bring kinds, installed for good into a folder that is put on the import path."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], **files: str):
    """What an installer leaves behind: modules, and the package's metadata beside them."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    package = site / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    for module, text in files.items():
        (package / f"{module}.py").write_text(textwrap.dedent(text))


KIND = '''
    from pydantic import Field

    from millrace.topology.kinds.base import (
        OTHER_SOURCE, Effect, FieldEdit, SinkKind, SourceKind, Written,
    )
    from millrace.topology.parts import Guarantee, Part
    from millrace.topology.problems import Problem, format_path
    from millrace.topology.scalars import Text, Whole


    class TallySettings(Part):
        """Numbers that are counted up."""

        first_number: Whole = Field(0, ge=0, description="Where counting begins.")
        count: Whole = Field(ge=1, description="How many numbers there are.")


    class Tally(SourceKind[TallySettings]):
        name = "tally"
        meaning = "Numbers in a row."
        settings = TallySettings
        runs = "tallies.run:TallySource"
        edits = (
            FieldEdit("firstNumber", Effect.REFUSED, f"others are meant; {OTHER_SOURCE}"),
            FieldEdit("", Effect.RESTART, "counted at the start"),
        )

        def summary(self, settings):
            return f"tally of {settings.count} from {settings.first_number}"

        def columns(self, settings):
            return (("n", "long"),)

        def check(self, settings, component, facts):
            if settings.count == 13:
                path = format_path((*component.path, "tally", "count"))
                yield Problem(path, 13, "brings bad luck", "take another number")


    class LedgerSettings(Part):
        """Lines in one file."""

        file: Text = Field(description="The file, relative to the topology's.")


    class Ledger(SinkKind[LedgerSettings]):
        name = "ledger"
        meaning = "Lines in a ledger."
        settings = LedgerSettings
        runs = "tallies.run:LedgerSink"
        fillers = {"file": "unnamed"}
        guarantees = (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE)
        weakness = "a ledger is only added to"

        def summary(self, settings):
            return f"ledger {settings.file}"

        def place(self, settings, folder):
            return str(folder / settings.file)


    TALLY, LEDGER = Tally(), Ledger()
'''

RUN = """
    import json

    import pyarrow as pa

    from millrace.sinks import Sink
    from millrace.sources import ReadBatch, Source, SourcePlan


    class TallySource(Source):
        def schema(self):
            return pa.schema([("n", pa.int64())])

        def plan(self, offsets, max_records):
            start = offsets or 0
            count = min(max_records, self.options["count"] - start)
            ranges = (self.range_of("tally", start, count),) if count else ()
            return SourcePlan(ranges, start + count, start + count == self.options["count"])

        def read(self, piece):
            first = self.options["firstNumber"] + piece.start
            column = pa.array(range(first, first + piece.count), pa.int64())
            yield ReadBatch(pa.RecordBatch.from_arrays([column], schema=self.schema()))


    class LedgerSink(Sink):
        def prepare(self, uid, fresh=False, overwrite=False):
            pass

        def check_fresh(self, overwrite):
            pass

        def fence(self, execution):
            pass

        def last_shown(self):
            return None

        def stage(self, name, batches):
            return self.stage_rows(name, batches)

        def publish(self, sealed, mine, execution, step=None):
            with open(self.folder / self.options["file"], "a") as out:
                for staged in mine:
                    for row in self.staged_rows(staged).to_pylist():
                        out.write(json.dumps(row) + "\\n")
"""

ENTRIES = {
    "millrace.sources": {"tally": "tallies.kind:TALLY"},
    "millrace.sinks": {"ledger": "tallies.kind:LEDGER"},
}


def install_tallies(site: Path) -> None:
    """A package with a source ``tally`` and a sink ``ledger``."""
    install(site, "tallies", ENTRIES, kind=KIND, run=RUN)


THIN = '''
    from pydantic import Field

    from millrace.topology.kinds.base import COMPILED, Effect, FieldEdit, ProcessorKind
    from millrace.topology.parts import Part
    from millrace.topology.problems import Problem, format_path
    from millrace.topology.scalars import Text, Whole


    class ThinSettings(Part):
        """One tuple of so many."""

        by_column: Text = Field(description="The column with numbers to go by.")
        every: Whole = Field(ge=1, description="Tuples whose number it divides go on.")


    class Thin(ProcessorKind[ThinSettings]):
        name = "thin"
        meaning = "Lets some tuples go on."
        settings = ThinSettings
        fillers = {"byColumn": "unnamed", "every": 1}
        compiler = "thinning.engine:compiled"
        step = "thinning.engine:step"
        edits = (
            FieldEdit("byColumn", Effect.REFUSED, "it is another choice; change it back"),
            FieldEdit("", Effect.RESTART, COMPILED),
        )

        def summary(self, settings):
            return f"thin {settings.by_column} by {settings.every}"

        def columns(self, settings, incoming):
            return incoming.columns

        def check(self, settings, component, facts):
            if settings.every == 13:
                path = format_path((*component.path, "thin", "every"))
                yield Problem(path, 13, "brings bad luck", "take another number")


    THIN = Thin()
'''

THIN_ENGINE = """
    from dataclasses import replace

    import numpy as np
    import pyarrow as pa

    from millrace.engine.task.steps.base import StreamingStep
    from millrace.errors import TopologyError


    def compiled(draft, part, base, incoming):
        column = part.settings.by_column
        if incoming is not None and column not in incoming.names:
            raise TopologyError(f"{part.name!r} goes by {column!r}, which its input has not")
        return replace(base, output=incoming, settings=(column, part.settings.every))


    class ThinStep(StreamingStep):
        def process(self, batch):
            column, every = self.component.settings
            numbers = batch.data.column(column).to_numpy()
            kept = np.flatnonzero(numbers % every == 0)
            self.outlet.emit(batch.data.take(pa.array(kept)), batch, kept)


    def step(site):
        return ThinStep(site.task, site.component, site.outlet)
"""

THIN_ENTRIES = {"millrace.processors": {"thin": "thinning.kind:THIN"}}


def install_thinning(site: Path, engine: str = THIN_ENGINE) -> None:
    """A package with a processor ``thin``."""
    install(site, "thinning", THIN_ENTRIES, kind=THIN, engine=engine)
