"""Events about resources, aggregated by reason and object, so that a loop of errors is one line with a count.

A server lets nobody change the note of an event. So another note is another event, but for warnings: their notes carry
whatever an error says, and the first one stands for the others of its reason.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog

from pavane_operator.kube import KubeClient, KubeError, NotFound
from pavane_operator.kube.resources import EVENTS, Object

AGGREGATION = timedelta(minutes=10)
"""Events of one reason about one object within this time are one event with a count (docs/specs/operator.md 5.10)."""
NOTE_BYTES_MAX = 1000
"""The API allows 1 kB."""
SERIES_MAX = 1000
"""Open series remembered; the oldest is forgotten and would begin anew."""
CONTROLLER = "pavane.dev/operator"

EventType = Literal["Normal", "Warning"]

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Series:
    name: str
    began: datetime
    count: int


class EventRecorder:
    """Posts events; an event that cannot be posted is logged and lost, it is never worth a failed reconcile."""

    def __init__(self, kube: KubeClient, instance: str, rng: random.Random) -> None:
        self._kube = kube
        self._instance = instance
        self._rng = rng
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    async def post(
        self, regarding: Object, event_type: EventType, reason: str, note: str, now: datetime, *, action: str = ""
    ) -> None:
        """Record that `reason` (CamelCase) happened to the object; `note` is a sentence for people, `now` is UTC."""
        metadata = regarding["metadata"]
        note = note.encode()[:NOTE_BYTES_MAX].decode(errors="ignore")
        key = (str(metadata["uid"]), reason, note if event_type == "Normal" else "")
        series = self._series.get(key)
        try:
            if series is not None and now - series.began < AGGREGATION:
                await self._again(metadata["namespace"], series, now)
                return
            # Lists come by name, and kubectl describe has no other order for events of this API: names grow with time.
            moment = int(now.timestamp() * 1_000_000)
            series = _Series(f"{metadata['name']}.{moment:014x}{self._rng.getrandbits(16):04x}", now, 1)
            event = self._event(regarding, series.name, event_type, reason, note, action or reason, now)
            # The server forgets events within the hour; the log is what is left to tell what happened.
            tell = log.warning if event_type == "Warning" else log.info
            tell(note, reason=reason, kind=regarding["kind"], namespace=metadata["namespace"], name=metadata["name"])
            await self._kube.create(EVENTS, event, metadata["namespace"])
        except KubeError as error:
            log.warning("event not posted", reason=reason, note=note, error=str(error))
            return
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)

    async def _again(self, namespace: str, series: _Series, now: datetime) -> None:
        series.count += 1
        change: Object = {"series": {"count": series.count, "lastObservedTime": _micro(now)}}
        try:
            await self._kube.patch(EVENTS, series.name, change, namespace)
        except NotFound:
            series.began = now - AGGREGATION  # the server has dropped it; the next one begins a series

    def _event(
        self,
        regarding: Object,
        name: str,
        event_type: EventType,
        reason: str,
        note: str,
        action: str,
        now: datetime,
    ) -> Object:
        metadata = regarding["metadata"]
        return {
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": _micro(now),
            "type": event_type,
            "reason": reason,
            "note": note,
            "action": action,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }


def _micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
