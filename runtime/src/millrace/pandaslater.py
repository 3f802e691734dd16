"""Has pandas loaded only in a process whose code uses it.

Arrow loads it with the first list that becomes an array, to see whether the list is something of
pandas. That is a third of a second of CPU for each process that workers are forked from, and
nothing is of pandas where nothing has loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import pyarrow as pa

_PANDAS = "pandas"


def put_off() -> None:
    """Have Arrow look for pandas once somebody else has loaded it, and not before.

    Arrow remembers that it found none, until something that needs it, ``to_pandas`` say, looks
    again; whatever loads pandas makes it look.
    """
    if _PANDAS in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    pa.array([])
    finder.hides = False


class _Finder(MetaPathFinder):
    """Finds pandas once, as anybody else would; never while it ``hides``."""

    hides = True

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _PANDAS:
            return None
        if self.hides:
            raise ModuleNotFoundError(f"{name} is looked for later", name=name)
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads as another one does, and tells Arrow."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        pa.nulls(0).to_pandas()
