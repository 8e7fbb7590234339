"""How a peer of the original kind takes a snapshot, ``$`` (docs/specs/raft.md 9.4)."""

from typing import TYPE_CHECKING

from pavane.raft.state.commands import SnapshotInstall
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import entry_term
from pavane.raft.wire.replies import InstallSnapshotReply
from pavane.raft.wire.requests import InstallSnapshot

if TYPE_CHECKING:
    from tests.sim.js_model import JsPeer


class JsInstalling:
    """The snapshot that is being received. Of what it replaces the model keeps the entries, as committed ones are."""

    def __init__(self, owner: "JsPeer") -> None:
        self._owner = owner
        self._key = (0, 0, 0)  # index, term and size
        self._bytes = 0

    def take(self, route: bytes, request_id: bytes, message: InstallSnapshot) -> None:
        """Handle a chunk."""
        owner, leader = self._owner, message.leader
        if not owner.configuration.names(leader) or owner.debounce.repeated(leader, route, request_id):
            return

        def reply(wanted: int | None = None) -> None:
            frames = owner.reply(route, request_id, InstallSnapshotReply(owner.term, wanted))
            owner.debounce.answered(leader, route, request_id, frames)

        def done(wanted: int | None = None) -> None:
            reply(wanted)
            owner.arm()
            owner.resume()

        def on() -> None:
            if message.offset != self._bytes:
                done(self._bytes)
                return
            self._bytes += len(message.chunk)
            if self._bytes < message.total:
                done()
                return
            self._key, self._bytes = (0, 0, 0), 0
            owner.write(lambda: self._install(message), done)

        if message.term < owner.term:
            reply()
            return
        owner.disarm()
        owner.pause()
        owner.leader = leader
        key = (message.last_index, message.last_term, message.total)
        if key != self._key:
            self._key, self._bytes = key, 0
        owner.become(Role.FOLLOWER, message.term, owner.vote if message.term == owner.term else "", on)

    def _install(self, message: InstallSnapshot) -> None:
        """Keep the log where it holds the entry, else put the snapshot in its place."""
        owner, index = self._owner, message.last_index
        entries = owner.disk.entries
        if len(entries) < index or entry_term(entries[index - 1]) != message.last_term:
            replaced = SnapshotInstall(0, index, message.last_term, keep_log=False)
            owner.world.checks.stored(owner.id, owner.mirror, replaced)
            owner.disk.entries = list(owner.mirror.entries)
            owner.members.truncated(owner.disk.entries)
        owner.world.js.installed += 1
