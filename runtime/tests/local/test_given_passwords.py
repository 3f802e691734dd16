"""What the processes of a run are told of passwords, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.clock import SystemClock
from millrace.homes import codec
from millrace.homes.passwords import of_root_key
from millrace.homes.settings import PASSWORD_VARIABLE, ROOT_KEY_VARIABLE, in_folder
from millrace.local.files import write_json
from millrace.local.launch import _Plan
from millrace.local.servers import RunPasswords
from millrace.local.workdir import WorkFolder, open_folder
from millrace.startup import ONE_THREAD
from millrace.state.client import StateAddress
from millrace.topology.load import parse

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: given}
spec:
  stateServers: {SERVERS}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], custom: {class: "nowhere:Sink"}}]
"""


def plan_of(tmp_path: Path, servers: str) -> tuple[WorkFolder, _Plan]:
    folder = open_folder(tmp_path / "work", "given", Path("t.yaml"), SystemClock())
    return folder, _Plan(folder, parse(TEXT.replace("SERVERS", servers)), tmp_path)


def test_the_driver_is_told_the_root_and_an_acker_its_own_password(tmp_path: Path) -> None:
    folder, plan = plan_of(tmp_path, "replicas: 2, copies: 2")
    addresses = [StateAddress(f"state-{n}", "redis://h", "r", f"of-{n}") for n in range(2)]
    root = RunPasswords(folder.path, folder.uid).root_key()
    for process in (plan.driver(addresses), plan.standby(addresses)):
        assert process.environment[ROOT_KEY_VARIABLE] == root
        assert PASSWORD_VARIABLE not in process.environment
    ackers = plan.ackers(addresses, 2)
    for acker in ackers:
        assert acker.environment[PASSWORD_VARIABLE] == of_root_key(root, folder.uid)(acker.name)
        assert ROOT_KEY_VARIABLE not in acker.environment
        assert acker.command[-2:] == ("--user", "acker")
        assert acker.environment.items() >= ONE_THREAD.items()
    given = {one.environment[PASSWORD_VARIABLE] for one in ackers}
    assert len(given) == 2
    shown = f"{ackers!r} {plan.driver(addresses)!r}"
    assert not any(secret in shown for secret in (root, *given))
    line = " ".join(word for one in (plan.driver(addresses), *ackers) for word in one.command)
    assert not any(secret in line for secret in (root, *given))


def test_a_server_of_the_users_own_keeps_the_password_that_it_has(tmp_path: Path) -> None:
    folder, plan = plan_of(tmp_path, "url: 'redis://h:1'")
    addresses = [StateAddress("state-0", "redis://h:1", "r", "theirs")]
    driver, (acker,) = plan.driver(addresses), plan.ackers(addresses, 1)
    for process in (driver, acker):
        assert process.environment[PASSWORD_VARIABLE] == "theirs"
    # Whatever this process was started with.
    assert driver.environment[ROOT_KEY_VARIABLE] == ""
    assert "--user" not in acker.command
    assert not (folder.path / "root").exists()


def test_a_root_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    first, again = RunPasswords(tmp_path, "u"), RunPasswords(tmp_path, "u")
    assert first.of("state-0") == again.of("state-0") != first.of("state-1")
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o600
    assert RunPasswords(tmp_path, "v").of("state-0") != first.of("state-0")
    root = (tmp_path / "root").read_text()
    assert (len(root), root.isalnum()) == (48, True)


@pytest.mark.parametrize("given", [{ROOT_KEY_VARIABLE: "r" * 48}, {PASSWORD_VARIABLE: "p" * 48}])
def test_a_driver_that_cannot_begin_says_nothing_of_what_it_was_told(
    tmp_path: Path, given: dict[str, str]
) -> None:
    """The topology is not there, which is found out behind the reading of what it was told."""
    missing = tmp_path / "topology.json"
    settings = tmp_path / "driver.json"
    write_json(settings, codec.encode(in_folder(tmp_path, "u", missing, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "millrace.engine.driver.main", "--settings", str(settings)],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert str(missing) in done.stderr
    (secret,) = given.values()
    assert secret not in done.stdout + done.stderr
