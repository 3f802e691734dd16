"""What cannot work is said before anything is started, once, with its remedy and exit code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cli_support import java, topology
from command_calls import command

from millrace.errors import ExitCode
from millrace.local.java import release_in
from millrace_e2e.embedded import started
from millrace_e2e.valkey import free_port

SPEC = """
  sources: [{name: lines, files: {path: texts, watch: false}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    return topology(tmp_path, SPEC)


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("says", "code", "told"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11"),
        ('java version "1.8.0_292"', 0, "is Java 8"),
        ("Error: could not find libjava.so", 1, "could not find libjava.so"),
    ],
)
def test_a_java_that_is_of_no_use_ends_a_run_at_once(file, tmp_path, says, code, told) -> None:
    done = command("run", str(file), JAVA_HOME=str(java(tmp_path / "jdk", says, code)))
    assert done.returncode == ExitCode.JAVA
    (line,) = done.stderr.splitlines()
    assert told in line
    assert "Java 17 or later" in line
    assert "JAVA_HOME" in line
    assert done.stdout == ""
    assert not (tmp_path / ".millrace").exists()


def test_a_missing_java_ends_a_run_at_once(file, tmp_path) -> None:
    done = command("run", str(file), JAVA_HOME=str(tmp_path / "none"))
    assert done.returncode == ExitCode.JAVA
    assert "none/bin/java does not exist" in done.stderr
    (tmp_path / "bin").mkdir()
    environment = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""}
    done = command("run", str(file), **environment)
    assert done.returncode == ExitCode.JAVA
    (line,) = errors(done.stderr)
    assert "not on PATH" in line


def test_releases_are_read_as_every_vendor_writes_them() -> None:
    assert release_in('openjdk version "17.0.15" 2025-04-15') == 17
    assert release_in('java version "21" 2023-09-19 LTS') == 21
    assert release_in('java version "1.8.0_292"') == 8
    assert release_in('openjdk version "25-ea" 2025-09-16') == 25
    assert release_in("no such thing") is None


def test_a_secret_that_is_missing_ends_a_run_before_anything_is_started(tmp_path) -> None:
    (tmp_path / "texts").mkdir()
    redis = "url: 'redis://h:1', mode: stream, stream: s"
    secret = "password: {secretRef: {name: store, key: password}}"
    sinks = f"sinks: [{{name: out, inputs: [{{from: lines}}], redis: {{{redis}, {secret}}}}}]"
    file = topology(tmp_path, f"{SPEC.splitlines()[1]}\n  {sinks}\n")
    done = command("run", str(file), MILLRACE_SECRET_STORE__PASSWORD="")
    assert done.returncode == ExitCode.SINK
    (line,) = errors(done.stderr)
    for said in ("sink 'out'", "'password' of Secret 'store'", "MILLRACE_SECRET_STORE__PASSWORD"):
        assert said in line
    assert not (tmp_path / ".millrace").exists()
    # A file is valid wherever it is looked at.
    assert command("validate", str(file)).returncode == 0


def test_what_is_missing_ends_a_run_before_anything_is_started(file, tmp_path) -> None:
    shutil.rmtree(tmp_path / "texts")
    (tmp_path / "out").write_text("a file")
    done = command("run", str(file))
    assert done.returncode == ExitCode.SOURCE
    source, sink = errors(done.stderr)
    assert "source 'lines'" in source
    assert "texts does not exist" in source
    assert "sink 'out'" in sink
    assert "is no folder" in sink
    assert not (tmp_path / ".millrace").exists()


def test_a_table_is_looked_at_before_anything_is_started(tmp_path) -> None:
    (tmp_path / "texts").mkdir()
    processors = """
  processors:
    - name: known
      inputs: [{from: lines}]
      lookup: {table: {path: t.csv, schema: "w string"}, key: [{column: value, of: w}],
        missing: Drop}"""
    file = topology(
        tmp_path,
        f"{SPEC.splitlines()[1]}{processors}\n"
        "  sinks: [{name: out, inputs: [{from: known}], files: {path: out}}]\n",
    )
    done = command("validate", str(file), "--no-sql")
    assert done.returncode == 0
    assert "note: the table of 'known' was not looked at: " in done.stderr
    for arguments in (("run",), ("validate", "--no-sql", "--connect")):
        done = command(*arguments, str(file))
        assert done.returncode == ExitCode.INVALID_TOPOLOGY
        (line,) = errors(done.stderr)
        assert 'spec.processors[0].lookup.table.path: "t.csv" cannot be read: No such file' in line
    (tmp_path / "t.csv").write_text("w\nsame\nsame\n")
    for arguments in (("validate", "--no-sql"), ("run",)):
        done = command(*arguments, str(file))
        assert done.returncode == ExitCode.INVALID_TOPOLOGY
        (line,) = errors(done.stderr)
        assert "has the key w = 'same' twice, in line 2 and in line 3" in line
    assert not (tmp_path / ".millrace").exists()
    (tmp_path / "t.csv").write_text("w\nsame\n")
    done = command("validate", str(file), "--no-sql")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(file, tmp_path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    options = ("--set", "spec.sinks[out].files.path=locked/below/out")
    assert command("validate", str(file), *options).returncode == 0
    for arguments in (("validate", "--connect"), ("run",)):
        done = command(*arguments, str(file), *options)
        assert done.returncode == ExitCode.SINK
        assert "locked cannot be written" in done.stderr
    assert not (locked / "below").exists()


def test_connect_asks_servers_and_changes_nothing(file, tmp_path) -> None:
    port = free_port()
    spec = SPEC.replace(
        "files: {path: out}", f"redis: {{url: 'redis://127.0.0.1:{port}', key: 'k:{{value}}'}}"
    )
    file = topology(tmp_path, f"  stateServers: {{url: 'redis://127.0.0.1:{port}'}}\n{spec}")
    assert command("validate", str(file)).returncode == 0
    done = command("validate", "--connect", str(file))
    assert done.returncode == ExitCode.SINK
    sink, state = errors(done.stderr)
    assert "sink 'out'" in sink
    assert f"127.0.0.1:{port} does not answer" in sink
    assert "cannot be reached" in state
    server = started(tmp_path / "server", place=free_port())
    try:
        place = server.address.url
        bare = place.replace("redis://", f"redis://:{server.address.password}@")
        urls = [f"spec.stateServers.url={bare}", f"spec.sinks[out].redis.url={bare}"]
        done = command("validate", "--connect", str(file), *(f"--set={url}" for url in urls))
        assert (done.returncode, done.stderr) == (0, "")
        assert "is valid" in done.stdout
    finally:
        server.stop()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["server", "texts", "topology.yaml"]


def test_a_checkout_below_the_topology_stays_loaded(tmp_path) -> None:
    """Errors are known by their class, which a module loaded twice would have twice."""
    import millrace.errors
    from millrace.topology.usercode import code_on_path

    with code_on_path(Path(millrace.errors.__file__).parents[2]):
        pass
    import sys

    assert sys.modules["millrace.errors"] is millrace.errors
