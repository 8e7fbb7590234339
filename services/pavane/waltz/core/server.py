"""A server: connections of clients, the partitions that it owns, its part in the cluster (docs/specs/waltz.md 3.6, 4).

Inputs are methods, ``outputs`` hands over what is to be done; ``handle_timer`` is called when ``next_timer`` is due.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pavane.waltz.core.cluster import STEP_S, ClusterView, rewritten
from pavane.waltz.core.connection import APPENDS, KINDS, PARKED_MAX, Connection, kind_of
from pavane.waltz.core.outputs import Hangup, NextClientId, Output, Prefer, Reply, Resume, WriteAssignment
from pavane.waltz.core.partition import PARK_S, Partition
from pavane.waltz.core.quotas import CONNECT_AGAIN_S, Quota, Quotas
from pavane.waltz.core.reader import Reader
from pavane.waltz.core.retention import KEEP_ALL, Policy
from pavane.waltz.core.rights import Right, Rights
from pavane.waltz.core.rounds import Rounds, earliest
from pavane.waltz.core.storing import PartitionStage, Shared
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import AssignedPartition, PartitionMetadata
from pavane.waltz.wire.fields import ReqId
from pavane.wire import Stage

VIEWS_ASKED_MAX = 16  # client ids of one connection under way: each costs writes in the metadata store


class ServerCore:
    """Server ``server_id`` of a cluster named ``cluster`` with ``partitions`` at least; ``policy`` says what is kept.

    ``epoch`` is the time when ``now`` was 0, in seconds since 1970.
    """

    def __init__(
        self,
        server_id: int,
        cluster: str,
        partitions: int,
        *,
        policy: Policy = KEEP_ALL,
        epoch: float = 0.0,
        rights: Rights | None = None,
        quotas: Sequence[Quota] = (),
    ) -> None:
        self.server_id = server_id
        self.cluster = cluster
        self.view: ClusterView | None = None
        self.owned: dict[int, Partition] = {}
        self.leaving: list[Partition] = []
        self.readers: dict[int, Reader] | None = {}
        """Partitions that were asked for, until the server may write for the first time."""
        self._published: dict[int, int] = {}
        """HWM of each partition that this process has ever told anybody: no recovery of it may end below."""
        self.writable = False
        """Whether the server holds its lease and was told to write."""
        self.partitions = partitions
        self._rights = rights or Rights()
        self.forbidden = Counter[Right]()
        """Requests that were refused for the lack of a right."""
        self.quotas = Quotas(quotas)
        self._held: list[Connection] = []
        self._connections: dict[int, Connection] = {}
        self._up: set[str] = set()
        self._step_due: float | None = None
        self._rounds = Rounds()
        self._absent: deque[tuple[float, Connection, m.HighWaterMarkRequest | m.FlushRequest]] = deque()
        """Questions of older clients about partitions that are not here: they would wait for ever for an answer."""
        self._out: list[Output] = []
        self._shared = Shared(self._up, self._out, self._rounds, policy, epoch)

    # -- the adapter's side -------------------------------------------------------------------------------------

    def outputs(self) -> list[Output]:
        """Hand over what is to be done, in order."""
        self._rounds.go_on()
        out = self._out[:]
        self._out.clear()
        return out

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        self._rounds.now = now
        for one in self._served():
            due = one.next_due()
            if due is not None and due <= now:
                one.tick(now)
        self._tidy()
        if any(one.held_until <= now for one in self._held):
            self._held = [one for one in self._held if one.held_until > now]
            self._out.append(Resume())
        while self._absent and self._absent[0][0] <= now:
            self._absent.popleft()[1].parked -= 1
        if self._step_due is not None and self._step_due <= now:
            self._step_due = None
            self._coordinate(now)

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` is due."""
        return earliest(
            self._step_due,
            self._rounds.next_due(),
            self._absent[0][0] if self._absent else None,
            *[one.held_until for one in self._held],
            *[one.next_due() for one in self._served()],
        )

    # -- metadata -----------------------------------------------------------------------------------------------

    def set_writable(self, now: float, *, writable: bool) -> None:
        """The lease was got, or is lost: then nothing may be written any more, from this moment on."""
        self.writable = writable
        if not writable:
            for partition in [*self.owned.values(), *self.leaving]:
                partition.close(now, "the server lost its lease in the metadata store")
                self._remember(partition)
            self.owned.clear()
            self.leaving.clear()
        else:
            for reader in (self.readers or {}).values():
                reader.close()
            self.readers = None
            if self.view is not None:
                self.set_view(now, self.view)

    def set_view(self, now: float, view: ClusterView) -> None:
        """The metadata store says who is there and who owns what."""
        self.view = view
        self.partitions = max(self.partitions, view.partitions)
        if not self.writable:
            return
        if view.consistent:
            self._own(now, dict(view.owned().get(self.server_id, ())), view)
        for partition in self.owned.values():
            partition.set_nodes(now, view.storage.get(partition.number, ()))
        self._coordinate(now)

    def metadata(self, now: float, partition: int, attempt: int, meta: PartitionMetadata | None, version: int) -> None:
        """Take the answer to ``ReadMeta``."""
        for one in self._all(partition):
            one.tell(now, lambda session: session.metadata(now, meta, version), attempt)
        if self.readers is not None and (reader := self.readers.get(partition)) is not None:
            reader.metadata(now, attempt, meta)
        self._tidy()

    def written(self, now: float, partition: int, attempt: int, *, done: bool, version: int) -> None:
        """Take the answer to ``WriteMeta``."""
        for one in self._all(partition):
            one.tell(now, lambda session: session.written(now, done=done, version=version), attempt)
        self._tidy()

    def _own(self, now: float, assigned: dict[int, int], view: ClusterView) -> None:
        for number in [number for number in self.owned if number not in assigned]:
            partition = self.owned.pop(number)
            self.leaving.append(partition)
            partition.leave(now)
            self._remember(partition)
        for number, generation in sorted(assigned.items()):
            present = self.owned.get(number)
            if present is not None and present.stage is PartitionStage.CLOSED:  # another owner has been and gone
                present = None if generation > present.generation else present
            if present is None:
                nodes = view.storage.get(number, ())
                self._remember(self.owned.get(number))
                floor = self._published.get(number, -1)
                present = self.owned[number] = Partition(number, generation, nodes, self._shared, floor)
                present.start(now)
                self._hand_over(present)
            elif generation > present.generation:
                present.set_generation(now, generation)
        for partition in self.owned.values():
            partition.feeds.share(len(self.owned))
        self._tidy()

    def _coordinate(self, now: float) -> None:
        view = self.view
        if view is None or not self.writable or min(view.servers, default=None) != self.server_id:
            return
        stepping = self._step_due is None
        if (write := rewritten(view, stepping=stepping)) is not None:
            self._out.append(WriteAssignment(write.version, write.assignment))
            if stepping:
                self._step_due = now + STEP_S

    def _all(self, number: int) -> list[Partition]:
        present = self.owned.get(number)
        found = [one for one in self.leaving if one.number == number]
        return found if present is None else [present, *found]

    def _remember(self, partition: Partition | None) -> None:
        if partition is not None and partition.hwm is not None:
            self._published[partition.number] = max(partition.hwm, self._published.get(partition.number, -1))

    def _tidy(self) -> None:
        for partition in self.leaving:
            if partition.stage is PartitionStage.CLOSED:
                self._remember(partition)
        self.leaving = [partition for partition in self.leaving if partition.stage is not PartitionStage.CLOSED]

    def wants(self, node: str) -> bool:
        """Whether a storage node is to be reached: the assignment names it, or it counts in some partition still."""
        named = self.view is None or any(node in nodes for nodes in self.view.storage.values())
        return named or any(one.session is not None and one.session.uses(node) for one in self.owned.values())

    # -- storage nodes ------------------------------------------------------------------------------------------

    def storage_up(self, now: float, node: str) -> None:
        """A storage node can be reached."""
        self._up.add(node)
        for partition in [*self.owned.values(), *self.leaving]:
            partition.tell(now, lambda session: session.node_up(now, node))

    def storage_down(self, now: float, node: str) -> None:
        """A storage node cannot be reached any more."""
        self._up.discard(node)
        for partition in [*self.owned.values(), *self.leaving]:
            partition.tell(now, lambda session: session.node_down(now, node))
        self._tidy()

    def storage_response(self, now: float, node: str, message: Any) -> None:
        """Take an answer of a storage node."""
        self._rounds.now = now
        for partition in self._all(message.head.partition):
            partition.tell(now, lambda session: session.response(now, node, message))
        if self.leaving:
            self._tidy()

    # -- clients ------------------------------------------------------------------------------------------------

    def connected(self, connection: int, version: int, identity: str | None = None, excess: str = "") -> None:
        """A client has said Hello; ``identity`` is in its certificate, ``excess`` says why it is one too many."""
        self._connections[connection] = Connection(connection, version, identity, excess=excess)

    def disconnected(self, now: float, connection: int) -> None:
        """A client's connection is gone."""
        known = self._connections.pop(connection, None)
        if known is not None:
            known.gone = True
            self._held = [each for each in self._held if each is not known]
            for one in self._served():
                one.disconnected(known)
            self._absent = deque(parked for parked in self._absent if parked[1] is not known)

    def set_connection_writable(self, now: float, connection: int, *, writable: bool) -> None:
        """A client's connection takes more, or does not."""
        known = self._connections.get(connection)
        if known is not None and known.writable != writable:
            known.writable = writable
            if writable:
                for one in self._served():
                    one.feeds.writable(known)

    def may_read(self, connection: int) -> bool:
        """Whether more requests of a client are welcome."""
        known = self._connections.get(connection)
        return known is None or not (known.waiting or known in self._held)

    def bad_checksum(self, connection: int, reqid: ReqId, kind: int) -> None:
        """The data of an append did not match its CRC; only a client that understands refusals gets here."""
        known = self._connections.get(connection)
        if known is not None:
            self._reject(known, reqid, kind, RejectCode.BAD_CHECKSUM, "the data does not match its CRC-32")

    def message(self, now: float, connection: int, message: Any) -> None:
        """Take a request."""
        self._rounds.now = now
        known = self._connections.get(connection)
        if known is None:
            return
        reqid: ReqId = message.reqid
        kind = type(message)
        if known.client is None and kind is not m.ViewRequest:
            known.client = reqid.client
        if known.client != reqid.client and known.ours and kind is not m.ViewRequest:
            self._reject(known, reqid, -1, RejectCode.BAD_REQUEST, "a connection belongs to one client id")
        elif known.excess:
            if known.ours:
                self._reject_for(known, reqid, -1, known.excess, CONNECT_AGAIN_S)
            self._out.append(Hangup(known.id, known.excess))
        elif (
            known.identity is not None
            and (lacks := self._rights.lacking(known.identity, known.version, message)) is not None
        ):
            self.forbidden[lacks] += 1
            text = f"{known.identity} has no right to {lacks} in partition {reqid.partition}"
            if known.ours:
                self._reject(known, reqid, kind_of(message), RejectCode.NOT_PERMITTED, text)
            else:  # it would wait for an answer that no message of its version can give
                self._out.append(Hangup(known.id, text))
        elif kind in APPENDS and self._is_refused(now, known, message):
            pass
        elif kind in KINDS:
            partition = self.owned.get(reqid.partition)
            if partition is None or partition.stage is PartitionStage.CLOSED:
                if (reader := self._reader(known, message)) is not None:
                    reader.message(now, known, message)
                else:
                    self._not_here(now, known, message)
            elif kind in APPENDS:
                partition.enqueue(now, known, message)
                self._rounds.wait(partition)
            else:
                if (
                    kind is m.MountRequest
                    and known.identity is not None
                    and self._rights.lacking(known.identity, 0, message) is not None  # below V5 it was refused
                ):
                    known.blind.add(reqid.partition)
                partition.message(now, known, message)
        else:
            self._about_server(known, message)

    def _reader(self, connection: Connection, message: Any) -> Reader | None:
        """Return who serves a partition before this server may write; ``None``: it is just not here."""
        number = message.reqid.partition
        if self.readers is None or self.view is None or not 0 <= number < self.partitions:
            return None
        if isinstance(message, m.FlushRequest) and not connection.ours:
            return None  # it waits for the partition as long as it may, and is never answered here
        if number not in self.readers:
            self.readers[number] = Reader(number, self._out, lambda: self._owner_address(number))
        return self.readers[number]

    def _served(self) -> list[Partition | Reader]:
        return [*self.owned.values(), *self.leaving, *(self.readers or {}).values()]

    def _owner_address(self, number: int) -> str:
        """Return where the owner of a partition is, empty if there is none."""
        assert self.view is not None  # noqa: S101 -- _reader has looked
        for server, owned in self.view.owned().items():
            descriptor = self.view.servers.get(server)
            if descriptor is not None and any(one == number for one, _ in owned):
                return f"{descriptor.host}:{descriptor.port}"
        return ""

    def _not_here(self, now: float, connection: Connection, message: Any) -> None:
        reqid = message.reqid
        match message:
            case m.MountRequest():
                self._out.append(Reply(connection.id, m.MountResponse(reqid, m.MountState.NOT_READY)))
            case m.TransactionDataRequest():
                text = "partition not ready"
                self._out.append(Reply(connection.id, m.TransactionDataResponse(reqid, message.txid, text)))
            case m.FeedCredit():
                pass
            case _ if connection.ours:
                text = f"partition {reqid.partition} is not on this server"
                self._reject(connection, reqid, kind_of(message), RejectCode.PARTITION_NOT_HERE, text)
            case m.HighWaterMarkRequest() | m.FlushRequest() if connection.parked < PARKED_MAX:
                connection.parked += 1
                self._absent.append((now + PARK_S, connection, message))

    def _hand_over(self, partition: Partition) -> None:
        """Give a partition that has come the questions that wait for it."""
        kept: deque[tuple[float, Connection, m.HighWaterMarkRequest | m.FlushRequest]] = deque()
        for due, connection, message in self._absent:
            if message.reqid.partition == partition.number:
                connection.parked -= 1
                partition.park(due, connection, message)
            else:
                kept.append((due, connection, message))
        self._absent = kept

    def _about_server(self, connection: Connection, message: Any) -> None:
        answer: Any
        match message:
            case m.ViewRequest():
                self._ask_view(connection, message)
                return
            case m.CheckStorageRequest():
                found = tuple(m.StorageReachable(node, node in self._up) for node in storage_nodes(self.view))
                answer = m.CheckStorageResponse(message.reqid, found)
            case m.AssignmentRequest():
                answer = m.AssignmentResponse(message.reqid, tuple(sorted(self.owned)))
            case m.HealthRequest():
                health = tuple(m.PartitionHealth(number, one.healthy) for number, one in sorted(self.owned.items()))
                answer = m.HealthResponse(message.reqid, health)
            case m.AddPreferredRequest() | m.RemovePreferredRequest():
                add = isinstance(message, m.AddPreferredRequest)
                response = m.AddPreferredResponse if add else m.RemovePreferredResponse

                def told(done: bool) -> None:
                    self._out.append(Reply(connection.id, response(message.reqid, done)))

                if self.writable and all(0 <= number < self.partitions for number in message.partitions):
                    self._out.append(Prefer(message, told))
                else:
                    told(False)
                return
            case _:
                self._out.append(Hangup(connection.id, f"{type(message).__name__} is not for servers"))
                return
        self._out.append(Reply(connection.id, answer))

    def _ask_view(self, connection: Connection, request: m.ViewRequest) -> None:
        if request.flags & ~(m.FLAG_CLIENT_ID | m.FLAG_KEYS):
            self._reject(connection, request.reqid, 45, RejectCode.BAD_REQUEST, "an unknown flag")
        elif self.view is None:
            self._reject(
                connection, request.reqid, 45, RejectCode.UNAVAILABLE, "the server does not know the cluster yet"
            )
        elif request.flags & m.FLAG_CLIENT_ID:
            if connection.ids_asked >= VIEWS_ASKED_MAX:
                self._out.append(Hangup(connection.id, f"more than {VIEWS_ASKED_MAX} client ids asked for at once"))
                return
            connection.ids_asked += 1
            self._out.append(NextClientId(partial(self._client_id, connection, request)))
        else:
            self._view(connection, request, -1)

    def _client_id(self, connection: Connection, request: m.ViewRequest, number: int) -> None:
        connection.ids_asked -= 1
        if number < 0:
            text = "the metadata store does not answer"
            self._reject(connection, request.reqid, 45, RejectCode.UNAVAILABLE, text)
        else:
            self._view(connection, request, number)

    def _view(self, connection: Connection, request: m.ViewRequest, client: int) -> None:
        assert self.view is not None  # noqa: S101 -- _ask_view has looked
        owned = self.view.owned()
        servers = tuple(
            m.ViewServer(
                server,
                descriptor.host,
                descriptor.port,
                Stage.READ_WRITE,
                tuple(AssignedPartition(*one) for one in owned.get(server, ())),
            )
            for server, descriptor in sorted(self.view.servers.items())
        )
        count = self.view.first_partitions if request.flags & m.FLAG_KEYS else 0
        view = m.View(request.reqid, self.cluster, self.view.version, count or self.partitions, client, servers)
        self._out.append(Reply(connection.id, view))

    def _is_refused(self, now: float, connection: Connection, message: m.AppendIdempotent | m.AppendRequest) -> bool:
        """Whether an append is beyond its client's quota. An older client hears nothing of it, and is not heard."""
        size, held = len(message.data), not connection.ours
        if (found := self.quotas.append(now, connection.identity, size, held=held)) is None:
            return False
        seconds, text = found
        if connection.ours:
            self._reject_for(connection, message.reqid, kind_of(message), text, seconds)
            return True
        connection.held_until = now + seconds
        if connection not in self._held:
            self._held.append(connection)
        return False

    def _reject_for(self, connection: Connection, reqid: ReqId, kind: int, text: str, seconds: float) -> None:
        """Refuse for a while, which the client waits."""
        detail, text = int(seconds * 1000) + 1, f"{text}: again in {seconds:.1f} s"
        self._out.append(Reply(connection.id, m.Reject(reqid, kind, RejectCode.UNAVAILABLE, detail, -1, text)))

    def _reject(self, connection: Connection, reqid: ReqId, kind: int, code: RejectCode, text: str) -> None:
        self._out.append(Reply(connection.id, m.Reject(reqid, kind, code, -1, -1, text)))


def storage_nodes(view: ClusterView | None) -> Sequence[str]:
    """Return all storage nodes that any partition has."""
    nodes: Iterable[tuple[str, ...]] = view.storage.values() if view is not None else ()
    return sorted({node for some in nodes for node in some})
