"""Which cluster is meant: the one that is told, the one that is up, or the one that fits."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from millrace_e2e.cluster.given import GivenCluster
from millrace_e2e.cluster.kind import KindCluster, docker_answers, kind_is_there
from millrace_e2e.cluster.own import OwnCluster


class Choice(StrEnum):
    """``auto`` is none of a person's own: ``current`` is taken only where it is told."""

    AUTO = "auto"
    CURRENT = "current"
    KIND = "kind"
    OWN = "own"


class Cluster(Protocol):
    """What tests need of a cluster."""

    def up(self, count: int) -> None: ...
    def down(self) -> None: ...
    def nodes(self) -> dict[str, bool]: ...
    def load(self, archive: Path) -> None: ...
    def kill_node(self, name: str) -> None: ...
    def start_node(self, name: str) -> None: ...
    @property
    def kubeconfig(self) -> Path: ...


def find(told: Choice, say: Callable[[str], None]) -> Cluster:
    """The cluster to work with."""
    match told if told is not Choice.AUTO else fitting():
        case Choice.CURRENT:
            return GivenCluster(say)
        case Choice.KIND:
            return KindCluster(say)
        case _:
            return OwnCluster(say)


def fitting() -> Choice:
    """What is up already; else kind where it and Docker are there; else one of our own."""
    if OwnCluster.is_up():
        return Choice.OWN
    fits = KindCluster.is_ours() or (kind_is_there() and docker_answers())
    return Choice.KIND if fits else Choice.OWN
