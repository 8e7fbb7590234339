"""Leader election by the Lease `pavane-operator` (docs/specs/operator.md 5.6).

Its number of transitions is the operator's epoch: it grows with each holder, so every operator supersedes all earlier
ones on every stage stream. Time is measured by our own clock from what we saw and did, never by the stamps of others.
"""

from __future__ import annotations

import asyncio
import hmac
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from pavane_operator.crds.definitions import GROUP, KINDS
from pavane_operator.kube import Conflict, Forbidden, KubeClient, KubeError, NotFound
from pavane_operator.kube.resources import CRDS, LEASES, Object

LEASE_NAME = "pavane-operator"
LEASE_DURATION_S = 15.0
"""A Lease that did not change for so long has no holder any more."""
RENEW_DEADLINE_S = 10.0
"""A holder that could not renew for so long stops at once. The rest of the duration is the time-out of an API call
(5 s), so that none of a lost holder lands after the next one acts."""
RETRY_S = 2.0
"""Between two renewals, whether they succeed or not."""
STANDBY_LOOK_S = 1.0
"""Between two looks of a process that stands by: a Lease that was released has a new holder in less than 2 s."""
STANDBY_SPREAD = 0.2
"""So that two that stand by do not look, and write, in step."""
SCOPE_ANNOTATION = "pavane.dev/namespaces"
"""On the Lease: which namespaces the holder looks after, separated by commas; empty or absent = all."""
PROOF_ANNOTATION = "pavane.dev/proof"
"""On the Lease: that an operator of this cluster wrote it for this namespace. Whoever may edit a namespace may have a
Lease of our name there, which would keep the operator of all others from its work."""
KNOWN_TO_OPERATORS = f"{KINDS[0].plural}.{GROUP}"
"""The definition whose uid makes the proof: rights in a namespace show it to nobody."""
RELEASE_ATTEMPTS = 2
"""A renewal that was cancelled may have been written, and we then saw an older Lease than the present one."""

log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Somebody else holds the Lease; the message says who."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who asks for the Lease.

    A pod runs its processes one after the other, so a Lease that a former one of the same pod holds is free at once.
    """

    process: str
    """Unlike that of any other process, ever."""
    pod: str = ""
    """uid of the pod; empty outside of one."""

    @property
    def identity(self) -> str:
        """What stands in the Lease."""
        return f"{self.pod}_{self.process}"

    def follows(self, holder: str) -> bool:
        """Whether the holder has certainly ended."""
        return holder in ("", self.identity) or bool(self.pod and holder.startswith(f"{self.pod}_"))


class Election:
    """One process's part: `acquire`, then `hold` for as long as it lives, `release` at its end.

    `now` tells UTC, for the stamps in the Lease alone. `scope` are the namespaces that are looked after; empty = all.
    Operators of several namespaces have a Lease each, and none leads while another one's scope overlaps its own.
    """

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        candidate: Candidate,
        now: Callable[[], datetime],
        rng: random.Random,
        scope: Sequence[str] = (),
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._candidate = candidate
        self._now = now
        self._rng = rng
        self._scope = frozenset(scope)
        self._seen: dict[str, tuple[str, float]] = {}
        """By namespace: the version of the Lease there, and since when it is that one."""
        self.rival: str | None = None
        """Which operator of another namespace is waited for, in words."""
        self.leads = False
        """Whether `acquire` has returned."""
        self._lease: Object | None = None
        self._secret = ""
        self._acquired = ""
        self._renewed_at = 0.0
        self._writing = asyncio.Lock()
        self.transitions = 0
        """The epoch; 0 before `acquire`."""

    async def acquire(self) -> int:
        """Wait until the Lease is ours; returns the epoch, greater than all before."""
        seen: tuple[str, float] | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._secret = str((await self._kube.get(CRDS, KNOWN_TO_OPERATORS))["metadata"]["uid"])
                self._lease = await self._kube.get_or_none(LEASES, LEASE_NAME, self._namespace)
                version = "" if self._lease is None else str(self._lease["metadata"]["resourceVersion"])
                if seen is None or seen[0] != version:
                    seen = version, loop.time()
                free = self._candidate.follows(_holder(self._lease)) or loop.time() - seen[1] >= LEASE_DURATION_S
                if free and not await self._meets_rival():
                    self._acquired = _micro(self._now())
                    await self._put(_transitions(self._lease) + 1)
                    # Who wrote its own meanwhile sees ours now; if both see each other, both try again.
                    if not await self._meets_rival():
                        self.leads = True
                        return self.transitions
                    await self.release()
            except (Conflict, LeaseLostError):
                log.info("another operator took the Lease first")
            except KubeError as error:
                log.warning("the Lease cannot be read or written", error=str(error))
            await asyncio.sleep(STANDBY_LOOK_S * self._rng.uniform(1 - STANDBY_SPREAD, 1))

    async def _meets_rival(self) -> bool:
        """Look whether an operator of another namespace, which lives, looks after one of our namespaces."""
        try:
            leases = (await self._kube.list_all(LEASES, fields=f"metadata.name={LEASE_NAME}")).items
        except Forbidden as error:
            log.warning("whether other operators look after the same namespaces cannot be seen", error=str(error))
            return False
        now, found = asyncio.get_running_loop().time(), None
        for lease in leases:
            metadata = lease["metadata"]
            place, version = metadata["namespace"], metadata["resourceVersion"]
            if self._seen.get(place, ("", 0.0))[0] != version:
                self._seen[place] = version, now
            alive = _holder(lease) and now - self._seen[place][1] < LEASE_DURATION_S
            told = metadata.get("annotations") or {}
            ours = hmac.compare_digest(told.get(PROOF_ANNOTATION, "").encode(), self._proof(place).encode())
            scope = frozenset(filter(None, told.get(SCOPE_ANNOTATION, "").split(",")))
            if place != self._namespace and alive and ours and (not scope or not self._scope or scope & self._scope):
                found = f"the operator in namespace {place}"
        if found is not None and found != self.rival:
            log.warning("another operator looks after the same namespaces: this one stands by", other=found)
        self.rival = found
        return found is not None

    async def hold(self) -> str:
        """Renew until the Lease is lost; returns why, at the latest RENEW_DEADLINE_S after the last renewal was sent.

        The process must then end at once: another one may act from LEASE_DURATION_S on.
        """
        try:
            while True:
                async with asyncio.timeout_at(self._renewed_at + RENEW_DEADLINE_S):
                    await asyncio.sleep(RETRY_S)
                    try:
                        async with self._writing:
                            await self._put(self.transitions)
                    except KubeError as error:
                        log.warning("the Lease was not renewed", error=str(error))
        except TimeoutError:
            return f"the Lease could not be renewed for {RENEW_DEADLINE_S:g} s"
        except LeaseLostError as error:
            return str(error)

    async def raise_epoch(self, above: int) -> int:
        """Take an epoch greater than `above`, which a pod has seen: somebody deleted the Lease, so it began anew.

        Raises LeaseLostError, and KubeError when it could not be written this time.
        """
        async with self._writing:
            await self._put(max(self.transitions, above) + 1)
            return self.transitions

    async def release(self) -> None:
        """Let a successor begin at once. Only after `hold` was cancelled and nothing acts any more; never raises."""
        for _ in range(RELEASE_ATTEMPTS):
            try:
                async with self._writing:
                    await self._put(self.transitions, released=True)
                return
            except LeaseLostError:
                return
            except KubeError as error:
                log.info("the Lease was not released; a successor waits until it has run out", error=str(error))

    async def _put(self, transitions: int, *, released: bool = False) -> None:
        """Write the Lease over the state that we saw last; if that is not the present one, look who holds it."""
        sent_at = asyncio.get_running_loop().time()
        told = {SCOPE_ANNOTATION: ",".join(sorted(self._scope)), PROOF_ANNOTATION: self._proof(self._namespace)}
        metadata: Object = {"name": LEASE_NAME, "annotations": told}
        if self._lease is not None:
            metadata["resourceVersion"] = self._lease["metadata"]["resourceVersion"]
        spec: Object = {
            "holderIdentity": "" if released else self._candidate.identity,
            "leaseTransitions": transitions,
            "leaseDurationSeconds": int(LEASE_DURATION_S),
            "acquireTime": self._acquired,
            "renewTime": _micro(self._now()),
        }
        write = self._kube.create if self._lease is None else self._kube.replace
        try:
            self._lease = await write(LEASES, {"metadata": metadata, "spec": spec}, self._namespace)
        except (Conflict, NotFound):
            self._lease = await self._kube.get_or_none(LEASES, LEASE_NAME, self._namespace)
            if self._lease is not None and _holder(self._lease) != self._candidate.identity:
                raise LeaseLostError(f"the Lease is held by {_holder(self._lease) or 'nobody'}") from None
            raise
        self.transitions = transitions
        self._renewed_at = sent_at

    def _proof(self, namespace: str) -> str:
        return hmac.new(self._secret.encode(), namespace.encode(), "sha256").hexdigest()


def _holder(lease: Object | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def _transitions(lease: Object | None) -> int:
    return int(((lease or {}).get("spec") or {}).get("leaseTransitions") or 0)


def _micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
