"""The first function of docs/code.md, command by command as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "code.md"


def test_the_story_of_the_guide(tmp_path: Path) -> None:
    story = GUIDE.read_text().partition("## A first one\n")[2].partition("\n## ")[0]
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", story, re.M | re.S))
    (tmp_path / "visits.py").write_text(blocks["python"])
    (tmp_path / "topology.yaml").write_text(blocks["yaml"])
    commands = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    said = [
        subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**os.environ, "PATH": commands},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for line in blocks["sh"].splitlines()
    ]
    _, first, letter, _, _, second, state, rows = said
    assert "replays         3\n" in first
    assert "dead letters    1" in first
    assert 'visits.py", line 7, in count' in letter
    assert "a bad line" in letter
    assert "2 roots in" in second
    assert state.split()[-2:] == ["bad", "1"]
    assert '{"word":"bad","n":1}' in rows
