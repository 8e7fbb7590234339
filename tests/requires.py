"""Tools that only some tests need (README, "make test" needs none of them)."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from e2e.kubernetes import tools

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
BUILT = "install Go 1.26 or newer (https://go.dev/dl/) and run `make e2e-tools`, or name a folder of such programs in "
INSTALL = {
    "kubectl": "install kubectl 1.27 or newer (https://kubernetes.io/docs/tasks/tools/)",
    "node": "install Node.js 20 or newer (https://nodejs.org)",
    "go": "install Go 1.26 or newer (https://go.dev/dl/)",
    "docker": "install a container engine such as Docker",
    "chromium": "install Chromium",
    "nft": "install nftables (apt-get install --no-install-recommends nftables)",
    **{name: "install iproute2 (apt-get install --no-install-recommends iproute2)" for name in ("ip", "ss")},
    "zookeeper": "install ZooKeeper as Debian packages it (apt-get install --no-install-recommends zookeeper)",
    **{name: f"{BUILT}PAVANE_ENVTEST_ASSETS" for name in ("kube-apiserver", "etcd", "kube-controller-manager")},
    **{name: f"{BUILT}PAVANE_ENVTEST_ASSETS" for name in ("kube-scheduler", "helm", "kind", "versitygw")},
}


def requires(tool: str) -> str:
    """Return the path of a program, or skip the test (or module); fail if `PAVANE_REQUIRE` names the tool."""
    if tool == "go":
        found: Path | str | None = tools.go()
    elif tool == "zookeeper":
        found = ZOOKEEPER_JAR if shutil.which("java") and ZOOKEEPER_JAR.exists() else None
    else:
        found = tools.find(tool) if tool in tools.PROGRAMS else shutil.which(tool)
    if found:
        return str(found)
    refused(tool, f"{tool} is missing: {INSTALL[tool]}")


def refused(tool: str, text: str) -> NoReturn:
    """Skip the test (or module) with ``text``; fail if `PAVANE_REQUIRE` names the tool."""
    if tool in os.environ.get("PAVANE_REQUIRE", "").split(","):
        pytest.fail(text, pytrace=False)
    pytest.skip(text, allow_module_level=True)
