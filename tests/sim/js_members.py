"""What a peer of the original kind believes of the members, and how it changes them (docs/specs/raft.md 1.2-1.4, 8.5).

It keeps its configuration on the disk apart from the log, believes in one as soon as it sees it, and takes one at an
index that is not higher for an old one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pavane.raft.state.configuration import Configuration, Members, Refusal, check_change
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_type
from pavane.raft.wire.replies import ConfigStatus, ConfigUpdateReply
from pavane.raft.wire.requests import AppendEntries, ConfigUpdate

if TYPE_CHECKING:
    from tests.sim.js_model import JsPeer


def last_stated(entries: list[bytes]) -> tuple[int, Configuration] | None:
    """Return index and content of the last CONFIG entry."""
    for index in range(len(entries), 0, -1):
        if entry_type(entries[index - 1]) == EntryType.CONFIG:
            return index, Configuration.decode(entry_data(entries[index - 1]))
    return None


class JsMembers:
    """The members as one peer sees them; ``stated_at`` is the index of the entry that says so, 0 until written."""

    def __init__(self, owner: "JsPeer", seeds: Members) -> None:
        self._owner = owner
        self._seeds = seeds
        self.configuration = Configuration(seeds)
        self.stated_at = 0
        self._kept = (self.configuration, 0)
        self._waiting: tuple[bytes, bytes] | None = None  # route and request id of who asked for the change

    def start(self) -> None:
        """Begin with what the disk holds."""
        self.configuration, self.stated_at = self._kept
        self._waiting = None

    def read(self, entries: list[bytes]) -> None:
        """Take over what the log says that it has read."""
        stated = last_stated(entries)
        if stated is not None and stated[0] > self.stated_at:
            self.stated_at, self.configuration = stated
            self._keep()

    def follow(self, message: AppendEntries) -> None:
        """Believe the last configuration among a leader's entries."""
        stated = last_stated([bytes(entry) for entry in message.entries])
        if stated is not None and message.previous_index + stated[0] > self.stated_at:
            self.stated_at = message.previous_index + stated[0]
            self._believe(stated[1])
            self._keep()

    def truncated(self, entries: list[bytes]) -> None:
        """Go back to the configuration of the log where its entry is gone, or another one stands there.

        The original keeps it (D12), and nothing that a neighbour does helps: an administrator sets it right here.
        """
        said = entries[self.stated_at - 1] if 0 < self.stated_at <= len(entries) else b""
        stands = said and entry_type(said) == EntryType.CONFIG and entry_data(said) == self.configuration.encode()
        if self.stated_at and not stands:
            self.stated_at, configuration = last_stated(entries) or (0, Configuration(self._seeds))
            self._believe(configuration)
            self._keep()

    def return_to_office(self) -> None:
        """Cut the log where an entry that is not committed leaves this peer out; it is down.

        The original neither stands nor, with the longer log, votes for anybody; where the old members need it, an
        administrator has a peer of ours take its folder over, which does. Here it goes on without the entry, which
        no majority of the new members can hold.
        """
        entries = self._owner.disk.entries
        index, configuration = last_stated(entries) or (0, self.configuration)
        if index > self._owner.commit and not configuration.names(self._owner.id):
            del entries[index - 1 :]
            index, configuration = last_stated(entries) or (0, Configuration(self._seeds))
            self._kept = (configuration, index)

    def written(self, index: int, data: bytes) -> None:
        """An own CONFIG entry is on the disk."""
        self.stated_at = index
        self._kept = (Configuration.decode(data), index)

    def committed(self) -> None:
        """As a leader: step down if Cnew is committed without us, append Cnew if Cold,new is."""
        owner = self._owner
        if not self.configuration.names(owner.id):
            owner.fall_back(owner.term)
        elif self.configuration.transitional and 0 < self.stated_at <= owner.commit:
            joint = self.stated_at
            second = int(owner.world.wall_s + owner.world.time)
            reqid = second.to_bytes(4, "big") + owner.world.rng.getrandbits(64).to_bytes(8, "big")
            self._append(Configuration(self.configuration.new), reqid, lambda _: self._told(joint))

    def deposed(self) -> None:
        """Send who waits to the next leader."""
        if self._waiting is not None:
            self._owner.reply(*self._waiting, ConfigUpdateReply(ConfigStatus.NOT_LEADER, self._owner.leader))
            self._waiting = None

    def ask(self, route: bytes, reqid: bytes, message: ConfigUpdate) -> None:
        """Handle ``&``: one joint change at a time."""
        owner = self._owner
        if owner.role != Role.LEADER:
            reply = ConfigUpdateReply(ConfigStatus.NOT_LEADER, owner.leader)
        elif self._waiting is not None:
            same = self._waiting[1] == reqid
            reply = ConfigUpdateReply(ConfigStatus.ACCEPTED if same else ConfigStatus.BUSY)
        else:
            index = next((at for at, entry in enumerate(owner.disk.entries, 1) if entry_reqid(entry) == reqid), None)
            reply = self._known(route, reqid, index) if index is not None else self._begin(route, reqid, message)
        owner.reply(route, reqid, reply)

    def _known(self, route: bytes, reqid: bytes, index: int) -> ConfigUpdateReply:
        if index <= self._owner.commit:
            return ConfigUpdateReply(ConfigStatus.ACCEPTED, index)
        self._waiting = (route, reqid)
        return ConfigUpdateReply(ConfigStatus.ACCEPTED)

    def _begin(self, route: bytes, reqid: bytes, message: ConfigUpdate) -> ConfigUpdateReply:
        if not self._owner.fresh(reqid):
            return ConfigUpdateReply(ConfigStatus.EXPIRED)
        if self.configuration.transitional:
            return ConfigUpdateReply(ConfigStatus.BUSY)
        assert isinstance(message.peers, list)
        members = check_change(self.configuration.new, message.peers)
        if isinstance(members, Refusal):
            return ConfigUpdateReply(ConfigStatus.ARGUMENT, {"name": members.name, "message": members.message})
        self._waiting = (route, reqid)
        self._append(Configuration(members, self.configuration.new), reqid, lambda _: None)
        return ConfigUpdateReply(ConfigStatus.ACCEPTED)

    def _append(self, configuration: Configuration, reqid: bytes, then: Callable[[int], None]) -> None:
        self.stated_at = 0
        self._believe(configuration)
        self._owner.append(reqid, EntryType.CONFIG, configuration.encode(), then)

    def _told(self, joint: int) -> None:
        if self._waiting is not None:
            self._owner.reply(*self._waiting, ConfigUpdateReply(ConfigStatus.ACCEPTED, joint))
            self._waiting = None

    def _believe(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._owner.reconfigured()

    def _keep(self) -> None:
        self._kept = (self.configuration, self.stated_at)
