"""Spans of views, linked to the appends that they count (docs/specs/compute.md 16.3)."""

from collections.abc import Iterable
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from pavane.dataflow.log import Transaction
from pavane.waltz import tracing
from pavane.waltz.client import Transaction as Committed

LINKS_MAX = 128
"""Of one step: as many as the SDK keeps of a span. An append beyond is in no trace of a view."""


class Tracing:
    """Makes one span of each step of a view, from reading rows until the chain has what they change.

    `cluster` is the name of the log. Views are brought further one at a time.
    """

    def __init__(self, cluster: str) -> None:
        self._appends = tracing.Tracing(cluster)
        self.on = self._appends.on
        self._tracer = trace.get_tracer("pavane.dataflow")
        self._began_ns = 0
        self._links: list[Link] = []
        self._open: dict[str, tuple[int, int, list[Link]]] = {}

    def began(self) -> None:
        """Rows are read for a view from now on."""
        self._began_ns, self._links = time_ns(), []

    def took(self, transactions: Iterable[Transaction]) -> None:
        """Rows of these transactions were read."""
        if room := LINKS_MAX - len(self._links):
            reqids = (each.reqid for each in transactions if isinstance(each, Committed))
            self._links += self._appends.links(reqids, room)

    def brought(self, view: str, tick: int, *, changed: bool) -> None:
        """The view is computed up to a tick; what `changed` is not written yet."""
        if self._links and changed:
            began_ns, _, links = self._open.get(view, (self._began_ns, 0, []))
            self._open[view] = began_ns, tick, [*links, *self._links][:LINKS_MAX]
        elif self._links:  # its chain is written with the next change, maybe hours later
            self._step(view, self._began_ns, tick, self._links)

    def written(self, view: str, upper: int) -> None:
        """The chain of a view is final below `upper`."""
        if view in self._open and self._open[view][1] < upper:
            began_ns, tick, links = self._open.pop(view)
            self._step(view, began_ns, tick, links)

    def _step(self, view: str, began_ns: int, tick: int, links: list[Link]) -> None:
        attributes: dict[str, str | int] = {"pavane.dataflow.view": view, "pavane.dataflow.tick": tick}
        self._tracer.start_span(
            "dataflow/step", Context(), SpanKind.CONSUMER, attributes, links, start_time=began_ns
        ).end()
