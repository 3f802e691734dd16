"""State servers that have each a password of their own: driver and tasks use that of each name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millrace.engine.driver.stores import Stores
from millrace.engine.program import signing
from millrace.engine.task.state import Services
from millrace.errors import StateServerError
from millrace.homes.passwords import of_root_key, shared
from millrace.protocol import events as e
from millrace.protocol.server import Stamped
from millrace.protocol.types import Phase, Stamp, View
from millrace.redisserver import open_client
from millrace.ring import owners
from millrace.state.embedded import EmbeddedServer
from millrace.state.servers import StateObject, StateServers
from millrace_e2e.embedded import started

UID = "by-name"
OF = of_root_key("r" * 48, UID)
NAMES = ("state-0", "state-1")
STAMP = Stamp(1, 1)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[EmbeddedServer]]:
    made = [started(tmp_path / name, name, password=OF(name)) for name in NAMES]
    yield made
    for server in made:
        server.stop()


def promised(who: str) -> list[str]:
    """The row of SECURITY.md that says what somebody has, and what that opens."""
    text = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    rows = text.partition("## Passwords of state servers and ackers")[2].partition("\n## ")[0]
    found = [row.strip("| \n").split(" | ") for row in rows.splitlines() if row.startswith("| ")]
    (row,) = [row for row in found if row[0] == who]
    return row


def view_of(servers: list[EmbeddedServer]) -> View:
    members = tuple(server.address.member() for server in servers)
    placed = owners(8, list(NAMES), 2)
    return View(UID, 1, 1, Phase.OPEN, 1, members, members, 1, placed)


def test_the_driver_speaks_to_each_with_its_own(servers: list[EmbeddedServer]) -> None:
    view, stores = view_of(servers), Stores(UID, OF)
    for member in view.target:
        assert isinstance(stores.stamp(member, STAMP), e.Stamped)
    stores.use(view)
    stores.put_everywhere(STAMP, "1.1.1/x", b"data")
    assert stores.fetch("1.1.1/x") == b"data"
    assert stores.memory().keys() == set(NAMES)
    assert stores.log_address().password == OF("state-0")


def test_tasks_get_them_by_name_and_no_job_carries_one(servers: list[EmbeddedServer]) -> None:
    view, stores = view_of(servers), Stores(UID, OF)
    for member in view.target:
        stores.stamp(member, STAMP)
    stores.use(view)
    services = Services(stores.access(view), stores.log_address())
    assert services.passwords == {name: OF(name) for name in NAMES}
    sent = signing.signed("job", services)
    assert not any(password.encode() in sent for password in services.passwords.values())
    there = signing.verified("job", sent).known(services.passwords)
    access = StateServers(there.access)
    try:
        access.put([StateObject("1.1.1/y", b"more", 0b11)])
        assert access.get([("1.1.1/y", 0b11)]) == [b"more"]
    finally:
        access.close()


def test_one_that_has_the_password_of_a_server_gets_into_no_other(
    servers: list[EmbeddedServer],
) -> None:
    assert promised("a state server")[-1] == "itself alone"
    assert promised("executors and workers")[-1].endswith("no root key, no acker's")
    first, second = servers
    stolen = first.address.password
    with pytest.raises(redis.AuthenticationError):
        open_client(second.address.url, stolen, answer_s=5.0).ping()
    stores = Stores("another", shared(stolen))
    assert isinstance(stores.client(first.address.member()).stamp(STAMP), Stamped)
    with pytest.raises(
        StateServerError, match=r"state-1 at .* does not accept the password"
    ) as refused:
        stores.client(second.address.member()).stamp(STAMP)
    assert str(stolen) not in str(refused.value)
