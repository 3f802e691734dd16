"""When a cold start has reached what."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.engine.jobs import ahead
from millrace.engine.jobs.session import JVM_UP
from millrace.engine.jobs.starttimes import StartTimes, lived_s


def test_steps_are_told_in_their_order_since_the_process_began() -> None:
    now = iter([12.0, 13.25, 14.5, 15.0])
    mine = StartTimes(lambda: next(now), began_s=10.0)
    others = StartTimes(lambda: next(now), began_s=10.0)
    mine.reached("first")
    others.reached("second")
    mine.reached("third")
    mine.reached("first")
    assert mine.text(others) == "first 2.00 s, second 3.25 s, third 4.50 s"


def test_a_process_lives_since_it_was_started() -> None:
    script = "from millrace.engine.jobs.starttimes import lived_s; print(lived_s())"
    began_s = time.monotonic()
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    # The clock of the kernel's ticks is a hundredth of a second coarse.
    assert 0 < float(said.stdout) <= time.monotonic() - began_s + 0.02
    assert abs(lived_s() - (time.time() - psutil.Process().create_time())) < 2


class Opened:
    """Stands in for Spark, whose JVM is up when that is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up, self.goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(ahead, "open_context", self.open)

    def open(self, _topology: Any, _workdir: Any, _cluster: Any, reached: Any) -> Any:
        assert self.up.wait(30)
        if not self.goes_on.is_set():
            raise ahead.SparkStartError("no Java")
        reached(JVM_UP)
        return self


@pytest.mark.parametrize("comes", [True, False])
def test_whoever_awaits_the_jvm_goes_on_once_it_is_up_or_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    opened = Opened(monkeypatch)
    session = ahead.SparkAhead(None, Path())  # type: ignore[arg-type]
    waiting = threading.Thread(target=session.await_jvm, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    if comes:
        opened.goes_on.set()
    opened.up.set()
    waiting.join(30)
    assert not waiting.is_alive()
    if comes:
        assert session.result() is opened
    else:
        with pytest.raises(ahead.SparkStartError):
            session.result()


UNSTARTED = """
import sys
from pathlib import Path

from millrace.engine.jobs import ahead, jvm
from millrace.topology.load import parse


def launch(*_):
    print([name for name in sys.modules if name.startswith(("py4j", "pyspark"))])
    raise OSError("enough")


jvm.launch_jvm = launch
try:
    ahead.open_context(parse(sys.argv[1]), Path(sys.argv[2]), None, print)
except ahead.SparkStartError as error:
    print(str(error).partition(";")[0])
"""
TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: some}
spec:
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], files: {path: out}}]
"""


def test_java_is_launched_before_anything_of_pyspark_is_imported(tmp_path: Path) -> None:
    """Java's start takes the longest, and nothing that can go on beside it comes before."""
    command = [sys.executable, "-c", UNSTARTED, TOPOLOGY, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "Spark could not be started: enough"]
