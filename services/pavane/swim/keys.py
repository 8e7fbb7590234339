"""The file that holds the keys of a group (docs/specs/swim.md 15.1, 15.4)."""

import re
from pathlib import Path

from pavane.swim.errors import ConfigError
from pavane.swim.state.envelope import KEY_BYTES, KEYS_MAX

FILE_BYTES_MAX = 65_536  # eight keys and generous comments
_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read keys, one of 64 hexadecimal digits per line, the one that protects what is sent first.

    Empty lines and lines that begin with ``#`` do not count. Raises ``OSError``, and ``ConfigError`` for a file that is
    no list of keys; the message never quotes what it read.
    """
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes; a key file has one key of 64 digits per line")
    keys = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            if not _KEY.fullmatch(text):
                raise ConfigError(
                    f"{path}:{number}: a key is {2 * KEY_BYTES} hexadecimal digits (openssl rand -hex 32)"
                )
            keys.append(bytes.fromhex(text))
    if not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(f"{path}: {len(keys)} keys, where 1 to {KEYS_MAX} are allowed")
    return tuple(keys)
