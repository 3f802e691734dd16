"""Modules that are loaded when something in them is first used, not when they are imported."""

from __future__ import annotations

import importlib
import sys
from threading import RLock
from types import ModuleType
from typing import Any

COMPILED = (
    "millrace.engine.task.kernels",
    "millrace.engine.task.steps.whitespace",
    "millrace.state.keyed.kernels",
    "millrace.state.keyed.views",
    "millrace.tracking.kernels",
)
"""What workers compute with. A driver, which starts while two other processes do, would spend a
quarter of its own start on loading the compiler for it."""


class Later(ModuleType):
    """Stands in for a module of this name in ``sys.modules``.

    Who has imported it keeps it, and finds in it what the module has; threads that come first at
    the same time wait for each other.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._loading = RLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with self._loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
                try:
                    module = importlib.import_module(self.__name__)
                except BaseException:
                    sys.modules[self.__name__] = self
                    raise
                self.__dict__.update(vars(module))
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__} has no attribute {name}") from None


def load_later(names: tuple[str, ...]) -> None:
    """Have these modules loaded when they are first used; those that are loaded stay as they are.

    For whoever imports them as modules: ``from it import something`` is a use.
    """
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = Later(name)
