"""The keys of a SwimGroup: Secret `{name}-keys`, generated or a copy of the user's (docs/specs/operator.md 1.5).

Pods mount the copy, so that the user may rotate the keys, and even name another Secret, while they run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

from pavane.swim.errors import ConfigError
from pavane.swim.keys import parse_keys, parse_psks
from pavane_operator.crds.swimgroup import KEYRING_KEY_DEFAULT, Encryption, KeyringRef

KEYRING = KEYRING_KEY_DEFAULT
"""Key in the data of Secret `{name}-keys`."""
KEY_BYTES = 32


def name_of(resource_name: str) -> str:
    """Name of the Secret."""
    return f"{resource_name}-keys"


def generated(uid: str, secret_key: bytes) -> dict[str, str]:
    """`data` of the Secret for a new resource: derived, so that rendering twice gives the same (whoever creates it
    first decides)."""
    key = hashlib.blake2b(uid.encode(), key=secret_key, digest_size=KEY_BYTES, person=b"swim-keyring").digest()
    return {KEYRING: base64.b64encode(f"{key.hex()}\n".encode()).decode()}


def given(reference: KeyringRef, encryption: Encryption, references: Mapping[str, Any]) -> dict[str, str]:
    """`data` of the Secret as the user's says. Raises ValueError, in words for him, for what no member could use."""
    where = f"Secret {reference.name}, key {reference.key}"
    if reference.name not in references:
        raise ValueError(f"Secret {reference.name} does not exist: create it with the group's keys in {reference.key}")
    encoded = (references[reference.name].get("data") or {}).get(reference.key)
    if encoded is None:
        raise ValueError(f"Secret {reference.name} has no key {reference.key}: put the group's keys there")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
        (parse_psks if encryption is Encryption.PSK else parse_keys)(text, where)
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: {error}") from error
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return {KEYRING: encoded}
