"""Class-data sharing: Spark's JVM starts with the classes that an earlier one had loaded.

An archive of them is made once for each Java and Spark, by a JVM that does what a window does
(``python -m millrace.engine.jobs.classes``), and lies in the cache folder of the user, or in a
folder of the installation, where the runtime image has it. Without it, or where it does not fit
(the JVM compares the version and the jars) or is damaged, everything works and starts more slowly.
A digest of it lies beside it, since the JVM's own checksum takes five times as long as that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import xxhash

from millrace import durable
from millrace.errors import JavaError, MillraceError

CACHE_VARIABLE = "XDG_CACHE_HOME"

FOLDER_VARIABLE = "MILLRACE_CLASSES"
"""A folder of the installation for archives that all users start with, instead of their own."""

SCALA_VARIABLE = "SPARK_SCALA_VERSION"

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is no news for whoever reads a log."""

_ERRORS_ALONE = "-Xlog:cds=error -Xlog:cds+dynamic=error"
"""Nor are the hundreds of classes that an archive cannot have."""

_NAME = "classes-"

_CONTENT = "content"
"""What the digest of an archive is called beside it."""

_FORMAT = b"5"
"""Another one for archives that a JVM of other work or other options has to make."""


_BETWEEN_PROCESSES = (
    "com.google.crypto.tink.subtle",
    "io.netty.buffer",
    "org.apache.commons.crypto.cipher",
    "org.apache.spark.deploy",
    "org.apache.spark.deploy.client",
    "org.apache.spark.deploy.master",
    "org.apache.spark.deploy.master.ui",
    "org.apache.spark.deploy.worker",
    "org.apache.spark.deploy.worker.ui",
    "org.apache.spark.executor",
    "org.apache.spark.network.client",
    "org.apache.spark.network.crypto",
    "org.apache.spark.network.protocol",
    "org.apache.spark.network.server",
    "org.apache.spark.network.shuffle",
    "org.apache.spark.network.shuffle.protocol",
    "org.apache.spark.network.util",
    "org.apache.spark.rpc.netty",
    "org.apache.spark.scheduler.cluster",
    "org.apache.spark.util.logging",
)
"""Packages of what a driver and executors of their own say to each other, which one JVM alone does
not load. One that a later Spark has no more is only not there."""


class ClassArchiveError(MillraceError):
    """The archive cannot be made, or not where it should lie."""


def archive() -> Path:
    """Where the archive for the Java and the Spark of this process lies, if it has been made.

    Raises ``JavaError`` without a Java.
    """
    spark = spark_home()
    place = _digest(_FORMAT, _java(), os.fsencode(spark))
    return _folder() / f"{_NAME}{place}-{_digest(*_jars(spark))}.jsa"


def _folder() -> Path:
    if shared := os.environ.get(FOLDER_VARIABLE):
        return Path(shared)
    cache = os.environ.get(CACHE_VARIABLE) or str(Path.home() / ".cache")
    return Path(cache) / "millrace"


def options() -> str:
    """The options of a JVM that is to start with the archive; none where there is no archive, one
    that is damaged, or one that somebody else could have written."""
    path = _usable()
    if path is None:
        return ""
    whole = _is_whole(path)
    if whole is False:
        return ""
    shared = f'"-XX:SharedArchiveFile={path}"'
    verify = "" if whole else "-XX:+VerifySharedSpaces "
    return f"-Xshare:auto {shared} {verify}{_QUIET}"


def _usable() -> Path | None:
    """The archive, where there is one that nobody else could have written."""
    try:
        path = archive()
        return path if _ours(path) and _ours(path.parent) else None
    except (JavaError, OSError, RuntimeError):
        return None


@dataclass(frozen=True, slots=True)
class Launch:
    """How Spark's scripts start Java for this installation, as a JVM that they started told it.

    ``modules`` are options that open Java's modules to Spark, ``scala`` is the release of Scala
    whose jars it has, which a JVM that starts executors has to be told (``SCALA_VARIABLE``).
    """

    class_path: str
    modules: tuple[str, ...]
    scala: str


def launch() -> Launch | None:
    """What the JVM that made the archive told; None where there is no archive that can be used."""
    path = _usable()
    if path is None:
        return None
    try:
        told = _beside(path)
        return Launch(told["classPath"], tuple(told["modules"]), told["scala"])
    except (KeyError, TypeError):
        return None


def _beside(path: Path) -> dict[str, Any]:
    """What lies beside an archive; nothing where that cannot be read, or others can write it."""
    try:
        told = json.loads(_told(path).read_bytes()) if _ours(_told(path)) else {}
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _is_whole(path: Path) -> bool | None:
    """Whether an archive is as it was made; None where nobody says how that was."""
    said = _beside(path).get(_CONTENT)
    if said is None:
        return None
    try:
        with open(path, "rb") as file:
            return bool(file_digest(file, xxhash.xxh3_128).hexdigest() == said)
    except OSError:
        return False


def spark_home() -> Path:
    """Where PySpark is installed, with Spark's jars; it is not imported for that."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def make() -> Path:
    """Make the archive, in place of the one that is there. Takes the CPU of two starts of Spark.

    Raises ``ClassArchiveError``, ``JavaError``.
    """
    path = archive()
    for_all = bool(os.environ.get(FOLDER_VARIABLE))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _ours(path.parent):
        raise ClassArchiveError(
            f"{path.parent}: others may write there, and what lies there would run as you; take "
            f"that right from them, or name another folder with {CACHE_VARIABLE}"
        )
    with tempfile.TemporaryDirectory(prefix="classes-", dir=path.parent) as folder:
        draft = Path(folder) / "draft.jsa"
        told = _record(draft, Path(folder))
        if not draft.exists():
            raise ClassArchiveError("the JVM ended without writing its archive of classes")
        made = draft.read_bytes()
        told[_CONTENT] = xxhash.xxh3_128_hexdigest(made)
        durable.replace(_told(path), json.dumps(told).encode())
        durable.replace(path, made)
    if for_all:
        path.parent.chmod(0o755)
        for file in (_told(path), path):
            file.chmod(0o644)
    # Those of jars that lay here before this installation fit nothing any more.
    for old in path.parent.glob(f"{path.name.rpartition('-')[0]}-*"):
        if old not in (path, _told(path)):
            old.unlink(missing_ok=True)
    for beside in path.parent.glob(f"{_NAME}*.json"):
        if not _has_jars(beside):
            beside.with_suffix(".jsa").unlink(missing_ok=True)
            beside.unlink(missing_ok=True)
    return path


def _told(path: Path) -> Path:
    return path.with_suffix(".json")


def _has_jars(told: Path) -> bool:
    """Whether what an archive was made for is installed still, as far as can be seen."""
    try:
        jars = str(json.loads(told.read_bytes())["classPath"]).split(os.pathsep)
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return any(os.path.exists(jar) for jar in jars)


def _record(draft: Path, folder: Path) -> dict[str, Any]:
    """Start Spark as a driver does, do what windows do, and have its JVM write what it loaded;
    what ``Launch`` is made of."""
    from millrace.engine.jobs import jvm
    from millrace.engine.jobs.session import SessionSettings, build_session

    recording = {
        "spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}" {_ERRORS_ALONE}',
        # As a local cluster's master and workers have them, whose pages cannot be switched off.
        "spark.ui.enabled": "true",
        "spark.ui.filters": jvm.UI_FILTER,
        "spark.ui.port": "0",
    }
    session = build_session(
        SessionSettings("classes", folder, driver_memory="512m", conf=recording)
    )
    context = session.sparkContext
    pairs = context.parallelize(range(4), 2).map(lambda n: (n % 2, n)).partitionBy(2)
    assert sum(pairs.values().collect()) == sum(range(4))
    assert session.sql("select 1 as one").count() == 1
    gateway = context._gateway
    java = gateway.jvm
    _load_classes(java, _classes_in(spark_home(), _BETWEEN_PROCESSES))
    options = java.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions()
    told = {
        "classPath": java.System.getProperty("java.class.path"),
        "modules": options.split(),
        "scala": java.System.getenv(SCALA_VARIABLE),
    }
    session.stop()
    # Its standard input is what the JVM lives by; behind its end it writes the archive.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return told


def _classes_in(spark: Path, packages: Iterable[str]) -> list[str]:
    """The names of the classes that Spark's jars have in packages, but not in those below them."""
    wanted = {package.replace(".", "/") for package in packages}
    found = []
    for jar in sorted((spark / "jars").glob("*.jar")):
        with ZipFile(jar) as file:
            for name in file.namelist():
                folder, _, _ = name.rpartition("/")
                if folder in wanted and name.endswith(".class"):
                    found.append(name.removesuffix(".class").replace("/", "."))
    return found


def _load_classes(java: Any, names: Iterable[str]) -> None:
    """Have a JVM load classes, without running anything of them."""
    from py4j.protocol import Py4JJavaError

    loader = java.java.lang.ClassLoader.getSystemClassLoader()
    find = java.java.lang.Class.forName
    for name in names:
        # Some need what no jar has.
        with suppress(Py4JJavaError):
            find(name, False, loader)


def _jars(spark: Path) -> list[bytes]:
    """What the JVM compares of each jar: its name, size and time, which another installation at
    the same place changes."""
    found = sorted((spark / "jars").glob("*.jar"))
    seen = [(jar.name, jar.stat()) for jar in found]
    return [os.fsencode(f"{name} {of.st_size} {int(of.st_mtime)}") for name, of in seen]


def _digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=10).hexdigest()


def _ours(path: Path) -> bool:
    """Whether only this user and root can have written there."""
    found = path.stat()
    return found.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(found.st_mode) & 0o022


def java_program() -> str | None:
    """Path of the Java that Spark takes: that of ``JAVA_HOME``, be it there or not, else the first
    one on ``PATH``; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _java() -> bytes:
    """Which Java Spark takes, by where it is and what it says that it is."""
    program = java_program()
    if program is None or not os.path.exists(program):
        raise JavaError("java is not there")
    real = Path(program).resolve()
    release = real.parents[1] / "release"
    told = release.read_bytes() if release.is_file() else b"%d" % real.stat().st_size
    return os.fsencode(real) + told


def main() -> int:
    """Make the archive; for a process of its own, since its JVM ends with it."""
    try:
        print(make())
    except (MillraceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, MillraceError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
