"""Following resources over whatever an API server does to a watch (docs/specs/operator.md 5.1)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from pavane_api.overview import service as overview
from pavane_api.pods import service as pods
from pavane_api.resources import service as resources
from pavane_cli.commands import resources as commands
from pavane_operator.kube import Change, Forbidden, Gone, KubeClient, ObjectList, Target, TooManyRequests, Unavailable
from pavane_operator.kube import informer as informer_module
from pavane_operator.kube.client import LIST_CHUNK
from pavane_operator.kube.informer import AGAIN_MAX_S, Informer
from pavane_operator.kube.resources import CONFIG_MAPS, PODS, Object, custom
from tests.local.api_server import a_server, config_map

WAIT_S = 20
RAFT = custom("RaftCluster", "raftclusters")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "AGAIN_S", 0.01)


def told(change: Change) -> tuple[str, str, str]:
    return change.type, change.object["metadata"]["name"], change.object["metadata"]["resourceVersion"]


@pytest.mark.usefixtures("at_once")
async def test_what_went_while_nobody_watched_is_gone_after_the_next_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane_local.store.HISTORY_EVENTS", 1)
    async with a_server(tmp_path) as server, await KubeClient.connect(Target(server.api.kubeconfig)) as kube:
        for name in ("goes", "stays", "moves"):
            await kube.create(CONFIG_MAPS, {**config_map(), "metadata": {"name": name}}, "default")
        found = Informer(kube, CONFIG_MAPS, "default").changes()
        async with asyncio.timeout(WAIT_S), contextlib.aclosing(found):
            names = {told(await anext(found))[:2] for _ in range(3)}
            assert names == {("ADDED", "goes"), ("ADDED", "moves"), ("ADDED", "stays")}
            server.cluster.store.end_watches()
            await kube.delete(CONFIG_MAPS, "goes", "default")
            await kube.patch(CONFIG_MAPS, "moves", {"data": {"a": "2"}}, "default")
            await kube.create(CONFIG_MAPS, {**config_map(), "metadata": {"name": "comes"}}, "default")
            seen = [told(await anext(found))[:2] for _ in range(3)]
            assert sorted(seen) == [("ADDED", "comes"), ("DELETED", "goes"), ("MODIFIED", "moves")]
            await kube.delete(CONFIG_MAPS, "stays", "default")
            assert told(await anext(found))[:2] == ("DELETED", "stays")


@dataclass
class Script:
    """Answers of an API server in their order; afterwards watches stay open and silent."""

    answers: list[tuple[int, list[object], bool]] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)

    def listed(self, version: str, *names: str, page: str = "") -> None:
        metadata = {"resourceVersion": version, "continue": page}
        items = [body(name, "1") for name in names]
        self.answers.append((200, [{"metadata": metadata, "items": items}], True))

    def streamed(self, *events: tuple[str, Object], ends: bool = True) -> None:
        self.answers.append((200, [{"type": kind, "object": each} for kind, each in events], ends))

    def refused(self, code: int, **status: object) -> None:
        self.answers.append((code, [{"kind": "Status", "code": code, **status}], True))


def body(name: str, version: str) -> Object:
    return {"metadata": {"name": name, "uid": f"uid of {name}", "resourceVersion": version}}


def bookmark(version: str) -> tuple[str, Object]:
    return "BOOKMARK", {"metadata": {"resourceVersion": version}}


def fault(code: int, **status: object) -> tuple[str, Object]:
    return "ERROR", {"kind": "Status", "status": "Failure", "code": code, **status}


@contextlib.asynccontextmanager
async def played(script: Script, folder: Path) -> AsyncIterator[KubeClient]:
    """A client of a server that plays the script over a real socket."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        query = parse_qs(urlsplit(head.split(" ")[1]).query)
        script.asked.append({key: values[0] for key, values in query.items()})
        status, lines, ends = script.answers.pop(0) if script.answers else (200, [], False)
        pieces = [json.dumps(each).encode() + b"\n" for each in lines]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        writer.write(b"HTTP/1.1 %d Any\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" % status + chunks)
        if ends:
            writer.write(b"0\r\n\r\n")
            writer.close()
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    here = {"name": "here"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{**here, "context": {"cluster": "here", "user": "here"}}],
        "clusters": [{**here, "cluster": {"server": address}}],
        "users": [{**here, "user": {"token": "secret"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(document))
    try:
        async with await KubeClient.connect(Target(folder / "kubeconfig")) as kube:
            yield kube
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


async def first(found: AsyncGenerator[Any, None], count: int) -> list[Any]:
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(found):
        return [await anext(found) for _ in range(count)]


def shown(found: ObjectList | Change) -> object:
    return [each["metadata"]["name"] for each in found.items] if isinstance(found, ObjectList) else told(found)[:2]


def positions(script: Script) -> list[str]:
    """What was asked for: `list`, or the position where a watch began."""
    return [each.get("resourceVersion", "") if "watch" in each else "list" for each in script.asked]


@pytest.mark.usefixtures("at_once")
async def test_a_watch_that_ends_goes_on_after_the_last_change_or_bookmark(tmp_path: Path) -> None:
    script = Script()
    script.listed("5", "a")
    script.streamed(("ADDED", body("b", "6")))
    script.streamed(bookmark("90"))
    script.streamed(("DELETED", body("a", "91")), ends=False)
    async with played(script, tmp_path) as kube:
        found = await first(Informer(kube, PODS, "default").lists_and_changes(), 3)
    assert [shown(each) for each in found] == [["a"], ("ADDED", "b"), ("DELETED", "a")]
    assert positions(script) == ["list", "5", "6", "90"]
    assert {each.get("allowWatchBookmarks") for each in script.asked[1:]} == {"true"}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("when", ["as an event", "as the answer", "as an event with reason Gone"])
async def test_an_expired_position_is_listed_again(tmp_path: Path, when: str) -> None:
    script = Script()
    script.listed("5", "a", "b")
    if when == "as the answer":
        script.refused(410, reason="Expired", message="too old resource version: 5 (9)")
    else:
        reason = "Gone" if "Gone" in when else "Expired"
        script.streamed(bookmark("6"), fault(410, reason=reason, message="too old resource version: 6 (9)"))
    script.listed("9", "b", "c")
    async with played(script, tmp_path) as kube:
        found = await first(Informer(kube, PODS, "default").changes(), 4)
    assert [shown(each) for each in found] == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a"), ("ADDED", "c")]
    assert positions(script)[:3] == ["list", "5", "list"]


@pytest.mark.usefixtures("at_once")
async def test_a_list_whose_cursor_expired_begins_again(tmp_path: Path) -> None:
    script = Script()
    script.listed("5", "a", page="next")
    script.refused(410, reason="Expired", message="The provided continue parameter is too old")
    script.listed("9", "b")
    async with played(script, tmp_path) as kube:
        found = await first(Informer(kube, PODS, "default").lists_and_changes(), 1)
    assert shown(found[0]) == ["b"]
    assert [each.get("continue") for each in script.asked] == [None, "next", None]
    assert script.asked[0]["limit"] == str(LIST_CHUNK)


@pytest.mark.usefixtures("at_once")
async def test_a_server_in_trouble_is_asked_again_by_who_has_patience(tmp_path: Path) -> None:
    script = Script()
    script.refused(429, message="storage is (re)initializing", details={"retryAfterSeconds": 0})
    script.listed("5", "a")
    script.streamed(fault(500, reason="InternalError", message="etcd event received with PrevKv=nil"))
    script.streamed(fault(504, reason="Timeout", message="Timeout: Too large resource version"))
    script.refused(503, message="apiserver not ready")
    script.streamed(("MODIFIED", body("a", "6")), ends=False)
    async with played(script, tmp_path) as kube:
        found = await first(Informer(kube, PODS, "default", patience_s=WAIT_S).lists_and_changes(), 2)
    assert [shown(each) for each in found] == [["a"], ("MODIFIED", "a")]
    assert positions(script) == ["list", "list", "5", "5", "5", "5"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (fault(500, reason="InternalError", message="a fault"), Unavailable),
        (fault(403, reason="Forbidden", message="a fault"), Forbidden),
        (fault(410, reason="Expired", message="a fault"), Gone),
        (fault(429, reason="TooManyRequests", message="a fault"), TooManyRequests),
    ],
)
async def test_who_watches_from_a_position_of_its_own_hears_of_every_fault(
    tmp_path: Path, status: tuple[str, Object], error: type[Exception]
) -> None:
    script = Script()
    script.streamed(("ADDED", body("a", "8")), status)
    async with played(script, tmp_path) as kube:
        found = Informer(kube, PODS, "default").watched("7")
        assert told(await anext(found)) == ("ADDED", "a", "8")
        with pytest.raises(error, match="a fault"):
            await anext(found)
    assert positions(script) == ["7"]


class Restless:
    """An API server, or a proxy before it, that ends each watch as soon as it has begun."""

    def __init__(self) -> None:
        self.lists = self.watches = 0
        self.fault: Exception | None = None

    async def list_all(self, *_: Any, **__: Any) -> ObjectList:
        self.lists += 1
        await asyncio.sleep(0.05)
        return ObjectList((), "1", None)

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Change]:
        self.watches += 1
        await asyncio.sleep(0.05)
        if self.fault is not None:
            raise self.fault
        for change in list[Change]():
            yield change


def of_overview(kube: KubeClient) -> AsyncGenerator[Any, None]:
    return overview.events(kube, [RAFT])


def of_resources(kube: KubeClient) -> AsyncIterator[Any]:
    return resources.events(kube, RAFT, "default", since="", labels="", fields="")


async def of_pods(kube: KubeClient) -> AsyncIterator[Any]:
    resource = {"kind": "RaftCluster", "metadata": {"name": "q", "namespace": "default"}}
    await pods._keep(kube, resource, {}, asyncio.Event())
    for each in list[None]():
        yield each


async def of_commands(kube: KubeClient) -> AsyncIterator[Any]:
    async with commands.changes(kube, RAFT, "default", None) as seen:
        async for each in seen:
            yield each


@pytest.mark.looptime
@pytest.mark.parametrize("follower", [of_overview, of_resources, of_pods, of_commands])
async def test_a_server_that_ends_each_watch_at_once_is_not_flooded(
    follower: Callable[[KubeClient], AsyncIterator[Any]],
) -> None:
    server = Restless()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(600):
            async for _ in follower(cast("KubeClient", server)):
                pass
    assert 600 / AGAIN_MAX_S <= server.watches <= 600 / AGAIN_MAX_S + 10


@pytest.mark.looptime
@pytest.mark.parametrize("follower", [of_overview, of_pods, of_commands])
async def test_nor_is_one_that_calls_each_position_too_old(
    follower: Callable[[KubeClient], AsyncIterator[Any]],
) -> None:
    server = Restless()
    server.fault = Gone("too old", status=410, reason="Expired")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(600):
            async for _ in follower(cast("KubeClient", server)):
                pass
    assert 600 / AGAIN_MAX_S <= server.lists <= 600 / AGAIN_MAX_S + 10


@pytest.mark.looptime
async def test_a_server_may_say_when_it_wants_to_be_asked() -> None:
    server = Restless()
    server.fault = TooManyRequests("slow down", status=429, retry_after_s=100)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TooManyRequests):
        async for _ in Informer(cast("KubeClient", server), RAFT, patience_s=350).changes():
            pass
    assert server.watches == 5
    assert 350 <= asyncio.get_running_loop().time() - began <= 500
