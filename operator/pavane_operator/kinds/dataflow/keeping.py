"""Hands the scripts of Dataflows to their ComputeClusters, and says how far their views are (operator.md 1.8).

A kind without pods needs no plan: a pass over all of them looks, applies and says. What it applies is complete each
time, so a Dataflow that was deleted takes its script along.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import httpx2
import structlog

from pavane.runtime.asking import ask
from pavane.runtime.names import bracketed
from pavane.runtime.ops import OPS_PORT
from pavane_operator.crds.computecluster import DEFINITION as COMPUTE
from pavane_operator.crds.dataflow import DEFINITION, DataflowStatus
from pavane_operator.kinds.dataflow.handing import MANAGER, Handing, Verdict, handing, missing, owned, status
from pavane_operator.kinds.podless import PodlessKind
from pavane_operator.kube import Conflict, Invalid, KubeError
from pavane_operator.kube.resources import PODS, Object, custom
from pavane_operator.plan.model import GENERATION_LABEL

POD_S = 2.0
DATAFLOWS = custom(DEFINITION.name, DEFINITION.plural)
COMPUTE_CLUSTERS = custom(COMPUTE.name, COMPUTE.plural)

log = structlog.get_logger(__name__)


class Dataflows(PodlessKind):
    """Looks after all Dataflows. It also hears of ComputeClusters: their status says whether the scripts are those of
    the generation that writes."""

    watched = (DATAFLOWS, COMPUTE_CLUSTERS)

    async def look(self) -> None:
        """Give each ComputeCluster its scripts and each Dataflow its status. Raises ``KubeError``."""
        of: defaultdict[tuple[str, str], list[Object]] = defaultdict(list)
        for body in await self._listed(DATAFLOWS):
            of[body["metadata"]["namespace"], body["spec"]["computeClusterRef"]["name"]].append(body)
        clusters = {
            (body["metadata"]["namespace"], body["metadata"]["name"]): body
            for body in await self._listed(COMPUTE_CLUSTERS)
        }
        for key in sorted({*of, *(key for key, body in clusters.items() if owned(body))}):
            try:
                await self._serve(clusters.get(key), of[key], *key)
            except KubeError as error:
                log.warning("Dataflows of a ComputeCluster wait", namespace=key[0], name=key[1], error=str(error))
            except Exception:  # such as a pod that says what no view says: the others are looked after
                log.exception("Dataflows of a ComputeCluster cannot be looked after", namespace=key[0], name=key[1])

    async def _serve(self, cluster: Object | None, dataflows: list[Object], namespace: str, name: str) -> None:
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            verdicts: dict[str, Verdict] = {body["metadata"]["name"]: missing(name) for body in dataflows}
            cluster = said = None
        else:
            result = await asyncio.to_thread(handing, cluster, dataflows)  # it reads scripts
            verdicts = result.verdicts
            cluster = await self._applied(cluster, result, namespace, name)
            said = await self._said(cluster, namespace, name) if dataflows else None
        for body in dataflows:
            own = body["metadata"]["name"]
            wanted = status(body, verdicts[own], cluster, said, self._around.now())
            held = DataflowStatus.parse(body.get("status"))
            if held is None or held.in_key_order() != wanted.in_key_order():
                document = {"metadata": {"name": own, "uid": body["metadata"]["uid"]}, "status": wanted.dump()}
                await self._kube.apply_status(DATAFLOWS, document, namespace)

    async def _applied(self, cluster: Object, result: Handing, namespace: str, name: str) -> Object:
        """Give a ComputeCluster its scripts, and return it as it is then."""
        present = cluster["spec"].get("scripts") or {}
        brought = {each: present.get(each) for each in owned(cluster)}
        if brought == result.scripts:
            return cluster
        metadata = {"name": name, "uid": cluster["metadata"]["uid"]}  # of one that was made anew nothing is known
        spec = {"scripts": result.scripts} if result.scripts else {}
        try:
            body = {"metadata": metadata, "spec": spec}
            return await self._kube.apply(COMPUTE_CLUSTERS, body, namespace, manager=MANAGER)
        except (Conflict, Invalid) as error:
            log.warning("a ComputeCluster does not take its scripts", namespace=namespace, name=name, error=str(error))
            return cluster

    async def _said(self, cluster: Object, namespace: str, name: str) -> dict[str, Any] | None:
        """Return what the pod of the generation that writes says of its views."""
        active = str((cluster.get("status") or {}).get("activeGeneration", ""))
        for resource, body in self._around.members(COMPUTE.name, namespace, name):
            labels, address = body["metadata"].get("labels") or {}, (body.get("status") or {}).get("podIP")
            if resource == PODS and address and labels.get(GENERATION_LABEL) == active:
                try:
                    answer = await ask(
                        self._around.http, "GET", f"http://{bracketed(address)}:{OPS_PORT}/views", within_s=POD_S
                    )
                    return answer.document()
                except (httpx2.HTTPError, ValueError):
                    continue
        return None
