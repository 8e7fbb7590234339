"""Stateless join tokens (docs/specs/swim.md 6.3)."""

import base64
import hashlib
import hmac
from collections.abc import Callable

from pavane.swim.wire.values import Address
from pavane.wire import Writer

SECRET_BYTES = 32
ROTATION_S = 60.0  # two secrets are kept, so each serves for at least this long after its last token was made
TOKEN_LIFETIME_S = 30  # a joiner answers within milliseconds; replay from the same address is harmless meanwhile
MAC_BYTES = 12
_PURPOSE = b"swim1 join cookie\0"


class Cookies:
    """Makes and checks tokens with the current and the previous secret.

    ``entropy(n)`` returns n random bytes. Times are Unix seconds.
    """

    def __init__(self, group: str, entropy: Callable[[int], bytes]) -> None:
        self._group = group.encode()
        self._entropy = entropy
        self._secrets = [entropy(SECRET_BYTES)]

    def rotate(self) -> None:
        """Replace the secret; the one before stays valid until the next call. To be called every ``ROTATION_S``."""
        self._secrets = [self._entropy(SECRET_BYTES), self._secrets[0]]

    def token(self, unix_s: int, source: Address, node: int) -> str:
        """Return a token for ``node`` at ``source``."""
        stamp = (unix_s & 0xFFFFFFFF).to_bytes(4, "little")
        return _text(stamp + self._mac(self._secrets[0], stamp, source, node))

    def valid(self, token: bytes, unix_s: int, source: Address, node: int) -> bool:
        """Say whether ``token`` was made here for ``node`` at ``source`` within ``TOKEN_LIFETIME_S``."""
        try:
            raw = base64.urlsafe_b64decode(token + b"=" * (-len(token) % 4))
        except ValueError:
            return False
        stamp, mac = raw[:4], raw[4:]
        if _text(raw).encode() != token or not 0 <= unix_s - int.from_bytes(stamp, "little") <= TOKEN_LIFETIME_S:
            return False
        # No short cut: how many secrets were tried is nobody's business.
        fits = [hmac.compare_digest(self._mac(secret, stamp, source, node), mac) for secret in self._secrets]
        return any(fits)

    def _mac(self, secret: bytes, stamp: bytes, source: Address, node: int) -> bytes:
        text = Writer().raw(_PURPOSE).raw(stamp).raw(source.encode()).uint_le(node, 4)
        text.uint_le(len(self._group), 2).raw(self._group)
        return hmac.new(secret, text.getvalue(), hashlib.sha256).digest()[:MAC_BYTES]


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
