"""What another user of the machine gets from a living run: nothing."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millrace_e2e import feed, intruder, valkey
from millrace_e2e.harness import Place, running
from millrace_e2e.topologies import Shape, history

SEED = 3
PLAIN_S = 400.0

GIVEN, REFUSED = b"\4", b"\5"
"""Kinds of Spark's answers: a handle to what was asked for, or an error."""

PLAIN = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
kept = spark.sparkContext._jsc.broadcast(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


def listening(pids: list[int]) -> tuple[dict[int, str], list[str]]:
    """Addresses by TCP port, and paths of Unix sockets, that processes listen on."""
    ports, sockets = {}, set()
    for pid in pids:
        try:
            found = psutil.Process(pid).net_connections(kind="all")
        except psutil.NoSuchProcess:
            continue
        for one in found:
            if one.status == psutil.CONN_LISTEN:
                ports[one.laddr.port] = one.laddr.ip
            elif isinstance(one.laddr, str) and one.laddr.startswith("/"):
                sockets.add(one.laddr)
    return ports, sorted(sockets)


def below(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def spark_answers(loot: intruder.Loot) -> list[bytes]:
    """What the ports that speak Spark's own protocol said to a request for a block."""
    answers = [tried["blocks"] for tried in loot.answers.values()]
    return [answer for answer in answers if answer[8:9] in (GIVEN, REFUSED)]


def test_plain_spark_gives_its_broadcasts_to_everybody() -> None:
    """The intruder finds something where there is something to be found."""
    secret = secrets.token_hex(24)
    process = subprocess.Popen(
        [sys.executable, "-c", PLAIN, secret],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        pids = below(process.pid)
        ports, _ = listening(pids)
        loot = intruder.look(list(ports), [], [], pids)
        assert GIVEN in [answer[8:9] for answer in spark_answers(loot)]
    finally:
        process.communicate("\n", PLAIN_S)


@pytest.mark.parametrize("executors", [0, 2])
def test_another_user_is_given_nothing(
    place: Place, sink_server: valkey.Server, executors: int
) -> None:
    of_sink = secrets.token_hex(24)
    client = sink_server.client()
    client.config_set("requirepass", of_sink)
    client.close()
    url = f"redis://:{of_sink}@127.0.0.1:{sink_server.port}"
    place.write(history(Shape(redis=url, watch=True, executors=executors, max_records=500)))
    feed.add_file(place.texts / "a.txt", feed.text(range(2_000), SEED))
    place.gate.touch()
    with running(place) as run:
        run.await_sealed(4)
        of_state = (place.work / "state-0" / "password").read_text()
        root = (place.work / "root").read_text()
        pids = below(run.pid)
        ports, sockets = listening(pids)
        loot = intruder.look(list(ports), sockets, [str(place.work)], pids)

        # The gateway and the driver's two ports; a local cluster has more of them.
        assert len(ports) >= (3 if not executors else 11)
        assert {ip.removeprefix("::ffff:") for ip in ports.values()} == {"127.0.0.1"}
        assert any(name.endswith("/state-0.sock") for name in sockets)
        for password in (of_state, of_sink, root):
            assert password.encode() not in loot.everything
        answers = spark_answers(loot)
        assert len(answers) >= (2 if not executors else 7)
        assert all(b"challenge" in answer for answer in answers)
        # A state server has a socket alone: once it has died a port would be anybody's.
        assert not any(tried["redis"].startswith(b"-NOAUTH") for tried in loot.answers.values())
        assert b"redis_version" not in loot.everything
        for tried in loot.answers.values():
            assert not tried["py4j"].startswith(b"!y")
            for page in (tried["http"], tried["json"]):
                if page.startswith(b"HTTP/"):
                    assert page.split()[1] == b"403"
        if os.geteuid() == 0:  # else the intruder is the user
            assert loot.sockets == []
            assert {Path(name).name for name in loot.files} == {"cmdline"}
