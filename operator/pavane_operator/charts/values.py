"""Values of the charts: the one source of `values.yaml` and `values.schema.json` (docs/specs/operator.md 7.1, 7.2).

Lists appear only where nobody overrides single entries; what users override by key is a map.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pavane_operator.crds.values import DURATION_PATTERN, HTTP_URL_PATTERN

NAMESPACE_PATTERN = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
ENV_PATTERN = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"
DIGEST_PATTERN = "^(sha256:[0-9a-f]{64})?$"
TAG_PATTERN = "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"
"""What a registry takes as a tag, or nothing."""
NOT_LATEST = {"not": {"const": "latest"}}
"""A tag that moves is no statement of what runs: a restart of a pod would be an unseen upgrade."""

Namespace = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]
EnvName = Annotated[str, Field(pattern=ENV_PATTERN)]
Tag = Annotated[str, Field(pattern=TAG_PATTERN, json_schema_extra=NOT_LATEST)]
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
Port = Annotated[int, Field(ge=1, le=65535)]
Free = dict[str, Any]
"""A part of a Kubernetes object, passed on as it is; the API server checks it."""


class _Values(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", use_attribute_docstrings=True)


class PullPolicy(StrEnum):
    """When the kubelet fetches an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class ImageOverride(_Values):
    """Another image for one component."""

    repository: str = ""
    """Repository; empty = the common one."""
    tag: Tag = ""
    """Tag; empty = the common one."""
    digest: Digest = ""
    """Digest, `sha256:…`; counts before the tag."""


class Image(_Values):
    """The image of everything that names no other."""

    repository: Annotated[str, Field(min_length=1)] = "pavane"
    """Repository."""
    tag: Tag = ""
    """Tag; empty = the version of the chart."""
    digest: Digest = ""
    """Digest, `sha256:…`; counts before the tag."""
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When it is pulled."""


class Defaults(_Values):
    """What resources get that do not say otherwise."""

    image: str = ""
    """Image of the pods of resources, recorded when a generation is created; empty = `image`."""


class Telemetry(_Values):
    """Where spans go."""

    otlp_endpoint: str = ""
    """OTLP endpoint (HTTP) of the operator and of all pods; empty = the control plane of this release."""
    require_token: bool = True
    """Whether the control plane takes spans only with a token for audience `pavane-otlp`, which all pods then send."""


class NetworkPolicies(_Values):
    """NetworkPolicies of operator and control plane. (Those of resources are in their specs.)"""

    enabled: bool = True
    """Whether they are made."""
    api_server_ports: list[Port] = [443, 6443]
    """Ports of the API server, as pods reach it."""
    api_server_cidrs: list[str] = Field(default=[], alias="apiServerCIDRs")
    """Addresses of the API server; empty = any, for no selector names it."""


class ServiceAccount(_Values):
    """Who the component is for the API server."""

    create: bool = True
    """Whether the chart makes the account; its rights are bound in both cases."""
    name: str = ""
    """Name; empty = that of the component."""
    annotations: dict[str, str] = {}
    """Annotations of the account."""


class Component(_Values):
    """What can be said about the pods of each component."""

    image: ImageOverride = ImageOverride()
    """Another image than the common one."""
    service_account: ServiceAccount = ServiceAccount()
    """Who the component is for the API server."""
    extra_env: dict[EnvName, str] = Field(default={}, json_schema_extra={"additionalProperties": False})
    """Further environment variables, name: value."""
    resources: Free = {}
    """Computing resources of the container."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes that may run it."""
    tolerations: list[Free] = []
    """Taints that it tolerates."""
    affinity: Free = {}
    """Affinities."""
    topology_spread_constraints: list[Free] = []
    """How its pods are spread."""
    priority_class_name: str = ""
    """Priority class."""
    pod_labels: dict[str, str] = {}
    """Further labels of its pods."""
    pod_annotations: dict[str, str] = {}
    """Annotations of its pods."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0)] = 30
    """Time that a pod has to stop."""


class Operator(Component):
    """The operator."""

    replicas: Annotated[int, Field(ge=0, le=2)] = 1
    """1, or 2 with a standby that takes over when the first is gone; 0 stops it, the data plane goes on."""
    image_pull_limit: Annotated[str, Field(pattern=DURATION_PATTERN)] = "10m"
    """How long an image may fail to be pulled before the attempt is aborted."""
    resources: Free = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    """Computing resources of the container."""


class IngressTls(_Values):
    """One certificate of the Ingress."""

    secret_name: str
    """Secret with the certificate."""
    hosts: list[str] = []
    """Names that it is for."""


class Ingress(_Values):
    """Ingress of the control plane."""

    enabled: bool = False
    """Whether there is one."""
    class_name: str = ""
    """Class; empty = the cluster's default."""
    host: str = ""
    """Host name; empty = any."""
    annotations: dict[str, str] = {}
    """Annotations, for the controller in charge."""
    tls: list[IngressTls] = []
    """Certificates. Tokens travel through it, so have one."""


class Api(Component):
    """The control plane: REST interface, and receiver of spans."""

    enabled: bool = True
    """Whether there is one; the operator does not need it."""
    replicas: Annotated[int, Field(ge=0)] = 1
    """Number of pods. Each keeps the spans that were sent to it, so with several a trace may be scattered."""
    resources: Free = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    """Computing resources of the container."""
    ingress: Ingress = Ingress()
    """Ingress."""


class Rbac(_Values):
    """Rights."""

    create: bool = True
    """Whether roles and bindings are made; without them somebody else has to grant what templates/_rules.tpl lists."""
    aggregate: bool = True
    """Whether the cluster's roles view, edit and admin get rights on our kinds."""
    spark_executors: bool = False
    """Whether resources may have `spark.master: kubernetes`. Their pods then may create pods, and so may whoever can
    edit such a resource."""


class Prometheus(_Values):
    """The Prometheus that gates ask."""

    url: Annotated[str, Field(pattern=HTTP_URL_PATTERN)] = ""
    """For instance http://prometheus.monitoring.svc:9090; empty = gates with a query cannot be judged. Whoever may edit
    a resource can read numbers from it."""


class Gates(_Values):
    """What `spec.rollout.gates` of resources may ask beside their own pods."""

    prometheus: Prometheus = Prometheus()
    """The Prometheus that gates ask."""


class Uninstall(_Values):
    """What `helm uninstall` does."""

    force: bool = False
    """Uninstall even while resources still wait for this operator to clean up after them; they can then not be deleted
    until an operator is installed again."""


class PodMonitors(_Values):
    """PodMonitors of operator, control plane and the pods of all resources."""

    enabled: bool = False
    """Whether they are made."""
    interval: str = "30s"
    """Time between two looks at a pod."""


class Alerts(_Values):
    """A PrometheusRule with alerts."""

    enabled: bool = False
    """Whether it is made."""
    runbooks: str = "docs/operations.md"
    """Where the operations guide lies, for the alerts' runbook_url."""


class Dashboard(_Values):
    """A ConfigMap with dashboards for Grafana: the operator, and each kind."""

    enabled: bool = False
    """Whether it is made."""
    labels: dict[str, str] = {"grafana_dashboard": "1"}
    """Labels by which Grafana's sidecar finds it."""


class Monitoring(_Values):
    """Objects for Prometheus and Grafana; the first two need the definitions of the Prometheus operator."""

    labels: dict[str, str] = {}
    """Further labels of PodMonitors and rules, by which Prometheus chooses them."""
    pod_monitors: PodMonitors = PodMonitors()
    """PodMonitors of operator, control plane and the pods of all resources."""
    alerts: Alerts = Alerts()
    """A PrometheusRule with alerts."""
    dashboard: Dashboard = Dashboard()
    """A ConfigMap with dashboards for Grafana: the operator, and each kind."""


class Values(_Values):
    """All values."""

    name_override: str = ""
    """Another name than that of the chart, in names and labels."""
    fullname_override: str = ""
    """Another prefix of all names than the release's name and the chart's."""
    common_labels: dict[str, str] = {}
    """Further labels of everything that the chart makes."""
    image: Image = Image()
    """The image of everything that names no other."""
    image_pull_secrets: list[str] = []
    """Names of Secrets for the registry, in the release's namespace."""
    watch_namespaces: list[Namespace] = []
    """Namespaces to look after, with a Role in each instead of rights in the whole cluster; empty = all."""
    defaults: Defaults = Defaults()
    """What resources get that do not say otherwise."""
    telemetry: Telemetry = Telemetry()
    """Where spans go."""
    monitoring: Monitoring = Monitoring()
    """Objects for Prometheus and Grafana; the first two need the definitions of the Prometheus operator."""
    network_policy: NetworkPolicies = NetworkPolicies()
    """NetworkPolicies of operator and control plane."""
    rbac: Rbac = Rbac()
    """Rights."""
    gates: Gates = Gates()
    """What `spec.rollout.gates` of resources may ask beside their own pods."""
    uninstall: Uninstall = Uninstall()
    """What `helm uninstall` does."""
    operator: Operator = Operator()
    """The operator."""
    api: Api = Api()
    """The control plane: REST interface, and receiver of spans."""


class CrdsOptions(_Values):
    """The definitions."""

    install: bool = True
    """Whether the definitions are installed."""
    keep: bool = True
    """Whether they, and with them all resources, outlive `helm uninstall`."""
    cel: bool = True
    """Whether they carry validation rules in CEL; false for API servers that refuse the key."""
    labels: dict[str, str] = {}
    """Further labels of the definitions."""
    annotations: dict[str, str] = {}
    """Further annotations of the definitions."""


class CrdsValues(_Values):
    """All values of the chart `pavane-crds`."""

    crds: CrdsOptions = CrdsOptions()
    """The definitions."""
