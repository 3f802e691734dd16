"""Every distribution says under which license it is, and carries its text."""

from __future__ import annotations

import shutil
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = (
    "import sys\n"
    "from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare\n"
    "print(prepare(sys.argv[1]))"
)


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    for section in range(1, 10):
        assert f"\n   {section}. " in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


@pytest.mark.parametrize("member", ["runtime", "operator", "e2e-tests"])
def test_a_distribution_names_its_license_and_authors(member: str, tmp_path: Path) -> None:
    folder, out = tmp_path / member, tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / member / name, folder / name)
    (folder / "src").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = out / done.stdout.splitlines()[-1]
    metadata = HeaderParser().parsestr((made / "METADATA").read_text())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The Millrace authors"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert (made / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier", [])
