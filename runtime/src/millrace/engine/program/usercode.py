"""User code: found under the topology's code path, in the driver and in every worker."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from millrace.errors import TopologyError, error_text
from millrace.functions import FunctionSpec, spec_of


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
    module_name, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise TopologyError(
            f"{target!r}: the module {module_name!r} cannot be imported from "
            f"{Path(code_path)}: {error_text(error)}"
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TopologyError(
                f"{target!r}: the module {module_name!r} has no {name!r}; check the name"
            ) from None
    return found


def load_function(target: str, code_path: str) -> FunctionSpec:
    """What the user code named by a processor declares. Raises ``TopologyError``."""
    try:
        return spec_of(load_object(target, code_path))
    except TopologyError as error:
        raise TopologyError(f"function {target!r}: {error}") from error
