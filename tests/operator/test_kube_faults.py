"""What the Kubernetes client makes of a server that misbehaves: scripted answers on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from pavane_operator.kube import Gone, KubeClient, KubeError, Target, TooManyRequests, Unavailable
from pavane_operator.kube import client as client_module
from pavane_operator.kube.errors import MISFITS_MAX, Invalid, from_status
from pavane_operator.kube.resources import PODS

Answer = Callable[[asyncio.StreamWriter], None]


Scripted = Callable[..., AbstractAsyncContextManager[KubeClient]]


@pytest.fixture(params=["library", "light"])
def a_scripted_server(tmp_path: Path, request: pytest.FixtureRequest) -> Scripted:
    """`scripted_server` for each of the two transports."""
    return partial(scripted_server, tmp_path, request.param == "light")


@asynccontextmanager
async def scripted_server(
    folder: Path, brief: bool, answer: Answer, timeout_s: float = 5.0
) -> AsyncIterator[KubeClient]:
    """A client of a server that answers each request with `answer` and leaves the connection open."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        answer(writer)
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kubeconfig = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "here", "user": {"token": "secret"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(document))
    try:
        async with await KubeClient.connect(Target(kubeconfig), timeout_s=timeout_s, brief=brief) as kube:
            yield kube
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


def response(status: int, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def chunks(*pieces: bytes) -> bytes:
    """The beginning of an answer that never ends."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def event(kind: str, **body: object) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def test_a_server_may_ask_to_be_left_alone(a_scripted_server: Scripted) -> None:
    answer = response(429, b'{"message": "slow down"}', "Retry-After: 7")
    async with a_scripted_server(lambda writer: writer.write(answer)) as kube:
        with pytest.raises(TooManyRequests, match="slow down") as refused:
            await kube.list(PODS)
    assert refused.value.retry_after_s == 7


async def test_an_error_page_of_a_proxy_is_unavailable(a_scripted_server: Scripted) -> None:
    answer = response(502, b"<html>" + b"x" * 5000)
    async with a_scripted_server(lambda writer: writer.write(answer)) as kube:
        with pytest.raises(Unavailable) as refused:
            await kube.list(PODS)
    assert len(refused.value.message) <= 1024


async def test_an_answer_that_is_no_object_is_unavailable(a_scripted_server: Scripted) -> None:
    async with a_scripted_server(lambda writer: writer.write(response(200, b"[1]"))) as kube:
        with pytest.raises(Unavailable, match="no object"):
            await kube.list(PODS)


async def test_a_server_that_never_answers_is_unavailable(a_scripted_server: Scripted) -> None:
    async with a_scripted_server(lambda _: None, timeout_s=0.05) as kube:
        with pytest.raises(Unavailable, match="no answer"):
            await kube.list(PODS)


async def test_a_question_on_a_connection_that_carries_nothing_is_asked_again(
    a_scripted_server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ASK_AGAIN_S", 0.05)
    asked: list[None] = []

    def silent_once(writer: asyncio.StreamWriter) -> None:
        asked.append(None)
        if len(asked) > 1:
            writer.write(response(200, b'{"metadata": {"name": "a"}}'))

    async with a_scripted_server(silent_once, timeout_s=60.0) as kube:
        assert (await kube.get(PODS, "a", "default"))["metadata"] == {"name": "a"}


async def test_an_event_may_come_in_pieces_and_two_in_one(a_scripted_server: Scripted) -> None:
    first, second, third = (event("ADDED", metadata={"name": name}) for name in ("a", "b", "c"))
    answer = chunks(first[:10], first[10:] + second + third[:1], third[1:])
    async with a_scripted_server(lambda writer: writer.write(answer)) as kube:
        changes = kube.watch(PODS)
        names = [(await anext(changes)).object["metadata"]["name"] for _ in range(3)]
        await changes.aclose()
    assert names == ["a", "b", "c"]


@pytest.mark.parametrize("code", [{"code": 410}, {"code": "many"}, {}])
async def test_an_error_event_is_raised(a_scripted_server: Scripted, code: dict[str, object]) -> None:
    answer = chunks(event("ERROR", reason="Expired", message="too old", **code))
    async with a_scripted_server(lambda writer: writer.write(answer)) as kube:
        with pytest.raises(Gone, match="too old"):
            await anext(kube.watch(PODS))


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b'{"object": {"metadata": {}}}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": {"metadata": 1}}',
        b'{"type": "GUESSED", "object": {"metadata": {}}}',
        b'{"type": "ERROR"}',
    ],
)
async def test_a_watch_that_delivers_nonsense_is_unavailable(a_scripted_server: Scripted, line: bytes) -> None:
    async with a_scripted_server(lambda writer: writer.write(chunks(line + b"\n"))) as kube:
        with pytest.raises(Unavailable, match="no event"):
            await anext(kube.watch(PODS))


async def test_a_watch_that_falls_silent_is_dead(a_scripted_server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_SILENCE_S", 0.05)
    async with a_scripted_server(lambda writer: writer.write(chunks())) as kube:
        with pytest.raises(Unavailable):
            await anext(kube.watch(PODS))


async def test_a_line_without_end_is_cut_off(a_scripted_server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LINE_BYTES_MAX", 1000)
    async with a_scripted_server(lambda writer: writer.write(chunks(b"x" * 2000))) as kube:
        with pytest.raises(Unavailable, match="longer than any object"):
            await anext(kube.watch(PODS))


async def test_no_more_calls_are_open_than_allowed(a_scripted_server: Scripted) -> None:
    held: list[asyncio.StreamWriter] = []
    all_open = asyncio.Event()

    def hold(writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if len(held) == client_module.CALLS_OPEN_MAX:
            all_open.set()

    async with a_scripted_server(hold) as kube:
        calls = [asyncio.create_task(kube.get(PODS, "a", "b")) for _ in range(client_module.CALLS_OPEN_MAX + 5)]
        await all_open.wait()
        empty = response(200, b'{"items": []}')
        done: set[asyncio.Task[object]] = set()
        while len(done) < len(calls):
            assert len(held) <= client_module.CALLS_OPEN_MAX
            for writer in held:
                writer.write(empty)
                writer.close()
            held.clear()
            done, _ = await asyncio.wait(calls, timeout=0.05)


@pytest.mark.parametrize(
    ("status", "body"),
    [(418, None), (503, {"details": 7}), (409, {"details": {"causes": "none"}}), (422, {"details": {"causes": [1]}})],
)
def test_any_answer_becomes_an_error_of_ours(status: int, body: object) -> None:
    error = from_status(status, body, {"Retry-After": "soon"})
    assert isinstance(error, KubeError)
    assert error.causes == ()
    assert error.retry_after_s is None


def test_an_applied_body_that_does_not_fit_its_schema_is_no_fault_of_the_server() -> None:
    # A real API server says 500 there, without a reason; the contract tests see it do so.
    text = (
        "failed to create typed patch object (/q; pavane.dev/v1alpha1, Kind=RaftCluster): .spec.x: field not declared"
    )
    error = from_status(500, {"kind": "Status", "message": text, "code": 500}, {})
    assert (type(error), error.status, error.message) == (Invalid, 422, text)
    assert [(cause.field, cause.message) for cause in error.causes] == [("spec.x", "field not declared")]


def test_each_field_of_such_a_body_is_a_cause() -> None:
    text = (
        "failed to create typed patch object (default/q; pavane.dev/v1alpha1, Kind=RaftCluster): errors:\n"
        '  .spec.env[name="a: b"].nam: field not declared in schema\n'
        "  .spec.replicas: expected numeric (int or float), got string"
    )
    error = from_status(500, {"kind": "Status", "message": text, "code": 500}, {})
    assert [(cause.field, cause.message) for cause in error.causes] == [
        ('spec.env[name="a: b"].nam', "field not declared in schema"),
        ("spec.replicas", "expected numeric (int or float), got string"),
    ]
    many = text + "\n  .spec.x: field not declared in schema" * 1000
    assert len(from_status(500, {"message": many}, {}).causes) == MISFITS_MAX
