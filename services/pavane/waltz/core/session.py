"""A store session: the claim, recovery of the replicas, and appends by quorum (docs/specs/waltz.md 13.1-13.4).

One object is one attempt. It ends with ``Closed``, and its owner begins the next one. The recovery of one replica is a
generator that asks storage nodes one question after the other and waits while it needs the answers of others.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pavane.waltz.core.copying import Taken
from pavane.waltz.core.joining import SWITCH_S, Joining
from pavane.waltz.core.outputs import Began, Closed, Committed, Opened, Output, Reach, ReadMeta, WriteMeta
from pavane.waltz.core.replica import Batch, Replica, Work, holders
from pavane.waltz.core.retention import Change, Keeping
from pavane.waltz.core.rounds import earliest
from pavane.waltz.state import recovery
from pavane.waltz.state.recovery import Info, Member, Verdict
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.blobs import EMPTY_METADATA, PartitionMetadata, ReplicaState
from pavane.waltz.wire.fields import Shared

BATCH_RECORDS_MAX = 1000  # of one message
BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCHES_IN_FLIGHT_MAX = 4  # the disks of the nodes work while the next ones are under way
SLOW_BATCHES = 64  # a voter that owes more than this many copies from the others instead of holding their memory
CHECKPOINT_RECORDS = 250_000  # bounds what a recovery has to compare
REJOIN_S = 1.0  # after which an open session asks a node again that cannot take part


class StoreSession(Joining):
    """An attempt of the owner of ``partition`` with ``generation`` to write on ``nodes``.

    ``up`` are nodes that can be reached now; ``shunned`` ones ended too many attempts and may only join late. After
    ``Opened`` the caller gives records with ``append`` and hears of ``Committed``. ``floor`` is the HWM that this
    process has published: less is never resolved. ``keeping`` says with what the log begins.
    """

    def __init__(
        self,
        partition: int,
        generation: int,
        nodes: Sequence[str],
        up: Iterable[str],
        *,
        attempt: int = 0,
        floor: int = -1,
        shunned: Iterable[str] = (),
        keeping: Keeping | None = None,
        joined: Iterable[str] = (),
        switching: bool = False,
        switch_from: float = 0.0,
    ) -> None:
        super().__init__(partition, nodes, up, keeping or Keeping(), joined, switch_from, switching=switching)
        self.generation = generation
        self.attempt = attempt
        self.lwm = -1
        self._began = 0
        self.blocker = ""
        self._floor = floor
        self._shunned = set(shunned)
        self._meta: PartitionMetadata | None = None
        self._version = -1
        self._phase = "reading"
        self._resolved: int | None = None
        self._batches: deque[Batch] = deque()
        self._next = 0
        self._writing: list[Replica] | None = None
        """Who is declared clean by the metadata write under way."""
        self._written: set[str] = set()
        """Who was declared, also if it has failed since."""
        self._rejoin_due: float | None = None

    # -- inputs ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Output]:
        """Begin with what the metadata say."""
        self._now = now
        return [ReadMeta(self.partition, self.attempt)]

    def metadata(self, now: float, meta: PartitionMetadata | None, version: int) -> list[Output]:
        """Take the answer to ``ReadMeta``; ``None``: there is no such node yet."""
        self._now = now
        if self.ended or self._phase not in ("reading", "refreshing"):
            return []
        self._meta, self._version = meta, version
        found = meta or EMPTY_METADATA
        if self._phase == "refreshing":
            if found.session != self.id:
                self._end("another session began", fenced=found.generation > self.generation)
            else:
                self._writing = None
                self._phase = "working"
                self.keeping.again(found)
                self._begin_with_start()
                self._declare()
            return self._flush()
        if found.generation > self.generation:
            self._end(f"generation {found.generation} has begun", fenced=True)
        elif found.session < 0 and not found.replicas:
            self._phase = "probing"
            for replica in self._replicas.values():
                self._begin(replica, self._probe(replica))
            self._run()
        else:
            self._claim()
        return self._flush()

    def written(self, now: float, *, done: bool, version: int) -> list[Output]:
        """Take the answer to ``WriteMeta``; not ``done``: somebody else wrote first."""
        self._now = now
        if self.ended:
            return []
        if self._phase == "claiming":
            if not done:
                self._phase = "reading"
                return [ReadMeta(self.partition, self.attempt)]
            self._version = version
            self._phase = "working"
            if self.switching:
                self._switch_at = self._now + SWITCH_S
            for replica in self._replicas.values():
                if replica.node not in self._shunned:
                    self._contact(replica)
            if not any(replica.work for replica in self._replicas.values()):
                self.blocker = "no storage node can be reached"
            self._run()
        elif self._writing is not None:
            if not done:
                self._phase = "refreshing"
                return [ReadMeta(self.partition, self.attempt)]
            self._version = version
            for replica in self._writing:
                replica.declared = True
                replica.voting = replica.receiving
                self._written.add(replica.node)
            self._writing = None
            if not self.open:
                self._opened()
            self.keeping.written()
            self._begin_with_start()
            self._declare()
            self._consider(self._now)
            self._poke()
            self._run()
        return self._flush()

    def node_up(self, now: float, node: str) -> list[Output]:
        """A storage node can be reached."""
        self._now = now
        self._up.add(node)
        replica = self._replicas.get(node)
        if replica is not None and not self.ended:
            if self._phase == "probing":
                self._begin(replica, self._probe(replica))
            elif self._phase in ("working", "refreshing"):
                self._contact(replica)
            self._run()
        return self._flush()

    def node_down(self, now: float, node: str) -> list[Output]:
        """A storage node cannot be reached any more."""
        self._now = now
        self._up.discard(node)
        replica = self._replicas.get(node)
        if replica is not None and not self.ended:
            for seq in [seq for seq, asked in self._asked.items() if asked.node == node]:
                if (asked := self._asked.pop(seq, None)) is not None:
                    asked.answer(None)
            if self._phase != "probing":
                self._fail(replica, "the connection ended")
            self._run()
        return self._flush()

    def response(self, now: float, node: str, message: Any) -> list[Output]:
        """Take an answer of a storage node; those to another session are dropped."""
        self._now = now
        head = message.head
        asked = self._asked.get(head.seq)
        if self.ended or head.session != self.id or asked is None or asked.node != node:
            return []
        del self._asked[head.seq]
        asked.answer(message)
        self._run()
        return self._flush()

    def tick(self, now: float) -> list[Output]:
        """Give up on nodes that do not answer; ask those again that could not take part."""
        self._now = now
        if self._rejoin_due is not None and self._rejoin_due <= now:
            self._rejoin_due = None
            for replica in self._replicas.values():
                self._contact(replica)
        if self._too_late(now):
            self._declare()
        self._end_pause()
        overdue = [(seq, asked) for seq, asked in self._asked.items() if asked.due <= now]
        for seq, asked in overdue:
            if self._asked.pop(seq, None) is not None:
                asked.answer(None)
                self._fail(self._replicas[asked.node], "no answer in time")
        self._run()
        return self._flush()

    def close(self, reason: str) -> list[Output]:
        """End the session; what was appended and not committed is undecided."""
        self._end(reason)
        return self._flush()

    def next_due(self) -> float | None:
        """Return when ``tick`` has something to do."""
        due = next((asked.due for asked in self._asked.values()), None)  # all have the same time: the oldest is first
        if self.ended or (self._rejoin_due is self._pause_due is None and not self.changing):
            return due
        switch = self._switch_at if self.changing and self._phase != "reading" else None
        return earliest(due, self._rejoin_due, self._pause_due, switch)

    @property
    def room(self) -> bool:
        """Whether another batch may be appended."""
        voters = sum(replica.voting for replica in self._replicas.values())
        return (
            self.open
            and not self.ended
            and not self._draining
            and voters >= self._quorum
            and len(self._batches) < BATCHES_IN_FLIGHT_MAX
            and self.hwm - self.lwm < CHECKPOINT_RECORDS
        )

    def change(self, now: float, change: Change) -> list[Output]:
        """Trim by hand, or change a consumer; where the log begins then, ``Began`` tells.

        It is durable in the metadata before any node drops anything.
        """
        self._now = now
        self.keeping.ask(change)
        self._declare()
        return self._flush()

    def want(self, now: float, nodes: Sequence[str]) -> list[Output]:
        """Let others count as soon as they can."""
        self._now = now
        self._want(nodes)
        self._consider(now)
        self._run()
        return self._flush()

    def look(self, now: float) -> list[Output]:
        """Ask the nodes how much they have, and trim what a majority of them could do without."""
        self._now = now
        if self.open and not self.keeping.told.waiting:
            self._retain(self._replicas)
        return self._flush()

    def append(self, now: float, records: Sequence[s.Record]) -> list[Output]:
        """Send records, whose transactions continue the log, to every voter."""
        self._now = now
        batch = Batch(self._next, Shared(records), set())
        self._next = batch.last + 1
        self._batches.append(batch)
        for replica in self._replicas.values():
            if replica.receiving:
                self._send_batch(replica, batch)
                if replica.voting:
                    batch.voters.add(replica.node)
        self._judge()
        return self._flush()

    def read(self, now: float, txid: int, limit: int, answer: Taken) -> list[Output]:
        """Read committed records from ``txid`` on; ``answer`` gets ``None`` if no replica could serve them.

        Until it is open only what this process has published is known to be committed. The replicas of the last session
        have that and nothing else up to there: also those of which a part is damaged, and these up to what is resolved.
        """
        self._now = now
        replicas = self._replicas.values()
        able = [one for one in replicas if self.open or (one.plan is not None and one.plan.voting)]
        partial = [one.node for one in replicas if one.partial and one.node in self._up]
        last = max(self.hwm, self._floor)
        if partial and self.open:
            last, partial = (self.lwm, partial) if txid <= self.lwm else (last, [])
        self._read_from([*holders(able, self._up, txid), *partial], txid, min(limit, last - txid + 1), answer)
        return self._flush()

    # -- questions to storage nodes -------------------------------------------------------------------------------

    def _begin(self, replica: Replica, work: Work) -> None:
        if replica.node in self._up and replica.work is None and not replica.failed:
            replica.work = work
            self._ready.append((replica, None))

    def _contact(self, replica: Replica) -> None:
        self._begin(replica, self._recover(replica))

    def _run(self) -> None:
        self._go_on()
        if self._shunned and self._phase == "working" and not (self.open or self._asked or self._writing or self.ended):
            # The others cannot do without those that ended so many attempts.
            shunned, self._shunned = self._shunned, set()
            for node in shunned & set(self._replicas):
                self._contact(self._replicas[node])
            self._go_on()

    def _go_on(self) -> None:
        while self._ready and not self.ended:
            replica, value = self._ready.popleft()
            if replica.work is None or replica.failed:
                continue
            try:
                step = replica.work.send(value)
            except StopIteration:
                continue
            if step is None:
                replica.waiting = True
                continue
            node, kind, *arguments = step
            self._ask(node, self._resuming(replica), kind, *arguments)

    def _resuming(self, replica: Replica) -> Callable[[Any], None]:
        return lambda answer: self._ready.append((replica, answer))

    # -- one replica ----------------------------------------------------------------------------------------------

    def _probe(self, replica: Replica) -> Work:
        """Look whether a node is as new as the metadata: else nothing tells what its records are worth (13.3)."""
        answer = yield (replica.node, s.LastSessionInfoRequest, False)
        last = yield (replica.node, s.MaxTransactionIdRequest, False)
        if answer is None or last is None:
            replica.work = None
            return
        for refusal in (answer, last):
            if isinstance(refusal, s.Failure):  # a node that has not made the partition yet
                self._end(f"{replica.node}: {refusal.message}")
                return
        fresh = isinstance(answer, s.LastSessionInfoResponse) and answer.session < 0
        if not fresh or not isinstance(last, s.MaxTransactionIdResponse) or last.txid >= 0:
            self.blocker = (
                f"the metadata store knows nothing of partition {self.partition}, but {replica.node} has records or "
                "sessions of it: restore the metadata, or empty the storage nodes"
            )
            self._end(self.blocker)  # or another owner has just begun: then the next attempt finds its metadata
            return
        replica.recovered = True
        if all(other.recovered for other in self._replicas.values()):
            for other in self._replicas.values():
                other.recovered, other.work, other.waiting = False, None, False
            self._claim()
            return  # not waiting: its next work must not be woken in place of this one
        yield None

    def _recover(self, replica: Replica) -> Work:
        info = yield from self._info(replica)
        last = yield from self._own(replica, s.MaxTransactionIdRequest, False)
        held = Info(info.session, info.lwm, info.local_lwm, last.txid)
        plan = recovery.classify(self._members, replica.node, held)
        replica.hwm = last.txid
        joins = replica.node not in self._counted
        replica.rebuilding |= joins and replica.node not in self.joined
        if plan.truncate_to is not None:
            cut = yield from self._own(replica, s.Truncate, plan.truncate_to, False)
            replica.hwm = cut.txid
            if plan.stamp:
                yield from self._own(replica, s.SetLowWaterMark, max(plan.truncate_to, replica.hwm), False)
                replica.stamped = True
        if self.keeping.first:  # what is below is committed, whoever has it: nobody reports less
            yield from self._drop(replica)
        replica.plan = plan
        self._resolve()
        while self._resolved is None:
            usher = recovery.usher({node: told for node, told in self._reports().items() if node in self._members})
            if usher is None or usher == replica.node or self._replicas[usher].hwm <= replica.hwm:
                yield None
            elif (yield from self._copy(replica, usher, self._replicas[usher].hwm)):
                self._resolve()
        # What it has noted in this session, before it failed and came back, is committed, and it notes nothing less.
        known = max(self._resolved, info.lwm) if info.session == self.id else self._resolved
        if replica.hwm > known:
            replica.hwm = (yield from self._own(replica, s.Truncate, known, False)).txid
        # One that joins late begins where the log does, which this session may have trimmed beyond what it resolved.
        yield from self._own(replica, s.SetLowWaterMark, max(known, replica.hwm), False)
        replica.stamped = True
        yield from self._catch_up(replica, self._resolved)
        if replica.rebuilding:
            while not self.open:
                yield None
            yield from self._verify(replica)
        replica.recovered = True
        self._declare()
        yield from self._join(replica)
        yield from self._follow(replica)

    def _follow(self, replica: Replica) -> Work:
        """Copy what the session commits until the replica can take part in it."""
        while not self.open or replica.hwm < self.hwm or replica.owed:
            if self.open and not replica.owed:
                yield from self._catch_up(replica, self.hwm)
            else:
                yield None
        replica.receiving = True
        for batch in self._batches:
            if batch.last > replica.hwm:  # it may hold what it was sent before it fell behind
                self._send_batch(replica, batch)
        replica.voting = replica.declared
        self._declare()
        self._judge()
        self._consider(self._now)
        yield None

    # -- decisions ------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        found = self._meta or EMPTY_METADATA
        self.id = found.session + 1
        self._members = {state.address: Member(state.session, state.closing_hwm) for state in found.replicas}
        self._count(self._members or self._wanted)
        for node in sorted(self._counted - self._replicas.keys()):
            self._replicas[node] = Replica(node)
            self._outputs.append(Reach(node))
        self.keeping.begin(found)
        self._began = self.keeping.first
        self._meta = found._replace(generation=self.generation, session=self.id)
        self._phase = "claiming"
        self._outputs.append(WriteMeta(self.partition, self.attempt, self._version, self._meta))

    def _resolve(self) -> None:
        if self._resolved is not None:
            return
        verdict = recovery.resolve(self._members, self._reports())
        if isinstance(verdict, Verdict):
            missing = sorted(set(self._members) - set(self._reports()))
            named = [f"{node} ({self.damaged[node]})" if node in self.damaged else node for node in missing]
            self.blocker = f"{verdict.value}; missing: {', '.join(named) or 'none'}"
        elif verdict < self._floor:
            self.blocker = f"the replicas agree on {verdict}, but {self._floor} was committed here: a disk was set back"
        else:
            self._resolved = verdict
            self.blocker = "too few storage nodes have recovered"
        self._poke()

    def _declare(self) -> None:
        """Write who takes part, when a quorum has recovered and whenever another one has."""
        if self._writing is not None or self._phase != "working" or self._resolved is None or self.ended:
            return
        replicas = self._replicas.values()
        recovered = {replica.node for replica in replicas if replica.recovered and not replica.failed}
        if not (self.open or self._enough(recovered)):
            return
        recovered &= self._counted
        if len(recovered) < self._quorum:
            return
        if not self.keeping.prepare(self._now, self.hwm) and all(self._replicas[node].declared for node in recovered):
            return
        clean = recovered | {
            replica.node
            for replica in replicas
            if replica.stamped
            and replica.node in self._counted
            and not (replica.failed or replica.rebuilding)
            and replica.plan is not None
            and not replica.plan.voting
        }
        self._writing = [self._replicas[node] for node in sorted(clean)]
        counted = [node for node in self._replicas if node in self._counted]
        after = recovery.next_members(self._members, counted, clean | self._written, self.id, self._resolved)
        states = tuple(
            ReplicaState(self.partition, node, member.session, member.closing_hwm) for node, member in after.items()
        )
        meta = self.keeping.next(self.generation, self.id, states)
        self._outputs.append(WriteMeta(self.partition, self.attempt, self._version, meta))

    def _opened(self) -> None:
        assert self._resolved is not None  # noqa: S101 -- _declare writes only then
        self.open, self.switching = True, False
        self.blocker = ""
        self.hwm = self.lwm = self._resolved
        self._next = self.hwm + 1
        if self._shunned:
            self._rejoin_due = self._now + REJOIN_S
        self._outputs.append(Opened(self.id, self.hwm))

    def _begin_with_start(self) -> None:
        """The metadata say durably with which transaction the log begins: what is below may go."""
        if self.keeping.first > self._began:
            self._began = self.keeping.first
            self._outputs.append(Began(self._began))
            self._retain(self._replicas)

    def _retain(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            # One that is behind the start drops what it has before it copies anything more.
            if self._replicas[node].receiving and not self._replicas[node].failed:
                self.keeping.told.waiting.add(node)
                self._ask(node, partial(self._retained, node), s.Retain, *self.keeping.retained)

    def _retained(self, node: str, answer: Any) -> None:
        if self.keeping.told.take(node, answer):  # so many segments at a time: there may be more
            self._retain([node])
        if not self.keeping.told.waiting and not self.ended:
            self.keeping.look(len(self._counted), self.hwm)
            self._declare()

    def _send_batch(self, replica: Replica, batch: Batch) -> None:
        replica.owed += 1
        self._ask(replica.node, lambda answer: self._voted(replica, batch, answer), s.Append, batch.records, False)

    def _voted(self, replica: Replica, batch: Batch, answer: Any) -> None:
        replica.owed -= 1
        if not isinstance(answer, s.Success):
            self._fail(replica, "no answer" if answer is None else str(answer.message))
            return
        replica.hwm = max(replica.hwm, batch.last)
        batch.votes.add(replica.node)
        self._judge()
        if not replica.receiving and not replica.owed:
            self._poke()

    def _judge(self) -> None:
        """Commit what a quorum of voters has, in order; end when that cannot happen any more."""
        committed = self.hwm
        while self._batches:
            batch = self._batches[0]
            if len(batch.votes & batch.voters) < self._quorum:
                break
            self._batches.popleft()
            self.hwm = batch.last
        if self.hwm > committed:
            self._outputs.append(Committed(self.hwm))
            self._slow_down()
            self._poke()
        if self._batches:
            batch = self._batches[0]
            possible = {node for node in batch.voters if not self._replicas[node].failed or node in batch.votes}
            if len(possible) < self._quorum:
                self._end(self._draining or "too few voters are left")
        elif self._draining:
            self._end(self._draining)
        elif self.hwm - self.lwm >= CHECKPOINT_RECORDS:
            self._end("checkpoint")

    def _slow_down(self) -> None:
        """A voter that is far behind goes on by copying; the session does not wait for it."""
        for replica in self._replicas.values():
            if replica.receiving and replica.owed > SLOW_BATCHES:
                replica.receiving = replica.voting = False
                self._ready = deque(one for one in self._ready if one[0] is not replica)  # meant for its last work
                replica.work = self._follow(replica)
                replica.waiting = True
                next(replica.work)

    def _fail(self, replica: Replica, reason: str) -> None:
        if replica.failed or self.ended:
            return
        contacted = replica.work is not None
        was_voting = replica.voting
        replica.failed = contacted
        replica.voting = replica.receiving = replica.waiting = False
        joins = replica.node not in self._counted
        self.joined.discard(replica.node)
        if contacted and not self.open and not joins:
            self._end(f"{replica.node}: {reason}")
        elif was_voting:
            # What is under way may still be decided by the others; a new session then does without this one.
            self._draining = f"{replica.node}: {reason}"
            self._judge()
        elif contacted:
            self._rejoining(replica)

    def _rejoining(self, replica: Replica) -> None:
        """Let a node that did not vote begin anew: with its recovery, and with another metadata write before it votes.

        While it was a voter it may have voted on what is still undecided. It may come back without it: that vote is
        void. What was decided since it fell behind is on a quorum without it.
        """
        self._replicas[replica.node] = Replica(replica.node)
        if self._rejoin_due is None:
            self._rejoin_due = self._now + REJOIN_S
        for batch in self._batches:
            batch.voters.discard(replica.node)
        self._judge()

    def _end(self, reason: str, *, fenced: bool = False) -> None:
        if not self.ended:
            self.ended = True
            asked, self._asked = self._asked, {}
            for one in asked.values():  # whoever reads is told, and asks the next session
                one.answer(None)
            self.keeping.end(reason)
            self._outputs.append(Closed(reason, fenced))
