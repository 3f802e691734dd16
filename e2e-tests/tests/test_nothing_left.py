"""What a run leaves where others could find it: no temporary files, and no password anywhere."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

import psutil

from millrace_e2e import feed, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, run_to_end, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED = 9
PASSWORD = "Zq7hunter/2?@#:%hunter7qZ"
HOLD_IT = ("topology.json", "accepted.json", "kit-")
"""The documents that hold the topology itself, password included; they are 0600."""


def betrayals() -> list[bytes]:
    """All texts that would give the password away."""
    forms = [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), "Zq7hunter", "hunter7qZ"]
    encoded = [base64.b64encode(PASSWORD.encode()).decode(), PASSWORD.encode().hex()]
    return [text.encode() for text in forms + encoded]


def found_in(data: bytes) -> bool:
    return any(text in data for text in betrayals())


def test_a_killed_run_and_the_next_one_leave_nothing(
    place: Place, sink_server: valkey.Server
) -> None:
    client = sink_server.client()
    client.config_set("requirepass", PASSWORD)
    client.close()
    url = f"redis://127.0.0.1:{sink_server.port}?password={quote(PASSWORD, safe='')}"
    place.write(history(Shape(redis=url, max_records=200)))
    feed.add_file(place.texts / "a.txt", feed.text(range(2_000), SEED))
    machine = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))
    environment = {"TMPDIR": str(machine)}
    try:
        slow = {**environment, "MILLRACE_E2E_CALL_S": "0.4"}
        with running(place, environment=slow) as run:
            run.await_sealed(2)
            pids = [run.pid, *(p.pid for p in psutil.Process(run.pid).children(recursive=True))]
            told = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if alive(pid)]
            given = [line_of(pid) for pid in pids if root_of(place) in environment_of(pid)]
            kept = [p for p in Path("/tmp").glob("hsperfdata_*/*") if p.name in map(str, pids)]
            run.kill()
        assert len(told) >= 6
        own = (place.work / "state-0" / "password").read_bytes()
        assert not any(secret in line for line in told for secret in (own, root_of(place)))
        assert given, "the driver is told"
        # Its guard was started with what it was, and nothing that it starts itself.
        known = (b"millrace.engine.driver.main", b"guard.py")
        assert all(any(name in line for name in known) for line in given), given
        assert not any(map(found_in, told))
        assert kept == []

        place.gate.touch()
        done = run_to_end(place, environment=environment)
        assert list(machine.iterdir()) == []
        assert not (place.work / "tmp").exists()
        assert not found_in(done.output().encode())
    finally:
        shutil.rmtree(machine)
    files = [p for p in place.work.rglob("*") if p.is_file() and not p.is_symlink()]
    holding = {p for p in files if found_in(p.read_bytes())}
    assert {p.name for p in holding if not p.name.startswith(HOLD_IT)} == set()
    assert holding
    # A server's password is its own files' and what tasks are given; the root is nobody's.
    assert [p for p in files if root_of(place) in p.read_bytes()] == [place.work / "root"]
    own = (place.work / "state-0" / "password").read_bytes()
    knowing = {str(p.relative_to(place.work)) for p in files if own in p.read_bytes()}
    servers = {"state-0/password", "state-0/valkey.conf"}
    assert {name for name in knowing if not name.startswith("spark/kit-")} == servers
    assert own not in done.output().encode()
    assert root_of(place) not in done.output().encode()
    assert all(p.stat().st_mode & 0o077 == 0 for p in files if "spark/home" not in str(p))
    assert judge(place, Promise.EXACTLY_ONCE) == []


def root_of(place: Place) -> bytes:
    return (place.work / "root").read_bytes()


def environment_of(pid: int) -> bytes:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def line_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/cmdline")
