"""Kernels that an image has compiled are compiled by none of its containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMPILE = (
    "import millrace.tracking.kernels\n"
    "from millrace.compiled.jit import compile_all\n"
    "compile_all()\n"
)
BEGIN = "from millrace.pods.__main__ import bring_kernels\nbring_kernels()\n"


def python(code: str, **environment: str) -> str:
    """What numba tells of its cache."""
    own = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_DEBUG_CACHE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_kernels_of_the_image_are_loaded_and_none_is_compiled(tmp_path: Path) -> None:
    image, container = tmp_path / "image", tmp_path / "tmp"
    container.mkdir()
    assert "data saved" in python(COMPILE, NUMBA_CACHE_DIR=str(image))
    place = container / "millrace-kernels"
    place.mkdir()
    (place / "left").write_text("by an earlier life of the container")
    told = python(BEGIN + COMPILE, MILLRACE_KERNELS=str(image), TMPDIR=str(container))
    assert "data loaded" in told
    assert "data saved" not in told
    assert files(place) == files(image) != {}


def test_a_container_whose_kernels_cannot_be_copied_goes_on(tmp_path: Path) -> None:
    told = python(
        BEGIN + "import os; print(os.environ.get('NUMBA_CACHE_DIR', 'none'))",
        MILLRACE_KERNELS=str(tmp_path / "missing"),
        TMPDIR=str(tmp_path),
        NUMBA_CACHE_DIR="as before",
    )
    assert "warning: kernels are compiled anew" in told
    assert "as before" in told.splitlines()


def test_an_entry_point_knows_of_the_copy_before_it_loads_numba() -> None:
    python("import sys, millrace.pods.__main__\nassert 'numba' not in sys.modules")
