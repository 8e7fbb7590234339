"""An API server of the tests: in process, over TLS, with a small custom resource and a clock that tests move."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import yaml

from pavane_local.api.cluster import DEFINITIONS, Cluster
from pavane_local.api.server import ApiServer
from pavane_local.kubelet.logs import LogOptions
from pavane_local.store import Object, ObjectStore

WIDGETS = "widgets.test.dev"
WIDGET_PATH = "/apis/test.dev/v1/namespaces/default/widgets"
WIDGET_DEFINITION: Object = yaml.safe_load(
    """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.dev}
spec:
  group: test.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [things]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    - {name: Mode, type: string, jsonPath: .spec.mode, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-validations: [{rule: "size(self.metadata.name) <= 10", message: the name is too long}]
        required: [spec]
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            required: [size]
            properties:
              replicas:
                type: integer
                default: 3
                minimum: 1
                maximum: 9
                x-kubernetes-validations: [{rule: self % 2 == 1, message: must be odd}]
              size:
                type: string
                maxLength: 20
                x-kubernetes-validations:
                - {rule: size(self) >= size(oldSelf), message: may not shrink}
              mode: {type: string, enum: [A, B]}
              port: {x-kubernetes-int-or-string: true}
              note: {type: string, nullable: true}
              tags: {type: array, maxItems: 2, x-kubernetes-list-type: set, items: {type: string}}
              rollout:
                type: object
                default: {}
                description: How it rolls.
                properties:
                  deadline:
                    type: string
                    default: 30m
                    description: The longest time.
                    pattern: ^([0-9]+(ms|s|m|h))+$
                    x-kubernetes-validations: [{rule: duration(self) > duration('1s'), message: is too short}]
              env:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, value: {type: string}}
              config: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            properties:
              replicas: {type: integer}
              conditions:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [type]
                items: {type: object, required: [type], properties: {type: {type: string}, status: {type: string}}}
"""
)


class Clock:
    """A time that moves when the test says so."""

    def __init__(self) -> None:
        self.at = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def move(self, **span: float) -> None:
        self.at += timedelta(**span)


class FixedLogs:
    """The log of every container: three lines."""

    def stream(self, pod: Object, container: str, options: LogOptions, *, previous: bool) -> AsyncIterator[bytes]:
        if previous:
            raise LookupError(f"previous terminated container {container} not found")
        return self._lines(pod["metadata"]["name"], options)

    async def _lines(self, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        for number in range(3)[-(options.tail_lines or 3) :]:
            yield f"{name} {number}\n".encode()


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster with the namespace `default` and the kind Widget."""
    with ObjectStore(folder / "store.sqlite") as store:
        cluster = Cluster(store, Clock())
        if not cluster.find("namespaces", "", "default"):
            await cluster.create("namespaces", {"metadata": {"name": "default"}})
            await cluster.create("serviceaccounts", {"metadata": {"name": "default", "namespace": "default"}})
            await cluster.create(DEFINITIONS, WIDGET_DEFINITION)
        yield cluster


@dataclass
class Server:
    """A running API server, its cluster, and a client with the admin token."""

    cluster: Cluster
    api: ApiServer
    http: httpx2.AsyncClient


@asynccontextmanager
async def running_api(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[ApiServer, httpx2.AsyncClient]]:
    """An API server that does not listen yet, and a client that may do all."""
    api = ApiServer(cluster, folder)
    headers = {"Authorization": f"Bearer {(folder / 'ca' / 'admin.token').read_text()}"}
    context = ssl.create_default_context(cafile=str(folder / "ca" / "server.crt"))
    async with httpx2.AsyncClient(headers=headers, verify=context, timeout=30) as http:
        yield api, http


@asynccontextmanager
async def a_server(folder: Path) -> AsyncIterator[Server]:
    started = a_cluster(folder)
    async with started as cluster, running_api(cluster, folder) as (api, http), api.running(FixedLogs().stream) as url:
        http.base_url = httpx2.URL(url)
        yield Server(cluster, api, http)
        await http.aclose()


def widget(name: str = "a", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"size": "1Gi", **spec}}


def config_map(name: str = "a", **metadata: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "data": {"a": "1"}}


def pod(name: str = "a", **spec: Any) -> Object:
    container = {"name": "main", "image": "pavane"}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}
