"""The first topology of docs/install.md counts what its source makes, with the code and the
password given as a cluster gives them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import redis
import yaml

from millrace_e2e import valkey

EXAMPLE = Path(__file__).parents[2] / "examples" / "bands"
PASSWORD = "of-the-store"
READINGS = 2_000


def test_every_reading_is_in_one_band(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    shutil.copy(EXAMPLE / "bands.py", tmp_path / "modules")
    file = tmp_path / "topology.yaml"
    with valkey.serving(tmp_path / "server") as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        document = yaml.safe_load((EXAMPLE / "topology.yaml").read_text())
        spec = document["spec"]
        spec["code"] = {"path": "modules"}
        spec["sources"][0]["generator"]["count"] = READINGS
        spec["sinks"][0]["redis"]["url"] = server.url
        file.write_text(yaml.safe_dump(document))
        done = subprocess.run(
            [sys.executable, "-m", "millrace.cli.app", "run", str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MILLRACE_SECRET_STORE__PASSWORD": PASSWORD},
        )
        assert done.returncode == 0, done.stderr
        with redis.Redis(port=server.port, password=PASSWORD, decode_responses=True) as client:
            shown = {name: client.hgetall(f"band:{name}") for name in ("low", "middle", "high")}
    counts = {name: int(fields["count"]) for name, fields in shown.items()}
    assert sum(counts.values()) == READINGS
    # Values are spread evenly over [0, 1): a quarter, a half and a quarter of them.
    for name, share in (("low", 0.25), ("middle", 0.5), ("high", 0.25)):
        assert abs(counts[name] / READINGS - share) < 0.05
    highest = {name: float(fields["highest"]) for name, fields in shown.items()}
    assert highest["low"] < 0.25 < highest["middle"] < 0.75 < highest["high"] < 1
