"""How a generation of a RaftCluster gets the fence: one joint change of members (docs/specs/operator.md 3.1).

The fence is the configuration in the log, and the store's own protocol moves it. Nothing here believes an answer: what
counts is what the members tell of themselves afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from pavane.raft.client import RaftClient
from pavane.raft.errors import Expired, RaftError, Refused
from pavane.raft.keys import RaftKeys
from pavane.raft.state.configuration import Members
from pavane.raft.wire.reqid import rollout_reqid
from pavane.runtime.names import bracketed
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.raft import names
from pavane_operator.kinds.raft.facts import (
    ALLOW_WRITES,
    CHANGE_MEMBERS,
    SCALE_MEMBERS,
    PeerView,
    facts,
    has_members,
    members_due,
    replicas_of_generation,
)
from pavane_operator.kinds.raft.keys import known, name_of
from pavane_operator.kinds.raft.peers import peer_view
from pavane_operator.plan.children import find
from pavane_operator.plan.model import Facts, Observed, Resource
from pavane_operator.plan.port import PromotionStep

STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True), PromotionStep(CHANGE_MEMBERS, irreversible=True))
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)
CHANGE_MEMBERS_NUMBER = 3
"""Of the step in 3.1; goes into its request id."""
SCALE_MEMBERS_NUMBERS = 1000
"""The same for changes within a generation: plus the index of the configuration that the change begins from."""
STATUS_TIMEOUT_S = 0.5
"""Per pod: a pod that takes longer counts as silent in this look; the next look asks again."""
STATUS_TIMEOUT_SILENT_S = 0.1
"""For a pod that was silent in the last look, while a leader is known: a dead one must not hold up every plan of a
promotion. Without a leader the silent one may be it: then all get the same time, also on a machine that is slow."""
CHANGE_TIMEOUT_S = 8.0
"""Of one request; below the time-out of a step, so that the step can still say what it met."""
SETTLED_POLL_S = 0.05
"""Between two looks whether `Cnew` is committed; the write gap is running, so it is short."""

log = structlog.get_logger(__name__)


class RaftPromotion:
    """Implements `pavane_operator.plan.port.Promotion` for one resource.

    Pods are addressed by what the API server says of them, never by DNS: a name may be older than its pod.
    """

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._addresses: dict[str, str] = {}
        self._client: RaftClient | None = None
        self._client_keys: RaftKeys | None = None
        self._expired_at: datetime | None = None
        self._ahead_s = 0  # the leader's clock, since it refused a request of this one's
        self._silent: set[str] = set()
        self._leader_known = False

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Ask all pods for their status at the same time; one that does not answer in time counts as absent."""
        views = await self._ask(resource, observed)
        step = resource.status.rollout.step if resource.status is not None and resource.status.rollout else None
        expired = step is not None and step.at == self._expired_at
        found = facts(resource, observed, views, request_expired=expired)
        # Without keys nobody was asked, which says nothing about whom clients with keys hear.
        return found if self._client is not None or not self._addresses else replace(found, down=None)

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """Step 3, or *Scaling*: ask for the joint change, then wait until the new configuration is committed.

        Raises RaftError when the cluster refuses or does not answer, TimeoutError by the caller's clock.
        """
        views = await self._ask(resource, observed)
        change = _change(name, resource, observed, views)
        if change is None or has_members(views, change.ids):
            return
        keys = _keys(resource, observed)
        if keys is None or not self._addresses:
            raise ConnectionError(
                "no pod has an address yet, or a Secret with the cluster's keys is missing or damaged"
            )
        at_s = int(at.timestamp()) + self._ahead_s
        reqid = rollout_reqid(self._uid, change.generation, change.number, at_s)
        seeds = [_url(address) for address in self._addresses.values()]
        try:
            async with RaftClient(seeds, keys.ident, curve=keys.curve, resolve=self._resolve) as client:
                try:
                    await client.change_members(change.members, reqid=reqid, timeout_s=CHANGE_TIMEOUT_S)
                except Expired:
                    self._expired_at = at
                    # If this clock is wrong or the leader's is, the next time would be no better.
                    with contextlib.suppress(RaftError):
                        self._ahead_s = round(await client.clock_ahead_s())
                    raise
        except Refused as error:
            # "no change in membership": an earlier call, or another operator's, has done it already.
            log.info("change of members refused", resource=self._name, error=str(error))
            if not has_members(await self._ask(resource, observed), change.ids):
                raise
        while not has_members(await self._ask(resource, observed), change.ids):  # noqa: ASYNC110
            await asyncio.sleep(SETTLED_POLL_S)

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: learners are in no configuration."""

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _ask(self, resource: Resource, observed: Observed) -> list[PeerView]:
        client = await self._connect(resource, observed)
        if client is None:
            return []
        asked = [(pod.name, pod.address) for pod in observed.pods if pod.address is not None]
        answers = await asyncio.gather(*(self._view(client, name, address) for name, address in asked))
        views = [view for view in answers if view is not None]
        self._leader_known = any(view.leads for view in views)
        return views

    async def _view(self, client: RaftClient, name: str, address: str) -> PeerView | None:
        timeout_s = STATUS_TIMEOUT_SILENT_S if self._leader_known and name in self._silent else STATUS_TIMEOUT_S
        view = None
        with contextlib.suppress(RaftError):
            view = peer_view(await client.status(_url(address), timeout_s=timeout_s))
        if view is None or view.id != name:  # another pod may have got the address meanwhile
            self._silent.add(name)
            return None
        self._silent.discard(name)
        return view

    async def _connect(self, resource: Resource, observed: Observed) -> RaftClient | None:
        """A client that is used for `status` alone; None while there is nobody to talk to or nothing to show.

        Where the keys are gone the one that was opened with them goes on.
        """
        self._addresses = {pod.name: pod.address for pod in observed.pods if pod.address is not None}
        keys = _keys(resource, observed) if self._addresses else None
        if keys is None:
            return self._client
        if self._client is not None and self._client_keys != keys:
            await self.close()
        if self._client is None:
            seeds = [_url(address) for address in self._addresses.values()]
            client = RaftClient(seeds, keys.ident, curve=keys.curve, resolve=self._resolve)
            self._client = await client.__aenter__()
            self._client_keys = keys
        return self._client

    def _resolve(self, host: str) -> list[str]:
        """Addresses of a member's host name, `{pod}.{headless service}.{namespace}.svc`."""
        address = self._addresses.get(host.partition(".")[0])
        return [] if address is None else [address]


def _keys(resource: Resource, observed: Observed) -> RaftKeys | None:
    child = find(observed.children, "Secret", name_of(resource.name))
    if child is None:
        return None
    try:
        return known(child.body, spec_of(resource, RaftClusterSpec).secret_ref, observed.references)
    except ValueError as error:
        log.warning("the keys of a cluster are missing or damaged", resource=resource.name, error=str(error))
        return None


@dataclass(frozen=True, slots=True)
class _Change:
    """A joint change of members and what its request id is made of."""

    generation: int
    number: int
    members: Members

    @property
    def ids(self) -> list[str]:
        return [peer for peer, _ in self.members]


def _change(name: str, resource: Resource, observed: Observed, views: Sequence[PeerView]) -> _Change | None:
    """The change that a step stands for; None where nothing is to be changed any more."""
    assert resource.status is not None  # noqa: S101 - a recorded step stands in a status
    coming, active = resource.status.next_generation, resource.status.active_generation
    if name == CHANGE_MEMBERS and coming is not None:
        count = replicas_of_generation(resource, observed, coming)
        members = tuple(names.members(resource.name, resource.namespace, coming, count))
        return _Change(coming, CHANGE_MEMBERS_NUMBER, members)
    if name == SCALE_MEMBERS and active is not None:
        due = members_due(resource, observed, views)
        return None if due is None else _Change(active, SCALE_MEMBERS_NUMBERS + due.base_index, due.members)
    raise ValueError(f"RaftCluster has no step {name} now")


def _url(address: str) -> str:
    return f"tcp://{bracketed(address)}:{names.RAFT_PORT}"
