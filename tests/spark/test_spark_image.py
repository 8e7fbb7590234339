"""What the Dockerfile leaves out of Spark (target `spark`), views do without."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark

from pavane.spark.executor import BACKEND

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
LEFT_OUT = re.compile(r"cd /opt/spark/pyspark/jars\W+rm -r (?P<jars>[^&]+?)[\\\s]+&& rm -r (?P<others>[^&]+?)[\\\s]+&&")
JOB = f"""
import pyarrow as pa
import pyspark
from pavane.spark.engine import SparkEngine
engine = SparkEngine()
orders = pa.table({{"customer": ["ann", "bob", "ann"] * 10_000, "cents": [2, 3, 5] * 10_000}})
cities = pa.table({{"name": ["ann"], "city": ["Rom"]}})
sql = '''
  SELECT upper(o.customer) AS who, max(c.city) AS city, sum(cents) AS total, count(DISTINCT cents) AS n
  FROM orders o LEFT JOIN cities c ON o.customer = c.name WHERE o.customer LIKE '%n%' OR year(DATE '2026-01-31') = 2026
  GROUP BY 1 ORDER BY who
'''
print(engine.evaluate(sql, {{"orders": orders, "cities": cities}}).to_pylist())
java = engine._session.sparkContext._jvm.java.lang.Class
for name in ("org.apache.spark.scheduler.cluster.k8s.KubernetesClusterManager", "{BACKEND}"):
    java.forName(name)
engine.close()
print(pyspark.__file__)
"""


def without(left_out: re.Match[str], folder: Path) -> Path:
    """Return a folder with a package `pyspark` that lacks this."""
    spark = folder / "pyspark"
    subprocess.run(["cp", "-rs", Path(pyspark.__file__).parent, spark], check=True)
    for words in left_out.groupdict().values():
        command = ["sh", "-ec", f"cd {spark / 'jars'} && rm -r {words}".replace("\\\n", "")]
        subprocess.run(command, check=True)  # fails for what is not there
    return spark


def test_views_do_without_what_the_image_leaves_out(tmp_path: Path) -> None:
    left_out = LEFT_OUT.search(DOCKERFILE.read_text(encoding="utf-8"))
    assert left_out is not None
    spark = without(left_out, tmp_path)
    job = subprocess.run(
        [sys.executable, "-c", JOB],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SPARK_HOME": str(spark)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-2000:]
    assert job.stdout.splitlines() == [
        "[{'who': 'ANN', 'city': 'Rom', 'total': 70000, 'n': 2}, {'who': 'BOB', 'city': None, 'total': 30000, 'n': 1}]",
        str(spark / "__init__.py"),
    ]
