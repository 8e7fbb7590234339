"""Error codes of this protocol's domain (docs/specs/swim.md 3.5)."""

from enum import IntEnum


class Refusal(IntEnum):
    """Why a JoinReq is not granted."""

    TOKEN_EXPECTED = 1
    TOKEN_INVALID = 2
    AT_CAPACITY = 3
    AUTH_FAILED = 4
    NOT_ACCEPTING = 5
    ID_CONFLICT = 6
    STALE_GEN = 7
    WRONG_GROUP = 8
    RATE_LIMITED = 9
