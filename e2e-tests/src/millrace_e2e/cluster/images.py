"""Images as docker archives, made without an engine and without a registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import cache_folder
from millrace_e2e.cluster.locks import locked

SUITE = "bookworm"
BASE_PACKAGES = ("python3",)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base(tag: str, packages: Sequence[str], say: Callable[[str], None]) -> Path:
    """Archive of an image with a small Debian and ``packages``, made once.

    Raises ``ClusterError`` when it cannot be made.
    """
    parts = json.dumps([SUITE, tag, sorted(packages), _architecture()])
    key = hashlib.sha256(parts.encode()).hexdigest()[:16]
    folder = cache_folder() / "images"
    target = folder / f"base-{key}.tar"
    with locked(folder / "images.lock"):
        if not target.exists():
            for stale in folder.glob(".base-*"):
                shutil.rmtree(stale)
            say(f"making the image {tag} with {', '.join(packages)} (once; about a minute)")
            with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as scratch:
                layer = Path(scratch) / "layer.tar"
                _bootstrap(packages, layer)
                write(layer, {"Env": [_PATH], "Cmd": ["/bin/sh"]}, tag, target)
    return target


def single(program: Path, tag: str, folder: Path) -> Path:
    """Archive of an image that holds one static program and runs it; equal for equal programs."""
    target = folder / f"{program.name}.tar"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".single-") as scratch:
        layer = Path(scratch) / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            _add(tar, program.name, program.read_bytes(), 0o755)
        write(layer, {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"}, tag, target)
    return target


def write(layer: Path, settings: Mapping[str, object], tag: str, to: Path) -> None:
    """An archive of one layer. It appears at ``to`` when it is whole."""
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}"]},
        # Podman builds on no image that does not tell of each of its layers.
        "history": [{"created_by": "millrace"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    draft = to.with_name(f".{to.name}.draft")
    with tarfile.open(draft, "w") as tar, layer.open("rb") as content:
        _add(tar, "config.json", json.dumps(config).encode(), 0o644)
        _add(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)
        entry = tarfile.TarInfo("layer.tar")
        entry.size = layer.stat().st_size
        tar.addfile(entry, content)
    os.replace(draft, to)


def tags(archive: Path) -> list[str]:
    """Names of the images in a docker archive. Raises ``ClusterError`` when it is none."""
    try:
        with tarfile.open(archive) as tar:
            manifest = tar.extractfile("manifest.json")
            if manifest is None:
                raise KeyError("manifest.json")
            return [tag for image in json.load(manifest) for tag in image["RepoTags"]]
    except FileNotFoundError:
        raise ClusterError(f"{archive} is not there") from None
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise ClusterError(f"{archive} is no docker archive of images: {error}") from None


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bootstrap(packages: Sequence[str], to: Path) -> None:
    without = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in without]
    include = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--variant=minbase", include, *options, SUITE, str(to)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-8:])
        raise ClusterError(f"mmdebstrap failed (exit {done.returncode}):\n{last}")


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(content))


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)
