"""What a storage node's core and its files say to each other."""

from typing import NamedTuple


class Damaged(Exception):
    """What a partition acknowledged cannot be read back; it must not vote or answer until it is repaired.

    ``txid`` is the first bad transaction, -1 where whoever reads knows it.
    """

    def __init__(self, text: str, txid: int = -1) -> None:
        super().__init__(text)
        self.txid = txid


class Refused(Exception):
    """Why a storage node answers a request by FAILURE."""


class SessionInfo(NamedTuple):
    """What the last SET_LOW_WATER_MARK wrote."""

    session: int = -1
    lwm: int = -1
    local_lwm: int = -1


class Kept(NamedTuple):
    """A node has ``first`` to ``last`` in ``size`` bytes, and can do without what is below ``wanted``."""

    first: int
    last: int
    wanted: int
    size: int
