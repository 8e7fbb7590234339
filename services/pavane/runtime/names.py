"""Names of pods and Services to addresses: a hosts file first, then the system (docs/specs/operator.md 6.8.5).

The local cluster has neither DNS nor virtual addresses. It keeps one hosts file per namespace and names it in
``PAVANE_HOSTS_FILE``. Where the variable is absent, everything here is the system's own resolution.
"""

import asyncio
import functools
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HOSTS_FILE_VARIABLE = "PAVANE_HOSTS_FILE"
_INTERNAL = (".svc", ".svc.cluster.local")
_KNOWN = "kubernetes.default.svc"  # in every cluster, and nobody's but its administrators'
HOSTS_FILE_BYTES_MAX = 16 << 20  # some 200,000 lines: far above any local cluster, and a read that ends soon

LOOKUPS_MAX = 8  # at once in one process; the others wait

_system_getaddrinfo = socket.getaddrinfo
# Threads of their own: where no DNS answers, a name that is gone holds one for many seconds, and what else runs in the
# default threads, such as every call to the API server, would wait for it.
_lookups = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="pavane-names")


def bracketed(address: str) -> str:
    """Return an address as it stands before a port and in a URL: one of IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


class _HostsFile:
    """The last read content of one hosts file; read again when the file on disk is another one."""

    def __init__(self) -> None:
        self._mark: tuple[str, int, int, int] | None = None
        self._addresses: Mapping[str, tuple[str, ...]] = {}

    def addresses(self, host: str) -> tuple[str, ...]:
        """All addresses of ``host`` in the order of the file; empty when it names none or there is no file."""
        path = os.environ.get(HOSTS_FILE_VARIABLE)
        if not path:
            return ()
        try:
            status = os.stat(path)  # noqa: PTH116 - once per lookup; Path costs more than the call
            mark = (path, status.st_ino, status.st_mtime_ns, status.st_size)
            if mark != self._mark:
                with Path(path).open(encoding="utf-8", errors="replace") as file:
                    self._addresses = parse_hosts(file.read(HOSTS_FILE_BYTES_MAX))
                self._mark = mark
        except OSError:
            return ()  # between two clusters there may be no file; the system decides then
        return self._addresses.get(_canonical(host), ())


_hosts_file = _HostsFile()


def parse_hosts(text: str) -> dict[str, tuple[str, ...]]:
    """Return name → addresses of a hosts file: ``address name …`` per line, ``#`` comments, bad lines skipped."""
    found: dict[str, dict[str, None]] = {}
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if len(fields) < 2 or not _is_address(fields[0]):
            continue
        for name in fields[1:]:
            found.setdefault(_canonical(name), {})[fields[0]] = None
    return {name: tuple(addresses) for name, addresses in found.items()}


def resolve(host: str) -> list[str]:
    """Return all addresses of ``host``, without duplicates: an address itself, the hosts file, else the system.

    The hosts file is looked at on every call (one ``stat``) and read again when it changed. The system's answer may
    take seconds and blocks: an event loop calls ``look_up``. Where there is a hosts file, the system is not asked for
    names of Services, which it cannot know. Raises ``socket.gaierror`` when nobody knows the name.
    """
    if _is_address(host):
        return [host]
    listed = _hosts_file.addresses(host)
    if listed:
        return list(listed)
    if os.environ.get(HOSTS_FILE_VARIABLE):
        _refuse_internal(host)
    return _of_system(host)[1]


def resolve_among(addresses: Mapping[str, Sequence[str]], host: str) -> list[str]:
    """Return the same where the hosts file's content is ``addresses`` (``parse_hosts``)."""
    if listed := addresses.get(_canonical(host)):
        return list(listed)
    _refuse_internal(host)
    return resolve(host)


class AnotherName(socket.gaierror):
    """A name is none of the Service that was meant, or stands for another name."""


def resolve_service(host: str) -> list[str]:
    """Return all addresses of the Service ``host``, as ``NAME.NAMESPACE.svc``, and of nothing else.

    Whoever may edit Services of a namespace may have one there of type ExternalName, which leads to a Service of a
    namespace that only the caller reaches. Raises ``AnotherName`` for such a name, else as ``resolve`` does.
    """
    if _is_address(host) or os.environ.get(HOSTS_FILE_VARIABLE):  # which has addresses alone
        return resolve(host)
    official, addresses = _of_system(host)
    if official not in (_canonical(host), _canonical(host) + _cluster_domain()):
        text = f"{host} stands for {official}: a Service of type ExternalName is not followed"
        raise AnotherName(socket.EAI_NONAME, text)
    return addresses


@functools.cache
def _cluster_domain() -> str:
    """Return what the system puts behind the names of Services: ``.cluster.local`` in most clusters."""
    return _of_system(_KNOWN)[0].removeprefix(_KNOWN)


async def look_up(find: Callable[[str], Sequence[str]], host: str) -> Sequence[str]:
    """Return ``find(host)``, which may block, from a thread; raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_lookups, find, host)


def _refuse_internal(host: str) -> None:
    if _canonical(host).endswith(_INTERNAL):
        raise socket.gaierror(socket.EAI_NONAME, f"{host} is not in the hosts file of the local cluster")


def _of_system(host: str) -> tuple[str, list[str]]:
    """Return the name that ``host`` stands for in the end, and its addresses."""
    try:
        found = _system_getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    except UnicodeError as error:  # of a label that is empty or too long for any name
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is no name of a host") from error
    return _canonical(str(found[0][3])), list(dict.fromkeys(str(address[0]) for *_, address in found))


def install() -> None:
    """Let every Python socket of this process resolve through the hosts file first; calling it again is harmless."""
    socket.getaddrinfo = _getaddrinfo


def _getaddrinfo(
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    listed = _hosts_file.addresses(name) if isinstance(name, str) else ()
    if not listed:
        if isinstance(name, str) and os.environ.get(HOSTS_FILE_VARIABLE):
            _refuse_internal(name)
        return _system_getaddrinfo(host, port, family, type, proto, flags)
    found: list[Any] = []
    for address in listed:
        version = ipaddress.ip_address(address).version
        if family not in (socket.AF_UNSPEC, socket.AF_INET if version == 4 else socket.AF_INET6):
            continue
        found += _system_getaddrinfo(address, port, family, type, proto, flags)
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, f"{name} has no address of this family in the hosts file")
    return found


def _canonical(host: str) -> str:
    return host.rstrip(".").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
