from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import millrace
from millrace.errors import ExitCode

EXAMPLE = Path(__file__).parents[3] / "examples" / "wordcount" / "topology.yaml"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, in a process of its own and not in a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "TERMINAL_WIDTH": "120", **environment},
    )


@pytest.fixture
def copy(tmp_path):
    """A copy of the example that a test can spoil."""
    (tmp_path / "wordcount.py").write_text((EXAMPLE.parent / "wordcount.py").read_text())
    file = tmp_path / "topology.yaml"
    file.write_text(EXAMPLE.read_text())
    return file


def test_help_lists_commands_and_exit_codes():
    done = run("--help")
    assert done.returncode == 0
    for word in ("validate", "describe", "schema", "--install-completion"):
        assert word in done.stdout
    text = " ".join(done.stdout.split())
    for code in ExitCode:
        assert f"{code.value} " in text.partition("Exit codes:")[2]


@pytest.mark.parametrize("command", ["validate", "describe", "run", "stop"])
def test_the_width_of_the_terminal_alone_breaks_the_lines_of_a_help(command):
    shown = run(command, "--help", TERMINAL_WIDTH="80").stdout
    text = shown.partition("Usage:")[2].partition("\u256d")[0]
    lines = [line.strip() for line in text.splitlines()]
    assert max(map(len, lines)) > 60
    for line, following in itertools.pairwise(lines):
        if line and following:
            assert len(f"{line} {following.split()[0]}") > 78, line


def test_without_a_command_help_is_shown():
    done = run()
    assert done.returncode == ExitCode.USAGE
    assert "Commands" in done.stdout + done.stderr


def test_the_version_is_shown():
    assert run("--version").stdout.split() == ["millrace", millrace.__version__]


def test_completion_is_offered():
    done = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "complete" in done.stdout


@pytest.mark.parametrize("arguments", [["validate"], ["nothing"], ["validate", "--nothing", "x"]])
def test_wrong_usage_has_its_exit_code(arguments):
    assert run(*arguments).returncode == ExitCode.USAGE


def test_a_valid_topology_is_summed_up():
    done = run("validate", str(EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "wordcount is valid: 1 source, 2 processors, 1 sink; 2 passes; ExactlyOnce\n"
    )


def test_every_problem_is_a_line_on_standard_error(copy):
    copy.write_text(copy.read_text().replace("from: split", "from: splt").replace("2", "two", 1))
    done = run("validate", str(copy), "--set", "spec.guarantee=Always")
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert [line.split()[1].rstrip(":") for line in lines] == [
        "spec.window.maxRecords",
        "spec.processors[1].inputs[0].from",
        "spec.guarantee",
    ]


def test_what_the_system_refuses_is_one_line_and_no_traceback(tmp_path):
    done = run("stop", "--workdir", str(tmp_path / ("x" * 300)))
    assert done.returncode == ExitCode.WORK_FOLDER
    assert done.stderr.startswith("error: ")
    assert "File name too long" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_file_is_an_invalid_topology(tmp_path):
    done = run("validate", str(tmp_path / "none.yaml"))
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert "does not exist" in done.stderr


def test_code_is_imported_unless_told_not_to(copy):
    (copy.parent / "wordcount.py").write_text("import nothing_like_this\n")
    done = run("validate", str(copy))
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert "wordcount.py line 1" in done.stderr
    assert run("validate", "--no-code", str(copy)).returncode == 0


def test_the_drawing_shows_graph_and_passes():
    done = run("describe", str(EXAMPLE))
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert any("split  function wordcount:split  (word string)" in line for line in lines)
    assert any("by word → counts" in line for line in lines)
    first = next(i for i, line in enumerate(lines) if "pass 0" in line)
    second = next(i for i, line in enumerate(lines) if "pass 1" in line)
    assert lines[first + 1] == "│ lines  split │"
    assert "exchange: split → counts, by word" in "".join(lines[first:second])
    assert lines[second + 1] == "│ counts  totals │"
    assert "stands by" not in done.stdout


def test_the_drawing_says_that_a_driver_stands_by():
    done = run("describe", "--no-code", str(EXAMPLE), "--set", "spec.spark.driver.standby=1")
    assert "128 key groups, a driver that stands by" in " ".join(done.stdout.split())


def test_a_fan_in_is_drawn_once_and_named_again(copy):
    data = yaml.safe_load(copy.read_text())
    data["spec"]["sources"].append({"name": "more", "files": {"path": "m", "watch": False}})
    data["spec"]["processors"][0]["inputs"].append({"from": "more", "broadcast": True})
    copy.write_text(yaml.safe_dump(data))
    done = run("describe", "--no-code", str(copy))
    assert "broadcast → split (above)" in done.stdout
    assert "columns not known" in done.stdout


def test_the_schema_is_json_and_the_reference_markdown():
    done = run("schema")
    assert json.loads(done.stdout)["title"] == "StreamTopology"
    assert run("schema", "--markdown").stdout.startswith("# Topology reference\n")


def test_the_base_package_is_enough():
    """No command of this folder may load what only the extra `engine` brings."""
    code = (
        "import sys\n"
        "from millrace.cli.app import build_app\n"
        "build_app()\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'redis', 'numba'} & set(sys.modules)\n"
        "print(*sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
