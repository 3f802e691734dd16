"""Spark on Kubernetes as a driver pod needs it: client mode, executors as pods of its own.

Executors are made from ``executor.yaml`` and belong to the driver pod, so that they go with it.
They share no folder with it. What they prove to the driver, and the driver to them, is made of a
Secret that all pods of the topology mount and of a nonce of this driver.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from millrace.engine.program.link import LISTENS, Place
from millrace.engine.program.signing import SECRET_VARIABLE
from millrace.homes import pods
from millrace.pods.identity import Identity, derived, required, write_private
from millrace.topology.model import Executors
from millrace.topology.pods import CPU, MEMORY, Resources
from millrace.topology.scalars import memory_bytes, quantity_bytes

_MOST = (1 << 31) - 1
"""The highest number that Spark can count to."""

SPARK_SECRET = "spark-secret"
"""File of the scratch folder with what Spark's processes prove to know."""


def share_secrets(secret: Path, scratch: Path, nonce: str) -> None:
    """Let this process and those below it know the secrets of the run. Raises ``PodError``."""
    os.environ[SECRET_VARIABLE] = derived(secret, nonce, "run").hex()
    write_private(scratch / SPARK_SECRET, derived(secret, nonce, "spark").hex().encode())


def new_nonce() -> str:
    """Of one life of a driver; no secret by itself."""
    return secrets.token_hex(16)


def cluster_conf(
    identity: Identity,
    environment: Mapping[str, str],
    template: Path,
    scratch: Path,
    nonce: str,
) -> dict[str, str]:
    """Spark's settings for executors in pods. Raises ``PodError``."""
    host = pods.host_of(required(environment, "KUBERNETES_SERVICE_HOST"))
    port = required(environment, "KUBERNETES_SERVICE_PORT")
    kubernetes = {
        "namespace": identity.namespace,
        "driver.pod.name": identity.pod,
        "executor.podNamePrefix": pods.executor_prefix(identity.pod),
        "executor.podTemplateFile": str(template),
        "executor.podTemplateContainerName": pods.EXECUTOR_CONTAINER,
        # Spark writes its own 30 s over what stands in the template.
        "executor.terminationGracePeriodSeconds": f"{pods.GRACE_S[pods.Role.EXECUTOR]}s",
        "container.image": required(environment, pods.IMAGE),
        "container.image.pullPolicy": environment.get(pods.IMAGE_PULL_POLICY) or "IfNotPresent",
        # Each of these would need rights to objects that nothing here uses.
        "executor.disableConfigMap": "true",
        "driver.ownPersistentVolumeClaim": "false",
        "driver.reusePersistentVolumeClaim": "false",
        "driver.service.deleteOnTermination": "false",
    }
    return {
        "spark.master": f"k8s://https://{host}:{port}",
        "spark.submit.deployMode": "client",
        "spark.driver.host": pods.host_of(identity.ip),
        "spark.driver.bindAddress": identity.ip,
        LISTENS: Place(identity.ip, pods.RESIDENT_PORT).told,
        "spark.driver.port": str(pods.SPARK_DRIVER_PORT),
        "spark.driver.blockManager.port": str(pods.SPARK_BLOCKS_PORT),
        "spark.blockManager.port": str(pods.SPARK_BLOCKS_PORT),
        "spark.authenticate.secret.file": str(scratch / SPARK_SECRET),
        f"spark.executorEnv.{pods.RUN_NONCE}": nonce,
        # Else Spark ends the driver's JVM once two pods for each executor, in all of its life, have
        # failed or were refused.
        "spark.executor.maxNumFailures": str(_MOST),
        # Beside the JVM each core has a Python worker.
        "spark.executor.memoryOverheadFactor": "0.4",
        **{f"spark.kubernetes.{key}": value for key, value in kubernetes.items()},
    }


def executor_size(executors: Executors, resources: Resources) -> dict[str, str]:
    """Settings for what the topology says of an executor's CPU and memory: Spark writes these two
    itself, whatever stands in the pod that it is given."""
    requests, limits = resources.over(str(executors.cores), "")
    found = {"spark.kubernetes.executor.request.cores": requests[CPU]}
    if CPU in limits:
        found["spark.kubernetes.executor.limit.cores"] = limits[CPU]
    if limits[MEMORY]:
        # Spark adds the two up again, in whole mebibytes.
        beside = quantity_bytes(limits[MEMORY]) - memory_bytes(executors.memory)
        found["spark.executor.memoryOverhead"] = f"{max(1, beside >> 20)}m"
    return found
