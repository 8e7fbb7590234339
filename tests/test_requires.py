"""A missing tool skips a test with one line, or fails it where the tool is demanded."""

import pytest

from e2e.kubernetes import tools
from tests.requires import INSTALL, requires


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tools, "GO_FOLDER", "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")
    monkeypatch.delenv("PAVANE_ENVTEST_ASSETS", raising=False)
    monkeypatch.delenv("PAVANE_REQUIRE", raising=False)


@pytest.mark.parametrize("tool", INSTALL)
def test_a_missing_tool_skips_and_says_what_to_install(tool: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{tool} is missing: install"):
        requires(tool)


def test_a_demanded_tool_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAVANE_REQUIRE", "node,kubectl")
    with pytest.raises(pytest.fail.Exception, match="kubectl is missing"):
        requires("kubectl")
    with pytest.raises(pytest.skip.Exception):
        requires("go")
