"""The MACed envelope ``e1``: keys, wrapping, opening, replay windows (docs/specs/swim.md 15.1 - 15.3)."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pavane.swim.errors import ConfigError, DropReason
from pavane.wire import RemoteProtocolError

MACED = 0xE1
KEY_BYTES = 32
KEYS_MAX = 8  # a rotation needs two; more only by mistakes that overlap
SALT_BYTES = 8
TAG_BYTES = 16
HEADER_BYTES = 21
ENVELOPE_BYTES = HEADER_BYTES + TAG_BYTES
WINDOW = 64  # how far datagrams of one sender may overtake each other
_COUNTER_MAX = (1 << 64) - 1


def key_id(master: bytes) -> bytes:
    """Return the four bytes by which datagrams name ``master``."""
    return hashlib.sha256(b"swim1 key id\0" + master).digest()[:4]


def mac_key(master: bytes, salt: bytes, group: str) -> bytes:
    """Return the key of one sending process: HKDF-SHA256 (RFC 5869) with one block of output."""
    extracted = hmac.new(salt, master, hashlib.sha256).digest()
    return hmac.new(extracted, b"swim1 mac\0" + group.encode() + b"\x01", hashlib.sha256).digest()


class Window:
    """Which counters of one sender were seen: the highest, and those up to ``WINDOW`` - 1 below it."""

    __slots__ = ("_bits", "_highest")

    def __init__(self) -> None:
        self._highest = 0
        self._bits = 0  # bit n: highest - n was seen

    def accepts(self, counter: int) -> bool:
        """Say whether ``counter`` is new."""
        behind = self._highest - counter
        return behind < 0 or (behind < WINDOW and not self._bits >> behind & 1)

    def add(self, counter: int) -> None:
        """Note a counter that was accepted and whose MAC was right."""
        ahead = counter - self._highest
        if ahead > 0:
            self._bits = ((self._bits << ahead if ahead < WINDOW else 0) | 1) & ((1 << WINDOW) - 1)
            self._highest = counter
        else:
            self._bits |= 1 << -ahead


@dataclass(slots=True)
class _Sender:
    key: bytes
    window: Window


class Keyring:
    """Wraps what is sent with the first key and opens what any key has protected.

    ``keys`` are masters of 32 random bytes, ``senders_max`` the replay windows kept. Raises ``ConfigError`` for keys
    that cannot be used.
    """

    def __init__(self, keys: Sequence[bytes], group: str, entropy: Callable[[int], bytes], senders_max: int) -> None:
        self._group = group
        self._entropy = entropy
        self._senders_max = senders_max
        self._senders: OrderedDict[tuple[bytes, bytes], _Sender] = OrderedDict()
        self._masters: dict[bytes, bytes] = {}
        self._salt = entropy(SALT_BYTES)
        self._counter = 0
        self.set_keys(keys)

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """Ids of the keys, the one that protects what is sent first."""
        return tuple(self._masters)

    def set_keys(self, keys: Sequence[bytes]) -> None:
        """Replace the keys; windows of senders under keys that stay are kept."""
        if not 1 <= len(keys) <= KEYS_MAX or any(len(key) != KEY_BYTES for key in keys):
            raise ConfigError(f"a keyring has 1 to {KEYS_MAX} keys of {KEY_BYTES} bytes each")
        masters = {key_id(key): key for key in keys}
        if len(masters) < len(keys):
            raise ConfigError("the keyring holds one key twice; remove one of the two")
        self._masters = masters
        for sender in [sender for sender in self._senders if sender[0] not in masters]:
            del self._senders[sender]
        self._primary = next(iter(masters))
        self._own_key = mac_key(masters[self._primary], self._salt, self._group)

    def wrap(self, message: bytes) -> bytes:
        """Return ``message`` in an envelope with a counter that was never used before."""
        if self._counter == _COUNTER_MAX:
            self._salt, self._counter = self._entropy(SALT_BYTES), 0
            self._own_key = mac_key(self._masters[self._primary], self._salt, self._group)
        self._counter += 1
        counter = self._counter.to_bytes(8, "little")
        body = b"".join((bytes((MACED,)), self._primary, self._salt, counter, message))
        return body + _tag(self._own_key, body)

    def open(self, datagram: bytes) -> bytes:
        """Return what is inside; raises ``RemoteProtocolError`` (``short``, ``keyid``, ``replay``, ``mac``)."""
        if len(datagram) <= ENVELOPE_BYTES:
            raise RemoteProtocolError(DropReason.SHORT, "envelope without a message")
        master = self._masters.get(datagram[1:5])
        if master is None:
            raise RemoteProtocolError(DropReason.KEYID, datagram[1:5].hex())
        salt, counter = datagram[5:13], int.from_bytes(datagram[13:21], "little")
        name = (datagram[1:5], salt)
        sender = self._senders.get(name)
        if salt == self._salt or (sender is not None and not sender.window.accepts(counter)):
            raise RemoteProtocolError(DropReason.REPLAY, f"{counter}")
        if sender is None:
            # Kept only after a valid MAC: a forger fills no table.
            sender = _Sender(mac_key(master, salt, self._group), Window())
        if not hmac.compare_digest(_tag(sender.key, datagram[:-TAG_BYTES]), datagram[-TAG_BYTES:]):
            raise RemoteProtocolError(DropReason.MAC)
        sender.window.add(counter)
        self._senders[name] = sender
        self._senders.move_to_end(name)
        if len(self._senders) > self._senders_max:
            self._senders.popitem(last=False)
        return datagram[HEADER_BYTES:-TAG_BYTES]


def _tag(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=TAG_BYTES).digest()
