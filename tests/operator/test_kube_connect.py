"""Where the API server is for a pod: its service account, whose token changes while the process runs."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes.aio.config import incluster_config

from pavane_operator.kube import ConnectError, Target
from pavane_operator.kube.library import Credentials, load

HALF_AN_HOUR = datetime.timedelta(minutes=30)


class Clock(datetime.datetime):
    """The library's clock, set forward by the test."""

    ahead = datetime.timedelta()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
        return super().now(tz) + cls.ahead


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's service account, as the kubelet fills it."""
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("an authority")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    clock = SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta)
    monkeypatch.setattr(incluster_config, "datetime", clock)
    monkeypatch.setattr(Clock, "ahead", datetime.timedelta())
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


async def test_a_pod_finds_its_account_and_reads_its_token_again(account: Path) -> None:
    credentials = Credentials(await load(Target()))
    assert credentials.server == "https://[fd00::1]:443"
    assert credentials.ca_path == str(account / "ca.crt")
    assert not credentials.insecure
    assert (await credentials.authorization() or "").lower() == "bearer first"
    (account / "token").write_text("second")
    Clock.ahead = HALF_AN_HOUR
    assert (await credentials.authorization() or "").lower() == "bearer second"


async def test_a_kubeconfig_counts_before_the_account(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = account / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(named))
    with pytest.raises(ConnectError, match="there is no kubeconfig at"):
        await load(Target())
    named.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: {server: 'https://elsewhere:6443'}}], users: [{name: u, user: {token: t}}]}"
    )
    assert Credentials(await load(Target())).server == "https://elsewhere:6443"


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://elsewhere:6443", "http://proxy:3128"),
        ("https://within.example:6443", None),
        ("https://127.0.0.1:6443", None),
        ("https://localhost:6443", None),
    ],
)
async def test_the_proxy_of_the_environment_is_for_servers_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", ".example")
    named = tmp_path / "kubeconfig"
    named.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{server: '{server}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )
    assert (await load(Target(named))).proxy == proxy


async def test_an_account_without_a_token_is_told_in_words(account: Path) -> None:
    (account / "token").unlink()
    with pytest.raises(ConnectError, match="token file does not exist"):
        await load(Target())
