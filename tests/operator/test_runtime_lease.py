"""Leader election with a clock of its own: operators that die, freeze, lose the API server, or end in order (5.6)."""

import asyncio
import contextlib
import copy
import itertools
import random
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pavane_operator.crds.definitions import definitions
from pavane_operator.kube import Conflict, Forbidden, KubeClient, NotFound, Target, Unavailable
from pavane_operator.kube.client import ObjectList
from pavane_operator.kube.resources import CRDS, LEASES, Object, Resource
from pavane_operator.runtime.lease import (
    KNOWN_TO_OPERATORS,
    LEASE_DURATION_S,
    LEASE_NAME,
    PROOF_ANNOTATION,
    RENEW_DEADLINE_S,
    RETRY_S,
    STANDBY_LOOK_S,
    Candidate,
    Election,
    LeaseLostError,
)
from tests.local.api_server import a_server

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CALL_S = 0.01
API_TIMEOUT_S = 5.0
"""What the operator gives its client."""

pytestmark = pytest.mark.looptime


class Server:
    """The Leases of an API server, as far as the election uses them: versions, conflicts, and an outage per client."""

    def __init__(self, namespace: str = "system", *neighbours: "Server") -> None:
        self.namespace = namespace
        self.neighbours = list(neighbours)
        """Where operators of other namespaces have theirs."""
        for each in neighbours:
            each.neighbours.append(self)
        self.lease: Object | None = None
        self.blind = False
        """It shows nobody the Leases of other namespaces."""
        self.version = 0
        self.cut_off: set[str] = set()
        self.renewals: list[tuple[str, float]] = []

    def client(self, name: str) -> KubeClient:
        return cast("KubeClient", Client(self, name))

    def delete(self) -> None:
        self.lease = None


class Client:
    """One operator's way to the server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    async def _travel(self) -> None:
        if self.name in self.server.cut_off:
            await elapse(API_TIMEOUT_S)
            raise Unavailable("no answer")
        await elapse(CALL_S)

    async def get_or_none(self, resource: Resource, name: str, namespace: str) -> Object | None:
        await self._travel()
        assert (resource, name, namespace) == (LEASES, LEASE_NAME, self.server.namespace)
        return copy.deepcopy(self.server.lease)

    async def get(self, resource: Resource, name: str) -> Object:
        await self._travel()
        assert (resource, name) == (CRDS, KNOWN_TO_OPERATORS)
        return {"metadata": {"uid": "of-the-definition"}}

    async def list_all(self, resource: Resource, *, fields: str) -> ObjectList:
        await self._travel()
        assert (resource, fields) == (LEASES, f"metadata.name={LEASE_NAME}")
        if self.server.blind:
            raise Forbidden("only in your own", status=403)
        leases = {each.namespace: each.lease for each in (self.server, *self.server.neighbours) if each.lease}
        bodies = ({**lease, "metadata": {**lease["metadata"], "namespace": name}} for name, lease in leases.items())
        return ObjectList(tuple(map(copy.deepcopy, bodies)), "1", None)

    async def create(self, _: Resource, body: Object, _namespace: str) -> Object:
        await self._travel()
        if self.server.lease is not None:
            raise Conflict("it exists", status=409)
        return self._store(body)

    async def replace(self, _: Resource, body: Object, _namespace: str) -> Object:
        await self._travel()
        if self.server.lease is None:
            raise NotFound("there is none", status=404)
        if body["metadata"]["resourceVersion"] != self.server.lease["metadata"]["resourceVersion"]:
            raise Conflict("it has changed", status=409)
        return self._store(body)

    def _store(self, body: Object) -> Object:
        self.server.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.server.version)
        self.server.lease = body
        self.server.renewals.append((self.name, now()))
        return copy.deepcopy(body)


def now() -> float:
    return asyncio.get_running_loop().time()


async def elapse(seconds: float) -> None:
    """Let the clock of the test go on; it takes no time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


def election(server: Server, name: str, pod: str = "", scope: tuple[str, ...] = ()) -> Election:
    candidate = Candidate(name, pod)
    return Election(server.client(name), server.namespace, candidate, lambda: NOW, random.Random(name), scope)


async def timed(work: Awaitable[Any]) -> tuple[Any, float]:
    """What it returned, and how long that took."""
    began = now()
    return await work, now() - began


def holder(server: Server) -> str:
    assert server.lease is not None
    return str(server.lease["spec"]["holderIdentity"])


async def test_the_first_one_takes_it_and_renews_it_for_hours() -> None:
    server = Server()
    first = election(server, "first")
    assert await first.acquire() == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await first.hold()
    times = [at for _, at in server.renewals]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < RETRY_S + 0.1
    assert holder(server) == "_first"


async def test_who_stands_by_waits_for_as_long_as_the_holder_renews() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600):
            await second.acquire()
    holding.cancel()
    assert {name for name, _ in server.renewals} == {"first"}


async def test_a_dead_holder_is_followed_once_the_lease_has_run_out() -> None:
    server = Server()
    await election(server, "first").acquire()
    epoch, took = await timed(election(server, "second").acquire())
    assert epoch == 2
    assert LEASE_DURATION_S <= took < LEASE_DURATION_S + STANDBY_LOOK_S + 0.1


async def test_an_old_stamp_is_no_proof_that_the_holder_is_dead() -> None:
    """Clocks of two machines may differ by anything."""
    server = Server()
    first = election(server, "first")
    await first.acquire()
    assert server.lease is not None
    server.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    _, took = await timed(election(server, "second").acquire())
    assert took >= LEASE_DURATION_S


async def test_a_released_lease_is_taken_at_the_next_look() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    acquiring = asyncio.create_task(second.acquire())
    await elapse(7)
    released_at = now()
    await first.release()
    assert await acquiring == 2
    assert now() - released_at < 2.0


async def test_a_release_after_a_renewal_whose_answer_was_lost() -> None:
    server = Server()
    first = election(server, "first")
    await first.acquire()
    assert server.lease is not None
    server.lease["metadata"]["resourceVersion"] = "77"
    await first.release()
    assert holder(server) == ""


async def test_a_late_release_takes_the_lease_from_nobody() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    await second.acquire()
    await first.release()
    assert holder(server) == "_second"


async def test_a_holder_without_api_server_is_gone_before_another_one_acts() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    acquiring = asyncio.create_task(timed(second.acquire()))
    holding = asyncio.create_task(first.hold())
    await elapse(30)
    last = server.renewals[-1][1]
    server.cut_off.add("first")
    assert "could not be renewed" in await holding
    assert now() - last <= RENEW_DEADLINE_S + 0.1
    assert not acquiring.done()
    epoch, _ = await acquiring
    assert epoch == 2
    assert LEASE_DURATION_S <= now() - last <= 20.0


async def test_a_short_outage_is_survived() -> None:
    server = Server()
    first = election(server, "first")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    await elapse(10)
    server.cut_off.add("first")
    await elapse(4)
    server.cut_off.clear()
    await elapse(60)
    assert not holding.done()
    holding.cancel()


async def test_a_holder_that_was_frozen_ends_as_soon_as_it_wakes() -> None:
    """SIGSTOP, a laptop that slept: its last renewal is long ago, whatever a late answer says."""
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    thawed = asyncio.Event()
    client = cast("Any", first)._kube
    travel = client._travel

    async def freeze() -> None:
        await thawed.wait()
        await travel()

    client._travel = freeze
    first_holds = asyncio.create_task(first.hold())
    assert await second.acquire() == 2
    thawed.set()
    await first_holds
    assert holder(server) == "_second"


async def test_the_next_process_of_the_same_pod_need_not_wait() -> None:
    server = Server()
    await election(server, "first", pod="pod-1").acquire()
    epoch, took = await timed(election(server, "second", pod="pod-1").acquire())
    assert (epoch, took < 1.0) == (2, True)
    _, took = await timed(election(server, "third", pod="pod-10").acquire())
    assert took >= LEASE_DURATION_S


async def test_of_many_that_start_together_one_leads() -> None:
    server = Server()
    candidates = [election(server, f"operator-{number}") for number in range(5)]

    async def live(candidate: Election) -> None:
        await candidate.acquire()
        await candidate.hold()

    living = [asyncio.create_task(live(candidate)) for candidate in candidates]
    await elapse(120)
    assert sum(candidate.transitions > 0 for candidate in candidates) == 1
    for task in living:
        task.cancel()


async def living(candidate: Election) -> None:
    await candidate.acquire()
    await candidate.hold()


@pytest.mark.parametrize(
    ("scopes", "both"),
    [
        (((), ()), False),
        (((), ("a",)), False),
        ((("a", "b"), ("b", "c")), False),
        ((("a",), ("b",)), True),
    ],
)
async def test_operators_of_two_namespaces_never_look_after_the_same_one(
    scopes: tuple[tuple[str, ...], tuple[str, ...]], both: bool
) -> None:
    east = Server("east")
    west = Server("west", east)
    first, second = election(east, "first", scope=scopes[0]), election(west, "second", scope=scopes[1])
    lives = [asyncio.create_task(living(first)), asyncio.create_task(living(second))]
    await elapse(120)
    leading = [each for each in (first, second) if each.leads]
    assert len(leading) == (2 if both else 1)
    if not both:
        waiting = second if first.leads else first
        assert waiting.rival in {"the operator in namespace east", "the operator in namespace west"}
        lives[(first, second).index(leading[0])].cancel()
        await leading[0].release()
        await elapse(10)
        assert waiting.leads
        assert waiting.rival is None
    for task in lives:
        task.cancel()


async def test_an_operator_of_another_namespace_that_died_is_waited_for_until_its_lease_has_run_out() -> None:
    east = Server("east")
    await election(east, "first").acquire()
    _, took = await timed(election(Server("west", east), "second").acquire())
    assert LEASE_DURATION_S <= took < LEASE_DURATION_S + STANDBY_LOOK_S + 0.1


@pytest.mark.parametrize("knows", ["nothing", "the Lease of the platform"])
async def test_a_lease_that_no_operator_wrote_keeps_nobody_from_its_work(knows: str) -> None:
    tenant = Server("tenant")
    platform = Server("system", tenant)
    first = election(platform, "first")
    await first.acquire()
    assert platform.lease is not None
    copied = platform.lease["metadata"]["annotations"]
    assert copied[PROOF_ANNOTATION]
    await first.release()

    async def renew() -> None:
        told, stranger = copied if knows != "nothing" else {}, Client(tenant, "stranger")
        while True:
            stranger._store({"metadata": {"annotations": told}, "spec": {"holderIdentity": "stranger"}})
            await elapse(1)

    renewing = asyncio.create_task(renew())
    await elapse(1)
    async with asyncio.timeout(2 * LEASE_DURATION_S):
        assert await election(platform, "second").acquire() == 2
    assert tenant.lease is not None
    assert not renewing.done()
    renewing.cancel()


async def test_who_may_not_look_into_other_namespaces_leads_in_its_own() -> None:
    server = Server()
    server.blind = True
    assert await election(server, "first").acquire() == 1


async def test_a_lease_that_somebody_deleted_is_made_anew_by_its_holder() -> None:
    server = Server()
    first = election(server, "first")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    server.delete()
    await elapse(2 * RETRY_S + 1)
    assert holder(server) == "_first"
    assert not holding.done()
    holding.cancel()


async def test_a_lease_that_somebody_else_took_is_lost() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    server.delete()
    await second.acquire()
    reason, took = await timed(first.hold())
    assert "_second" in reason
    assert took < RETRY_S + 1


async def test_the_holder_goes_above_an_epoch_that_a_pod_has_seen() -> None:
    server = Server()
    first = election(server, "first")
    await first.acquire()
    assert await first.raise_epoch(41) == 42
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 42


async def test_who_does_not_hold_the_lease_gets_no_epoch() -> None:
    server = Server()
    first, second = election(server, "first"), election(server, "second")
    await first.acquire()
    await second.acquire()
    with pytest.raises(LeaseLostError):
        await first.raise_epoch(41)


async def test_who_stands_by_outlives_an_api_server_that_is_away() -> None:
    server = Server()
    server.cut_off.add("first")
    acquiring = asyncio.create_task(election(server, "first").acquire())
    await elapse(60)
    server.cut_off.clear()
    assert await acquiring == 1


@pytest.mark.looptime(False)
async def test_an_api_server_takes_what_the_election_writes(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server, await KubeClient.connect(Target(server.api.kubeconfig)) as kube:
        for each in definitions():
            if each["metadata"]["name"] == KNOWN_TO_OPERATORS:
                await kube.create(CRDS, each)

        def make(name: str) -> Election:
            return Election(kube, "default", Candidate(name), lambda: NOW, random.Random(name))

        first, second = make("first"), make("second")
        assert await first.acquire() == 1
        await first.release()
        assert await second.acquire() == 2
        with pytest.raises(LeaseLostError):
            await first.raise_epoch(1)
