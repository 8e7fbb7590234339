"""Tools that only some tests need (README, "make test" needs none of them)."""

import os
import shutil

import pytest

INSTALL = {
    "kubectl": "install kubectl 1.27 or newer (https://kubernetes.io/docs/tasks/tools/)",
    "node": "install Node.js 20 or newer (https://nodejs.org)",
    "go": "install Go 1.22 or newer (https://go.dev/dl/)",
    "docker": "install a container engine such as Docker",
    "chromium": "install Chromium",
}


def requires(tool: str) -> str:
    """Return the path of a program, or skip the test (or module); fail if `PAVANE_REQUIRE` names the tool."""
    found = shutil.which(tool)
    if found:
        return found
    text = f"{tool} is missing: {INSTALL[tool]}"
    if tool in os.environ.get("PAVANE_REQUIRE", "").split(","):
        pytest.fail(text, pytrace=False)
    pytest.skip(text, allow_module_level=True)
