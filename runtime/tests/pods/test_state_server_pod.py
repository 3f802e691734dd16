"""The state server's pod: a real server, its incarnation, its passwords, its ends."""

from __future__ import annotations

import os
import signal

import pytest
import redis

from millrace.homes import pods
from millrace.protocol.types import Member
from millrace.redisserver import open_client
from millrace_e2e.podprocess import PASSWORD, WAIT_S, Pod, free_port, make_secret
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


def client(pod, password):
    return open_client(f"redis://127.0.0.1:{pod.port}", password, answer_s=5.0)


def accepted(pod, password):
    try:
        return bool(client(pod, password).ping())
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
    elif broken == "memory":
        variables[pods.MAX_MEMORY] = "lots"
    else:
        variables[pods.POD_IP] = ""
    arguments = ("--secret", secret, "--work", tmp_path / "work", "--port", free_port())
    with Pod(tmp_path, "state-server", "words-state-0", *arguments, **variables) as pod:
        assert pod.wait() != 0
        assert named in pod.log.read_text()
