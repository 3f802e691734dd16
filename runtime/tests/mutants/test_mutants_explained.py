"""The list of explained survivors speaks of code that exists, and mutants are what they say."""

from __future__ import annotations

import ast

import pytest
from mutant_runner import Trial, calls, key, live_function, put_in, report
from mutations import MODULES, Fault, faults
from survivors import explained

from millrace.protocol.types import TaskId, TaskReport
from millrace.protocol.winners import Inconsistent, Winners, find_winners


def test_every_explained_survivor_is_a_mutant_of_the_code() -> None:
    names = {fault.mutant.name for module in MODULES for fault in faults(module)}
    gone = sorted(explained().keys() - names)
    assert not gone, f"docs/mutants.md explains what is no longer there: {gone}"


def test_a_survivor_has_one_reason() -> None:
    told = "### Equivalent: why\n- a `f`: `x` → `y`\n"
    assert explained(told) == {"a `f`: `x` → `y`": "Equivalent: why"}
    with pytest.raises(ValueError, match="named twice"):
        explained(told + "### Accepted: since\n- a `f`: `x` → `y`\n")
    with pytest.raises(ValueError, match="without a reason"):
        explained("- a `f`: `x` → `y`\n")


@pytest.mark.parametrize("module", MODULES)
def test_every_mutant_compiles_to_other_code_of_its_function(module: str) -> None:
    for fault in faults(module):
        code = fault.code()
        if isinstance(fault.scope.node, ast.FunctionDef):
            sound = live_function(module, fault.mutant.function)
            with put_in(fault):
                assert sound.__code__.co_qualname.rpartition(".")[2] == fault.scope.node.name
        assert code.co_consts is not None


def test_texts_for_people_are_left_alone() -> None:
    changed = [fault for module in MODULES for fault in faults(module)]
    assert not any(isinstance(fault.change.node, ast.JoinedStr) for fault in changed)
    assert not any(fault.mutant.before.startswith(("text =", "reason =")) for fault in changed)
    assert not any(fault.mutant.function in ("_name", "__repr__") for fault in changed)


def find(module: str, text: str) -> Fault:
    return next(fault for fault in faults(module) if fault.mutant.name.startswith(text))


def test_a_fault_is_in_the_program_for_as_long_as_it_is_asked_for() -> None:
    reports = [TaskReport(TaskId(0, 0, 0), roots_read=((0, 3),))]
    fault = find("winners", "winners `_covers`: `if position != roots` → `never`")
    assert isinstance(find_winners((1,), reports, 4), Inconsistent)
    with put_in(fault):
        assert isinstance(find_winners((1,), reports, 4), Winners)
    assert isinstance(find_winners((1,), reports, 4), Inconsistent)


def test_whoever_has_imported_a_constant_may_notice_that_it_is_another() -> None:
    fault = find("types", "types `FORMAT`")
    for called, notices in (("codec.decode", True), ("types.View.stamp", True), ("ring.f", False)):
        assert calls(Trial("a test", lambda: False, calls={called}), fault) is notices


def test_a_constant_is_changed_wherever_it_was_imported_to() -> None:
    from millrace.protocol import driver

    with put_in(find("driver", "driver `WATCH_TICKS`")):
        assert driver.WATCH_TICKS == 6
    assert driver.WATCH_TICKS == 5


@pytest.mark.parametrize(("left", "code"), [(0, 0), (1, 1)])
def test_what_was_not_run_is_no_success(
    left: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    module = MODULES[0]
    killed = {key(fault): "a test" for fault in list(faults(module))[left:]}
    assert killed
    assert report([module], killed) == code
    assert f"{left} not run" in capsys.readouterr().err.splitlines()[-1]
