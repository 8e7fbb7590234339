"""Loopback addresses for pods (docs/specs/operator.md 6.8.4)."""

import errno
import ipaddress
import math
import socket
import zlib
from pathlib import Path
from typing import Self

RANGE = ipaddress.IPv4Network("127.64.0.0/10")
BLOCK_PREFIX_BITS = 20  # 4095 pods a cluster, 1024 clusters a machine
CLAIM_PORT = 7069  # next below the ports of a pod (4.2), so that no pod can take it by mistake
RELEASE_SECONDS = 60.0  # a client that still knows a dead pod's address must not reach its successor


class AddressesExhausted(Exception):
    """The machine has no free block, or the block no free address; the text says what to do."""


class AddressBlock:
    """A claimed /20 of 127.64.0.0/10. The claim is a listening socket, so it ends with the process at the latest."""

    def __init__(self, network: ipaddress.IPv4Network, claim: socket.socket) -> None:
        self.network = network
        self._claim = claim
        self._free_from: dict[str, float] = {}  # infinite while in use

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

    def take(self, now: float, wanted: str | None = None) -> str:
        """An address for a pod, `wanted` (its former one) if it is free. Raises AddressesExhausted."""
        own = [str(each) for each in self.network][1:]  # the first address is the claim
        for address in [wanted, *own] if wanted in own else own:
            if self._free_from.get(address, now) <= now:
                self._free_from[address] = math.inf
                return address
        raise AddressesExhausted(f"all {len(own)} pod addresses of {self.network} are in use; delete pods")

    def release(self, address: str, now: float) -> None:
        """Give an address back; it is used again after 60 s."""
        self._free_from[address] = now + RELEASE_SECONDS

    def close(self) -> None:
        """Give the block back."""
        self._claim.close()
