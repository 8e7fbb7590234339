"""The API server that a program talks to, as options, `KUBECONFIG`, the pod and the environment name it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KUBECONFIG_DEFAULT = Path("~/.kube/config")


class ConnectError(Exception):
    """No API server can be derived from the kubeconfig, the context or the environment; the message says what to do."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            f"cannot use the cluster configuration: {reason}. "
            "Pass --kubeconfig and --context, set KUBECONFIG, or start a local cluster with `pavane up`."
        )


@dataclass(frozen=True, slots=True)
class Target:
    """What the user said about the cluster. All empty = `KUBECONFIG`, else the pod's service account, else
    `~/.kube/config`, as kubectl does.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    token: str | None = None
    """A bearer token used instead of the kubeconfig's credentials."""


def kubeconfig(target: Target) -> str | None:
    """The kubeconfig to read (KUBECONFIG may name several files), or None for the pod's service account.

    Raises ConnectError where there is neither.
    """
    named = str(target.kubeconfig) if target.kubeconfig is not None else os.environ.get("KUBECONFIG")
    if named:
        if not any(Path(part).expanduser().exists() for part in named.split(os.pathsep) if part):
            raise ConnectError(f"there is no kubeconfig at {named}")
        return named
    if "KUBERNETES_SERVICE_HOST" in os.environ and target.context is None:
        return None
    default = KUBECONFIG_DEFAULT.expanduser()
    if default.exists():
        return str(default)
    raise ConnectError(f"there is no KUBECONFIG, no service account and no {KUBECONFIG_DEFAULT}")


def proxy_of_environment(url: str) -> str | None:
    """What `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say about `url`; as for kubectl, this machine needs no proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in {"localhost", "::1"} or host.startswith("127."):
        return None
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - a command to a local cluster starts without

    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
