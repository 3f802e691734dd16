"""A driver's pod that stands by: it finds out by itself that no driver before it is left.

The operator makes it, with a number above that of the driver that works, and nothing more has to be
said: it may be dead when the driver dies. The pods of the topology's drivers are what both go by.
What an own pod or a predecessor's is seen as decides, and is read anew before anything follows; a
watch only says when to read.

=============================  =================================================================
what is seen                   what follows
=============================  =================================================================
a driver of a lower number     it stands by
that may work
no such driver: gone, being    it is the driver, and claims the next execution before all else
deleted, or failed
the last one has drained its   it ends, with exit code 0: nothing is left to do
input
the last one failed in a way   it ends: to start another one is for the operator to decide
that no restart mends
its own pod is being deleted   it ends: the operator deletes it before a driver that is to end
or gone, or one of a higher    for an edit, so that what was edited is not taken back
number was made
the API server does not        it stands by: nobody could claim anything
answer
=============================  =================================================================

A predecessor that lives all the same is fenced by the claim. One that wakes late here, behind its
last look, claims as a driver that starts late does, and its pod is on its way to be ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kubernetes.client.exceptions import ApiException

from millrace.clock import Clock, SystemClock
from millrace.errors import ExitCode, error_text
from millrace.homes import pods as names
from millrace.homes.pods import Role
from millrace.homes.restarts import FINAL_CODES
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api

log = logging.getLogger(__name__)

RESYNC_S = 5.0
"""How often pods are read though no watch tells of anything."""

STALE_S = 5.0
"""A look that took longer says nothing: this process may have been stopped meanwhile."""

_PAGE = 50
_WATCH_S = 60
_PAUSE_S = 1.0

_HOPELESS = frozenset(code for code, lives in FINAL_CODES.items() if lives == 1)
"""Exit codes behind which no other driver is started, whatever was before."""


class Whose(Enum):
    """Whose turn it is."""

    THEIRS = "stands by"
    OURS = "takes over"
    NOBODYS = "has nothing to do"


@dataclass(frozen=True, slots=True)
class Outlook:
    """``why`` is for people. ``code`` is what a process ends with that has nothing to do."""

    whose: Whose
    why: str
    code: int = ExitCode.INTERRUPTED


def judge(pods: Iterable[Mapping[str, Any]], topology: str, uid: str, own: str) -> Outlook:
    """What follows from the pods that are there; ``uid`` is the topology's, ``own`` this pod."""
    drivers = dict(_drivers(pods, topology, uid))
    me = _number(own, topology)
    if me is None or me not in drivers or "deletionTimestamp" in drivers[me]["metadata"]:
        return Outlook(Whose.NOBODYS, f"pod {own} is to end")
    later = [number for number in drivers if number > me]
    if later:
        return Outlook(Whose.NOBODYS, f"driver {max(later)} was made since then")
    before = sorted(number for number in drivers if number < me)
    for number in before:
        pod = drivers[number]
        ended = names.driver_phase(pod.get("status", {})) in ("Succeeded", "Failed")
        if not ended and "deletionTimestamp" not in pod["metadata"]:
            return Outlook(Whose.THEIRS, f"{pod['metadata']['name']} is there")
    if not before:
        return Outlook(Whose.OURS, "no other driver is left")
    return _after(drivers[before[-1]])


def _after(last: Mapping[str, Any]) -> Outlook:
    name, status = last["metadata"]["name"], last.get("status", {})
    phase, code = names.driver_phase(status), names.driver_exit_code(status)
    if phase == "Succeeded":
        return Outlook(Whose.NOBODYS, f"{name} has drained all input", ExitCode.OK)
    if phase == "Failed" and code in _HOPELESS:
        why = f"{name} ended with exit code {code}, and no other driver mends that"
        return Outlook(Whose.NOBODYS, why)
    return Outlook(Whose.OURS, f"{name} has ended or is to end")


def _drivers(
    pods: Iterable[Mapping[str, Any]], topology: str, uid: str
) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Drivers of this very topology by their numbers: anybody may give a pod its labels."""
    for pod in pods:
        number = _number(pod["metadata"]["name"], topology)
        owners = pod["metadata"].get("ownerReferences") or []
        if number is not None and any(owner["uid"] == uid for owner in owners):
            yield number, pod


def _number(name: str, topology: str) -> int | None:
    prefix = names.pod_name(topology, Role.DRIVER, 0).removesuffix("0")
    text = name.removeprefix(prefix) if name.startswith(prefix) else ""
    return int(text) if text.isascii() and text.isdigit() else None


class Watchman:
    """Tells when it is over with standing by. ``over`` from one thread; ``outlook`` then says why.

    ``beat`` is called at each look, answered or not.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        topology: str,
        uid: str,
        own: str,
        *,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        selector = f"{names.TOPOLOGY_LABEL}={topology},{names.ROLE_LABEL}={Role.DRIVER.value}"
        self._query = {"labelSelector": selector}
        self._who = (topology, uid, own)
        self._beat = beat
        self._clock = clock or SystemClock()
        self._changed = threading.Event()
        self._changed.set()
        self._asked_s = float("-inf")
        self._away = False
        self._stopped: Outlook | None = None
        self.outlook = Outlook(Whose.THEIRS, "nothing was read yet")
        self._since = ""
        self._thread: threading.Thread | None = None

    def stop(self, why: str) -> None:
        """This process is to end, from any thread or a signal's handler."""
        self._stopped = Outlook(Whose.NOBODYS, why)

    def over(self, timeout_s: float) -> bool:
        """Whether it is over, after so long at most where nothing happens."""
        self._beat()
        self._changed.wait(timeout_s)
        due = self._clock.monotonic_s() - self._asked_s >= RESYNC_S
        if self._stopped is None and (self._changed.is_set() or due):
            self._changed.clear()
            self._look()
        if self._stopped is not None:
            self.outlook = self._stopped
        return self.outlook.whose is not Whose.THEIRS

    def _look(self) -> None:
        begun_s = self._asked_s = self._clock.monotonic_s()
        try:
            found, version = self._read()
        except (HomeAwayError, ApiException) as error:
            if not self._away:
                log.warning("drivers cannot be looked at: %s", error)
            self._away = True
            self._asked_s = begun_s - RESYNC_S + _PAUSE_S
            return
        self._away = False
        self._since = version
        self._watch()
        if self._clock.monotonic_s() - begun_s > STALE_S:
            self._changed.set()
            return
        self.outlook = judge(found.values(), *self._who)

    def _read(self) -> tuple[dict[str, Mapping[str, Any]], str]:
        """Drivers as of one moment. Others may give as many pods these labels as they like."""
        topology, uid, _ = self._who
        drivers: dict[str, Mapping[str, Any]] = {}
        query = {**self._query, "limit": str(_PAGE)}
        while True:
            page = self._api.call("GET", self._path, query=query)
            for _, pod in _drivers(page["items"], topology, uid):
                drivers[pod["metadata"]["name"]] = pod
            rest = page["metadata"].get("continue")
            if not rest:
                return drivers, page["metadata"]["resourceVersion"]
            query["continue"] = rest

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """A hint only: whatever it says, or says nothing, pods are read again."""
        while True:
            lasting = {"watch": "1", "resourceVersion": self._since}
            query = {**self._query, **lasting, "timeoutSeconds": f"{_WATCH_S}"}
            try:
                for _ in self._api.lines(self._path, query, _WATCH_S + 10.0):
                    self._changed.set()
            except Exception as error:  # noqa: BLE001
                # The boundary of a thread: pods are read every few seconds without it.
                log.debug("watch: %s", error_text(error))
            self._changed.set()
            threading.Event().wait(_PAUSE_S)
