"""What an absent `spec.clients` means: certificates in a new log, whoever comes in one of before (operator.md 1.6).

A default in the definition would change stored resources, and roll out logs that clients without certificates use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pavane_operator.crds.waltzcluster import Authentication, ClientsStatus, WaltzClusterSpec, WaltzClusterStatus
from pavane_operator.kinds.base import spec_of
from pavane_operator.plan.children import REVISION, STATEFUL_SET, find
from pavane_operator.plan.model import Child, Resource
from pavane_operator.tls.names import client_authority_secret


def settled(resource: Resource, children: Iterable[Child]) -> Resource:
    """The resource with the clients that count where its spec names none."""
    return replace(
        resource, spec=spec_of(resource, WaltzClusterSpec).with_clients(_when_absent(resource, tuple(children)))
    )


def noted(resource: Resource, children: Iterable[Child]) -> ClientsStatus:
    """What the status of a settled resource says."""
    spec = spec_of(resource, WaltzClusterSpec)
    shown = Authentication.CERTIFICATE if spec.certifies_clients else Authentication.NONE
    return ClientsStatus(authentication=shown, when_absent=_when_absent(resource, tuple(children)))


def _when_absent(resource: Resource, children: tuple[Child, ...]) -> Authentication:
    """What the status says. Else nobody has decided, or it was lost: then the authority of clients tells."""
    status = resource.status
    if isinstance(status, WaltzClusterStatus) and status.clients is not None:
        return status.clients.when_absent
    begun = status is not None and (status.active_generation or status.next_generation or status.last_generation)
    made = any(child.kind in (REVISION, STATEFUL_SET) for child in children)
    certified = find(children, "Secret", client_authority_secret(resource.name)) is not None
    return Authentication.NONE if begun or (made and not certified) else Authentication.CERTIFICATE
