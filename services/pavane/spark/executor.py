"""`python -m pavane.spark.executor`: an executor in a pod that Spark's scheduler made (docs/specs/compute.md 17).

What the entry point of Spark's own image does, with the jars of the wheel: so driver and executors have one image.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from pavane.spark.session import java, prepare

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTION = "SPARK_JAVA_OPT_"
"""Of a JVM: the variable ends with its place among the others."""
ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(environment: Mapping[str, str], jars: Path) -> list[str]:
    """Return the arguments of `java` for what Spark's scheduler put into the environment of the pod."""
    places = sorted(int(name.removeprefix(OPTION)) for name in environment if name.startswith(OPTION))
    options = [environment[f"{OPTION}{place}"] for place in places]
    given = [part for option, name in ARGUMENTS.items() for part in (option, environment[name])]
    return [*options, f"-Xmx{environment['SPARK_EXECUTOR_MEMORY']}", "-cp", f"{jars}/*", BACKEND, *given]


def run() -> None:
    """Become the executor."""
    prepare()
    # Else Spark asks what its host name resolves to, which a pod does not have to know.
    os.environ["SPARK_LOCAL_IP"] = os.environ["SPARK_EXECUTOR_POD_IP"]
    program = java()
    arguments = command(os.environ, Path(pyspark.__file__).with_name("jars"))
    os.execv(program, [str(program), *arguments])  # noqa: S606 - the program that Spark would run


if __name__ == "__main__":
    run()
