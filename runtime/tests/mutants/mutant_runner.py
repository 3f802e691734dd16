"""Puts one small fault after the other into the protocol and looks who notices (``make mutants``).

Everything is imported and collected once; each mutant is a fork in which one function gets the
code of its faulty twin. There the steps that call the function (tests of the protocol, then
simulated runs) are taken in the order in which they have killed most for their cost so far, until
one fails. A step that takes far longer than it should counts as failed. Results are kept, by the
text of the function, so that a run can be broken off and gone on with.

Exit code 1 if more than ``UNEXPLAINED`` of all mutants survive without a word in docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from mutations import FILES, MODULES, PROTOCOL, Fault, faults
from survivors import explained

from millrace.simulate.runner import run_one

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / ".mutants" / "results.jsonl"
UNEXPLAINED = 0.05

EXAMPLES = 10
"""Hypothesis' examples for each test; the fault is there in every one of them."""

SLOW_S = 3.0
"""Seconds of CPU, beside twenty times its ordinary ones, after which a step hangs."""

CONTROLS = 2
"""How often sound code is taken through all steps first."""

SURVIVED, HUNG = "survived", "hung"


@dataclass(slots=True)
class Trial:
    """A test or a simulated run: ``fails`` takes it."""

    name: str
    fails: Callable[[], bool]
    cost_s: float = 0.0
    calls: set[str] = field(default_factory=set)


# --- putting a fault in


def imported(module: str) -> ModuleType:
    """A module of the protocol by the last part of its name."""
    inside = FILES[module].relative_to(PROTOCOL).with_suffix("")
    return importlib.import_module(".".join(["millrace.protocol", *inside.parts]))


def live_function(module: str, name: str) -> FunctionType:
    """The function that a qualified name of a protocol module stands for."""
    found: Any = imported(module)
    for part in name.split("."):
        found = vars(found)[part]
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    found = getattr(found, "__wrapped__", found)
    assert isinstance(found, FunctionType)
    return found


@contextmanager
def put_in(fault: Fault) -> Iterator[None]:
    """Have the fault in the running program for a while."""
    mutant = fault.mutant
    if isinstance(fault.scope.node, ast.FunctionDef):
        function = live_function(mutant.module, mutant.function)
        sound = function.__code__
        function.__code__ = _code_of(fault.code(), fault.scope.node.name)
        _forget_results(mutant.module)
        try:
            yield
        finally:
            function.__code__ = sound
            _forget_results(mutant.module)
        return
    with _constant(mutant.module, mutant.function, fault.code()):
        yield


def _forget_results(module: str) -> None:
    """What functions with a cache have made so far was made by sound code."""
    for found in vars(imported(module)).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


def _code_of(code: CodeType, name: str) -> CodeType:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            return one if one.co_name == name else _code_of(one, name)
    raise LookupError(name)


@contextmanager
def _constant(module: str, name: str, code: CodeType) -> Iterator[None]:
    """Constants are changed wherever they were imported to."""
    namespace: dict[str, object] = {}
    exec(code, namespace)
    sound = getattr(imported(module), name)
    holders = [m for k, m in list(sys.modules.items()) if k.startswith("millrace.")]
    holders = [m for m in holders if name in vars(m) and getattr(m, name) == sound]
    for holder in holders:
        setattr(holder, name, namespace[name])
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, sound)


# --- steps


def _test_step(item: pytest.Item) -> Trial:
    def fails() -> bool:
        # Any step may be the next one, so nothing is left set up for a neighbour.
        reports = runtestprotocol(item, log=False, nextitem=None)
        return any(report.failed for report in reports)

    return Trial(item.nodeid.rpartition("/")[2], fails)


def _run_step(seed: int) -> Trial:
    return Trial(f"simulated run {seed}", lambda: run_one(seed).violation is not None)


def _measure(step: Trial) -> None:
    """Take a step once on sound code: it must pass, and shows what it calls."""
    called: set[CodeType] = set()
    folder = str(PROTOCOL)

    def notice(frame: FrameType, kind: str, _: object) -> None:
        if kind == "call" and frame.f_code.co_filename.startswith(folder):
            called.add(frame.f_code)

    for module in MODULES:
        # What an earlier step has left in a cache would hide that this one calls it, too.
        _forget_results(module)
    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        failed = step.fails()
    finally:
        sys.setprofile(before)
    if failed:
        raise SystemExit(f"{step.name} fails without any fault")
    began_s = time.process_time()
    step.fails()
    step.cost_s = max(time.process_time() - began_s, 0.001)
    step.calls = {f"{Path(c.co_filename).stem}.{c.co_qualname}" for c in called}


def _few_examples(item: pytest.Item) -> None:
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    kept = getattr(test, "_hypothesis_internal_use_settings", None)
    if kept is not None:
        fewer = settings(
            kept,
            max_examples=min(kept.max_examples, EXAMPLES),
            database=None,
            derandomize=True,
            deadline=None,
        )
        test._hypothesis_internal_use_settings = fewer  # type: ignore[union-attr]


# --- the run


class Runner:
    """A pytest plugin that runs mutants in the place of the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._steps: list[Trial] = []
        self._kills: Counter[tuple[str, str]] = Counter()
        self._known = read_results(options.results)
        if options.again:
            self._known = {name: by for name, by in self._known.items() if by != SURVIVED}
        self._running: dict[int, tuple[Fault, int]] = {}
        self._done = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = [i for i in session.items if "real" not in getattr(i, "fixturenames", ())]
        for item in items:
            _few_examples(item)
        self._steps = [_test_step(item) for item in items]
        self._steps += [_run_step(seed) for seed in range(self._options.runs)]
        began_s = time.process_time()
        for step in self._steps:
            _measure(step)
        _say(f"{len(self._steps)} steps measured in {time.process_time() - began_s:.0f} s")
        self._control()
        wanted = [f for module in self._options.modules for f in faults(module)]
        left = [f for f in wanted if key(f) not in self._known]
        _say(f"{len(wanted)} mutants, {len(left)} of them new")
        for fault in left:
            while len(self._running) >= self._options.jobs:
                self._reap(len(left))
            self._begin(fault)
        while self._running:
            self._reap(len(left))
        return True

    def _control(self) -> None:
        """Sound code must survive the steps in any order, or no kill means anything."""
        for seed in range(CONTROLS):
            steps = Random(seed).sample(self._steps, len(self._steps))
            by = self._fork(None, steps)
            with os.fdopen(by[1]) as pipe:
                last = pipe.read().splitlines()[-1:]
            os.waitpid(by[0], 0)
            if last != [f"by {SURVIVED}"]:
                raise SystemExit(f"sound code does not survive: {last}")

    def _begin(self, fault: Fault) -> None:
        mutant = fault.mutant
        steps = [s for s in self._steps if calls(s, fault)]
        # Those that have killed most in this module for their cost; each has a chance.
        steps.sort(
            key=lambda s: (self._kills[mutant.module, s.name] + 0.2) / s.cost_s, reverse=True
        )
        pid, reading = self._fork(fault, steps)
        self._running[pid] = fault, reading

    def _fork(self, fault: Fault | None, steps: Sequence[Trial]) -> tuple[int, int]:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _child(fault, steps, writing)
        os.close(writing)
        return pid, reading

    def _reap(self, total: int) -> None:
        pid, _ = os.wait()
        fault, reading = self._running.pop(pid)
        with os.fdopen(reading) as pipe:
            lines = pipe.read().splitlines()
        if not lines:
            raise SystemExit(f"{fault.mutant.name} could not be put in")
        last = lines[-1]
        by = last.removeprefix("by ") if last.startswith("by ") else f"{HUNG} {last}"
        self._kills[fault.mutant.module, by] += 1
        self._known[key(fault)] = by
        self._options.results.parent.mkdir(exist_ok=True)
        with self._options.results.open("a") as file:
            file.write(json.dumps([key(fault), by]) + "\n")
        self._done += 1
        if by == SURVIVED:
            _say(f"survives: {fault.mutant.name}")
        if self._done % 25 == 0:
            _say(f"{self._done} of {total}")


def calls(step: Trial, fault: Fault) -> bool:
    """Whether a step may notice a fault: it calls the function, or any in a module that has the
    constant."""
    if not isinstance(fault.scope.node, ast.FunctionDef):
        modules = {m: imported(m) for m in MODULES}
        users = tuple(
            f"{m}." for m, found in modules.items() if fault.mutant.function in vars(found)
        )
        return any(name.startswith(users) for name in step.calls)
    function = f"{fault.mutant.module}.{fault.mutant.function}"
    return any(name == function or name.startswith(f"{function}.<locals>") for name in step.calls)


def _child(fault: Fault | None, steps: Sequence[Trial], writing: int) -> None:
    """Take the steps in a process that has the fault, if there is one; never comes back."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    by = SURVIVED
    with put_in(fault) if fault is not None else nullcontext():
        os.write(writing, b"put in\n")
        for step in steps:
            os.write(writing, f"{step.name}\n".encode())
            signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S + 20 * step.cost_s)
            if _fails(step):
                by = step.name
                break
    os.write(writing, f"by {by}\n".encode())
    os._exit(0)


def _fails(step: Trial) -> bool:
    try:
        return step.fails()
    except BaseException:  # noqa: BLE001
        # Whatever a fault raises, it was noticed.
        return True


# --- results


def key(fault: Fault) -> str:
    """The mutant with a digest of its function, so that a changed function is run again."""
    text = ast.unparse(fault.scope.node)
    return f"{fault.mutant.name} {hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def read_results(path: Path) -> dict[str, str]:
    """Who has killed each mutant, by ``key``."""
    if not path.exists():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())


def report(modules: Sequence[str], results: dict[str, str]) -> int:
    """Print a line for each module and the survivors that nobody explains; the exit code, which is
    not 0 either while any is still to be run."""
    told, unexplained, run, left = explained(), [], 0, 0
    for module in modules:
        known = {f.mutant.name: results.get(key(f)) for f in faults(module)}
        survivors = [name for name, by in known.items() if by == SURVIVED]
        open_ones = [name for name in survivors if name not in told]
        waiting = sum(by is None for by in known.values())
        _say(
            f"{module:12} {len(known):5} mutants, {len(survivors):4} survive, "
            f"{len(open_ones):4} unexplained, {waiting:4} not run"
        )
        unexplained += open_ones
        run += len(known) - waiting
        left += waiting
    for name in unexplained:
        print(f"- {name}")
    share = len(unexplained) / max(run, 1)
    _say(f"{run} mutants run, {len(unexplained)} survive unexplained ({share:.1%}); {left} not run")
    return 1 if left or share > UNEXPLAINED else 0


def main() -> int:
    options = _parser().parse_args()
    if not options.report:
        folder = ROOT / "runtime" / "tests" / "protocol"
        quiet = ["-c", os.devnull, "--rootdir", str(ROOT), "-q", "-s", "-p", "no:cacheprovider"]
        code = pytest.main([*quiet, str(folder)], plugins=[Runner(options)])
        if code not in (0, 5):
            return int(code)
    return report(options.modules, read_results(options.results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES, help="modules of the protocol")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--runs", type=int, default=150, help="simulated runs (default 150)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--again", action="store_true", help="try those that survived again")
    parser.add_argument("--report", action="store_true", help="only say what is known")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
