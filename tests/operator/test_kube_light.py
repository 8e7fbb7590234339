"""The transport that starts quickly: what it understands of a kubeconfig, and what it leaves to the library."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

import pavane
from pavane_operator.kube import KubeClient, KubeError, Target
from pavane_operator.kube.light import light
from pavane_operator.kube.resources import NAMESPACES
from tests.local.api_server import a_server
from tests.operator.test_kube_faults import response
from tests.services.cutting import cuttable
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate

HOST = "localhost"
AUTHORITY, STRANGER = authority(), authority()


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = folder / "kubeconfig"
    named = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "orders"}}],
    }
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
    return path


@asynccontextmanager
async def a_server_that_asks_for_certificates(folder: Path, heard: asyncio.Event | None = None) -> AsyncIterator[str]:
    """With ``heard``, which is set by a request, it answers none."""
    shown = certificate(AUTHORITY, HOST)
    (folder / "server.pem").write_bytes(shown.certificate + shown.key)
    (folder / "ca.pem").write_bytes(AUTHORITY.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        if heard is not None:
            heard.set()
            await reader.read()
        writer.write(response(200, b'{"path": "%s"}' % path.encode()))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    async with server:
        yield f"https://{HOST}:{server.sockets[0].getsockname()[1]}/prefix/"


@pytest.mark.parametrize("as_data", [True, False], ids=["data", "files"])
async def test_a_client_certificate_is_shown(tmp_path: Path, as_data: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_server_that_asks_for_certificates(tmp_path) as url:
        own = certificate(AUTHORITY, "user")
        given = {"client-certificate": own.certificate, "client-key": own.key}
        user, cluster = {}, {"server": url, "certificate-authority": "ca.pem"}
        for key, pem in given.items():
            if as_data:
                user[f"{key}-data"] = base64.b64encode(pem).decode()
            else:
                (tmp_path / key).write_bytes(pem)
                user[key] = key
        target = Target(kubeconfig(tmp_path, cluster, user))
        assert light(target) is not None
        async with await KubeClient.connect(target, brief=True) as kube:
            assert await kube.raw("GET", "/version") == {"path": "/prefix/version"}
        # An application that connects shows the same: it is let in, and finds a cluster without status.
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        with pytest.raises(pavane.CannotConnect, match=r"^Quorum: q serves nobody yet"):
            await pavane.connect("q")


async def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    async with a_server_that_asks_for_certificates(tmp_path) as url:
        trusted = base64.b64encode(STRANGER.certificate).decode()
        target = Target(kubeconfig(tmp_path, {"server": url, "certificate-authority-data": trusted}, {"token": "t"}))
        assert light(target) is not None
        async with await KubeClient.connect(target, brief=True) as kube:
            with pytest.raises(KubeError, match="CERTIFICATE_VERIFY_FAILED"):
                await kube.raw("GET", "/version")


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"exec": {"command": "log-in"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"username": "u", "password": "p"}),
        ({}, {"tokenFile": "token"}),
        ({}, {"token": "t", "as": "somebody"}),
        ({}, {"token": "with a line's end\n"}),
        ({}, {"client-certificate": "absent.pem"}),
        ({"proxy-url": "http://proxy:3128"}, {"token": "t"}),
        ({"tls-server-name": "other"}, {"token": "t"}),
        ({"server": "unix:///run/kube"}, {"token": "t"}),
    ],
)
def test_what_it_does_not_understand_is_left_to_the_library(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    assert light(Target(kubeconfig(tmp_path, {"server": "https://127.0.0.1:6443"}, {"token": "t"}))) is not None
    assert light(Target(kubeconfig(tmp_path, {"server": "https://127.0.0.1:6443", **cluster}, user))) is None


def test_a_proxy_of_the_environment_is_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    target = Target(kubeconfig(tmp_path, {"server": "https://elsewhere:6443"}, {"token": "t"}))
    assert light(target) is not None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert light(target) is None


async def test_a_program_that_logs_in_is_run(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server:
        config = yaml.safe_load(server.api.kubeconfig.read_text())
        config["users"][0]["user"] = {"exec": log_in(tmp_path, config["users"][0]["user"]["token"])}
        server.api.kubeconfig.write_text(yaml.safe_dump(config))
        async with await KubeClient.connect(Target(server.api.kubeconfig), brief=True) as kube:
            assert (await kube.get(NAMESPACES, "default"))["metadata"]["name"] == "default"


def log_in(folder: Path, token: str) -> dict[str, Any]:
    """A program that prints a credential, as a kubeconfig names it."""
    version = "client.authentication.k8s.io/v1"
    program = folder / "log-in"
    credential = f'{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{"token": "{token}"}}}}'
    program.write_text(f"#!/bin/sh\necho '{credential}'\n")
    program.chmod(0o700)
    return {"apiVersion": version, "command": str(program), "interactiveMode": "Never"}


@pytest.mark.parametrize("brief", [True, False], ids=["light", "library"])
async def test_a_call_that_was_given_up_leaves_no_connection_to_a_silent_server(tmp_path: Path, brief: bool) -> None:
    heard = asyncio.Event()
    async with a_server_that_asks_for_certificates(tmp_path, heard) as url:
        own = certificate(AUTHORITY, "user")
        user = {
            "client-certificate-data": base64.b64encode(own.certificate).decode(),
            "client-key-data": base64.b64encode(own.key).decode(),
        }
        async with cuttable(urlsplit(url).port or 0) as way:
            near = {"server": f"https://{HOST}:{way.port}", "certificate-authority": "ca.pem"}
            target = Target(kubeconfig(tmp_path, near, user))
            async with await KubeClient.connect(target, brief=brief) as kube:
                asked = asyncio.create_task(kube.raw("GET", "/version"))
                await heard.wait()
                way.silence()
                asked.cancel()
                await asyncio.wait([asked])
                await eventually(lambda: way.left == 1)
