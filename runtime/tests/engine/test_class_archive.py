from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.engine.jobs import classes, jvm
from millrace.engine.jobs.session import SessionSettings, session_conf
from millrace.local.java import archive_is_used, make_archive
from millrace.pods import executor

SESSION = """
import sys
from pathlib import Path

import psutil

from millrace.engine.jobs.session import SessionSettings, build_session

folder, instances = Path(sys.argv[1]), int(sys.argv[2])
quick = "-XX:TieredStopAtLevel=1"
conf = {
    f"spark.{side}.extraJavaOptions": f'{quick} "-Xlog:class+load:file={folder}/{side}"'
    for side in ("driver", "executor")
}
settings = SessionSettings("test", folder, instances=instances, executor_memory="512m", conf=conf)
session = build_session(settings)
print(session.sparkContext.parallelize([3, 4], 2).sum())
java, *executors = [p for p in psutil.Process().children(recursive=True) if p.name() == "java"]
assert len(executors) == instances
assert java.environ()["SPARK_SCALA_VERSION"]
print("by scripts" if "SPARK_ENV_LOADED" in java.environ() else "at once")
assert "spark.properties" not in [file.name for file in folder.rglob("*")]
# Now: an executor that comes when the session ends writes its own in place of it.
logs = [folder / "driver", *([folder / "executor"] if instances else [])]
for log in logs:
    log.with_suffix(".now").write_text(log.read_text())
logs = [log.with_suffix(".now") for log in logs]
print("shared", min(log.read_text().count("shared objects file (top)") for log in logs))
"""


@pytest.fixture(scope="module")
def made() -> Path:
    """The archive of this environment."""
    path = classes.archive()
    if not path.exists():
        make_archive()
    return path


def started(folder: Path, cache: Path, instances: int = 0) -> tuple[str, int]:
    """(what a session printed, classes that each of its JVMs had from the archive at least)."""
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder), str(instances)],
        env={**os.environ, classes.CACHE_VARIABLE: str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, int(done.stdout.split()[-1])


@pytest.fixture
def cached(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a cache of the user's, without what lies beside it."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "a cache"))
    here = classes.archive()
    here.parent.mkdir(mode=0o700, parents=True)
    here.write_bytes(made.read_bytes())
    here.chmod(0o400)
    return here


def lay_beside(here: Path, content: bytes, mode: int = 0o600) -> None:
    beside = here.with_suffix(".json")
    beside.write_bytes(content)
    beside.chmod(mode)


def damage(cached: Path) -> None:
    content = bytearray(cached.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = bytes(4096)
    cached.chmod(0o600)
    cached.write_bytes(content)
    cached.chmod(0o400)


def told_beside(made: Path, digest: bool) -> bytes:
    """What lies beside an archive, with or without what tells that it is whole."""
    told = json.loads(made.with_suffix(".json").read_bytes())
    content = told.pop("content")
    return json.dumps({**told, "content": content} if digest else told).encode()


@pytest.mark.parametrize(("damaged", "digest"), [(False, True), (True, True), (True, False)])
def test_spark_starts_with_an_archive_and_despite_a_damaged_one(
    made: Path, cached: Path, tmp_path: Path, damaged: bool, digest: bool
) -> None:
    lay_beside(cached, told_beside(made, digest))
    if damaged:
        damage(cached)
    said, shared = started(tmp_path / "work", tmp_path / "a cache")
    assert "7" in said.split()
    assert "at once" in said
    assert "shared archive" not in said
    assert shared == 0 if damaged else shared > 1000


def test_the_jvm_checks_an_archive_only_where_nothing_else_tells_that_it_is_whole(
    made: Path, cached: Path
) -> None:
    check = "-XX:+VerifySharedSpaces"
    lay_beside(cached, told_beside(made, digest=True))
    assert check not in classes.options()
    lay_beside(cached, told_beside(made, digest=True), 0o666)
    assert check in classes.options(), "others could have written it"
    lay_beside(cached, told_beside(made, digest=False))
    assert check in classes.options()
    damage(cached)
    assert check in classes.options()
    lay_beside(cached, told_beside(made, digest=True))
    assert not archive_is_used()


def test_spark_starts_by_its_scripts_where_nothing_tells_how_they_do(
    made: Path, cached: Path, tmp_path: Path
) -> None:
    home, memory = classes.spark_home(), {"spark.driver.memory": "1g"}
    scripts = [str(home / "bin" / "spark-submit")]
    told = made.with_suffix(".json").read_bytes()
    assert jvm._program(home, memory, {}) == scripts
    lay_beside(cached, told)
    assert jvm._program(home, memory, {})[0] == classes.java_program()
    lay_beside(cached, told, 0o666)
    assert jvm._program(home, memory, {}) == scripts, "others could have written it"
    assert str(cached) in classes.options()
    lay_beside(cached, b"{")
    assert jvm._program(home, memory, {}) == scripts
    said, shared = started(tmp_path / "work", tmp_path / "a cache")
    assert "7" in said.split()
    assert "by scripts" in said
    assert "shared archive" not in said
    assert shared > 1000


def test_executors_of_this_machine_start_with_the_archive(made: Path, tmp_path: Path) -> None:
    """Spark lies under a path of their own, by links; the JVM compares what these lead to."""
    said, shared = started(tmp_path / "work", made.parents[1], instances=1)
    assert "at once" in said
    assert shared > 1000
    for side, name in (
        ("driver", "org.apache.spark.deploy.master.Master"),
        ("driver", "org.apache.spark.deploy.worker.Worker"),
        ("executor", "org.apache.spark.executor.CoarseGrainedExecutorBackend"),
        ("executor", "org.apache.spark.network.crypto.AuthClientBootstrap"),
    ):
        log = (tmp_path / "work" / f"{side}.now").read_text()
        assert f"{name} source: shared objects file (top)" in log


@pytest.fixture
def installed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a folder of the installation, as the runtime image has it."""
    folder = tmp_path / "installed"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv(classes.FOLDER_VARIABLE, str(folder))
    here = classes.archive()
    assert here.parent == folder
    for file, of in ((here, made), (here.with_suffix(".json"), made.with_suffix(".json"))):
        file.write_bytes(of.read_bytes())
        file.chmod(0o644)
    return here


def test_spark_starts_with_the_archive_of_the_installation(installed: Path, tmp_path: Path) -> None:
    said, shared = started(tmp_path / "work", tmp_path / "no cache")
    assert "at once" in said
    assert shared > 1000


def test_an_archive_of_the_installation_is_for_all_users(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("what root has installed, root alone can lay here")
    monkeypatch.setattr(os, "geteuid", lambda: 65532)
    assert str(installed) in classes.options()
    assert classes.launch() is not None
    os.chown(installed, 4711, 4711)
    assert classes.options() == "", "another user could have written it"
    assert classes.launch() is None


def test_whose_executors_are_pods_leaves_it_to_them_to_find_the_archive(
    installed: Path, tmp_path: Path
) -> None:
    here = SessionSettings("t", tmp_path, instances=2)
    pods = replace(here, cluster={"spark.master": "k8s://https://10.0.0.1:443"})
    used = [
        str(installed) in session_conf(settings)[f"spark.{side}.defaultJavaOptions"]
        for settings in (here, pods)
        for side in ("driver", "executor")
    ]
    assert used == [True, True, True, False]


EXECUTOR = {
    **{f"SPARK_{name}": "1" for name in ("EXECUTOR_ID", "EXECUTOR_CORES", "EXECUTOR_POD_NAME")},
    **{f"SPARK_{name}": "1" for name in ("DRIVER_URL", "APPLICATION_ID", "EXECUTOR_POD_IP")},
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_CONF_DIR": "/opt/spark/conf-that-is-not-mounted",
}


def test_an_executor_in_a_pod_starts_with_the_archive(installed: Path, tmp_path: Path) -> None:
    java, launch = classes.java_program(), classes.launch()
    assert java is not None
    assert launch is not None
    log = tmp_path / "loaded"
    given = {**EXECUTOR, "SPARK_JAVA_OPT_0": f"-Xlog:class+load:file={log}"}
    line = executor.command(java, classes.spark_home(), given)
    assert line[line.index("-cp") + 1] == launch.class_path
    backend = next(at for at, word in enumerate(line) if word.startswith("org.apache.spark."))
    # Without arguments it says which it takes, and ends.
    done = subprocess.run(line[: backend + 1], capture_output=True, text=True, check=False)
    assert "--driver-url" in done.stderr
    assert log.read_text().count("shared objects file (top)") > 100


def test_an_executor_that_is_configured_or_has_no_archive_starts_without(
    installed: Path, tmp_path: Path
) -> None:
    home = classes.spark_home()
    configured = executor.command("java", home, {**EXECUTOR, "SPARK_CONF_DIR": str(tmp_path)})
    assert f"{tmp_path}:{home / 'jars' / '*'}" in configured
    installed.unlink()
    without = executor.command("java", home, EXECUTOR)
    for line in (configured, without):
        assert not any("SharedArchiveFile" in word for word in line)


def test_an_archive_that_others_could_have_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path))
    here = classes.archive()
    assert classes.options() == ""
    here.parent.mkdir(mode=0o700)
    here.write_bytes(b"archive")
    here.chmod(0o600)
    assert str(here) in classes.options()
    here.chmod(0o620)
    assert classes.options() == ""
    here.chmod(0o600)
    here.parent.chmod(0o770)
    assert classes.options() == ""
    with pytest.raises(classes.ClassArchiveError, match="others may write there"):
        classes.make()


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = classes.archive()
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    other = classes.archive()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="99"')
    assert len({before, other, classes.archive()}) == 3


def test_spark_installed_anew_at_the_same_place_has_another_archive_in_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "pyspark" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"one")
    monkeypatch.setattr(classes, "spark_home", lambda: jar.parents[1])
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "cache"))
    told = {"classPath": f"{jar.parent}/conf:{jar}", "modules": []}
    monkeypatch.setattr(classes, "_record", lambda draft, _: draft.write_bytes(b"archive") and told)
    before = classes.make()
    assert classes.make() == before == classes.archive()
    # What the JVM itself compares of a jar: an archive of another time is refused without a word.
    os.utime(jar, (1, 1))
    after = classes.archive()
    assert after != before
    assert classes.options() == ""
    other = before.with_name("classes-other-place.jsa")
    other.touch()
    gone = before.with_name("classes-of-what-is-gone.jsa")
    gone.touch()
    gone.with_suffix(".json").write_text('{"classPath": "/nowhere/a.jar:/nowhere/b.jar"}')
    assert classes.make() == after
    assert sorted(after.parent.iterdir()) == sorted([after, after.with_suffix(".json"), other])


def test_an_archive_that_is_made_for_the_installation_can_be_read_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(classes.FOLDER_VARIABLE, str(tmp_path / "classes"))
    told = {"classPath": str(classes.spark_home()), "modules": []}
    monkeypatch.setattr(classes, "_record", lambda draft, _: draft.write_bytes(b"archive") and told)
    before = os.umask(0o077)
    try:
        here = classes.make()
    finally:
        os.umask(before)
    files = [here.parent, here, here.with_suffix(".json")]
    assert sorted(here.parent.iterdir()) == sorted(files[1:])
    assert [file.stat().st_mode & 0o777 for file in files] == [0o755, 0o644, 0o644]


def test_without_a_java_there_are_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert classes.options() == ""


def test_prepare_says_what_is_there(made: Path) -> None:
    command = [sys.executable, "-m", "millrace.cli.app", "prepare"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"{made} is there already\n")


def test_prepare_does_not_call_done_what_no_run_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path))
    here = classes.archive()
    here.parent.mkdir(mode=0o700)
    here.write_bytes(b"archive")
    here.parent.chmod(0o770)
    command = [sys.executable, "-m", "millrace.cli.app", "prepare"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    assert "others may write there" in done.stderr


@pytest.mark.parametrize(
    ("variables", "conf"),
    [
        ({"SPARK_CONF_DIR": "/etc/spark"}, {}),
        ({"SPARK_SUBMIT_OPTS": "-Da=b"}, {}),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-memory 2g pyspark-shell"}, {}),
        ({}, {"spark.driver.extraClassPath": "/jars"}),
        ({}, {"spark.driver.extraLibraryPath": "/libs"}),
        ({}, {"spark.driver.extraJavaOptions": "-Xmx9g"}),
    ],
)
def test_what_only_scripts_of_spark_know_is_left_to_them(
    made: Path, variables: dict[str, str], conf: dict[str, str]
) -> None:
    home, memory = classes.spark_home(), {"spark.driver.memory": "1g"}
    assert jvm._program(home, memory, {})[0] == classes.java_program()
    assert jvm._program(home, memory | conf, variables) == [str(home / "bin" / "spark-submit")]


def test_a_home_of_other_jars_or_that_was_configured_is_left_to_its_scripts(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = {"spark.driver.memory": "1g"}
    scripts = [str(tmp_path / "bin" / "spark-submit")]
    assert jvm._program(tmp_path, memory, {}) == scripts
    (tmp_path / "jars").symlink_to(classes.spark_home() / "jars")
    assert jvm._program(tmp_path, memory, {})[0] == classes.java_program()
    (tmp_path / "jars").unlink()
    launch = classes.launch()
    monkeypatch.setattr(classes, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(classes, "launch", lambda: launch)
    assert jvm._program(tmp_path, memory, {})[0] == classes.java_program()
    (tmp_path / "conf").mkdir()
    assert jvm._program(tmp_path, memory, {}) == scripts
