"""The coordinator at its sockets: byte traces in both orders, exit codes, takeover, hostile input."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pavane.ambrosia import options as opts
from pavane.ambrosia.errors import Fatal, FatalError, Superseded
from pavane.ambrosia.ports import SocketOrder
from pavane.ambrosia.server import DebugServer, Options, Server, ambrosia, run_coordinator
from pavane.ambrosia.storage import CheckpointReader
from pavane.ambrosia.tenure import Tenure
from pavane.ambrosia.wire.limits import MESSAGE_BYTES_MAX, MIB
from pavane.ambrosia.wire.links import Answer, Channel, Code, Hello
from pavane.ambrosia.wire.messages import (
    PROGRESS,
    Call,
    Commit,
    RpcType,
    Type,
    attach_to,
    checkpoint,
    frame,
    incoming,
    outgoing,
)
from pavane.ambrosia.wire.primitives import i64, zz32
from pavane.ambrosia.wire.records import LogRecord, WireRecord, read_header
from pavane.wal.files import DiskFolder
from tests.services.ambrosia.model import Application
from tests.services.ports import free_ports

WAIT_S = 40.0
C_INITIAL = bytes.fromhex("12090e00004001050403")
JS_INITIAL = bytes.fromhex("0c09322e302e31")
JS_CALL = incoming(Call(7, RpcType.FORK, b"some arguments"))


def options(folder: Path, name: str = "server", **changes: Any) -> Options:
    port, rp, sp = free_ports(3)
    fields: dict[str, Any] = {"name": name, "port": port, "receive_port": rp, "send_port": sp, "log": f"{folder}/logs/"}
    return Options(**{**fields, **changes})


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)


class Binding:
    """Both streams of an application, in the current order."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, server: Server) -> None:
        _, self.writer = await connect(server.options.receive_port)
        self.reader, back = await connect(server.options.send_port)
        self.writers += [self.writer, back]

    async def record(self) -> WireRecord:
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readexactly(24)
            header = read_header(head)
            return WireRecord(header, await self.reader.readexactly(header.size - 24))

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                continue


class Running:
    """A server in a task, its lines, and one binding."""

    def __init__(self, options: Options) -> None:
        self.lines: list[str] = []
        self.server = Server(options, self.lines.append)
        self.binding = Binding()
        self.task = asyncio.create_task(self.server.run())

    async def begin(self, initial: bytes = JS_INITIAL, blob: bytes = b"{}") -> None:
        """Go through a first start."""
        await self.binding.connect(self.server)
        assert (await self.binding.record()).body == frame(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        self.binding.writer.write(initial + checkpoint(len(blob)) + blob)
        assert (await self.binding.record()).body == initial

    async def error(self) -> BaseException:
        """Return what the server ends with."""
        await asyncio.wait({self.task}, timeout=WAIT_S)
        error = self.task.exception()
        assert error is not None
        return error


@asynccontextmanager
async def running(given: Options) -> AsyncIterator[Running]:
    life = Running(given)
    try:
        yield life
    finally:
        life.server.stop()
        await asyncio.wait({life.task}, timeout=WAIT_S)
        if life.task.done() and not life.task.cancelled():
            life.task.exception()
        await life.binding.close()


async def test_first_start_of_the_current_order_byte_by_byte(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as life:
        binding = life.binding
        await binding.connect(life.server)
        first = await binding.record()
        assert first.header.encode()[4:] + first.body == bytes.fromhex("1a000000c7f179c2cb842ddaffffffffffffffff020b")
        binding.writer.write(JS_INITIAL + bytes.fromhex("0608c00c") + bytes(800))
        record = await binding.record()
        assert record.header.encode()[4:] + record.body == bytes.fromhex(
            "1f00000050ec1be37464ca8300000000000000000c09322e302e31"
        )
        assert record.header.committer == first.header.committer
        arguments = b'{"' + bytes(74)
        binding.writer.write(bytes.fromhex("a2010000000801") + arguments)
        echoed = await binding.record()
        assert (echoed.header.seq, echoed.body) == (1, bytes.fromhex("a00100000801") + arguments)
        for line in ("Adding input:", "Adding output:"):
            assert life.lines.count(line) == 2
        assert "Ready ..." in life.lines


async def test_first_start_of_the_legacy_order_with_the_fixed_checkpoint_size(tmp_path: Path) -> None:
    given = options(tmp_path)
    taken: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    async with running(given) as life:
        _, writer = await connect(given.receive_port)
        listener = await asyncio.start_server(lambda *pair: taken.put_nowait(pair), "127.0.0.1", given.send_port)
        async with asyncio.timeout(WAIT_S):
            life.binding.reader, back = await taken.get()
        listener.close()  # from Python 3.12 on, waiting for its end is waiting for that of the connection
        life.binding.writers += [writer, back]
        assert (await life.binding.record()).body == b"\2\x0b"
        writer.write(C_INITIAL + bytes.fromhex("12080900000000000000") + b"dummyckpt")
        record = await life.binding.record()
        assert record.header.encode()[4:] + record.body == bytes.fromhex(
            "220000002e58f04d93a8eef4000000000000000012090e00004001050403"
        )
        stored = (tmp_path / "logs" / "server_0" / "serverchkpt1").read_bytes()
        assert stored.endswith(b"\4\x08\x12dummyckpt")  # the size is written as everybody else does


async def test_recovery_sends_checkpoint_log_and_then_asks_for_a_checkpoint(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with running(given) as life:
        await life.begin(blob=b"state")
        life.binding.writer.write(bytes.fromhex("0c000000080241"))
        logged = await life.binding.record()
    async with running(given) as life:
        await life.binding.connect(life.server)
        restored = await life.binding.record()
        assert (restored.header.seq, restored.header.check, restored.body) == (-2, 0, checkpoint(5))
        assert await life.binding.reader.readexactly(5) == b"state"
        assert (await life.binding.record()).body == JS_INITIAL
        assert await life.binding.record() == logged
        assert (await life.binding.record()).body == frame(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        life.binding.writer.write(checkpoint(3) + b"new")
        await until(lambda: life.server.live, "live")
    assert (tmp_path / "logs" / "server_0" / "serverlog2").exists()
    assert (tmp_path / "logs" / "server_0" / "serverchkpt2").exists()


async def test_a_second_writer_ends_and_names_the_first(tmp_path: Path) -> None:
    async with running(options(tmp_path, process="pod-0")) as first:
        await first.begin()
        async with running(options(tmp_path)) as second:
            error = await second.error()
    assert isinstance(error, FatalError)
    assert error.exit_code == 4
    assert "already running: process pod-0 since" in str(error)


async def test_a_lost_application_ends_the_coordinator(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        await life.binding.close()
        error = await life.error()
    assert isinstance(error, FatalError)
    assert error.fatal is Fatal.STORAGE
    assert str(error).startswith("Error in local listener data stream")


async def test_an_application_that_goes_before_its_second_stream_may_come_again(tmp_path: Path) -> None:
    async with running(options(tmp_path, order=SocketOrder.CURRENT)) as life:
        _, writer = await connect(life.server.options.receive_port)
        writer.close()
        await writer.wait_closed()
        await life.begin()


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (frame(Type.COMMIT, b"\0\0"), "type 3"),
        (frame(77), "type 77"),
        (b"\0\0", "malformed"),
        (zz32(MESSAGE_BYTES_MAX + 1), "MESSAGE_BYTES_MAX"),
        (frame(Type.RPC_BATCH, b"\6\0"), "malformed"),
    ],
)
async def test_what_an_application_may_not_send_is_named(tmp_path: Path, sent: bytes, named: str) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        life.binding.writer.write(sent)
        error = await life.error()
    assert isinstance(error, FatalError)
    assert error.fatal is Fatal.UNEXPECTED
    assert named in str(error)
    assert "Live" in str(error)


async def test_bytes_on_the_stream_to_the_application_are_fatal(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        life.binding.writers[1].write(b"x")
        assert isinstance(await life.error(), FatalError)


async def hello(life: Running, source: str, channel: Channel) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(life.server.options.port)
    life.binding.writers.append(writer)
    writer.write(Hello(source, life.server.options.name, channel, "test", (0, 0), 1).encode())
    async with asyncio.timeout(WAIT_S):
        wanted = Answer(Code.SUCCESS).encode()
        assert await reader.readexactly(len(wanted)) == wanted
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(WAIT_S):
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            return


@pytest.mark.parametrize(
    "garbage",
    [b"\0\0", zz32(MESSAGE_BYTES_MAX + 1), b"\xff" * 9, frame(Type.CHECKPOINT, b"\0"), Commit(1, 1).encode()],
)
async def test_garbage_on_a_link_ends_that_link_alone(tmp_path: Path, garbage: bytes) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        bad, writer = await hello(life, "mallory", Channel.DATA)
        good, good_writer = await hello(life, "client", Channel.DATA)
        wanted = bytes.fromhex("06040202")
        assert await good.readexactly(4) == wanted
        writer.write(garbage)
        await ended(bad)
        call = bytes.fromhex("0c00000e014142")
        good_writer.write(call)
        assert (await life.binding.record()).body == call
        assert any("Error on the link of mallory" in line for line in life.lines)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x04\x0c", b"\xff" * 3000, b"\x40\x04"])
async def test_who_does_not_say_hello_is_closed(tmp_path: Path, garbage: bytes) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        reader, writer = await connect(life.server.options.port)
        life.binding.writers.append(writer)
        writer.write(garbage)
        await ended(reader)
        assert not life.task.done()


async def test_a_peer_that_was_away_is_dialled_as_soon_as_it_dials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.ambrosia.aio.LINK_BACKOFF_S", (3600.0, 3600.0))
    async with running(options(tmp_path)) as life:
        await life.begin()
        life.binding.writer.write(attach_to("peer"))
        await until(lambda: life.server.status()["peers"] == {"peer": "unknown name"}, "looked up in vain")
        async with running(options(tmp_path, name="peer")) as peer:
            await peer.begin()
            peer.binding.writer.write(attach_to("server"))
            await until(lambda: life.server.status()["peers"] == {"peer": "connected"}, "dialled")


async def test_a_follower_replays_and_takes_over_from_the_writer_that_it_fences(tmp_path: Path) -> None:
    async with running(options(tmp_path, generation=1)) as writer:
        await writer.begin()
        writer.binding.writer.write(bytes.fromhex("0c000000080241"))
        logged = await writer.binding.record()
        async with running(options(tmp_path, generation=2, read_only=True)) as follower:
            await follower.binding.connect(follower.server)
            assert (await follower.binding.record()).header.seq == -2
            await follower.binding.reader.readexactly(2)
            assert (await follower.binding.record()).body == JS_INITIAL
            assert await follower.binding.record() == logged
            assert not writer.task.done()
            writer.binding.writer.write(bytes.fromhex("0c000000080242"))
            assert await follower.binding.record() == await writer.binding.record()
            follower.server.promote()
            assert isinstance(await writer.error(), Superseded)
            assert (await follower.binding.record()).body == frame(Type.BECOMING_PRIMARY)
            follower.binding.writer.write(bytes.fromhex("0c000000080243"))
            assert (await follower.binding.record()).header.seq == logged.header.seq + 2
            assert follower.server.stage == "ReadWrite"
        async with running(options(tmp_path, generation=1)) as late:
            assert isinstance(await late.error(), Superseded)


async def test_a_follower_that_is_stopped_as_its_turn_comes_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was lost with Python 3.11: it led on, and nothing but a kill ended it."""
    monkeypatch.setattr("pavane.ambrosia.server.FOLLOW_POLL_S", 3600.0)
    async with running(options(tmp_path, generation=1)) as writer:
        await writer.begin()
        async with running(options(tmp_path, generation=2, read_only=True)) as follower:
            await follower.binding.connect(follower.server)
            assert (await follower.binding.record()).header.seq == -2
            await until(lambda: bool(follower.server._promoted._waiters), "it has read all there is")
            follower.server.stop()
            follower.server.promote()
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait({follower.task})
            assert not writer.task.done()


async def test_a_follower_lags_by_what_its_application_has_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.ambrosia.server.SILENT_S", -1.0)
    async with running(options(tmp_path, generation=1)) as writer:
        await writer.begin()
        writer.binding.writer.write(outgoing("", Call(4, RpcType.IMPULSE, bytes(4 * MIB))))
        logged = await writer.binding.record()
        async with running(options(tmp_path, generation=2, read_only=True)) as follower:
            await follower.binding.connect(follower.server)
            await until(lambda: follower.server.status().get("nextSeq") == logged.header.seq + 1, "read from the log")
            assert follower.server.behind_bytes > 2 * MIB
            assert (await follower.binding.record()).header.seq == -2
            await follower.binding.reader.readexactly(2)
            assert (await follower.binding.record()).body == JS_INITIAL
            assert await follower.binding.record() == logged
            await until(lambda: follower.server.behind_bytes == 0, "taken")
            assert follower.server.replayed_bytes > 4 * MIB


async def test_a_follower_lags_by_what_its_application_has_not_handled_if_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.ambrosia.server.SILENT_S", 3600.0)
    async with running(options(tmp_path, generation=1)) as writer:
        await writer.begin()
        for _ in range(2):
            writer.binding.writer.write(outgoing("", Call(4, RpcType.IMPULSE, bytes(100))))
            logged = await writer.binding.record()
        async with running(options(tmp_path, generation=2, read_only=True)) as follower:
            server, binding = follower.server, follower.binding
            await binding.connect(server)
            assert (await binding.record()).header.seq == -2
            await binding.reader.readexactly(2)
            for _ in range(3):
                last = await binding.record()
            assert last == logged
            behind = server.behind_bytes
            assert behind > 0  # all of it is taken, but nothing was said yet
            binding.writer.write(outgoing("", Call(PROGRESS, RpcType.IMPULSE, i64(logged.header.seq - 1))))
            await until(lambda: 0 < server.behind_bytes < behind, "one is left")
            binding.writer.write(outgoing("", Call(PROGRESS, RpcType.IMPULSE, i64(logged.header.seq))))
            await until(lambda: server.behind_bytes == 0, "handled")
            assert server.status()["impulsesDropped"] == 0


async def test_debug_replays_a_log_and_writes_nothing(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with running(given) as life:
        app = Application("server")
        await life.begin(blob=b'{"sent": {}, "taken": {}, "handled": 0}')
        app.impulse("server", 1)
        life.binding.writer.write(bytes(app.outgoing))
        first = await life.binding.record()
    before = sorted(path.name for path in (tmp_path / "logs" / "server_0").iterdir())
    debug = DebugServer(given, 1, testing_upgrade=True)
    task = asyncio.create_task(debug.run())
    binding = Binding()
    await binding.connect(Server(given))
    assert (await binding.record()).header.seq == -2
    await binding.reader.readexactly(39)
    assert (await binding.record()).body == frame(Type.UPGRADE_SERVICE)
    assert (await binding.record()).body == JS_INITIAL
    assert await binding.record() == first
    await binding.close()
    await asyncio.wait_for(task, WAIT_S)
    assert sorted(path.name for path in (tmp_path / "logs" / "server_0").iterdir()) == before


def test_options_in_every_spelling() -> None:
    arguments = ["--port=1", "-i", "x", "/rp:2", "-sp=3", "--log", "l/", "/aaa=1"]
    with pytest.raises(opts.UsageError, match="Invalid arguments: /aaa=1"):
        opts.parse(arguments, opts.COORDINATOR)
    found = opts.parse(arguments[:-1], opts.COORDINATOR)
    assert found == {"port": "1", "instanceName": "x", "receivePort": "2", "sendPort": "3", "log": "l/"}


def test_the_help_of_ambrosia_names_its_modes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, code in (("--help", 0), ("Replay", 1)):
        monkeypatch.setattr("sys.argv", ["Ambrosia", word])
        with pytest.raises(SystemExit) as left:
            ambrosia()
        said = capsys.readouterr().out
        assert (left.value.code, "Missing or illegal runtime mode." in said) == (code, bool(code))
        assert "Usage: Ambrosia RegisterInstance | DebugInstance" in said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "Instance name is required."),
        (["-i", "x"], "Port number is required."),
        (["--bogus"], "Invalid arguments: --bogus"),
        (["-i", "x", "-p", "1", "--receivePort=", "-sp", "2"], "Invalid arguments: --receivePort= needs a value"),
        (["-i", "x", "-p", "1", "-rp", "1", "-sp", "99999"], "Invalid arguments: sendPort is 99999, not in 1 … 65535"),
    ],
)
def test_bad_arguments_exit_1_with_the_usage(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_coordinator([*arguments, f"--registry={tmp_path}"] if arguments else []) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(line)
    assert "Usage: " in printed


async def test_an_upgrade_takes_two_checkpoints_and_its_version_stays(tmp_path: Path) -> None:
    async with running(options(tmp_path, version=0)) as life:
        await life.begin(blob=b"old")
        life.binding.writer.write(bytes.fromhex("0c000000080241"))
        logged = await life.binding.record()
    given = options(tmp_path, version=0, upgrade_version=3)
    async with running(given) as life:
        binding = life.binding
        await binding.connect(life.server)
        assert (await binding.record()).header.seq == -2
        await binding.reader.readexactly(3)
        assert (await binding.record()).body == JS_INITIAL
        assert await binding.record() == logged
        assert (await binding.record()).body == frame(Type.UPGRADE_TAKE_CHECKPOINT)
        assert not life.server.live
        binding.writer.write(checkpoint(3) + b"new")
        assert (await binding.record()).body == frame(Type.TAKE_CHECKPOINT)
        binding.writer.write(checkpoint(4) + b"new2" + bytes.fromhex("0c000000080242"))
        assert (await binding.record()).header.seq == logged.header.seq + 1
    async with running(options(tmp_path, version=0)) as late:
        error = await late.error()
    assert isinstance(error, FatalError)
    assert (error.exit_code, str(error)) == (
        1,
        "server has version 3 of its application, not 0: start that one, or a later one",
    )
    with pytest.raises(FatalError, match="server has version 3 of its application, not 7"):
        Server(options(tmp_path, version=7))
    assert not (tmp_path / "logs" / "server_7").exists()
    # Registered again with the new version, or still with both: its files are found, and nothing is upgraded twice.
    for again in (options(tmp_path, version=3), given):
        async with running(again) as life:
            await life.binding.connect(life.server)
            assert (await life.binding.record()).header.seq == -2
            await life.binding.reader.readexactly(4)
            assert (await life.binding.record()).header.seq == logged.header.seq + 1
            assert (await life.binding.record()).body == frame(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)


async def test_a_follower_of_the_next_version_upgrades_when_it_takes_over(tmp_path: Path) -> None:
    async with running(options(tmp_path, generation=1)) as writer:
        await writer.begin()
        given = options(tmp_path, generation=2, read_only=True, upgrade_version=1)
        async with running(given) as follower:
            await follower.binding.connect(follower.server)
            assert (await follower.binding.record()).header.seq == -2
            await follower.binding.reader.readexactly(2)
            assert (await follower.binding.record()).body == JS_INITIAL
            follower.server.promote()
            assert isinstance(await writer.error(), Superseded)
            assert (await follower.binding.record()).body == frame(Type.UPGRADE_TAKE_CHECKPOINT)
            follower.binding.writer.write(checkpoint(3) + b"new")
            assert (await follower.binding.record()).body == frame(Type.TAKE_CHECKPOINT)
            follower.binding.writer.write(checkpoint(3) + b"new" + bytes.fromhex("0c000000080243"))
            assert (await follower.binding.record()).header.seq == 1


async def test_a_writer_that_was_overtaken_ends_and_so_does_who_follows_it(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as writer:
        await writer.begin()
        async with running(options(tmp_path, standby=True)) as follower:
            await follower.binding.connect(follower.server)
            assert (await follower.binding.record()).header.seq == -2
            await follower.binding.reader.readexactly(2)
            assert (await follower.binding.record()).body == JS_INITIAL
            folder = DiskFolder(tmp_path / "logs" / "server_0")
            Tenure(folder, "server").overtake()
            late = LogRecord(CheckpointReader(folder, 1).head.committer, 1, JS_CALL, {"client": (1, 1)})
            folder.open("serverlog1").append([late.encode()])
            for life in (follower, writer):
                error = await life.error()
                assert isinstance(error, FatalError)
                assert (error.exit_code, "stood still, and another one took over" in str(error)) == (4, True)
            assert await follower.binding.reader.read() == b""
