"""A table of a ConfigMap on two nodes: executors look up in what the driver read, and the next
driver reads what the ConfigMap holds then."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from chart_command import Shell
from words_on_nodes import (
    LARGER,
    NAME,
    RESTRICTED,
    WAIT_S,
    Manifest,
    Space,
    reachable_folder,
    space_of,
    volume,
)

from millrace.homes.pods import Role
from millrace_e2e.waiting import until

SPACE = "tables"
ROWS = 5_000
"""Of a file: a window of so many is shared out among the executors."""

pytestmark = pytest.mark.timeout(1_500)


def table(content: str) -> Manifest:
    text = "".join(f"u{number},{content}\n" for number in range(10))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "users", "namespace": SPACE},
        "data": {"users.csv": f"id,content\n{text}"},
    }


def topology(nonce: int) -> Manifest:
    places = [
        *LARGER["volumes"],
        {"name": "tables", "mountPath": "/data/tables", "configMap": {"name": "users"}},
    ]
    lookup = {
        "table": {"path": "tables/users.csv", "schema": "id string, content string"},
        "key": [{"column": "user", "of": "id"}],
        "columns": [{"name": "content"}],
        "missing": "Drop",
    }
    files = {"path": "texts", "format": "jsonLines", "schema": "user string, n long"}
    spec = {
        **LARGER,
        "restartNonce": nonce,
        "window": {"maxRecords": ROWS, "maxInterval": "100ms"},
        "stateServers": {"replicas": 2, "copies": 2, "memory": "256m"},
        "volumes": places,
        "sources": [{"name": "lines", "files": files}],
        "processors": [{"name": "known", "inputs": [{"from": "lines"}], "lookup": lookup}],
        "sinks": [{"name": "rows", "inputs": [{"from": "known"}], "files": {"path": "rows"}}],
    }
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": NAME, "namespace": SPACE},
        "spec": spec,
    }


def feed(data: Path, number: int) -> None:
    """Rows of which the table has five in six."""
    rows = (json.dumps({"user": f"u{n % 12}", "n": number * ROWS + n}) for n in range(ROWS))
    draft = data / "draft"
    draft.write_text("".join(f"{row}\n" for row in rows))
    draft.chmod(0o644)
    draft.rename(data / "texts" / f"{number}.jsonl")


def shown(data: Path) -> dict[int, str]:
    """The content that each row got."""
    files = [file for file in (data / "rows").glob("part-*.jsonl") if file.is_file()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = {row["n"]: row["content"] for row in rows}
    assert len(found) == len(rows)
    return found


def known(number: int) -> set[int]:
    return {number * ROWS + n for n in range(ROWS) if n % 12 < 10}


def test_executors_see_the_table_of_the_driver(
    shell: Shell, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with space_of(shell, SPACE, request) as space:
        data = reachable_folder(tmp_path / "data")
        for name in ("texts", "rows"):
            reachable_folder(data / name)
        labels = {"name": SPACE, "labels": RESTRICTED}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "wordcount-counts", "namespace": SPACE},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        space.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": labels},
            volume(SPACE, SPACE, "wordcount-counts", data),
        )
        space.apply(claim, table("old"), topology(0))
        feed(data, 0)
        space.await_ready()
        until(lambda: shown(data).keys() == known(0), "the first rows", WAIT_S, 0.5)
        assert Counter(shown(data).values()) == Counter({"old": len(known(0))})
        (first,) = space.pods(Role.DRIVER)

        space.apply(table("new"))
        feed(data, 1)
        until(lambda: shown(data).keys() == known(0) | known(1), "more rows", WAIT_S, 0.5)
        assert set(shown(data).values()) == {"old"}

        space.apply(topology(1))
        until(lambda: _follows(space, first), "the next driver", WAIT_S, 0.5)
        space.await_ready()
        feed(data, 2)
        everything = known(0) | known(1) | known(2)
        until(lambda: shown(data).keys() == everything, "the last rows", WAIT_S, 0.5)
        assert {content for n, content in shown(data).items() if n >= 2 * ROWS} == {"new"}
        assert {content for n, content in shown(data).items() if n < 2 * ROWS} == {"old"}
        space.delete()


def _follows(space: Space, first: Manifest) -> bool:
    names = [one["metadata"]["name"] for one in space.pods(Role.DRIVER)]
    return len(names) == 1 and names != [first["metadata"]["name"]]
