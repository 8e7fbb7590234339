"""The operator's stage streams: one driver per pod that needs one, dialled again for as long as it does.

What a stream has told stays visible until the next one; the planner sees it as `StageView` (docs/specs/operator.md 3,
5.8).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog
from opentelemetry import trace

from pavane.compute.tls import StageCredentials
from pavane.compute.wire.common import Epoch, Token
from pavane.compute.wire.responses import StageReport
from pavane.parts.backoff import backoff_s
from pavane.runtime.certificates import chain_of
from pavane.runtime.names import bracketed
from pavane.stage.client import StageStream
from pavane.stage.errors import StageStreamError, StageSuperseded, StaleEpoch
from pavane.wire.stages import Stage
from pavane_operator.plan.clock import NOT_HYDRATED, within_lag_since
from pavane_operator.plan.model import PodBlocker, StageView

STAGE_PORT = 7070
RETRY_MIN_S = 0.2
RETRY_MAX_S = 5.0
"""Back-off between two dials of one pod (docs/specs/operator.md 3)."""

log = structlog.get_logger(__name__)


class Epochs:
    """The epochs that this process gives to its streams: (a, b), a from the Lease, b a counter of ours.

    `superseded` is set, with the greatest a that was met, once a pod has spoken of an a above ours: then the process
    looks at the Lease, and goes on with a greater a or stops.
    """

    def __init__(self, transitions: int) -> None:
        self.transitions = transitions
        self.greatest_met = transitions
        self.superseded = asyncio.Event()
        self._counter = 0

    def next(self) -> Epoch:
        """An epoch greater than all that this process gave before."""
        self._counter += 1
        return Epoch(self.transitions, self._counter)

    def met(self, accepted: Epoch) -> None:
        """A pod refused us and named the epoch that it had accepted."""
        if accepted.major > self.transitions:
            self.greatest_met = max(self.greatest_met, accepted.major)
            self.superseded.set()
        elif accepted.major == self.transitions:
            self._counter = max(self._counter, accepted.minor)

    def raised(self, transitions: int) -> None:
        """We still hold the Lease and have taken it again."""
        self.transitions = transitions
        self.greatest_met = max(self.greatest_met, transitions)
        self.superseded.clear()


@dataclass(slots=True)
class _Wanted:
    """How far the pod is to be led on its present stream."""

    until: Stage
    settings: Mapping[str, str] = field(default_factory=dict)
    cause: trace.Span = trace.INVALID_SPAN
    """Of whoever asked for it: the spans of the stream's commands are its children."""


@dataclass(slots=True)
class StreamContext:
    """What all streams of one resource share."""

    kind: str
    """`CreateInstance.kind` of its pods."""
    epochs: Epochs
    rng: random.Random
    now: Callable[[], datetime]
    wake: Callable[[], None]
    """Called when something that a plan may look at has changed."""
    secured: bool = False
    """Whether the pods speak TLS."""
    credentials: StageCredentials | None = None
    """What to dial with from now on."""
    allowed_lag: int = 0
    """Of the present spec, in the kind's unit."""

    @property
    def authorities(self) -> frozenset[bytes]:
        """Those that count from now on, as DER."""
        if self.credentials is None:
            return frozenset()
        return frozenset(chain_of([self.credentials.authorities.decode("ascii", "replace")]))

    @property
    def dialable(self) -> bool:
        """Whether streams can be opened: a secured pod is never dialled in clear."""
        return self.credentials is not None or not self.secured


class PodStream:
    """Drives one pod."""

    def __init__(self, address: str, generation: int, context: StreamContext) -> None:
        self.address = address
        self.generation = generation
        self._context = context
        self._stream: StageStream | None = None
        self._trusted: frozenset[bytes] = frozenset()
        self._report: StageReport | None = None
        self._within_lag_since: datetime | None = None
        self._connected = False
        self._asked: Stage | None = None
        self._wanted: _Wanted | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"stage stream {address}")

    def view(self) -> StageView | None:
        """What is known of the pod; None before its first report."""
        if self._report is None:
            return None
        view = view_of(self._report, connected=self._connected, asked=self._asked)
        return replace(view, within_lag_since=self._within_lag_since)

    @property
    def connected(self) -> bool:
        """Whether the pod answers on the present stream."""
        return self._connected

    def advance(self, until: Stage, settings: Mapping[str, str]) -> None:
        """Lead the pod to `until` on the present stream; on the next one it has to be asked for again."""
        self._wanted = _Wanted(until, settings, trace.get_current_span())
        self._asked = until
        self._changed.set()

    @property
    def outdated(self) -> bool:
        """Whether it was dialled under an authority that counts no more."""
        return not self._trusted <= self._context.authorities

    async def close(self) -> None:
        """End the stream; the pod keeps its stage."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._one_stream()
            except StageStreamError as error:
                log.debug("stage stream ended", address=self.address, error=str(error))
                failures = 0 if self._connected else failures + 1
                if isinstance(error, StaleEpoch):
                    self._context.epochs.met(error.accepted)
                elif isinstance(error, StageSuperseded):
                    self._context.epochs.superseded.set()
            except Exception:
                log.exception("stage stream failed", address=self.address)
                failures += 1
            was_connected = self._connected
            self._connected, self._asked, self._wanted, self._within_lag_since = False, None, None, None
            if was_connected:
                self._context.wake()
            await asyncio.sleep(backoff_s(failures, RETRY_MIN_S, RETRY_MAX_S, self._context.rng))

    async def _one_stream(self) -> None:
        """Open a stream and serve it until it ends, which is always by an exception."""
        self._trusted = self._context.authorities
        stream = StageStream(
            self.address,
            epoch=self._context.epochs.next(),
            kind=self._context.kind,
            generation=self.generation,
            credentials=self._context.credentials,
            on_change=self._heard,
        )
        self._stream = stream
        try:
            await stream.open()
            self._connected = True
            self._context.wake()
            while stream.closed is None:
                await self._changed.wait()
                self._changed.clear()
                await self._lead(stream)
            raise stream.closed
        finally:
            self._stream = None
            await stream.close()

    def _heard(self) -> None:
        """A report came, or the stream ended. Every report goes into the lag clock, so that no break goes unseen."""
        report = self._stream.report if self._stream is not None else None
        if report is not None:
            hydrated = all(blocker.reason != NOT_HYDRATED for blocker in report.blockers)
            self._within_lag_since = within_lag_since(
                self._within_lag_since,
                progress=report.progress if hydrated else None,
                target=report.target,
                allowed_lag=self._context.allowed_lag,
                now=self._context.now(),
            )
            if report != self._report:
                self._report = report
                self._context.wake()
        self._changed.set()

    async def _lead(self, stream: StageStream) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None or stream.closed is not None:
            return
        with trace.use_span(wanted.cause, record_exception=False, set_status_on_exception=False):
            if wanted.until >= Stage.READ_ONLY:
                await stream.lead_up(wanted.settings)
            if wanted.until >= Stage.READ_WRITE:
                await stream.allow_writes(Token(self.generation, self._context.epochs.transitions))


class Streams:
    """The streams of one resource, by pod name."""

    def __init__(self, context: StreamContext) -> None:
        self.context = context
        self._streams: dict[str, PodStream] = {}

    async def keep(self, wanted: Mapping[str, tuple[str, int]]) -> None:
        """Open streams to exactly these pods (name → address, generation), and close all others.

        Those that were dialled under an authority that is removed are dialled again.
        """
        for name, stream in list(self._streams.items()):
            if wanted.get(name) != (stream.address, stream.generation) or stream.outdated:
                del self._streams[name]
                await stream.close()
        for name, (address, generation) in wanted.items():
            if name not in self._streams:
                self._streams[name] = PodStream(address, generation, self.context)

    def advance(self, pod: str, until: Stage, settings: Mapping[str, str]) -> bool:
        """Lead a pod up on its stream; False where there is none."""
        stream = self._streams.get(pod)
        if stream is None:
            return False
        stream.advance(until, settings)
        return True

    def view(self, pod: str) -> StageView | None:
        """What the pod's stream has told, if it has one."""
        stream = self._streams.get(pod)
        return None if stream is None else stream.view()

    @property
    def connected(self) -> int:
        """How many of them a pod answers on."""
        return sum(stream.connected for stream in self._streams.values())

    async def close(self) -> None:
        """End all streams."""
        await self.keep({})


def view_of(report: StageReport, *, connected: bool, asked: Stage | None) -> StageView:
    """A pod's report as the planner sees it, without the lag clock."""
    return StageView(
        stage=report.stage,
        connected=connected,
        asked=asked,
        progress=report.progress,
        target=report.target,
        leads=report.leads,
        done=report.done,
        fence=report.fence_seen.generation if report.fence_seen is not None else None,
        blockers=tuple(
            PodBlocker(blocker.reason, blocker.text, dict(blocker.detail))
            for blocker in report.blockers
            if not blocker.info
        ),
        first_write_ms=report.first_write_ms or None,
        last_write_ms=report.last_write_ms or None,
        write_gap_ms=report.write_gap_ms or None,
    )


def socket_address(address: str, port: int) -> str:
    """`host:port`, also for an IPv6 address."""
    return f"{bracketed(address)}:{port}"
