"""What the Makefile says of the processes that its targets start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = 'shown: ; @$(PYTHON) -c "import sys; print(sys.dont_write_bytecode)"'


def test_compiled_sources_are_kept_also_where_the_environment_forbids_it() -> None:
    done = subprocess.run(
        ["make", "--silent", f"--eval={SHOWN}", "shown"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": ""},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "False\n"
