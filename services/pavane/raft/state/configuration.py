"""Who the members are, which entry said so, and how to go back when that entry goes (docs/specs/raft.md 8.1, 8.4)."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from pavane.raft.wire.entry import PeerList, decode_configuration, encode_configuration

Members: TypeAlias = PeerList

MEMBERS_MAX = 9  # a larger group pays every commit with more answers and survives no more failures worth having
PEER_ID_BYTES_MAX = 128  # longer than any pod name (63) with room for people
_GENERATION = re.compile(r"-g([0-9]+)-[0-9]+\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?\Z")
_LOOKS_NUMERIC = re.compile(r"[0-9.]+\Z")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration: ``new`` alone, or ``old`` and ``new`` while the change is joint."""

    new: Members
    old: Members | None = None

    @property
    def transitional(self) -> bool:
        """Whether a majority of both groups is needed."""
        return self.old is not None

    @property
    def members(self) -> Members:
        """Every member once, old ones first (what ``^`` answers, 3.2)."""
        if self.old is None:
            return self.new
        known = dict(self.old)
        return self.old + tuple(pair for pair in self.new if pair[0] not in known)

    @property
    def groups(self) -> tuple[frozenset[str], ...]:
        """The groups of which each needs its own majority."""
        groups = (self.new,) if self.old is None else (self.old, self.new)
        return tuple(frozenset(peer for peer, _ in group) for group in groups)

    def names(self, peer: str) -> bool:
        """Whether ``peer`` is a member, in either group."""
        return any(peer == member for member, _ in self.members)

    def url(self, peer: str) -> str | None:
        """Return the url of a member, ``None`` for anybody else."""
        return dict(self.members).get(peer)

    def encode(self) -> bytes:
        """Return the data of the CONFIG entry that states this configuration."""
        return encode_configuration(self.new, self.old)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> "Configuration":
        """Decode the data of a CONFIG entry.

        Raises ``RemoteProtocolError("config")`` if it is no configuration.
        """
        new, old = decode_configuration(data)
        return cls(new, old)


EMPTY = Configuration(())


class ConfigurationStack:
    """All configurations that the log states, the one in force on top. Nothing else in the program keeps a copy.

    ``base`` holds where no entry does: the seed list, or nothing.
    """

    def __init__(self, base: Configuration, entries: Iterable[tuple[int, Configuration]] = ()) -> None:
        self._stack: list[tuple[int, Configuration]] = [(0, base), *entries]
        self._past: set[str] = set()  # whom configurations named that a snapshot has replaced

    @property
    def effective(self) -> Configuration:
        """The configuration of the last CONFIG entry, committed or not."""
        return self._stack[-1][1]

    @property
    def index(self) -> int:
        """The index of the entry in force, 0 for the base."""
        return self._stack[-1][0]

    def push(self, index: int, configuration: Configuration) -> None:
        """Put the CONFIG entry appended at ``index`` in force."""
        self._stack.append((index, configuration))

    def truncate(self, after: int) -> list[tuple[int, Configuration]]:
        """Forget every CONFIG entry above index ``after``; return them, the last one first."""
        gone = []
        while self._stack[-1][0] > after:
            gone.append(self._stack.pop())
        return gone

    def begin_with(self, index: int, stated_at: int, configuration: Configuration) -> None:
        """Replace everything up to ``index`` by what a snapshot states, whose CONFIG entry was at ``stated_at``."""
        later = [pair for pair in self._stack if pair[0] > index]
        for _, past in self._stack[: len(self._stack) - len(later)]:
            self._past.update(peer for peer, _ in past.members)
        self._stack = [(stated_at, configuration), *later]

    def committed(self, commit: int) -> tuple[int, Configuration]:
        """Return (index, configuration) of the last one at or below the commit index, or of the snapshot's."""
        return next((pair for pair in reversed(self._stack) if pair[0] <= commit), self._stack[0])

    def states(self, index: int) -> Configuration | None:
        """Return the configuration that the entry at ``index`` states, if it is a CONFIG entry."""
        return next((configuration for at, configuration in self._stack if at == index and at > 0), None)

    def ever_named(self, peer: str) -> bool:
        """Whether some configuration that was in force here since the start named ``peer``."""
        return peer in self._past or any(configuration.names(peer) for _, configuration in self._stack)

    def names_since(self, peer: str, commit: int) -> bool:
        """Whether the last committed configuration, or one appended after it, names ``peer``."""
        for index, configuration in reversed(self._stack):
            if configuration.names(peer):
                return True
            if index <= commit:
                return False
        return False


def generation_of(peer: str) -> int | None:
    """Return the generation number in a pod's name (``{name}-server-g{n}-{i}``), ``None`` for other ids (8.6)."""
    found = _GENERATION.search(peer)
    return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a list of members was refused: the ``{name, message}`` of status 2 (10.6)."""

    name: str
    message: str


def check_change(current: Members, proposed: Sequence[object]) -> Members | Refusal:
    """Judge a decoded list of members against the ``current`` ones (docs/specs/raft.md 10.6, without the log).

    Returns the list as members, or the refusal that the client is told.
    """
    members: list[tuple[str, str]] = []
    for item in proposed:
        match item:
            case [str() as peer, str() as url]:
                members.append((peer, url))
            case _:
                return Refusal("Error", "peers must be pairs of an id and an url, both strings")
    fault = fault_in(members)
    if fault is not None:
        return Refusal("Error", fault)
    urls = dict(current)
    owners = {url: peer for peer, url in current}
    for peer, url in members:
        if urls.get(peer, url) != url:
            return Refusal("Error", f"peer {peer!r} is known by another url")
        if owners.get(url, peer) != peer:
            return Refusal("Error", f"url {url!r} belongs to another peer")
    if set(members) == set(current):
        return Refusal("Error", "no change in cluster membership")
    return tuple(members)


def fault_in(members: Sequence[tuple[str, str]]) -> str | None:
    """Return what is wrong with a list of members (8.1, D18), or ``None``."""
    if not members:
        return "peers must not be empty"
    if len(members) > MEMBERS_MAX:
        return f"more than {MEMBERS_MAX} peers"
    for peer, url in members:
        if not 1 <= len(peer.encode()) <= PEER_ID_BYTES_MAX or not peer.isprintable():
            return f"peer id {peer!r} must be 1 to {PEER_ID_BYTES_MAX} bytes without control characters"
        if host_of(url) is None:
            return f"url {url!r} must be tcp://address:port"
    if len({peer for peer, _ in members}) < len(members):
        return "peer ids must be distinct"
    if len({url for _, url in members}) < len(members):
        return "peer urls must be distinct"
    return None


def host_of(url: str) -> str | None:
    """Return the host of ``tcp://host:port``, or ``None`` if the url is not one that peers can be reached by."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = parts.scheme == "tcp" and not (parts.path or parts.query or parts.fragment or parts.username)
    if not plain or not host or not port:
        return None
    try:
        return None if ipaddress.ip_address(host).is_unspecified else host
    except ValueError:
        return host if _HOST_NAME.match(host) and not _LOOKS_NUMERIC.match(host) else None


def needs_resolving(url: str) -> bool:
    """Whether the url's host is a name: only peers of ours can reach it (8.2)."""
    host = host_of(url)
    if host is None:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
