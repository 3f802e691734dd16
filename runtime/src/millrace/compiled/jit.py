"""Compiled functions that are ready in microseconds, wherever they may be cached.

A ``Kernel`` is compiled, or loaded from numba's cache, for fixed signatures at its first call or
by ``warm_up``, and never again: a worker must not stop for a second because an array happens to
be read-only. Arrays in signatures are read-only unless they are written to, and numba then takes
both kinds. Arrays must be contiguous.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numba
from numba import types

P = ParamSpec("P")
R = TypeVar("R")

_LOG = logging.getLogger(__name__)
_ALL: list[Kernel[Any, Any]] = []


def vector(scalar: Any, writable: bool = False) -> Any:
    """Numba type of a contiguous one-dimensional array."""
    return types.Array(scalar, 1, "C", readonly=not writable)


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile in nopython mode without the GIL, cached on disk where that is possible.

    Numba writes to ``NUMBA_CACHE_DIR`` if set, else beside the module, else into the user's
    cache folder. Where none of them can be written the function is compiled in each process.
    """
    try:
        compiled: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError as error:
        _LOG.warning(
            "%s is compiled without a cache (%s): set NUMBA_CACHE_DIR to a folder that can be "
            "written, to start faster",
            function.__qualname__,
            error,
        )
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled


class Kernel(Generic[P, R]):
    """One compiled function with fixed signatures; safe to call from several threads."""

    def __init__(self, function: Callable[P, R], signatures: Sequence[Any]) -> None:
        self._signatures = signatures
        self._compiled: Any = jit(function)
        self._ready = False
        self._lock = threading.Lock()
        self.__doc__ = function.__doc__
        _ALL.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._ready:
            self.compile()
        return self._compiled(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def was_compiled(self) -> bool:
        """Whether this process had to compile a signature that no cache had."""
        return bool(self._compiled.stats.cache_misses)

    def compile(self) -> None:
        """Make every signature ready; the second time costs nothing."""
        with self._lock:
            if self._ready:
                return
            for signature in self._signatures:
                self._compiled.compile(signature)
            # From here on a call that fits no signature is an error, not a compilation.
            self._compiled.disable_compile()
            self._ready = True


def kernel(*signatures: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Decorator that makes a ``Kernel``; each signature is a tuple of numba types."""
    return lambda function: Kernel(function, signatures)


def compile_all() -> bool:
    """Compile or load every kernel of the modules imported so far; whether any was compiled."""
    for one in _ALL:
        one.compile()
    return any(one.was_compiled for one in _ALL)
