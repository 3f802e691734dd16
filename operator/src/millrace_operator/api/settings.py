"""What the operator itself was told at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a container asks for: CPU in Kubernetes' notation, memory in mebibytes."""

    cpu: str
    memory_mi: int


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Images and sizes of pods, and where the operator itself runs.

    ``namespace`` is the operator's own: it asks state servers for their run ids. ``metrics_from``:
    namespaces whose pods may ask for metrics, all where none is named; None: nobody may.
    """

    runtime_image: str
    state_image: str
    namespace: str
    version: str = "0.1.0"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] | None = None
    acker: Quantity = Quantity("100m", 256)
    state_server: Quantity = Quantity("250m", 1024)
    driver_cpu: str = "1"
