"""Loopback addresses for pods (docs/specs/operator.md 6.8.4)."""

import errno
import ipaddress
import socket
import zlib
from pathlib import Path
from typing import Self

RANGE = ipaddress.IPv4Network("127.64.0.0/10")
BLOCK_PREFIX_BITS = 20  # 4095 pods a cluster, 1024 clusters a machine
CLAIM_PORT = 7069  # next below the ports of a pod (4.2), so that no pod can take it by mistake
RELEASE_SECONDS = 60.0  # a client that still knows a dead pod's address must not reach its successor


class AddressesMissing(Exception):
    """This system has no loopback address but 127.0.0.1; the text names the commands that add more."""


class AddressesExhausted(Exception):
    """All blocks of the machine, or all addresses of the block, are in use."""


class AddressBlock:
    """A claimed /20 of 127.64.0.0/10. The claim is a listening socket, so it ends with the process at the latest."""

    def __init__(self, network: ipaddress.IPv4Network, claim: socket.socket) -> None:
        self.network = network
        self._claim = claim
        self._used: dict[str, float | None] = {}  # None: in use; else free from that moment on
        self._next = 1

    @classmethod
    def claim(cls, folder: Path, former: str | None = None) -> Self:
        """Claim the block `former` (CIDR) if nobody has it, else the first free one from a place that `folder` decides.

        So clusters of different folders hardly ever reuse each other's addresses. Raises AddressesMissing where
        loopback has one address only, AddressesExhausted when no block is free.
        """
        blocks = list(RANGE.subnets(new_prefix=BLOCK_PREFIX_BITS))
        start = zlib.crc32(bytes(folder)) % len(blocks)
        order = [ipaddress.IPv4Network(former)] if former else []
        missing = True
        for network in order + blocks[start:] + blocks[:start]:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((str(network[0]), CLAIM_PORT))
                listener.listen(1)
            except OSError as error:
                listener.close()
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                    raise
                missing = missing and error.errno == errno.EADDRNOTAVAIL
            else:
                return cls(network, listener)
        if missing:
            raise AddressesMissing(_advice(blocks[0]))
        raise AddressesExhausted(f"every block of {RANGE} is claimed; stop a local cluster with `pavane down`")

    def take(self, now: float, wanted: str | None = None) -> str:
        """An address for a pod, `wanted` (its former one) if it is free. Raises AddressesExhausted."""
        if wanted and ipaddress.IPv4Address(wanted) in self.network and wanted not in self._used:
            self._used[wanted] = None
            return wanted
        size = self.network.num_addresses - 1  # the first address is the claim
        for _ in range(size):
            address = str(self.network[self._next])
            self._next = self._next % size + 1
            free_from = self._used.get(address, now)
            if free_from is not None and free_from <= now:
                self._used[address] = None
                return address
        raise AddressesExhausted(f"all {size} pod addresses of {self.network} are in use; delete pods")

    def release(self, address: str, now: float) -> None:
        """Give an address back; it is used again after 60 s."""
        self._used[address] = now + RELEASE_SECONDS

    def close(self) -> None:
        """Give the block back."""
        self._claim.close()


def _advice(network: ipaddress.IPv4Network) -> str:
    prefix = str(network[0]).rsplit(".", 1)[0]
    return (
        "every pod needs a loopback address of its own, and this system has 127.0.0.1 alone. Add some and try again:\n"
        f"  for i in $(seq 0 63); do sudo ifconfig lo0 alias {prefix}.$i up; done    # macOS, BSD\n"
        "  sudo ip address add 127.0.0.1/8 dev lo                                    # Linux"
    )
