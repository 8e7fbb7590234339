"""Where the API server is and who we are there: kubeconfig, context, service account or a caller's token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

KUBECONFIG_DEFAULT = Path("~/.kube/config")


class ConnectError(Exception):
    """No API server can be derived from the kubeconfig, the context or the environment; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the user said about the cluster. All empty = `KUBECONFIG`, else the pod's service account, else
    `~/.kube/config`, as kubectl does.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    token: str | None = None
    """A bearer token used instead of the kubeconfig's credentials."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The same for a program that makes its own connections."""

    configuration: Configuration

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self.configuration.host)

    @property
    def ca_path(self) -> str | None:
        """File with the certificates that the server's is checked against; None = the system's."""
        path: str | None = self.configuration.ssl_ca_cert
        return path

    @property
    def insecure(self) -> bool:
        """Whether the kubeconfig says not to check the server's certificate."""
        return not self.configuration.verify_ssl

    @property
    def certificate_path(self) -> str | None:
        """File with our own certificate, if we have one."""
        path: str | None = self.configuration.cert_file
        return path

    @property
    def private_key_path(self) -> str | None:
        """File with the key of our own certificate."""
        path: str | None = self.configuration.key_file
        return path

    async def authorization(self) -> str | None:
        """Value of the header `Authorization` now; tokens of service accounts are renewed."""
        value: str | None = await self.configuration.get_api_key_with_prefix("BearerToken")
        return value


async def load(target: Target) -> Configuration:
    """Configuration of the client library for `target`; touches no global state.

    Raises ConnectError.
    """
    configuration = Configuration()
    try:
        await _fill(configuration, target)
    except (ConfigException, OSError) as error:
        raise ConnectError(
            f"cannot use the cluster configuration: {error}. "
            "Pass --kubeconfig and --context, set KUBECONFIG, or start a local cluster with `pavane up`."
        ) from error
    if target.token is not None:
        configuration.api_key = {"BearerToken": f"Bearer {target.token}"}
        configuration.refresh_api_key_hook = None
        configuration.cert_file = configuration.key_file = None
    # The proxy of the environment is read once: aiohttp would read it, and ~/.netrc, in a thread for every call.
    configuration.client_session_kwargs = {"trust_env": False}
    if configuration.proxy is None:
        configuration.proxy = _proxy_of_environment(configuration.host)
    # Watches hold a connection each for as long as they live, so a pool of a fixed size would starve the calls;
    # those are bounded by the client (CALLS_OPEN_MAX).
    configuration.connection_pool_maxsize = 0
    return configuration


async def _fill(configuration: Configuration, target: Target) -> None:
    kubeconfig = _kubeconfig(target)
    if kubeconfig is None:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(kubeconfig, target.context, configuration, persist_config=False)  # type: ignore[no-untyped-call]


def _proxy_of_environment(url: str) -> str | None:
    """What `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say about `url`; as for kubectl, this machine needs no proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    here = host in {"localhost", "::1"} or host.startswith("127.")
    return None if here or proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _kubeconfig(target: Target) -> str | None:
    """The kubeconfig to read (KUBECONFIG may name several files), or None for the pod's service account."""
    named = str(target.kubeconfig) if target.kubeconfig is not None else os.environ.get("KUBECONFIG")
    if named:
        if not any(Path(part).expanduser().exists() for part in named.split(os.pathsep) if part):
            raise ConfigException(f"there is no kubeconfig at {named}")
        return named
    if "KUBERNETES_SERVICE_HOST" in os.environ and target.context is None:
        return None
    default = KUBECONFIG_DEFAULT.expanduser()
    if default.exists():
        return str(default)
    raise ConfigException(f"there is no KUBECONFIG, no service account and no {KUBECONFIG_DEFAULT}")
