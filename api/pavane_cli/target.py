"""Which cluster and which control plane a command talks to (docs/specs/operator.md 8.1).

`pavane get` and its like import this and no HTTP library (`plane` has the one for the control plane).
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import yaml

from pavane.parts.spelling import nearest
from pavane.runtime import local, locks
from pavane_cli.failures import ExitCode, UserError, exit_code
from pavane_cli.kinds import NAMES, PODLESS
from pavane_cli.output import note
from pavane_operator import kube
from pavane_operator.kube.resources import ENDPOINT_SLICES, custom

API_SERVICE = "pavane-api"
PLATFORM_NAMESPACE = "pavane-system"

Opened = TypeVar("Opened")
Result = TypeVar("Result")

KINDS = {called: custom(kind, plural) for short, kind, plural in NAMES for called in (short, kind.lower(), plural)}
"""What a user may call a kind on the command line."""
RESOURCES = tuple(dict.fromkeys(KINDS.values()))
"""The kinds, by name."""


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster that the options name."""

    kubeconfig: Path | None = None
    context: str | None = None

    def path(self) -> Path | None:
        """Return the kubeconfig to use; None = what kubectl would take. KUBECONFIG goes before a local cluster."""
        if self.kubeconfig is not None or self.context is not None:
            return self.kubeconfig
        named = os.environ.get("KUBECONFIG")
        if named:
            return Path(named).expanduser() if os.pathsep not in named else None
        return nearest_local()


def nearest_local(start: Path | None = None) -> Path | None:
    """Return the nearest ``.pavane/kubeconfig`` from ``start`` (the working folder) upwards that is ours."""

    def ignored(found: Path) -> None:
        note(f"{found.parent} is another user's and is not used; --kubeconfig {found} would use it all the same")

    return local.nearest_local(start, ignored=ignored)


def with_advice(message: str) -> str:
    """Return a server's message, with a hint if it does not find a resource of ours."""
    absent = re.fullmatch(r'([a-z]+)\.pavane\.dev ".*" not found', message)
    return f"{message}; `pavane get {absent[1]} -A` lists those of all namespaces" if absent else message


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the Kubernetes client into ``UserError`` with the server's message."""
    try:
        yield
    except kube.ConnectError as error:
        raise UserError(str(error)) from error
    except kube.KubeError as error:
        told = [cause for cause in error.causes if cause.field]
        more = [f"{cause.field}: {cause.message}" for cause in told]
        if all(cause.field in error.message and cause.message in error.message for cause in told):
            more = []
        if isinstance(error, kube.Conflict) and told:
            more.append("change it where that manager takes it from, for example in Git")
        text = "\n  ".join([error.message, *more])
        # What it does not understand at all is a fault of ours, or of an old server: no words of the user's.
        code = ExitCode.ERROR if isinstance(error, kube.BadRequest) else exit_code(error.status)
        raise UserError(with_advice(text), code) from error
    except TimeoutError as error:
        raise UserError(str(error) or "time-out", ExitCode.TIME_OUT) from error


@asynccontextmanager
async def cluster(where: Where) -> AsyncIterator[kube.KubeClient]:
    """Open a client of the cluster; its errors become ``UserError``."""
    with explained():
        try:
            async with await kube.KubeClient.connect(kube.Target(where.path(), where.context), brief=True) as client:
                yield client
        except kube.Unavailable as error:
            if (told := stopped(where)) is not None:
                raise told from error
            raise


def stopped(where: Where) -> UserError | None:
    """Return the error for a kubeconfig of a local cluster that does not run, else None."""
    path = where.path() or Path(os.environ.get("KUBECONFIG", ""))
    if path.name != local.LOCAL.name:
        return None
    lock = path.with_name("lock")
    if not lock.is_file() or locks.holder(lock) is not None:
        return None
    return UserError(f"the local cluster of {path.parent} is stopped: start it with `pavane up`")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)


def run_with(opening: AbstractAsyncContextManager[Opened], work: Callable[[Opened], Awaitable[Result]]) -> Result:
    """Run ``work`` to its end with what ``opening`` opens."""

    async def worked() -> Result:
        async with opening as opened:
            return await work(opened)

    return run(worked())


def nearest_kind(kind: str) -> str | None:
    """Return the name of a kind that ``kind`` probably stands for."""
    return nearest(kind, (called for names in NAMES for called in names))


def unknown_kind(kind: str) -> str:
    """Return what to say of a kind that is not ours."""
    near = nearest_kind(kind)
    meant = f"did you mean {near}? " if near else ""
    return f"unknown kind {kind}; {meant}Kinds: {', '.join(f'{short} ({long})' for short, long, _ in NAMES)}"


def parse_reference(text: str, name: str | None = None) -> tuple[kube.Resource, str | None]:
    """Return resource type and name of ``KIND/NAME`` or ``KIND`` and ``NAME``."""
    kind, _, inner = text.partition("/")
    resource = KINDS.get(kind.lower())
    if resource is None:
        raise UserError(unknown_kind(kind), ExitCode.USAGE)
    if inner and name:
        raise UserError(f"name the resource once: {text} {name}", ExitCode.USAGE)
    return resource, inner or name


def required_reference(text: str) -> tuple[kube.Resource, str]:
    """Return resource type and name of ``KIND/NAME``."""
    if "/" not in text and text.lower() not in KINDS and nearest_kind(text) is None:
        kinds = ", ".join(f"{short}/{text}" for short, _, _ in NAMES)
        raise UserError(
            f"name the resource as KIND/NAME: {text} alone does not say of which kind; {kinds}", ExitCode.USAGE
        )
    resource, name = parse_reference(text)
    if not name:
        raise UserError(f"name the resource as KIND/NAME, for example {text}/quickstart", ExitCode.USAGE)
    return resource, name


def has_pods(resource: kube.Resource) -> bool:
    """Whether resources of this kind have pods, which are rolled out by generations."""
    return resource.kind not in PODLESS


async def control_plane_url(where: Where) -> str:
    """Return the URL of the local cluster's control plane; raises ``UserError`` when none can be reached."""
    async with cluster(where) as client:
        slices = await client.list_all(
            ENDPOINT_SLICES, PLATFORM_NAMESPACE, labels=f"kubernetes.io/service-name={API_SERVICE}"
        )
    for item in slices.items:
        for endpoint in item.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready"):
                address = endpoint["addresses"][0]
                if not ip_address(address).is_loopback:
                    raise UserError(
                        "the control plane can only be reached inside its cluster: run `kubectl -n "
                        f"{PLATFORM_NAMESPACE} port-forward service/{API_SERVICE} 8000` beside, and give "
                        "PAVANE_API_URL=http://127.0.0.1:8000 or --api"
                    )
                port = next((port["port"] for port in item.get("ports") or () if port.get("name") == "api"), 8000)
                return f"http://{address}:{port}"
    raise UserError("no control plane is ready here: start one with `pavane up`, or name one with --api URL")


def kubeconfig_token(where: Where) -> str | None:
    """Return the bearer token of the kubeconfig's user in the context, if it has one."""
    config, context = _context(where)
    user = _named(config.get("users"), context.get("user")).get("user") or {}
    token: str | None = user.get("token")
    return token


def namespace_of(where: Where) -> str:
    """Return the namespace of the context, ``default`` where no kubeconfig names one."""
    return str(_context(where)[1].get("namespace") or "default")


def _context(where: Where) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the kubeconfig and its context; both are empty where there is none, or none that can be read."""
    named = where.path() or os.environ.get("KUBECONFIG", "~/.kube/config").partition(os.pathsep)[0]
    try:
        path = Path(named).expanduser()
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        context = _named(config.get("contexts"), where.context or config.get("current-context"))
        return config, context.get("context") or {}
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):  # who connects says what is wrong
        return {}, {}


def signing_in(address: str, token: str | None) -> str:
    """Return the link of the dashboard at ``address`` that signs its reader in with ``token``, if there is one."""
    return f"{address}/#{urlencode({'token': token})}" if token else f"{address}/"


def _named(items: list[dict[str, Any]] | None, name: str | None) -> dict[str, Any]:
    return next((item for item in items or () if item.get("name") == name), {})
