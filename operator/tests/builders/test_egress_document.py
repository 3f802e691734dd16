"""Whom docs/pods.md lets pods connect to are those that the policies of the other side let in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.homes.pods import ROLE_LABEL, Role
from millrace_operator.builders.naming import MANAGED_BY, MANAGER, Owner
from millrace_operator.builders.network import policies

TEXT = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
OPERATOR = "operator"


def part(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def let_in() -> Iterator[tuple[str, str, int]]:
    """Who may begin to speak to whom, by the policies."""
    for one in policies(Owner("words", "jobs", "uid-1", "0.1.0"), "system"):
        spec: dict[str, Any] = one["spec"]
        to = spec["podSelector"]["matchLabels"][ROLE_LABEL]
        for rule in spec["ingress"]:
            for peer in rule["from"]:
                pods = peer.get("podSelector", {}).get("matchLabels", {})
                for port in rule["ports"]:
                    yield pods.get(ROLE_LABEL, OPERATOR), to, port["port"]


def test_who_connects_to_whom_is_who_is_let_in():
    rows = re.findall(
        r"^\| ([a-z ]+) \| ([a-z ]+) \| ([0-9, ]+) \|$", part("Where pods connect to"), re.M
    )
    told = {
        (source.replace(" ", "-"), target.replace(" ", "-"), int(port))
        for source, target, ports in rows
        for port in ports.split(", ")
    }
    assert told == set(let_in())
    assert {source for source, _, _ in told} == {OPERATOR, *Role} - {Role.STATE_SERVER}


def test_what_a_backup_leaves_out_is_what_the_operator_makes():
    told = part("Backup")
    assert f"`{MANAGED_BY}={MANAGER}`" in told
    assert f"'{MANAGED_BY}!={MANAGER}'" in told
