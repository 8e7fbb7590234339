"""The three traces that people look at, span by span: an append, a transfer, a rollout (docs/telemetry.md)."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from e2e.waiting import eventually
from pavane_cli.plane import ApiError, RestClient

WAIT_S = 120.0
CALLER = "00f067aa0ba902b7"
NAMESPACE = "/namespaces/default"
NODES = 3

Span = dict[str, Any]


@dataclass(frozen=True)
class Caused:
    """A request and the trace that it names."""

    trace_id: str
    rest: RestClient

    @property
    def header(self) -> dict[str, str]:
        return {"traceparent": f"00-{self.trace_id}-{CALLER}-01"}

    async def until(self, whole: Callable[[list[Span]], bool]) -> list[Span]:
        """Return the spans of the trace once ``whole`` says that all are there."""
        seen: list[Span] = []

        async def look() -> list[Span] | None:
            try:
                found = await self.rest.get(f"/traces/{self.trace_id}")
            except ApiError:
                return None  # nothing of it has arrived
            seen[:] = found["spans"]
            assert not found["truncated"]
            return seen if whole(seen) else None

        try:
            return await eventually(look, "all spans of the trace", WAIT_S)
        except AssertionError as error:
            raise AssertionError(sorted((span["service"], span["instance"], span["name"]) for span in seen)) from error


def caused(rest: RestClient) -> Caused:
    return Caused(secrets.token_hex(16), rest)


def named(spans: list[Span], service: str, name: str, kind: str = "", instance: str = "") -> list[Span]:
    return [
        span
        for span in spans
        if (span["service"], span["name"]) == (service, name)
        and kind in ("", span["kind"])
        and instance in ("", span["instance"])
    ]


def contexts(span: Span) -> set[tuple[str, str]]:
    return {(link["trace_id"], link["span_id"]) for link in span["links"]}


def only(spans: list[Span]) -> Span:
    (found,) = spans
    return found


def is_child(span: Span, parent: Span) -> None:
    assert (span["trace_id"], span["parent_span_id"]) == (parent["trace_id"], parent["span_id"])


def views(spans: list[Span]) -> set[Any]:
    return {span["attributes"]["pavane.dataflow.view"] for span in named(spans, "compute", "dataflow/step", "CONSUMER")}


def booked(spans: list[Span], changed: set[str]) -> bool:
    """Whether an append has reached its owner, all nodes, and the views that it changes."""
    nodes = {span["instance"] for span in named(spans, "waltz-storage", "waltz/store", "CONSUMER")}
    return (
        bool(named(spans, "waltz-server", "waltz/append", "SERVER")) and len(nodes) == NODES and views(spans) >= changed
    )


def follows_the_append(spans: list[Span], client: Span) -> None:
    """Owner, nodes and views link to the context of the append, and nothing else joins them to it."""
    (context,) = contexts(client)
    owner = only(named(spans, "waltz-server", "waltz/append", "SERVER"))
    assert (owner["parent_span_id"], contexts(owner)) == ("", {context})
    assert owner["attributes"]["pavane.waltz.transaction_id"] == client["attributes"]["pavane.waltz.transaction_id"]
    for span in named(spans, "waltz-storage", "waltz/store") + named(spans, "compute", "dataflow/step"):
        assert context in contexts(span)
        assert span["parent_span_id"] == ""


async def an_append(rest: RestClient) -> None:
    """REST → the control plane's client → the owner of the partition → three nodes → the ticks of both views."""
    cause = caused(rest)
    rows = json.dumps([{"account": "trace", "amount": 1, "reference": cause.trace_id}]).encode()
    path = f"{NAMESPACE}/waltzclusters/ledger/partitions/0/transactions"
    answer = await rest.post(path, rows, cause.header)
    spans = await cause.until(lambda spans: booked(spans, {"balances", "total"}))
    http = only([span for span in spans if span["service"] == "pavane-api" and span["kind"] == "SERVER"])
    assert (http["trace_id"], http["parent_span_id"]) == (cause.trace_id, CALLER)
    client = only(named(spans, "pavane-api", "waltz/append", "CLIENT"))
    is_child(client, http)
    assert client["attributes"]["pavane.waltz.transaction_id"] == answer["transaction"]
    follows_the_append(spans, client)


async def a_transfer(rest: RestClient) -> None:
    """REST → HTTP of the payer → its flow → the call, over both coordinators, to the payee → the append, its views."""
    cause = caused(rest)
    path = f"{NAMESPACE}/coordinators/alice/call/transfer"
    header = {**cause.header, "Idempotency-Key": cause.trace_id}
    assert (await rest.send("POST", path, ["bob", 1, cause.trace_id], header))["result"] is True

    def whole(spans: list[Span]) -> bool:
        payee = named(spans, "immortal", "ambrosia/handle", "SERVER", "bob")
        coordinators = {
            span["attributes"]["pavane.ambrosia.instance"] for span in spans if span["service"] == "coordinator"
        }
        flow = named(spans, "immortal", "ambrosia/handle", "SERVER", "alice")
        return bool(payee and flow) and coordinators == {"alice", "bob"} and booked(spans, {"balances"})

    spans = await cause.until(whole)
    http = only([span for span in spans if span["service"] == "pavane-api" and span["kind"] == "SERVER"])
    assert (http["trace_id"], http["parent_span_id"]) == (cause.trace_id, CALLER)
    application = only(named(spans, "immortal", "POST /call/{method}", "SERVER", "alice"))
    is_child(application, http)
    request = only(named(spans, "immortal", "ambrosia/request", "CLIENT", "alice"))
    is_child(request, application)
    flows = named(spans, "immortal", "ambrosia/handle", "SERVER", "alice")
    flow = only([span for span in flows if contexts(span) & contexts(request)])
    call = only(named(spans, "immortal", "ambrosia/call", "CLIENT", "alice"))
    is_child(call, flow)
    (context,) = contexts(call)
    deposit = only(named(spans, "immortal", "ambrosia/handle", "SERVER", "bob"))
    assert contexts(deposit) == {context}
    for name, instance in (("ambrosia/send", "alice"), ("ambrosia/log", "bob")):
        found = [
            span
            for span in named(spans, "coordinator", name)
            if span["attributes"]["pavane.ambrosia.instance"] == instance
        ]
        assert any(context in contexts(span) for span in found), (name, instance)
    append = only(named(spans, "immortal", "waltz/append", "CLIENT", "alice"))
    is_child(append, flow)
    follows_the_append(spans, append)


async def a_rollout(rest: RestClient) -> None:
    """REST → the reconciles that it caused → each command to the new pod → what the pod does about it."""
    cause = caused(rest)
    await rest.send("POST", f"{NAMESPACE}/coordinators/bob/rollout/restart", None, cause.header)

    def whole(spans: list[Span]) -> bool:
        return len(named(spans, "coordinator", "stage/AllowWrites", "SERVER")) > 0

    spans = await cause.until(whole)
    by_id = {(span["trace_id"], span["span_id"]): span for span in spans}
    http = only([span for span in spans if span["service"] == "pavane-api" and span["kind"] == "SERVER"])
    assert (http["trace_id"], http["parent_span_id"]) == (cause.trace_id, CALLER)
    for command, action in (("InitializationComplete", "AdvanceStage"), ("AllowWrites", "AllowWrites")):
        of_pod = only(named(spans, "coordinator", f"stage/{command}", "SERVER"))
        assert of_pod["instance"].startswith("bob-instance-g")
        sent = by_id[of_pod["trace_id"], of_pod["parent_span_id"]]
        assert (sent["service"], sent["kind"], sent["name"]) == ("pavane-operator", "CLIENT", f"stage/{command}")
        acted = by_id[sent["trace_id"], sent["parent_span_id"]]
        assert acted["name"] == action
        run = by_id[acted["trace_id"], acted["parent_span_id"]]
        assert (run["name"], run["parent_span_id"]) == ("reconcile Coordinator", "")
        assert (http["trace_id"], http["span_id"]) in contexts(run)
