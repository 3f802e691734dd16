"""docs/pods.md says of pods what the code has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from millrace.homes import codec, pods
from millrace.homes.pods import Role
from millrace.homes.settings import ConfigMapPlace, decode_settings, in_pods
from millrace.kube.journalmap import EVENT_BYTES

TEXT = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()


def table(heading):
    """Cells of the first table behind a heading, by the first cell of each row."""
    part = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in rows}


def test_every_variable_is_in_the_table_and_every_row_is_a_variable():
    known = {
        getattr(pods, name)
        for name in ("POD_NAME", "POD_NAMESPACE", "POD_IP", "NODE", "TOPOLOGY", "UID", "LOG_LEVEL")
    } | {pods.IMAGE, pods.IMAGE_PULL_POLICY, pods.MAX_MEMORY, pods.SECRETS}
    assert {name for name in table("Environment") if name.startswith("MILLRACE")} == known
    for name, path in pods.DOWNWARD.items():
        assert f"`{path}`" in table("Environment")[name][1]


def test_every_folder_is_in_the_table():
    folders = {value for name, value in vars(pods).items() if name.endswith("_FOLDER")}
    assert {name for name in table("Volumes") if name.startswith("/")} == folders


def test_objects_are_called_as_the_code_calls_them():
    rows = [line for line in TEXT.partition("## Pods")[0].splitlines() if line.startswith("| ")]
    named = re.findall(r"`(<t>-[a-z]+)`", "\n".join(rows))
    maps = {pods.view_map, pods.inbox_map, pods.journal_map, pods.accepted_map, pods.snapshots_map}
    assert set(named) == {name("<t>") for name in {*maps, pods.secret}}
    (journal,) = [row for row in rows if "`<t>-journal`" in row]
    assert f"the newest {EVENT_BYTES // 1000} kB" in journal


@pytest.mark.parametrize("role", [Role.DRIVER, Role.ACKER, Role.STATE_SERVER])
def test_pods_of_the_operator(role):
    rows = table("Pods")
    column = [cell.replace(" ", "-") for cell in rows[""]].index(role.value)
    assert rows["name"][column] == f"`{pods.pod_name('<t>', role, 7)}`".replace("7", "<n>")
    assert rows["args"][column] == f"`[{role.value}]`"
    assert rows["grace period"][column] == f"{pods.GRACE_S[role]} s"
    assert str(pods.HEALTH_PORT) in rows["ports"][column].split(", ")


def test_executors_and_the_user():
    rows = table("Pods")
    prefix = pods.executor_prefix(pods.pod_name("<t>", Role.DRIVER, 7))
    assert rows["name"][3] == f"`{prefix}-exec-<m>`".replace("7", "<n>")
    assert rows["grace period"][3] == f"{pods.GRACE_S[Role.EXECUTOR]} s"
    assert f"user and group {pods.USER_ID}" in TEXT
    for port in (pods.SPARK_DRIVER_PORT, pods.SPARK_BLOCKS_PORT, pods.RESIDENT_PORT):
        assert str(port) in rows["ports"][0].split(", ")
    assert str(pods.STATE_PORT) in rows["ports"][2]
    for path in (pods.LIVE_PATH, pods.READY_PATH, pods.INCARNATION_PATH, pods.METRICS_PATH):
        assert path in table("Health")
    readers = TEXT.partition("\n## Readers of")[2].partition("\n## ")[0]
    assert f"port {pods.READING_PORT} of their pod's loopback" in readers
    assert f"`GET {pods.RECORD_PATH}`" in readers
    assert f"`GET {pods.OBJECT_PATH}?" in readers
    assert f"`{pods.TAG_HEADER}`" in readers
    assert f"`Authorization: {pods.READER} " in readers
    assert f"{pods.PART_BYTES >> 20} MiB at most" in readers
    for key in (pods.TOPOLOGY_KEY, pods.DRIVER_KEY, pods.EXECUTOR_KEY):
        assert f"- `{key}`:" in TEXT


def test_names_of_executors_are_short_enough_for_spark_and_differ():
    longest = [pods.pod_name("t" * 50, Role.DRIVER, number) for number in range(100, 200)]
    prefixes = {pods.executor_prefix(name) for name in longest}
    assert len(prefixes) == len(longest)
    for prefix in prefixes:
        assert len(f"{prefix}-exec-{2**31 - 1}") <= 63
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", prefix)


def test_settings_of_a_driver_pod_are_a_document_that_is_read_back(tmp_path):
    wanted = in_pods("words", "default", "uid-1")
    document = codec.encode(wanted)
    assert document["view"] == {
        "kind": "configMap",
        "namespace": "default",
        "name": "words-view",
    }
    assert decode_settings(json.dumps(document).encode(), tmp_path) == wanted
    assert wanted.inbox == ConfigMapPlace("default", "words-inbox")
    for path in (wanted.workdir, wanted.topology, wanted.folder):
        assert f"`{path}`" in TEXT


def test_addresses_of_state_servers():
    assert pods.state_url("10.1.2.3") == "redis://10.1.2.3:6379"
    assert pods.state_url("fd00::7") == "redis://[fd00::7]:6379"
