"""A coordinator as a process: ``ImmortalCoordinator`` and ``Ambrosia`` (docs/specs/ambrosia.md 6, 13-16).

Usage::

    server = Server(Options(name="alice", port=2500, receive_port=2000, send_port=2001, log="logs/"))
    await server.run()          # until the application goes, a newer process takes over, or ``stop``
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pavane import telemetry
from pavane.ambrosia import options as opts
from pavane.ambrosia.aio import FOLLOW_POLL_S, CoordinatorRunner, Resolve
from pavane.ambrosia.core.coordinator import LOG_TRIGGER_BYTES, Coordinator, Settings
from pavane.ambrosia.errors import EXIT_UNEXPECTED, Fatal, FatalError, Superseded
from pavane.ambrosia.ports import DETECT_S, BindingPort, SocketOrder, served
from pavane.ambrosia.state import Meta, Phase, Progress
from pavane.ambrosia.storage import CheckpointReader, FileStore, Place, Registry, Replay, Row, instance_folder, last_log
from pavane.ambrosia.wire.limits import MIB, NEW_NAME_BYTES_MAX
from pavane.runtime.certificates import Certificates
from pavane.wal.files import DiskFolder

EXIT_USAGE = 1
EXIT_STOPPED = 0
COMMITTER_BITS = 31
SILENT_S = 3.0  # an application that said nothing for so long does not tell how far its replay is
FIRST_STATE_S = 300.0  # from the first record to the application's first checkpoint, which is durable by then
FENCE_POLL_S = 0.05  # how soon a writer that was overtaken ends, how often it shows that it lives and others look


@dataclass(frozen=True, slots=True)
class Options:
    """What a coordinator needs to know; ``log`` is a prefix, so a folder ends with its separator.

    ``host`` is where the application is expected and ``listen`` where other coordinators are; they dial ``address``.
    ``generation`` fences: a greater one takes over, a lower one ends. ``read_only``: follow until ``Server.promote``.
    ``version``: the one that the application must have had, ``None`` for any; it names the folder. ``upgrade_version``:
    the one that it has from this life on, ``None`` for no change. ``standby``: while another process leads, follow it,
    and lead when it ends. ``place``: instead of folders on disk. ``tls``: of the links; ``None``: in clear.
    """

    name: str
    port: int
    receive_port: int
    send_port: int
    log: str
    registry: Path | None = None
    log_trigger_bytes: int = LOG_TRIGGER_BYTES
    address: str = "127.0.0.1"
    host: str = "127.0.0.1"
    listen: str = ""
    version: int | None = None
    upgrade_version: int | None = None
    generation: int = 0
    read_only: bool = False
    standby: bool = False
    order: SocketOrder = SocketOrder.DETECT
    detect_s: float = DETECT_S
    process: str = ""
    place: Place | None = None
    tls: Certificates | None = None


def say(text: str) -> None:
    """Print one line at once; others read it as it comes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Server:
    """One coordinator with its files and sockets.

    ``run`` raises ``FatalError`` and ``Superseded``. ``stage`` is ``Initialization``, ``ReadOnly`` or ``ReadWrite``.
    """

    def __init__(self, options: Options, say: Callable[[str], None] = say, *, resolve: Resolve | None = None) -> None:
        """``resolve`` finds other coordinators; without it the registry does."""
        self.options = options
        self.stage = "Initialization"
        ports = options.receive_port, options.send_port
        self._port = BindingPort(options.host, *ports, options.order, options.detect_s, say)
        self.took_over_s: float | None = None
        """How long nobody could write while this coordinator took over: from its fence until it led."""
        self._resolve = resolve or self._registered
        self._say = say
        folder = instance_folder(options.log, options.name, options.version or 0)
        registry = Registry(DiskFolder(options.registry or Path(f"{options.log}registry")))
        if not (options.place or folder.exists()):  # a version that is refused leaves no folder
            self._settings(registry.load(options.name).meta)
        self._place = options.place or Place(DiskFolder(folder), registry)
        self._folder, self._registry = self._place.folder, self._place.registry
        self._process = options.process or f"{options.address}:{os.getpid()}"
        self._generation = options.generation
        self._runner: CoordinatorRunner | None = None
        self._promoted = asyncio.Event()
        self._stopped = asyncio.Event()
        self._follows = options.read_only
        self._replay: Replay | None = None
        self._first = 0  # the record with which the replay began
        self._tells_until = 0.0
        self._fenced_at: float | None = None
        self._tending: asyncio.Future[None]

    # --- what others ask ------------------------------------------------------------------------------------------

    def promote(self, generation: int | None = None, fenced_at: float | None = None) -> None:
        """Take over: fence every lower generation, wait for its end, deliver the rest of the log and lead.

        ``fenced_at`` is the loop's time at which the caller fenced them, if it did.
        """
        if generation is not None:
            self._generation = generation
        self._fenced_at = fenced_at
        self._promoted.set()

    def stop(self) -> None:
        """End in order; ``run`` returns."""
        self._stopped.set()

    @property
    def replayed_bytes(self) -> int:
        """How much of the log the application has taken since the start, as far as the system knows."""
        return max(0, self._replay.bytes_read - self._untaken) if self._replay is not None else 0

    @property
    def behind_bytes(self) -> int:
        """How much of the log the application has not taken yet, as far as its files are known."""
        return self._replay.behind_bytes + self._untaken if self._replay is not None else 0

    @property
    def _untaken(self) -> int:
        """How much of what was read the application has not handled; by its number of records, if it tells that."""
        runner = self._runner
        if runner is None or self._replay is None:
            return 0
        core = runner.core
        silent = core.handled is None and asyncio.get_running_loop().time() > self._tells_until
        if silent or core.phase is not Phase.REPLAY:
            return runner.untaken_bytes
        given = core.next_seq - self._first
        left = given if core.handled is None else min(given, core.next_seq - 1 - core.handled)
        return self._replay.bytes_read * left // given if given else 0

    @property
    def missing(self) -> str:
        """Say what the application owes before it can be served, empty if nothing."""
        core = self._runner.core if self._runner is not None else None
        if core is not None and not core.live and core.phase in (Phase.INIT, Phase.FIRST, Phase.CHECKPOINT):
            return "the application is connected but has not sent its state yet"
        return self._port.missing

    @property
    def live(self) -> bool:
        """Whether this coordinator leads and its links are open."""
        return self._runner is not None and self._runner.core.live

    @property
    def links_refused(self) -> int:
        """How many connections of this life ended before they had said who they are."""
        return self._runner.refused if self._runner is not None else 0

    def status(self) -> dict[str, Any]:
        """Return what an operator wants to see: stage, numbers, links."""
        runner = self._runner
        if runner is None:
            return {"name": self.options.name, "stage": self.stage}
        core = runner.core
        peers = core.links.states()
        return {
            "name": self.options.name,
            "stage": self.stage,
            "phase": core.phase.value,
            "live": core.live,
            "generation": self._generation,
            "nextSeq": core.next_seq,
            "log": core.meta.last_log,
            "checkpoint": core.meta.last_checkpoint,
            "replayedBytes": self.replayed_bytes,
            "behindBytes": self.behind_bytes,
            "impulsesDropped": core.impulses_dropped,
            "peers": {
                name: state if state != "unreachable" else runner.states.get(name, state)
                for name, state in peers.items()
            },
        }

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until something ends it; returns after ``stop``."""
        options = self.options
        store = FileStore(self._folder, self._registry, options.name, self._generation, self._place.tenure)
        self._tending = asyncio.ensure_future(self._tend(store))
        try:
            self._follows = options.read_only or await self._waits(store)
            self._settings(store.refresh())
            self._say(f"Logs directory: {self._folder}")
            self._say("Every record is synced to disk before it is acknowledged")
            self._port.listen()
            async with served(await self._listen()):
                self._say("Ready ...")
                binding = await self._or_stopped(self._port.accept())
                if binding is not None:
                    await self._serve(store, binding)
        finally:
            self._tending.cancel()
            await asyncio.wait({self._tending})
            self._port.close()
            store.close()

    async def _tend(self, store: FileStore) -> None:
        """Show others that this writer lives; raises when it may not write any more, or a follower sees nothing."""
        while True:
            await asyncio.sleep(FENCE_POLL_S)
            await asyncio.to_thread(store.tenure.beat if store.tenure.held else store.tenure.look)

    async def _waits(self, store: FileStore) -> bool:
        """Become the writer and return False; True when another process writes and this one may follow it."""
        while True:
            try:
                await asyncio.to_thread(store.lock, self._process, f"{self.options.address}:{self.options.port}")
            except FatalError as error:
                if error.fatal is not Fatal.STORAGE or not self.options.standby:
                    raise
                if store.refresh().last_checkpoint:
                    self._promoted.set()  # nobody needs to say so: whoever gets the lock leads
                    return True
                with contextlib.suppress(TimeoutError):  # its first start is not over yet
                    async with asyncio.timeout(FENCE_POLL_S):
                        await self._stopped.wait()
                    return True
            else:
                return False

    async def _listen(self) -> asyncio.Server:
        options = self.options
        try:
            return await asyncio.start_server(self._accepted, options.listen or options.address, options.port)
        except OSError as error:
            text = f"port {options.port} of {options.listen or options.address} is not free: {error.strerror}"
            raise FatalError(Fatal.STORAGE, text) from error

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._runner is None:
            writer.transport.abort()
        else:
            self._runner.accepted(reader, writer)

    async def _or_stopped(self, work: Any) -> Any:
        """Return what ``work`` returns, ``None`` if the server is stopped before."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({task, stopped, self._tending}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        if self._tending.done():
            self._tending.result()
        return None

    def _settings(self, meta: Meta) -> Settings:
        """Return what does not change in this life; ``FatalError`` 1 if the application is of a wrong version."""
        options = self.options
        now = meta.current_version if meta.last_checkpoint else options.version or 0
        wanted = now if options.upgrade_version is None else options.upgrade_version
        done = options.upgrade_version == now  # by a former life, with the same options
        if wanted < now or not (done or options.version in (None, now)):
            given = wanted if wanted < now else options.version
            text = f"{options.name} has version {now} of its application, not {given}: start that one, or a later one"
            raise FatalError(Fatal.VERSION, text)
        return Settings(options.name, options.log_trigger_bytes, version=wanted)

    async def _serve(self, store: FileStore, binding: Any) -> None:
        options, meta = self.options, store.refresh()
        settings = self._settings(meta)
        reader: CheckpointReader | None = None
        if meta.last_checkpoint:
            reader = await asyncio.to_thread(CheckpointReader, self._folder, meta.last_checkpoint)
            core = Coordinator(settings, reader.head.committer, meta)
        elif self._follows:
            raise FatalError(Fatal.CHECKPOINT, f"{self._folder} has no checkpoint to follow; start a writer first")
        else:
            core = Coordinator(settings, new_committer(), meta)
        runner = self._runner = CoordinatorRunner(
            core, store, binding, resolve=self._resolve, say=self._say, process=self._process, tls=options.tls
        )
        try:
            runner.start()
            life = asyncio.ensure_future(self._live(runner, store, reader))
            stopped = asyncio.ensure_future(self._stopped.wait())
            ends: set[asyncio.Future[Any]] = {life, stopped, runner.ended, self._tending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (life, stopped):
                if not task.done():
                    task.cancel()
            await asyncio.gather(life, stopped, return_exceptions=True)
            for end in (self._tending, runner.ended):
                if end.done():
                    end.result()
            if not life.cancelled():
                life.result()
        finally:
            self._runner = None
            await runner.close()
            if self._replay is not None:
                self._replay.close()

    async def _live(self, runner: CoordinatorRunner, store: FileStore, reader: CheckpointReader | None) -> None:
        core = runner.core
        if reader is None:
            runner.call(core.first_start)
        else:
            meta = core.meta
            head = reader.head
            reader.close()
            runner.call(lambda: core.restore(head, meta.last_checkpoint))
            replay = Replay(self._folder, meta.last_checkpoint, meta.last_log, Progress.restored(head))
            self._replay, self._first = replay, head.next_seq
            self._tells_until = asyncio.get_running_loop().time() + SILENT_S
            if self._follows:
                await self._follow(runner, store, replay)
            await runner.replay(replay)
            await asyncio.to_thread(store.finish, replay)
            runner.call(lambda: core.replayed(promotion=self._follows))
            if self._fenced_at is not None:
                self.took_over_s = asyncio.get_running_loop().time() - self._fenced_at
        self.stage = "ReadWrite"
        self._link_version(core.settings.version)
        if reader is None:  # an instance with a past is an application's, and its checkpoint may be long in the making
            await asyncio.sleep(FIRST_STATE_S)
            if not core.live:
                text = f"the application opened both streams and sent no first state within {FIRST_STATE_S:.0f} s"
                raise FatalError(Fatal.STORAGE, f"{text}; look at its log")
        await asyncio.Event().wait()

    def _link_version(self, version: int) -> None:
        """Let the files be found under the number of a new version, too: it goes on where the one before it stopped."""
        path = instance_folder(self.options.log, self.options.name, version)
        try:
            if not path.exists():
                path.symlink_to(Path(str(self._folder)).name, target_is_directory=True)
        except OSError as error:
            self._say(f"Error: {path} cannot be made to lead to {self._folder}: {error.strerror}")

    async def _follow(self, runner: CoordinatorRunner, store: FileStore, replay: Replay) -> None:
        """Replay what the writer logs until it is our turn; afterwards the lock is ours."""
        self.stage = "ReadOnly"
        self._say("I'm a secondary")
        while not self._promoted.is_set():
            await self._catch_up(runner, store, replay)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_POLL_S):
                    await self._promoted.wait()
        store.tenure.generation = self._generation
        if self._fenced_at is None and not self.options.standby:
            self._fenced_at = asyncio.get_running_loop().time()
        await asyncio.to_thread(store.tenure.fence)
        while True:
            await self._catch_up(runner, store, replay)
            try:
                meta = await asyncio.to_thread(store.lock, self._process, f"{self.options.address}:{self.options.port}")
            except FatalError as error:
                if error.fatal is not Fatal.STORAGE:
                    raise
                if await asyncio.to_thread(store.tenure.stands_still):
                    self._say(f"Taking over from a writer that stands still: {error}")
                    await asyncio.to_thread(store.tenure.overtake)
                else:
                    await asyncio.sleep(FENCE_POLL_S)  # the one before has not ended yet
                continue
            self._same_version(runner, meta)
            replay.last_log = meta.last_log
            runner.core.meta = meta
            return

    async def _catch_up(self, runner: CoordinatorRunner, store: FileStore, replay: Replay) -> None:
        """Deliver what the writer has logged."""
        meta = await asyncio.to_thread(store.refresh)
        self._same_version(runner, meta)
        replay.last_log = meta.last_log
        await runner.replay(replay, store.tenure.check_term)  # who was overtaken may add what nobody will read again

    def _same_version(self, runner: CoordinatorRunner, meta: Meta) -> None:
        if meta.current_version != runner.core.meta.current_version:
            text = f"{self.options.name} was upgraded to version {meta.current_version} while this one followed"
            raise FatalError(Fatal.VERSION, f"{text}: start it again")

    async def _registered(self, peer: str) -> list[tuple[str, int]]:
        row = await asyncio.to_thread(self._registry.load, peer)
        host, _, port = row.address.rpartition(":")
        return [(host, int(port))] if host and port.isdigit() else []


def new_committer() -> int:
    """Return the number of a new instance's log: 31 bits, sign-extended."""
    return random.SystemRandom().getrandbits(COMMITTER_BITS) - (1 << (COMMITTER_BITS - 1))


class DebugServer:
    """Replays an instance from one of its checkpoints to one application, and writes nothing (15)."""

    def __init__(self, options: Options, checkpoint: int, *, testing_upgrade: bool) -> None:
        self.options = options
        self._checkpoint = checkpoint
        self._testing_upgrade = testing_upgrade

    async def run(self) -> None:
        """Serve until the application goes."""
        options = self.options
        path = instance_folder(options.log, options.name, options.version or 0)
        if not await asyncio.to_thread(path.is_dir):
            raise FatalError(Fatal.CHECKPOINT, f"{path} is missing: no instance of that name and version is there")
        folder = DiskFolder(path)
        reader = await asyncio.to_thread(CheckpointReader, folder, self._checkpoint)
        head = reader.head
        reader.close()
        port = BindingPort(options.host, options.receive_port, options.send_port, options.order, options.detect_s)
        port.listen()
        say("Ready ...")
        try:
            binding = await port.accept()
        finally:
            port.close()
        core = Coordinator(Settings(options.name), head.committer, Meta())
        store = FileStore(folder, Registry(DiskFolder(options.registry or path)), options.name)
        runner = CoordinatorRunner(core, store, binding, resolve=_nobody, say=say, process="debug")
        try:
            runner.call(lambda: core.restore(head, self._checkpoint))
            runner.call(lambda: core.debug(testing_upgrade=self._testing_upgrade))
            runner.start()
            replay = Replay(folder, self._checkpoint, last_log(folder), Progress.restored(head))
            try:
                while not runner.ended.done() and not core.left:
                    replay.last_log = last_log(folder)
                    await runner.replay(replay)
                    await asyncio.wait({runner.ended}, timeout=FOLLOW_POLL_S)
            finally:
                replay.close()
            if runner.ended.done():
                runner.ended.result()
        finally:
            await runner.close()


async def _nobody(_: str) -> list[tuple[str, int]]:
    return []


# --- executables --------------------------------------------------------------------------------------------------


def immortal_coordinator() -> None:
    """``ImmortalCoordinator``: serve one application."""
    _leave(_guarded("ImmortalCoordinator", opts.COORDINATOR, _coordinate, sys.argv[1:]))


def ambrosia() -> None:
    """``Ambrosia``: register an instance, or replay one."""
    mode, rest = (sys.argv[1].lower(), sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if mode == "registerinstance":
        _leave(_guarded("Ambrosia RegisterInstance", opts.REGISTER, _register, rest))
    if mode == "debuginstance":
        _leave(_guarded("Ambrosia DebugInstance", opts.DEBUG, _debug, rest))
    asked = mode in ("-h", "--help", "/h")
    if not asked:
        say("Missing or illegal runtime mode.")
    say("Usage: Ambrosia RegisterInstance | DebugInstance [OPTIONS]")
    _leave(EXIT_STOPPED if asked else EXIT_USAGE)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.exit(code)


def run_coordinator(arguments: Sequence[str]) -> int:
    """Run ``ImmortalCoordinator`` with ``arguments``; return its exit code."""
    return _guarded("ImmortalCoordinator", opts.COORDINATOR, _coordinate, arguments)


def _guarded(
    program: str, known: Sequence[opts.Option], work: Callable[[dict[str, str]], None], arguments: Sequence[str]
) -> int:
    try:
        found = opts.parse(arguments, known)
        if "help" in found:
            say(opts.usage(program, known))
            return EXIT_STOPPED
        if not found.get("instanceName"):
            raise opts.UsageError("Instance name is required.")
        work(found)
    except opts.UsageError as error:
        say(str(error))
        say(opts.usage(program, known))
        return EXIT_USAGE
    except Superseded as error:
        say(f"Migrating or upgrading. Must commit suicide since I'm the primary: {error}")
        return EXIT_STOPPED
    except FatalError as error:
        say(f"FATAL ERROR {int(error.fatal)}: {error}")
        return error.exit_code
    except OSError as error:
        say(f"FATAL ERROR {int(Fatal.STORAGE)}: {error.filename}: {error.strerror}")
        return int(Fatal.STORAGE)
    except Exception as error:
        say(f"FATAL ERROR {int(Fatal.UNEXPECTED)}: {error!r}")
        return EXIT_UNEXPECTED
    return EXIT_STOPPED


def _coordinate(found: dict[str, str]) -> None:
    folder = opts.registry(found, os.environ)
    registered = Registry(DiskFolder(folder)).load(found["instanceName"]).registration if folder.is_dir() else {}
    found = {**registered, **found}
    if found.get("logStorageType", "files") != "files":
        raise opts.UsageError("Invalid arguments: logs are kept in files only.")
    if len(found["instanceName"].encode()) > NEW_NAME_BYTES_MAX:
        raise opts.UsageError(f"Invalid arguments: an instance name has at most {NEW_NAME_BYTES_MAX} bytes.")
    order = SocketOrder.DETECT
    if "legacySockets" in found:
        order = SocketOrder.LEGACY
    elif "currentSockets" in found:
        order = SocketOrder.CURRENT
    address = found.get("IPAddr", "127.0.0.1")
    options = Options(
        name=found["instanceName"],
        port=opts.port(found, "port", "Port number is required."),
        receive_port=opts.port(found, "receivePort", "Receive port is required."),
        send_port=opts.port(found, "sendPort", "Send port is required."),
        log=found.get("log", opts.DEFAULT_LOG),
        registry=folder,
        log_trigger_bytes=opts.number(found, "logTriggerSize", opts.TRIGGER_MB, low=-1) * MIB,
        address=address,
        host=found.get("host", "127.0.0.1"),
        version=opts.number(found, "currentVersion", 0) if "currentVersion" in found else None,
        upgrade_version=opts.number(found, "upgradeVersion", 0) if "upgradeVersion" in found else None,
        generation=opts.number(found, "generation", 0),
        read_only="readOnly" in found,
        standby="activeActive" in found or "replicaNum" in found,
        order=order,
        detect_s=opts.number(found, "detectMs", int(DETECT_S * 1000)) / 1000,
    )
    telemetry.configure("immortal-coordinator", {"service.instance.id": options.name})
    try:
        asyncio.run(_run_server(options))
    finally:
        telemetry.shutdown()


async def _run_server(options: Options) -> None:
    server = Server(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    loop.add_signal_handler(signal.SIGUSR1, server.promote)
    await server.run()


def _register(found: dict[str, str]) -> None:
    for name in ("receivePort", "sendPort"):
        opts.port(found, name, f"{'Receive' if name == 'receivePort' else 'Send'} port is required.")
    opts.number(found, "logTriggerSize", opts.TRIGGER_MB, low=-1)
    current = opts.number(found, "currentVersion", 0)
    if opts.number(found, "upgradeVersion", current) < current:
        raise opts.UsageError("Current version # exceeds upgrade version #.")
    registry, name = Registry(DiskFolder(opts.registry(found, os.environ))), found["instanceName"]
    row: Row = registry.load(name)
    kept = {key: value for key, value in found.items() if key not in ("instanceName", "registry", "help")}
    registry.store(name, replace(row, registration=kept), seen=row.version)
    say(f"{name} is registered")


def _debug(found: dict[str, str]) -> None:
    options = Options(
        name=found["instanceName"],
        port=0,
        receive_port=opts.port(found, "receivePort", "Receive port is required."),
        send_port=opts.port(found, "sendPort", "Send port is required."),
        log=found.get("log", opts.DEFAULT_LOG),
        version=opts.number(found, "currentVersion", 0),
    )
    checkpoint = opts.number(found, "checkpoint", 1, low=1)
    asyncio.run(DebugServer(options, checkpoint, testing_upgrade="testingUpgrade" in found).run())


__all__ = ["DebugServer", "Options", "Server", "ambrosia", "immortal_coordinator", "run_coordinator"]

if __name__ == "__main__":
    immortal_coordinator()
