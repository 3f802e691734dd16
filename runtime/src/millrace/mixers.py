"""``ids.mix64`` over numpy's numbers: the one form that arrays take and that compilers are given.

No numba here: who compiles it does so in its own way (``compiled.jit``, ``state.keyed.kernels``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix64(x: Any) -> Any:
    """``ids.mix64`` of a uint64 or of each of an array."""
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


def mix64_into(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """``mix64`` of each, in place: no memory is taken for what lies between."""
    x ^= x >> _S30
    x *= _FIRST
    x ^= x >> _S27
    x *= _SECOND
    x ^= x >> _S31
    return x
