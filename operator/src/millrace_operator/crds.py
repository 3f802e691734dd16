"""``python -m millrace_operator.crds FOLDER``: writes the CRDs, or with ``--verify`` compares.

A cluster whose topologies use kinds of a package makes its CRDs itself, where the package is
installed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from millrace.errors import ExitCode, MillraceError
from millrace_operator.api.definitions import definitions

# Helm shows the files of a chart one behind the other, with nothing between them.
_HEAD = "---\n# Made by `make crds` from the models; not to be edited by hand.\n"


def rendered() -> dict[str, str]:
    """The text of each file by its name."""
    return {name: _HEAD + _yaml(crd) for name, crd in definitions().items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m millrace_operator.crds", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the CRDs lie")
    parser.add_argument("--verify", action="store_true", help="only say what differs")
    options = parser.parse_args(arguments)
    try:
        files = rendered()
    except MillraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.verify:
        return _verified(options.folder, files)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (options.folder / name).write_text(text)
    return ExitCode.OK


def _verified(folder: Path, files: dict[str, str]) -> int:
    found = {path.name: path.read_text() for path in sorted(folder.glob("*.yaml"))}
    same = True
    for name in sorted({*files, *found}):
        was, now = found.get(name, ""), files.get(name, "")
        lines = difflib.unified_diff(
            was.splitlines(keepends=True), now.splitlines(keepends=True), name, "the models"
        )
        for line in lines:
            same = False
            sys.stdout.write(line)
    return ExitCode.OK if same else ExitCode.FAILED


class _Dumper(yaml.SafeDumper):
    """Without anchors: what is equal in two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml(document: object) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


if __name__ == "__main__":
    sys.exit(main())
