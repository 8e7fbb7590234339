"""WaltzCluster's objects, as pure functions of the resource and of the revisions of its generations (operator.md 4)."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pavane.runtime.certificates import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
from pavane_operator.crds.backup import DEFINITION as BACKUP
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import parse_duration, parse_quantity
from pavane_operator.crds.waltzcluster import APPLICATION, Authentication, WaltzClusterSpec, WhileAway
from pavane_operator.kinds.base import BaseRenderer, spec_of
from pavane_operator.kinds.waltz import metadata, names, pod
from pavane_operator.objects import generations
from pavane_operator.objects.budget import standing_budget
from pavane_operator.objects.claims import pod_claim
from pavane_operator.objects.generations import Content
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import OPS, STAGE, Inputs, Port
from pavane_operator.objects.policies import DEFAULT_PORTS, Ports, Target
from pavane_operator.plan.model import Child, Manifest, Problem, Resource, Writers
from pavane_operator.plan.port import NOTHING
from pavane_operator.tls.names import certificate_secret, issued_secret, issued_stem

KEPT_BY_REPAIRS = ("clusterName", "metadata", "storage", "tls")
"""Fields that volumes and the metadata store depend on (2.13)."""
PORTS = Ports(
    peers=(names.WALTZ_PORT, names.NODE_PORT, names.NODE_ADMIN_PORT),
    clients=(names.WALTZ_PORT,),
    operator=(names.WALTZ_PORT, STAGE, OPS),
    control_plane=(names.WALTZ_PORT, OPS),
    helpers=BACKUP.name.lower(),
)
"""Who may connect to which port."""
SERVERS_FILE = "servers"
STANDING_GENERATION = 1
"""Number in the environment of pods that belong to no generation: it never changes, so that they need not either."""
QUOTA_BYTES_MIN = 1024
"""A second: with less a client could append next to nothing. A smaller quota counts as this."""


class WaltzRenderer(BaseRenderer[WaltzClusterSpec]):
    """Implements `pavane_operator.plan.port.Renderer`."""

    model = WaltzClusterSpec
    names = names.SERVERS
    ports = PORTS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secrets with the keys of the metadata store, the certificate whose authority applications trust, and what
        is issued to them."""
        kept = self._spec(resource).archive
        options = () if kept is None or kept.secret_name is None else (kept.secret_name,)
        own = () if _is_clear(resource) else (certificate_secret(resource.name, resource.spec.tls),)
        issued = (issued_secret(resource.name),) if clients(resource) else ()
        return (*metadata.secrets(self._spec(resource), targets), *own, *issued, *options)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`ReferenceNotReady` while the RaftCluster with the metadata cannot be used."""
        problem = metadata.problem(self._spec(resource), references)
        return (Problem("ReferenceNotReady", problem),) if problem else ()

    def content(self, inputs: Inputs, spec: WaltzClusterSpec) -> Content:
        """The servers, and the storage nodes once it serves."""
        resource = inputs.resource
        standing = Inputs.of(resource, STANDING_GENERATION, self._defaults, None)
        storage = Content(
            config=_config(resource, spec),
            template=pod.storage(standing, spec),
            ports=(names.NODE_PORT, names.NODE_ADMIN_PORT, OPS),
            claims=(pod_claim(standing, names.STORAGE, spec.storage),),
        )
        return Content(
            config=_config(resource, spec) | _retention(spec) | _archive(spec) | _rights(spec),
            template=pod.server(inputs, spec),
            ports=(names.WALTZ_PORT, STAGE, OPS),
            standing={names.STORAGE: storage},
        )

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        """The public Service, the pods of the generations that stand in the status, and the storage nodes."""
        host = names.STORAGE.headless_host(resource.name, resource.namespace, 0)
        return (*super().dns_names(resource), host, f"*.{host}")

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: Secret `{name}-metadata` and ConfigMap `{name}-clients` for servers, Secret
        `{name}-client` for applications, ConfigMap `{name}-live`, ServiceAccount, NetworkPolicies and
        PodDisruptionBudgets."""
        spec, storage = self._spec(resource), names.STORAGE
        nodes = storage.all_pods(resource.name)
        return (
            self._live(resource),
            *self._secrets(resource, spec, references),
            *self._around(
                resource,
                writers,
                spare=spec.servers.replicas - 1,
                selected=self.names.of_resource(resource.name),
                targets=(*metadata.egress(spec), *_to_archive(resource, spec, references)),
            ),
            *standing_budget(resource, storage.role, self.labels(resource), nodes, spare=(spec.storage.nodes - 1) // 2),
        )

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-server-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.SERVERS, revision, self._spec(resource).servers.replicas)

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-storage`."""
        return generations.standing_objects(resource, names.STORAGE, revision, self._spec(resource).storage.nodes)

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """How many servers are wanted; in a bootstrap that they make the nodes in the metadata store."""
        told = {"servers": str(self._spec(resource).servers.replicas)}
        return {**told, "bootstrap": "tree"} if bootstrap else told

    def _secrets(
        self, resource: Resource, spec: WaltzClusterSpec, references: Mapping[str, Any]
    ) -> tuple[Manifest, ...]:
        """Those that can be made now; what was made stays meanwhile."""
        found = []
        with contextlib.suppress(ValueError):  # `problems` tells it
            store = metadata.data(spec, resource.namespace, references)
            found.append(self._secret(resource, names.metadata_secret(resource.name), store))
        data = {SERVERS_FILE: _base64(f"{resource.name}.{resource.namespace}.svc:{names.WALTZ_PORT.number}\n")}
        if not _is_clear(resource):
            authorities = _data(references, certificate_secret(resource.name, resource.spec.tls)).get(AUTHORITIES_FILE)
            if authorities is None:
                return tuple(found)
            data[AUTHORITIES_FILE] = authorities
        issued = _data(references, issued_secret(resource.name))
        if (trusted := issued.get(AUTHORITIES_FILE)) is not None:
            known = owned(resource, "v1", "ConfigMap", names.clients_map(resource.name), self.labels(resource))
            found.append(Manifest.of(known | {"data": {AUTHORITIES_FILE: base64.b64decode(trusted).decode()}}))
        for name in clients(resource) or ("",):
            pair = {}
            if name:
                stem = issued_stem(name)
                if f"{stem}.key" not in issued:
                    continue
                pair = {CERTIFICATE_FILE: issued[f"{stem}.crt"], KEY_FILE: issued[f"{stem}.key"]}
            found.append(self._secret(resource, names.client_secret(resource.name, name), data | pair))
        return tuple(found)


def _to_archive(resource: Resource, spec: WaltzClusterSpec, references: Mapping[str, Any]) -> tuple[Target, ...]:
    """Anything on the ports of the archive's store: those of http, and that of an endpoint in its options."""
    if spec.archive is None or spec.archive.url.startswith("file:"):
        return ()
    numbers = {443}
    for value in _data(references, spec.archive.secret_name or "").values():
        with contextlib.suppress(ValueError):
            found = urlsplit(base64.b64decode(value).decode().strip())
            if found.scheme in DEFAULT_PORTS and found.hostname:
                numbers.add(found.port or DEFAULT_PORTS[found.scheme])
    return ((None, tuple(Port(f"archive-{number}", number) for number in sorted(numbers))),)


def clients(resource: Resource) -> tuple[str, ...]:
    """Applications by one name, and who has a rule or a quota."""
    found = spec_of(resource, WaltzClusterSpec).clients
    if found is None or found.authentication is not Authentication.CERTIFICATE:
        return ()
    named = [one.identity for one in (*(found.rights or ()), *(found.quotas or ()))]
    return tuple(dict.fromkeys((APPLICATION, *named)))


def _is_clear(resource: Resource) -> bool:
    return resource.spec.tls.mode is TlsMode.DISABLED


def _data(references: Mapping[str, Any], name: str) -> Mapping[str, str]:
    return (references.get(name) or {}).get("data") or {}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _config(resource: Resource, spec: WaltzClusterSpec) -> dict[str, Any]:
    """Settings of both roles, as `pavane.pods.waltz_settings` reads them."""
    return {
        "cluster_name": spec.cluster_name or resource.name,
        "root": names.root(resource, spec),
        "key": str(names.key(resource.uid)),
        "partitions": spec.partitions,
        "storage": names.storage_addresses(resource.name, resource.namespace, spec.storage.nodes),
        "session_timeout_ms": int(parse_duration(spec.metadata.session_timeout).total_seconds() * 1000),
    }


def _retention(spec: WaltzClusterSpec) -> dict[str, Any]:
    """What servers, which decide it, let storage nodes keep."""
    kept, found = spec.retention, dict[str, Any]()
    if kept is not None and not kept.respect_consumers:
        found["retention_respects_consumers"] = False
    if kept is not None and kept.max_bytes is not None:
        found["retention_bytes"] = int(parse_quantity(kept.max_bytes))
    if kept is not None and kept.max_age is not None:
        found["retention_age_ms"] = int(parse_duration(kept.max_age).total_seconds() * 1000)
    return found


def _archive(spec: WaltzClusterSpec) -> dict[str, Any]:
    """Where servers copy what is committed to."""
    if spec.archive is None:
        return {}
    found: dict[str, Any] = {"archive_url": spec.archive.url}
    found["archive_delay_ms"] = int(parse_duration(spec.archive.delay).total_seconds() * 1000)
    return found | ({"archive_drops": True} if spec.archive.while_away is WhileAway.DROP else {})


def _rights(spec: WaltzClusterSpec) -> dict[str, Any]:
    """What servers let clients do."""
    found: dict[str, Any] = {}
    if spec.clients is not None and spec.clients.rights is not None:
        found["client_rights"] = [rule.model_dump(mode="json", exclude_none=True) for rule in spec.clients.rights]
    if spec.clients is not None and spec.clients.quotas is not None:
        found["client_quotas"] = [
            {
                "identity": quota.identity,
                "bytes_per_s": None
                if quota.bytes_per_second is None
                else max(QUOTA_BYTES_MIN, int(parse_quantity(quota.bytes_per_second))),
                "appends_per_s": quota.appends_per_second,
                "connections": quota.connections,
            }
            for quota in spec.clients.quotas
        ]
    return found
