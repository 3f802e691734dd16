"""What an acker's password lets do on a state server: read the ack log and answer to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millrace.homes.passwords import ACKER_USER, digest
from millrace.ids import name_id
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import AttemptId, CloseMarker, Intent, RootRange
from millrace.redisserver import open_client
from millrace.state.embedded import EmbeddedServer
from millrace.tracking.access import acker_rules
from millrace.tracking.control import AckControl
from millrace.tracking.log import AckerLoad, AckLog, reader_name
from millrace.tracking.process import Acker, connect
from millrace_e2e.embedded import started

UID = "u[1]*"
PASSWORD = "a" * 64
LOG = f"mr:{{{UID}}}:ack:"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    rules = acker_rules(UID, [digest("b" * 64), digest(PASSWORD)])
    with started(tmp_path / "state", users={ACKER_USER: rules}) as server:
        yield server


@pytest.fixture
def acker(server: EmbeddedServer) -> Iterator[redis.Redis]:
    name = reader_name(UID, "acker-0")
    with open_client(
        server.address.url, PASSWORD, answer_s=5.0, name=name, user=ACKER_USER
    ) as client:
        yield client


def test_it_does_all_that_an_acker_does(server: EmbeddedServer, acker: redis.Redis) -> None:
    log = AckLog(connect(server.address.url, server.address.password), UID)
    control = AckControl(log, 1, (source_edge("s"),), early_roots=0)
    control.begin(["acker-0"])
    working = Acker("acker-0", AckLog(acker, UID))
    attempt = AttemptId(1, 1, 1)
    control.open(attempt, 100)
    working.step(0.1)
    assert log.attending() == {"acker-0"}
    intent = Intent(1, (RootRange("s", name_id("p"), 0, 100),))
    log.append_control(1, CloseMarker(attempt, intent, frozenset(), (), ()))
    working.step(0.1)
    assert log.answered(attempt), "it has judged"
    working.log.tell_load("acker-0", AckerLoad(1.0, 2.0))
    assert log.loads() == {"acker-0": AckerLoad(1.0, 2.0)}
    assert list(working.log.fetch(log.verdict_key(attempt), ["9-9"])) == [None]
    with pytest.raises(Exception, match="memory of the state server"):
        raise working.log._full()
    log.close()


ATTEMPT = f"{LOG}1.1.1"


@pytest.mark.parametrize(
    "command",
    [
        ("GET", f"mr:{{{UID}}}:record"),
        ("GET", f"mr:{{{UID}}}:o:1.1.1/x"),
        ("SET", f"{LOG}load", "x"),
        ("XADD", f"{LOG}ctl", "*", "forget", "x"),
        ("XADD", f"{ATTEMPT}:3", "*", "m", "x"),
        ("XREAD", "STREAMS", "mr:{other}:ack:ctl", "0"),
        ("XADD", "mr:{other}:ack:1.1.1:v", "*", "1", "x"),
        # The uid is no pattern.
        ("XREAD", "STREAMS", "mr:{u1anything}:ack:ctl", "0"),
        ("DEL", f"{ATTEMPT}:v"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("FLUSHALL",),
        ("SHUTDOWN",),
        ("MONITOR",),
        ("EVAL", "return 1", "0"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_it_does_nothing_else_as_security_md_promises(
    acker: redis.Redis, command: tuple[str, ...]
) -> None:
    client: Any = acker
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


def test_a_script_of_it_may_do_no_more(acker: redis.Redis) -> None:
    client: Any = acker
    for text in (
        "return redis.call('GET', KEYS[1])",
        "return redis.call('XADD', KEYS[1], '*', 'a', 'b')",
    ):
        sha = client.script_load(text)
        with pytest.raises(redis.RedisError, match=r"(?i)permission|ACL"):
            client.execute_command("EVALSHA", sha, 1, f"{LOG}ctl")


def test_its_password_is_nobody_elses(server: EmbeddedServer) -> None:
    for password, user in (
        (PASSWORD, None),
        (server.address.password, ACKER_USER),
        ("c" * 64, ACKER_USER),
    ):
        with pytest.raises(redis.AuthenticationError):
            open_client(server.address.url, password, answer_s=5.0, user=user).ping()
