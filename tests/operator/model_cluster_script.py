"""How a scenario over the model cluster is written: a script that yields what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator

from pavane_operator.crds.status import State
from pavane_operator.plan.model import GENERATION_LABEL
from tests.operator.model_cluster import World, settled
from tests.operator.model_cluster_kind import NAME

Until = Callable[[World], bool]
Script = Generator[Until, None, None]
Scenario = Callable[[World], Script]


def state_is(state: State) -> Until:
    return lambda world: world.state is state


def failed_with(reason: str) -> Until:
    return lambda world: world.state is State.IDLE and world.condition("UpToDate") == ("False", reason)


def gone(world: World) -> bool:
    return world.gone


def rests_on(generation: int) -> Until:
    """The resource has come to rest with this active generation, of as many pods as the spec asks for; of others
    nothing is left but what they were made of, volumes included."""

    def check(world: World) -> bool:
        numbers = {
            body["metadata"]["labels"].get(GENERATION_LABEL)
            for (kind, _), body in world.objects.items()
            if kind != "ControllerRevision"
        } - {None}
        wanted = {f"{NAME}-server-g{generation}-{ordinal}" for ordinal in range(world.spec.get("replicas", 3))}
        volumes = {name.removeprefix("data-") for kind, name in world.objects if kind == "PersistentVolumeClaim"}
        return (
            settled(world)
            and world.members == wanted == volumes == {pod.name for pod in world.pods.values() if not pod.lost}
            and world.status.failed is None
            and world.status.active_generation == generation
            and numbers == {str(generation)}
        )

    return check


def after(seconds: float) -> Callable[[World], Until]:
    def bind(world: World) -> Until:
        start = world.now
        return lambda later: (later.now - start).total_seconds() >= seconds

    return bind
