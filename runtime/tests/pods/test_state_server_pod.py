"""The state server's pod: a real server, its incarnation, its passwords, its ends."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
import redis

from millrace.engine.driver import room, uses
from millrace.homes import pods
from millrace.homes.passwords import ACKER_USER, of_root_key, secret_data
from millrace.homes.pods import Role
from millrace.pods.identity import Identity
from millrace.pods.state_server import _STOP_S, LEAVE_S, QUIET_S, Farewell, ServerPod
from millrace.protocol.types import Member
from millrace.redisserver import open_client
from millrace.state.embedded import EmbeddedServer
from millrace_e2e.embedded import options
from millrace_e2e.podprocess import (
    PASSWORD,
    ROOT,
    UID,
    WAIT_S,
    Pod,
    make_secret,
    mounted,
    secret_of,
)
from millrace_e2e.valkey import free_port
from millrace_e2e.waiting import until

NEW = "b" * 40


@pytest.fixture
def pod(tmp_path):
    """A function that starts the pod's container, again on the same volume."""
    started = []
    port = free_port()
    make_secret(tmp_path / "secret")

    def start():
        made = Pod(
            tmp_path,
            "state-server",
            "words-state-0",
            *("--secret", tmp_path / "secret", "--work", tmp_path / "work", "--port", port),
            MILLRACE_MAX_MEMORY_BYTES=str(64 << 20),
        )
        made.port = port
        started.append(made)
        return made

    yield start
    for made in started:
        made.kill()


def client(pod, password, user=None):
    return open_client(f"redis://127.0.0.1:{pod.port}", password, answer_s=5.0, user=user)


def accepted(pod, password, user=None):
    try:
        return bool(client(pod, password, user).ping())
    except redis.AuthenticationError:
        return False


def test_a_member_by_what_the_pod_says_of_itself(pod):
    life = pod()
    said = life.incarnation()
    info = client(life, PASSWORD).info("server")
    assert Member(said["name"], said["runId"]) == Member("words-state-0", info["run_id"])
    assert said["url"] == f"redis://127.0.0.1:{life.port}"
    assert life.until(pods.READY_PATH) == "answers"
    assert life.until(pods.LIVE_PATH) == "answers"
    assert life.ask(pods.METRICS_PATH)[0] == 404
    memory = client(life, PASSWORD).config_get("maxmemory")
    assert memory == {"maxmemory": str(64 << 20)}
    assert not accepted(life, "c" * 40)
    assert not accepted(life, None)


def test_a_container_that_starts_again_is_another_incarnation_with_what_it_had(pod):
    life = pod()
    first = life.incarnation()
    client(life, PASSWORD).set("kept", "1")
    assert life.end() == 0
    again = pod()
    second = again.incarnation()
    assert second["runId"] != first["runId"]
    assert (second["name"], second["url"]) == (first["name"], first["url"])
    assert client(again, PASSWORD).get("kept") == b"1"


def test_passwords_follow_the_secret_without_a_restart(pod, tmp_path):
    life = pod()
    first = life.incarnation()
    connected = client(life, PASSWORD)
    connected.ping()
    make_secret(tmp_path / "secret", NEW, PASSWORD)
    until(lambda: accepted(life, NEW), "the new password", WAIT_S)
    assert accepted(life, PASSWORD)
    make_secret(tmp_path / "secret", "too short")
    make_secret(tmp_path / "secret", NEW)
    until(lambda: not accepted(life, PASSWORD), "the old password goes", WAIT_S)
    assert accepted(life, NEW)
    assert connected.ping()
    assert life.incarnation() == first
    assert life.until(pods.READY_PATH) == "answers"


def mount(tmp_path, held):
    """What this pod has of the Secret, and nothing that is left of another."""
    shutil.rmtree(tmp_path / "secret")
    mounted(tmp_path / "secret", held, Role.STATE_SERVER, "words-state-0")


OF = of_root_key(ROOT, UID)


def test_a_server_of_its_own_password_lets_in_drivers_of_all_releases_and_ackers(pod, tmp_path):
    held = secret_of()
    mount(tmp_path, held)
    mine = "".join(file.read_text() for file in (tmp_path / "secret").iterdir())
    others = [PASSWORD, ROOT, OF("words-state-1"), OF("words-acker-0")]
    assert [one for one in others if one in mine] == []
    life = pod()
    life.incarnation()
    assert accepted(life, OF("words-state-0"))
    assert accepted(life, PASSWORD), "what a driver of an older release gives"
    assert not accepted(life, OF("words-state-1"))
    assert accepted(life, OF("words-acker-7"), ACKER_USER)
    assert not accepted(life, OF("words-acker-7"))
    assert not accepted(life, OF("words-state-0"), ACKER_USER)
    assert not accepted(life, None)
    with pytest.raises(redis.exceptions.NoPermissionError):
        client(life, OF("words-acker-7"), ACKER_USER).get("kept")


def test_it_follows_another_root_and_forgets_what_was_shared(pod, tmp_path):
    mount(tmp_path, secret_of())
    life = pod()
    first = life.incarnation()
    new = of_root_key("n" * 48, UID)
    both = secret_of(root="n" * 48 + "\n" + ROOT)
    mounted(tmp_path / "secret", both, Role.STATE_SERVER, "words-state-0")
    until(lambda: accepted(life, new("words-state-0")), "the new root", WAIT_S)
    assert accepted(life, OF("words-state-0"))
    until(lambda: accepted(life, new("words-acker-0"), ACKER_USER), "the new root", WAIT_S)
    assert accepted(life, OF("words-acker-0"), ACKER_USER)
    alone = secret_data("words", UID, {"root": "n" * 48})
    mounted(tmp_path / "secret", alone, Role.STATE_SERVER, "words-state-0")
    until(lambda: not accepted(life, PASSWORD), "what was shared goes", WAIT_S)
    assert accepted(life, new("words-state-0"))
    until(lambda: not accepted(life, OF("words-state-0")), "the old root goes", WAIT_S)
    until(lambda: not accepted(life, OF("words-acker-0"), ACKER_USER), "the old root", WAIT_S)
    assert life.incarnation() == first
    assert life.until(pods.READY_PATH) == "answers"


def test_an_operator_that_goes_back_leaves_no_acker_with_more_than_it_had(pod, tmp_path):
    """The mounted files of a pod that is there stay; those of one that an older operator makes
    have all passwords in one file, and no digests."""
    shutil.rmtree(tmp_path / "secret")
    make_secret(tmp_path / "secret", *secret_of()["password"].split())
    life = pod()
    life.incarnation()
    for password in (PASSWORD, OF("words-state-0"), OF("words-state-1"), OF("words-acker-0")):
        assert accepted(life, password)
    assert not accepted(life, OF("words-acker-0"), ACKER_USER)


def test_a_server_that_dies_takes_its_container_along(pod):
    life = pod()
    life.incarnation()
    os.kill(client(life, PASSWORD).info("server")["process_id"], signal.SIGKILL)
    assert life.wait() != 0
    last = life.lines()[-1]
    assert last["level"] == "CRITICAL"
    assert "ended with code -9" in last["message"]


def test_a_server_that_hangs_is_neither_ready_nor_alive(pod):
    life = pod()
    life.incarnation()
    number = client(life, PASSWORD).info("server")["process_id"]
    os.kill(number, signal.SIGSTOP)
    try:
        life.until(pods.READY_PATH, 503)
        life.until(pods.LIVE_PATH, 503)
    finally:
        os.kill(number, signal.SIGCONT)
    life.until(pods.READY_PATH)


@pytest.mark.parametrize(
    ("passed_s", "idle_s", "goes_on"),
    [
        (0.0, None, False),
        (0.0, 100.0, True),
        (QUIET_S - 0.1, 100.0, True),
        (QUIET_S, 100.0, False),
        (QUIET_S, QUIET_S, False),
        (QUIET_S, 0.0, True),
        (LEAVE_S - 0.1, 0.0, True),
        (LEAVE_S, 0.0, False),
        (LEAVE_S / 2, None, False),
    ],
)
def test_how_long_a_server_serves_that_is_to_end(passed_s, idle_s, goes_on):
    """Until nobody is connected, nobody asks any more, or its time is over."""
    assert Farewell(50.0).goes_on(50.0 + passed_s, idle_s) is goes_on


def test_a_server_that_does_not_say_who_uses_it_is_used_until_its_time_is_over():
    farewell = Farewell(50.0)
    for passed_s in (0.0, QUIET_S, LEAVE_S - 10.0):
        assert farewell.goes_on_unsaid(50.0 + passed_s)
    assert farewell.goes_on(40.0 + LEAVE_S, QUIET_S), "what was asked meanwhile is done only now"
    assert farewell.goes_on(40.0 + LEAVE_S + QUIET_S - 0.1, 2 * QUIET_S)
    assert not farewell.goes_on(40.0 + LEAVE_S + QUIET_S, 2 * QUIET_S)
    assert not farewell.goes_on_unsaid(50.0 + LEAVE_S)


def test_there_is_time_for_a_farewell_in_the_grace_period():
    assert pods.GRACE_S[Role.STATE_SERVER] > LEAVE_S + _STOP_S
    assert QUIET_S > 2 * room.LOOK_S, "a driver that has it in its view asks it twice"
    # To connect and to be answered takes as long where another server hangs.
    assert QUIET_S > room.LOOK_S + 2 * uses.ANSWER_S, "or once, where others hang"


def test_a_server_that_is_to_end_serves_as_long_as_it_is_used(pod):
    """As the others have taken over what it holds the driver asks for nothing any more."""
    life = pod()
    life.incarnation()
    driver = client(life, PASSWORD)
    driver.set("kept", "1")
    life.process.terminate()
    end_s = time.monotonic() + QUIET_S + 3.0

    def used():
        assert driver.get("kept") == b"1"
        assert life.ask(pods.READY_PATH)[0] == life.ask(pods.INCARNATION_PATH)[0] == 200
        return time.monotonic() >= end_s

    until(used, "more time than somebody who is quiet is waited for", WAIT_S)
    assert life.process.poll() is None
    driver.close()
    assert life.wait() == 0


def test_a_server_that_hangs_while_it_is_used_is_not_taken_for_one_that_nobody_uses(pod):
    """One that writes a large object to its disk, or forks to write its file anew, answers nobody
    for seconds: not its pod, and not the driver either."""
    life = pod()
    life.incarnation()
    driver = client(life, PASSWORD)
    number = driver.info("server")["process_id"]
    os.kill(number, signal.SIGSTOP)
    try:
        life.process.terminate()
        end_s = time.monotonic() + QUIET_S + 3.0
        ended_or_late = lambda: life.process.poll() is not None or time.monotonic() >= end_s  # noqa: E731
        until(ended_or_late, "longer than anything is waited for", WAIT_S)
        assert life.process.poll() is None
    finally:
        os.kill(number, signal.SIGCONT)
    assert driver.set("handed", "over")
    driver.close()
    assert life.wait() == 0


def test_a_server_that_dies_while_it_is_to_end_is_not_waited_for(pod):
    life = pod()
    life.incarnation()
    driver = client(life, PASSWORD)
    number = driver.info("server")["process_id"]
    life.process.terminate()
    os.kill(number, signal.SIGKILL)
    assert life.wait(LEAVE_S / 2) is not None


def test_a_change_of_passwords_whose_answer_did_not_come_is_found_out(pod, tmp_path):
    """The server has made it, and refuses the password that the pod knows of."""
    life = pod()
    life.incarnation()
    client(life, PASSWORD).execute_command("ACL", "SETUSER", "default", "resetpass", f">{NEW}")
    make_secret(tmp_path / "secret", NEW)
    until(lambda: "accepted from now on" in life.log.read_text(), "it is found out", WAIT_S)
    assert life.until(pods.READY_PATH) == "answers"
    assert accepted(life, NEW)


class Unheard(ServerPod):
    """A pod that does not hear the first answers to its changes."""

    unheard = 0

    def _admit(self, wanted, password):
        super()._admit(wanted, password)
        if self.unheard:
            self.unheard -= 1
            raise redis.TimeoutError("unheard")


def test_passwords_that_are_taken_back_after_an_answer_did_not_come_hold_again(tmp_path):
    secret = make_secret(tmp_path / "secret", PASSWORD)
    identity = Identity("words", "default", "words-state-0", "127.0.0.1")
    made = Unheard(identity, secret, tmp_path / "state", options(password=PASSWORD))
    made._server = EmbeddedServer.start(tmp_path / "state", "words-state-0", options())
    with made._server:
        made._accept(made._wanted())
        for other in (NEW, "c" * 40):
            made.unheard = 1
            make_secret(secret, other)
            made._follow_passwords()
            assert not made._answers().good
        make_secret(secret, PASSWORD)
        made._follow_passwords()
        assert made._answers().good


def test_logs_are_json_with_the_key_of_the_resource(pod):
    life = pod()
    life.incarnation()
    assert life.end() == 0
    lines = life.lines()
    assert lines
    for line in lines:
        assert line["topology"] == "words"
        assert line["namespace"] == "default"
        assert line["pod"] == "words-state-0"
        assert line["role"] == "state-server"
        assert {"time", "level", "logger", "message"} <= line.keys()


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("password", "password: is empty"),
        ("short", "line 1 has not 32 to 128 letters and digits"),
        ("accepted", "accepted: line 2 is no user with the SHA-256 of a password"),
        ("uid", "MILLRACE_UID is missing"),
        ("memory", "MILLRACE_MAX_MEMORY_BYTES is 'lots'"),
        ("variable", "MILLRACE_POD_IP is missing"),
    ],
)
def test_what_is_missing_is_named(tmp_path, broken, named):
    secret = make_secret(tmp_path / "secret")
    variables = {}
    if broken == "password":
        (secret / pods.PASSWORD_KEY).write_text("\n")
    elif broken == "short":
        (secret / pods.PASSWORD_KEY).write_text("short")
    elif broken == "accepted":
        (secret / pods.ACCEPTED_KEY).write_text(f"default {'0' * 64}\nacker +@all\n")
    elif broken == "uid":
        (secret / pods.ACCEPTED_KEY).write_text(f"acker {'0' * 64}\n")
        variables[pods.UID] = ""
    elif broken == "memory":
        variables[pods.MAX_MEMORY] = "lots"
    else:
        variables[pods.POD_IP] = ""
    arguments = ("--secret", secret, "--work", tmp_path / "work", "--port", free_port())
    with Pod(tmp_path, "state-server", "words-state-0", *arguments, **variables) as pod:
        assert pod.wait() != 0
        assert named in pod.log.read_text()
