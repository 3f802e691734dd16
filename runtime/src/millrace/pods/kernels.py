"""Compiled kernels that the runtime image brings along.

Numba keeps what it compiles in a folder that it must be able to write to, and a container has none
but empty ones: each start of an executor would compile for a dozen seconds. The image has them
compiled for any processor of its architecture, and each container begins with a copy.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "MILLRACE_KERNELS"
"""Where the image has them; not set outside of images."""

CACHE_VARIABLE = "NUMBA_CACHE_DIR"
"""Numba reads it as it is imported."""

_NAME = "millrace-kernels"


def bring_kernels() -> None:
    """Let numba find them in this process, where it is not imported yet, and in those below it.

    What stands in the copy's place is removed: it is of an earlier life of the container. Where
    there is no room for the copy kernels are compiled.
    """
    brought = os.environ.get(FOLDER_VARIABLE)
    if not brought:
        return
    place = Path(tempfile.gettempdir()) / _NAME
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        shutil.copytree(brought, place, dirs_exist_ok=True, copy_function=shutil.copyfile)
    except OSError as error:
        text = f"kernels are compiled anew, which takes a while: {brought} is not copied ({error})"
        print(f"warning: {text}", file=sys.stderr)
        return
    os.environ[CACHE_VARIABLE] = str(place)
