"""A client with the product's core, and what ``pavane.waltz.client`` does around it: it finds silence out by itself."""

from typing import TYPE_CHECKING, Any

from pavane.waltz.client.directory import ANSWER_SECONDS, RETRY_SECONDS
from pavane.waltz.core.client import Appender, Done, Output, Pending, Refresh, Send
from pavane.waltz.errors import Conflict, OutcomeUnknown
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.scheduler import Alarm
from tests.sim.kit.seeds import holds
from tests.sim.waltz.world import LOCK, PARTITION, THINK_S

if TYPE_CHECKING:
    from tests.sim.waltz.world import SimServer, World

PATIENCE_S = 30.0  # of an append


class Appending:
    """Appends the number of the next transaction under one lock, again and again, as ``Client`` does."""

    def __init__(self, world: "World", number: int) -> None:
        self.hears_at = 0.0
        self.done = False
        self._world, self._number = world, number
        self._core = Appender(PARTITION, number)
        self._alarm = Alarm(world.scheduler, self._fired)
        self._server: SimServer | None = None
        self._connection = -1
        self._generation = -1
        self._says_at = 0.0
        self._net_seq = self._questions = 0
        self._question: ReqId | None = None
        """What a server answers from memory: the view, or the HWM."""
        self._connecting = False
        self._seen = -1
        self._behind = False
        """Whether an append was refused, so that it has to ask how far the log is."""
        self._think()

    def hear(self, connection: int, message: Any) -> None:
        """Take what a server says."""
        if connection != self._connection or self._server is None:
            return
        if isinstance(message, m.FeedBatch):
            for txid, item in enumerate(message.items, message.first_txid):
                if item.data is not None:
                    self._world.saw(txid, item.reqid, item.data)
        if message.reqid == self._question:
            self._question = None
            self._answered(message)
            self._look()
        else:
            self._core.received(message, self._world.now)
        self._run()

    def lost(self) -> None:
        """The connection is of no use any more: what was sent is in doubt until there is another one."""
        if self._server is not None:
            self._world.sessions[self._connection].close()
            self._server, self._question = None, None
            self._core.detached()
            self._connect()

    def _run(self) -> None:
        for output in self._core.outputs():
            self._execute(output)
        self._alarm.arm(self._core.next_timer())

    def _execute(self, output: Output) -> None:
        match output:
            case Send():
                self._say(output.message)
            case Done():
                self._ended(output)
            case Refresh() if self._server is None:
                self._connect()
            case Refresh():
                self._ask(m.ViewRequest)
            case _:
                self.lost()

    def _ended(self, done: Done) -> None:
        data, result, reqid = done.token, done.result, done.reqid
        if isinstance(result, int):
            assert reqid is not None
            holds(int(data) == result, "lock", f"{data!r} became transaction {result}")
            self._world.acknowledged(result, reqid, data)
            self._seen = result
            self._think()
            return
        if isinstance(result, Conflict) and reqid is not None:
            self._world.refused.add(reqid)
        holds(not isinstance(result, OutcomeUnknown), "resolved", f"nobody tells whether {data!r} was written")
        self._behind = True
        self._look()

    def _think(self) -> None:
        self._world.scheduler.later(self._world.rng.uniform(*THINK_S), self._append)

    def _append(self) -> None:
        if not self.done:
            now, data = self._world.now, b"%d" % (self._seen + 1)
            self._core.append(Pending(data, 0, data, LOCK, (), self._seen, now + PATIENCE_S), now)
            if self._server is None:
                self._connect()
            self._run()

    def _fired(self) -> None:
        self._core.handle_timer(self._world.now)
        self._run()

    def _say(self, message: Any) -> None:
        if self._server is not None:
            self._says_at = self._world.say(self._server, self._connection, message, self._says_at)

    # -- what is around the core ----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask how far the log is, as soon as nothing else is asked."""
        if self._behind:
            self._ask(m.HighWaterMarkRequest)

    def _ask(self, kind: type[m.HighWaterMarkRequest | m.ViewRequest]) -> None:
        """Ask over the connection; it is of no use if this is not answered in time."""
        if self._question is not None or self._server is None:
            return
        self._questions += 1
        asked = self._question = ReqId(self._number, self._generation, PARTITION, -self._questions)
        self._say(m.ViewRequest(asked, 0) if kind is m.ViewRequest else m.HighWaterMarkRequest(asked))
        self._world.scheduler.later(ANSWER_SECONDS, lambda: self.lost() if self._question == asked else None)

    def _answered(self, message: Any) -> None:
        match message:
            case m.HighWaterMarkResponse():
                self._behind, self._seen = False, message.txid
                self._think()
            case m.View() if self._world.owner() is not self._server:
                self.lost()
            case m.View() if self._world.generation() != self._generation:
                self._attach()
            case m.Reject():
                self.lost()

    def _connect(self) -> None:
        if not self._connecting:
            self._connecting = True
            self._world.scheduler.later(self._world.rng.uniform(0.02, RETRY_SECONDS), self._dial)

    def _dial(self) -> None:
        self._connecting = False
        owner = self._world.owner()
        if owner is None or owner.core is None:
            self._connect()
            return
        self._server = owner
        self._net_seq += 1
        self._connection = self._world.connect(owner, self)
        self._attach()
        self._look()
        self._run()

    def _attach(self) -> None:
        self._generation = self._world.generation()
        self._core.attached(self._generation, self._net_seq, self._world.now)
