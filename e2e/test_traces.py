"""One append through REST is one trace over all programs, though no byte of the protocol carries it."""

import json
from typing import Any

from e2e.cluster import RaftTest
from e2e.waiting import eventually


async def test_an_append_is_one_trace_from_the_api_to_a_follower(raft: RaftTest) -> None:
    await raft.apply()
    await raft.until_current()
    index = raft.platform.run("raft", "append", "q", "traced", "-n", raft.namespace).stdout.strip()

    async def find() -> list[dict[str, Any]] | None:
        listed = json.loads(raft.platform.run("trace", "list", "--name", "POST", "--limit", "3", "-o", "json").stdout)
        for item in listed:
            found: dict[str, Any] = json.loads(
                raft.platform.run("trace", "show", item["trace_id"], "-o", "json").stdout
            )
            names = [(span["service"], span["name"]) for span in found["spans"]]
            if f"/namespaces/{raft.namespace}/" in json.dumps(found) and ("raft-server", "raft/append") in names:
                spans: list[dict[str, Any]] = found["spans"]
                return spans
        return None

    spans = await eventually(find, "the trace with the follower's span", 30)
    by_name = {(span["service"], span["name"]): span for span in spans}
    http = next(span for span in spans if span["service"] == "pavane-api" and span["kind"] == "SERVER")
    client = by_name["pavane-api", "raft/RequestUpdate"]
    leader = by_name["raft-server", "raft/RequestUpdate"]
    follower = by_name["raft-server", "raft/append"]
    assert http["parent_span_id"] == ""
    assert (client["kind"], client["parent_span_id"], client["trace_id"]) == (
        "CLIENT",
        http["span_id"],
        http["trace_id"],
    )
    assert client["attributes"]["pavane.raft.index"] == int(index)
    (context,) = client["links"]
    assert leader["kind"] == "SERVER"
    assert leader["links"] == [context]
    assert context in follower["links"]
    assert leader["instance"] != follower["instance"]
    shown = raft.platform.run("trace", "show", http["trace_id"]).stdout
    assert "raft/RequestUpdate" in shown
    assert "~ raft/append" in shown
