"""User code: found under the topology's code path, in the driver and in every worker."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from millrace.errors import TopologyError
from millrace.functions import FunctionSpec, spec_of
from millrace.loading import LoadError, load_named


def use_path(code_path: str) -> None:
    """Put the folder of the user's code on the import path of this process, once."""
    if code_path and code_path not in sys.path:
        sys.path.insert(0, code_path)
        importlib.invalidate_caches()


def load_object(target: str, code_path: str) -> Any:
    """The object named ``module:name``.

    Raises ``TopologyError`` where the module cannot be imported or lacks the name.
    """
    use_path(code_path)
    try:
        return load_named(target)
    except LoadError as error:
        where = f" (spec.code.path is {Path(code_path)})" if code_path else ""
        raise TopologyError(f"{target!r}: {error}{where}") from error


def load_function(target: str, code_path: str) -> FunctionSpec:
    """What the user code named by a processor declares. Raises ``TopologyError``."""
    try:
        return spec_of(load_object(target, code_path))
    except TopologyError as error:
        raise TopologyError(f"function {target!r}: {error}") from error
