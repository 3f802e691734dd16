"""What peers run: Flink's jars by Maven, Bytewax by pip, our programs for them; fetched once.

Everything lies below ``~/.cache/millrace/peers`` (or ``XDG_CACHE_HOME``), under the digest of what
it was made from, and appears there by one rename. Maven and pip are asked with the settings that
the machine has for them; versions are pinned beside the programs, and so is the SHA-256 of every
file that comes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "peers"
FLINK = PROGRAMS / "flink"
BYTEWAX = PROGRAMS / "bytewax"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_SHOWN_LINES = 15


class PeerMissingError(Exception):
    """A peer cannot run here; the message says what to install or do."""


def cache_folder() -> Path:
    """Where peers are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "millrace" / "peers"


def flink_classpath() -> str:
    """Flink's jars and our jobs, as a class path. Raises ``PeerMissingError``."""
    pom, pins = FLINK / "pom.xml", FLINK / "jars.sha256"
    jars = _once("flink", [pom, pins], lambda draft: _copy_jars(pom, pinned(pins), draft))
    sources = sorted(FLINK.glob("*.java"))
    classes = _once(
        "flink-jobs", [pins, *sources], lambda draft: _compile(sources, f"{jars}/*", draft)
    )
    return os.pathsep.join([str(classes), f"{jars}/*"])


def bytewax_python() -> Path:
    """The interpreter of an environment with Bytewax. Raises ``PeerMissingError``."""
    pins = BYTEWAX / "requirements.txt"
    name = f"bytewax-{sys.version_info.major}.{sys.version_info.minor}"
    return _once(name, [pins], lambda draft: _install(pins, draft)) / "bin" / "python"


def pinned(file: Path) -> dict[str, str]:
    """SHA-256 by file name, from what ``sha256sum`` prints."""
    rows = (line.split() for line in file.read_text().splitlines())
    return {name: digest for digest, name in rows}


def verify(folder: Path, wanted: Mapping[str, str]) -> None:
    """Raise ``PeerMissingError`` unless a folder holds exactly the files that are pinned."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    wrong = sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))
    if wrong:
        raise PeerMissingError(
            f"{len(wrong)} of {len(wanted)} jars are not those that {FLINK.name}/jars.sha256 "
            f"pins, {wrong[0]} among them; nothing of them was kept"
        )


def tool(name: str, package: str) -> str:
    """Path of a program. Raises ``PeerMissingError`` that names the Debian package to install."""
    home = os.environ.get("JAVA_HOME")
    at_home = Path(home) / "bin" / name if home and name.startswith("java") else None
    found = str(at_home) if at_home and at_home.is_file() else shutil.which(name)
    if found is None:
        raise PeerMissingError(f"{name} was not found: install it (Debian: apt install {package})")
    return found


def _once(name: str, inputs: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder made from ``inputs``; made where the cache lacks it."""
    digest = hashlib.sha256(b"\0\0".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    folder = cache_folder() / f"{name}-{digest}"
    if not folder.is_dir():
        print(f"  making {folder.name} in {folder.parent}, once", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            made = draft / "made"
            made.mkdir()
            make(made)
            made.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _copy_jars(pom: Path, wanted: Mapping[str, str], draft: Path) -> None:
    maven = tool("mvn", "maven")
    _run([maven, "-q", "-B", "-C", "-f", str(pom), _COPY, f"-DoutputDirectory={draft}"])
    verify(draft, wanted)


def _compile(sources: Sequence[Path], classpath: str, draft: Path) -> None:
    compiler = tool("javac", "default-jdk-headless")
    _run([compiler, "-nowarn", "-d", str(draft), "-cp", classpath, *map(str, sources)])


def _install(pins: Path, draft: Path) -> None:
    # Nothing but the scripts of an environment names its folder, and this one gets none.
    _run([sys.executable, "-m", "venv", "--without-pip", str(draft)])
    pip = [sys.executable, "-m", "pip", "--python", str(draft / "bin" / "python"), "install"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    _run([*pip, *quiet, "--require-hashes", "--only-binary", ":all:", "-r", str(pins)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
        raise PeerMissingError(f"{Path(command[0]).name} failed with {done.returncode}:\n{said}")
