"""A password that is given by reference reaches the processes that need it and no file of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from millrace_e2e import quickjvm, valkey

PASSWORD = "pA5sw0rd-of-the-store"
TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {{name: words}}
spec:
  sources: [{{name: lines, files: {{path: texts, watch: false}}}}]
  sinks:
    - name: out
      inputs: [{{from: lines}}]
      redis:
        url: {url}
        mode: stream
        stream: lines
        password: {{secretRef: {{name: my-store, key: password}}}}
  parallelism: 1
  spark:
    conf: {{spark.driver.extraJavaOptions: "{quick}", spark.executor.extraJavaOptions: "{quick}"}}
    driver: {{memory: 512m}}
    executors: {{instances: {executors}, memory: 512m}}
"""


@pytest.mark.parametrize("executors", [0, 1])
def test_a_password_is_in_no_file_of_a_run_and_in_no_output(
    tmp_path: Path, executors: int, quick_jvm: None
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one\ntwo\n")
    file = tmp_path / "topology.yaml"
    with valkey.serving(tmp_path / "server") as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        quick = quickjvm.options()
        file.write_text(TOPOLOGY.format(url=server.url, executors=executors, quick=quick))
        done = subprocess.run(
            [sys.executable, "-m", "millrace.cli.app", "run", str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MILLRACE_SECRET_MY_STORE__PASSWORD": PASSWORD},
        )
        assert done.returncode == 0, done.stderr
        with redis.Redis(port=server.port, password=PASSWORD) as client:
            shown = client.xrange("lines")
    assert sorted(fields[b"value"] for _, fields in shown) == [b"one", b"two"]
    assert PASSWORD not in done.stdout + done.stderr
    work = tmp_path / ".millrace"
    files = [path for path in work.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
