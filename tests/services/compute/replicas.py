"""A replica core under test, its effects and responses noted."""

from pavane.compute.core.ports import (
    Build,
    Effect,
    EndStream,
    ExitProcess,
)
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.wire.commands import (
    Command,
    CopyTo,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    IndexExport,
    IndexImport,
    InitializationComplete,
    MaterializedView,
    SinkExport,
    Subscribe,
)
from pavane.compute.wire.common import Epoch, Rows, Token
from pavane.compute.wire.responses import Frontiers, Response, StageReport

GENERATION = 3
TOKEN = Token(GENERATION, 1)
UUID = bytes(range(16))
OTHER = bytes(16)
ROWS = Rows(b"rows", 1, 4)


def index(*ids: str, as_of: int = 5, imports: tuple[str, ...] = ()) -> CreateDataflow:
    exports = tuple(IndexExport(id_, "t1") for id_ in ids)
    indexes = tuple(IndexImport(id_) for id_ in imports)
    return CreateDataflow(DataflowDescription(as_of, indexes=indexes, index_exports=exports))


def sink(id_: str, connection: MaterializedView | Subscribe | CopyTo, as_of: int = 5) -> CreateDataflow:
    return CreateDataflow(DataflowDescription(as_of, sink_exports=(SinkExport(id_, "t1", connection),)))


VIEW = sink("u2", MaterializedView("chain-2"))
SUBSCRIBE = sink("t3", Subscribe())


class Replica:
    """A core whose effects are noted and whose responses are read at once."""

    def __init__(self, *expected: Command, settings: frozenset[str] = frozenset()) -> None:
        self.core = ReplicaCore(GENERATION, settings=settings, live_options=frozenset({"memory"}))
        self.effects: list[Effect] = []
        self.boot = 0
        self.stream = 0
        self.begin(*expected)

    def begin(self, *expected: Command, complete: bool = True) -> None:
        self.boot += 1
        self.stream = self.core.open()
        self.send(CreateTimely(Epoch(1, self.boot), bytes(16)), CreateInstance("compute", GENERATION), *expected)
        if complete:
            self.send(InitializationComplete())

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.effects.extend(self.core.receive(self.stream, command))

    def take(self, *kinds: type[Effect]) -> list[Effect]:
        taken = [effect for effect in self.effects if isinstance(effect, kinds)]
        self.effects.clear()
        return taken

    def said(self) -> list[Response]:
        box = self.core.outbox(self.stream)
        said = []
        while (response := box.take()) is not None:
            said.append(response)
        return [response for response in said if not isinstance(response, StageReport)]

    def flow(self) -> int:
        return max(effect.flow for effect in self.effects if isinstance(effect, Build))

    @property
    def ended(self) -> list[str]:
        return [effect.code for effect in self.effects if isinstance(effect, EndStream)]

    @property
    def exits(self) -> list[int]:
        return [effect.code for effect in self.effects if isinstance(effect, ExitProcess)]


def frontiers(id_: str, frontier: int) -> Frontiers:
    return Frontiers(id_, frontier, frontier, frontier)
