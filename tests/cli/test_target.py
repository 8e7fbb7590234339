"""What a user is told who cannot reach the control plane yet: what to start, and where a token comes from."""

import re
import socket
from pathlib import Path

import httpx2
import pytest
import yaml

from pavane_cli.failures import ExitCode, UserError
from pavane_cli.plane import RestClient, control_plane
from pavane_cli.target import Where, control_plane_url, explained
from pavane_local.platform import LocalSettings, local_cluster
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.errors import from_status
from pavane_operator.kube.resources import ENDPOINT_SLICES

TOKEN = {"token": "t"}
PAGE = Path(__file__).parents[2] / "docs" / "install.md"


def kubeconfig(folder: Path, **user: str) -> Where:
    """A kubeconfig of a cluster that nobody asks, and its only user."""
    path = folder / "kubeconfig"
    named = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
    return Where(path)


async def told(where: Where, url: str | None = None, token: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        async with control_plane(where, url, token) as rest:
            await rest.get("/namespaces")
    return str(error.value)


async def test_a_user_with_a_certificate_is_told_how_to_make_a_token(tmp_path: Path) -> None:
    where = kubeconfig(tmp_path, **{"client-certificate-data": "", "client-key-data": ""})
    said = await told(where, "http://127.0.0.1:1")
    assert "kubectl create token NAME --audience pavane-api" in said
    assert "PAVANE_API_TOKEN" in said


async def test_a_port_forward_that_ended_is_named_with_its_address(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = await told(kubeconfig(tmp_path, **TOKEN), url)
    assert url in said
    assert "port-forward" in said


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1"])
async def test_an_address_that_is_none_is_an_error_of_the_user(tmp_path: Path, url: str) -> None:
    assert url in await told(kubeconfig(tmp_path, **TOKEN), url)


async def test_a_control_plane_inside_its_cluster_needs_a_port_forward(tmp_path: Path) -> None:
    async with (
        local_cluster(LocalSettings(tmp_path, platform_pods=False)) as local,
        await KubeClient.connect(Target(local.kubeconfig)) as kube,
    ):
        where = Where(local.kubeconfig)
        with pytest.raises(UserError, match="pavane up"):
            await control_plane_url(where)
        endpoint = {"conditions": {"ready": True}}
        slice_ = {
            "metadata": {"name": "other", "labels": {"kubernetes.io/service-name": "pavane-api"}},
            "addressType": "IPv4",
            "endpoints": [{**endpoint, "addresses": ["10.244.1.7"]}],
            "ports": [{"name": "api", "port": 8000}],
        }
        await kube.create(ENDPOINT_SLICES, slice_, "pavane-system")
        with pytest.raises(UserError, match="port-forward service/pavane-api 8000"):
            await control_plane_url(where)
        on_this_machine = {"endpoints": [{**endpoint, "addresses": ["127.64.0.7"]}]}
        await kube.patch(ENDPOINT_SLICES, "other", on_this_machine, "pavane-system", manager="test")
        assert await control_plane_url(where) == "http://127.64.0.7:8000"


def test_the_exit_codes_are_those_of_the_page() -> None:
    told = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(code) for code in told] == list(ExitCode)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExitCode.USAGE),
        (401, ExitCode.REFUSED),
        (403, ExitCode.REFUSED),
        (404, ExitCode.NOT_FOUND),
        (409, ExitCode.REFUSED),
        (410, ExitCode.NOT_FOUND),
        (412, ExitCode.REFUSED),
        (413, ExitCode.USAGE),
        (415, ExitCode.USAGE),
        (422, ExitCode.USAGE),
        (429, ExitCode.TIME_OUT),
        (500, ExitCode.ERROR),
        (503, ExitCode.TIME_OUT),
    ],
)
async def test_an_answer_of_either_server_has_the_exit_code_of_the_page(status: int, code: ExitCode) -> None:
    answers = httpx2.MockTransport(lambda _: httpx2.Response(status, json={"detail": "no"}))
    async with httpx2.AsyncClient(transport=answers, base_url="http://api") as http:
        with pytest.raises(UserError, match="no") as failed:
            await RestClient(http).get("/x")
    assert failed.value.code is code
    if status not in {412, 413, 415}:  # those of the control plane alone
        with pytest.raises(UserError) as failed, explained():
            raise from_status(status, {"message": "no"}, {})
        assert failed.value.code is (ExitCode.ERROR if status == 400 else code)
