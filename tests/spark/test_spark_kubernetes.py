"""What Spark is told about its executors, and how one starts (docs/specs/compute.md 17)."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from pavane.pods.compute_settings import ComputeSettings
from pavane.spark.executor import BACKEND, command
from pavane.spark.kubernetes import Driver, Executors, settings
from pavane_operator.kinds.computecluster import executors as rendered

CONTAINER = {"name": "executor", "image": "mine:1", "imagePullPolicy": "Always"}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": {}}, "spec": {"containers": [CONTAINER]}}
DRIVER = Driver("main-controller-g1-0", "data", "10.0.0.7", "10.96.0.1:443")
GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "e-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    **{f"SPARK_JAVA_OPT_{place}": f"-Da={place}" for place in range(11)},
}


def test_settings_name_the_ports_that_the_network_policy_opens() -> None:
    found = settings(DRIVER, Executors(3, 2, 512, TEMPLATE), Path("/tmp/t"))  # noqa: S108 - never opened
    assert found["spark.driver.port"] == str(rendered.DRIVER.number)
    blocks = {found[f"spark.{whose}blockManager.port"] for whose in ("", "driver.")}
    assert blocks == {str(rendered.BLOCKS.number)}


def test_a_driver_that_starts_again_asks_for_other_names() -> None:
    names = [
        settings(DRIVER, Executors(3, 2, 512, TEMPLATE), Path())["spark.kubernetes.executor.podNamePrefix"]
        for _ in range(2)
    ]
    assert names[0] != names[1]


def test_an_executor_is_started_with_what_its_pod_was_given() -> None:
    words = command(GIVEN, Path("/jars"))
    options, given = words[: words.index(BACKEND)], words[words.index(BACKEND) + 1 :]
    assert options == [*(f"-Da={place}" for place in range(11)), "-Xmx512m", "-cp", "/jars/*"]
    assert dict(zip(given[::2], given[1::2], strict=True))["--driver-url"] == GIVEN["SPARK_DRIVER_URL"]


def test_the_api_server_is_where_the_cluster_says() -> None:
    for host, told in {"10.96.0.1": "10.96.0.1:6443", "fd00::1": "[fd00::1]:6443", "": ""}.items():
        found = ComputeSettings.model_construct(kubernetes_host=host, kubernetes_port=6443)
        assert found.api_server == told


JOB = """
from pavane.dataflow.ports import EngineError
from pavane.spark.kubernetes import Driver, Executors, start
template = {"metadata": {"labels": {}}, "spec": {"containers": [
    {"name": "executor", "image": "mine:1", "imagePullPolicy": "Always"}
]}}
try:
    start(Driver("main-controller-g1-0", "data", "127.0.0.1", "127.0.0.1:1"), Executors(1, 1, 512, template))
except EngineError as error:
    print(error)
"""


def test_an_api_server_that_does_not_answer_is_a_failure_of_the_engine_which_starts_again() -> None:
    words = [sys.executable, "-c", JOB]
    job = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert job.stdout.startswith("Spark did not start: "), job.stderr[-2000:]
    assert "External scheduler cannot be instantiated" in job.stdout
