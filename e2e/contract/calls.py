"""Which kinds of calls the platform makes: `python -m e2e.contract.calls` records them into calls.txt.

A platform runs through the life of a resource, operated by the command line, on an embedded server that writes down
every request. One line per kind of call: client, verb, resource, and the shape of query and body. The contract tests
make each of them to both servers, so what they cover is what the platform does, not what somebody thought of.
"""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl

import yaml
from starlette.types import Message, Receive, Scope, Send

from pavane_cli.commands.resources import is_current
from pavane_local.api import server
from pavane_local.api.app import PATCH_KINDS, Api, target_of
from pavane_local.platform import LocalCluster, LocalSettings, local_cluster
from pavane_local.store import Object

RECORDED = Path(__file__).with_name("calls.txt")
RESOURCE: Object = {
    "apiVersion": "pavane.dev/v1alpha1",
    "kind": "RaftCluster",
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {
        "stateMachine": "Broadcast",
        "replicas": 1,
        "storage": {"size": "64Mi"},
        "rollout": {"caughtUp": {"stabilityPeriod": "200ms"}, "retireDelay": "0s"},
    },
}
LOOKS = (
    "get raft", "get raft/q", "get raft/q -o yaml", "describe raft/q", "tree raft/q", "why raft/q",
    "rollout status raft/q", "rollout history raft/q", "rollout diff raft/q", "raft info q", "raft read q",
    "logs q-server-g1-0",
)  # fmt: skip
DECISIONS = ("rollout pause raft/q", "rollout resume raft/q", "rollout restart raft/q")
UNTIL_S = 60.0


def kind_of(
    client: str, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any
) -> str:
    """One kind of call as a line, without names, numbers and what else differs from run to run."""
    resource, shape = _named(path, query)
    verb = {"GET": "watch" if "watch" in query else "get"}.get(method, method.lower())
    if method == "PATCH":
        verb = PATCH_KINDS[headers["content-type"].split(";")[0]]
    for name in sorted(query.keys() - {"watch"}):
        literal = query[name] if name in ("force", "fieldValidation", "dryRun") else ""
        if name == "resourceVersion":
            literal = query[name] if query[name] in ("", "0") else "…"
        shape.append(f"{name}={literal}" if literal else name)
    metadata = body.get("metadata") or body.get("preconditions") if isinstance(body, dict) else None
    shape += [f"body:{name}" for name in ("uid", "resourceVersion") if name in (metadata or {})]
    shape += ["as=Table"] * ("as=Table" in headers.get("accept", ""))
    return " ".join([client, verb, resource, *shape])


def _named(path: str, query: Mapping[str, str]) -> tuple[str, list[str]]:
    parts = tuple(part for part in path.split("/") if part)
    found = target_of(_registry, parts)
    if found is None:
        return path, []
    resource = found.resource.key + (f"/{found.subresource}" if found.subresource else "")
    return resource, ["one"] if found.name else ["all"] * (found.namespace is None)


_registry: Mapping[str, Any] = {}


class Recorder(Api):
    """The API of the embedded server, which writes down what it is asked."""

    kinds: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the request and answer it as ever."""
        global _registry
        _registry = self._cluster.registry
        messages: list[Message] = []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
        content = b"".join(each.get("body", b"") for each in messages)
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        client = headers.get("user-agent", "?").split("/")[0]
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        body = yaml.safe_load(content) if content else None
        self.kinds.add(kind_of(client, scope["method"], scope["path"], query, headers, body))

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        await super().__call__(scope, again, send)


async def _pavane(folder: Path, command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pavane_cli.main", *command.split(), cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"pavane {command}: {printed.decode()}")


async def _until(local: LocalCluster, check: Any) -> None:
    async with asyncio.timeout(UNTIL_S):
        while not check(local.cluster.find("raftclusters.pavane.dev", "default", "q")):
            await asyncio.sleep(0.05)


async def record(folder: Path) -> set[str]:
    """Run a platform in `folder` through a life; returns the kinds of calls that it made."""
    manifest = folder / "q.yaml"
    manifest.write_text(yaml.safe_dump(RESOURCE), encoding="utf-8")
    with mock.patch.object(server, "Api", Recorder):
        Recorder.kinds = set()
        async with local_cluster(LocalSettings(folder / ".pavane", fast=True)) as local:
            async with asyncio.timeout(UNTIL_S):
                while not all(map(_is_ready, local.cluster.list("pods", "pavane-system"))):
                    await asyncio.sleep(0.05)
            await _pavane(folder, f"apply -f {manifest}")
            await _until(local, is_current)
            for command in (*LOOKS, *DECISIONS):
                await _pavane(folder, command)
            await _until(local, lambda found: is_current(found) and found["status"]["activeGeneration"] == 2)
            await _pavane(folder, "delete raft/q")
            await _until(local, lambda found: found is None)
    return Recorder.kinds


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def main() -> int:
    """Record and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = asyncio.run(record(Path(folder)))
    RECORDED.write_text("".join(f"{each}\n" for each in sorted(kinds)), encoding="utf-8")
    sys.stdout.write(f"{len(kinds)} kinds of calls in {RECORDED}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
