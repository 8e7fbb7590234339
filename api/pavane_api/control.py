"""What all endpoints of one application share, made at start and closed at stop."""

from dataclasses import dataclass
from typing import Annotated

import httpx2
from fastapi import Depends, Request

from pavane_api.auth import Authority
from pavane_api.idempotency import Idempotency
from pavane_api.raft_clients import RaftClients
from pavane_api.series.store import SeriesStore
from pavane_api.streams import Streams
from pavane_api.traces.receiver import Receiver
from pavane_api.traces.store import TraceStore
from pavane_api.views.kept import KeptViews, Queries
from pavane_api.waltz_clients import WaltzClients
from pavane_operator.kube import KubeClient


@dataclass(frozen=True, slots=True)
class Control:
    """The parts of a running control plane."""

    kube: KubeClient
    authority: Authority
    idempotency: Idempotency
    raft: RaftClients
    waltz: WaltzClients
    views: KeptViews
    queries: Queries
    pods: httpx2.AsyncClient
    streams: Streams
    traces: TraceStore
    series: SeriesStore
    receiver: Receiver


def _control(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


Shared = Annotated[Control, Depends(_control)]
"""Parameter type of an endpoint that uses the control plane's parts."""
