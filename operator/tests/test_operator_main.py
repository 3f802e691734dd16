"""The operator's process, where there is no API server: it waits, says so, and ends when told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from millrace.metrics import catalogue
from millrace_operator.main import main

NEEDED = ["--runtime-image", "runtime:1", "--state-image", "state:1"]
WAIT_S = 120


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kubeconfig(folder: Path) -> Path:
    """Of an API server that is not there."""
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(told))
    return file


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.parametrize("more", [[], ["--no-leader-election"]])
def test_it_waits_for_the_api_server_and_ends_when_it_is_told(tmp_path: Path, more: list[str]):
    port = free_port()
    space = ["--own-namespace", "system", "--health-port", str(port)]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig(tmp_path))}
    with subprocess.Popen(
        [sys.executable, "-m", "millrace_operator", *NEEDED, *space, *more],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while asked(port, "/live")[0] == 0:
                assert process.poll() is None, process.communicate()
            assert asked(port, "/live")[0] == 200
            assert asked(port, "/ready")[0] == 503
            status, metrics = asked(port, "/metrics")
            assert status == 200
            told = {family.name: family for family in parse(metrics)}
            for metric in (*catalogue.OPERATOR, *catalogue.PROCESS):
                assert told.pop(metric.name.removesuffix("_total")).type == metric.type
            assert told == {}
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert all(line.startswith("{") for line in log.splitlines())


def test_its_own_namespace_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MILLRACE_POD_NAMESPACE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(NEEDED)
    assert ended.value.code == 2
    assert "MILLRACE_POD_NAMESPACE" in capsys.readouterr().err


def test_a_kubeconfig_that_is_none_is_one_clear_error(tmp_path: Path):
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    command = [sys.executable, "-m", "millrace_operator", *NEEDED, "--own-namespace", "system"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "name a context that it has" in done.stderr.splitlines()[-1]


def test_narrowing_what_is_closed_is_an_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([*NEEDED, "--own-namespace", "system", "--metrics-from", "monitoring"])
    assert ended.value.code == 2
    assert "--metrics-from narrows --metrics" in capsys.readouterr().err
