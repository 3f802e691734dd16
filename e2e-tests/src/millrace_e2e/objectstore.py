"""An object store that a test runs by itself: S3's protocol, on a port of this machine alone.

Its packages are in a folder of their own, as an image for a cluster has them (docs/operator.md);
``make store`` brings them there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace_e2e.valkey import free_port
from millrace_e2e.waiting import until

PACKAGES = Path(sys.prefix) / "store"
WITHOUT = f"{PACKAGES} has no object store; `make store` brings it"

BUCKET = "bucket"

READY_S = 240.0
"""It imports for long on a busy machine."""


def is_installed() -> bool:
    return (PACKAGES / ".installed").exists()


@dataclass(frozen=True, slots=True)
class Store:
    """``environment`` has what reaches it, said where an image and a Secret would say it."""

    url: str
    environment: dict[str, str]


@contextmanager
def serving(folder: Path) -> Iterator[Store]:
    """A store with an empty bucket; all that it holds is gone at the end."""
    folder.mkdir(parents=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    paths = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "store.log").open("xb") as log:
        process = subprocess.Popen(command, env=paths, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _has_bucket(url), "an object store", READY_S)
        assert process.poll() is None, (folder / "store.log").read_text()
        yield Store(f"s3://{BUCKET}", {"PYTHONPATH": str(PACKAGES), **_settings(folder, url)})
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _settings(folder: Path, url: str) -> dict[str, str]:
    region = {"region_name": "eu-central-1"}
    told = {"s3": {"key": "KEY", "secret": "SECRET", "endpoint_url": url, "client_kwargs": region}}
    (folder / "conf.json").write_text(json.dumps(told))
    return {"FSSPEC_CONFIG_DIR": str(folder)}


def _has_bucket(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")):
            return True
    except OSError:
        return False
