"""How a command reaches the control plane, and the data of a cluster: by the NAME of a resource through the control
plane, or by an option that names the servers themselves, without any platform."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import quote

from typer.core import TyperCommand

from pavane_cli.gathering import Place, gathering
from pavane_cli.kinds import NAMES, plain_name
from pavane_cli.options import Api, Context, Kubeconfig, Namespace, Token
from pavane_cli.plane import RestClient, control_plane
from pavane_cli.target import namespace_of

PEERS, SERVERS = "--peers", "--servers"


@dataclass(frozen=True, slots=True)
class ControlPlane(Place):
    """The control plane that the options name."""

    api: str | None = None
    token: str | None = None

    def rest(self) -> AbstractAsyncContextManager[RestClient]:
        """Open a client of it."""
        return control_plane(self, self.api, self.token)

    def path_of(self, kind: str, name: str) -> str:
        """Return the place below ``/api/v1`` of a resource, by the short name of its kind and NAME or KIND/NAME."""
        plural = next(plural for short, _, plural in NAMES if short == kind)
        return f"/namespaces/{self.namespace}/{plural}/{quote(plain_name(kind, name), safe='')}"


def _plane(
    context: Context = None, kubeconfig: Kubeconfig = None, api: Api = None, token: Token = None
) -> ControlPlane:
    return ControlPlane(kubeconfig, context, api=api, token=token)


from_plane = gathering(_plane)
"""Gives a command the options of a control plane alone; it takes ``ControlPlane`` as its first parameter."""


@from_plane
def plane_of(plane: ControlPlane, namespace: Namespace = "") -> ControlPlane:
    """Return the control plane; without a namespace it is that of the kubeconfig's context."""
    return replace(plane, namespace=namespace or namespace_of(plane))


through_plane = gathering(plane_of)
"""Gives a command the options of a control plane and a namespace; it takes ``ControlPlane`` as its first parameter."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the options of a command say about the cluster."""

    kind: ClassVar[str]
    """The short name."""
    plane: ControlPlane
    name: str

    @property
    def path(self) -> str:
        """The resource's place below ``/api/v1``."""
        return self.plane.path_of(self.kind, self.name)

    def rest(self) -> AbstractAsyncContextManager[RestClient]:
        """Open a client of the control plane."""
        return self.plane.rest()


class ReachingCommand(TyperCommand):
    """A command that reaches a cluster: with the option that names servers there is no NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put an empty NAME in its place if servers are named."""
        until = args.index("--") if "--" in args else len(args)
        if any(arg.partition("=")[0] in {PEERS, SERVERS} for arg in args[:until]):
            args = ["", *args]
        return super().parse_args(ctx, args)


def addresses(text: str | None) -> tuple[str, ...]:
    """Return what commas separate."""
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
