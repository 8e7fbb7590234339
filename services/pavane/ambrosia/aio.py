"""Sockets, the clock and the storage thread of one coordinator (docs/specs/ambrosia.md 5, 10, 11.5)."""

import asyncio
import errno
import fcntl
import random
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from pavane.ambrosia.core.coordinator import Coordinator
from pavane.ambrosia.effects import (
    Append,
    Attach,
    BlobToBinding,
    CloseStream,
    Effect,
    Say,
    Storage,
    Timer,
    ToBinding,
    ToStream,
)
from pavane.ambrosia.errors import Fatal, FatalError, Superseded
from pavane.ambrosia.intake import Connection, Intake
from pavane.ambrosia.ports import READ_BYTES, close_writer
from pavane.ambrosia.storage import CheckpointReader, FileStore, Replay
from pavane.ambrosia.tls import agree
from pavane.ambrosia.tracing import CoordinatorTracing
from pavane.ambrosia.wire.limits import RECORD_BYTES
from pavane.ambrosia.wire.links import HELLO_BYTES_MAX, Answer, Channel, Code, Hello
from pavane.ambrosia.wire.primitives import Buffer
from pavane.ambrosia.wire.records import LogRecord
from pavane.runtime.adapter import CoreAdapter
from pavane.runtime.certificates import Certificates
from pavane.runtime.keepalive import notice_silence
from pavane.wal.times import SyncTimes
from pavane.wal.writer import HERE_BYTES, HERE_S
from pavane.wire import RemoteProtocolError

LINK_CONNECT_S = 5.0
LINK_HELLO_S = 5.0
LINK_BACKOFF_S = (0.1, 5.0)  # first, longest; doubled between
LINK_STEADY_S = 10.0  # a stream that lived so long makes the next attempt quick again
LINK_HELLOS_MAX = 64  # connections that have not said who they are; beyond, the one that waits longest is ended
STORAGE_QUEUE_MAX = 8  # pieces of a checkpoint on their way to the file
FOLLOW_POLL_S = 0.05

Decoded = TypeVar("Decoded", Hello, Answer)
Result = TypeVar("Result")
Resolve = Callable[[str], Awaitable[list[tuple[str, int]]]]
"""Finds where a peer listens; an empty list when nobody knows."""


class _Driven:
    """A coordinator as its adapter wants to see it: its timers are effects."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core

    def outputs(self) -> Iterable[Effect]:
        """Return what is to be done."""
        return self._core.outputs()

    def handle_timer(self, now: float, /) -> None:
        """Nothing is due by the clock."""

    def next_timer(self) -> float | None:
        """Nothing is due by the clock."""
        return None


class CoordinatorRunner:
    """Drives one coordinator until it fails or is closed; ``failed`` gets the reason, once."""

    def __init__(
        self,
        core: Coordinator,
        store: FileStore,
        binding: tuple[Connection, Connection],
        *,
        resolve: Resolve,
        say: Callable[[str], None],
        process: str,
        tls: Certificates | None = None,
    ) -> None:
        self.core = core
        self.store = store
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.states: dict[str, str] = {}  # per peer, why its link is not there
        self.refused = 0  # connections that ended before a whole hello
        self._adapter: CoreAdapter[Effect] = CoreAdapter(_Driven(core), self._execute, self._failed)
        self._from_binding, (self._silent, self._to_binding) = binding
        self._buffer = memoryview(bytearray(READ_BYTES))  # what all connections are read into
        self._resolve = resolve
        self._say = say
        self._process = process
        self._tls = tls
        self._storage: deque[Storage] = deque()
        self._storing = False
        self._times = SyncTimes()
        self._to_store: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._store, name="ambrosia-storage", daemon=True)
        self._thread.start()
        self._to_write: deque[ToBinding | BlobToBinding | int] = deque()  # a number: bytes that the socket still holds
        self._write_wake = asyncio.Event()
        self._write_idle = False
        self._moved = asyncio.Event()  # something that a reader may wait for has changed
        self._unwritten = 0
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._holds: dict[int, float] = {}
        self._there: dict[tuple[str, Channel], asyncio.Event] = {}  # the peer has dialled: no need to wait to dial it
        self._stream_numbers = 0
        self._hellos: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # oldest first
        self._refusal = ""
        self._timers: set[asyncio.TimerHandle] = set()
        self._accepted: set[asyncio.Task[None]] = set()
        self._tracing = CoordinatorTracing(core.settings.name)

    @property
    def untaken_bytes(self) -> int:
        """How much of what was given to the application has not left for its side of the stream yet."""
        return self._unwritten + _unsent(self._to_binding)

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to carry out what the core wants and to read the application."""
        for work, name in (
            (self._write_binding(), "ambrosia-to-binding"),
            (self._read_binding(), "ambrosia-from-binding"),
            (self._read_silence(), "ambrosia-silence"),
        ):
            self._adapter.begin(work, name=name)

    def call(self, what: Callable[[], object]) -> None:
        """Give the core an input; what it wants then is carried out."""
        self._adapter.call(lambda _: (what(), None)[1])

    async def replay(self, replay: Replay, check: Callable[[], None] | None = None) -> None:
        """Deliver what the log holds now, as fast as the application takes it, once ``check`` raised nothing."""
        more = True
        while more and not self._adapter.ended:
            read: Future[tuple[list[LogRecord], bool]] = Future()
            # By the same thread: what it has freed serves again, where another one would take more memory.
            self._to_store.put(partial(_settle, read, partial(replay.some, check)))
            records, more = await asyncio.wrap_future(read)
            for record in records:
                self.call(partial(self.core.replay, record))
            await self._until(lambda: self._unwritten < RECORD_BYTES)

    async def close(self) -> None:
        """End all streams and the application's, then release the files."""
        await self._adapter.close()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()  # one that is fenced may learn so twice at once, and then nobody asks for the second
        for writer in self._hellos.values():
            writer.transport.abort()  # a task that is cancelled before its first step would not
        for task in self._accepted:
            task.cancel()
        await asyncio.gather(*self._accepted, return_exceptions=True)
        for handle in self._timers:
            handle.cancel()
        for writer in list(self._writers.values()):
            await close_writer(writer)
        for writer in (self._from_binding[1], self._to_binding):
            await close_writer(writer)
        self._to_store.put(None)
        await asyncio.to_thread(self._thread.join)  # what it writes may need this loop
        self.store.close()

    def _failed(self, error: Exception) -> None:
        self._moved.set()
        if not self.ended.done():
            self.ended.set_exception(error)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self._adapter.ended:
            self._moved.clear()
            await self._moved.wait()

    # --- effects --------------------------------------------------------------------------------------------------

    def _execute(self, effect: Effect) -> None:
        match effect:
            case ToBinding(data):
                self._unwritten += len(data)
                self._give_binding(effect)
            case BlobToBinding():
                self._to_write.append(effect)
                self._write_wake.set()
            case ToStream(stream, data):
                if self._tracing.on:
                    self._tracing.sent(self.core.links.peer(stream), data)
                self._write_stream(stream, data)
            case CloseStream(stream, _, hold):
                self._holds[stream] = hold
                writer = self._writers.pop(stream, None)
                if writer is not None:
                    writer.transport.abort()
            case Attach(peer):
                for channel in Channel:
                    self._there[peer, channel] = asyncio.Event()
                    self._adapter.begin(self._dial_for_ever(peer, channel), name=f"ambrosia-link-{peer}-{channel.name}")
            case Timer(name, seconds):
                self._set_timer(name, seconds)
            case Say(text):
                self._say(text)
            case _:
                self._storage.append(effect)
                self._persist()

    def _set_timer(self, name: str, seconds: float) -> None:
        def ring() -> None:
            self._timers.discard(handle)
            self.call(lambda: self.core.timer(name))

        handle = asyncio.get_running_loop().call_later(seconds, ring)
        self._timers.add(handle)

    def _persist(self) -> None:
        """Do what comes next, unless something is under way: small records here, where the disk is quick, else by the
        storage thread (docs/specs/raft.md 13.4)."""
        if self._storing or not self._storage:
            return
        self._storing = True
        effect, began_ns = self._storage.popleft(), self._tracing.now_ns()
        small = isinstance(effect, Append) and sum(map(len, effect.parts)) <= HERE_BYTES
        work = partial(self.store.carry_out, effect)
        if small:
            work = partial(self._times.timed, work)
        if small and not self.store.folder.needs_loop and self._times.are_below(HERE_S):
            self._adapter.call(partial(self._stored, effect, began_ns, _error_of(work)))
        else:
            self._to_store.put(partial(self._carry_out, work, effect, began_ns))

    def _store(self) -> None:
        while (work := self._to_store.get()) is not None:
            work()
            del work  # while nothing comes, what was written is not to be held here

    def _carry_out(self, work: Callable[[], None], effect: Storage, began_ns: int) -> None:
        self._adapter.call_from_thread(partial(self._stored, effect, began_ns, _error_of(work)))

    def _stored(self, effect: Storage, began_ns: int, error: Exception | None, _: float) -> None:
        if isinstance(error, OSError):
            fatal = Fatal.LOG_WRITE if isinstance(effect, Append) else Fatal.STORAGE
            text = f"{self.store.folder}: {error.strerror}; nothing of it was acknowledged, start again"
            raise FatalError(fatal, text) from error
        if error is not None:
            raise error
        if began_ns and isinstance(effect, Append):
            self._tracing.logged(effect.record.body, began_ns)
        self._storing = False
        self.core.stored(effect)
        self._persist()
        self._moved.set()

    # --- the application ------------------------------------------------------------------------------------------

    def _give_binding(self, effect: ToBinding) -> None:
        """Write at once if nothing waits: another turn of the loop would be a tenth of a call."""
        if self._to_write or not self._write_idle or len(effect.data) > READ_BYTES or self._to_binding.is_closing():
            self._to_write.append(effect)
            self._write_wake.set()
            return
        self._to_binding.write(effect.data)
        if self._to_binding.transport.get_write_buffer_size() == 0:
            self._binding_took(len(effect.data))
        else:
            self._to_write.append(len(effect.data))
            self._write_wake.set()

    def _binding_took(self, size: int) -> None:
        self._unwritten -= size
        self.call(partial(self.core.binding_wrote, size))
        self._moved.set()

    async def _write_binding(self) -> None:
        while True:
            while self._to_write:
                item = self._to_write.popleft()
                try:
                    if isinstance(item, BlobToBinding):
                        await self._write_blob(item.number)
                    else:
                        # In pieces: of what the socket does not take the transport makes a copy.
                        data = memoryview(item.data if isinstance(item, ToBinding) else b"")
                        for at in range(0, len(data), READ_BYTES):
                            self._to_binding.write(data[at : at + READ_BYTES])
                            await self._to_binding.drain()
                        await self._to_binding.drain()
                except ConnectionError:
                    self.call(self.core.binding_closed)
                    return
                if isinstance(item, ToBinding):
                    item = len(item.data)
                if isinstance(item, int):
                    self._binding_took(item)
                self._moved.set()
            self._write_wake.clear()
            self._write_idle = True
            await self._write_wake.wait()
            self._write_idle = False

    async def _write_blob(self, number: int) -> None:
        reader = await asyncio.to_thread(CheckpointReader, self.store.folder, number, check=False)
        try:
            chunks = iter(reader.blob())
            while chunk := await asyncio.to_thread(next, chunks, b""):
                self._to_binding.write(chunk)
                await self._to_binding.drain()
        finally:
            reader.close()

    async def _read_binding(self) -> None:
        def may() -> bool:
            return self.core.reads_binding and len(self._storage) < STORAGE_QUEUE_MAX

        def take(data: memoryview) -> bool:
            self.call(partial(self.core.binding_received, data))
            return may()

        with suppress(ConnectionError):
            await Intake(self._from_binding, self._buffer, take).run(partial(self._until, may))
        self.call(self.core.binding_closed)

    async def _read_silence(self) -> None:
        try:
            data = await self._silent.read(1)
        except ConnectionError:
            data = b""
        if data:
            text = "the application sent bytes on the stream on which it only listens"
            raise FatalError(Fatal.STORAGE, text)
        self.call(self.core.binding_closed)

    # --- streams --------------------------------------------------------------------------------------------------

    def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer has dialled; what ``asyncio.start_server`` calls."""
        if self._adapter.ended:
            writer.transport.abort()
            return
        if len(self._hellos) >= LINK_HELLOS_MAX:
            oldest = next(iter(self._hellos))
            self._hellos.pop(oldest).transport.abort()
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._hellos[task] = writer
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _greeted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, bytes, asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Agree on TLS and read the hello; ``None`` when the peer was refused."""
        task = asyncio.current_task()
        host = (writer.get_extra_info("peername") or ("somebody",))[0]
        first = writer
        try:
            async with asyncio.timeout(LINK_HELLO_S):
                if self._tls is not None:
                    reader, writer = await agree(writer, self._tls.mutual_port, READ_BYTES, accepting=True)
                return *await _read_whole(reader, Hello.decode), reader, writer
        except (RemoteProtocolError, OSError, TimeoutError) as error:
            self.refused += 1
            why = _no_tls(error) if self._tls is not None and writer is first else str(error) or "it says nothing"
            refusal = f"Error: a link from {host} was refused before its hello was whole: {why}"
            if refusal != self._refusal:  # it comes again, and would fill the log
                self._refusal = refusal
                self._say(refusal)
            writer.transport.abort()  # within a handshake nobody would say that it is closed
            return None
        finally:
            if task is not None:
                self._hellos.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._greeted(reader, writer)
        if found is None:
            return
        hello, rest, reader, writer = found
        number = self._next_stream()
        answer: list[Answer] = []
        self._writers[number] = _prepare(writer)
        self.call(lambda: answer.append(self.core.links.accept(number, hello)))
        if not answer:
            return
        writer.write(answer[0].encode())
        if answer[0].code != Code.SUCCESS:
            self._writers.pop(number, None)
            writer.close()  # TLS says goodbye and waits for the other side's
            try:
                async with asyncio.timeout(LINK_HELLO_S):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                pass
            finally:
                writer.transport.abort()
            return
        self.call(lambda: self.core.links.begin(number))
        for channel in Channel:
            if there := self._there.get((hello.source, channel)):
                there.set()
        await self._read_stream(number, (reader, writer), rest)
        self._holds.pop(number, None)  # only who dialled holds on

    async def _dial_for_ever(self, peer: str, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        shortest, longest = LINK_BACKOFF_S
        backoff = shortest
        there = self._there[peer, channel]
        known: list[tuple[str, int]] = []
        while True:
            there.clear()
            before, known = known, await self._resolve(peer)
            began = loop.time()
            hold = await self._dial(peer, channel, known)
            if loop.time() - began >= LINK_STEADY_S or known != before:
                backoff = shortest
            await asyncio.sleep(hold)
            try:
                wait = backoff * random.uniform(0.75, 1.25)  # noqa: S311 -- spreads, hides nothing
                async with asyncio.timeout(wait):
                    await there.wait()
                backoff = shortest
            except TimeoutError:
                backoff = min(backoff * 2, longest)

    async def _dial(self, peer: str, channel: Channel, addresses: list[tuple[str, int]]) -> float:
        """Open one stream and read it to its end; return how long to hold on before the next."""
        if not addresses:
            self.states[peer] = "unknown name"
            return 0.0
        for host, port in addresses:
            try:
                # No `wait_for`: in Python 3.11 it forgets that it was cancelled if the connection is there just then.
                async with asyncio.timeout(LINK_CONNECT_S):
                    reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
                    if self._tls is not None:
                        reader, writer = await agree(writer, self._tls.dialling, READ_BYTES, accepting=False)
            except (OSError, TimeoutError) as error:
                self.states[peer] = f"unreachable: {self._fault(error)}"
                continue
            try:
                return await self._open(peer, channel, reader, _prepare(writer))
            finally:
                await close_writer(writer)
        return 0.0

    async def _open(
        self, peer: str, channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> float:
        hello = Hello(
            self.core.settings.name, peer, channel, self._process, self.store.tenure.token, self.core.committer
        )
        writer.write(hello.encode())
        try:
            async with asyncio.timeout(LINK_HELLO_S):
                answer, rest = await _read_whole(reader, Answer.decode)
        except (RemoteProtocolError, OSError, TimeoutError) as error:
            self.states[peer] = f"unreachable: {self._fault(error)}"
            return 0.0
        if answer.code == Code.OLD_TOKEN:
            await asyncio.to_thread(self.store.tenure.check)  # it knows better why
            raise Superseded(f"{peer} has seen a newer process of {self.core.settings.name}")
        if answer.code != Code.SUCCESS:
            self.states[peer] = f"refused ({answer.code}): {answer.text}"
            return 0.0
        self.states[peer] = "connected"
        number = self._next_stream()
        self._writers[number] = writer
        self.call(lambda: self.core.links.dialled(number, peer, channel))
        self._adapter.begin(self._greeting(number, peer, writer), name="ambrosia-greeting")
        await self._read_stream(number, (reader, writer), rest)
        return self._holds.pop(number, 0.0)

    async def _greeting(self, number: int, peer: str, writer: asyncio.StreamWriter) -> None:
        """End a stream on which the peer, which speaks first there, says nothing."""
        while not self.core.links.greeted(number):
            await asyncio.sleep(LINK_HELLO_S)
            if self.core.reads_links and not self.core.links.greeted(number):
                self.states[peer] = f"unreachable: it took a stream and said nothing on it for {LINK_HELLO_S:.0f} s"
                writer.transport.abort()
                return

    def _fault(self, error: Exception) -> str:
        if self._tls is not None and isinstance(error, ssl.SSLError):
            return _no_tls(error)
        if self._tls is not None and isinstance(error, ConnectionResetError):
            return "it ended the connection: it is not ready, or speaks no TLS, see spec.tls of both"
        return str(error)

    def _next_stream(self) -> int:
        self._stream_numbers += 1
        return self._stream_numbers

    async def _read_stream(self, number: int, connection: Connection, data: bytes) -> None:
        def may() -> bool:
            return self.core.reads_links and not self.core.links.blocked(number)

        def take(data: Buffer) -> bool:
            self.call(partial(self.core.received, number, data))
            return may()

        try:
            if data:
                take(data)
            await Intake(connection, self._buffer, take).run(partial(self._until, may))
        except OSError:
            pass
        finally:
            self._writers.pop(number, None)
            self.call(lambda: self.core.links.closed(number))
            await close_writer(connection[1])

    def _write_stream(self, number: int, data: bytes) -> None:
        writer = self._writers.get(number)
        if writer is None or writer.is_closing():
            return
        writer.write(data)
        if writer.transport.get_write_buffer_size() == 0:
            self.call(lambda: self.core.wrote(number, len(data)))
        else:
            self._adapter.begin(self._drained(number, writer, len(data)), name="ambrosia-drain")

    async def _drained(self, number: int, writer: asyncio.StreamWriter, size: int) -> None:
        try:
            await writer.drain()
        except OSError:
            return
        self.call(lambda: self.core.wrote(number, size))


def _unsent(writer: asyncio.StreamWriter) -> int:
    """How much of what was written the other side's system has not taken."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(writer.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4)))[0])
    except (OSError, ValueError):
        return 0  # it is closed


def _settle(future: Future[Result], work: Callable[[], Result]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:  # whoever waits gets it
            future.set_exception(error)


def _error_of(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def _no_tls(error: Exception) -> str:
    """Say what an end of a handshake means; what OpenSSL says of it is rarely of use alone."""
    detail = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error) or "no answer in time"
    return f"no TLS with a certificate of an authority that both sides trust, see spec.tls of both ({detail})"


async def _read_whole(
    reader: asyncio.StreamReader, decode: Callable[[bytes], tuple[Decoded, int] | None]
) -> tuple[Decoded, bytes]:
    """Read until ``decode`` is content; return what it made and the bytes behind."""
    data = b""
    while True:
        chunk = await reader.read(HELLO_BYTES_MAX)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the other side closed the connection")
        data += chunk
        found = decode(data)
        if found is not None:
            return found[0], data[found[1] :]


def _prepare(writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_silence(writer)  # an idle stream carries no bytes of its own
    writer.transport.set_write_buffer_limits(high=READ_BYTES)
    return writer
