"""The image itself: what it says about itself, and that it needs nothing which a strict cluster takes away."""

import json
import os
import subprocess
from importlib.metadata import version
from typing import Any

import pytest

from e2e import targets
from e2e.targets import Capability

pytestmark = pytest.mark.needs(Capability.CONTAINERS)

SIZE_MAX_MB = 550
"""Of the image with everything: 489 MB, of which DuckDB and PyArrow take 230. More would be a stowaway."""
SPARK_SIZE_MAX_MB = 920
"""Of the image with Spark: 857 MB; with all of pyspark it would be 1,106."""
STRICT = ("--read-only", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
UID_OF_NOBODY_ELSE = "4242:4242"


def image() -> str:
    return os.environ["E2E_IMAGE"]


def engine(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *arguments], check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def inspected() -> dict[str, Any]:
    (document,) = json.loads(engine("image", "inspect", image()).stdout)
    return dict(document)


def test_it_tells_what_it_is_and_asks_for_no_right(inspected: dict[str, Any]) -> None:
    config = inspected["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["pavane"]
    assert not config.get("Healthcheck"), "the probes of the pods are what counts"
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] == version("pavane")
    most = SPARK_SIZE_MAX_MB if Capability.SPARK in targets.capabilities() else SIZE_MAX_MB
    assert inspected["Size"] < most * 10**6


@pytest.mark.parametrize("user", ["10001:10001", UID_OF_NOBODY_ELSE])
def test_it_runs_without_a_shell_rights_and_places_to_write(user: str) -> None:
    shown = engine("run", "--rm", *STRICT, "--user", user, image(), "--help")
    assert shown.returncode == 0, shown.stderr
    # As far as a process comes that finds no cluster: every import of the operator is behind it.
    operator = engine("run", "--rm", *STRICT, "--user", user, image(), "operator")
    assert "cannot use the cluster configuration" in operator.stdout + operator.stderr


SUM = """
import pyarrow
from pavane.spark.engine import SparkEngine
engine = SparkEngine()
print(engine.evaluate("SELECT sum(n) AS n FROM numbers", {"numbers": pyarrow.table({"n": [40, 2]})}).to_pylist())
engine.close()
"""


@pytest.mark.needs(Capability.SPARK)
def test_spark_evaluates_in_it_with_no_more_rights() -> None:
    strict = (*STRICT, "--tmpfs", "/tmp:exec")  # noqa: S108 - in the container
    done = engine("run", "--rm", *strict, "--entrypoint", "python", image(), "-c", SUM)
    assert done.stdout == "[{'n': 42}]\n", done.stderr
