"""Plain PySpark Structured Streaming, the side that Millrace is measured against.

One process keeps one query alive and works on command: each line on standard input
``{"files": [...]}`` names the windows of a round, which are moved into the folder that the query
watches; the answer on standard output tells when each of them was finished. ``"expect": n`` beside
no files waits for so many batches over what has arrived otherwise. Between rounds the query only
polls its folder four times a second. ``{"stop": true}`` ends it.

Plans (``--plan``):
    jvm         ``explode(split(value, ' '))``, ``groupBy.count``: all in the JVM
    arrow       the split in ``mapInArrow``, ``groupBy.count`` in the JVM
    arrowudf    the split in an Arrow UDF that answers with lists, ``explode`` in the JVM
    pandas      the split in ``mapInArrow``, the count in ``applyInPandasWithState``
    keys        a line is one word: ``groupBy.count``, all in the JVM
    keyspandas  a line is one word: the count in ``applyInPandasWithState``
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "6g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "freezing_daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.pollingDelay": "250ms",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Found to be the fastest on a machine of two cores. The polling delay is not for speed: with it a
query that waits takes little from other sides."""

PLANS = ("jvm", "arrow", "arrowudf", "pandas", "keys", "keyspandas")

_STATE = "org.apache.spark.sql.execution.streaming.state."
STORES = {
    "memory": {"providerClass": _STATE + "HDFSBackedStateStoreProvider"},
    "rocksdb": {
        "providerClass": _STATE + "RocksDBStateStoreProvider",
        "rocksdb.changelogCheckpointing.enabled": "true",
        "rocksdb.trackTotalNumberOfRows": "false",
    },
}


def main() -> None:
    """Serve rounds until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", choices=PLANS, required=True)
    parser.add_argument("--store", choices=sorted(STORES), default="memory")
    parser.add_argument("--folder", type=Path, required=True, help="for input, output, checkpoint")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    # Standard output belongs to the answers; what Spark prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    extra = dict(item.split("=", 1) for item in options.set)
    spark = _session(options.store, options.folder, extra)
    source = options.folder / "input"
    source.mkdir(parents=True, exist_ok=True)
    done: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
    query = _start(spark, options.plan, options.folder, done)
    answers.write(json.dumps({"ready": True}) + "\n")
    for number, line in enumerate(sys.stdin):
        command = json.loads(line)
        if command.get("stop"):
            break
        files = command["files"]
        count = command.get("expect", len(files))
        answers.write(json.dumps(_round(query, done, source, number, files, count)) + "\n")
    query.stop()
    spark.stop()


def _round(
    query: Any,
    done: queue.SimpleQueue[tuple[int, float]],
    source: Path,
    number: int,
    files: list[str],
    count: int,
) -> dict[str, Any]:
    begin = time.monotonic()
    for index, path in enumerate(files):
        Path(path).rename(source / f"{number:05d}-{index:05d}.txt")
    ends: list[float] = []
    last = -1
    while len(ends) < count:
        try:
            last, ended = done.get(timeout=1)
            ends.append(ended)
        except queue.Empty:
            if query.exception() is not None:
                raise query.exception() from None
    # A batch is finished when its commit is written, which follows foreachBatch.
    batches: dict[int, dict[str, int]] = {}
    deadline = time.monotonic() + 30
    while (len(batches) < count or max(batches) < last) and time.monotonic() < deadline:
        batches = {p["batchId"]: p["durationMs"] for p in query.recentProgress if p["numInputRows"]}
        batches = dict(sorted(batches.items())[-count:])
        time.sleep(0.02)
    return {"begin": begin, "ends": ends, "batches_ms": list(batches.values())}


def _session(store: str, folder: Path, extra: dict[str, str]) -> SparkSession:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [here, os.environ.get("PYTHONPATH", "")])
    )
    settings = dict(SETTINGS)
    settings["spark.local.dir"] = str(folder / "spark")
    settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    for key, value in STORES[store].items():
        settings[f"spark.sql.streaming.stateStore.{key}"] = value
    settings.update(extra)
    builder = SparkSession.builder.master("local[2]").appName("baseline")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start(
    spark: SparkSession, plan: str, folder: Path, done: queue.SimpleQueue[tuple[int, float]]
) -> Any:
    lines = (
        spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "input"))
    )
    out = str(folder / "output")

    def write(changed: DataFrame, batch: int) -> None:
        changed.write.mode("overwrite").json(f"{out}/batch-{batch:06d}")
        done.put((batch, time.monotonic()))

    return (
        _counts(lines, plan)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(write)
        .start()
    )


def _counts(lines: DataFrame, plan: str) -> DataFrame:
    from pyspark.sql import functions as f

    if plan.startswith("keys"):
        words = lines.withColumnRenamed("value", "word")
    elif plan == "jvm":
        words = lines.select(f.explode(f.split("value", " ")).alias("word"))
    elif plan == "arrowudf":
        split = f.arrow_udf(_split_lists, "array<string>")
        words = lines.select(f.explode(split("value")).alias("word"))
    else:
        words = lines.mapInArrow(_split_batches, "word string")
    if not plan.endswith("pandas"):
        return words.groupBy("word").count().withColumnRenamed("count", "n")
    return words.groupBy("word").applyInPandasWithState(
        _count, "word string, n long", "n long", "update", "NoTimeout"
    )


def _split_lists(value: pa.Array) -> pa.Array:
    return pc.split_pattern(value, " ")


def _split_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = pc.list_flatten(pc.split_pattern(batch.column(0), " "))
        yield pa.RecordBatch.from_arrays([words], names=["word"])


def _count(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas as pd

    total = state.get[0] if state.exists else 0
    for frame in frames:
        total += len(frame)
    state.update((total,))
    yield pd.DataFrame({"word": [key[0]], "n": [total]})


# Workers import this module by its own name instead of being sent its functions.
if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        import baseline

        baseline.main()
