"""A driver with a real Spark: a JVM, Python's daemon, and a worker that never returns."""

from __future__ import annotations

import os
import time
from pathlib import Path


def work(_: int) -> None:
    with Path("tree").open("a") as file:
        file.write(f"worker {os.getpid()}\n")
    while True:
        time.sleep(3600)


def main() -> None:
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf.set("spark.driver.host", "127.0.0.1"))
    with Path("tree").open("a") as file:
        file.write(f"driver {os.getpid()}\n")
    context.parallelize(range(2), 2).foreach(work)


if __name__ == "__main__":
    main()
