"""What judges must not import what is judged, not even by way of something else."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import {module}
found = sorted(name for name in sys.modules if name.split(".")[0] in ("millrace", "pyspark"))
print(found)
sys.exit(bool(found))
"""


@pytest.mark.parametrize(
    "module", ["millrace_e2e.checker", "millrace_e2e.ledger", "millrace_e2e.soak"]
)
def test_the_judging_side_imports_nothing_of_the_runtime(module: str) -> None:
    program = PROGRAM.format(module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout
