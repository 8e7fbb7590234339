"""Arguments and options that go together, written once: those of a cluster, and of one resource in it."""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

from pavane_cli.failures import ExitCode, UserError
from pavane_cli.options import Context, Kubeconfig, Namespace, Reference
from pavane_cli.target import Where, cluster, has_pods, namespace_of, required_reference
from pavane_operator import kube


def gathering(
    make: Callable[..., Any], command_class: type[TyperCommand] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that gives a command the parameters of ``make``; its own first one is what that returns.

    Parameters of ``make`` without a default stand before those of the command, the others behind them. What is
    decorated may be such a ``make`` itself. ``command_class`` is that of the commands.
    """
    shared = inspect.signature(make).parameters
    first = [each for each in shared.values() if each.default is inspect.Parameter.empty]
    last = [each for each in shared.values() if each.default is not inspect.Parameter.empty]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(command).parameters.values())[1:]

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            made = make(**{key: value for key, value in given.items() if key in shared})
            return command(made, **{key: value for key, value in given.items() if key not in shared})

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*first, *own, *last)]
        hints = typing.get_type_hints(make, include_extras=True) | typing.get_type_hints(command, include_extras=True)
        told: Any = run
        told.__signature__ = inspect.Signature(parameters)
        told.__annotations__ = {each.name: hints[each.name] for each in parameters}
        told.command_class = command_class
        return run

    return decorate


@dataclass(frozen=True, slots=True)
class Place(Where):
    """The namespace and the cluster that the options name."""

    namespace: str = "default"


def place_of(namespace: Namespace = "", context: Context = None, kubeconfig: Kubeconfig = None) -> Place:
    """Return the place; without a namespace it is that of the kubeconfig's context, as for kubectl."""
    return Place(kubeconfig, context, namespace or namespace_of(Where(kubeconfig, context)))


in_place = gathering(place_of)
"""Gives a command the options of a cluster and a namespace; it takes ``Place`` as its first parameter."""


@dataclass(frozen=True, slots=True)
class One:
    """The resource that a command is about, and the cluster that it is in."""

    resource: kube.Resource
    name: str
    namespace: str
    where: Where

    @property
    def reference(self) -> str:
        """``kind/name``, as users write it."""
        return f"{self.resource.kind.lower()}/{self.name}"


@in_place
def _one(place: Place, reference: Reference) -> One:
    resource, name = required_reference(reference)
    return One(resource, name, place.namespace, place)


about_one = gathering(_one)
"""Gives a command KIND/NAME and the options of a cluster; it takes ``One`` as its first parameter."""


@about_one
def _one_with_pods(one: One) -> One:
    if not has_pods(one.resource):
        raise UserError(f"a {one.resource.kind} has no pods of its own, so this command does not apply", ExitCode.USAGE)
    return one


about_pods = gathering(_one_with_pods)
"""The same for commands about a resource with pods."""


async def read(one: One) -> kube.Object:
    """Return the resource as it is now."""
    async with cluster(one.where) as client:
        return await client.get(one.resource, one.name, one.namespace)
