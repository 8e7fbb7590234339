"""Loopback addresses for pods (docs/specs/operator.md 6.8.4)."""

import contextlib
import errno
import fcntl
import ipaddress
import json
import logging
import os
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Self, TypeVar

RANGE = ipaddress.IPv4Network("127.64.0.0/10")
BLOCK_PREFIX_BITS = 20  # 4095 pods a cluster, 1024 clusters a machine
CLAIM_PORT = 7069  # next below the ports of a pod (4.2), so that no pod can take it by mistake
FILE = "addresses"  # of a cluster's folder: its block
CLAIMS = "addresses.json"  # of the user's cache: the folders of all blocks
PATIENCE_SECONDS = 5.0  # for a killed process of the same folder, whose sockets end after its lock, and for the cache
AGAIN_SECONDS = 0.05

Found = TypeVar("Found")

_log = logging.getLogger(__name__)


class AddressesExhausted(Exception):
    """The machine has no free block, or the block no free address; the text says what to do."""


class AddressesTaken(AddressesExhausted):
    """Another process holds the block of a folder: clients that know its addresses would reach that one."""


class AddressBlock:
    """A claimed /20 of 127.64.0.0/10. The claim is a listening socket, so it ends with the process at the latest."""

    def __init__(self, network: ipaddress.IPv4Network, claim: socket.socket) -> None:
        self.network = network
        self._claim = claim
        self._free = deque(str(address) for address in network)  # the one unused for longest first
        self._free.popleft()  # the claim

    @classmethod
    def claim(cls, folder: Path, former: str | None = None) -> Self:
        """Claim the block that belongs to `folder`, which nobody gets while the folder is there and stands still.

        A folder without one gets that of the address `former` if it is free, else the first free one from where its
        path says; for good: its file `addresses` and the user's cache remember it. Waits up to PATIENCE_SECONDS for a
        process that ends. Raises AddressesTaken and AddressesExhausted.
        """
        own, owner = _own(folder), str(folder.resolve())
        listener = _patiently(lambda: _listen(own)) if own is not None else None
        with _claims() as claims:
            if own is None:
                network, listener = _unclaimed(folder, former, claims)
            else:
                network = own
            try:
                other = claims.get(str(network), owner)
                if own is None:
                    new = folder / f".{FILE}.new"
                    new.write_text(f"{network}\n", encoding="ascii")
                    new.replace(folder / FILE)
                elif other != owner and _has(other, own):
                    raise _taken(folder, own, f"the local cluster of {other}")
                if listener is None:
                    raise _taken(folder, network, "another program")
                claims.pop(str(network), None)
                claims[str(network)] = owner
                return cls(network, listener)
            except BaseException:
                if listener is not None:
                    listener.close()
                raise

    def take(self, wanted: str | None = None) -> str:
        """An address for a pod, `wanted` (its former one) if it is free. Raises AddressesExhausted."""
        if not self._free:
            raise AddressesExhausted(f"all pod addresses of {self.network} are in use; delete pods")
        address = wanted if wanted and wanted in self._free else self._free[0]
        self._free.remove(address)
        return address

    def release(self, address: str) -> None:
        """Give an address back. All others come first, as a client of a dead pod must not reach its successor."""
        self._free.append(address)

    def close(self) -> None:
        """Give the block back."""
        self._claim.close()


def _own(folder: Path) -> ipaddress.IPv4Network | None:
    """The block that a folder remembers; None where it has none, or is gone."""
    try:
        return ipaddress.IPv4Network((folder / FILE).read_text(encoding="ascii").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise AddressesTaken(f"{folder / FILE} names no block of addresses ({error}): remove it") from error


def _has(folder: str, block: ipaddress.IPv4Network) -> bool:
    """Whether another folder that was given a block still has it, as far as we may see."""
    try:
        return _own(Path(folder)) == block
    except (OSError, AddressesTaken):
        return True


def _unclaimed(
    folder: Path, former: str | None, claims: Mapping[str, str]
) -> tuple[ipaddress.IPv4Network, socket.socket]:
    """A block of no folder, else that of the folder whose cluster was started longest ago, and its claim."""
    blocks = list(RANGE.subnets(new_prefix=BLOCK_PREFIX_BITS))
    start = zlib.crc32(bytes(folder)) % len(blocks)
    order = [ipaddress.IPv4Network((former, BLOCK_PREFIX_BITS), strict=False)] if former else []
    order += blocks[start:] + blocks[:start]
    free = (each for each in order if str(each) not in claims or not _has(claims[str(each)], each))
    known = {str(each): each for each in blocks}
    for network in chain(free, (known[each] for each in claims if each in known)):
        listener = _listen(network)
        if listener is not None:
            return network, listener
    raise AddressesExhausted(f"every block of {RANGE} is claimed; stop a local cluster with `pavane down`")


def _listen(network: ipaddress.IPv4Network) -> socket.socket | None:
    """The claim of a block on this machine; None while a process has it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((str(network[0]), CLAIM_PORT))
        listener.listen(1)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            text = f"{network[0]}: {error}; the whole of 127.0.0.0/8 must be loopback addresses, as on Linux"
            raise AddressesExhausted(text) from error
        return None
    return listener


def _taken(folder: Path, block: ipaddress.IPv4Network, by: str) -> AddressesTaken:
    return AddressesTaken(
        f"the addresses of this local cluster, {block}, are taken by {by}: end it, or remove {folder / FILE} to get "
        "others, and forget links and tokens of the dashboard that name the old ones"
    )


@contextlib.contextmanager
def _claims() -> Iterator[dict[str, str]]:
    """Folders of this user by block, that whose cluster was started longest ago first; what is changed is kept."""
    with contextlib.ExitStack() as stack:
        try:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pavane"
            cache.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((cache / CLAIMS).open("a+", encoding="utf-8"))
            if not _patiently(lambda: _locked(file)):
                raise OSError(f"{cache / CLAIMS} stays locked")
            file.seek(0)
            text = file.read()
        except (OSError, RuntimeError) as error:  # no home, for one
            _log.warning("only the folder itself remembers its addresses: %s", error)
            yield {}
            return
        try:
            claims = {str(block): str(folder) for block, folder in json.loads(text or "{}").items()}
        except (ValueError, AttributeError):  # it is a cache
            claims = {}
        yield claims
        try:
            file.truncate(0)
            file.write(json.dumps(claims, indent=1))
            file.flush()
        except OSError as error:  # a full disk, for one
            _log.warning("only the folder itself remembers its addresses: %s", error)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _patiently(attempt: Callable[[], Found]) -> Found:
    """Try until something true is found, for PATIENCE_SECONDS; return what was found last."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := attempt()) and time.monotonic() < end:
        time.sleep(AGAIN_SECONDS)
    return found
