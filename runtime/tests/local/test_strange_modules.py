"""Modules that somebody else has put into the user's current folder do not run as the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.jobs.classes import CACHE_VARIABLE, FOLDER_VARIABLE, ClassArchiveError
from millrace.local import analysis, java
from millrace.local.analysis import analysed
from millrace.local.java import make_archive
from millrace.topology.load import load

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: first}
spec:
  sources: [{name: made, custom: {class: "strange_feeds:Feed"}}]
  sinks: [{name: shown, inputs: [{from: made}], files: {path: out}}]
"""

FEED = """
import pyarrow as pa
from millrace.sources import Source

class Feed(Source):
    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        raise NotImplementedError

    def read(self, piece):
        raise NotImplementedError
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once a module of the current folder has been imported."""
    here, ran = tmp_path / "here", tmp_path / "ran"
    here.mkdir()
    for name in ("millrace", "pyarrow", "pyspark", "psutil", "numpy"):
        (here / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(here)
    return ran


def test_of_an_analysis_of_columns(ran: Path, tmp_path: Path) -> None:
    (tmp_path / "strange_feeds.py").write_text(FEED)
    file = tmp_path / "t.yaml"
    file.write_text(TEXT)
    found = analysed(load(file, ()), ["made"])
    assert not ran.exists()
    assert found.columns == {"made": (("n", "long"),)}, found
    assert found.unknown == ()


def test_of_what_is_prepared(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Java there is nothing to be prepared, which is found out behind the imports."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(ClassArchiveError, match="java is not there"):
        make_archive()
    assert not ran.exists()


@pytest.mark.parametrize("module", [analysis, java])
def test_of_what_spark_starts_for_them(
    ran: Path, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon of workers is ``python -m pyspark.daemon`` in the same folder."""
    seen: list[dict[str, Any]] = []

    def noted(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.append(options["env"])
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(module.subprocess, "run", noted)
    if module is java:
        with pytest.raises(ClassArchiveError):
            make_archive()
    else:
        (tmp_path / "strange_feeds.py").write_text(FEED)
        (tmp_path / "t.yaml").write_text(TEXT)
        analysed(load(tmp_path / "t.yaml", ()), ["made"])
    monkeypatch.undo()
    command, here = [sys.executable, "-m", "pyspark"], tmp_path / "here"
    subprocess.run(command, env=seen[0], cwd=here, check=False, capture_output=True)
    assert not ran.exists()


def test_an_archive_that_is_not_there_is_not_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(
        java.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", "")
    )
    with pytest.raises(ClassArchiveError, match=r"\.jsa: the archive of classes is not there"):
        make_archive()
