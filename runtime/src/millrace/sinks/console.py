"""The console sink: rows as JSON lines on standard output, for trying things out.

What is printed cannot be taken back, so a window whose publication was cut short is printed again:
the sink refuses ``ExactlyOnce``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import pyarrow as pa

from millrace.errors import FencedError
from millrace.protocol.types import Guarantee, Sealed, Staged
from millrace.sinks.base import RowsRefusedError, Sink, StepHook, digest_of, passed
from millrace.sinks.encode import ENCODING_ERRORS, encode_json_lines, misfits

INLINE_BYTES = 16 << 10
"""Where there is no staging area: most that a task hands over in the sealed record itself."""


class ConsoleSink(Sink):
    """No options. Without a staging area only the first rows of each task are shown."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE}
    )

    def __init__(
        self, name: str, options: Mapping[str, Any], folder: Path, out: TextIO | None = None
    ) -> None:
        super().__init__(name, options, folder)
        self._out = out
        self._execution = 0
        self._shown = -1

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        self._shown = -1

    def fence(self, execution: int) -> None:
        if execution < self._execution:
            raise FencedError(f"sink {self.name!r} serves execution {self._execution}")
        self._execution = execution

    def last_shown(self) -> tuple[int, str] | None:
        return None

    def retract(self, window: int) -> None:
        """What was printed is printed again."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return None
        data = self._encoded(batches)
        if self.staging is not None:
            return self.stage_bytes(name, data, rows)
        shown = (
            data if len(data) <= INLINE_BYTES else data[: data.rfind(b"\n", 0, INLINE_BYTES) + 1]
        )
        return Staged(self.name, name, digest_of(data), rows, len(data), shown.decode())

    def _encoded(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        try:
            return b"".join(part.to_pybytes() for part in encode_json_lines(batches))
        except MemoryError:
            raise
        except ENCODING_ERRORS:
            bad = misfits(lambda batch: list(encode_json_lines([batch])), batches)
            if not bad:
                raise
            told = f"sink {self.name!r}: the row cannot be printed: "
            raise RowsRefusedError({n: told + text for n, text in bad.items()}) from None

    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        self.fence(execution)
        if sealed.window <= self._shown:
            return
        out = self._out or sys.stdout
        for number, staged in enumerate(mine):
            out.write(self._text(staged))
            passed(step, f"print:{number}")
        out.flush()
        self._shown = sealed.window
        passed(step, "done")

    def _text(self, staged: Staged) -> str:
        if staged.locator is None:
            return self.staged_bytes(staged).decode()
        shown = str(staged.locator)
        more = staged.rows - shown.count("\n")
        return f"{shown}... and {more} more rows of sink {self.name}\n" if more else shown
