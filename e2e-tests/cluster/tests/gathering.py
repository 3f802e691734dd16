"""What a cluster says of some namespaces, kept as files before it is taken down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from chart_command import ROOT, Shell

from millrace_e2e.cluster.layout import Layout

LOGS = ROOT / "e2e-tests" / "logs"


def gather(shell: Shell, name: str, namespaces: tuple[str, ...]) -> Path:
    """A folder of ``e2e-tests/logs`` with descriptions, events and logs, and what the processes of
    the cluster itself said last. Returns it; what cannot be told says why in its place."""
    folder = LOGS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    nodes = shell.run("kubectl", "describe", "nodes")
    (folder / "nodes.txt").write_text(nodes.stdout + nodes.stderr)
    for space in namespaces:
        asked: dict[str, tuple[str, ...]] = {
            "topologies": ("describe", "streamtopologies"),
            "pods": ("describe", "pods"),
            "events": ("get", "events", "--sort-by=.lastTimestamp", "-o", "wide"),
            "maps": ("get", "configmaps", "-o", "yaml"),
        }
        found = shell.run("kubectl", "-n", space, "get", "pods", "-o", "json")
        for pod in json.loads(found.stdout or '{"items": []}')["items"]:
            own = pod["metadata"]["name"]
            asked[own] = ("logs", own, "--tail=4000")
            containers = pod.get("status", {}).get("containerStatuses") or [{}]
            if containers[0].get("restartCount"):
                asked[f"{own}-before"] = ("logs", own, "--previous", "--tail=4000")
        for what, words in asked.items():
            done = shell.run("kubectl", "-n", space, *words)
            (folder / f"{space}-{what}.txt").write_text(done.stdout + done.stderr)
    for log in sorted(Layout.standard().logs.glob("*")):
        text = log.read_text(errors="replace") if log.is_file() else ""
        (folder / f"cluster-{log.name}.txt").write_text(text[-20_000:])
    return folder
