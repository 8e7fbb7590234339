"""The load: a pod beside the cluster under test that writes all the time and proves at its end what became of it.

It is a pod because only pods reach pods on every target; the test follows its log.
"""

import asyncio
import contextlib
import json
from types import TracebackType
from typing import Any, Self

from e2e.waiting import READY_S, eventually
from pavane_cli.probe import Proof
from pavane_operator.kube import KubeClient, KubeError, Object
from pavane_operator.kube.resources import PODS

KEYS = "/etc/pavane/keys"
SECRET = "/etc/pavane/secret"
WARM_UP_WRITES = 50
"""Acknowledged writes that a test waits for before and after what it does to the cluster."""
GRACE_S = 120
"""For the end of the probe: writes under way may take a minute, then it reads the whole log."""


class Writer:
    """A running probe; `async with` starts and removes its pod. The test calls `stop` to get the proof."""

    def __init__(self, kube: KubeClient, namespace: str, label: str, resource: Object, image: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._pod = f"probe-{label}"
        self._body = _pod(self._pod, label, resource, image)
        self._following: asyncio.Task[None] | None = None
        self._proof: Proof | None = None
        self._progress = asyncio.Event()
        self._last_words: list[str] = []
        self.acknowledged = 0
        """Writes acknowledged so far, a moment ago."""

    async def __aenter__(self) -> Self:
        await self._kube.create(PODS, self._body, self._namespace)
        self._following = asyncio.create_task(self._follow(), name=f"log of {self._pod}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        await self._kube.delete(PODS, self._pod, self._namespace)

    async def reach(self, acknowledged: int, timeout_s: float = READY_S) -> None:
        """Wait until so many writes are acknowledged."""
        await self._until(lambda: self.acknowledged >= acknowledged, f"{acknowledged} writes", timeout_s)

    async def more(self, writes: int) -> None:
        """Wait until so many further writes are acknowledged."""
        await self.reach(self.acknowledged + writes)

    async def stop(self) -> Proof:
        """Finish the writes under way and return the proof; its pod is gone then."""
        await self._kube.delete(PODS, self._pod, self._namespace)
        await self._until(lambda: self._proof is not None, "the proof", GRACE_S)
        assert self._proof is not None
        return self._proof

    async def _until(self, holds: Any, what: str, timeout_s: float) -> None:
        assert self._following is not None, "the writer has not been started"

        async def waits() -> None:
            while not holds():
                self._progress.clear()
                await self._progress.wait()

        waiting = asyncio.create_task(waits())
        try:
            done, _ = await asyncio.wait(
                {waiting, self._following}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._following in done:
                self._following.result()
            said = f"{self._pod}: {self.acknowledged} acknowledged; last words: {self._last_words[-3:]}"
            assert holds(), f"{what}: not within {timeout_s:.0f} s; {said}"
        finally:
            waiting.cancel()

    async def _follow(self) -> None:
        """Read the log from its beginning, again when the connection ends early, until the proof is there."""

        async def running() -> bool:
            pod = await self._kube.get(PODS, self._pod, self._namespace)
            states = (pod.get("status") or {}).get("containerStatuses") or ()
            assert all(one["restartCount"] == 0 for one in states), f"the probe ended by itself: {states}"
            return any("running" in one["state"] for one in states)

        await eventually(running, f"{self._pod} runs")
        while self._proof is None:
            rest = b""
            with contextlib.suppress(KubeError):
                async for piece in self._kube.pod_logs(self._pod, self._namespace, follow=True):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._take(line.decode(errors="replace"))
            if self._proof is None:
                await running()  # raises when the pod is gone or its process ended

    def _take(self, line: str) -> None:
        if line.startswith('{"acknowledged"'):
            self.acknowledged = max(self.acknowledged, json.loads(line)["acknowledged"])
        elif line.startswith('{"proof"'):
            self._proof = Proof(**json.loads(line)["proof"])
            self.acknowledged = self._proof.acknowledged
        else:
            self._last_words.append(line)
        self._progress.set()


def shown(what: str, run: int, proof: Proof) -> None:
    """Print what a run under load has shown."""
    gap = f"{proof.longest_gap_s * 1000:.0f} ms"
    counts = f"{proof.acknowledged} acknowledged, {proof.lost} lost, {proof.doubled} doubled, {proof.unfenced} unfenced"
    print(f"{what} {run}: {counts}, {proof.leaders} leaders, gap {gap}")  # noqa: T201


def _pod(pod: str, label: str, resource: Object, image: str) -> Object:
    name = resource["metadata"]["name"]
    endpoints = (resource.get("status") or {}).get("endpoints") or ()
    seeds = [f"tcp://{item['address']}:{item['port']}" for item in endpoints if item["name"] == "raft"]
    arguments = [part for seed in seeds for part in ("--seed", seed)] + ["--keys", KEYS, "--label", label]
    secrets = {"keys": (KEYS, f"{name}-keys")}
    reference = resource["spec"].get("secretRef")
    if reference is not None:
        secrets["secret"] = (SECRET, reference["name"])
        arguments += ["--secret-file", f"{SECRET}/{reference['key']}"]
    return {
        "metadata": {"name": pod, "labels": {"app.kubernetes.io/name": "probe"}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "command": ["pavane", "raft", "probe"],
                    "args": arguments,
                    "volumeMounts": [{"name": volume, "mountPath": path} for volume, (path, _) in secrets.items()],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [{"name": volume, "secret": {"secretName": of}} for volume, (_, of) in secrets.items()],
        },
    }
