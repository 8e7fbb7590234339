"""One look at the certificates of a resource, with the Secret that its user may have named."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pavane_operator.kinds.port import Renderer
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import SECRETS, Object
from pavane_operator.plan.model import Child, Resource
from pavane_operator.tls.secrets import Identity, Tls, look


class CertificateView:
    """Keeps the user's Secret of one resource as read last: it carries no label of ours, so no cache holds it."""

    def __init__(self, kube: KubeClient, renderer: Renderer) -> None:
        self._kube = kube
        self._renderer = renderer
        self._reference: tuple[str, str] | None = None
        self._given: Object | None = None
        self._old = True

    def reference_changed(self, namespace: str, name: str) -> bool:
        """A Secret came, changed or went; returns whether the resource uses it."""
        mine = self._reference == (namespace, name)
        self._old = self._old or mine
        return mine

    def forget(self) -> None:
        """Read the user's Secret again at the next look: its last event may have been lost."""
        self._old = True

    async def look(self, resource: Resource, children: Iterable[Child], now: datetime) -> Tls:
        """What is known, and to be done, now. Raises KubeError when the user's Secret cannot be read."""
        name = resource.spec.tls.secret_name
        self._reference = None if name is None else (resource.namespace, name)
        if name is not None and self._old:
            self._old = False  # before the read: what changes meanwhile is read again
            try:
                self._given = await self._kube.get_or_none(SECRETS, name, resource.namespace)
            except BaseException:
                self._old = True
                raise
        identity = Identity(self._renderer.labels(resource), self._renderer.dns_names(resource))
        return look(resource, children, identity, self._given, now)
