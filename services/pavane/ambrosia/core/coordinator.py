"""One coordinator without I/O (docs/specs/ambrosia.md 6, 10, 13).

Bytes of the application, of streams and answers of the store go in; effects come out of ``outputs`` in the order in
which they must happen. Every method may raise ``FatalError``: the process must end then and do nothing else.

A life: ``first_start``, or ``restore`` followed by ``replay`` for each record of the log and ``replayed``.
"""

from collections import deque
from dataclasses import dataclass, replace

from pavane.ambrosia.core.links import Links
from pavane.ambrosia.core.pipeline import Pipeline
from pavane.ambrosia.effects import (
    Append,
    BeginCheckpoint,
    BlobToBinding,
    CheckpointBytes,
    CreateLog,
    Effect,
    EndCheckpoint,
    Say,
    Step,
    Storage,
    StoreMeta,
    ToBinding,
)
from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.state import (
    LB_TABLE,
    OURSELVES,
    Action,
    Diverged,
    Meta,
    Output,
    Phase,
    Progress,
    Sent,
    sort_sent,
)
from pavane.ambrosia.wire.batches import split_calls
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.limits import (
    MESSAGE_BYTES_MAX,
    MIB,
    OUTPUT_BUFFER_BYTES,
    OUTPUT_TOTAL_BYTES,
    RECORD_BYTES,
    UNDELIVERED_BYTES,
)
from pavane.ambrosia.wire.messages import (
    PROGRESS,
    Call,
    Frame,
    MessageBuffer,
    RpcType,
    Type,
    checkpoint,
    read_attach_to,
    read_checkpoint,
)
from pavane.ambrosia.wire.primitives import Buffer, Cursor
from pavane.ambrosia.wire.records import LogRecord, checkpoint_record, control_record
from pavane.wire import RemoteProtocolError

LOG_TRIGGER_BYTES = 1000 * MIB  # the default of every program of this kind
_PROGRESS = Call(PROGRESS, RpcType.IMPULSE, b"").body()


@dataclass(frozen=True, slots=True)
class Settings:
    """What does not change in a life; a trigger of 0 or less means no rotation by size.

    ``version``: of the application; greater than that of the metadata, the application is upgraded behind the replay.
    """

    name: str
    log_trigger_bytes: int = LOG_TRIGGER_BYTES
    version: int = 0
    message_bytes_max: int = MESSAGE_BYTES_MAX


class Coordinator:
    """The machine. ``phase`` and the counters are there to be looked at."""

    def __init__(self, settings: Settings, committer: int, meta: Meta) -> None:
        self.settings = settings
        self.meta = meta
        self.phase = Phase.INIT
        self.impulses_dropped = 0
        self.handled: int | None = None
        """The last record of the replay that the application has handled, if it is one that says so."""
        self.left = False  # the application has seen enough of a replay (6.5)
        self.log_bytes = 0  # of the current log
        self._effects: list[Effect] = []
        self._pipeline = Pipeline(Progress(committer), self._effects.append)
        self.links = Links(settings.name, self._pipeline, self._effects.append, self._attached, self._meets)
        for name in meta.connections:
            self.links.attached.add(name)
        self._incoming = MessageBuffer(settings.message_bytes_max)
        self._undelivered: deque[bytes] = deque()
        self._undelivered_bytes = 0
        self._unwritten = 0
        self._rotation_due = False
        self._checkpointing = False  # from the new log on until its checkpoint is durable
        self._blob_left = 0
        self._asked = Type.TAKE_CHECKPOINT
        self._frozen: CheckpointHead | None = None
        self._replayed_any = False
        self._promoted = False
        self._early_warned = False

    # --- what the edge asks ---------------------------------------------------------------------------------------

    def outputs(self) -> list[Effect]:
        """Return what must happen since the last call, in order."""
        effects = self._effects[:]
        self._effects.clear()
        return effects

    @property
    def committer(self) -> int:
        """The number of this instance's log, constant for its life."""
        return self._pipeline.progress.committer

    @property
    def next_seq(self) -> int:
        """The number of the next record."""
        return self._pipeline.progress.next_seq

    @property
    def live(self) -> bool:
        """Whether links are open: primary and past the checkpoint that made it so."""
        return self.links.live

    @property
    def reads_links(self) -> bool:
        """Whether streams of peers may be read; not while too many logged records wait for the application."""
        return self._undelivered_bytes < UNDELIVERED_BYTES

    @property
    def reads_binding(self) -> bool:
        """Whether the application may be read: always, unless its Impulses alone flood the outputs."""
        return self.phase is not Phase.LIVE or self._unwritten > 0 or not self._over(2)

    # --- beginnings -----------------------------------------------------------------------------------------------

    def first_start(self) -> None:
        """Begin the life of the instance (6.1)."""
        self._asked = Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        self._next_log()

    def restore(self, head: CheckpointHead, number: int) -> None:
        """Begin behind checkpoint ``number`` (6.2, 13)."""
        self.phase = Phase.REPLAY
        try:
            progress = Progress.restored(head)
            self.links.outputs = {name: Output.restored(saved) for name, saved in head.outputs.items()}
        except RemoteProtocolError as error:
            raise FatalError(Fatal.CHECKPOINT, f"checkpoint {number} cannot be read: {error}") from error
        pipeline = self._pipeline
        pipeline.progress = progress
        pipeline.inputs = dict(head.inputs)
        pipeline.durable = dict(head.inputs)
        pipeline.pending = bytearray(head.pending)
        pipeline.pending_inputs = dict(head.pending_inputs)
        pipeline.pending_trims = dict(head.pending_trims)
        self.links.restored({*head.inputs, *head.outputs})
        self._effects.append(Say(f"Reading a checkpoint {head.size} bytes"))
        self._to_binding(checkpoint_record(head.committer, checkpoint(head.size)))
        self._effects.append(BlobToBinding(number))
        for name in head.outputs:
            self.links.attach(name)

    def refuses(self, record: LogRecord) -> str | None:
        """Say why a record of the log is not the next one."""
        return self._pipeline.progress.refuses(record)

    def replay(self, record: LogRecord) -> None:
        """Deliver a record of the log again; ``refuses`` said nothing against it."""
        pipeline = self._pipeline
        if not self._replayed_any:
            self._replayed_any = True
            pipeline.clear_pending()  # the first record begins with what the checkpoint held
        pipeline.progress.advance(record)
        pipeline.inputs.update(record.inputs)
        pipeline.durable.update(record.inputs)
        for name, trim in record.trims.items():
            self.links.output(name).trim_replayable(trim)
        self._to_binding(record.delivered())

    def replayed(self, *, promotion: bool = False) -> None:
        """The end of the log: lead from here on (6.2), a follower without a checkpoint of its own (6.3).

        Where the application has a new version it changes over here, at once and for good (6.4).
        """
        upgrade = self.settings.version > self.meta.current_version
        counts = bool(self.meta.restored) and self.meta.made is None  # so the application has to have handled the log
        if counts and upgrade:  # it may make calls, which would be counted as those of the backup
            text = f"{self.settings.name} was restored from a backup: start version {self.meta.current_version} first"
            raise FatalError(Fatal.VERSION, text)
        self._promoted = promotion and not upgrade and not counts
        self._asked = Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        if upgrade:
            self._asked = Type.UPGRADE_TAKE_CHECKPOINT
            versions = f"from version {self.meta.current_version} to {self.settings.version}"
            self._effects.append(Say(f"Upgrading {self.settings.name} {versions}"))
        elif self._promoted:
            self._asked = Type.BECOMING_PRIMARY
        if promotion:
            self._effects.append(Say("NOW I'm Primary"))
        self._next_log()

    def debug(self, *, testing_upgrade: bool = False) -> None:
        """Only replay: outputs are dropped, nothing is ever logged (6.5); as new code would have handled it (6.6)."""
        self.phase = Phase.DEBUG
        if testing_upgrade:
            self._to_binding(control_record(self.committer, Type.UPGRADE_SERVICE))

    # --- the store answers ----------------------------------------------------------------------------------------

    def stored(self, effect: Storage) -> None:
        """``effect`` is durable."""
        match effect:
            case Append(record, parts):
                self._logged(record, sum(map(len, parts)))
            case StoreMeta(step=Step.LOG):
                self._log_begun()
            case EndCheckpoint(number):
                version = max(self.meta.current_version, self.settings.version)
                self._store_meta(Step.CHECKPOINT, replace(self.meta, last_checkpoint=number, current_version=version))
            case StoreMeta(step=Step.CHECKPOINT):
                self._checkpointed()
            case _:
                return
        self._go_on()

    def _logged(self, record: LogRecord, size: int) -> None:
        calls = self._pipeline.logged()
        self.log_bytes += size
        if 0 < self.settings.log_trigger_bytes <= self.log_bytes:
            self._rotation_due = True
        data = record.delivered()
        self._undelivered.append(data)
        self._undelivered_bytes += len(data)
        self.links.durable(calls)

    def _next_log(self) -> None:
        self._checkpointing = self._pipeline.held = True
        number = self.meta.last_log + 1
        self._effects.append(CreateLog(number))
        connections = tuple(sorted({*self.meta.connections, *self.links.attached}))
        self._store_meta(Step.LOG, replace(self.meta, last_log=number, connections=connections))

    def _store_meta(self, step: Step, meta: Meta) -> None:
        self.meta = meta
        self._effects.append(StoreMeta(meta, step))

    def _log_begun(self) -> None:
        self.log_bytes = 0
        self._to_binding(control_record(self.committer, self._asked))
        if self._asked is Type.BECOMING_PRIMARY:
            self.phase = Phase.LIVE
            self._checkpointed()
        elif self.phase is not Phase.INIT:
            self.phase = Phase.CHECKPOINT

    def _checkpointed(self) -> None:
        self._checkpointing = self._pipeline.held = False
        if self._asked is Type.UPGRADE_TAKE_CHECKPOINT:
            self._rotation_due = True  # the application counts as upgraded after a second checkpoint
        if self._frozen is not None:
            for name, mark in self._frozen.inputs.items():
                self._pipeline.durable[name] = max(mark, self._pipeline.durable.get(name, (0, 0)))
            self._frozen = None
        self._pipeline.seal()  # before anything else, so that record 0 holds the InitialMessage alone
        if not self.links.live:
            self.links.complete = not self._promoted
            self._know_backup()
            try:
                self.links.open()
            except Diverged as error:
                text = f"{self.settings.name} contradicts its own log: {error}"
                raise FatalError(Fatal.LOG, text) from error
        self.links.durable(1)

    def _know_backup(self) -> None:
        """Once for all, note how many calls to each peer a backup leads to, before new ones are made (N12)."""
        meta = self.meta
        if not meta.restored:
            return
        if meta.made is None:
            made = {name: output.last_replayable for name, output in self.links.outputs.items() if name != OURSELVES}
            self._store_meta(Step.CONNECTION, replace(meta, made=made))
        self.links.made, self.links.met = self.meta.made, set(meta.met)

    def _meets(self, name: str) -> None:
        self._store_meta(Step.CONNECTION, replace(self.meta, met=tuple(sorted({*self.meta.met, name}))))

    # --- the application ------------------------------------------------------------------------------------------

    def binding_received(self, data: Buffer) -> None:
        """Take bytes of the application."""
        self._incoming.feed(data)
        while True:
            if self._blob_left:
                chunk = self._incoming.take(self._blob_left)
                if not chunk:
                    break
                self._checkpoint_bytes(chunk)
                continue
            try:
                message = self._incoming.next()
            except RemoteProtocolError as error:
                raise self._illegal(f"malformed ({error})") from error
            if message is None:
                break
            self._take(message)
        self._go_on()

    def binding_closed(self) -> None:
        """Either socket of the application has ended."""
        if LB_TABLE[Sent.CLOSED, self.phase] is Action.LOST:
            text = f"Error in local listener data stream: the application of {self.settings.name} has gone"
            raise FatalError(Fatal.STORAGE, text)
        self.left = True

    def binding_wrote(self, size: int) -> None:
        """The socket of the application took bytes."""
        self._unwritten -= size
        self._go_on()

    def _take(self, message: Frame) -> None:
        sent = sort_sent(message.type)
        action = LB_TABLE[sent, self.phase]
        if action is Action.UNEXPECTED:
            raise self._illegal(f"type {message.type} ({sent.value}), {len(message.data)} bytes,")
        try:
            if sent is Sent.REPLAYABLE:
                self._calls(split_calls(message))
            elif action is Action.KEEP:
                self._pipeline.pending += message.raw
                self.phase = Phase.FIRST
            elif action is Action.STORE:
                self._begin_checkpoint(read_checkpoint(message.data))
            elif action is Action.ATTACH:
                self.links.attach(read_attach_to(message.data))
            elif action is Action.ROTATE:
                self._rotation_due = True
        except RemoteProtocolError as error:
            raise self._illegal(f"type {message.type}, {len(message.data)} bytes, malformed ({error})") from error

    def _illegal(self, what: str) -> FatalError:
        text = f"Illegal leading byte in local message: {what} is not legal in phase {self.phase.value}"
        return FatalError(Fatal.UNEXPECTED, text)

    def _calls(self, calls: list[tuple[str, bytes, bool]]) -> None:
        drops = [LB_TABLE[sent, self.phase] is Action.DROP for sent in (Sent.REPLAYABLE, Sent.IMPULSE)]
        early = self.next_seq == 0 and not self._early_warned
        for destination, raw, impulse in calls:
            if impulse and destination == OURSELVES and raw.startswith(_PROGRESS, 2):
                self.handled = Cursor(raw[2 + len(_PROGRESS) :]).i64()
                continue
            if drops[impulse]:
                self._drop(impulse=impulse)
                continue
            if early and not impulse:
                early, self._early_warned = False, True
                text = "the application sent a call before its InitialMessage came back: a crash may lose it"
                self._effects.append(Say(text, error=True))
            output = self.links.outputs.get(destination)
            if output is None or destination not in self.links.attached:
                output = self._output(destination)
            output.add(raw, impulse=impulse)

    def _drop(self, *, impulse: bool) -> None:
        if impulse and not self.impulses_dropped:
            text = "an Impulse during replay was dropped: only a primary may send one"
            self._effects.append(Say(text, error=True))
        self.impulses_dropped += impulse

    def _output(self, destination: str) -> Output:
        """Return where calls to ``destination`` go; without AttachTo they would wait for ever."""
        if destination == self.settings.name:
            destination = OURSELVES
        if destination != OURSELVES and destination not in self.links.attached:
            text = f"{destination} was called without AttachTo; it is attached now"
            self._effects.append(Say(text, error=True))
            self.links.attach(destination)
        return self.links.output(destination)

    def _attached(self, name: str) -> None:
        if name not in self.meta.connections and self.phase in (Phase.CHECKPOINT, Phase.LIVE):
            connections = tuple(sorted({*self.meta.connections, name}))
            self._store_meta(Step.CONNECTION, replace(self.meta, connections=connections))

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _begin_checkpoint(self, size: int) -> None:
        pipeline = self._pipeline
        self._frozen = CheckpointHead(
            self.committer,
            self.next_seq,
            bytes(pipeline.pending),
            dict(pipeline.pending_inputs),
            dict(pipeline.pending_trims),
            dict(pipeline.inputs),
            {name: output.saved() for name, output in self.links.outputs.items()},
            size,
        )
        self._blob_left = size
        self._effects.append(BeginCheckpoint(self.meta.last_log, self._frozen))
        if not size:
            self._end_checkpoint()

    def _checkpoint_bytes(self, chunk: bytes) -> None:
        self._blob_left -= len(chunk)
        self._effects.append(CheckpointBytes(chunk))
        if not self._blob_left:
            self._end_checkpoint()

    def _end_checkpoint(self) -> None:
        self._effects.append(EndCheckpoint(self.meta.last_log))
        self.phase = Phase.LIVE
        self.links.complete = True  # what it was asked after, it has handled

    def _rotate(self) -> None:
        """Begin a rotation once nothing is being logged (6.7); what is logged goes to the application before."""
        if not self._rotation_due or self._checkpointing or not self.links.live or self._pipeline.logging:
            return
        self._rotation_due = False
        self._asked = Type.TAKE_CHECKPOINT
        self._deliver(everything=True)
        self._next_log()

    # --- what waits -----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self.links.live:
            return
        self._rotate()
        self._deliver()
        self.links.pump()
        self._pipeline.seal()
        if self.reads_links:
            self.links.resume()
            self._pipeline.seal()

    def _deliver(self, *, everything: bool = False) -> None:
        while self._undelivered and (everything or (self._unwritten < RECORD_BYTES and not self._over(1))):
            data = self._undelivered.popleft()
            self._undelivered_bytes -= len(data)
            self._to_binding(data)

    def _to_binding(self, data: bytes) -> None:
        self._unwritten += len(data)
        self._effects.append(ToBinding(data))

    def _over(self, times: int) -> bool:
        outputs = self.links.outputs.values()
        if any(output.bytes > times * OUTPUT_BUFFER_BYTES for output in outputs):
            return True
        return self.links.output_bytes > times * OUTPUT_TOTAL_BYTES

    # --- streams --------------------------------------------------------------------------------------------------

    def received(self, stream: int, data: Buffer) -> None:
        """Take bytes of a stream."""
        self.links.received(stream, data)
        self._go_on()

    def wrote(self, stream: int, size: int) -> None:
        """The socket took bytes of a stream."""
        self.links.wrote(stream, size)

    def timer(self, name: str) -> None:
        """A timer has rung."""
        self.links.timer(name)
