"""A driver's session has its daemon of Python workers from the start, or goes on without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.jobs.session import JVM_UP

SESSION = """
import json
import os
import signal
import sys
from pathlib import Path

import psutil

from millrace.engine.jobs import daemonahead
from millrace.engine.jobs.session import SessionSettings, build_context

folder, how = Path(sys.argv[1]), sys.argv[2]
conf = {"spark.executorEnv.GIVEN": "to workers"}
conf |= {"spark.executorEnv.OMP_NUM_THREADS": "1"} if how == "of the user" else {}
settings = SessionSettings("ahead", folder, threads=2, conf=conf, daemon_ahead=True)
steps = []
context = build_context(settings, steps.append)
loaded = sorted({"pandas", "pyspark.testing"} & set(sys.modules))
(ahead,) = daemonahead._started
if how == "gone":
    ahead.kill()
    ahead.wait()


def seen(_):
    import psutil

    one = psutil.Process()
    secrets = [name for name in os.environ if "SECRET" in name]
    return [(one.pid, one.ppid(), os.environ.get("GIVEN"), secrets, sys.flags.hash_randomization)]


first = context.parallelize(range(4), 2).mapPartitions(seen).collect()
if how == "dies later":
    os.kill(first[0][1], signal.SIGKILL)
    ahead.wait()
again = context.parallelize(range(4), 2).mapPartitions(seen).collect()
found = {"ahead": ahead.pid, "first": first, "again": again, "loaded": loaded, "steps": steps}
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


def told(folder: Path, how: str) -> dict[str, Any]:
    folder.mkdir(mode=0o700)
    # Sockets lie there, whose paths have to be short.
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(folder), how],
            env={**os.environ, "TMPDIR": temporary},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert how == "gone" or not list(Path(temporary).glob("daemon-*.sock"))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("how", ["as ever", "of the user", "gone", "dies later"])
def test_workers_are_forked_by_the_daemon_ahead_while_it_lives(tmp_path: Path, how: str) -> None:
    found = told(tmp_path / "work", how)
    # What a driver never uses would take it half a second while nothing else of a start goes on.
    assert found["loaded"] == []
    before = ["Java launched", "PySpark imported", "JVM listens", JVM_UP]
    assert found["steps"] == [*before, "SparkContext made", "Spark up"]
    parents = {parent for _, parent, *_ in found["first"]}
    assert len(parents) == 1
    assert (parents == {found["ahead"]}) == (how != "gone")
    later = {parent for _, parent, *_ in found["again"]}
    assert (later == parents) == (how != "dies later")
    for _, _, given, secrets, randomised in [*found["first"], *found["again"]]:
        assert given == "to workers"
        assert secrets == ["PYTHON_WORKER_FACTORY_SECRET"] or secrets == []
        assert not randomised
