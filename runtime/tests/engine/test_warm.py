"""A worker compiles nothing: what its daemon makes ready is all that there is to compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# A compiled function that only compiled functions call is part of their code: where theirs
# comes from the cache on disk, it is never compiled by itself.
LEFT = """
import ast, inspect, sys
from numba.core.registry import CPUDispatcher
from millrace.engine.task.warm import warm_up
from millrace.compiled.jit import Kernel

def names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

def entered(module):
    interpreted = [
        each for each in ast.parse(inspect.getsource(module)).body
        if not isinstance(vars(module).get(getattr(each, "name", "")), (CPUDispatcher, Kernel))
    ]
    return set().union(*map(names, interpreted))

warm_up()
for name, module in sorted(sys.modules.items()):
    own = [
        each for each in vars(module).values()
        if isinstance(each, CPUDispatcher) and each.py_func.__module__ == name
    ] if name.startswith("millrace.") else []
    for each in own:
        function = each.py_func.__name__
        if not function.startswith("_") or function in entered(module):
            print("ready" if each.signatures else "left", name, function)
"""

LOADED = """
import sys
from millrace.engine.task.warm import warm_up

warm_up()
print(*sys.modules)
"""


def test_every_compiled_function_is_ready_before_workers_are_forked(tmp_path: Path) -> None:
    """With an empty cache, and with one that another process has filled."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", LEFT],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert "ready millrace.state.keyed.kernels rebuild" in done
        assert len(done) > 12
        assert [line for line in done if line.startswith("left")] == []


def test_what_workers_are_forked_from_has_no_models_of_topologies() -> None:
    """They take a tenth of its start, and are for who reads and compiles topologies."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {"millrace.sinks.loader", "millrace.sources.loader"} <= set(loaded)
    models = ("millrace.topology.kinds", "millrace.topology.model")
    assert [name for name in loaded if name.startswith(models)] == []
