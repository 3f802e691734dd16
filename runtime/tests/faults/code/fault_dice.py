"""Processors whose output is another one each time they run.

While the file that ``FAULTS_GATE`` names is not there they take their time, so that windows are in
flight when something is killed.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from millrace import row, stateful

SLOW_EVERY = 100
PAUSE_S = 0.03
BUCKETS = 40
WORTH = 1_000

_chance = random.SystemRandom()


@row(
    output="root string, nonce string, part long, parts long, bucket string, worth long, at double"
)
def throw(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A random number of rows in random buckets; how many depends on the attempt as well."""
    name = line["value"].split()[0]
    if int(name[1:]) % SLOW_EVERY == 0 and not os.path.exists(os.environ["FAULTS_GATE"]):
        time.sleep(PAUSE_S)
    context = TaskContext.get()
    assert context is not None
    parts = 1 + (_chance.randrange(3) + context.taskAttemptId()) % 4
    nonce = uuid.uuid4().hex
    for part in range(parts):
        yield {
            "root": name,
            "nonce": nonce,
            "part": part,
            "parts": parts,
            "bucket": f"b{_chance.randrange(BUCKETS)}",
            "worth": _chance.randrange(WORTH),
            "at": time.time(),
        }


@stateful(
    output="bucket string, nonce string, part long, n long, total long, latest double",
    state="n long, total long, latest double",
)
def tally(thrown: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Numbers the rows of a bucket and adds them up; keeps when it ran last."""
    state["n"] = (state["n"] or 0) + 1
    state["total"] = (state["total"] or 0) + thrown["worth"]
    state["latest"] = max(state["latest"] or 0.0, thrown["at"], time.time())
    return {"nonce": thrown["nonce"], "part": thrown["part"], "bucket": thrown["bucket"], **state}
