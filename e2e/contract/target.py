"""An API server under test, embedded or real, as the contract tests see it (docs/specs/operator.md 6.11)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import httpx2
import yaml

from e2e.kubernetes.patience import Patient
from pavane_operator.kube.resources import Object, Resource
from tests.requires import requires

Value = TypeVar("Value")
Server = Literal["embedded", "kubernetes"]

WAIT_S = 30.0
"""For what controllers do; a loaded machine needs more than the second that it takes."""
COLLECTED_S = 75.0
"""Kubernetes' garbage collector looks every 30 s for new kinds, and follows the objects of a kind only from then on."""
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Differs(NamedTuple):
    """A deliberate difference, as docs/differences.md tells it: the same request, two answers, and why."""

    request: str
    embedded: str
    kubernetes: str
    because: str


@dataclass(frozen=True)
class Answer:
    """What a server said: HTTP status, body (an object if it is JSON), and headers."""

    code: int
    body: Any
    headers: Any

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> dict[str, str]:
        """Field → reason of every cause of a refusal."""
        return {each["field"]: each["reason"] for each in self.body["details"].get("causes", ())}

    @property
    def names(self) -> list[str]:
        """Names of the objects of a list."""
        return [each["metadata"]["name"] for each in self.body["items"]]

    def ok(self) -> Object:
        """The body of an answer that must be a success."""
        assert self.code < 300, (self.code, self.body)
        found: Object = self.body
        return found

    def refused(self, code: int, reason: str) -> Answer:
        """Itself, once code and reason are as expected and the body is a `Status`."""
        assert (self.code, self.body.get("reason")) == (code, reason), (self.code, self.body)
        head = {key: self.body[key] for key in ("kind", "apiVersion", "status", "code")}
        assert head == {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        return self


class Event(NamedTuple):
    """One line of a watch."""

    type: str
    object: Object


class Events(Iterator[Event]):
    """The lines of a running watch, in order, until the server ends it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def __next__(self) -> Event:
        line = json.loads(next(self._lines))
        return Event(line["type"], line["object"])

    def until(self, kind: str, name: str) -> Event:
        """The next event of this type about an object of this name."""
        found = next((each for each in self if (each.type, each.object["metadata"]["name"]) == (kind, name)), None)
        assert found, f"the watch ended without {kind} of {name}"
        return found


@dataclass(frozen=True)
class KubeTarget:
    """One API server and the namespace of one test.

    `name` says which server it is, for `either` alone; `version` is what `/version` tells (major, minor).
    """

    name: Server
    kubeconfig: Path
    http: httpx2.Client
    version: tuple[int, int]
    namespace: str = ""
    differs: bool = False

    def either(self, *, embedded: Value, kubernetes: Value) -> Value:
        """What this server answers where the two differ; only for tests whose mark describes the difference."""
        assert self.differs, "a test that expects two answers says so: @pytest.mark.contract(differs=Differs(…))"
        return embedded if self.name == "embedded" else kubernetes

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "", accept: str = "", **query: Any
    ) -> Answer:
        """One request; `kind` names the type of a patch, else bodies are JSON."""
        headers = {"Content-Type": PATCHES.get(kind, "application/json"), "Accept": accept or "application/json"}
        content = None if body is None else json.dumps(body).encode()
        response = self.http.request(method, path, params=query or None, headers=headers, content=content)
        body = json.loads(response.text) if response.text.startswith("{") else response.text
        return Answer(response.status_code, body, response.headers)

    def path(self, resource: Resource, name: str = "", sub: str = "") -> str:
        """Where a resource of this test's namespace, or an object of it, lies."""
        return resource.path(self.namespace if resource.namespaced else None, name or None, sub or None)

    def get(self, resource: Resource, name: str, sub: str = "", **query: Any) -> Answer:
        return self.call("GET", self.path(resource, name, sub), **query)

    def list(self, resource: Resource, **query: Any) -> Answer:
        return self.call("GET", self.path(resource), **query)

    def create(self, resource: Resource, body: Object, **query: Any) -> Answer:
        return self.call("POST", self.path(resource), _typed(resource, body), **query)

    def replace(self, resource: Resource, body: Object, sub: str = "", **query: Any) -> Answer:
        return self.call("PUT", self.path(resource, body["metadata"]["name"], sub), _typed(resource, body), **query)

    def apply(self, resource: Resource, body: Object, manager: str = "one", sub: str = "", **query: Any) -> Answer:
        path = self.path(resource, body["metadata"]["name"], sub)
        return self.call("PATCH", path, _typed(resource, body), kind="apply", fieldManager=manager, **query)

    def patch(
        self, resource: Resource, name: str, patch: Any, kind: str = "merge", sub: str = "", **query: Any
    ) -> Answer:
        return self.call("PATCH", self.path(resource, name, sub), patch, kind=kind, **query)

    def delete(self, resource: Resource, name: str, body: Object | None = None, **query: Any) -> Answer:
        return self.call("DELETE", self.path(resource, name), body, **query)

    @contextlib.contextmanager
    def watch(self, resource: Resource, path: str = "", accept: str = "", **query: Any) -> Iterator[Events]:
        """A watch; it begins before the block does, for the server has answered by then."""
        params = {"watch": "true", "timeoutSeconds": int(WAIT_S), **query}
        headers = {"Accept": accept or "application/json"}
        url = path or self.path(resource)
        with self.http.stream("GET", url, params=params, headers=headers, timeout=2 * COLLECTED_S) as response:
            assert response.status_code == 200, response.read()
            yield Events(line for line in response.iter_lines() if line)

    def until(
        self, resource: Resource, name: str, check: Callable[[Object | None], object], wait_s: float = WAIT_S
    ) -> Object | None:
        """The object (None once it is gone) as soon as `check` holds for it."""
        chosen = {"fieldSelector": f"metadata.name={name}"}
        listed = self.list(resource, **chosen).ok()
        found = next(iter(listed["items"]), None)
        if check(found):
            return found
        chosen |= {"resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": str(int(wait_s))}
        with self.watch(resource, **chosen) as events:
            for event in events:
                found = None if event.type == "DELETED" else event.object
                if check(found):
                    return found
        raise AssertionError(f"{resource.plural} {name}: not within {wait_s:.0f} s; it is {found}")

    def soon(self, ask: Callable[[], Answer], code: int) -> Answer:
        """The answer, once it has this code: a server begins and ends to serve a kind a moment after it says so."""
        end = time.monotonic() + WAIT_S
        while (answer := ask()).code != code and time.monotonic() < end:
            pass  # each question takes a while
        assert answer.code == code, (answer.code, answer.body)
        return answer

    def kubectl(self, *arguments: str, given: str = "", code: int = 0) -> str:
        """Run kubectl in the test's namespace; returns what it printed on both outputs."""
        with self.kubectl_started(*arguments) as process:
            printed, _ = process.communicate(given, timeout=2 * WAIT_S)
        assert process.returncode == code, (arguments, process.returncode, printed)
        return printed

    @contextlib.contextmanager
    def kubectl_started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A running kubectl, which is ended with the block."""
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": str(self.kubeconfig.parent),
        }
        command = [requires("kubectl"), "-n", self.namespace, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            guard = threading.Timer(2 * WAIT_S, process.kill)
            guard.start()
            try:
                yield process
            finally:
                guard.cancel()
                process.terminate()


def _typed(resource: Resource, body: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


@contextlib.contextmanager
def connected(name: Server, kubeconfig: Path) -> Iterator[KubeTarget]:
    """The server that a kubeconfig names: with a token, and a certificate authority as file or inline."""
    told = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    if inline := cluster.get("certificate-authority-data"):
        context = ssl.create_default_context(cadata=base64.b64decode(inline).decode())
    else:
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    headers = {"Authorization": f"Bearer {user['token']}", "User-Agent": "contract/1"}
    transport = Patient(httpx2.HTTPTransport(verify=context))
    with httpx2.Client(base_url=cluster["server"], headers=headers, transport=transport, timeout=WAIT_S) as http:
        version = http.get("/version").json()
        minor = int("".join(filter(str.isdigit, version["minor"])))
        yield KubeTarget(name, kubeconfig, http, (int(version["major"]), minor))


def in_namespace(target: KubeTarget, namespace: str, *, differs: bool) -> KubeTarget:
    """The same server, for one test."""
    return replace(target, namespace=namespace, differs=differs)


def established(definition: Object | None) -> bool:
    """Whether the kind of a CustomResourceDefinition is served."""
    conditions = (definition or {}).get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


async def published(target: KubeTarget, definition: Object) -> bool:
    """Whether the schemas of a CustomResourceDefinition stand in the server's OpenAPI, some time after it is served."""
    spec = definition["spec"]
    index = target.call("GET", "/openapi/v3").ok()["paths"]
    for version in spec["versions"]:
        document = index.get(f"apis/{spec['group']}/{version['name']}")
        if document is None:
            return False
        answer = target.call("GET", document["serverRelativeURL"])
        if answer.code == HTTPStatus.MOVED_PERMANENTLY:  # its address holds its hash: it has changed since the index
            return False
        kinds = answer.ok().get("components", {}).get("schemas", {})
        reversed_group = ".".join(reversed(spec["group"].split(".")))
        if f"{reversed_group}.{version['name']}.{spec['names']['kind']}" not in kinds:
            return False
    return True
