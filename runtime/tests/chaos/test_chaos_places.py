"""A campaign reads the sinks where the run writes them, wherever the topology came from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace import checked
from millrace.chaos import local_run
from millrace.chaos.local_run import Wanted, carry_out
from millrace.chaos.plan import ChaosError, VictimKind
from millrace.clock import SystemClock
from millrace.homes import codec
from millrace.homes.settings import in_folder
from millrace.local.files import write_json
from millrace.local.workdir import WorkFolder, open_folder
from millrace.topology.load import parse

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: piped}
spec:
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: out, inputs: [{from: made}], files: {path: out}}]
"""


def ran(base: Path, file: Path) -> WorkFolder:
    """What a run in ``base`` has left."""
    folder = open_folder(base / "work", "piped", file, SystemClock())
    write_json(folder.topology, checked.with_checksum(parse(TEXT).document()))
    settings = in_folder(folder.path, folder.uid, folder.topology, base)
    write_json(folder.driver, codec.encode(settings))
    return folder


@pytest.mark.parametrize("file", ["/dev/stdin", "topology.yaml"])
def test_paths_begin_where_those_of_the_run_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    base, asked = tmp_path / "base", []
    base.mkdir()
    alive = SimpleNamespace(refused={}, look=lambda: SimpleNamespace(ended=None))
    monkeypatch.setattr(local_run, "LocalTarget", lambda _: alive)

    def judged(_: object, folder: Path, *__: object) -> object:
        asked.append(folder)
        raise ChaosError("far enough")

    monkeypatch.setattr(local_run.expected, "judged_sinks", judged)
    wanted = Wanted((VictimKind.DRIVER,), 1.0, 1.0, 1.0, 1)
    with pytest.raises(ChaosError, match="far enough"):
        carry_out(ran(base, base / file), wanted, lambda _: None, lambda _: None)
    assert asked == [base]
