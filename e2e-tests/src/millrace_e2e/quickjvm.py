"""JVM options with which Spark starts in about half of the time, for tests that start it often.

The classes that a start loads are kept in an archive (class-data sharing, JDK 13 and later), which
is built once for each environment by a session that does what a window does. Without an archive
everything works, more slowly.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Less compilation and a small collector: what starts sooner and runs slower."""

BUILD_S = 240.0


def options() -> str:
    """The options for ``spark.driver.extraJavaOptions``, with the archive where it is there."""
    path = archive()
    return f"{FLAGS} -XX:SharedArchiveFile={path}" if path.exists() else FLAGS


def archive() -> Path:
    """Where the archive of this environment lies, whether it is built or not."""
    import pyspark

    java = Path(os.environ["JAVA_HOME"]) / "bin/java" if "JAVA_HOME" in os.environ else "java"
    version = subprocess.run([java, "-version"], check=True, capture_output=True).stderr
    parts = (version, pyspark.__file__.encode(), pyspark.__version__.encode(), FLAGS.encode())
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "millrace-e2e" / f"{name}.jsa"


def build() -> bool:
    """Build the archive if it is not there; False where that cannot be done."""
    path = archive()
    if path.exists():
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "millrace_e2e.quickjvm", str(draft)]
    try:
        done = subprocess.run(
            command,
            check=False,
            timeout=BUILD_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        if done.returncode or not draft.exists():
            return False
        draft.replace(path)
    except subprocess.TimeoutExpired:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def record(path: Path) -> None:
    """Start Spark, do what a window does, and have its JVM write the archive as it ends."""
    import pyspark
    from pyspark.sql import SparkSession

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.driver.extraJavaOptions", f"{FLAGS} -XX:ArchiveClassesAtExit={path}")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    context = session.sparkContext
    pairs = context.parallelize(range(4), 2).map(lambda n: (n % 2, n)).partitionBy(2)
    assert sum(pairs.values().collect()) == sum(range(4))
    gateway = context._gateway
    session.stop()
    # Its standard input is what the JVM lives by; behind its end it writes the archive.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
