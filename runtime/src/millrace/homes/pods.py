"""What the pods of a topology are called and given: the operator renders it, the pods read it.

Pure names and numbers; ``docs/pods.md`` says what each of them is for. The images' entry point is
``python -m millrace.pods``, so that a container's ``args`` are one of ``Role``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from millrace.modes import NODE_VARIABLE, SECRETS_VARIABLE

GROUP = "millrace.dev"


class Role(StrEnum):
    """What a pod does: its container's first argument and its label ``ROLE_LABEL``."""

    DRIVER = "driver"
    ACKER = "acker"
    STATE_SERVER = "state-server"
    EXECUTOR = "executor"


# -- labels

TOPOLOGY_LABEL = f"{GROUP}/topology"
ROLE_LABEL = "app.kubernetes.io/component"

PERIODIC_LABEL = f"{GROUP}/periodic"
"""Of the resource of a snapshot that a topology has taken by itself: the topology's uid."""

STANDBY_ANNOTATION = f"{GROUP}/standby"
"""Of a driver's pod that was made to stand by: whether its executors do so too."""

# -- environment variables

POD_NAME = "MILLRACE_POD_NAME"
POD_NAMESPACE = "MILLRACE_POD_NAMESPACE"
POD_IP = "MILLRACE_POD_IP"
NODE = NODE_VARIABLE
TOPOLOGY = "MILLRACE_TOPOLOGY"
UID = "MILLRACE_UID"
LOG_LEVEL = "MILLRACE_LOG_LEVEL"
RUN_NONCE = "MILLRACE_RUN_NONCE"
IMAGE = "MILLRACE_IMAGE"
IMAGE_PULL_POLICY = "MILLRACE_IMAGE_PULL_POLICY"
MAX_MEMORY = "MILLRACE_MAX_MEMORY_BYTES"
SECRETS = SECRETS_VARIABLE

DOWNWARD = {
    POD_NAME: "metadata.name",
    POD_NAMESPACE: "metadata.namespace",
    POD_IP: "status.podIP",
    NODE: "spec.nodeName",
}
"""Variables of every pod that the downward API fills, with their field paths."""

OWN_SERVER_OPTION = "--own-server"
"""Of an acker whose state server is the user's own: ``<name>/<key>`` of the Secret with the
password, or nothing where it takes none."""

# -- mounted files

CONFIG_FOLDER = "/etc/millrace/config"
SECRET_FOLDER = "/etc/millrace/secret"
SECRETS_FOLDER = "/etc/millrace/secrets"
"""Below it, Secrets of sources and sinks: ``<name>/<key>``."""

CODE_FOLDER = "/opt/millrace/code"
WORK_FOLDER = "/var/lib/millrace"
DATA_FOLDER = "/data"
SCRATCH_FOLDER = "/tmp"

TOPOLOGY_KEY = "topology.json"
DRIVER_KEY = "driver.json"
EXECUTOR_KEY = "executor.yaml"

ROOT_KEY = "root"
ACCEPTED_KEY = "accepted"
PASSWORD_KEY = "password"
RUN_KEY = "run-key"
"""Keys of the Secret (``homes.passwords``). A state server or acker finds its own key in a file
that is called ``PASSWORD_KEY``."""

EXECUTOR_CONTAINER = "executor"
"""Name of the container of ``EXECUTOR_KEY`` that Spark fills in."""

# -- ports

HEALTH_PORT = 8081
STATE_PORT = 6379
SPARK_DRIVER_PORT = 7078
SPARK_BLOCKS_PORT = 7079
RESIDENT_PORT = 7080
"""Where a driver listens for the task that small windows run in."""

READY_PATH = "/ready"
LIVE_PATH = "/live"
INCARNATION_PATH = "/incarnation"
METRICS_PATH = "/metrics"

READING_PORT = 8082
"""On the loopback of pods that know a state server of the user's own (``pods.reading``)."""

RECORD_PATH = "/record"
OBJECT_PATH = "/object"
READER = "Bearer"
"""What a reader's password stands behind."""

TAG_HEADER = "Millrace-Tag"
"""Of an answer with a record."""

PART_BYTES = 4 << 20
"""Of an object in one answer at most: neither driver nor acker keeps more in mind for a reader."""

USER_ID = 65532
"""User and group of every container, and the ``fsGroup`` of every pod."""

GRACE_S = {Role.DRIVER: 30, Role.ACKER: 5, Role.STATE_SERVER: 90, Role.EXECUTOR: 5}
"""``terminationGracePeriodSeconds`` by role. Others take over what a state server holds in it."""


# -- names of objects


def view_map(topology: str) -> str:
    """The ConfigMap of the view: written by drivers, read by ackers."""
    return f"{topology}-view"


def inbox_map(topology: str) -> str:
    """The ConfigMap of what is said to the driver: the proposal, and requests."""
    return f"{topology}-inbox"


def journal_map(topology: str) -> str:
    """The ConfigMap of what the driver tells: figures and events."""
    return f"{topology}-journal"


def accepted_map(topology: str) -> str:
    """The ConfigMap of the topology as the operator last accepted it."""
    return f"{topology}-accepted"


def snapshots_map(topology: str) -> str:
    """The ConfigMap of what the operator has to know of snapshots whose resources are gone."""
    return f"{topology}-snapshots"


def secret(topology: str) -> str:
    """The Secret that all pods mount."""
    return f"{topology}-secret"


def password_key(member: str) -> str:
    """The key of the Secret with a member's own password."""
    return f"password-{member}"


def pod_name(topology: str, role: Role, number: int) -> str:
    """Name of a pod of the operator's, and for a driver of the ConfigMap that it mounts;
    executors are named by Spark."""
    part = "state" if role is Role.STATE_SERVER else role.value
    return f"{topology}-{part}-{number}"


def executor_prefix(driver_pod: str) -> str:
    """What the names of a driver's executors begin with; Spark adds ``-exec-<n>``, and takes no
    more than 47 characters."""
    if len(driver_pod) <= _LONGEST_PREFIX:
        return driver_pod
    digest = hashlib.blake2b(driver_pod.encode(), digest_size=4).hexdigest()
    return f"{driver_pod[: _LONGEST_PREFIX - 9].rstrip('-')}-{digest}"


_LONGEST_PREFIX = 47


def state_url(ip: str, port: int = STATE_PORT) -> str:
    """Address of the state server in the pod with this IP."""
    return f"redis://{host_of(ip)}:{port}"


def host_of(ip: str) -> str:
    """An IP as hosts are written in front of a port: one of IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip


# -- what a pod's status says of a driver


def driver_phase(status: Mapping[str, Any]) -> str:
    """The phase of a driver's pod, as if nothing ran in it but the driver: the pod's own phase
    waits for the containers that a mesh has put beside it, and goes by how they end. Of any other
    pod its own."""
    code = driver_exit_code(status)
    if code is None:
        return str(status.get("phase", "Pending"))
    return "Succeeded" if code == 0 else "Failed"


def driver_exit_code(status: Mapping[str, Any]) -> int | None:
    """What the driver of a pod with this status ended with; None where it is not known to have
    ended."""
    for container in status.get("containerStatuses") or []:
        if container.get("name") == Role.DRIVER.value:
            ended = container.get("state", {}).get("terminated") or {}
            code: int | None = ended.get("exitCode")
            return code
    return None


# -- keys inside the ConfigMaps

VIEW_VERSION = "version"
VIEW = "view"
WRITTEN_BY = "writtenBy"
"""A word of the write, behind the name of the writer's pod and a full stop."""

RESTORING = "restoring"
"""Beside the view: the restore that has begun and is not done."""

LOSSES = "losses"
"""Beside the view: from which timeline on restores of lost state count against the next one."""

TIMELINES = "timelines"
"""Beside the view: which restore began each timeline."""

PROPOSAL = "proposal"
NODES = "proposal-nodes"
TUNING = "proposal-tuning"
"""Beside the proposal: on which nodes its members are."""

REQUEST_PREFIX = "request."
STATUS = "status"
EVENTS = "events"
