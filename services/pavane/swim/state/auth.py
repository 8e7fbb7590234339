"""What a JoinReq shows of its sender's right to join, and the answer's proof (docs/specs/swim.md 6.4, 6.5)."""

import hashlib
import hmac
from collections.abc import Sequence

from pavane.swim.errors import ConfigError
from pavane.swim.wire.values import INFO, NodeInfo

PSK_BYTES_MIN = 16
PSK_BYTES_MAX = 64
PSKS_MAX = 8  # a rotation needs two; more only by mistakes that overlap
AUTH_BYTES = 16
LABEL_BYTES = 8


def label(group: str) -> bytes:
    """Return what keeps groups of different names apart; it protects nothing."""
    return hashlib.sha256(b"swim1 group\0" + _blob(group.encode())).digest()[:LABEL_BYTES]


def response(psk: bytes, token: bytes, info: NodeInfo, group: str) -> bytes:
    """Return the auth bytes of a JoinReq: the answer to the challenge ``token``."""
    return _mac(psk, b"swim1 join auth\0" + _blob(token) + INFO.encode(info) + _blob(group.encode()))


def proof(psk: bytes, auth: bytes, acker: NodeInfo) -> bytes:
    """Return by what the acker shows that it knows the PSK too."""
    return _mac(psk, b"swim1 join ack\0" + _blob(auth) + INFO.encode(acker))


class Psks:
    """Pre-shared keys of 16 to 64 bytes: the first is used, all are accepted. Raises ``ConfigError``."""

    def __init__(self, psks: Sequence[bytes], group: str) -> None:
        self._group = group
        self.replace(psks)

    def replace(self, psks: Sequence[bytes]) -> None:
        """Use other keys from now on; raises ``ConfigError``."""
        fits = all(PSK_BYTES_MIN <= len(psk) <= PSK_BYTES_MAX for psk in psks)
        if not 1 <= len(psks) <= PSKS_MAX or not fits:
            raise ConfigError(f"1 to {PSKS_MAX} PSKs of {PSK_BYTES_MIN} to {PSK_BYTES_MAX} bytes each can be used")
        self._psks = tuple(psks)

    def auth(self, token: bytes, info: NodeInfo) -> bytes:
        """Return the auth bytes of our own JoinReq."""
        return response(self._psks[0], token, info, self._group)

    def of(self, auth: bytes, token: bytes, info: NodeInfo) -> bytes | None:
        """Return the PSK by which ``auth`` was made, if it is one of ours."""
        # No short cut: which key it was is nobody's business.
        found = [psk for psk in self._psks if hmac.compare_digest(response(psk, token, info, self._group), auth)]
        return found[0] if found else None

    def proven(self, shown: bytes | None, auth: bytes, acker: NodeInfo) -> bool:
        """Say whether ``shown`` is the proof for our ``auth``."""
        fits = [hmac.compare_digest(proof(psk, auth, acker), shown or b"") for psk in self._psks]
        return any(fits)


def _mac(psk: bytes, data: bytes) -> bytes:
    return hmac.new(psk, data, hashlib.sha256).digest()[:AUTH_BYTES]


def _blob(data: bytes) -> bytes:
    return len(data).to_bytes(2, "little") + data
