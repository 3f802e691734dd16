"""A command while every core is kept busy with something else: ``python -m millrace_e2e.busy
COMMAND...``.

One process for each core computes for as long as the command runs, each in a session of its own, so
that it takes its full share of a core from whatever the command starts. Ends with the command's
exit code; the busy processes are gone before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SPINS = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    sum(range(1_000_000))
"""
"""Goes where its parent went, also by SIGKILL."""


@contextmanager
def busy_cores() -> Iterator[list[int]]:
    """As many processes that compute as this process may use cores; their ids."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPINS, str(os.getpid())], start_new_session=True)
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield [one.pid for one in spinning]
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def main(command: Sequence[str]) -> int:
    """Exit 2 without a command; else the command's."""
    if not command:
        print("what is to run while the cores are busy? Name a command.", file=sys.stderr)
        return 2
    with busy_cores():
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
