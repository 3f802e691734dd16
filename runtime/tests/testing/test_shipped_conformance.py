"""The sources and sinks that ship, and those that the documents show, keep the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from millrace.sources.generator import GeneratorSource
from millrace.testing import check_source

GUIDE = Path(__file__).parents[3] / "docs" / "code.md"


def test_the_generator(tmp_path: Path) -> None:
    options = {"count": 23, "partitions": 3, "seed": 5}
    check_source(lambda: GeneratorSource("made", options, tmp_path))


def test_what_the_guide_shows(tmp_path: Path) -> None:
    """The guide's source, sink and tests, in files as a user would have them."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    names = {"class Ticks(": "feeds.py", "class Table(": "stores.py", "check_sink(": "test_own.py"}
    for sign, name in names.items():
        (code,) = [block for block in blocks if sign in block]
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
