"""Live progress: a picture in place on a terminal, else a line for every state of a rollout and stage of a pod."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import httpx2

from pavane.runtime.asking import ask
from pavane.wire import Stage
from pavane_cli.commands.resources import changes, is_current
from pavane_cli.live import LiveView
from pavane_operator import kube
from pavane_operator.kube.resources import PODS
from pavane_operator.plan.model import GENERATION_LABEL

OPS_PORT = 7071
POLL_S = 0.5  # a look at each pod takes CPU time that pods which start need themselves
STAGE_TIMEOUT_S = 1.0


class Progress:
    """Follows one resource; ``view`` shows it, or ``say`` gets lines, which begin with the seconds since the start."""

    def __init__(
        self,
        client: kube.KubeClient,
        resource: kube.Resource,
        namespace: str,
        name: str,
        say: Callable[[str], None],
        view: LiveView,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._name = name
        self._say = say
        self._view = view
        self._started = time.monotonic()
        self._stages: dict[str, str] = {}
        self._serving = asyncio.Event()  # every pod is Ready and may write

    async def until_current(self, timeout_s: float) -> kube.Object:
        """Return the resource once its spec is Ready, its pods serve and nothing is rolled out; raises TimeoutError.

        The pods are asked as well: after a restart of everything the status is of a former life.
        """
        pods = asyncio.create_task(self._follow_pods())
        last = ""
        try:
            async with asyncio.timeout(timeout_s):
                async with changes(self._client, self._resource, self._namespace, self._name) as seen:
                    async for change in seen:
                        status = change.object.get("status") or {}
                        rollout = status.get("rollout") or {}
                        state = rollout.get("state", "Idle")
                        if self._view.in_place:
                            self._view.update(change.object, "")
                        if state != last:
                            number = status.get("nextGeneration") or status.get("activeGeneration")
                            self._line(self._name, state, f"generation {number}" if number else "")
                            last = state
                        if is_current(change.object):
                            await self._serving.wait()
                            return change.object
        finally:
            pods.cancel()
            await asyncio.gather(pods, return_exceptions=True)
        raise AssertionError("a watch goes on for ever")

    def _line(self, what: str, word: str, more: str = "") -> None:
        if not self._view.in_place:
            self._say(f"   {time.monotonic() - self._started:5.1f} s  {what:<28} {word:<16} {more}".rstrip())

    async def _follow_pods(self) -> None:
        """Ask every pod for its stage, and say when it is another one, or when the pod is gone."""
        labels = f"app.kubernetes.io/instance={self._name}"
        async with kube.pods_http() as http:
            while True:
                with contextlib.suppress(kube.KubeError):
                    pods = (await self._client.list_all(PODS, self._namespace, labels=labels)).items
                    seen = {pod["metadata"]["name"]: (pod.get("status") or {}).get("podIP") for pod in pods}
                    for name in sorted(self._stages.keys() - seen.keys()):
                        del self._stages[name]
                        self._line(name, "gone")
                    leaving = {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")}
                    asked = sorted(seen.keys() - leaving)
                    await asyncio.gather(*(self._ask(http, name, seen[name]) for name in asked))
                    if pods and all(self._serves(pod) for pod in pods):
                        self._serving.set()
                    else:
                        self._serving.clear()
                await asyncio.sleep(POLL_S)

    def _serves(self, pod: kube.Object) -> bool:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        staged = GENERATION_LABEL in pod["metadata"]["labels"]  # others belong to the resource
        return ready and (not staged or self._stages.get(pod["metadata"]["name"]) == Stage.READ_WRITE.title)

    async def _ask(self, http: httpx2.AsyncClient, name: str, address: str | None) -> None:
        if address is None:
            return
        try:
            url = f"http://{address}:{OPS_PORT}/stage"
            report = (await ask(http, "GET", url, within_s=STAGE_TIMEOUT_S)).document()
            stage, more = str(report["stage"]), f"log {report['progress']} of {report['target']}"
        except (httpx2.HTTPError, ValueError, KeyError):
            return
        if self._stages.get(name) != stage:
            self._stages[name] = stage
            self._line(name, stage, more)
