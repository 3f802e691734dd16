"""Compiled code is cached where it may be, and works where nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from millrace.compiled.jit import compile_all, kernel, vector

PROGRAM = """
from millrace.tracking import kernels
assert len(kernels.range_seeds("lines", 0, 0, 5)) == 5
print("done")
"""


def _run(**environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_the_named_folder_is_used(tmp_path: Path) -> None:
    assert _run(NUMBA_CACHE_DIR=str(tmp_path)).stdout == "done\n"
    assert list(tmp_path.rglob("*_range_seeds*.nbi"))


def test_without_any_writable_folder_it_works_and_says_so() -> None:
    # The only place numba may look at here is NUMBA_CACHE_DIR, which is not set.
    run = _run(NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator")
    assert run.stdout == "done\n"
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in run.stderr


def test_warming_up_twice_is_harmless() -> None:
    compile_all()
    compile_all()


def test_a_call_that_fits_no_signature_does_not_compile() -> None:
    from numba import types

    @kernel((vector(types.uint64),))
    def count(values: np.ndarray) -> int:  # type: ignore[type-arg]
        return len(values)

    assert count(np.zeros(3, np.uint64)) == 3
    with pytest.raises(TypeError, match="No matching definition"):
        count(np.zeros((3, 3), np.float32))
