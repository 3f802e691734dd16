"""``millrace run`` where it must not start: every refusal is said and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from millrace.clock import SystemClock
from millrace.errors import ExitCode
from millrace.local.files import write_json
from millrace.local.workdir import open_folder
from millrace.topology.load import parse
from millrace_e2e.valkey import free_port

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: counts}
spec:
  keyGroups: 128
  stateServers: {url: URL}
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A topology whose state server does not answer, so that no test can start anything."""
    (tmp_path / "texts").mkdir()
    path = tmp_path / "topology.yaml"
    path.write_text(TEXT.replace("URL", f"redis://127.0.0.1:{free_port()}"))
    return path


def run(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", "run", str(file), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=file.parent,
        env={**os.environ, "NO_COLOR": "1", "MILLRACE_REACH_S": "0.5"},
    )


def work(file: Path) -> Path:
    return file.parent / ".millrace" / "counts"


def ran_before(file: Path, changes: Mapping[str, object]) -> None:
    """The work folder of an earlier run whose topology had other settings."""
    folder = open_folder(work(file), "counts", file, SystemClock())
    document = yaml.safe_load(file.read_text())
    document["spec"].update(changes)
    earlier = parse(yaml.safe_dump(document))
    write_json(folder.topology, earlier.document())
    write_json(folder.status, {"sealed": 41})


def test_a_state_server_that_is_not_there_ends_the_run_with_its_name(file: Path) -> None:
    done = run(file)
    assert done.returncode == ExitCode.STATE_SERVER
    assert "state-0 at 127.0.0.1" in done.stderr
    assert "spec.stateServers.url" in done.stderr


def test_an_edit_that_state_would_not_survive_is_refused(file: Path) -> None:
    ran_before(file, {"keyGroups": 64})
    done = run(file)
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert "spec.keyGroups: 64 → 128" in done.stderr
    assert "--fresh" in done.stderr
    assert not (work(file) / "run.json").exists()
    assert json.loads((work(file) / "topology.json").read_text())["spec"]["keyGroups"] == 64


def test_other_edits_are_said_before_the_start(file: Path) -> None:
    ran_before(file, {"parallelism": 7, "window": {"maxRecords": 10}})
    done = run(file)
    assert done.returncode == ExitCode.STATE_SERVER
    assert "spec.parallelism: 7 → 2: restart" in done.stdout
    assert "spec.window.maxRecords: 10 → 200000: restart" in done.stdout
    assert "behind window 41" in done.stdout


def test_a_fresh_start_asks_for_no_edits(file: Path) -> None:
    ran_before(file, {"keyGroups": 64})
    before = json.loads((work(file) / "identity.json").read_text())["uid"]
    done = run(file, "--fresh")
    assert done.returncode == ExitCode.STATE_SERVER
    assert "edited" not in done.stdout
    assert json.loads((work(file) / "identity.json").read_text())["uid"] != before


def test_a_work_folder_of_another_topology_is_refused(file: Path) -> None:
    open_folder(work(file), "others", file, SystemClock())
    done = run(file)
    assert done.returncode == ExitCode.WORK_FOLDER
    assert "belongs to topology 'others'" in done.stderr
    elsewhere = run(file, "--workdir", str(file / "below"))
    assert elsewhere.returncode == ExitCode.WORK_FOLDER
    assert "cannot be written" in elsewhere.stderr


def test_overrides_are_checked_and_overwrite_needs_fresh(file: Path) -> None:
    done = run(file, "--set", "spec.window.maxRecords=none")
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert "spec.window.maxRecords" in done.stderr
    done = run(file, "--overwrite")
    assert done.returncode == ExitCode.USAGE
    assert "--fresh" in done.stderr
