import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from pavane.runtime import ops
from pavane.runtime.metrics import Metric, render
from pavane.runtime.ops import LoopWatch, OpsServer
from pavane.runtime.process import Process
from tests.services.eventually import eventually

HOST = "127.64.98.1"


@dataclass
class Program:
    live: str | None = None
    ready: str | None = None


@contextlib.asynccontextmanager
async def serving(program: Program, **documents: Callable[[], dict[str, Any] | None]) -> AsyncIterator[Any]:
    process = Process()
    server = OpsServer(
        host=HOST,
        port=0,
        live=lambda: program.live,
        ready=lambda: program.ready,
        metrics=lambda: [Metric("pavane_example_total", {"reason": "type"}, 3)],
        documents={f"/{name}": document for name, document in documents.items()},
    )
    await server.start(process)
    async with httpx2.AsyncClient(base_url=f"http://{HOST}:{server.port}", trust_env=False) as client:
        try:
            yield client
        finally:
            process.exit(0)
            await server.stop()
            await process.cancel_tasks()


async def test_probes_say_what_is_wrong() -> None:
    program = Program()
    async with serving(program) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        program.ready = "stage Creation"
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "stage Creation\n")
        assert (await client.get("/livez")).status_code == 200
        program.live = "the volume is not writable"
        answer = await client.get("/livez")
        assert (answer.status_code, answer.text) == (503, "the volume is not writable\n")


async def test_a_page_of_a_stranger_reads_nothing() -> None:
    async with serving(Program(), stage=lambda: {"stage": "ReadWrite"}) as client:
        for path in ("/stage", "/metrics", "/livez"):
            assert (await client.get(path, headers={"Host": "evil.example"})).status_code == 421
            assert (await client.get(path, headers={"Origin": "http://evil.example"})).status_code == 403
            for host in (f"{HOST}:7071", "localhost:7071", "q-0.q.default.svc:7071"):
                assert (await client.get(path, headers={"Host": host})).status_code == 200


async def test_any_number_of_idle_strangers_leaves_a_probe_its_answer() -> None:
    async with serving(Program()) as client, contextlib.AsyncExitStack() as stack:
        for _ in range(2 * ops.CONNECTIONS_MAX):
            _, stranger = await asyncio.open_connection(HOST, client.base_url.port)
            stack.callback(stranger.close)
        assert (await client.get("/livez")).status_code == 200


async def test_metrics_are_prometheus_text() -> None:
    async with serving(Program()) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert '# TYPE pavane_example_total counter\npavane_example_total{reason="type"} 3\n' in answer.text
    assert "# TYPE pavane_loop_late_seconds gauge\n" in answer.text


async def test_documents_of_its_own_are_json_once_there_is_something_to_show() -> None:
    async with serving(Program()) as client:
        assert (await client.get("/stage")).status_code == 404
    async with serving(Program(), stage=lambda: {"stage": "ReadOnly"}, members=lambda: None) as client:
        assert (await client.get("/stage")).json() == {"stage": "ReadOnly"}
        assert (await client.get("/members")).status_code == 503


async def test_an_address_in_use_is_an_error() -> None:
    async with serving(Program()) as client:
        taken = OpsServer(
            host=HOST, port=client.base_url.port, live=lambda: None, ready=lambda: None, metrics=lambda: []
        )
        with pytest.raises(OSError, match="in use"):
            await taken.start(Process())


async def test_a_loop_that_did_not_turn_is_not_alive() -> None:
    assert LoopWatch().check() is None
    assert "did not turn" in str(LoopWatch(limit_seconds=-1.0).check())


async def test_who_serves_may_say_how_late_is_too_late() -> None:
    process = Process()
    server = OpsServer(
        host=HOST, port=0, live=lambda: None, ready=lambda: None, metrics=lambda: [], late_seconds_max=-1.0
    )
    await server.start(process)
    async with httpx2.AsyncClient(base_url=f"http://{HOST}:{server.port}", trust_env=False) as client:
        assert (await client.get("/livez")).status_code == httpx2.codes.SERVICE_UNAVAILABLE
    await server.stop()
    await process.cancel_tasks()


async def test_the_watch_notices_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "LOOP_TICK_SECONDS", 0.0)
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    blocked_until = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < blocked_until:
        pass
    await eventually(lambda: watch.late_seconds_max >= 0.05)
    task.cancel()
    await asyncio.wait({task})


def test_metrics_of_one_name_stand_together_and_labels_are_escaped() -> None:
    text = render(
        [
            Metric("a_seconds_sum", {"path": 'C:\\"x"\n'}, 0.25),
            Metric("b", {}, 1.0),
            Metric("a_seconds_sum", {"path": "y"}, 2),
        ]
    )
    assert text == (
        "# TYPE a_seconds_sum counter\n"
        'a_seconds_sum{path="C:\\\\\\"x\\"\\n"} 0.25\n'
        'a_seconds_sum{path="y"} 2\n'
        "# TYPE b gauge\n"
        "b 1\n"
    )
