"""The same with a real Spark below the driver: no JVM, daemon or worker is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
from standins import Run, alive, running, until

from millrace.local.inspect.table import Row, process_rows
from millrace.local.workdir import find_folder

SPARK = Path(__file__).with_name("standin_spark.py")


def below(run: Run, driver: int) -> dict[str, list[Row]]:
    """The processes of the ``driver``-th life by role, once its workers work."""
    until(lambda: len(run.tree("worker")) >= 2 * driver, "two workers", deadline_s=90)
    rows: dict[str, list[Row]] = {}
    for row in process_rows(find_folder(run.folder)):
        rows.setdefault(row.role, []).append(row)
    return rows


def test_no_process_of_spark_survives_its_jvm_or_its_supervisor(tmp_path: Path) -> None:
    with running(tmp_path, STANDIN_DRIVER=str(SPARK)) as run:
        for life, victim in enumerate(("jvm", "supervisor"), start=1):
            rows = below(run, life)
            counts = {role: len(found) for role, found in rows.items()}
            expected = {"supervisor", "state", "acker", "driver", "guard", "jvm", "pythonDaemon"}
            assert counts == {**dict.fromkeys(expected, 1), "pythonWorker": 2}
            spark = [
                psutil.Process(row.pid)
                for role in ("driver", "jvm", "pythonDaemon", "pythonWorker")
                for row in rows[role]
            ]
            assert len(alive(spark)) == 5
            os.kill(rows[victim][0].pid, signal.SIGKILL)
            until(lambda spark=spark: not alive(spark), f"the end of Spark after its {victim}")
