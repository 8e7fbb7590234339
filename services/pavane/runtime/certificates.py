"""TLS of every port and link, from a folder whose files change while the process runs (docs/specs/operator.md 4.4).

Usage::

    certificates = Certificates(Path("/etc/pavane/tls"))
    server = await loop.create_server(make, host, port, ssl=certificates.mutual_port)
    watch(transport)                      # of each connection that is made with it
    await certificates.follow()           # for ever: ends connections whose authority is removed

A context is never changed, because OpenSSL only ever *adds* authorities to one. Changed files make new contexts, and
``mutual_port``, ``open_port`` and ``dialling`` hand each handshake to the newest of them.
"""

import asyncio
import logging
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NoReturn, Protocol, cast
from weakref import WeakKeyDictionary

CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE = "tls.crt", "tls.key", "ca.crt"
EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
REFRESH_S = 10.0  # an authority that is removed counts for nobody within a minute; a look costs four calls of stat

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_logger = logging.getLogger(__name__)


class Watched(Protocol):
    """A connection, as far as it is ended here."""

    def abort(self) -> None:
        """End it at once."""


@dataclass(frozen=True, slots=True)
class Files:
    """What the folder held at one moment, as PEM; ``authorities`` are all that count, ``generation`` numbers them."""

    generation: int
    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes


class _Handshake(ssl.SSLObject):
    """Counts why a port refused who dialled it: asyncio tells that to nobody."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            cast("_Context", self.context).refused[_why(error)] += 1
            raise


class _Context(ssl.SSLContext):
    """One context of one generation of files."""

    generation = 0
    sslobject_class = _Handshake
    refused: Counter[str]


def _why(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "expired" if error.verify_code == EXPIRED else "another authority"
    return "none shown" if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE" else "no handshake"


@dataclass(frozen=True, slots=True)
class _Generation:
    files: Files
    trusted: frozenset[bytes]
    """The authorities, as DER."""
    open_port: _Context
    mutual_port: _Context
    dialling: _Context


class _Newest(ssl.SSLContext):
    """Has nothing of its own: hands each handshake to the newest context."""

    def __new__(cls, protocol: int, *_: object) -> "_Newest":
        return super().__new__(cls, protocol)

    def __init__(self, _: int, owner: "Certificates", newest: Callable[[_Generation], _Context]) -> None:
        self.owner = owner
        self._newest = newest

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See ``ssl.SSLContext``; it is what asyncio calls for each connection."""
        context = self._newest(self.owner.newest())
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class Certificates:
    """Certificate and key of ``folder``; trusts its ``ca.crt``, and authorities in the file ``others`` if it exists.

    Files that cannot be read, or do not belong together, leave the former ones in use; a warning says so, once.
    Raises ``OSError`` (``ssl.SSLError``) where there are no former ones. ``current`` may be called
    by any thread, all else by that of the event loop.
    """

    def __init__(self, folder: Path, others: Path | None = None) -> None:
        self._folder = folder
        self._others = others
        self._lock = threading.Lock()
        self._seen: object = None
        self._fault = ""
        self.refused = Counter[str]()
        """Handshakes of ``mutual_port`` that failed, by reason."""
        self._connections: WeakKeyDictionary[Watched, tuple[tuple[bytes, ...], int]] = WeakKeyDictionary()
        seen = self._look()
        self._newest = self._load(seen, number=1)
        self._seen = seen
        self._lost_at = self._swept = 1
        """The last generation that does without an authority that counted before."""
        self.open_port: ssl.SSLContext = _Newest(ssl.PROTOCOL_TLS_SERVER, self, lambda each: each.open_port)
        """For a port that asks nobody for a certificate."""
        self.mutual_port: ssl.SSLContext = _Newest(ssl.PROTOCOL_TLS_SERVER, self, lambda each: each.mutual_port)
        """For a port whose clients show a certificate of an authority that counts."""
        self.dialling: ssl.SSLContext = _Newest(ssl.PROTOCOL_TLS_CLIENT, self, lambda each: each.dialling)
        """For connections to such a port. A certificate shows that the other end is one of them, so names are not
        compared."""

    def current(self) -> Files:
        """Return what the folder holds now."""
        return self.newest().files

    def newest(self) -> _Generation:
        """Return the contexts for handshakes that begin now."""
        with self._lock:
            try:
                seen = self._look()
                if seen != self._seen:
                    found = self._load(seen, self._newest.files.generation + 1)
                    self._seen, self._fault = seen, ""
                    if self._newest.trusted - found.trusted:
                        self._lost_at = found.files.generation
                    self._newest = found
            except OSError as error:
                if str(error) != self._fault:  # it is looked at with each handshake
                    self._fault = str(error)
                    _logger.warning("certificates in %s changed, the former ones stay in use: %s", self._folder, error)
            return self._newest

    def watch(self, connection: Watched, shown: Iterable[bytes] = (), generation: int = 0) -> None:
        """End a connection, now or later, as soon as the authority of its other end counts no more.

        ``shown`` is the other end's certificate with those above it, as DER. If it has shown none, or it is not known,
        the connection ends when any authority is removed. ``generation`` is that of the files with which the
        connection was made, 0 if that is not known.
        """
        made = tuple(shown), generation
        if self._counts(*made):
            self._connections[connection] = made
        else:
            connection.abort()

    def refresh(self) -> None:
        """Look at the files, and end the connections that do not count any more."""
        self.newest()
        if self._swept == self._lost_at:
            return
        self._swept = self._lost_at
        ended = [each for each, made in self._connections.items() if not self._counts(*made)]
        for connection in ended:
            self._connections.pop(connection, None)
            connection.abort()
        if ended:
            _logger.info("%d connections ended: an authority in %s was removed", len(ended), self._folder)

    async def follow(self) -> NoReturn:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(REFRESH_S)
            self.refresh()

    def _counts(self, chain: tuple[bytes, ...], generation: int) -> bool:
        if self._lost_at == 1 or generation >= self._lost_at:
            return True  # nothing was removed since
        return bool(chain) and issued(chain, self._newest.trusted)

    def _look(self) -> tuple[Path, tuple[object, ...]]:
        # A kubelet replaces all files at once by turning one link, so all are read behind the link as it is now.
        folder = (self._folder / CERTIFICATE_FILE).resolve(strict=True).parent
        files = [folder / name for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)]
        if self._others is not None and self._others.exists():
            files.append(self._others)
        states = ((file, file.stat()) for file in files)
        return folder, tuple((str(file), state.st_ino, state.st_size, state.st_mtime_ns) for file, state in states)

    def _load(self, seen: tuple[Path, tuple[object, ...]], number: int) -> _Generation:
        folder, _ = seen
        pair = folder / CERTIFICATE_FILE, folder / KEY_FILE
        bundles = [folder / AUTHORITIES_FILE]
        if self._others is not None and self._others.exists():
            bundles.append(self._others)
        trusted = "\n".join(_PEM.findall("".join(each.read_text("utf-8", "replace") for each in bundles)))
        found = _Generation(
            Files(number, pair[0].read_bytes(), pair[1].read_bytes(), trusted.encode()),
            frozenset(chain_of([trusted])),
            open_port=_context(ssl.PROTOCOL_TLS_SERVER, pair, None, number),
            mutual_port=_context(ssl.PROTOCOL_TLS_SERVER, pair, trusted, number),
            dialling=_context(ssl.PROTOCOL_TLS_CLIENT, pair, trusted, number),
        )
        found.mutual_port.refused = self.refused
        if self._look() != seen:
            raise OSError("they changed again while they were read")
        return found


def refused_by(port: ssl.SSLContext | None) -> Mapping[str, int]:
    """Return how many handshakes of a ``mutual_port`` failed, by reason; none of other contexts."""
    return port.owner.refused if isinstance(port, _Newest) else {}


def watch(transport: asyncio.BaseTransport) -> None:
    """End a connection as soon as the authority of its other end counts no more, if it is TLS of ``Certificates``."""
    newest = transport.get_extra_info("sslcontext")
    if isinstance(newest, _Newest):
        made = transport.get_extra_info("ssl_object")
        shown = made.getpeercert(binary_form=True)
        newest.owner.watch(cast("asyncio.Transport", transport), (shown,) if shown else (), made.context.generation)


def trusting(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return a context that trusts servers with a certificate of ``authority``, and shows ``certificate``; all PEM.

    An authority belongs to one resource, so names are not compared. Raises ``ssl.SSLError`` for
    what is no certificate, or not its key.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, None, "\n".join(_PEM.findall(authority)), 0)
    if certificate:
        with NamedTemporaryFile() as file:  # Python reads keys from files alone; nobody else may read this one
            file.write(f"{certificate}\n{key}".encode())
            file.flush()
            context.load_cert_chain(file.name)
    return context


class _Mounted(ssl.SSLContext):
    """Hands each handshake to a context of what ``folder`` holds then: a pair may come while the process runs."""

    def __new__(cls, _: Path) -> "_Mounted":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Certificates | None = None

    def wrap_bio(self, *given: Any, **more: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext``; raises ``OSError`` for files that cannot be used."""
        if self._own is None and (self._folder / CERTIFICATE_FILE).exists():
            self._own = Certificates(self._folder)
        if self._own is not None:
            return self._own.dialling.wrap_bio(*given, **more)
        return trusting((self._folder / AUTHORITIES_FILE).read_text(encoding="utf-8")).wrap_bio(*given, **more)


def client_of(folder: Path) -> ssl.SSLContext | None:
    """Return a context for clients that follows the files in ``folder``; ``None`` where there is no authority."""
    return _Mounted(folder) if (folder / AUTHORITIES_FILE).exists() else None


def chain_of(pem: Iterable[str]) -> tuple[bytes, ...]:
    """Return the certificates in some texts as DER, each once; raises ``ssl.SSLError`` for one that is broken."""
    try:
        return tuple(dict.fromkeys(ssl.PEM_cert_to_DER_cert(each) for text in pem for each in _PEM.findall(text)))
    except ValueError as error:
        raise ssl.SSLError(f"a certificate is broken: {error}") from error


def issued(chain: tuple[bytes, ...], trusted: frozenset[bytes]) -> bool:
    """Whether one of the ``trusted`` has issued the first certificate of a chain, or one that leads to it; all DER.

    It judges who counted in a handshake before, and is no replacement for one.
    """
    # Costs 13 MB, which only a process pays that loses an authority.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    def signs(upper: x509.Certificate, lower: x509.Certificate) -> bool:
        try:
            lower.verify_directly_issued_by(upper)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    try:
        roots = [x509.load_der_x509_certificate(each) for each in trusted]
        shown, *left = (x509.load_der_x509_certificate(each) for each in chain)
    except ValueError:
        return False
    while not any(signs(root, shown) for root in roots):
        above = next((each for each in left if signs(each, shown)), None)
        if above is None:
            return False
        left.remove(above)
        shown = above
    return True


def _context(protocol: int, pair: tuple[Path, Path] | None, trusted: str | None, generation: int) -> _Context:
    context = _Context(protocol)
    context.generation = generation
    context.refused = Counter()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if pair is not None:
        context.load_cert_chain(*pair)
    if trusted is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        if not trusted:
            raise ssl.SSLError("there is no certificate of an authority")
        context.load_verify_locations(cadata=trusted)
    return context
