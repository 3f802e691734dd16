"""Modules that stand in ``sys.modules`` before they are loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.engine.later import load_later

NAME = "loaded_late"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that is to be loaded later."""
    monkeypatch.syspath_prepend(str(tmp_path))
    load_later((NAME,))
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_it_is_loaded_once_by_whoever_comes_first(place: Path) -> None:
    place.write_text("import builtins, time\ntime.sleep(0.2)\nbuiltins._loads += 1\nvalue = [1]\n")
    import builtins

    import loaded_late

    builtins._loads = 0  # type: ignore[attr-defined]
    try:
        found: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: found.append(loaded_late.value)) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert builtins._loads == 1  # type: ignore[attr-defined]
    finally:
        del builtins._loads  # type: ignore[attr-defined]
    assert found == [[1]] * 5
    assert all(one is found[0] for one in found)
    assert sys.modules[NAME].value is found[0]


def test_what_it_does_not_have_is_missing_and_what_is_broken_stays_so(place: Path) -> None:
    place.write_text("raise ValueError('broken')\n")
    import loaded_late

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            _ = loaded_late.value
    place.write_text("value = 1\n")
    assert loaded_late.value == 1
    with pytest.raises(AttributeError, match="module loaded_late has no attribute other"):
        _ = loaded_late.other


def test_one_that_is_loaded_stays_as_it_is() -> None:
    before = sys.modules["threading"]
    load_later(("threading",))
    assert sys.modules["threading"] is before


DRIVER = """
import sys
from millrace.engine.later import COMPILED, load_later
load_later(COMPILED)
from millrace.engine.driver import process, standby
from millrace.engine.jobs import start
from millrace.pods import driver
print(sorted({"numba", "llvmlite", "pandas"} & set(sys.modules)))
from millrace.state.keyed.keys import hash_keys
import pyarrow as pa
print(len(hash_keys([pa.array(["a", "b"])])))
"""


def test_a_driver_has_no_compiler_until_it_computes_something() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], check=True, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "2"], done.stderr


@pytest.mark.parametrize("program", ["millrace.engine.driver.main", "millrace.pods.__main__"])
def test_drivers_begin_with_that(program: str, tmp_path: Path) -> None:
    """Both that of one machine and that of a pod, here without their settings."""
    words = ["driver"] if "pods" in program else ["--settings", str(tmp_path / "none")]
    script = f"""
import sys
from contextlib import suppress
from {program} import main
with suppress(SystemExit):
    main({words!r})
print(type(sys.modules["millrace.tracking.kernels"]).__name__, "numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["Later", "False"], done.stderr
