"""Settings of one member (docs/specs/swim.md 6.2, 6.3, 7.1, 17.1)."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from pavane.swim.errors import ConfigError
from pavane.swim.wire.messages import DATAGRAM_BYTES_MAX, JoinNak, JoinRedirect
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeInfo

CAPACITY_MIN = 4  # fewer do not make a connected graph; refused unless forced
CAPACITY_SOUND = 8  # of a partial view: with fewer a mass crash can cut the group apart (7.3)
DATAGRAM_BYTES_MIN = 256  # every message but a list fits
SEEDS_MAX = 32
GROUP_BYTES_MAX = 1024  # a Kubernetes name takes 255 characters


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of a kind of network; seconds, unless the name says otherwise (17.1)."""

    period_s: float = 1.0
    ack_timeout_s: float = 0.25
    helpers: int = 3
    gossip_tick_s: float = 0.2
    gossip_peers: int = 3
    floor_periods: float = 5.0
    slope_periods: float = 2.5
    sync_interval_s: float = 30.0


LOCAL = Profile(0.5, 0.1, 3, 0.1, 3, 3.0, 3.0, 10.0)
LAN = Profile()
WAN = Profile(5.0, 1.5, 3, 0.5, 4, 4.0, 4.0, 60.0)
PROFILES = {"local": LOCAL, "lan": LAN, "wan": WAN}


class ViewKind(StrEnum):
    """Whom a member tracks; the same for the whole group (7.1)."""

    FULL = "full"  # everybody
    PARTIAL = "partial"  # at most ``capacity`` peers, however many there are


class JoinPolicy(StrEnum):
    """What a server does with JoinReqs."""

    ACCEPT = "accept"
    REDIRECT = "redirect"
    REJECT = "reject"
    IGNORE = "ignore"


class RequireToken(StrEnum):
    """When a JoinReq must show that its source address is its own."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def id_of_name(name: str) -> int:
    """Return the id of a process with a stable name, so that it takes its own place again after a restart (5.1)."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=4).digest(), "little") or 1


def split_seed(seed: str) -> tuple[str, int]:
    """Take ``host:port`` apart; raises ``ConfigError`` for what no resolver could look up."""
    host, _, port = seed.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) <= 0xFFFF:
        raise ConfigError(f"seed {seed!r}: write host:port, as seed.example:7946 or [2001:db8::7]:7946")
    try:
        host.encode("idna")  # as the resolver does, which would fail in the middle of everything
    except UnicodeError as error:
        raise ConfigError(f"seed {seed!r}: no host can have that name: {error.__cause__ or error}") from error
    if not host.isprintable():
        raise ConfigError(f"seed {seed!r}: no host can have that name")
    return host, int(port)


Authorize = Callable[[bytes, bytes, NodeInfo, Address], bool | JoinNak | JoinRedirect]
"""(token, auth, asker, source) → admit it; false says nothing to it (6.4)."""

Kin = Callable[[int, int], bool]
"""(id, rollout) → whether that member counts its rollouts with us (16.2)."""

Credentials = Callable[[bytes, NodeInfo], bytes]
"""(token, ourselves) → the auth bytes of our JoinReq."""


class Encoding(StrEnum):
    """How messages are written. The two cannot be told apart on the wire: a whole group uses one (4)."""

    V1 = "v1"
    LIBTRIBE = "libtribe"  # the C++ library's; it has no addresses, no Leave and no token that could be repeated


class Start(StrEnum):
    """When a node becomes a full member (16.2)."""

    READ_WRITE = "read_write"  # at once: no stages
    SELF = "self"  # by itself when it is caught up, or when there is no full member that it could wait for
    ORDERED = "ordered"  # by ``promote`` alone


@dataclass(frozen=True, slots=True)
class Config:
    """One member.

    ``id`` is drawn at random if ``None``; ``first_gen`` pins the first generation, which otherwise is the Unix time.
    ``address`` is what others are told; unspecified means that they take the source of our datagrams. ``keys`` are
    masters of 32 random bytes, the first protects what is sent; without any, everything is plaintext. With ``seal`` it
    is encrypted too. ``accept_plaintext`` is for the time in which a group gets its keys; ``rotate_by_gossip`` lets
    any member change the keys of all, who must keep them (15.4).

    ``psks`` are needed to join, and to be joined; ``authorize`` decides about JoinReqs instead, and ``credentials``
    makes what it looks at (6.4). ``stored_gen`` is the last generation that a store has for this id, 0 for a store
    that is empty; ``None`` means no store, and then no ``Persist`` is asked for. ``rollout`` numbers the deployment
    that this process belongs to, 0 for none (16); with ``drain_for`` it drains by itself when it has seen as many full
    members of later rollouts; ``kin`` says of whom rollouts count here, of all if ``None``: deployments that share a
    group number theirs each for itself. In a partial ``view`` it tracks at most ``capacity`` members,
    however many there are; in a full one all, so that ``capacity`` must exceed the group (7.1). With ``broadcast_to``
    the node announces itself there, and takes the announcements of others for seeds (13).
    """

    id: int | None = None
    first_gen: int | None = None
    stored_gen: int | None = None
    address: Address = UNSPECIFIED
    group: str = ""
    keys: tuple[bytes, ...] = ()
    seal: bool = False
    accept_plaintext: bool = False
    rotate_by_gossip: bool = False
    psks: tuple[bytes, ...] = ()
    authorize: Authorize | None = None
    credentials: Credentials | None = None
    view: ViewKind = ViewKind.FULL
    capacity: int = 1024
    force_capacity: bool = False
    broadcast_to: Address | None = None
    join_policy: JoinPolicy = JoinPolicy.ACCEPT
    redirect_to: Address | None = None
    require_token: RequireToken = RequireToken.AUTO
    max_datagram_bytes: int = 1400
    profile: Profile = field(default=LAN)
    start: Start = Start.READ_WRITE
    rollout: int = 0
    drain_for: int | None = None
    kin: Kin | None = None
    encoding: Encoding = Encoding.V1

    def validate(self) -> None:
        """Raise ``ConfigError`` for a value that cannot work."""
        if self.id is not None and not 0 < self.id <= U32_MAX:
            raise ConfigError(f"id {self.id}: choose 1 to {U32_MAX}")
        if self.first_gen is not None and not 0 <= self.first_gen < U32_MAX:
            raise ConfigError(f"first_gen {self.first_gen}: choose 0 to {U32_MAX - 1}")
        if len(self.group.encode("utf-8", "surrogateescape")) > GROUP_BYTES_MAX or not self.group.isprintable():
            raise ConfigError(f"group: a name of at most {GROUP_BYTES_MAX} bytes is needed")
        if self.capacity < CAPACITY_MIN and not self.force_capacity:
            raise ConfigError(f"capacity {self.capacity}: at least {CAPACITY_MIN} are needed to hold a group together")
        if not DATAGRAM_BYTES_MIN <= self.max_datagram_bytes <= DATAGRAM_BYTES_MAX:
            raise ConfigError(f"max_datagram_bytes: choose {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}")
        if self.psks and self.require_token is RequireToken.OFF:
            raise ConfigError("psks need tokens: they answer the challenge in it; leave require_token at auto")
        if (self.seal or self.accept_plaintext) and not self.keys:
            raise ConfigError("seal and accept_plaintext need keys")
        if self.rotate_by_gossip and not self.seal:
            raise ConfigError("rotate_by_gossip needs seal: new keys must not be read on their way")
        if self.encoding is Encoding.LIBTRIBE and (self.keys or self.require_token is not RequireToken.OFF):
            raise ConfigError("encoding libtribe has no envelopes and repeats no token: no keys, require_token off")
        if self.encoding is Encoding.LIBTRIBE and self.view is ViewKind.PARTIAL:
            raise ConfigError("encoding libtribe names nobody's address, which a partial view needs: take view full")
        if not 0 <= self.rollout <= U32_MAX:
            raise ConfigError(f"rollout {self.rollout}: choose 0 to {U32_MAX}")
        if self.drain_for is not None and self.drain_for < 1:
            raise ConfigError(f"drain_for {self.drain_for}: wait for 1 full member of a later rollout at least")
        if self.broadcast_to is not None and not (self.broadcast_to.ip and self.broadcast_to.port):
            raise ConfigError(f"broadcast_to {self.broadcast_to}: name an address and a port")
        if self.address.ip and not self.address.port:
            raise ConfigError(f"address {self.address}: port 0 is never dialled; name the port that is bound")
