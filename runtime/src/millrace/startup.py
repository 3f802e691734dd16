"""How processes of Millrace's own load their code, which is most of what their start costs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of processes that have numpy and no use for linear algebra: with its import a thread
begins to spin on each core but one."""

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment of processes that are started wherever the user is, and of those that Spark starts
for them: Python puts that folder in front of all others, where anybody may have put a module that
is called as one of ours (``/tmp``). What they import of the user's has a path of its own."""


@contextmanager
def loading() -> Iterator[None]:
    """Nothing that is loaded within is garbage: it is not looked through while it comes, which a
    tenth of all the time goes into, nor ever after."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def one_thread() -> dict[str, str]:
    """``ONE_THREAD``, but for what is set already: who has set it knows better."""
    return {name: os.environ.get(name, value) for name, value in ONE_THREAD.items()}
