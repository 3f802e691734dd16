"""What fsspec finds in its folder of settings counts for snapshots, as docs/operator.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PUT = """
from pathlib import Path
from millrace.snapshots.places import open_place
place = open_place("dir://snapshots", Path.cwd())
assert place.create("early", "manifest.json", b"{}")
print(place.read("early", "manifest.json"))
"""


def test_settings_of_a_store_come_from_a_mounted_folder(tmp_path: Path) -> None:
    settings, bucket = tmp_path / "fsspec", tmp_path / "bucket"
    settings.mkdir()
    bucket.mkdir()
    told = {"dir": {"path": str(bucket), "target_protocol": "file"}}
    (settings / "conf.json").write_text(json.dumps(told))
    # As a kubelet mounts a Secret: files are links into a hidden folder.
    (settings / "..data").mkdir()
    environment = {**os.environ, "FSSPEC_CONFIG_DIR": str(settings)}
    command = [sys.executable, "-c", PUT]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "b'{}'\n")
    assert (bucket / "snapshots" / "early" / "manifest.json").read_bytes() == b"{}"
