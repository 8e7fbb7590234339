"""observe → plan → execute for one resource, until the plan is empty (docs/specs/operator.md 5.2–5.5)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import httpx2
import structlog

from pavane.parts.backoff import backoff_s
from pavane.wire.stages import Stage
from pavane_operator.crds.definitions import definition_of, referring
from pavane_operator.crds.status import State, Status, Truth
from pavane_operator.kube import Conflict, Gone, KubeClient, KubeError, TooManyRequests, Unavailable
from pavane_operator.kube.resources import CHILD_TYPES, SECRETS, Object, custom
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.model import (
    BACKUP_FAILED,
    GENERATION_LABEL,
    Action,
    ActionFailure,
    AdvanceStage,
    AllowWrites,
    Child,
    Event,
    Leave,
    MarkResource,
    Observed,
    OwnCondition,
    Plan,
    Resource,
    RunStep,
    Settings,
    StageView,
    Undo,
)
from pavane_operator.plan.planner import plan as make_plan
from pavane_operator.plan.port import Kind, Promotion
from pavane_operator.plan.snapshot import release_of
from pavane_operator.runtime.cache import INSTANCE_LABEL, NAME_LABEL, Cache
from pavane_operator.runtime.events import EventRecorder, EventType
from pavane_operator.runtime.execute import Executor, failure_of
from pavane_operator.runtime.gates import GateAsker, Sources
from pavane_operator.runtime.metrics import Metrics, Outcome, Source
from pavane_operator.runtime.observe import (
    certificates_of,
    children_of,
    followed_secrets,
    pods_of,
    resource_of,
    service_pods_of,
    standing_of,
)
from pavane_operator.runtime.polls import PollTarget, StagePolls
from pavane_operator.runtime.references import References
from pavane_operator.runtime.spans import RunSpan
from pavane_operator.runtime.steps import StepRunner
from pavane_operator.runtime.streams import STAGE_PORT, Epochs, StreamContext, Streams, socket_address
from pavane_operator.tls.secrets import Identity, look

PLANS_PER_RUN_MAX = 50
"""More in one run would keep others waiting; the next run follows after RUN_YIELD_S."""
RUN_YIELD_S = 1.0
FAILURES_BEFORE_EVENT = 3
"""Failures in a row before a Warning event; a conflict or two is daily life."""
RETRY_MIN_S = 0.2
RETRY_MAX_S = 5.0
"""Back-off after a failed action, unless the server named a time."""

FRESH_S = 5.0
"""Before something goes, its objects are listed unless a list is younger than this: deletions follow one another in
less, and a look costs as many calls as there are types of objects."""
STORE_LOOK_S = 1.0
"""While the store takes no writes, or the next generation does not lead yet, the store is looked at this often: nobody
tells when that changes."""
SETTLING_LOOK_S = 2.0
"""While what the store says of itself is about to change it is looked at this often, that the status follows."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the keepers of all resources use together."""

    kube: KubeClient
    http: httpx2.AsyncClient
    cache: Cache
    epochs: Epochs
    events: EventRecorder
    rng: random.Random
    settings: Settings
    now: Callable[[], datetime]
    metrics: Metrics
    sources: Sources = field(default_factory=Sources)
    """Whom gates ask beside pods."""
    told: dict[str, tuple[OwnCondition, ...]] = field(default_factory=dict)
    """By uid, conditions that passes over other resources know of."""


class Reconciler:
    """Looks after one resource. `wake` lets its keeper run again; `close` ends all that it started.

    `listed_at` is the time of the event loop at which everything that belongs to it was listed; None = it was not.
    """

    def __init__(
        self,
        shared: Shared,
        kind: Kind,
        resource_type: ResourceType,
        uid: str,
        wake: Callable[[Source], None],
        *,
        listed_at: float | None = None,
    ):
        self._shared = shared
        self._kind = kind
        self._type = resource_type
        self._uid = uid
        self._wake = wake
        pod_spoke = functools.partial(wake, "pod")
        self._executor = Executor(shared.kube, resource_type, shared.cache, shared.now)
        self._streams = Streams(StreamContext(kind.stage_kind, shared.epochs, shared.rng, shared.now, pod_spoke))
        self._polls = StagePolls(shared.http, shared.rng, pod_spoke)
        self._gates = GateAsker(shared.sources, shared.now, functools.partial(wake, "gate"))
        self._references = References(shared.kube)
        self._remembered: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._targeted: frozenset[tuple[str, str]] = frozenset()
        """Namespace and `Kind/name` of the resources that this one refers to."""
        self._promotion: Promotion | None = None
        self._steps: StepRunner | None = None
        self._listed_at = listed_at
        self._pods_asked = False
        self._failure: ActionFailure | None = None
        self._failures = 0
        self._status_written_at: datetime | None = None
        self._made: set[tuple[str, str]] = set()
        """Kind and name of what was made since the status was written last: what has to be made again does not stay."""
        self._lasting: tuple[Event, ...] = ()
        self._state: tuple[State, datetime] | None = None
        """Of the rollout, as we wrote it last, and since when; None before our first write."""

    @property
    def open_streams(self) -> int:
        """Stage streams that are connected."""
        return self._streams.connected

    def forget_references(self) -> None:
        """Read the Secrets that are not ours again at the next look: events about them may have been lost."""
        self._references.forget()

    def reference_changed(self, namespace: str, name: str) -> bool:
        """A Secret that is not ours came, changed or went; returns whether this resource uses it."""
        return self._references.changed(namespace, name)

    def refers_to(self, namespace: str, name: str) -> bool:
        """Whether this resource refers to that one, named as `Kind/name`."""
        return (namespace, name) in self._targeted

    async def close(self) -> None:
        """End streams, polls and connections; the pods go on."""
        if self._steps is not None:
            await self._steps.close()
        await self._streams.close()
        await self._polls.close()
        await self._gates.close()
        if self._promotion is not None:
            await self._promotion.close()

    async def reconcile(self) -> float | None:
        """One run. Returns how long to sleep at most, in seconds; None = as long as nothing happens."""
        body = self._shared.cache.get(self._uid)
        if body is None:
            return None
        outcome: Outcome = "failed"
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with RunSpan(self._kind.name, body) as span:
                sleep_s = await self._run(span)
                outcome = "applied" if span.begun else "waiting"
                return sleep_s
        except* (KubeError, ValueError) as errors:
            error = _first(errors)
        finally:
            self._shared.metrics.reconciles[self._kind.name, outcome] += 1
            self._shared.metrics.reconcile_seconds.add(loop.time() - began, self._kind.name)
        await self._failed(error)
        return self._retry_after_s(error)

    async def _run(self, span: RunSpan) -> float | None:
        if self._listed_at is None:
            await self._read_afresh()
        if not self._pods_asked:
            self._pods_asked = True
            await self._ask_pods()
        for _ in range(PLANS_PER_RUN_MAX):
            found = await self._look()
            if found is not None and found[2].needs_fresh:
                await self._read_afresh(lists_s=FRESH_S if found[2].takes_away else math.inf)
                found = await self._look()
            if found is None:
                return None
            resource, observed, plan = found
            await self._keep_streams(plan, observed)
            if plan.empty and self._failure is not None:
                self._failures, self._failure = 0, None  # what failed is not needed any more: plan without it
                continue
            await self._post_lasting(resource, plan)
            if plan.empty:
                await self._post(resource, plan.events)
                return self._sleep_s(plan, resource, observed)
            await self._execute(resource, observed, plan, span)
        return RUN_YIELD_S

    # ---- observe

    async def _read_afresh(self, *, lists_s: float = 0.0) -> None:
        """Read the resource from the server, and what belongs to it unless the last list is younger than `lists_s`."""
        body = self._shared.cache.get(self._uid)
        if body is None:
            return
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        labels = f"{NAME_LABEL}={self._kind.name.lower()},{INSTANCE_LABEL}={name}"
        kube, cache, now = self._shared.kube, self._shared.cache, asyncio.get_running_loop().time()
        known = cache.members(self._kind.name, namespace, name)
        listing = self._listed_at is None or now - self._listed_at >= lists_s
        async with asyncio.TaskGroup() as reads:
            own = reads.create_task(kube.get_or_none(self._type, name, namespace))
            lists = [
                (child_type, reads.create_task(kube.list_all(child_type, namespace, labels=labels)))
                for child_type in (CHILD_TYPES if listing else ())
            ]
        fresh = own.result()
        if fresh is None or fresh["metadata"]["uid"] != self._uid:
            cache.seen(self._type, body, deleted=True)
            return
        cache.seen(self._type, fresh)
        if not listing:
            return
        for child_type, page in lists:
            before = [body for known_type, body in known if known_type == child_type]
            cache.listed(child_type, before, page.result().items)
        self._references.forget()
        self._listed_at = now

    async def _observe(self) -> tuple[Resource, Observed] | None:
        """The present snapshot, or None once the resource is gone."""
        body = self._shared.cache.get(self._uid)
        if body is None:
            return None
        members = self._shared.cache.members(self._kind.name, body["metadata"]["namespace"], body["metadata"]["name"])
        children = children_of(self._uid, members)
        resource = self._kind.settled(resource_of(self._kind, body), children)
        self._streams.context.allowed_lag = resource.spec.rollout.caught_up.allowed_lag
        if self._promotion is None:
            self._promotion = self._kind.promotion(resource.namespace, resource.name, resource.uid)
            self._steps = StepRunner(
                self._promotion, self._shared.now, self._shared.rng, functools.partial(self._wake, "step")
            )
        self._remember(resource, children)
        renderer, tls_name = self._kind.renderer, resource.spec.tls.secret_name
        targets = self._targets(resource.namespace, self._kind.definition.targets(body))
        named = (*renderer.references(resource, targets), *(() if tls_name is None else (tls_name,)))
        ours = followed_secrets(members)
        asked = await self._references.read(resource.namespace, (name for name in named if name not in ours))
        references = asked | {name: ours[name] for name in named if name in ours}
        identity = Identity(renderer.labels(resource), renderer.dns_names(resource), self._kind.clients(resource))
        given = None if tls_name is None else references.get(tls_name)
        tls = look(resource, children, identity, given, self._shared.now())
        self._streams.context.secured = tls.secured
        self._streams.context.credentials = tls.credentials or self._streams.context.credentials
        observed = Observed(
            fresh=self._listed_at is not None,
            children=children,
            pods=pods_of(members, self._stage_of, self._kind.followers),
            standing=standing_of(members),
            service_pods=service_pods_of(resource.name, members),
            certificates=tls.plan,
            remembered=self._remembered,
            references={**references, **targets, **self._others(resource)},
            users=await self._users(resource),
            gates=self._gates.standings,
            failure=self._failure,
            step_call=self._steps.call if self._steps is not None else None,
            refusals=self._executor.refusals,
            status_written_at=self._status_written_at,
        )
        facts = await self._promotion.observe(resource, observed)
        facts = replace(facts, conditions=(*facts.conditions, *self._told(resource)))
        return resource, replace(observed, facts=facts)

    def _told(self, resource: Resource) -> tuple[OwnCondition, ...]:
        """What others tell of it; after a start what was told before, so that its time stays."""
        if self._uid in self._shared.told or resource.status is None:
            return self._shared.told.get(self._uid, ())
        held = (each for each in resource.status.conditions if each.type == BACKUP_FAILED)
        return tuple(OwnCondition(one.type, one.status is Truth.TRUE, one.reason, one.message) for one in held)

    def _targets(self, namespace: str, named: tuple[str, ...]) -> dict[str, Object]:
        """The other resources that this one refers to, as far as they exist."""
        self._targeted = frozenset((namespace, name) for name in named)
        found = {}
        for name in named:
            kind, _, plain = name.partition("/")
            body = self._shared.cache.named(custom(kind, definition_of(kind).plural), namespace, plain)
            if body is not None:
                found[name] = body
        return found

    async def _users(self, resource: Resource) -> tuple[str, ...] | None:
        """Who refers to the resource: asked of the server, for a watch may be late, while its deletion waits for it."""
        kinds = referring(self._kind.name)
        if resource.deleted_at is None or not kinds or release_of(resource.status) is not None:
            return None
        name, found = f"{self._kind.name}/{resource.name}", []
        for each in kinds:
            listed = await self._shared.kube.list_all(custom(each.name, each.plural), resource.namespace)
            found += [f"{each.name}/{body['metadata']['name']}" for body in listed.items if name in each.targets(body)]
        return tuple(found)

    def _others(self, resource: Resource) -> dict[str, Object]:
        """The certificates of this kind in the namespace, if its pods speak with those of other resources."""
        if not self._kind.trusts_others:
            return {}
        return certificates_of(self._kind.name, self._shared.cache.of_type(SECRETS, resource.namespace))

    def _remember(self, resource: Resource, children: Iterable[Child]) -> None:
        """What nobody can make a second time: Secrets, and what the active generation is made of."""
        active = resource.status.active_generation if resource.status is not None else None
        known = self._remembered | {(child.kind, child.name): child.body for child in children}
        self._remembered = {
            (kind, name): body
            for (kind, name), body in known.items()
            if kind == "Secret"
            or (kind == "ControllerRevision" and body["metadata"]["labels"].get(GENERATION_LABEL) == str(active))
        }

    def _stage_of(self, pod: Object) -> StageView | None:
        """The pod's own words: on its stream, else on its ops port."""
        view = self._streams.view(pod["metadata"]["name"])
        if view is not None:
            return view
        return self._polls.view(pod["metadata"]["uid"])

    # ---- plan

    async def _look(self) -> tuple[Resource, Observed, Plan] | None:
        """The present snapshot and what to do about it, or None once the resource is gone."""
        snapshot = await self._observe()
        if snapshot is None:
            return None
        return *snapshot, make_plan(self._kind, *snapshot, self._shared.now(), self._shared.settings)

    async def _ask_pods(self) -> None:
        """Hear of all pods before the first plan, so that a status does not say for a moment that none is known."""
        snapshot = await self._observe()
        if snapshot is not None:
            pods = [pod for pod in snapshot[1].pods if not (pod.deleting or pod.follows)]
            self._polls.keep({PollTarget(pod.uid, pod.address, pod.restarts): None for pod in pods if pod.address})
            await self._polls.asked()

    async def _keep_streams(self, plan: Plan, observed: Observed) -> None:
        wanted: dict[str, tuple[str, int]] = {}
        polled: dict[PollTarget, StageView | None] = {}
        for pod in observed.pods:
            if pod.address is None or pod.deleting or pod.follows:
                continue
            if pod.name in plan.streams and self._streams.context.dialable:
                wanted[pod.name] = (socket_address(pod.address, STAGE_PORT), pod.generation)
            if pod.name not in plan.streams or self._streams.view(pod.name) is None:
                # A stream that is closed now leaves no gap in what is known; a pod that restarts is known anew.
                view = pod.stage
                known = replace(view, connected=False, asked=None) if view is not None and view.connected else None
                polled[PollTarget(pod.uid, pod.address, pod.restarts)] = known
        await self._streams.keep(wanted)
        self._polls.keep(polled)
        self._gates.keep(plan.questions)

    def _sleep_s(self, plan: Plan, resource: Resource, observed: Observed) -> float | None:
        rollout = resource.status.rollout if resource.status is not None else None
        promoting = rollout is not None and rollout.state is State.PROMOTING
        waits_for_store = observed.facts.down is not None or (promoting and not observed.facts.leads)
        sleeps = []
        if waits_for_store:
            sleeps.append(STORE_LOOK_S)
        if observed.facts.settling:
            sleeps.append(SETTLING_LOOK_S)
        if plan.wake_at is not None:
            sleeps.append(max(0.0, (plan.wake_at - self._shared.now()).total_seconds()))
        return min(sleeps, default=None)

    # ---- execute

    async def _execute(self, resource: Resource, observed: Observed, plan: Plan, span: RunSpan) -> None:
        made = {one for one in (self._executor.makes(resource, action) for action in plan.actions) if one is not None}
        makes = 0 < len(plan.actions) == len(made - self._made)
        try:
            for action in plan.actions:
                with span.action(plan.row, action):
                    await self._act(resource, observed, action)
            if any(isinstance(action, MarkResource) for action in plan.actions):
                return  # the resource has another version now: look at it again before its status is written
            # The next plan sees what was made, and its status says so: one write instead of two. Not where it is made
            # again and again, because somebody takes it away: then no plan would ever be the next.
            self._made |= made
            if plan.status is not None and not makes:
                with span.action(plan.row, plan.status):
                    await self._write_status(resource, plan.status)
        except (Conflict, Gone) as error:
            # Somebody else was faster: read again and plan again, never repeat blindly. Repeated, it is a failure.
            await self._read_afresh()
            self._failures += 1
            if self._failures >= FAILURES_BEFORE_EVENT:
                raise
            about = {"kind": resource.kind, "namespace": resource.namespace, "name": resource.name}
            log.info("another writer was faster", **about, row=plan.row, error=str(error))
            return
        self._failures, self._failure = 0, None
        await self._post(resource, plan.events)

    async def _act(self, resource: Resource, observed: Observed, action: Action) -> None:
        match action:
            case AdvanceStage():
                self._streams.advance(action.pod, Stage.READ_ONLY, action.settings)
            case AllowWrites():
                self._streams.advance(action.pod, Stage.READ_WRITE, action.settings)
            case RunStep():
                assert self._steps is not None  # noqa: S101 - made before the first plan
                self._steps.start(action.name, resource, observed, action.at)
            case Undo():
                assert self._promotion is not None  # noqa: S101
                await self._promotion.undo(action.generation, resource, observed)
            case Leave():
                assert self._kind.leave is not None  # noqa: S101 - else it is not planned
                await self._kind.leave(resource, observed)
            case _:
                await self._executor.execute(resource, action)

    async def _write_status(self, resource: Resource, status: Status) -> None:
        await self._executor.write_status(resource, status.dump())
        self._status_written_at = self._shared.now()
        self._made.clear()
        self._count(resource.status, status)

    async def _post_lasting(self, resource: Resource, plan: Plan) -> None:
        began = tuple(event for event in plan.lasting if event not in self._lasting)
        self._lasting = plan.lasting
        await self._post(resource, began)

    async def _post(self, resource: Resource, events: Iterable[Event]) -> None:
        body = self._shared.cache.get(resource.uid)
        if body is None:
            return
        for event in events:
            severity: EventType = "Warning" if event.warning else "Normal"
            await self._shared.events.post(body, severity, event.reason, event.note, self._shared.now())

    def _count(self, before: Status | None, after: Status) -> None:
        """Into the metrics: the end of an attempt, the state that it left, and its write gap."""
        metrics, kind, now = self._shared.metrics, self._kind.name, self._shared.now()
        state = after.rollout.state if after.rollout is not None else State.IDLE
        if self._state is None or self._state[0] is not state:
            if self._state is not None and self._state[0] is not State.IDLE:
                metrics.rollout_seconds.add((now - self._state[1]).total_seconds(), kind, self._state[0])
            self._state = state, now
        newest = after.history[0] if after.history else None
        former = before.history[0] if before is not None and before.history else None
        if newest is not None and (former is None or former.generation != newest.generation):
            metrics.rollouts[kind, newest.result] += 1
        if newest is not None and newest.write_gap_ms is not None and newest != former:
            metrics.write_gaps.add(newest.write_gap_ms / 1000, kind)

    async def _failed(self, error: Exception) -> None:
        """Show the failure as a blocker; after several in a row also as an event."""
        self._failure = failure_of(error)
        self._failures += 1
        body = self._shared.cache.get(self._uid)
        if body is None:
            return
        metadata = body["metadata"]
        log.warning(
            "reconcile failed",
            kind=self._kind.name,
            namespace=metadata["namespace"],
            name=metadata["name"],
            error=str(error),
            failures=self._failures,
        )
        with contextlib.suppress(KubeError, ValueError):
            found = await self._look()
            if found is not None:
                # A status only says what was observed, so it may be written without the actions of its plan.
                resource, _, plan = found
                if plan.status is not None and not plan.critical:
                    await self._write_status(resource, plan.status)
        if self._failures >= FAILURES_BEFORE_EVENT:
            note = f"{self._failure.reason}: {self._failure.message}"
            await self._shared.events.post(body, "Warning", "ReconcileFailed", note, self._shared.now())

    def _retry_after_s(self, error: Exception) -> float:
        named = error.retry_after_s if isinstance(error, (TooManyRequests, Unavailable)) else None
        return max(named or 0.0, backoff_s(self._failures, RETRY_MIN_S, RETRY_MAX_S, self._shared.rng))


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    """One error of a group is enough to tell what is wrong."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)  # noqa: S101 - the group was caught by these classes
    return found
