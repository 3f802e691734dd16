"""What all pods are made of: who they are, secrets, health, an executor's JVM, Spark's settings."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from millrace import health
from millrace.engine.jobs import classes
from millrace.engine.jobs.session import SHIPPED, SessionSettings, session_conf
from millrace.errors import ExitCode
from millrace.health import ASKING_S, MOST_AT_ONCE, MOST_BYTES, Answer, Beat, serve
from millrace.homes import pods
from millrace.homes.documents import Status
from millrace.homes.pods import Role
from millrace.pods import __main__ as entry
from millrace.pods import driver, executor
from millrace.pods.driver import readiness
from millrace.pods.identity import Identity, PodError, derived, password_of, passwords
from millrace.pods.logs import PodLines
from millrace.pods.spark import cluster_conf, executor_size
from millrace.pods.termination import LONGEST, tell_end
from millrace.topology.model import Executors
from millrace.topology.pods import Resources
from millrace_e2e.podprocess import PASSWORD, UID, environment, make_secret, mounted, secret_of
from millrace_e2e.waiting import until

IDENTITY = Identity("words", "default", "words-driver-3", "10.1.2.3")


def test_an_unknown_role_is_named(capsys):
    assert entry.main(["bakery"]) == 2
    assert entry.main([]) == 2
    said = capsys.readouterr().err
    for role in Role:
        assert role in said
    assert entry._MODULES.keys() == set(Role)


@pytest.mark.parametrize("name", [pods.POD_NAME, pods.POD_NAMESPACE, pods.POD_IP, pods.TOPOLOGY])
def test_a_variable_that_is_missing_is_named(name):
    given = environment("words-acker-0")
    assert Identity.of(given).pod == "words-acker-0"
    del given[name]
    with pytest.raises(PodError, match=f"{name} is missing.*pods.md"):
        Identity.of(given)


def test_all_lines_are_passwords_and_the_first_is_used(tmp_path):
    secret = make_secret(tmp_path / "secret", "b" * 40, PASSWORD)
    assert passwords(secret) == ("b" * 40, PASSWORD)
    (secret / pods.PASSWORD_KEY).unlink()
    with pytest.raises(PodError, match="password: cannot be read"):
        passwords(secret)


def test_a_driver_knows_the_password_of_each_server_by_the_root_that_is_used(tmp_path):
    held = secret_of(root=f"{'n' * 48}\n{'o' * 48}")
    secret = mounted(tmp_path / "all", held, Role.DRIVER)
    of = password_of(secret, UID)
    for name in ("words-state-0", "words-state-63"):
        assert of(name) == held[f"password-{name}"].splitlines()[0]
    (secret / pods.ROOT_KEY).write_text("short")
    with pytest.raises(PodError, match="root: the password in line 1 has not 32") as refused:
        password_of(secret, UID)
    assert "short" not in str(refused.value)


def test_without_a_root_all_servers_share_the_first_password(tmp_path):
    secret = make_secret(tmp_path / "secret", "b" * 40, PASSWORD)
    of = password_of(secret, UID)
    assert {of("words-state-0"), of("words-state-1")} == {"b" * 40}


def test_keys_of_a_run_differ_by_secret_nonce_and_purpose(tmp_path):
    one, other = make_secret(tmp_path / "one"), make_secret(tmp_path / "other")
    (other / pods.RUN_KEY).write_text("s" * 64)
    keys = [
        derived(one, "n", "run"),
        derived(one, "n", "spark"),
        derived(one, "m", "run"),
        derived(other, "n", "run"),
    ]
    assert len(set(keys)) == 4
    assert derived(one, "n", "run") == keys[0]
    assert all(len(key) == 32 for key in keys)
    (one / pods.RUN_KEY).write_text("short\n")
    with pytest.raises(PodError, match="run-key: has less than 32"):
        derived(one, "n", "run")


class Hands:
    """A clock that is moved by hand."""

    at_s = 0.0

    def monotonic_s(self):
        return self.at_s

    def now_s(self):
        return self.at_s


def test_what_begins_may_take_longer_than_what_goes_on():
    hands = Hands()
    beat = Beat(60.0, hands, first_s=300.0)
    for _ in range(2):
        hands.at_s += 299.0
        assert beat.answer().good
        hands.at_s += 2.0
        assert not beat.answer().good
        beat()
        hands.at_s += 59.0
        assert beat.answer().good
        hands.at_s += 2.0
        assert not beat.answer().good
        beat.begin()


def test_health_says_what_is_true_and_why():
    hands = Hands()
    beat = Beat(60.0, hands)

    def broken() -> Answer:
        raise RuntimeError("no idea")

    server = serve({"/live": beat.answer, "/broken": broken}, 0)
    url = f"http://127.0.0.1:{server.server_address[1]}"

    def ask(path):
        try:
            with urllib.request.urlopen(url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert ask("/live") == (200, "went on 0.0 s ago\n")
    hands.at_s = 60.5
    assert ask("/live") == (503, "went on 60.5 s ago\n")
    beat()
    assert ask("/live")[0] == 200
    assert ask("/broken") == (503, "cannot be said; see the log\n")
    assert ask("/elsewhere") == (404, "ask for /live, /broken\n")
    server.shutdown()
    server.server_close()


def test_many_that_ask_and_never_end_cost_a_few_threads_and_keep_nobody_from_an_answer():
    server = serve({"/live": lambda: Answer(True, "well")}, 0)
    port = server.server_address[1]
    before = threading.active_count()
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(5 * MOST_AT_ONCE)]
    try:
        for one in slow:
            with suppress(OSError):
                one.sendall(b"GET /live HTTP/1.1\r\nX:")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=4) as said:
            assert said.read() == b"well\n"
        until(lambda: threading.active_count() <= before + MOST_AT_ONCE, "threads end", 4.0)
    finally:
        for one in slow:
            one.close()
        server.shutdown()
        server.server_close()


@contextmanager
def well(answer: Callable[[], Answer] = lambda: Answer(True, "well")) -> Iterator[int]:
    """The port of a server that says at /live that it is well, and at /other what is given."""
    server = serve({"/live": lambda: Answer(True, "well"), "/other": answer}, 0)
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def is_well(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=10) as said:
        return said.read() == b"well\n"


@pytest.mark.parametrize("begin", [b"GET /live HTTP/1.1\r\nX: ", b"GET /"])
def test_a_request_has_so_many_bytes_and_no_more(begin: bytes):
    """Whoever reaches the port could have this process's memory otherwise."""
    with well() as port, socket.create_connection(("127.0.0.1", port), 20) as long:
        long.sendall(begin.ljust(MOST_BYTES, b"x"))
        said = long.makefile("rb").read()
        assert said.startswith(b"HTTP/1.0 431 ")
        assert is_well(port)
    with well() as port, socket.create_connection(("127.0.0.1", port), 20) as fits:
        head = b"GET /live HTTP/1.1\r\nX: "
        fits.sendall(head.ljust(MOST_BYTES - 4, b"x") + b"\r\n\r\n")
        assert fits.makefile("rb").read().endswith(b"\r\n\r\nwell\n")


@pytest.mark.parametrize("line", [b"GET /live HTTP/1.1\r\n", b""])
def test_a_request_that_comes_byte_by_byte_is_given_up(line: bytes):
    with well() as port, socket.create_connection(("127.0.0.1", port), 20) as slow:
        slow.sendall(line)
        until(lambda: refuses(slow), "it is cut off", 4 * ASKING_S)
        assert is_well(port)


def refuses(slow: socket.socket) -> bool:
    """Whether whoever reads there takes no other byte."""
    try:
        slow.sendall(b"x")
    except ConnectionError:
        return True
    return False


def test_a_request_that_ends_in_the_middle_is_none():
    asked = []
    with well(lambda: asked.append(1) or Answer(True)) as port:
        with socket.create_connection(("127.0.0.1", port), 20) as half:
            half.sendall(b"GET /other HTTP/1.1\r\nX: ")
            half.shutdown(socket.SHUT_WR)
            assert half.makefile("rb").read() == b""
        assert is_well(port)
    assert asked == []


def hanging() -> tuple[threading.Event, list[int], Callable[[], Answer]]:
    """An answer that is made once the event is set, and who has come for one."""
    go_on, entered = threading.Event(), []

    def hang() -> Answer:
        entered.append(1)
        go_on.wait(60.0)
        return Answer(True)

    return go_on, entered, hang


def test_answers_that_hang_have_no_more_threads_than_there_are_for_all():
    """A socket that is closed says nothing of the thread that works for it."""
    go_on, entered, hang = hanging()
    with well(hang) as port:
        before = threading.active_count()
        asking = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(100)]
        for one in asking:
            one.sendall(b"GET /other HTTP/1.0\r\n\r\n")
        until(lambda: len(entered) >= MOST_AT_ONCE, "all threads are taken", 20.0)
        asking[-1].settimeout(1.0)
        with pytest.raises(TimeoutError):
            asking[-1].recv(1)
        assert threading.active_count() <= before + MOST_AT_ONCE
        go_on.set()
        assert is_well(port)
        asking[0].settimeout(20)
        assert asking[0].recv(12) == b"HTTP/1.0 200", "what is being answered is not cut off"
        for one in asking:
            one.close()


def test_one_that_has_just_come_is_not_cut_off_for_the_next(monkeypatch):
    """It may be the only one of all that is read, as a probe is while others are answered."""
    monkeypatch.setattr(health, "_CUT_S", ASKING_S)
    go_on, entered, hang = hanging()
    with well(hang) as port:
        asking = [
            socket.create_connection(("127.0.0.1", port), 20) for _ in range(MOST_AT_ONCE - 1)
        ]
        for one in asking:
            one.sendall(b"GET /other HTTP/1.0\r\n\r\n")
        until(lambda: len(entered) == len(asking), "they are answered", 20.0)
        probe = socket.create_connection(("127.0.0.1", port), 20)
        asking.append(socket.create_connection(("127.0.0.1", port), 20))
        probe.settimeout(0.5)
        with pytest.raises(TimeoutError):
            probe.recv(1)
        probe.settimeout(20)
        probe.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert probe.makefile("rb").read().endswith(b"well\n")
        go_on.set()
        for one in (probe, *asking):
            one.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_health_is_told_at_addresses_of_both_kinds(host):
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = serve({"/live": lambda: Answer(True, "well")}, 0)
    url = f"http://{host}:{server.server_address[1]}/live"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"well\n"
    server.shutdown()
    server.server_close()


RUNNING = {"state": "running", "execution": 4, "phase": "open", "spark": "running", "sealed": 7}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"execution": None}, "holds no execution yet"),
        ({"state": "failed", "reason": "no"}, "execution 4, failed: no"),
        ({"phase": "moving"}, "execution 4, the view is moving"),
        ({"spark": "starting"}, "execution 4, Spark is starting"),
        ({}, "execution 4, window 7 is sealed"),
    ],
)
def test_a_driver_is_ready_when_windows_can_be_run(changed, text):
    assert readiness(Status(**RUNNING | changed)) == Answer(not changed, text)


def test_code_that_asks_a_driver_to_exit_does_not_say_that_all_is_done(monkeypatch):
    monkeypatch.setattr(driver, "_run", lambda _: sys.exit())
    assert driver.main([]) == ExitCode.FAILED


def test_a_log_line_with_an_error_is_one_line():
    lines = PodLines(Role.DRIVER, IDENTITY)
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("millrace.x", logging.ERROR, "f", 1, "a\nb %s", ("c",), info)
    text = lines.format(record)
    assert "\n" not in text
    told = json.loads(text)
    assert told["message"] == "a\nb c"
    assert "ValueError: first\nsecond" in told["traceback"]


def test_the_message_of_an_end_is_for_the_kubelet_alone(tmp_path):
    file = tmp_path / "termination-log"
    tell_end("nobody asked", file)
    assert not file.exists()
    file.touch()
    tell_end("ä" * LONGEST, file)
    assert 4090 > len(file.read_bytes()) > LONGEST - 2
    tell_end("caf\udce9.bin is broken", file)
    assert file.read_bytes() == rb"caf\udce9.bin is broken"


def started_by_spark():
    """What Spark's scheduler sets in an executor's container."""
    return {
        "SPARK_JAVA_OPT_10": "-Dspark.z=10",
        "SPARK_JAVA_OPT_2": "-Dspark.a=2 3",
        "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.1.2.3:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "words-driver-3-exec-1",
    }


def test_an_executor_is_the_jvm_that_spark_asks_for(tmp_path, monkeypatch):
    monkeypatch.setenv(classes.FOLDER_VARIABLE, str(tmp_path / "none"))
    given = started_by_spark()
    line = executor.command("/usr/bin/java", tmp_path, given)
    assert line[:5] == ["/usr/bin/java", "-Dspark.a=2 3", "-Dspark.z=10", "-Xms1024m", "-Xmx1024m"]
    backend = line.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert line[backend - 2 : backend] == ["-cp", str(tmp_path / "jars" / "*")]
    arguments = dict(zip(line[backend + 1 :: 2], line[backend + 2 :: 2], strict=True))
    assert arguments["--driver-url"] == given["SPARK_DRIVER_URL"]
    assert arguments["--podName"] == "words-driver-3-exec-1"
    given["SPARK_CONF_DIR"] = "/opt/spark/conf"
    configured = executor.command("/usr/bin/java", tmp_path, given)
    assert configured[backend - 1] == f"/opt/spark/conf:{tmp_path / 'jars' / '*'}"
    del given["SPARK_EXECUTOR_CORES"]
    with pytest.raises(PodError, match="SPARK_EXECUTOR_CORES is missing"):
        executor.command("/usr/bin/java", tmp_path, given)


def test_an_executor_starts_where_files_can_be_written(tmp_path):
    """Spark lays the files that it ships to tasks into the folder that its JVM starts in; that of
    the image is read-only, as /proc is here."""
    secret, scratch, java = tmp_path / "secret", tmp_path / "scratch", tmp_path / "bin" / "java"
    for folder in (secret, scratch, java.parent):
        folder.mkdir()
    (secret / "run-key").write_text("k" * 64)
    java.write_text("#!/bin/sh\necho shipped > kit\n")
    java.chmod(0o755)
    told = ["--secret", str(secret), "--scratch", str(scratch)]
    given = {**os.environ, **started_by_spark(), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "millrace.pods", "executor", *told],
        cwd="/proc",
        env={**given, pods.RUN_NONCE: "n0nce"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (scratch / "millrace" / "kit").read_text() == "shipped\n"


def test_the_backend_and_its_arguments_are_those_of_the_spark_that_is_installed():
    """The class is in Spark's jar, and the jar knows each argument."""
    import zipfile

    jars = list((executor.spark_home() / "jars").glob("spark-kubernetes_*.jar"))
    with zipfile.ZipFile(jars[0]) as jar:
        assert executor._BACKEND.replace(".", "/") + ".class" in jar.namelist()


def of_cluster(tmp_path, identity=IDENTITY, host="10.96.0.1"):
    given = environment(
        "words-driver-3",
        KUBERNETES_SERVICE_HOST=host,
        KUBERNETES_SERVICE_PORT="443",
        MILLRACE_IMAGE="millrace/runtime:1",
    )
    return cluster_conf(identity, given, tmp_path / "executor.yaml", tmp_path, "n0nce")


def conf(tmp_path, **settings):
    cluster = of_cluster(tmp_path)
    wanted = {"name": "words", "folder": tmp_path, "instances": 2, "cluster": cluster, **settings}
    return session_conf(SessionSettings(**wanted))


def test_executors_are_pods_of_the_drivers_own(tmp_path):
    found = conf(tmp_path)
    assert found["spark.master"] == "k8s://https://10.96.0.1:443"
    assert found["spark.driver.host"] == "10.1.2.3"
    assert found["spark.executor.instances"] == "2"
    assert found["spark.kubernetes.driver.pod.name"] == "words-driver-3"
    assert found["spark.kubernetes.container.image"] == "millrace/runtime:1"
    assert found["spark.kubernetes.executor.terminationGracePeriodSeconds"] == "5s"
    assert found[SHIPPED] == "true"
    assert "spark.authenticate.secret" not in found
    assert found["spark.authenticate"] == "true"
    assert found["spark.network.crypto.enabled"] == "true"
    assert (
        conf(tmp_path, conf={"spark.executor.memoryOverhead": "2g"})[
            "spark.executor.memoryOverhead"
        ]
        == "2g"
    )


def test_spark_is_told_addresses_of_ipv6_as_it_takes_them(tmp_path):
    """It asserts that an address with colons is in brackets where it names a block manager, and
    binds to one without."""
    identity = Identity("words", "default", "words-driver-3", "fd00::5")
    found = of_cluster(tmp_path, identity, "fd00:1::1")
    assert found["spark.master"] == "k8s://https://[fd00:1::1]:443"
    assert found["spark.driver.host"] == "[fd00::5]"
    assert found["spark.driver.bindAddress"] == "fd00::5"


def test_spark_does_not_end_the_driver_for_executors_that_failed_or_were_refused(tmp_path):
    """It counts them over all of the driver's life, and ends the JVM at two for each executor."""
    key = "spark.executor.maxNumFailures"
    assert conf(tmp_path)[key] == str(2**31 - 1)
    assert conf(tmp_path, conf={key: "7"})[key] == "7"


def size(cores: int = 1, memory: str = "2g", **resources: Any) -> dict[str, str]:
    return executor_size(Executors(cores=cores, memory=memory), Resources(**resources))


def test_executors_are_as_large_as_the_topology_says():
    """Spark writes CPU and memory itself, whatever the pod says that it is given."""
    key = "spark.kubernetes.executor"
    assert size(cores=2) == {f"{key}.request.cores": "2"}
    found = size(requests={"cpu": "500m"}, limits={"cpu": "1", "memory": "3.5Gi"})
    assert found == {
        f"{key}.request.cores": "500m",
        f"{key}.limit.cores": "1",
        "spark.executor.memoryOverhead": "1536m",
    }
    assert size(cores=4, limits={"cpu": "1500m"})[f"{key}.request.cores"] == "1500m"
    # A started mebibyte is none: both together come to no more than the limit.
    assert size(limits={"memory": "3500M"})["spark.executor.memoryOverhead"] == "1289m"


def test_spark_settings_of_a_topology_go_before_sizes_of_executors(tmp_path):
    asked = executor_size(Executors(), Resources(limits={"memory": "4Gi"}))
    wanted = {"name": "words", "folder": tmp_path, "instances": 2, "cluster": asked}
    assert session_conf(SessionSettings(**wanted)).items() >= asked.items()
    own = {"spark.executor.memoryOverhead": "2g"}
    assert session_conf(SessionSettings(**wanted, conf=own)).items() >= own.items()


def test_no_secret_of_the_run_is_in_what_the_pods_of_executors_show(tmp_path):
    """Whoever may read pods reads Spark's settings for them; the nonce alone is there."""
    secret = make_secret(tmp_path / "secret")
    keys = [derived(secret, "n0nce", purpose).hex() for purpose in ("run", "spark")]
    shown = json.dumps(conf(tmp_path))
    assert "n0nce" in shown
    for private in (*keys, PASSWORD, "r" * 64):
        assert private not in shown


def test_without_executors_nothing_of_the_cluster_is_set(tmp_path):
    found = session_conf(SessionSettings("words", tmp_path))
    assert found["spark.master"].startswith("local[")
    assert not [key for key in found if key.startswith("spark.kubernetes") or key == SHIPPED]
    assert os.path.isabs(found["spark.local.dir"])
