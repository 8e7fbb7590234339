"""What an immortal is at this moment: what its application and its coordinators tell."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic import ValidationError

from pavane.runtime.asking import ask
from pavane_api.control import Control
from pavane_api.immortals.schemas import CoordinatorInfo, ImmortalApplication, ImmortalInfo, PeerInfo
from pavane_api.kinds import COORDINATORS
from pavane_api.pods import service as pods
from pavane_api.services_http import address_of
from pavane_operator import kube
from pavane_operator.kinds.coordinator.names import HTTP

ASK_S = 2.0
"""Who needs longer is shown as one that does not answer."""


async def info(control: Control, namespace: str, name: str) -> ImmortalInfo:
    """Ask all of them at once. Raises ``kube.NotFound``."""
    document = await control.kube.get(COORDINATORS, name, namespace)
    found = await pods.bodies_of(control.kube, document)
    application, *coordinators = await asyncio.gather(
        _application(control.pods, namespace, name), *(_coordinator(control.pods, body) for body in found)
    )
    return ImmortalInfo(application=application, coordinators=[each for each in coordinators if each is not None])


async def _application(http: httpx2.AsyncClient, namespace: str, name: str) -> ImmortalApplication | None:
    try:
        host = await address_of(namespace, name)
        answer = await ask(http, "GET", f"http://{host}:{HTTP.number}/", within_s=ASK_S)
        return ImmortalApplication.model_validate(answer.document())
    except (socket.gaierror, httpx2.HTTPError, ValidationError, ValueError):
        return None


async def _coordinator(http: httpx2.AsyncClient, body: kube.Object) -> CoordinatorInfo | None:
    told = await pods.ask(http, body, "/instance")
    if told is None:
        return None
    try:
        return _read(body["metadata"]["name"], pods.generation_of(body) or 0, told)
    except ValidationError:
        return None


def _read(pod: str, generation: int, told: Mapping[str, Any]) -> CoordinatorInfo:
    peers: Mapping[str, str] = told.get("peers") or {}
    return CoordinatorInfo(
        pod=pod,
        generation=generation,
        live=bool(told.get("live")),
        stage=str(told.get("stage", "")),
        phase=told.get("phase"),
        next_record=told.get("nextSeq"),
        log=told.get("log"),
        checkpoint=told.get("checkpoint"),
        replayed_bytes=told.get("replayedBytes"),
        behind_bytes=told.get("behindBytes"),
        impulses_dropped=told.get("impulsesDropped"),
        peers=[PeerInfo(name=peer, link=link) for peer, link in sorted(peers.items())],
    )
