"""The command as a user starts it, and in this process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from millrace.cli.app import main

PLAIN = {"NO_COLOR": "1", "TERMINAL_WIDTH": "120"}


def command(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``millrace ARGUMENTS`` in a process of its own and not in a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **PLAIN, **environment},
    )


def called(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The same in this process: for tests that look often, where starting is not what they test."""
    out, err = io.StringIO(), io.StringIO()
    variables = {**PLAIN, "COLUMNS": "120", **environment}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "argv", ["millrace", *arguments]),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        else:
            code = 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
