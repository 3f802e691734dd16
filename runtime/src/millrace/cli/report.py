"""The report at the end of a run, for people and for programs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from millrace.cli.output import counted, literal
from millrace.errors import ExitCode
from millrace.homes.documents import Status
from millrace.local.supervisor import RunResult
from millrace.local.workdir import WorkFolder, default_place
from millrace.protocol.types import Totals
from millrace.state.journalfiles import read_status
from millrace.topology.load import LoadedTopology


def totals_in(folder: Path, uid: str | None = None) -> dict[str, int]:
    """The record's totals as the driver showed them last; zeros for another life of a topology."""
    figures = read_status(folder / "status.json")
    totals = figures.totals if uid is None or figures.uid == uid else None
    return asdict(totals or Totals())


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended. ``totals`` are those of the topology's life, ``here`` those of this run.

    ``file`` is the topology file, where it lies somewhere.
    """

    name: str
    folder: WorkFolder
    result: RunResult
    seconds: float
    totals: Mapping[str, int]
    here: Mapping[str, int]
    status: Status
    sinks: Mapping[str, str]
    bytes_per_root: float | None = None
    file: Path | None = None

    def document(self) -> dict[str, Any]:
        """The report as JSON; ``run`` counts this run alone, ``totals`` all since ``--fresh``."""
        return {
            "name": self.name,
            "uid": self.folder.uid,
            "workdir": str(self.folder.path),
            "code": int(self.result.code),
            "reason": self.result.reason,
            "message": self.result.message,
            "seconds": round(self.seconds, 3),
            "execution": self.status.execution,
            "sealed": self.status.sealed,
            "published": self.status.published,
            "totals": dict(self.totals),
            "run": dict(self.here),
            "pendingReplays": self.status.pending_replays,
            "deadLetters": self.status.dead_letters,
            "bytesPerRoot": self.bytes_per_root,
            "restarts": dict(self.result.restarts),
            "sinks": dict(self.sinks),
        }

    @property
    def told(self) -> bool:
        """Whether the driver could write down how it ended; without that its counts are old."""
        return self.status.state in ("drained", "asked")

    @property
    def dead_letters(self) -> str:
        """What is to be said last of the dead letters that are there; empty without any."""
        dead = self.status.dead_letters or 0
        if not dead:
            return ""
        what = "1 root failed for good and is a dead letter"
        if dead > 1:
            what = f"{dead:,} roots failed for good and are dead letters"
        return f"{what}: {self.hint}"

    @property
    def hint(self) -> str:
        """The command that lists them, as it can be typed in the current folder."""
        where = f"--workdir {shlex.quote(str(self.folder.path))}"
        if self.file is not None and self.folder.path == default_place(self.name, self.file):
            where = shlex.quote(os.path.relpath(self.file))
        return f"millrace dead-letters list {where}"

    def show(self, console: Console) -> None:
        """Print it for people."""
        headline = Text.assemble((self.name, "bold"), " ", self._ending())
        console.print(headline, soft_wrap=True)
        facts = list(self._facts())
        width = max(16, *(len(label) + 2 for label, _ in facts))
        for label, text in facts:
            console.print(literal(f"  {label:<{width}}{text}"), soft_wrap=True)

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "roots", _roots(self.here)
        if self.totals["roots"] != self.here["roots"]:
            yield "in all", _roots(self.totals)
        yield "replays", f"{self.here['replays']:,}"
        if self.here["dropped"]:
            yield "dropped", f"{self.here['dropped']:,}"
        dead = self.status.dead_letters or 0
        if dead:
            yield "dead letters", f"{dead:,}: {self.hint}"
        for name, count in self.result.restarts.items():
            yield "started again", f"{name}, {count} times" if count > 1 else f"{name}, once"
        for name, place in self.sinks.items():
            yield f"sink {name}", place
        yield "work folder", str(self.folder.path)

    def _ending(self) -> Text:
        after = f"after {self.seconds:.1f} s"
        if self.result.reason == "drained":
            return Text(f"is drained {after}: all input is processed and published")
        if self.result.reason == "asked":
            return Text(f"was stopped {after}; the next millrace run goes on where it stopped")
        if self.result.reason == "fenced":
            return Text(f"was fenced {after}: a newer run has taken over")
        kept = "nothing is lost"
        if self.result.reason == "lost":
            kept = "all copies of some state are gone"
        code = self.result.code
        name = ExitCode(code).name if code in ExitCode.__members__.values() else "unknown"
        how = f" {after} (exit code {code}, {name}); {kept}"
        return Text.assemble(("failed", "bold red"), how)


def _roots(totals: Mapping[str, int]) -> str:
    return f"{counted(totals['roots'], 'root')} in {counted(totals['windows'], 'window')}"


def sink_places(loaded: LoadedTopology) -> dict[str, str]:
    """Where each sink shows its rows."""
    sinks = loaded.topology.spec.sinks
    return {sink.name: sink.kind.place(sink.settings, loaded.folder) for sink in sinks}
