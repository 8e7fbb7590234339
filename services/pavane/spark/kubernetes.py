"""A Spark session whose executors are pods that Spark's own scheduler makes and replaces (docs/specs/compute.md 17)."""

import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pavane.dataflow.ports import EngineError
from pavane.spark.engine import started
from pavane.spark.faults import said
from pavane.spark.session import prepare

DRIVER_PORT = 7078
BLOCKS_PORT = 7079
"""Of driver and executors: what they send each other beside calls."""
CONTAINER = "executor"
DRIVER_LABEL = "pavane.dev/driver"
"""On the executors: the pod that they work for."""
FAILURES_IN = "10m"
"""Spark gives up when more executors than twice their number are lost in this time; by default it adds up for ever."""
SMALL_BYTES = 64 * 1024
"""The driver evaluates what is smaller at once: a job on executors takes a tenth of a second, however small it is."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The pod that we are in, and where its API server is."""

    name: str
    namespace: str
    address: str
    api_server: str
    """`host:port`."""


@dataclass(frozen=True, slots=True)
class Executors:
    """How many there are, what each one has, and their pod template."""

    instances: int
    cores: int
    memory_mib: int
    template: Mapping[str, Any]


def start(driver: Driver, executors: Executors) -> SparkSession:
    """Start a session whose executors end with the pod. Raises `EngineError`, NoJavaError."""
    prepare()
    os.environ["SPARK_LOCAL_IP"] = driver.address  # else Spark asks what its host name resolves to
    made = SparkSession.builder.master(f"k8s://https://{driver.api_server}").appName("pavane sql")
    session = started(made.config(map=settings(driver, executors, _written(driver, executors))))
    try:
        _forget_former(session, driver)
    except Py4JError as error:
        what = said(error)
        session.stop()
        raise EngineError(f"Spark's executors of a former run cannot be deleted: {what}") from error
    return session


def settings(driver: Driver, executors: Executors, template: Path) -> dict[str, str]:
    """Return Spark's settings for these executors."""
    (container,) = (each for each in executors.template["spec"]["containers"] if each["name"] == CONTAINER)
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": driver.address,
        "spark.driver.bindAddress": driver.address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.blockManager.port": str(BLOCKS_PORT),
        "spark.port.maxRetries": "0",  # the network policy knows no other ports
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": f"{executors.memory_mib}m",
        "spark.executor.failuresValidityInterval": FAILURES_IN,
        "spark.sql.shuffle.partitions": str(executors.instances * executors.cores),
        "spark.sql.execution.arrow.localRelationThreshold": str(SMALL_BYTES),
        "spark.kubernetes.namespace": driver.namespace,
        "spark.kubernetes.driver.pod.name": driver.name,  # owner of the executors
        "spark.kubernetes.container.image": container["image"],
        "spark.kubernetes.container.image.pullPolicy": container["imagePullPolicy"],
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": CONTAINER,
        # A driver that starts again in its pod must not ask for names that dead executors still have.
        "spark.kubernetes.executor.podNamePrefix": f"{driver.name}-{secrets.token_hex(3)}",
        # So the pod's account needs rights on pods alone.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }


def _written(driver: Driver, executors: Executors) -> Path:
    """Return the file with the template of the executors of this driver."""
    metadata = executors.template["metadata"]
    labels = {**metadata["labels"], DRIVER_LABEL: driver.name}
    body = {"apiVersion": "v1", "kind": "Pod", **executors.template, "metadata": {**metadata, "labels": labels}}
    path = Path(tempfile.gettempdir(), "executor.yaml")
    path.write_text(json.dumps(body), encoding="utf-8")  # JSON is YAML
    return path


def _forget_former(session: SparkSession, driver: Driver) -> None:
    """Delete the executors of former sessions of this pod: nobody else does while the pod is there."""
    context = session.sparkContext
    assert context._jvm is not None  # noqa: S101 - a session that runs has one
    client = context._jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        mine = client.pods().inNamespace(driver.namespace).withLabel(DRIVER_LABEL, driver.name)
        mine.withoutLabel("spark-app-selector", context.applicationId).delete()
    finally:
        client.close()
