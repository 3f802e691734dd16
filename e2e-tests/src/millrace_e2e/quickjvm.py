"""JVM options with which Spark starts in about half of the time, for tests that start it often."""

from __future__ import annotations

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Less compilation and a small collector: what starts sooner and runs slower."""


def options() -> str:
    """The options for ``spark.driver.extraJavaOptions``."""
    return FLAGS


def build() -> None:
    """What ``millrace prepare`` does, where nobody has done it."""
    # Who judges imports this module for its options, and nothing of the runtime.
    from millrace.local.java import archive_path, make_archive

    if not archive_path().exists():
        make_archive()
