"""What each pod of a topology answers at /metrics: asked of its own server on loopback, and read by
the parser of the library that Prometheus' own users read it with."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from millrace import checked
from millrace.engine.driver.process import DriverProcess
from millrace.errors import ExitCode
from millrace.health import Answer, Beat, serve
from millrace.homes import pods
from millrace.homes.documents import Proposal
from millrace.homes.passwords import ACKER_USER, digest, shared
from millrace.homes.pods import Role
from millrace.homes.settings import in_folder
from millrace.ids import name_id
from millrace.local.acker import _NOBODY_S
from millrace.local.files import write_json
from millrace.metrics import catalogue
from millrace.metrics.catalogue import Metric
from millrace.pods.acker import Introduction, PodAcker
from millrace.pods.driver import questions
from millrace.pods.metrics import told
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import AttemptId, CloseMarker, Intent, Member, RootRange, TaskId
from millrace.redisserver import open_client
from millrace.state.embedded import EmbeddedServer
from millrace.state.inboxfiles import InboxFiles
from millrace.topology.load import parse as parse_topology
from millrace.tracking.access import acker_rules
from millrace.tracking.control import AckControl
from millrace.tracking.log import AckLog
from millrace.tracking.message import AckMessage, Seeds, encode
from millrace.tracking.process import connect
from millrace_e2e.embedded import started
from millrace_e2e.podprocess import PASSWORD, TOPOLOGY, Pod, make_secret, secret_of
from millrace_e2e.waiting import until

UID = "u"
ROOTS = 10_000


@dataclass
class Served:
    """A server of ``millrace.health`` on loopback."""

    port: int

    def text(self) -> str:
        url = f"http://127.0.0.1:{self.port}{pods.METRICS_PATH}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            found: str = answer.read().decode()
            return found


@contextmanager
def serving(asked: dict[str, Callable[[], Answer]]) -> Iterator[Served]:
    server = serve(asked, 0)
    try:
        yield Served(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def read(text: str, metrics: Sequence[Metric]) -> dict[tuple[str, ...], float]:
    """Values by name and labels, of an answer that declares these metrics and no others."""
    families = list(parse(text))
    wanted = {one.name.removesuffix("_total"): one for one in (*metrics, *catalogue.PROCESS)}
    assert {family.name for family in families} == set(wanted)
    found = {}
    for family in families:
        metric = wanted[family.name]
        assert family.type == metric.type
        assert family.documentation == metric.meaning or metric in catalogue.PROCESS
        for one in family.samples:
            assert set(one.labels) - {"le"} == set(metric.labels)
            found[one.name, *(value for _, value in sorted(one.labels.items()))] = one.value
    return found


# -- acker


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with started(tmp_path / "state") as server:
        yield server


def test_an_acker_tells_what_it_has_judged(server: EmbeddedServer, tmp_path: Path) -> None:
    """Of a window of which a task has read a part, and nobody has processed any."""

    def open_log(url: str) -> AckLog:
        return AckLog(connect(url, server.address.password), UID)

    at, ended = server.address.member(), threading.Event()
    figures = tmp_path / "figures.json"
    acker = PodAcker("acker-0", lambda: at, open_log, figures, Introduction())

    def work() -> None:
        while not ended.is_set():
            acker.step(0.05)

    thread = threading.Thread(target=work, daemon=True)
    with serving({pods.METRICS_PATH: told(catalogue.ACKER, acker.samples)}) as served:
        before = read(served.text(), catalogue.ACKER)
        assert before["millrace_acker_reading",] == 0
        assert before["millrace_acker_slices_owned",] == 0
        thread.start()
        try:
            log = open_log(at.url)
            slices = judged_window(log)
            after = until(
                lambda: judged_all(read(served.text(), catalogue.ACKER)), "the last slice", 60.0
            )
            (used,) = until(lambda: [*log.loads().values()], "what it has used", 60.0)
        finally:
            ended.set()
            thread.join()
            log.close()
            acker.log.close()
    assert 0 < used.cpu_s <= time.process_time(), "by which the driver judges how busy ackers are"
    assert after["millrace_acker_reading",] == 1
    assert after["millrace_acker_slices_judged_total",] == slices
    assert after["millrace_acker_slices_owned",] == slices
    assert after["millrace_acker_judged_bytes_total",] == 8 * ROOTS
    assert after["millrace_acker_messages_total",] == slices
    # Each slice was told of its first three roots.
    assert after["millrace_acker_entries_total",] == 3 * slices
    assert after["millrace_acker_readings_total",] == 1
    assert after["millrace_acker_attempts_open",] == 1


def judged_all(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float] | None:
    return found if found["millrace_acker_roots_judged_total",] == ROOTS else None


def judged_window(log: AckLog) -> int:
    """Have a window judged of which a task has read a part; how many slices it had."""
    edge, partition = source_edge("s"), name_id("p")
    control = AckControl(log, 1, (edge,), early_roots=0)
    control.begin(["acker-0"])
    attempt, task = AttemptId(1, 1, 1), TaskId(0, 0, 1)
    control.open(attempt, ROOTS)
    slices = range(control.slices(attempt))
    seeds = Seeds(edge, 0, 3, partition, 0)
    messages = [AckMessage(attempt, task, one, (seeds,), {}) for one in slices]
    log.append(attempt, [(one.partition, encode(one)) for one in messages])
    intent = Intent(1, (RootRange("s", partition, 0, ROOTS),))
    winners = ((task, tuple(slices)),)
    assert control.judge(CloseMarker(attempt, intent, frozenset(), winners, ()), 60.0) is not None
    return len(slices)


@pytest.fixture
def dead_api(tmp_path: Path) -> str:
    """A kubeconfig of an API server that is not there."""
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(told))
    return str(file)


@pytest.mark.parametrize("release", ["this", "older", "shared"])
def test_an_acker_reads_from_servers_of_all_releases_with_the_password_that_it_has(
    tmp_path: Path, release: str
) -> None:
    """One that knows ackers, one that takes all lines of ``password``, and one that has only the
    shared one, which the acker has too then. Before that the server does not take it: it waits."""
    held = secret_of(UID)
    own = held[pods.password_key("words-acker-0")].strip()
    given = PASSWORD if release == "shared" else own
    with started(tmp_path / "state", "words-state-0") as server:
        admin, introduction = connect(server.address.url, server.address.password), Introduction()

        def open_log(url: str) -> AckLog:
            client = open_client(url, given, answer_s=3.0, user=introduction.user)
            return AckLog(client, UID)

        looks: list[bool] = []

        def where() -> Member:
            looks.append(acker.reads if looks else False)
            if looks[-1]:
                raise StopIteration
            if len(looks) == 5 and release == "this":
                rules = acker_rules(UID, [digest(own)])
                admin.execute_command("ACL", "SETUSER", ACKER_USER, *rules)
            elif len(looks) == 5:
                admin.execute_command("ACL", "SETUSER", "default", f">{given}")
            return server.address.member()

        figures = tmp_path / "figures.json"
        acker = PodAcker("words-acker-0", where, open_log, figures, introduction)
        with pytest.raises(StopIteration):
            acker.run()
        assert len(looks) >= 5
        users = {one["user"] for one in admin.client_list()}
        assert users == ({"default", ACKER_USER} if release == "this" else {"default"})
        acker.log.close()
        admin.close()


def test_the_process_of_an_acker_answers_before_it_knows_a_log(
    tmp_path: Path, dead_api: str
) -> None:
    (tmp_path / "scratch").mkdir()
    secret = make_secret(tmp_path / "secret", PASSWORD)
    given = ("--secret", secret, "--scratch", tmp_path / "scratch")
    name = pods.pod_name(TOPOLOGY, Role.ACKER, 0)
    with Pod(tmp_path, Role.ACKER, name, *given, KUBECONFIG=dead_api) as pod:
        pod.until(pods.METRICS_PATH)
        # Looking for the log a few times is not reading it.
        time.sleep(5 * _NOBODY_S)
        found = read(pod.until(pods.METRICS_PATH) + "\n", catalogue.ACKER)
        assert found["millrace_acker_reading",] == 0
        assert found["millrace_acker_roots_judged_total",] == 0
        assert found["process_resident_memory_bytes",] > 1 << 20
        assert pod.ask(pods.READY_PATH)[0] == 503


# -- driver


DOCUMENT: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1alpha1",
    "kind": "StreamTopology",
    "metadata": {"name": "words"},
    "spec": {
        "sources": [{"name": "lines", "files": {"path": "texts"}}],
        "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
    },
}


def test_a_driver_tells_from_its_beginning_to_its_end(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A real driver with its state server, whose Spark never comes up."""
    (tmp_path / "texts").mkdir()
    valid = parse_topology(json.dumps(DOCUMENT), folder=tmp_path)
    file = tmp_path / "topology.json"
    whole = valid.document()
    write_json(file, checked.with_checksum(whole))
    settings = in_folder(tmp_path, UID, file, tmp_path)
    over = threading.Event()

    def never(*_: object) -> Any:
        over.wait()
        raise AssertionError("the test is over")

    driver = DriverProcess(settings, shared(server.address.password), start=never)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(driver.run()), daemon=True)
    member = server.address.member()
    with serving(questions(lambda: driver, Beat(60.0))) as served:
        born = read(served.text(), catalogue.DRIVER)
        assert born["millrace_driver_state", "starting"] == 1
        assert ("millrace_driver_execution",) not in born
        inbox = InboxFiles(tmp_path / "proposal.json", tmp_path / "requests")
        inbox.propose(Proposal((member,), ()))
        thread.start()
        try:
            found = until(
                lambda: running(read(served.text(), catalogue.DRIVER), member.name),
                "the driver runs and knows its server",
                60.0,
            )
            driver.ask_to_stop()
            thread.join(60)
        finally:
            over.set()
        gone = read(served.text(), catalogue.DRIVER)
    assert found["millrace_driver_execution",] == 1
    assert found["millrace_driver_spark_running",] == 0
    assert found["millrace_windows_sealed_total",] == 0
    assert found["millrace_view_phase", "open"] == 1
    assert found["millrace_view_key_groups", member.name] == whole["spec"]["keyGroups"]
    assert found["millrace_state_server_memory_used_bytes", member.name] > 0
    assert found["millrace_recovery_seconds_count", "driver"] == 0
    assert codes == [ExitCode.INTERRUPTED]
    assert gone["millrace_driver_state", "asked"] == 1


def running(found: dict[tuple[str, ...], float], name: str) -> dict[tuple[str, ...], float] | None:
    knows = ("millrace_state_server_memory_used_bytes", name) in found
    return found if knows and found["millrace_driver_state", "running"] else None
