"""A replica of the compute protocol without I/O: every command in every state (docs/specs/compute.md 2, 3, 4).

Duties of whoever drives it: hand in the commands of all streams and the results of the engine one at a time, carry out
the effects of each call in order, and send what lies in a stream's outbox. Dataflows outlive the stream that told of
them; the next stream that tells the expected state to its end drops them and builds its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pavane.compute.core.exports import Dataflow, Export
from pavane.compute.core.outbox import Outbox
from pavane.compute.core.ports import (
    AllowSink,
    Build,
    Compact,
    Configure,
    Drop,
    Effect,
    ExitProcess,
    Read,
    Start,
    StopReading,
    Wake,
)
from pavane.compute.core.streams import Phase, Stream, StreamsCore
from pavane.compute.state.history import History, HistoryError, StillAlive
from pavane.compute.state.reconcile import reconcile, same_runtime
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CopyTo,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    InitializationComplete,
    MaterializedView,
    Peek,
    RuntimeConfig,
    Schedule,
    Subscribe,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Failure, Rows, Token
from pavane.compute.wire.responses import Blocker, Canceled, PeekResponse, Response, StageReport
from pavane.wire import Stage

KIND = "compute"
EXIT_FENCED = 0
EXIT_INCOMPATIBLE = 3
EXIT_BROKEN = 4
EXIT_ENGINE = 5
PEEKS_MAX = 10_000  # open at a time; more are answered with an error
DATAFLOWS_MAX = 4096
COMMANDS_MAX = 1_000_000  # of one expected state
RESULT_BYTES_MAX = 1 << 30  # of one answer, unless the setting below says otherwise
RESULT_SETTING = "result.maxSize"


@dataclass(slots=True)
class _Stream(Stream):
    expected: list[Command] = field(default_factory=list)
    outbox: Outbox = field(default_factory=Outbox)


@dataclass(slots=True)
class _OpenPeek:
    peek: Peek
    export: Export
    reading: bool = False


class ReplicaCore(StreamsCore[_Stream]):
    """Streams, epochs, dataflows and open peeks of one replica.

    ``generation`` is the pod's own. ``live_options`` are engine options that may differ from those the process runs
    with; ``settings`` are the keys of UpdateConfiguration that the engine knows.
    """

    def __init__(
        self,
        generation: int,
        *,
        live_options: frozenset[str] = frozenset(),
        settings: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(_Stream)
        self.generation = generation
        self.stage = Stage.CREATION
        self.token: Token | None = None
        self.configuration: dict[str, str] = {}
        self.blockers: tuple[Blocker, ...] = ()
        self.ignored = 0
        self.ignored_settings = 0
        self.exiting: ExitProcess | None = None
        self._live_options = live_options
        self._settings = settings | {RESULT_SETTING}
        self._runtime: RuntimeConfig | None = None
        self._instance: CreateInstance | None = None
        self._history = History()
        self._flows: dict[int, Dataflow] = {}
        self._exports: dict[str, Export] = {}
        self._last_flow = 0
        self._allowed: dict[tuple[int, str], Token] = {}
        self._peeks: dict[bytes, _OpenPeek] = {}
        self._changed = False
        self._effects: list[Effect] = []

    # ---- streams

    def outbox(self, stream: int) -> Outbox:
        """What waits to be sent on ``stream``; empty for one that has ended."""
        state = self._streams.get(stream)
        return Outbox() if state is None else state.outbox

    def receive(self, stream: int, command: Command) -> tuple[Effect, ...]:
        """Return what ``command`` on ``stream`` leads to; nothing for a stream that was ended already."""
        state = self._streams.get(stream)
        if state is None or self.exiting is not None:
            return ()
        match state.phase, command:
            case Phase.OPENED, CreateTimely():
                self._take_epoch(stream, state, command)
            case Phase.GREETED, CreateInstance():
                self._check_instance(state, command)
            case ((Phase.EXPECTING | Phase.COMPLETE), UpdateConfiguration()):
                self._configure(state, command)
            case Phase.EXPECTING, InitializationComplete():
                self._complete(stream, state)
            case (
                (Phase.EXPECTING | Phase.COMPLETE),
                (CreateDataflow() | Schedule() | AllowCompaction() | Peek() | CancelPeek() | AllowWrites()),
            ):
                self._compute(stream, state, command)
            case _:
                self._effects.append(self._out_of_order(stream, command, state.phase))
        return self._done()

    # ---- results of the engine

    def progress(
        self, flow: int, id_: str, *, write: int | None = None, input_: int | None = None, computed: int | None = None
    ) -> tuple[Effect, ...]:
        """Note how far an index or view has come.

        ``write``: the contents are final below it (a view: the chain's upper, whoever wrote it). ``input``: inputs
        below are not read again. ``computed``: everything below is computed.
        """
        if (export := self._export(flow, id_)) is not None:
            export.progress(write, input_, computed)
            self._tell_moved(export)
            self._release(export)
        return self._done()

    def answer(self, uuid: bytes, result: Sequence[Rows] | Failure) -> tuple[Effect, ...]:
        """Take the answer to a ``Read``: rows in parts, or an error. One that nobody waits for is dropped."""
        open_ = self._peeks.pop(uuid, None)
        if open_ is not None:
            self._history.push(CancelPeek(uuid))
            self._answer(uuid, result)
        return self._done()

    def batch(self, flow: int, id_: str, upper: int, content: Rows | Failure) -> tuple[Effect, ...]:
        """Take all updates of a subscribe between the last upper and this one, consolidated."""
        if (export := self._export(flow, id_)) is not None:
            self._tell(export.batch(upper, content))
        return self._done()

    def failed(self, flow: int, failure: Failure) -> tuple[Effect, ...]:
        """Note that a dataflow cannot go on, for a reason that building it again would not mend."""
        dataflow = self._flows.get(flow)
        if dataflow is not None and dataflow.failure is None:
            dataflow.failure = failure
            for export in dataflow.exports.values():
                self._release(export)
                if isinstance(export.sink, Subscribe):
                    self._tell(export.batch(max(export.upper + 1, export.as_of), failure))
        self._changed = True
        return self._done()

    def broken(self, flow: int, reason: str) -> tuple[Effect, ...]:
        """Note that a precondition of a dataflow does not hold: a wrong result is never an option."""
        if flow in self._flows:
            self._exit(EXIT_BROKEN, reason)
        return self._done()

    def fenced(self, token: Token) -> tuple[Effect, ...]:
        """Note who writes a chain now. Another generation's token ends the process; a later epoch's is the sink's."""
        if token.generation != self.generation:
            self._exit(EXIT_FENCED, f"fenced by generation {token.generation}")
        return self._done()

    def engine_failed(self, reason: str) -> tuple[Effect, ...]:
        """Note that the engine cannot be restarted."""
        self._exit(EXIT_ENGINE, reason)
        return self._done()

    def blocked(self, blockers: tuple[Blocker, ...]) -> tuple[Effect, ...]:
        """Note what holds up the engine now."""
        self.blockers, self._changed = blockers, True
        return self._done()

    def readable_from(self, flow: int, ids: Collection[str]) -> int | None:
        """From which tick on these exports of a dataflow are read, also by open peeks; ``None`` = not any more."""
        exports = (self._export(flow, id_) for id_ in ids)
        open_ = (each for each in self._peeks.values() if each.export.flow == flow and each.export.id in ids)
        since = [export.since for export in exports if export is not None and export.reports]
        return min([*since, *(each.peek.timestamp for each in open_)], default=None)

    def report(self) -> StageReport:
        """The replica's present state."""
        failed = tuple(
            Blocker("DataflowFailed", flow.failure.text, {"id": id_, "code": flow.failure.code})
            for flow in self._flows.values()
            if flow.failure is not None and not flow.dropped
            for id_ in flow.exports
        )
        tokens = [*self._allowed.values(), *([] if self.token is None else [self.token])]
        return StageReport(self.stage, self.generation, max(tokens, default=None), blockers=(*self.blockers, *failed))

    # ---- the beginning of a stream

    def _take_epoch(self, stream: int, state: _Stream, command: CreateTimely) -> None:
        self._effects.extend(self._follow(stream, command))
        if stream not in self._streams:
            return
        if self._runtime is not None and not same_runtime(self._runtime, command.config, self._live_options):
            self._exit(EXIT_INCOMPATIBLE, "CreateTimely asks for another engine than the one that runs")
            return
        self._runtime = command.config
        state.phase = Phase.GREETED

    def _check_instance(self, state: _Stream, command: CreateInstance) -> None:
        if (command.kind, command.generation) != (KIND, self.generation):
            text = f"CreateInstance names {command.kind} of generation {command.generation}"
            self._exit(EXIT_INCOMPATIBLE, f"{text}, this pod is {KIND} of {self.generation}")
            return
        if command.introspection is not None and command.introspection.log_ids:
            self._exit(EXIT_INCOMPATIBLE, "CreateInstance asks for collections about the replica, which it has not")
            return
        given = {"result_store": command.result_store, "tick_log": command.tick_log, "sink_root": command.sink_root}
        if unfit := ", ".join(name for name, value in given.items() if value):
            text = f"CreateInstance names {unfit}, which this replica does not use"
            self._exit(EXIT_INCOMPATIBLE, f"{text}: leave it out; its partitions are options of the process")
            return
        if self._instance is not None and command != self._instance:
            self._exit(EXIT_INCOMPATIBLE, "CreateInstance differs from what this process was created with")
            return
        self._instance = command
        state.phase = Phase.EXPECTING
        self.stage = max(self.stage, Stage.INITIALIZATION)

    def _configure(self, state: _Stream, command: UpdateConfiguration) -> None:
        known = {key: value for key, value in command.settings.items() if key in self._settings}
        self.ignored_settings += len(command.settings) - len(known)
        if state.phase is Phase.EXPECTING:
            state.expected.append(command)
        else:
            self._history.push(command)
        if known:
            self.configuration |= known
            self._effects.append(Configure(dict(self.configuration)))

    def _complete(self, stream: int, state: _Stream) -> None:
        expected = state.expected
        try:
            history = History(expected)
        except StillAlive as error:
            self._exit(EXIT_BROKEN, str(error))
            return
        except HistoryError as error:
            self._refuse(stream, "FAILED_PRECONDITION", str(error))
            return
        plan = reconcile(self._history, expected, reuse=False)
        self._clean_up()
        history.initialized = True
        state.phase, state.expected, self._history = Phase.COMPLETE, [], history
        self.stage = max(self.stage, Stage.READ_ONLY)
        self._changed = True
        for command in plan.commands:
            if not isinstance(command, UpdateConfiguration) and self.exiting is None and stream in self._streams:
                self._apply(stream, command)

    def _clean_up(self) -> None:
        """Silence and drop all that former connections left, importers before what they import."""
        self._effects.extend(StopReading(uuid) for uuid, open_ in self._peeks.items() if open_.reading)
        self._peeks.clear()
        self._effects.extend(Drop(number) for number in reversed(self._flows))
        self._flows.clear()
        self._exports.clear()
        self._allowed.clear()

    # ---- commands of the expected state and after it

    def _compute(self, stream: int, state: _Stream, command: Command) -> None:
        # A greater one is that of a generation from which this one takes the right to write back.
        if isinstance(command, AllowWrites) and command.token.generation < self.generation:
            text = f"the token {command.token} is of a generation before this pod's, {self.generation}"
            self._refuse(stream, "FAILED_PRECONDITION", text)
        elif isinstance(command, CreateDataflow) and any(
            isinstance(sink.connection, CopyTo) for sink in command.dataflow.sink_exports
        ):
            self._refuse(stream, "UNIMPLEMENTED", "copies to files are not supported; read the view instead")
        elif state.phase is Phase.COMPLETE:
            try:
                effective = self._history.push(command)
            except StillAlive as error:
                self._exit(EXIT_BROKEN, str(error))
            except HistoryError as error:
                self._refuse(stream, "FAILED_PRECONDITION", str(error))
            else:
                self.ignored += not effective and not isinstance(command, CancelPeek)
                self._apply(stream, command)
        elif len(state.expected) >= COMMANDS_MAX:
            self._refuse(stream, "RESOURCE_EXHAUSTED", f"an expected state of more than {COMMANDS_MAX} commands")
        else:
            state.expected.append(command)

    def _apply(self, stream: int, command: Command) -> None:
        match command:
            case CreateDataflow():
                self._create(stream, command.dataflow)
            case Schedule():
                self._schedule(command.id)
            case AllowCompaction() if command.frontier == CLOSED:
                self._drop(command.id)
            case AllowCompaction():
                export = self._exports.get(command.id)
                if export is not None and not export.ended and command.frontier > export.since:
                    export.since = command.frontier
                    self._effects.append(Compact(export.flow, export.id, export.since))
            case Peek():
                self._peek(command)
            case CancelPeek():
                self._cancel(command.uuid, Canceled())
            case AllowWrites():
                self._allow(command)

    def _create(self, stream: int, description: DataflowDescription) -> None:
        if len(self._flows) >= DATAFLOWS_MAX:
            self._refuse(stream, "RESOURCE_EXHAUSTED", f"more than {DATAFLOWS_MAX} dataflows")
            return
        for index in description.indexes:
            imported = self._exports.get(index.id)
            if imported is None or imported.sink is not None:
                self._exit(EXIT_BROKEN, f"{description.exports} imports {index.id}, which is no index here")
                return
            if imported.since > description.as_of:
                text = f"{description.exports} starts at {description.as_of}, but {index.id} is readable from"
                self._exit(EXIT_BROKEN, f"{text} {imported.since} on")
                return
        self._last_flow += 1
        flow = Dataflow.of(self._last_flow, description)
        self._flows[flow.number] = flow
        self._exports |= flow.exports
        for index in description.indexes:
            self._flows[self._exports[index.id].flow].importers.add(flow.number)
        self._effects.append(Build(flow.number, description))
        for export in flow.exports.values():
            self._allow_sink(export)
            self._tell_moved(export)

    def _schedule(self, id_: str) -> None:
        export = self._exports.get(id_)
        if export is None:
            return
        flow = self._flows[export.flow]
        if id_ in flow.unscheduled:
            flow.unscheduled.discard(id_)
            if not flow.unscheduled:
                self._effects.append(Start(flow.number))

    def _drop(self, id_: str) -> None:
        export = self._exports.pop(id_, None)
        if export is None:
            return
        self._tell(export.drop())
        gone = Failure("Dropped", f"{id_} was dropped")
        for uuid in [uuid for uuid, open_ in self._peeks.items() if open_.export is export]:
            self._cancel(uuid, gone)
        self._allowed.pop((export.flow, id_), None)
        flow = self._flows[export.flow]
        if flow.dropped:
            self._changed |= flow.failure is not None
            self._let_go(flow)

    def _let_go(self, flow: Dataflow) -> None:
        if flow.importers:
            return  # who reads it goes on; it follows the last of them
        del self._flows[flow.number]
        self._effects.append(Drop(flow.number))
        for other in list(self._flows.values()):
            if flow.number in other.importers:
                other.importers.discard(flow.number)
                if other.dropped:
                    self._let_go(other)

    def _allow(self, command: AllowWrites) -> None:
        self.stage, self._changed = max(self.stage, Stage.READ_WRITE), True
        if command.id is None:
            self.token = command.token if self.token is None else max(self.token, command.token)
        else:
            export = self._exports.get(command.id)
            if export is None:
                return
            key = (export.flow, export.id)
            self._allowed[key] = max(self._allowed.get(key, command.token), command.token)
        for export in self._exports.values():
            if command.id in (None, export.id):
                self._allow_sink(export)
                self._tell_moved(export)

    def _allow_sink(self, export: Export) -> None:
        token = self._token(export)
        if token is not None and isinstance(export.sink, MaterializedView) and not export.ended:
            self._effects.append(AllowSink(export.flow, export.id, token))

    def _token(self, export: Export) -> Token | None:
        tokens = (self.token, self._allowed.get((export.flow, export.id)))
        return max((token for token in tokens if token is not None), default=None)

    # ---- peeks

    def _peek(self, peek: Peek) -> None:
        failure: Failure | None = None
        export = self._target(peek)
        if export is None:
            failure = Failure("Unknown", f"there is no {_target_name(peek)} to read")
        elif peek.timestamp < export.since:
            text = f"{export.id} is readable from {export.since} on, not at {peek.timestamp}"
            failure = Failure("SinceAdvanced", text)
        elif len(self._peeks) >= PEEKS_MAX:
            failure = Failure("TooManyPeeks", f"more than {PEEKS_MAX} peeks are open")
        if failure is not None or export is None:
            self._history.push(CancelPeek(peek.uuid))
            self._answer(peek.uuid, failure or ())
            return
        self._peeks[peek.uuid] = _OpenPeek(peek, export)
        self._release(export)

    def _target(self, peek: Peek) -> Export | None:
        if peek.index is not None:
            export = self._exports.get(peek.index)
            return export if export is not None and export.sink is None else None
        chains = (each for each in self._exports.values() if each.chain is not None and each.chain == peek.chain)
        return next(chains, None)

    def _release(self, export: Export) -> None:
        """Begin to read what waited for this export, or answer it when the dataflow has failed."""
        failure = self._flows[export.flow].failure
        for uuid, open_ in list(self._peeks.items()):
            if open_.export is not export or open_.reading:
                continue
            if failure is not None:
                self._cancel(uuid, failure)
            elif export.write > open_.peek.timestamp:
                open_.reading = True
                self._effects.append(Read(export.flow, export.id, open_.peek))

    def _cancel(self, uuid: bytes, result: Canceled | Failure) -> None:
        open_ = self._peeks.pop(uuid, None)
        if open_ is None:
            return
        self._history.push(CancelPeek(uuid))
        if open_.reading:
            self._effects.append(StopReading(uuid))
        self._tell(PeekResponse(uuid, result))

    def _answer(self, uuid: bytes, result: Sequence[Rows] | Failure) -> None:
        if isinstance(result, Failure):
            self._tell(PeekResponse(uuid, result))
            return
        size = sum(len(part.arrow_ipc) for part in result)
        most = result_bytes_max(self.configuration)
        if size > most:
            self._tell(PeekResponse(uuid, Failure("TooLarge", f"{size} bytes are more than {RESULT_SETTING} ({most})")))
        elif (stream := self._reporter()) is not None:
            self._streams[stream].outbox.put_answer(uuid, result)
            self._sent(stream)

    # ---- what leaves

    def _export(self, flow: int, id_: str) -> Export | None:
        dataflow = self._flows.get(flow)
        export = None if dataflow is None else dataflow.exports.get(id_)
        return None if export is None or export.dropped else export

    def _reporter(self) -> int | None:
        """The stream that answers go to: the current one, once it has told its expected state."""
        state = None if self._current is None else self._streams.get(self._current)
        return self._current if state is not None and state.phase is Phase.COMPLETE else None

    def _tell_moved(self, export: Export) -> None:
        if self._reporter() is not None:
            self._tell(export.moved(writes=self._token(export) is not None))

    def _tell(self, response: Response | None) -> None:
        stream = self._reporter()
        if stream is not None and response is not None:
            self._streams[stream].outbox.put(response)
            self._sent(stream)

    def _sent(self, stream: int) -> None:
        if self._streams[stream].outbox.full:
            self._refuse(stream, "RESOURCE_EXHAUSTED", "the controller does not read its responses")
        else:
            self._effects.append(Wake(stream))

    def _refuse(self, stream: int, code: str, text: str) -> None:
        self._effects.append(self._end(stream, code, text))

    def _exit(self, code: int, reason: str) -> None:
        if self.exiting is None:
            self.exiting = ExitProcess(code, reason)
            self._effects.append(self.exiting)

    def _done(self) -> tuple[Effect, ...]:
        if self._changed and self._reporter() is not None and self.exiting is None:
            self._changed = False
            self._tell(self.report())
        effects, self._effects = tuple(self._effects), []
        return effects


def result_bytes_max(configuration: Mapping[str, str]) -> int:
    """How large an answer may be by these settings; one that is no number does not count."""
    text = configuration.get(RESULT_SETTING, "")
    return int(text) if text.isdecimal() else RESULT_BYTES_MAX


def _target_name(peek: Peek) -> str:
    return f"chain {peek.chain}" if peek.index is None else f"index {peek.index}"
