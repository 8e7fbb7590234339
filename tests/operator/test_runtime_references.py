"""Secrets of users that a spec names: read once, and again when they change (docs/specs/operator.md 5.3)."""

from typing import cast

import pytest

from pavane_operator.kube import Forbidden, KubeClient
from pavane_operator.kube.resources import SECRETS, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.runtime.references import References


class Secrets:
    """Answers for the Secrets of namespace `data`, and notes what is read."""

    def __init__(self) -> None:
        self.bodies: dict[str, Object] = {}
        self.reads: list[str] = []
        self.error: Exception | None = None

    async def get_or_none(self, resource: ResourceType, name: str, namespace: str) -> Object | None:
        assert (resource, namespace) == (SECRETS, "data")
        self.reads.append(name)
        if self.error is not None:
            raise self.error
        return self.bodies.get(name)


@pytest.fixture
def kube() -> Secrets:
    return Secrets()


@pytest.fixture
def references(kube: Secrets) -> References:
    return References(cast("KubeClient", kube))


async def test_each_is_read_once_and_again_when_it_has_changed(kube: Secrets, references: References) -> None:
    kube.bodies["ident"] = {"data": {"key": "b25l"}}
    for _ in range(2):
        assert await references.read("data", ("ident", "tls", "ident")) == kube.bodies
    assert kube.reads == ["ident", "tls"]
    kube.bodies["tls"] = {"data": {}}
    assert not references.changed("data", "other")
    assert not references.changed("elsewhere", "tls")
    assert "tls" not in await references.read("data", ("ident", "tls"))
    assert references.changed("data", "tls")
    assert await references.read("data", ("ident", "tls")) == kube.bodies
    assert kube.reads == ["ident", "tls", "tls"]
    del kube.bodies["ident"]
    references.forget()
    assert await references.read("data", ("ident", "tls")) == kube.bodies


async def test_what_changes_while_it_is_read_is_read_again(kube: Secrets, references: References) -> None:
    answer = kube.get_or_none

    async def old_answer(resource: ResourceType, name: str, namespace: str) -> Object | None:
        found = await answer(resource, name, namespace)
        kube.bodies["tls"] = {"data": {}}
        assert references.changed("data", "tls")
        return found

    kube.get_or_none = old_answer  # type: ignore[method-assign]
    assert await references.read("data", ("tls",)) == {}
    assert await references.read("data", ("tls",)) == kube.bodies


async def test_one_that_could_not_be_read_is_tried_again(kube: Secrets, references: References) -> None:
    kube.bodies["tls"] = {"data": {}}
    kube.error = Forbidden("not yours", status=403)
    with pytest.raises(Forbidden):
        await references.read("data", ("tls",))
    kube.error = None
    assert await references.read("data", ("tls",)) == kube.bodies


async def test_what_is_named_no_more_is_not_watched(kube: Secrets, references: References) -> None:
    await references.read("data", ("tls",))
    assert await references.read("data", ()) == {}
    assert not references.changed("data", "tls")
    kube.bodies["tls"] = {"data": {}}
    assert await references.read("data", ("tls",)) == kube.bodies
