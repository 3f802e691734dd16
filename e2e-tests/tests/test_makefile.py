"""What the Makefile says of the processes that its targets start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER_TESTS = ROOT / "e2e-tests" / "cluster" / "tests"
SHOWN = 'shown: ; @$(PYTHON) -c "import sys; print(sys.dont_write_bytecode)"'


def test_compiled_sources_are_kept_also_where_the_environment_forbids_it() -> None:
    done = subprocess.run(
        ["make", "--silent", f"--eval={SHOWN}", "shown"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": ""},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "False\n"


def files_of(target: str) -> set[Path]:
    """Files that a target gives to pytest."""
    done = subprocess.run(
        ["make", "--dry-run", "--assume-old=.venv/.installed", "ARGS=", target],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    (command,) = re.findall(r"-m pytest (.*)", done.stdout)
    places = [ROOT / word for word in command.split() if not word.startswith("-")]
    assert all(place.exists() for place in places)
    return {
        file for place in places for file in ([place] if place.is_file() else place.glob("test_*"))
    }


def test_nothing_is_installed_without_its_hash_nor_what_builds_it() -> None:
    """pip fetches what a build asks for without one, unless it builds with what is there."""
    text = (ROOT / "Makefile").read_text()
    installs = [one.replace("\\\n", " ") for one in re.findall(r"pip install (?:.*\\\n)*.*", text)]
    assert len(installs) == 5
    for one in installs:
        own = "-e %" in one
        assert ("--no-deps" in one) if own else ("--require-hashes" in one), one
        assert "--only-binary :all:" in one or "--no-build-isolation" in one, one
    (first,) = re.findall(r"@(sed -n .*?constraints\.txt)", text)
    shown = subprocess.run(
        ["bash", "-euc", first.replace("$$", "$")],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert re.findall(r"^(\S+)==", shown, re.M) == ["packaging", "setuptools", "wheel"]
    assert all("--hash=sha256:" in one for one in re.split(r"^\S+==", shown, flags=re.M)[1:])


def test_the_end_to_end_tests_are_all_that_there_are_on_a_cluster() -> None:
    every = set(CLUSTER_TESTS.glob("test_*.py"))
    assert len(every) > 10
    assert files_of("e2e") == every


@pytest.mark.parametrize(
    ("target", "pattern"),
    [("e2e-cluster", "test_cluster_*.py"), ("e2e-smoke", "test_smoke_on_nodes.py")],
)
def test_the_shorter_targets_run_a_part_of_them(target: str, pattern: str) -> None:
    assert files_of(target) == set(CLUSTER_TESTS.glob(pattern)) != set()


def test_what_ci_runs_again_is_told_to_be_skipped_in_the_words_that_it_looks_for() -> None:
    """pytest's, under this project's options, of a file that skips all of its tests."""
    script = (ROOT / ".ci" / "run").read_text()
    (asks,) = re.findall(r"^asks=(\S+)$", script, re.M)
    assert (ROOT / asks).is_file()
    assert 'grep -q "^SKIPPED .*$asks" "$said/tests"' in script
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", asks],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": "/nowhere", "PATH": ""},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert re.search(rf"^SKIPPED .*{re.escape(asks)}", done.stdout, re.M)
    assert script.rstrip().endswith('tail -n 1 "$said/tests"')
