"""Which kinds of calls the platform makes: `python -m e2e.contract.calls` records them into calls.txt.

A platform runs through the life of a resource, operated by the command line, on an embedded server that writes down
every request. One line per kind of call: client, verb, resource, and the shape of query and body. `test_recorded.py`
makes each of them to both servers, so what is covered is what the platform does, not what somebody thought of.
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

from e2e.waiting import eventually
from pavane_cli.commands.resources import is_current
from pavane_local.api import server
from pavane_local.api.app import PATCH_KINDS, Api, target_of
from pavane_local.api.kinds import Resource
from pavane_local.platform import LocalSettings, local_cluster
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
COMMANDS = (
    "get raft", "get raft/q", "get raft/q -o yaml", "describe raft/q", "tree raft/q", "why raft/q",
    "rollout status raft/q", "rollout history raft/q", "rollout diff raft/q", "raft info q", "raft read q",
    "logs q-server-g1-0", "rollout pause raft/q", "rollout resume raft/q", "rollout restart raft/q",
)  # fmt: skip


def kind_of(registry: Mapping[str, Resource], scope: Scope, content: bytes) -> str:
    """One kind of call as a line, without names, numbers and what else differs from run to run."""
    headers = {key.decode(): value.decode() for key, value in scope["headers"]}
    query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
    found = target_of(registry, tuple(part for part in scope["path"].split("/") if part))
    resource, shape = scope["path"], []
    if found is not None:
        resource = "/".join(filter(None, (found.resource.key, found.subresource)))
        shape = ["one"] if found.name else ["all"] * (found.namespace is None)
    verb = "watch" if "watch" in query else scope["method"].lower()
    if verb == "patch":
        verb = PATCH_KINDS[headers["content-type"].split(";")[0]]
    for name in sorted(query.keys() - {"watch"}):
        told = query[name] if name in ("force", "fieldValidation", "dryRun") else ""
        shape.append(f"{name}={told}" if told else name)
    body = yaml.safe_load(content) if content else None
    named = (body.get("metadata") or body.get("preconditions") or {}) if isinstance(body, dict) else {}
    shape += [f"body:{name}" for name in ("uid", "resourceVersion") if name in named]
    shape += ["as=Table"] * ("as=Table" in headers.get("accept", ""))
    return " ".join([headers.get("user-agent", "?").split("/")[0], verb, resource, *shape])


def recorder(kinds: set[str]) -> type[Api]:
    """The API of the embedded server, which writes the kinds of calls that it answers into `kinds`."""

    class Recorder(Api):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            messages: list[Message] = []
            while not messages or messages[-1].get("more_body"):
                messages.append(await receive())
            content = b"".join(each.get("body", b"") for each in messages)
            kinds.add(kind_of(self._cluster.registry, scope, content))

            async def again() -> Message:
                return messages.pop(0) if messages else await receive()

            await super().__call__(scope, again, send)

    return Recorder


async def record(folder: Path) -> set[str]:
    """Run a platform in `folder` through a life; returns the kinds of calls that it made."""
    manifest = folder / "q.yaml"
    manifest.write_text(yaml.safe_dump(RESOURCE), encoding="utf-8")
    kinds: set[str] = set()
    with mock.patch.object(server, "Api", recorder(kinds)):
        async with local_cluster(LocalSettings(folder / ".pavane", fast=True)) as local:

            async def platform() -> bool:
                return all(map(_is_ready, local.cluster.list("pods", "pavane-system")))

            async def current() -> Any:
                found = local.cluster.get("raftclusters.pavane.dev", "default", "q")
                return is_current(found) and found["status"]["activeGeneration"]

            async def second() -> bool:
                return bool(await current() == 2)

            async def gone() -> bool:
                return local.cluster.find("raftclusters.pavane.dev", "default", "q") is None

            await eventually(platform, "operator and control plane are ready")
            await _pavane(folder, f"apply -f {manifest.name}")
            await eventually(current, "the resource is current")
            for command in COMMANDS:
                await _pavane(folder, command)
            await eventually(second, "the second generation is active")
            await _pavane(folder, "delete raft/q")
            await eventually(gone, "the resource is gone")
    return kinds


async def _pavane(folder: Path, command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pavane_cli.main", *command.split(), cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"pavane {command}: {printed.decode()}")


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def main() -> int:
    """Record, and add to the file: some calls come only when a run takes long. Remove the file to begin anew."""
    kinds = set(RECORDED.read_text(encoding="utf-8").splitlines()) if RECORDED.exists() else set()
    with tempfile.TemporaryDirectory() as folder:
        kinds |= asyncio.run(record(Path(folder)))
    RECORDED.write_text("".join(f"{each}\n" for each in sorted(kinds)), encoding="utf-8")
    sys.stdout.write(f"{len(kinds)} kinds of calls in {RECORDED}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
