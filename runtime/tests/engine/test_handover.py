"""A process that loaded ahead takes the place of one that nobody prepared."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.engine import handover

WAIT_S = 30.0

AHEAD = """
import socket
import sys

from millrace.engine import handover

if handover.take_over(socket.socket(fileno=int(sys.argv[1]))):
    import json
    import os

    given = {"pid": os.getpid(), "arguments": sys.argv[1:], "read": sys.stdin.readline()}
    print(json.dumps(given | {"said": os.environ.get("SAID"), "own": os.environ.get("OWN")}))
    print("seen by whoever has standard error", file=sys.stderr)
    print("lib" in sys.path, flush=True)
    sys.stdin.readline()
"""

OTHER = """
import sys

from millrace.engine import handover

if not handover.hand_over(sys.argv[1]):
    print("alone", flush=True)
"""


@contextmanager
def ahead(place: Path, program: str = AHEAD, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with handover.listening(str(place)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={**os.environ, **variables},
        )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def other(place: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OTHER, str(place), *arguments]
    environment: Mapping[str, str] = {**os.environ, **variables}
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def test_it_has_streams_arguments_and_environment_of_the_other(tmp_path: Path) -> None:
    place = tmp_path / "place"
    # Asked before anything is loaded: the other one waits.
    asked = {"SAID": "so", "PYTHONPATH": "lib"}
    with ahead(place, OWN="hidden") as process, other(place, "one", "two", **asked) as asks:
        assert asks.stdin is not None
        assert asks.stdout is not None
        assert asks.stderr is not None
        asks.stdin.write("a line\n")
        asks.stdin.flush()
        told = json.loads(asks.stdout.readline())
        assert told == {
            "pid": process.pid,
            "arguments": [str(place), "one", "two"],
            "read": "a line\n",
            "said": "so",
            "own": None,
        }
        assert asks.stdout.readline() == "True\n"
        assert asks.stderr.readline() == "seen by whoever has standard error\n"
        assert asks.poll() is None
        assert not place.exists()
        asks.stdin.close()
        assert process.wait(WAIT_S) == 0
        assert asks.wait(WAIT_S) == 0


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with ahead(place) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    assert not place.exists()


@pytest.mark.parametrize(
    ("own", "given"), [({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}), ({"TZ": "UTC"}, {})]
)
def test_what_libraries_read_as_they_load_has_to_be_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], given: dict[str, str]
) -> None:
    for name in {*own, *given}:
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "place"
    with ahead(place, **own) as process, other(place, **given) as asks:
        assert asks.communicate(timeout=WAIT_S) == ("alone\n", "")
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("program", ["import os; os._exit(1)", "raise SystemExit(1)"])
def test_without_one_the_other_goes_on_by_itself(tmp_path: Path, program: str) -> None:
    """Also where it ends while it loads, and its socket stays."""
    place = tmp_path / "place"
    with ahead(place, program), other(place) as asks:
        assert asks.communicate(timeout=WAIT_S)[0] == "alone\n"
    with other(tmp_path / "nowhere") as asks:
        assert asks.communicate(timeout=WAIT_S) == ("alone\n", "")


def test_a_stranger_takes_nobodys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    place = tmp_path / "place"
    with handover.listening(str(place)) as listener:
        assert not handover.hand_over(str(place))
        assert select.select([listener], [], [], WAIT_S)[0]
        heard, _ = listener.accept()
        assert heard.recv(1) == b"", "not one byte of the environment"
