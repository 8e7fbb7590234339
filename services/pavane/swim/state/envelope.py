"""The envelopes ``e0`` and ``e1``: keys, wrapping, opening, replay windows (docs/specs/swim.md 15.1 - 15.3)."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence

from pavane.swim.errors import ConfigError, DropReason
from pavane.swim.wire.payload import KeyOp, KeyStep
from pavane.wire import RemoteProtocolError

SEALED = 0xE0
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
    """Return the key of ``e1`` of one sending process."""
    return _derived(master, salt, b"swim1 mac\0", group)


def seal_key(master: bytes, salt: bytes, group: str) -> bytes:
    """Return the key of ``e0`` of one sending process."""
    return _derived(master, salt, b"swim1 seal\0", group)


def _derived(master: bytes, salt: bytes, purpose: bytes, group: str) -> bytes:
    """HKDF-SHA256 (RFC 5869) with one block of output."""
    extracted = hmac.new(salt, master, hashlib.sha256).digest()
    return hmac.new(extracted, purpose + group.encode() + b"\x01", hashlib.sha256).digest()


class _Seal:
    """AES-256-GCM under the key of one process, which never uses a counter twice."""

    def __init__(self, key: bytes) -> None:
        # The one part of a member that needs more than the standard library; `e1` does without.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._cipher = AESGCM(key)
        self._invalid = InvalidTag

    def seal(self, header: bytes, message: bytes) -> bytes:
        return self._cipher.encrypt(bytes(4) + header[-8:], message, header)

    def open(self, header: bytes, body: bytes) -> bytes | None:
        """Return what was sealed, ``None`` if it was not by this key."""
        try:
            return self._cipher.decrypt(bytes(4) + header[-8:], body, header)
        except self._invalid:
            return None


class ReplayWindow:
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


class _Sender:
    """One sending process: its keys, made when they are needed, and what was seen of it."""

    __slots__ = ("_group", "_mac", "_master", "_salt", "_seal", "window")

    def __init__(self, master: bytes, salt: bytes, group: str) -> None:
        self._master, self._salt, self._group = master, salt, group
        self._mac: bytes | None = None
        self._seal: _Seal | None = None
        self.window = ReplayWindow()

    @property
    def mac(self) -> bytes:
        if self._mac is None:
            self._mac = mac_key(self._master, self._salt, self._group)
        return self._mac

    @property
    def seal(self) -> _Seal:
        if self._seal is None:
            self._seal = _Seal(seal_key(self._master, self._salt, self._group))
        return self._seal

    def open(self, datagram: bytes) -> bytes | None:
        """Return what is inside, ``None`` if this process has not made the envelope."""
        if datagram[0] == SEALED:
            return self.seal.open(datagram[:HEADER_BYTES], datagram[HEADER_BYTES:])
        body, tag = datagram[:-TAG_BYTES], datagram[-TAG_BYTES:]
        return body[HEADER_BYTES:] if hmac.compare_digest(_tag(self.mac, body), tag) else None


class Keyring:
    """Wraps what is sent with the first key and opens what any key has protected.

    ``keys`` are masters of 32 random bytes, ``senders_max`` the replay windows kept; with ``seal`` what is sent is also
    encrypted (``e0``). Raises ``ConfigError`` for keys that cannot be used.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        group: str,
        entropy: Callable[[int], bytes],
        senders_max: int,
        *,
        seal: bool = False,
    ) -> None:
        self._seal = seal
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
        self._own = _Sender(masters[self._primary], self._salt, self._group)

    def step(self, step: KeyStep) -> None:
        """Make a step of a rotation (15.4); raises ``ConfigError`` for one that cannot be made."""
        masters = dict(self._masters)
        match step.op:
            case KeyOp.INSTALL if key_id(step.key) == step.key_id:
                masters.setdefault(step.key_id, step.key)
            case KeyOp.USE if step.key_id in masters:
                masters = {step.key_id: masters.pop(step.key_id), **masters}
            case KeyOp.REMOVE if step.key_id != self._primary:
                masters.pop(step.key_id, None)
            case _:
                raise ConfigError(f"key {step.key_id.hex()} cannot be {step.op.name.lower()}d: install, use, remove")
        self.set_keys(list(masters.values()))

    def wrap(self, message: bytes) -> bytes:
        """Return ``message`` in an envelope with a counter that was never used before."""
        if self._counter == _COUNTER_MAX:
            self._salt, self._counter = self._entropy(SALT_BYTES), 0
            self._own = _Sender(self._masters[self._primary], self._salt, self._group)
        self._counter += 1
        counter = self._counter.to_bytes(8, "little")
        header = b"".join((bytes((SEALED if self._seal else MACED,)), self._primary, self._salt, counter))
        if self._seal:
            return header + self._own.seal.seal(header, message)
        return header + message + _tag(self._own.mac, header + message)

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
            sender = _Sender(master, salt, self._group)
        inner = sender.open(datagram)
        if inner is None:
            raise RemoteProtocolError(DropReason.MAC)
        sender.window.add(counter)
        self._senders[name] = sender
        self._senders.move_to_end(name)
        if len(self._senders) > self._senders_max:
            self._senders.popitem(last=False)
        return inner


def _tag(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=TAG_BYTES).digest()
