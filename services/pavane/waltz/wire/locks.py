"""The 32-bit hash under which a lock travels (docs/specs/waltz.md 5)."""

import struct
from collections.abc import Iterable

_MASK = (1 << 32) - 1


def lock_hash(name: str, number: int) -> int:
    """Return the hash of lock (``name``, ``number``), which is a signed 64-bit number. Raises ``ValueError``."""
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"lock {name}/{number}: the number does not fit 64 bits")
    try:
        units = name.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r} is no text: {error.reason}") from None
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & _MASK
    value ^= (number ^ ((number & (1 << 64) - 1) >> 32)) & _MASK
    return value - (1 << 32) if value >> 31 else value


def lock_hashes(locks: Iterable[tuple[str, int]]) -> tuple[int, ...]:
    """Return the hashes of ``locks`` in their order."""
    return tuple(lock_hash(name, number) for name, number in locks)
