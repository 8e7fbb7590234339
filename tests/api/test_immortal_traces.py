"""One transfer between two immortals is one trace, with its append to a log; a replay is linked and repeats nothing."""

import asyncio
import contextlib
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.plane import Plane, plane
from tests.services.ambrosia.bank import Account
from tests.services.waltz.running import running_log

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
WAIT_S = 60.0
CLIENT, COORDINATOR = "immortal", "immortal-coordinator"
REPLAY = (CLIENT, "alice", "ambrosia/replay")
PATH = Counter(
    {
        # What alice is asked, what it asks bob, and bob's answer back.
        (CLIENT, "alice", "POST /call/{method}"): 1,
        (CLIENT, "alice", "ambrosia/request"): 1,
        (CLIENT, "alice", "ambrosia/handle"): 1,
        (CLIENT, "alice", "ambrosia/call"): 1,
        (COORDINATOR, "alice", "ambrosia/send"): 1,
        (COORDINATOR, "bob", "ambrosia/log"): 1,
        (CLIENT, "bob", "ambrosia/handle"): 1,
        (COORDINATOR, "bob", "ambrosia/send"): 1,
        (COORDINATOR, "alice", "ambrosia/log"): 1,
        # What it books.
        (CLIENT, "alice", "waltz/append"): 1,
    }
)


def names(spans: list[dict[str, Any]]) -> Counter[tuple[str, str, str]]:
    return Counter((span["service"], span["instance"], span["name"]) for span in spans)


def once_of(found: Counter[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    """Without what may be sent again over a link that broke."""
    return {key: count for key, count in found.items() if key[2] != "ambrosia/send"}


async def shown(platform: Plane, *, after_replay: bool = False) -> list[dict[str, Any]]:
    """Return the spans of the trace once all of them, or the replay's, are there."""
    spans: list[dict[str, Any]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while not (names(spans) >= PATH and (names(spans)[REPLAY] or not after_replay)):
                await asyncio.sleep(0.05)
                answer = await platform.http.get(f"/api/v1/traces/{TRACE}")
                spans = answer.json()["spans"] if answer.is_success else []
    return spans


@pytest.mark.timeout(240)  # three starts of two processes each, on a machine that does other things too
async def test_a_transfer_is_one_trace_and_a_replay_repeats_nothing(tmp_path: Path) -> None:
    async with plane(tmp_path / "plane") as platform, running_log(tmp_path / "log") as log, AsyncExitStack() as stack:
        await log.settled()
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": str(platform.http.base_url).rstrip("/"),
            "PAVANE_OTLP_TOKEN_FILE": str(tmp_path / "plane" / "cluster" / "ca" / "admin.token"),
            "LEDGER_SERVERS": f"127.0.0.1:{log.servers[0].port}",
        }
        accounts = [Account(tmp_path / "bank", name, environment, "ledger:Booked") for name in ("alice", "bob")]
        (tmp_path / "bank").mkdir()
        for account in accounts:
            await account.start()
            stack.push_async_callback(gone, account)
        alice, _ = accounts
        await alice.ask("POST", "/call/open", "open", [10])
        header = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        assert await alice.ask("POST", "/call/transfer", "once", ["bob", 4], **header) == {"result": True}

        spans = await shown(platform)
        assert once_of(names(spans)) == once_of(PATH)
        by_name = {(span["service"], span["instance"], span["name"]): span for span in spans}
        http = by_name[CLIENT, "alice", "POST /call/{method}"]
        request = by_name[CLIENT, "alice", "ambrosia/request"]
        transfer = by_name[CLIENT, "alice", "ambrosia/handle"]
        call = by_name[CLIENT, "alice", "ambrosia/call"]
        deposit = by_name[CLIENT, "bob", "ambrosia/handle"]
        assert (http["trace_id"], http["parent_span_id"], http["kind"]) == (TRACE, CALLER, "SERVER")
        assert (request["trace_id"], request["parent_span_id"], request["kind"]) == (TRACE, http["span_id"], "CLIENT")
        assert transfer["links"] == request["links"]
        assert len(request["links"]) == 1
        assert (call["trace_id"], call["parent_span_id"]) == (transfer["trace_id"], transfer["span_id"])
        (context,) = call["links"]
        assert context not in request["links"]
        append = by_name[CLIENT, "alice", "waltz/append"]
        assert (append["trace_id"], append["parent_span_id"]) == (transfer["trace_id"], transfer["span_id"])
        own = {(CLIENT, "alice", name) for name in (http["name"], request["name"], "ambrosia/handle", append["name"])}
        for key in set(PATH) - own:
            assert by_name[key]["links"] == [context], key
        roots = {span["name"] for span in spans if not span["parent_span_id"]}
        assert roots == {"ambrosia/handle", "ambrosia/send", "ambrosia/log"}
        assert {span["error"] for span in spans} == {""}
        assert deposit["attributes"]["rpc.method"] == "Account.deposit"

        told = await alice.ask("GET", "/")
        assert (told["class"], told["life"], told["called"], told["failed"]) == ("Booked", "primary", 2, 0)
        assert (told["flows_open"], told["flows"], told["seq"] > 0) == (0, [], True)
        amount, _ = next(each for each in told["methods"] if each["name"] == "open")["parameters"]
        assert (amount["name"], amount["required"], amount["schema"]) == ("amount", True, {"type": "integer"})
        assert [(each["name"], each["flow"]) for each in told["queries"]] == [("money", False)]

        await alice.kill("application", "coordinator")
        await alice.start()
        assert await alice.ask("GET", "/query/money") == {"result": {"balance": 6, "on_the_way": 0}}
        spans = await shown(platform, after_replay=True)
        (replay,) = [span for span in spans if span["name"] == "ambrosia/replay"]
        assert once_of(names(spans)) == once_of(PATH + Counter([REPLAY]))
        assert replay["attributes"]["pavane.replay"] is True
        assert not replay["parent_span_id"]
        assert replay["trace_id"] not in {span["trace_id"] for span in spans if span is not replay}
        assert transfer["links"][0] in replay["links"]


async def gone(account: Account) -> None:
    with contextlib.suppress(FileNotFoundError):
        await account.kill("application", "coordinator")
