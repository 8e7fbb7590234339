"""WaltzCluster's objects, as pure functions of the resource and of the revisions of its generations (operator.md 4)."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pavane.runtime.certificates import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import parse_duration, parse_quantity
from pavane_operator.crds.waltzcluster import APPLICATION, Authentication, WaltzClusterSpec, WhileAway
from pavane_operator.kinds.base import BaseRenderer
from pavane_operator.kinds.waltz import metadata, names, pod
from pavane_operator.objects import generations
from pavane_operator.objects.budget import disruption_budget, standing_budget
from pavane_operator.objects.generations import Content
from pavane_operator.objects.owned import owned, service_account
from pavane_operator.objects.pods import LIVE_KEY, OPS, STAGE, Inputs, Port
from pavane_operator.objects.policies import DEFAULT_PORTS, Ports, Target, network_policies
from pavane_operator.plan.model import UID_LABEL, Child, Manifest, Problem, Repair, Resource, Writers
from pavane_operator.plan.port import NOTHING
from pavane_operator.tls.names import certificate_secret, issued_secret, issued_stem

KEPT_BY_REPAIRS = ("clusterName", "metadata", "storage", "tls")
"""Fields that volumes and the metadata store depend on (2.13)."""
PORTS = Ports(
    peers=(names.WALTZ_PORT, names.NODE_PORT, names.NODE_ADMIN_PORT),
    clients=(names.WALTZ_PORT,),
    operator=(names.WALTZ_PORT, STAGE, OPS),
    control_plane=(names.WALTZ_PORT, OPS),
)
"""Who may connect to which port."""
SERVERS_FILE = "servers"
STANDING_GENERATION = 1
QUOTA_BYTES_MIN = 1024
"""A second: with less a client could append next to nothing. A smaller quota counts as this."""
"""Number in the environment of pods that belong to no generation: it never changes, so that they need not either."""


class WaltzRenderer(BaseRenderer):
    """Implements `pavane_operator.plan.port.Renderer`."""

    names = names.SERVERS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secrets with the keys of the metadata store, the certificate whose authority applications trust, and what
        is issued to them."""
        kept = _spec(resource).archive
        options = () if kept is None or kept.secret_name is None else (kept.secret_name,)
        own = () if _is_clear(resource) else (certificate_secret(resource.name, resource.spec.tls),)
        issued = (issued_secret(resource.name),) if clients(resource) else ()
        return (*metadata.secrets(_spec(resource), targets), *own, *issued, *options)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`ReferenceNotReady` while the RaftCluster with the metadata cannot be used."""
        problem = metadata.problem(_spec(resource), references)
        return (Problem("ReferenceNotReady", problem),) if problem else ()

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        """The ControllerRevision `{name}-g{n}`: what its servers are made of, and the storage nodes once it serves."""
        spec, defaults = _spec(resource), self._defaults
        servers = Content(
            config=_config(resource, spec) | _retention(spec) | _archive(spec) | _rights(spec),
            template=pod.server(Inputs.of(resource, generation, defaults, repair), spec),
            ports=(names.WALTZ_PORT, STAGE, OPS),
        )
        storage = Content(
            config=_config(resource, spec),
            template=pod.storage(Inputs.of(resource, STANDING_GENERATION, defaults, None), spec),
            ports=(names.NODE_PORT, names.NODE_ADMIN_PORT, OPS),
            claims=(_claim(resource, spec, names.STORAGE.labels(resource.name, defaults.version)),),
        )
        return generations.revision(
            resource, names.SERVERS, defaults, generation, rollout_id, servers, repair, {names.STORAGE: storage}
        )

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        """The public Service, the pods of the generations that stand in the status, and the storage nodes."""
        host = names.STORAGE.headless_host(resource.name, resource.namespace, 0)
        return (*super().dns_names(resource), host, f"*.{host}")

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: Secret `{name}-metadata` and ConfigMap `{name}-clients` for servers, Secret
        `{name}-client` for applications, ConfigMap `{name}-live`, ServiceAccount, NetworkPolicies and
        PodDisruptionBudgets."""
        spec, labels = _spec(resource), self.labels(resource)
        live = owned(resource, "v1", "ConfigMap", f"{resource.name}-live", labels)
        live["data"] = {LIVE_KEY: "{}\n"}
        pods = names.SERVERS.of_resource(resource.name)
        role = names.SERVERS.role
        servers = names.SERVERS.all_pods(resource.name)
        egress = (*metadata.egress(spec), *_to_archive(resource, spec, references))
        return (
            Manifest.of(live),
            *self._secrets(resource, spec, references),
            service_account(resource, labels),
            *network_policies(resource, labels, pods, PORTS, self._surroundings, egress),
            *disruption_budget(resource, role, labels, servers, writers, spare=spec.servers.replicas - 1),
            *standing_budget(
                resource,
                names.STORAGE.role,
                labels,
                names.STORAGE.all_pods(resource.name),
                spare=(spec.storage.nodes - 1) // 2,
            ),
        )

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: any server tells a client where the owners of partitions are."""
        return generations.public_service(resource, names.SERVERS, self._defaults, generation, (names.WALTZ_PORT,))

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-server-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.SERVERS, revision, _spec(resource).servers.replicas)

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-storage`."""
        return generations.standing_objects(resource, names.STORAGE, revision, _spec(resource).storage.nodes)

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """How many servers are wanted; in a bootstrap that they make the nodes in the metadata store."""
        told = {"servers": str(_spec(resource).servers.replicas)}
        return {**told, "bootstrap": "tree"} if bootstrap else told

    def _secrets(
        self, resource: Resource, spec: WaltzClusterSpec, references: Mapping[str, Any]
    ) -> tuple[Manifest, ...]:
        """Those that can be made now; what was made stays meanwhile."""
        labels, found = self.labels(resource), []
        try:
            store = owned(resource, "v1", "Secret", names.metadata_secret(resource.name), labels)
            store |= {"type": "Opaque", "data": metadata.data(spec, resource.namespace, references)}
            found.append(Manifest.of(store))
        except ValueError:
            pass  # `problems` tells it
        data = {SERVERS_FILE: _base64(f"{resource.name}.{resource.namespace}.svc:{names.WALTZ_PORT.number}\n")}
        if not _is_clear(resource):
            authorities = _data(references, certificate_secret(resource.name, resource.spec.tls)).get(AUTHORITIES_FILE)
            if authorities is None:
                return tuple(found)
            data[AUTHORITIES_FILE] = authorities
        issued = _data(references, issued_secret(resource.name))
        if (trusted := issued.get(AUTHORITIES_FILE)) is not None:
            known = owned(resource, "v1", "ConfigMap", names.clients_map(resource.name), labels)
            found.append(Manifest.of(known | {"data": {AUTHORITIES_FILE: base64.b64decode(trusted).decode()}}))
        for name in clients(resource) or ("",):
            pair = {}
            if name:
                stem = issued_stem(name)
                if f"{stem}.key" not in issued:
                    continue
                pair = {CERTIFICATE_FILE: issued[f"{stem}.crt"], KEY_FILE: issued[f"{stem}.key"]}
            client = owned(resource, "v1", "Secret", names.client_secret(resource.name, name), labels)
            found.append(Manifest.of(client | {"type": "Opaque", "data": data | pair}))
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
    found = _spec(resource).clients
    if found is None or found.authentication is not Authentication.CERTIFICATE:
        return ()
    named = [one.identity for one in (*(found.rights or ()), *(found.quotas or ()))]
    return tuple(dict.fromkeys((APPLICATION, *named)))


def _spec(resource: Resource) -> WaltzClusterSpec:
    assert isinstance(resource.spec, WaltzClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec


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


def _claim(resource: Resource, spec: WaltzClusterSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    size = str(spec.storage.size)  # as it is now: a server refuses to change it, the claims themselves grow
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if spec.storage.storage_class_name is not None:
        claim["storageClassName"] = spec.storage.storage_class_name
    return {"metadata": {"name": "data", "labels": {**labels, UID_LABEL: resource.uid}}, "spec": claim}
