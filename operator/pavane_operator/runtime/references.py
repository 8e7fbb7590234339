"""The Secrets of users that the spec of a resource names (docs/specs/operator.md 1.2, 1.4, 5.3)."""

from __future__ import annotations

from collections.abc import Iterable

from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import SECRETS, Object


class References:
    """Keeps the user's Secrets of one resource as read last: they carry no label of ours, so no cache holds them."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._named: frozenset[tuple[str, str]] = frozenset()
        self._found: dict[str, Object] = {}
        self._fresh: set[str] = set()
        """Names of those that were read, and have not changed since as far as we know."""

    def changed(self, namespace: str, name: str) -> bool:
        """A Secret came, changed or went; returns whether the resource uses it."""
        mine = (namespace, name) in self._named
        if mine:
            self._fresh.discard(name)
        return mine

    def forget(self) -> None:
        """Read all of them again at the next look: their last event may have been lost."""
        self._fresh.clear()

    async def read(self, namespace: str, names: Iterable[str]) -> dict[str, Object]:
        """Those of these Secrets that exist, by name. Raises KubeError when one cannot be read."""
        names = set(names)
        self._named = frozenset((namespace, name) for name in names)
        self._fresh &= names
        for name in sorted(names - self._fresh):
            self._fresh.add(name)  # before the read: what changes meanwhile is read again
            try:
                body = await self._kube.get_or_none(SECRETS, name, namespace)
            except BaseException:
                self._fresh.discard(name)
                raise
            self._found.pop(name, None)
            if body is not None:
                self._found[name] = body
        return {name: self._found[name] for name in names if name in self._found}
