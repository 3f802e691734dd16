"""``run_processor``: a function or class over rows as a run has them, for its unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.engine.trial import Key, Tried


def run_processor(
    target: object,
    rows: Sequence[Mapping[str, Any]],
    *,
    schema: str,
    key: Sequence[str] = (),
    state: Mapping[Key, Mapping[str, Any]] | None = None,
) -> Tried:
    """Run a decorated function or a class derived from ``Processor`` over the rows of one window.

    ``schema`` are the columns of its input as a topology writes them (``"word string, n long"``);
    what a row leaves out is null. ``key`` names the columns of the input's key. ``state`` is what
    keys have before, by the value of the key column or a tuple of those of several; keys that are
    not there are new.

    It is called by the code that calls it in a run: types, values that do not fit, second calls,
    state, ``open``, ``finish`` and ``close``. A tuple that fails is told with the text that its
    dead letter would have, and all others run again without it, so code may run more than once.
    What would stop a run is raised.

    Gives ``rows`` that come out, ``failures`` (the number of a row in ``rows``, and why) and
    ``state`` of the keys that have some, to be handed on as that of the next window.
    """
    # The processes of check_source and check_sink are spared the engine.
    from millrace.engine.trial import run

    return run(target, rows, schema, key, state)
