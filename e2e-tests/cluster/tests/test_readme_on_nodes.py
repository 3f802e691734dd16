"""The quickstart of the README on two nodes, command by command as it stands there: the operator by
helm, the first topology with its store, its driver deleted, and all of it removed.

The image of the store is pulled where a registry is at hand. Here it is made, of Valkey's server
from its wheel and the client that Debian has.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from chart_command import ROOT, SYSTEM, Shell, block, commands
from cluster_command import Tool
from gathering import gather
from words_on_nodes import RESTRICTED, WAIT_S, remove, space_of, with_images

from millrace.sources.generator import GeneratorSource
from millrace_e2e.cluster import images
from millrace_e2e.valkey import binary
from millrace_e2e.waiting import until

SPACE = NAME = "bands"
STORE = "docker.io/valkey/valkey:8-alpine"
BANDS = {"low": (0.0, 0.25), "middle": (0.25, 0.75), "high": (0.75, 1.0)}

pytestmark = pytest.mark.timeout(1_500)


def store_image(folder: Path) -> Path:
    """The archive of an image that the example calls by the name of one in a registry."""
    debian = images.base("example.local/redis-tools:1", ["redis-tools"], print)
    layer, target = folder / "layer.tar", folder / "store.tar"
    with tarfile.open(debian) as tar, layer.open("wb") as copy:
        content = tar.extractfile("layer.tar")
        assert content is not None
        shutil.copyfileobj(content, copy)
    with tarfile.open(layer, "a") as tar:
        tar.add(binary(), "usr/local/bin/valkey-server")
        client = tarfile.TarInfo("usr/local/bin/valkey-cli")
        client.type, client.linkname = tarfile.SYMTYPE, "/usr/bin/redis-cli"
        tar.addfile(client)
    images.write(layer, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}, STORE, target)
    return target


@pytest.fixture
def shell(tool: Tool, tmp_path: Path) -> Shell:
    """A user's, of a cluster whose nodes find all images and that has no operator."""
    made = with_images(tool, tmp_path)
    tool.run("load", str(store_image(tmp_path)))
    return made


def test_the_quickstart_of_the_readme_runs_as_it_stands(
    shell: Shell, request: pytest.FixtureRequest
) -> None:
    *first, ask, delete_driver, look, end = commands(
        block("On a cluster", "examples/bands", "../README.md")
    )
    assert "hgetall band:low" in ask
    try:
        for command in first[:2]:
            shell.script(command)
    except BaseException:
        gather(shell, "readme", (SYSTEM,))
        raise
    with space_of(shell, SPACE, request) as space:
        for command in first[2:]:
            began_s = time.monotonic()
            shell.script(command)
        print(json.dumps({"wait_s": round(time.monotonic() - began_s, 1)}), flush=True)

        def low() -> int:
            return count_of(shell.script(ask))

        seen = until(low, "what the store shows", WAIT_S, 0.5)
        until(lambda: low() > seen, "more", WAIT_S, 0.5)
        assert "bands-driver-1" in shell.script(delete_driver)
        seen = low()
        until(lambda: low() > seen, "more behind the next driver", WAIT_S, 0.5)
        told = shell.script(look)
        assert "streamtopology" in told
        assert "pod/bands-driver-2" in told

        # Now it stands still, to be judged.
        space.kubectl("patch", "topo", NAME, "--type=merge", "-p", '{"spec": {"suspend": true}}')
        driver = ("-l", "app.kubernetes.io/component=driver", "-o", "name")
        drivers = partial(space.kubectl, "get", "pods", *driver)
        until(lambda: drivers() == "", "no driver is there", WAIT_S, 0.5)
        shown = {}
        for band in BANDS:
            words = shell.script(ask.replace("band:low", f"band:{band}")).split()
            shown[band] = dict(zip(words[::2], words[1::2], strict=True))
        counts = {band: int(fields["count"]) for band, fields in shown.items()}
        total = sum(counts.values())
        print(json.dumps(counts), flush=True)
        assert counts == counts_of(readings(total))

        level = "=".join(*RESTRICTED.items())
        label = ("label", "--overwrite", "--dry-run=server", "namespace", SPACE, level)
        told = shell.run("kubectl", *label).stderr
        assert told == "", "all pods may be in a restricted namespace"
        shell.script(end)
        assert SPACE not in shell.must("kubectl", "get", "namespaces", "-o", "name")
    remove(shell)


def count_of(told: str) -> int:
    """Of a band, as the client prints it; 0 where there is none yet."""
    words = told.split()
    return int(words[words.index("count") + 1]) if "count" in words else 0


def readings(count: int) -> np.ndarray:
    """The first ones that the example's source makes."""
    source = GeneratorSource("readings", {"count": count}, ROOT)
    plan = source.plan(None, count)
    batches = [batch.data for piece in plan.ranges for batch in source.read(piece)]
    return np.concatenate([rows.column("value").to_numpy() for rows in batches])


def counts_of(values: np.ndarray) -> dict[str, int]:
    """How many lie in each band."""
    found: Counter[str] = Counter()
    for band, (least, most) in BANDS.items():
        found[band] = int(((values >= least) & (values < most)).sum())
    return dict(found)
