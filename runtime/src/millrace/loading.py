"""Finds what ``module:name`` means: user code, the classes of connectors, what kinds name.

Used by whatever runs a topology. Where one is only checked, ``topology.usercode`` imports user code
and forgets it again.
"""

from __future__ import annotations

import importlib
from typing import Any

from millrace.errors import error_text


class LoadError(Exception):
    """The module cannot be imported, or lacks the name; ``cause`` is what was raised."""

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause


def load_named(target: str) -> Any:
    """The object that ``module:name`` means; ``name`` may have dots. Raises ``LoadError``."""
    module_name, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The boundary to code of others: importing may raise anything, SystemExit too.
        raise LoadError(
            f"the module {module_name!r} cannot be imported: {error_text(error)}", error
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise LoadError(
                f"the module {module_name!r} has no {name!r}; check the name", error
            ) from None
    return found
