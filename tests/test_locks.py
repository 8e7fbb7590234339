"""The lock files belong to pyproject.toml, hold hashes, and name no index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {"dev": ("local", "otel"), "image": ("local", "otel"), "spark": ("local", "otel", "spark")}
"""Lock file → the extras in it. A group of the name is in it too, if there is one."""
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)")


def pins(lock: str) -> dict[str, str]:
    """Name → version, of packages whose lines end with hashes."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    assert "://" not in text
    found: dict[str, str] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        match = PIN.match(entry)
        assert match is not None, entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}( |$)", entry), entry
        found[canonicalize_name(match["name"])] = match["version"]
    return found


def wanted(extras: tuple[str, ...], group: str) -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that extras name."""
    project = PROJECT["project"]
    texts = [*project["dependencies"], *PROJECT["dependency-groups"].get(group, ())]
    waiting, seen = list(extras), set[str]()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "pavane":
                waiting += requirement.extras
            else:
                texts.append(text)
    return list(map(Requirement, texts))


@pytest.mark.parametrize(("lock", "extras"), LOCKS.items())
def test_a_lock_holds_what_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    held = pins(lock)
    for requirement in wanted(extras, lock):
        version = held.get(canonicalize_name(requirement.name))
        assert version is not None, f"run make lock: {requirement} is not in it"
        assert requirement.specifier.contains(version, prereleases=True), f"run make lock: {requirement}, not {version}"


def test_the_installer_is_locked_too() -> None:
    (wanted,) = map(Requirement, PROJECT["dependency-groups"]["lock"])
    assert wanted.specifier.contains(pins("uv")["uv"])


def test_what_is_tested_is_what_the_image_installs() -> None:
    tested = pins("dev")
    other = {"watchfiles"}  # of the edit loop alone
    assert {name: version for name, version in pins("image").items() if tested.get(name) != version}.keys() == other


INSTALLS = re.compile(r"(?<!`)\bpip(-\*\.whl\)/pip)? .*(install|download)\b|^\t@?\$\(PIP\)")
BY_HASH = ("$(LOCKED)", "--require-hashes", "--no-index", "--no-deps --no-build-isolation -e .")
ALONE = ("$(PIP) --group fuzz", "build/installed/bin/python")  # for make fuzz, and for make wheel, which measures


@pytest.mark.parametrize(("file", "count"), [("Makefile", 5), ("Dockerfile", 3), (".ci/run", 0)])
def test_set_up_image_and_ci_install_only_what_is_locked(file: str, count: int) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if INSTALLS.search(line) and not line.startswith("PIP :=")]
    free = [line for line in lines if not any(each in line for each in BY_HASH)]
    assert [line for line in free if not any(each in line for each in ALONE)] == []
    assert len(lines) - len(free) == count, lines


def test_the_bill_of_materials_names_what_the_locks_hold(tmp_path: Path) -> None:
    make = ["make", "--silent", "sbom", f"SBOM={tmp_path}", f"VENV={Path(sys.executable).parents[1]}"]
    subprocess.run(make, cwd=ROOT, check=True, timeout=120)
    for file, lock in (("pavane", "image"), ("pavane-spark", "spark")):
        told = json.loads((tmp_path / f"{file}.cdx.json").read_text(encoding="utf-8"))
        whole = told["metadata"]["component"]
        assert (whole["name"], whole["version"]) == ("pavane", PROJECT["project"]["version"])
        assert {canonicalize_name(each["name"]): each["version"] for each in told["components"]} == pins(lock)
        assert all(each["purl"].startswith("pkg:pypi/") for each in told["components"])
        places = [place for each in told["components"] for place in each["externalReferences"]]
        assert all(place["hashes"][0]["alg"] == "SHA-256" for place in places)
