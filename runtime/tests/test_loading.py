"""What ``module:name`` means, whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.connector import ConnectorSpec, class_of
from millrace.engine.program.usercode import load_object
from millrace.errors import SinkError, TopologyError
from millrace.loading import LoadError, load_named
from millrace.sinks.base import Sink

MODULES = {
    "kept": "class Outer:\n    class Inner:\n        depth = 2\n",
    "gone": "import nothing_here\n",
    "leaves": "raise SystemExit('bye')\n",
    "odd": "from millrace.errors import SinkError\nraise SinkError('the table is not mine')\n",
    "cut": "raise KeyboardInterrupt\n",
}


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        (tmp_path / f"loaded_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(f"loaded_{name}", None)


def test_a_name_may_lie_inside_another() -> None:
    assert load_named("loaded_kept:Outer.Inner.depth") == 2


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("loaded_nowhere:f", "cannot be imported: ModuleNotFoundError: No module named"),
        ("loaded_gone:f", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("loaded_leaves:f", "the module 'loaded_leaves' cannot be imported: SystemExit: bye"),
        (
            "loaded_kept:Outer.Other",
            "the module 'loaded_kept' has no 'Outer.Other'; check the name",
        ),
    ],
)
def test_what_cannot_be_loaded_says_why(target: str, said: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_named(target)
    assert said in str(caught.value)


def test_who_interrupts_the_program_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        load_named("loaded_cut:f")


def connector(target: str) -> ConnectorSpec:
    return ConnectorSpec("out", target, "{}", ".")


def test_a_module_that_ends_the_process_is_an_error_of_who_names_it() -> None:
    with pytest.raises(TopologyError, match=r"'loaded_leaves:f': .* SystemExit: bye"):
        load_object("loaded_leaves:f", "")
    with pytest.raises(SinkError, match=r"sink 'out': custom\.class 'loaded_leaves:f' cannot be"):
        class_of(connector("loaded_leaves:f"), "sink", Sink, SinkError)  # type: ignore[type-abstract]


def test_what_a_connector_says_itself_is_said_as_it_is() -> None:
    with pytest.raises(SinkError) as caught:
        class_of(connector("loaded_odd:f"), "sink", Sink, SinkError)  # type: ignore[type-abstract]
    assert str(caught.value) == "the table is not mine"
