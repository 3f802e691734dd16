"""Docker archives that are made without an engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from millrace_e2e.cluster import images
from millrace_e2e.cluster.errors import ClusterError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "waits"
    path.write_bytes(b"\x7fELF and so on")
    return path


def member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_an_archive_holds_the_program_under_its_own_digest(program: Path, tmp_path: Path) -> None:
    archive = images.single(program, "example.local/waits:1", tmp_path)
    (manifest,) = json.loads(member(archive, "manifest.json"))
    config = json.loads(member(archive, manifest["Config"]))
    (layer,) = manifest["Layers"]
    content = member(archive, layer)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    # Without, podman builds nothing on it.
    assert len(config["history"]) == len(manifest["Layers"])
    assert config["config"]["Entrypoint"] == ["/waits"]
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        (entry,) = tar.getmembers()
        assert (entry.name, entry.mode) == ("waits", 0o755)
        file = tar.extractfile(entry)
        assert file is not None
        assert file.read() == program.read_bytes()
    assert images.tags(archive) == ["example.local/waits:1"]


def test_equal_programs_make_equal_archives(program: Path, tmp_path: Path) -> None:
    first = images.single(program, "example.local/waits:1", tmp_path).read_bytes()
    program.touch()
    assert images.single(program, "example.local/waits:1", tmp_path).read_bytes() == first
    program.write_bytes(b"another")
    assert images.single(program, "example.local/waits:1", tmp_path).read_bytes() != first


def test_nothing_but_the_archive_is_left_beside_it(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    archive = images.single(program, "example.local/waits:1", folder)
    assert list(folder.iterdir()) == [archive]


def test_what_is_no_archive_of_images_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"gone\.tar is not there"):
        images.tags(tmp_path / "gone.tar")
    text = tmp_path / "text.tar"
    text.write_text("no tar at all")
    with pytest.raises(ClusterError, match=r"text\.tar is no docker archive of images"):
        images.tags(text)
    with tarfile.open(tmp_path / "other.tar", "w"):
        pass
    with pytest.raises(ClusterError, match=r"other\.tar is no docker archive of images"):
        images.tags(tmp_path / "other.tar")


def test_a_base_image_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the bootstrap, which the tests of a cluster run for real."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[tuple[str, ...]] = []

    def bootstrap(packages: tuple[str, ...], to: Path) -> None:
        made.append(tuple(packages))
        with tarfile.open(to, "w"):
            pass

    monkeypatch.setattr(images, "_bootstrap", bootstrap)
    first = images.base("example.local/base:1", ("b", "a"), lambda _: None)
    assert images.tags(first) == ["example.local/base:1"]
    assert images.base("example.local/base:1", ("a", "b"), lambda _: None) == first
    assert images.base("example.local/base:1", ("a",), lambda _: None) != first
    assert made == [("b", "a"), ("a",)]
