"""The words under which dropped datagrams are counted, and what a caller of this package can get wrong."""

from enum import StrEnum


class DropReason(StrEnum):
    """Why a datagram, or a part of one, was not taken. The first ten are those of docs/specs/swim.md 3.3."""

    SHORT = "short"
    BYTECODE = "bytecode"
    FAMILY = "family"
    UTF8 = "utf8"
    TRAILING = "trailing"
    TLV = "tlv"
    RECORD = "record"
    KEYID = "keyid"
    MAC = "mac"
    REPLAY = "replay"
    PLAINTEXT = "plaintext"  # a keyring is configured, the datagram came without an envelope (2.3)
    SELF = "self"  # we are its author (2.3)
    STATE = "state"  # of no use in our present state (2.6)
    STRANGER = "stranger"  # nothing that a stranger may say (2.3)
    DIAL = "dial"  # answers no open dial (6.1)
    PROOF = "proof"  # an acknowledgement whose sender does not know the PSK (6.5)
    GENERATION = "gen"  # beyond the poisoning guard (5.2)
    PAGE = "page"  # a SYNC page whose range or order is wrong (11.2)
    ITEMS = "items"  # more items than are applied of one datagram (11.2)
    RATE = "rate"  # a token bucket is empty (17.3)
    AMPLIFICATION = "amplification"  # an answer of ours that would have broken 18.3
    RELAY = "relay"  # neither for us nor to be passed on (8.2, 8.3)


ILL_FORMED = (
    DropReason.SHORT,
    DropReason.BYTECODE,
    DropReason.FAMILY,
    DropReason.UTF8,
    DropReason.TRAILING,
    DropReason.TLV,
    DropReason.RECORD,
    DropReason.KEYID,
    DropReason.MAC,
    DropReason.REPLAY,
    DropReason.PLAINTEXT,
)
"""Reasons that speak of another program, another key or an attack, and that an administrator should see."""


class SwimError(Exception):
    """Base of the errors that a member reports to its own program."""


class MessageError(SwimError):
    """A message or metadata that cannot be told; the message says why."""


class ConfigError(SwimError):
    """A setting that cannot work; the message names it and says what would."""
