"""CURVE on the sockets of peers and clients (docs/specs/raft.md 14.2): keys, and who may connect.

Keys are ØMQ's text form, Z85: 40 characters. The secret key of the cluster's pair makes a server; a client needs the
public one, and a pair of its own that the server accepts. Peers connect to each other with the cluster's own pair.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import zmq
from zmq.utils import z85

KEY_CHARACTERS = 40
PUBLIC_SUFFIX = ".pub"
REREAD_S = 5.0  # a key that is listed or struck off counts after this long at the latest (14.2)
ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by ZMQ RFC 27, as are the frames of request and answer
ZAP_PUBLIC_KEY_FRAME = 6

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """What a client connects with: the public key of the cluster, and a pair of its own."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for key in (self.server, self.public, self.secret):
            check_key(key)

    def secure(self, socket: "zmq.Socket[Any]") -> None:
        """Make a socket, before it connects, talk to this cluster alone."""
        socket.set(zmq.CURVE_SERVERKEY, self.server)
        socket.set(zmq.CURVE_PUBLICKEY, self.public)
        socket.set(zmq.CURVE_SECRETKEY, self.secret)


@dataclass(frozen=True, slots=True)
class CurveServer:
    """What a peer binds with: the secret key of the cluster's pair, and who may connect.

    ``clients`` is a folder whose ``*.pub`` files hold the public keys of accepted clients; ``None`` accepts everybody
    who knows the cluster's public key.
    """

    secret: bytes = field(repr=False)
    clients: Path | None = None

    def __post_init__(self) -> None:
        check_key(self.secret)

    @classmethod
    def read(cls, secret_file: Path, clients: Path | None) -> Self:
        """Read the secret key. Raises ``OSError``, and ``ValueError`` for a file that holds none."""
        return cls(secret_file.read_bytes().strip(), clients)

    @property
    def public(self) -> bytes:
        """The public key of the cluster's pair."""
        return zmq.curve_public(self.secret)

    @property
    def keys(self) -> CurveKeys:
        """What peers connect to each other with."""
        public = self.public
        return CurveKeys(public, public, self.secret)

    def secure(self, socket: "zmq.Socket[Any]") -> None:
        """Make a socket, before it is bound, accept only connections that ``Zap`` lets in."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.secret)


def check_key(key: bytes) -> None:
    """Raise ``ValueError`` for what is no key in Z85. The words do not repeat it: it may be a secret one."""
    try:
        good = len(key) == KEY_CHARACTERS and bool(z85.decode(key))
    except (ValueError, KeyError, struct.error):
        good = False
    if not good:
        raise ValueError(f"no CURVE key: it must be {KEY_CHARACTERS} characters of Z85")


class Zap:
    """Answers ØMQ's question whether a key may connect, for all sockets of one context.

    Used by the thread of ``loop`` only; ``clock`` counts seconds. ``struck_off`` is called when a key that was listed
    is not any more. The name of a connection (``User-Id``) is its key as text.
    """

    def __init__(
        self,
        server: CurveServer,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        struck_off: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = server.clients
        self._struck_off = struck_off
        self._own = z85.decode(server.public)
        self._loop = loop
        self._clock = clock
        self._listed: frozenset[bytes] = frozenset()
        self._read_at: float | None = None
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self._descriptor = cast("int", self._socket.get(zmq.FD))
        loop.add_reader(self._descriptor, self._answer)
        self._again = loop.call_later(REREAD_S, self._look)

    def close(self) -> None:
        """Stop answering; the other sockets of the context must be closed by now."""
        self._again.cancel()
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)

    def accepts(self, key: bytes) -> bool:
        """Whether a public key (32 raw bytes) may connect now."""
        return self._folder is None or key == self._own or key in self._accepted(self._folder)

    def accepts_name(self, name: str) -> bool:
        """The same for the name of a connection."""
        return self.accepts(z85.decode(name.encode()))

    def _look(self) -> None:
        if self._folder is not None:
            self._accepted(self._folder)
        self._again = self._loop.call_later(REREAD_S, self._look)

    def _answer(self) -> None:
        # ØMQ signals edges: go on until there is nothing left.
        while cast("int", self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            request = self._socket.recv_multipart(zmq.DONTWAIT)
            version, request_id, *_ = request
            key = request[ZAP_PUBLIC_KEY_FRAME] if len(request) > ZAP_PUBLIC_KEY_FRAME else b""
            good = bool(key) and self.accepts(key)
            status, text = (b"200", b"OK") if good else (b"400", b"this public key is not listed")
            name = z85.encode(key) if good else b""
            self._socket.send_multipart([version, request_id, status, text, name, b""], zmq.DONTWAIT)

    def _accepted(self, folder: Path) -> frozenset[bytes]:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= REREAD_S:
            self._read_at = now
            former, self._listed = self._listed, frozenset(_listed_in(folder))
            if former - self._listed:
                self._loop.call_soon(self._struck_off)
        return self._listed


def _listed_in(folder: Path) -> set[bytes]:
    keys = set()
    for path in folder.glob(f"*{PUBLIC_SUFFIX}"):
        try:
            key = path.read_bytes().strip()
            check_key(key)
        except (OSError, ValueError) as error:
            _logger.warning("%s lists no client: %s", path, error)
        else:
            keys.add(z85.decode(key))
    return keys
