"""User code looked at before anything runs: imported from its folder, then forgotten again.

The import path and ``sys.modules`` are put back as they were, so that checking one topology never
decides what the next one finds. Not thread-safe: importing is a matter of the whole process.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.topology.problems import closest

_OWN = __name__.partition(".")[0]


class UnusableCodeError(Exception):
    """User code that cannot be used; ``remedy`` says what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@contextmanager
def code_on_path(folder: Path) -> Iterator[None]:
    """Puts a folder first on the import path; forgets what was imported from it afterwards.

    Modules of other folders that hide one of this folder's are set aside meanwhile.
    """
    folder = folder.resolve()
    before = dict(sys.modules)
    own = {p.stem if p.suffix == ".py" else p.name for p in _children(folder)}
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in own and not _lies_in(module, folder)
    }
    # A file named like a module of the standard library that is loaded already is no user code.
    hidden = {n: m for n, m in hidden.items() if n.partition(".")[0] not in sys.stdlib_module_names}
    path_before = list(sys.path)
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path_before
        found = [n for n, m in sys.modules.items() if n not in before and _lies_in(m, folder)]
        for name in found:
            # A checkout of Millrace below the folder is in use, and is not the user's code.
            if name.partition(".")[0] != _OWN:
                del sys.modules[name]
        sys.modules.update(before)


def find_object(target: str, folder: Path) -> Any:
    """The object that ``module:name`` means, inside ``code_on_path(folder)``.

    Raises ``UnusableCodeError``.
    """
    module_name, _, qualified = target.partition(":")
    found: Any = _import(module_name, folder)
    at = module_name
    for name in qualified.split("."):
        if not hasattr(found, name):
            public = [n for n in dir(found) if not n.startswith("_")]
            guess = closest(name, public)
            raise UnusableCodeError(
                f"names {name!r}, which {at} does not have",
                f"did you mean {guess!r}?" if guess else f"define {name} in {at}",
            )
        found = getattr(found, name)
        at = f"{at}.{name}"
    return found


def check_class(found: Any, base: str) -> None:
    """Checks that ``found`` is a complete class derived from ``base`` (``"module.Class"``).

    Bases are compared by name, since the base class may need packages that are not installed
    where a topology is checked. Raises ``UnusableCodeError``.
    """
    short = base.rpartition(".")[2]
    if not inspect.isclass(found):
        raise UnusableCodeError("is no class", f"name a class derived from {base}")
    if not any(f"{c.__module__}.{c.__qualname__}" == base for c in found.__mro__):
        raise UnusableCodeError(f"is not derived from {short}", f"derive it from {base}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UnusableCodeError(
            f"is an incomplete {short}", f"define {', '.join(f'{m}()' for m in missing)}"
        )


def _import(module_name: str, folder: Path) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            modules = sorted(p.stem for p in folder.glob("*.py") if p.stem.isidentifier())
            guess = closest(error.name, modules)
            remedy = f"did you mean {guess!r}?" if guess else "put it there or set spec.code.path"
            raise UnusableCodeError(
                f"names the module {error.name!r}, which is not in {folder}", remedy
            ) from None
        raise UnusableCodeError(
            f"cannot be imported: {_where(error, folder)}{error}",
            f"install {error.name!r} or remove the import",
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001
        # The boundary to user code: a module may raise anything, SystemExit too.
        raise UnusableCodeError(
            f"cannot be imported: {_where(error, folder)}{type(error).__name__}: {_text(error)}",
            "mend it; the module must be importable on its own",
        ) from None


def _where(error: BaseException, folder: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename, folder)} line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(folder)]
    return f"{_shown(own[-1].filename, folder)} line {own[-1].lineno}: " if own else ""


def _shown(filename: str, folder: Path) -> str:
    file = Path(filename)
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else filename


def _text(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())


def _children(folder: Path) -> list[Path]:
    try:
        return [p for p in folder.iterdir() if p.is_dir() or p.suffix == ".py"]
    except OSError:
        return []


def _lies_in(module: Any, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    # A namespace package has no file but a path.
    places = [file] if isinstance(file, str) else list(getattr(module, "__path__", []))
    return any(
        Path(p).resolve().is_relative_to(folder)
        and not {"site-packages", "dist-packages"} & set(Path(p).parts)
        for p in places
    )
