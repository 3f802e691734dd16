"""A worker compiles nothing: what its daemon makes ready is all that there is to compile."""

from __future__ import annotations

import subprocess
import sys

LEFT = """
import sys
from numba.core.registry import CPUDispatcher
from millrace.engine.task.warm import warm_up

warm_up()
for name, module in sorted(sys.modules.items()):
    for each in vars(module).values() if name.startswith("millrace.") else ():
        own = isinstance(each, CPUDispatcher) and each.py_func.__module__ == name
        # What is compiled into its callers has no code of its own.
        if own and each.targetoptions.get("inline") != "always":
            print("ready" if each.signatures else "left", name, each.py_func.__name__)
"""


def test_every_compiled_function_is_ready_before_workers_are_forked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert sum(line.startswith("ready") for line in done) > 20
    assert [line for line in done if line.startswith("left")] == []
