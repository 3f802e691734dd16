"""Why a pod does not do what it should, in one word for programs and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace_operator.reconcile.observe import Observed, Pod, PodPhase


@dataclass(frozen=True, slots=True)
class Trouble:
    """``reason`` is stable: conditions, events and alarms go by it."""

    reason: str
    message: str


FAILED_MOUNT = "FailedMount"
"""As Kubernetes calls it in events: what a volume is made of is not there."""

REASONS = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "Unschedulable": "Unschedulable",
    "SchedulingGated": "Unschedulable",
    "CrashLoopBackOff": "CrashLooping",
    "OOMKilled": "OutOfMemory",
    "Evicted": "Evicted",
    "Preempting": "Evicted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByTaintManager": "Evicted",
    "PreemptionByScheduler": "Evicted",
    "CreateContainerConfigError": "ContainerCannotStart",
    "CreateContainerError": "ContainerCannotStart",
    "RunContainerError": "ContainerCannotStart",
    FAILED_MOUNT: "ContainerCannotStart",
}
"""What Kubernetes calls it, and what conditions do."""


def trouble(observed: Observed, pod: Pod) -> Trouble | None:
    """What is wrong with a pod; None where it is well or on its way."""
    if observed.lost(pod) and not pod.ended:
        text = f"pod {pod.name} is on node {pod.node}, which does not answer or is gone"
        return Trouble("NodeLost", text)
    if observed.silent(pod) and not pod.ended:
        text = (
            f"pod {pod.name} is on node {pod.node}, which does not answer, like most nodes; pods "
            "stay as they are until it is known what became of them"
        )
        return Trouble("NodesSilent", text)
    known = REASONS.get(pod.reason)
    said = f": {pod.message}" if pod.message else ""
    if known is not None:
        return Trouble(known, f"pod {pod.name}{said}" if said else f"pod {pod.name} ({pod.reason})")
    if pod.phase is PodPhase.FAILED:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        return Trouble("PodFailed", f"pod {pod.name} ended{code}{said}")
    return None


def first_trouble(observed: Observed, pods: Iterable[Pod], names: Iterable[str]) -> Trouble | None:
    """The first trouble of pods, or of children of these names that cannot be created."""
    for name in names:
        if name in observed.refusals:
            return Trouble("PodRefused", f"pod {name} is refused: {observed.refusals[name]}")
    return next((found for pod in pods if (found := trouble(observed, pod))), None)


def executor_trouble(observed: Observed, pods: Iterable[Pod]) -> Trouble | None:
    """What is wrong with executors. Of pods that the API server does not take nobody knows but the
    driver, whose Spark asks for them."""
    found = first_trouble(observed, pods, ())
    if found is None and observed.told is not None and observed.told.refused is not None:
        return Trouble("PodRefused", f"a pod of an executor is refused: {observed.told.refused}")
    return found


def last_seen(observed: Observed, name: str) -> str:
    """Why a pod of this name does not answer, or is another one now, as far as that is seen; else
    nothing."""
    pod = next((pod for pod in observed.pods if pod.name == name), None)
    if pod is None:
        return "its pod is gone"
    found = trouble(observed, pod)
    if found is not None:
        return f"{found.reason}: {found.message}"
    if pod.deleting:
        return "its pod is being deleted"
    return f"it ended before: {pod.before}" if pod.before else ""
