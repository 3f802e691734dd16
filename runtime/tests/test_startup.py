"""What processes of Millrace's own do about what they load."""

from __future__ import annotations

import gc
import subprocess
import sys
from importlib import import_module

import pytest

from millrace.startup import ONE_THREAD, loading, one_thread


def test_nothing_is_collected_while_code_is_loaded_and_what_is_comes_behind() -> None:
    before = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before, "what was loaded is looked through no more"
    finally:
        gc.unfreeze()


def test_code_that_cannot_be_loaded_leaves_the_collector_as_it_was() -> None:
    try:
        with pytest.raises(ModuleNotFoundError), loading():
            import_module("no_such_module_of_millrace")
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_numpy_brings_no_threads_along_where_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", *ONE_THREAD):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os; from millrace.startup import one_thread;"
        "os.environ.update(one_thread()); import numpy;"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_who_wants_more_threads_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "2")
    assert set(one_thread().values()) == {"2"}
