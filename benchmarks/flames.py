"""Stacks as py-spy writes them: which step of a window each belongs to, and a flame graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*)\)$")

_STEPS = (
    ("millrace/sources/", "read and decode"),
    ("millrace/sinks/", "sink"),
    ("millrace/engine/task/steps/splitting.py", "split"),
    ("millrace/engine/task/steps/whitespace.py", "split"),
    ("examples/", "user code"),
    ("benchmarks/", "user code"),
    ("millrace/engine/task/steps/output.py", "rows and columns for user code"),
    ("millrace/engine/task/steps/functions.py", "rows and columns for user code"),
    ("millrace/engine/task/steps/keyed.py", "rows and columns for user code"),
    ("millrace/state/keyed/cache.py", "load and write state"),
    ("millrace/state/keyed/blobs.py", "load and write state"),
    ("millrace/state/client", "load and write state"),
    ("millrace/state/servers.py", "load and write state"),
    ("millrace/state/keyed/", "keys and totals"),
    ("millrace/engine/task/combine.py", "keys and totals"),
    ("millrace/engine/task/steps/aggregate.py", "keys and totals"),
    ("millrace/engine/task/kernels.py", "tracking"),
    ("millrace/tracking/", "tracking"),
    ("millrace/engine/task/books.py", "tracking"),
    ("millrace/engine/task/acks.py", "tracking"),
    ("millrace/engine/task/steps/base.py", "tracking"),
    ("millrace/engine/task/exchange.py", "exchange"),
    ("millrace/engine/task/crossings.py", "exchange"),
    ("millrace/engine/program/signing.py", "signing"),
    ("millrace/engine/task/worker.py", "task begin and end"),
    ("millrace/engine/task/daemon.py", "task begin and end"),
    ("millrace/engine/task/", "other steps of a task"),
    ("millrace/engine/jobs/", "start jobs"),
    ("millrace/engine/driver/planner.py", "plan"),
    ("millrace/engine/driver/stores.py", "seal"),
    ("millrace/engine/driver/publisher.py", "publish"),
    ("millrace/engine/driver/verdicts.py", "verdict"),
    ("millrace/engine/driver/performer.py", "carry out actions"),
    ("millrace/engine/driver/figures.py", "figures and status"),
    ("millrace/engine/driver/statistics.py", "figures and status"),
    ("millrace/engine/driver/home/", "figures and status"),
    ("millrace/engine/driver/", "loop of the driver"),
    ("millrace/protocol/", "protocol"),
    ("millrace/local/", "supervise"),
    ("pyspark/", "PySpark"),
    ("py4j/", "PySpark"),
)
"""Part of a file's path, and the step that a stack belongs to whose innermost such frame it is."""

_CALLS_OF_KERNELS = "millrace/compiled/jit.py"
"""A compiled loop belongs to the step that calls it."""


_WAITS = re.compile(
    r"(__)?(libc_)?(read|recv|recvfrom|recvmsg|p?poll|select|epoll_wait|accept4?|wait4|waitpid|"
    r"pthread_cond_\w+|sem_\w*wait|(clock_)?nanosleep|syscall|PyThread_acquire_lock\w*|"
    r"select_\w+_impl)"
)
"""Functions of the C library and of Python in which threads wait; py-spy cannot always tell that
from work."""


@dataclass(frozen=True)
class Frame:
    """A function, and the file or library that it stands in."""

    function: str
    file: str

    @property
    def native(self) -> bool:
        return not self.file.endswith(".py")

    @property
    def label(self) -> str:
        """What it is called in a flame graph."""
        short = "/".join(self.file.split("/")[-2:])
        return f"{self.function} ({short})"


Stack = tuple[Frame, ...]
"""From the outermost frame to the innermost."""

Stacks = Counter[Stack]
"""How often each was seen."""


def read_raw(file: Path) -> Stacks:
    """What ``py-spy record --format raw`` wrote, without threads that wait; nothing where it saw
    nothing."""
    found: Stacks = Counter()
    if not file.exists():
        return found
    for line in file.read_text().splitlines():
        names, _, times = line.rpartition(" ")
        stack = tuple(_frame(name) for name in names.split(";"))
        if not _waits(stack):
            found[stack] += int(times)
    return found


def _waits(stack: Stack) -> bool:
    """Whether the innermost function that has a name is one to wait in."""
    named = (frame for frame in reversed(stack) if not frame.function.startswith("0x"))
    frame = next(named, None)
    return frame is not None and frame.native and _WAITS.fullmatch(frame.function) is not None


def _frame(name: str) -> Frame:
    parts = _FRAME.match(name)
    return Frame(parts["function"], parts["file"]) if parts else Frame(name, "")


def step_of(stack: Stack) -> tuple[str, bool]:
    """The step of a stack, and whether native code was running."""
    for frame in reversed(stack):
        if _CALLS_OF_KERNELS in frame.file:
            continue
        for part, step in _STEPS:
            if part in frame.file:
                return step, stack[-1].native
    return "other", stack[-1].native


# -- the picture


@dataclass
class _Node:
    value: float = 0.0
    below: dict[str, _Node] = field(default_factory=dict)


_WIDTH, _HEIGHT, _LETTER, _SMALLEST = 1600, 17, 6.6, 0.4


def write_svg(file: Path, title: str, stacks: Mapping[tuple[str, ...], float]) -> None:
    """A flame graph whose widths are ms; every box tells its name and ms when it is pointed at."""
    root = _Node()
    for names, value in stacks.items():
        if value <= 0:
            continue
        root.value += value
        node = root
        for name in names:
            node = node.below.setdefault(name, _Node())
            node.value += value
    boxes: list[str] = []
    depth = _draw(boxes, title, root, 0.0, 0, _WIDTH / (root.value or 1.0))
    height = (depth + 2) * _HEIGHT
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="monospace" font-size="11">\n' + "\n".join(boxes) + "\n</svg>\n"
    )


def _draw(boxes: list[str], name: str, node: _Node, left: float, depth: int, scale: float) -> int:
    """Draw a node and what is below it; the greatest depth drawn."""
    width = node.value * scale
    if width < _SMALLEST:
        return depth
    shade = sum(name.encode()) % 60
    text = escape(name[: max(0, int(width / _LETTER) - 1)])
    boxes.append(
        f"<g><title>{escape(name)}: {node.value:.2f} ms</title>"
        f'<rect x="{left:.1f}" y="{depth * _HEIGHT}" width="{width:.1f}" height="{_HEIGHT - 1}" '
        f"fill={quoteattr(f'hsl({20 + shade // 2},80%,{62 + shade // 4}%)')}/>"
        f'<text x="{left + 3:.1f}" y="{depth * _HEIGHT + 12}">{text}</text></g>'
    )
    deepest = depth
    for below, child in sorted(node.below.items(), key=lambda item: -item[1].value):
        deepest = max(deepest, _draw(boxes, below, child, left, depth + 1, scale))
        left += child.value * scale
    return deepest
