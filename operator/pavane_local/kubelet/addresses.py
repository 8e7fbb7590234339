"""Loopback addresses for pods (docs/specs/operator.md 6.8.4)."""

import errno
import ipaddress
import socket
import zlib
from collections import deque
from pathlib import Path
from typing import Self

RANGE = ipaddress.IPv4Network("127.64.0.0/10")
BLOCK_PREFIX_BITS = 20  # 4095 pods a cluster, 1024 clusters a machine
CLAIM_PORT = 7069  # next below the ports of a pod (4.2), so that no pod can take it by mistake


class AddressesExhausted(Exception):
    """The machine has no free block, or the block no free address; the text says what to do."""


class AddressBlock:
    """A claimed /20 of 127.64.0.0/10. The claim is a listening socket, so it ends with the process at the latest."""

    def __init__(self, network: ipaddress.IPv4Network, claim: socket.socket) -> None:
        self.network = network
        self._claim = claim
        self._free = deque(str(address) for address in network)  # the one unused for longest first
        self._free.popleft()  # the claim

    @classmethod
    def claim(cls, folder: Path, former: str | None = None) -> Self:
        """Claim the block of the address `former` if nobody has it, else the first free one from where `folder` says.

        So clusters of different folders hardly ever reuse each other's addresses. Raises AddressesExhausted.
        """
        blocks = list(RANGE.subnets(new_prefix=BLOCK_PREFIX_BITS))
        start = zlib.crc32(bytes(folder)) % len(blocks)
        order = [ipaddress.IPv4Network((former, BLOCK_PREFIX_BITS), strict=False)] if former else []
        for network in order + blocks[start:] + blocks[:start]:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((str(network[0]), CLAIM_PORT))
                listener.listen(1)
                return cls(network, listener)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    text = f"{network[0]}: {error}; the whole of 127.0.0.0/8 must be loopback addresses, as on Linux"
                    raise AddressesExhausted(text) from error
        raise AddressesExhausted(f"every block of {RANGE} is claimed; stop a local cluster with `pavane down`")

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
