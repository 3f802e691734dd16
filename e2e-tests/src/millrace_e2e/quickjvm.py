"""JVM options with which Spark starts in about half of the time, for tests that start it often."""

from __future__ import annotations

FLAGS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
)
"""Less compilation and a small collector: what starts sooner and runs slower. The archive of
classes is mapped where it was made to lie, which spares each start the work of moving it: in tests
nobody guesses addresses."""


def options() -> str:
    """The options for ``spark.driver.extraJavaOptions``."""
    return FLAGS


def build() -> None:
    """What ``millrace prepare`` does, where nobody has done it."""
    # Who judges imports this module for its options, and nothing of the runtime.
    from millrace.local.java import archive_path, make_archive

    if not archive_path().exists():
        make_archive()
