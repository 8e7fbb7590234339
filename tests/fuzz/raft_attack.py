"""Everything that a peer may be sent, in any order, chosen by a string of bytes (docs/specs/raft.md 3.4, 18.1).

Whoever finds the strings is another matter: Hypothesis in ``make test``, atheris in ``make fuzz``. The peer attacked is
a real core with the storage twin of the simulator; everybody else is played by the bytes: members, a stranger who knows
the secret, clients, the answers to what the peer asks, broken connections, time, and its own death.
"""

from collections.abc import Callable

from pavane.raft.core.outputs import Channel
from pavane.raft.core.requests import OUTSTANDING_MAX, Ask
from pavane.raft.machines.commands import LeaseGrant, LeaseRevoke, Put, Range, Txn, encode_command
from pavane.raft.wire.decoder import Reply, Request
from pavane.raft.wire.entry import EntryType, encode_blob, encode_configuration, encode_entry
from pavane.raft.wire.frames import UINT_MAX
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import (
    PvAppend,
    PvAppendReply,
    PvFollow,
    PvFollowReply,
    PvHello,
    PvHelloReply,
    PvKv,
    PvLease,
    PvNow,
    PvNowReply,
    PvRead,
    PvSnapshot,
    PvStatus,
    PvTransfer,
    PvVote,
    PvVoteReply,
    PvWatch,
    PvWatchAcknowledge,
)
from pavane.raft.wire.pv_update import PvUpdate, UpdateItem
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    EntriesStatus,
    InstallSnapshotReply,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestVoteReply,
)
from pavane.raft.wire.requests import (
    AppendEntries,
    ClientDispatch,
    ConfigUpdate,
    InstallSnapshot,
    PeerPoll,
    RequestBroadcastUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
    RequestVote,
)
from tests.fuzz.choices import Choices
from tests.services.raft.ensemble import IDENT, Ensemble, Frames, members, reqid

PEER = "a"
NAMES = ("b", "c", "a", "z")  # two other members, the peer itself, and one who is in no configuration
ROUTES = ("b rpc a", "c side a", "client", "other")
CLIENT_KINDS = (RequestUpdate, ConfigUpdate, PvKv, PvUpdate)
MEMBERS = ("abc", "ab", "abcz", "bc", "a")


class Attack:
    """One peer and what is done to it."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        voters, learners = choices.pick((("abc", ""), ("a", ""), ("bc", "a")))
        self.room = Ensemble(voters, learners, keys=bool(choices.number(2)))
        for name in self.room.everybody:
            if name != PEER:
                self.room.down(name)
        self.room.advance(choices.pick((0.0, 0.8, 1.5)))
        self.votes: dict[int, str] = {}
        self.commit = self.term = 0

    def run(self) -> None:
        """Do what the bytes say; afterwards the peer, or the one that its supervisor starts, still answers."""
        steps: tuple[Callable[[], None], ...] = (self._ask, self._ask, self._ask, self._answer, self._answer)
        while not self.choices.over:
            self.choices.pick((*steps, self._pass_time, self._break, self._restart))()
            self._check()
        if self.room.cores[PEER]._node.halted:
            self._restart()
        told = self.room.ask(PEER, (b"there?", *RequestConfig().encode(IDENT)), "client")
        assert [frames[0] for frames in told] == [b"there?"], "it does not answer any more"

    def _check(self) -> None:
        """S13 and what of S3 and S5 one peer alone shows."""
        status, disk = self.room.status(PEER), self.room.disks[PEER]
        assert status.applied <= status.commit <= status.last == disk.last
        assert status.term == disk.term >= self.term, "the term falls, or was told before it was written"
        assert status.commit >= self.commit, "the commit index falls"
        self.term, self.commit = status.term, status.commit
        for term, candidate in disk.votes.items():
            assert self.votes.setdefault(term, candidate) == candidate, f"two votes in term {term}"
        waiting = self.room.cores[PEER]._requests._outstanding.values()
        assert all(len(asks) <= OUTSTANDING_MAX for asks in waiting)

    # --- steps ---------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        request = self._request()
        frames = (self._id(request), *(bytes(frame) for frame in request.encode(IDENT)))
        self.room.ask(PEER, self._mangled(frames), self.choices.pick(ROUTES))

    def _answer(self) -> None:
        core = self.room.cores[PEER]
        asks = [ask for asks in core._requests._outstanding.values() for ask in asks.values()]
        if not asks:
            return
        ask = self.choices.pick(asks)
        reply = self._reply(ask)
        frames = tuple(bytes(frame) for frame in reply.encode()) if reply is not None else (self.choices.bytes(20),)
        core.reply(ask.to.peer, ask.to.channel, self._mangled((ask.id, *frames)), self.room.now())
        self.room.settle()

    def _pass_time(self) -> None:
        self.room.advance(self.choices.pick((0.01, 0.05, 0.3, 1.0)))

    def _break(self) -> None:
        peer, channel = self.choices.pick("bc"), self.choices.pick(list(Channel))
        self.room.cores[PEER].connection(peer, channel, self.choices.number(2) > 0, self.room.now())
        self.room.settle()

    def _restart(self) -> None:
        self.room.down(PEER)
        self.room.start(PEER)
        self.commit = self.room.status(PEER).commit  # what was not fsynced, and is only a hint, may be less

    # --- messages ------------------------------------------------------------------------------------------------

    def _mangled(self, frames: Frames) -> Frames:
        """Return the message, as a rule as it is, else with one thing wrong."""
        kind = self.choices.number(24)
        at = self.choices.number(len(frames)) if kind < 8 else 0
        before, frame, after = frames[:at], frames[at], frames[at + 1 :]
        forms: tuple[Frames, ...] = (
            before + after,
            (*before, b"", *after),
            (*before, frame, frame, *after),
            (*before, frame[:-1], *after),
            (*before, bytes(byte ^ 0xFF for byte in frame), *after),
            (*before, b"\xff" * 70, *after),
            (*before, self.choices.bytes(30) if kind == 6 else b"", *after),
            (*frames, b"surplus"),
        )
        return forms[kind] if kind < len(forms) else frames

    def _id(self, request: Request) -> bytes:
        if isinstance(request, CLIENT_KINDS):
            return reqid(self.choices.number(20))
        return bytes([self.choices.number(6)])

    def _request(self) -> Request:
        choices = self.choices
        name, term, index = choices.pick(NAMES), self._term(), self._index()
        builders: tuple[Callable[[], Request], ...] = (
            lambda: self._append(AppendEntries),
            lambda: self._append(PvAppend),
            lambda: RequestVote(name, term, index, self._term()),
            lambda: PvVote(name, term, index, self._term(), choices.number(4)),
            lambda: PvNow(name, term, index, self._index()),
            lambda: self._chunk(InstallSnapshot),
            lambda: self._chunk(PvSnapshot),
            lambda: PvFollow(name, term, index, self._term(), None),
            lambda: PvHello(name, term, bytes(8), {"v": 1, "feat": choices.number(64)}),
            lambda: RequestConfig(PeerPoll(name, term)),
            lambda: RequestLogInfo(PeerPoll(name, term)),
            lambda: RequestUpdate(choices.bytes(9) or b"x"),
            lambda: PvUpdate(
                (UpdateItem(reqid(choices.number(20)), b"x"), UpdateItem(reqid(choices.number(20)), b"y"))
            ),
            lambda: ConfigUpdate.of(members(choices.pick(MEMBERS))),
            lambda: RequestEntries(index, choices.pick((None, 0, 1, 3)), choices.pick((None, 0, 7))),
            lambda: PvKv(choices.pick(self._commands())),
            lambda: PvRead([choices.number(4), [[4, b"", b"\x00", 0, 0]], index]),
            lambda: PvWatch({"scope": choices.number(4), "start": b"k", "end": b"l", "rev": index}),
            lambda: PvWatchAcknowledge(index, choices.number(2) > 0),
            lambda: PvLease([choices.number(9)]),
            lambda: PvTransfer(choices.pick((None, "b", "z", "a"))),
            PvStatus,
            RequestBroadcastUrl,
            lambda: ClientDispatch(b"xy", (b"z",)),
        )
        return choices.pick(builders)()

    def _reply(self, ask: Ask) -> Reply | None:
        choices, term, index = self.choices, self._term(), self._index()
        yes, leader = choices.number(2) > 0, choices.pick((None, *NAMES))
        named = members(choices.pick(MEMBERS))
        nonce = bytes(ask.frames[4]) if ask.reply is PvHelloReply else b""
        about: dict[str, Value] = {
            "peer": ask.to.peer,
            "feat": choices.number(64),
            "stage": choices.number(6),
            "ready": index,
        }
        replies: dict[type[Reply], Callable[[], Reply]] = {
            RequestVoteReply: lambda: RequestVoteReply(term, yes),
            PvVoteReply: lambda: PvVoteReply(term, yes, choices.number(8)),
            AppendEntriesReply: lambda: AppendEntriesReply(term, yes, choices.pick((None, index))),
            PvAppendReply: lambda: PvAppendReply(term, yes, index, choices.pick((None, (self._index(), term)))),
            PvNowReply: lambda: PvNowReply(term, yes),
            PvHelloReply: lambda: PvHelloReply(nonce, about),
            RequestConfigReply: lambda: RequestConfigReply(yes, leader, named),
            RequestLogInfoReply: lambda: RequestLogInfoReply(yes, leader, term, 1, index, index, index, 0, 0),
            InstallSnapshotReply: lambda: InstallSnapshotReply(term, choices.pick((None, index))),
            PvFollowReply: lambda: PvFollowReply(
                choices.pick((0, 2, 3, 20, 7)), [index, term, 1], index, encode_blob(self._entries())
            ),
            RequestEntriesReply: lambda: RequestEntriesReply(
                choices.pick((EntriesStatus.LAST, EntriesStatus.MORE)), index, self._entries()
            ),
        }
        return replies[ask.reply]() if ask.reply in replies else None

    def _term(self) -> int:
        return self._near(self.room.status(PEER).term + self.choices.number(4) - 1)

    def _index(self) -> int:
        return self._near(self.room.status(PEER).last + self.choices.number(6) - 3)

    def _near(self, number: int) -> int:
        """Return the number, or, rarely, one of the greatest that there are."""
        far = self.choices.number(100)
        return UINT_MAX - far if far < 2 else min(max(0, number), UINT_MAX)

    def _append(self, kind: type[AppendEntries] | type[PvAppend]) -> AppendEntries | PvAppend:
        """Return entries that mostly fit behind the peer's log."""
        previous = self._index()
        known = self.room.cores[PEER]._node.log.term_at(previous)
        previous_term = known if known is not None and self.choices.number(4) else self._term()
        return kind(self.choices.pick(NAMES), self._term(), previous, previous_term, self._index(), self._entries())

    def _chunk(self, kind: type[InstallSnapshot] | type[PvSnapshot]) -> InstallSnapshot | PvSnapshot:
        chunk, offset = self.choices.bytes(60), self.choices.pick((0, 0, 3, 60))
        total = offset + len(chunk) + self.choices.pick((0, 0, 40))
        return kind(self.choices.pick(NAMES), self._term(), self._index(), self._term(), offset, total, chunk)

    def _entries(self) -> tuple[bytes, ...]:
        choices = self.choices
        term = self._term()
        return tuple(self._entry(term) for _ in range(choices.pick((0, 1, 1, 2, 3))))

    def _entry(self, term: int) -> bytes:
        kind = self.choices.pick((EntryType.STATE, EntryType.STATE, EntryType.CHECKPOINT, EntryType.CONFIG, 9))
        data = self.choices.pick((b"x", b"\xc0", *self._commands()))
        if kind == EntryType.CONFIG:
            new, old = members(self.choices.pick(MEMBERS)), members(self.choices.pick(MEMBERS))
            data = encode_configuration(new, old if self.choices.number(2) else None)
            if not self.choices.number(8):
                data = b"no configuration"
        return encode_entry(reqid(self.choices.number(30)), kind, term, data)

    @staticmethod
    def _commands() -> tuple[bytes, ...]:
        txn = encode_command(Txn(then=(Put(b"k1", b"v"), Range(b"k", b"l"))))
        return txn, encode_command(LeaseGrant(500, b"me")), encode_command(LeaseRevoke(1)), b"\x93\x01\x90\x90"


def attack(data: bytes) -> None:
    """Attack a peer in the way that ``data`` says. Raises whatever the peer raises, or ``AssertionError``."""
    Attack(Choices(data)).run()
