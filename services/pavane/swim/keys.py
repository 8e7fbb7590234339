"""The files that hold the keys and the PSKs of a group (docs/specs/swim.md 6.4, 15.1, 15.4)."""

import re
from pathlib import Path

from pavane.swim.errors import ConfigError
from pavane.swim.state.auth import PSK_BYTES_MAX, PSK_BYTES_MIN, PSKS_MAX
from pavane.swim.state.envelope import KEY_BYTES, KEYS_MAX

FILE_BYTES_MAX = 65_536  # eight keys and generous comments
_HEX = re.compile(r"([0-9a-fA-F]{2})+")


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read keys, one of 64 hexadecimal digits per line, the one that protects what is sent first.

    Empty lines and lines that begin with ``#`` do not count. Raises ``OSError``, and ``ConfigError`` for a file that is
    no list of keys; the message never quotes what it read.
    """
    return parse_keys(_text(path), str(path))


def read_psks(path: Path) -> tuple[bytes, ...]:
    """Read PSKs, one of 32 to 128 hexadecimal digits per line, the one that we show first; else as ``read_keys``."""
    return parse_psks(_text(path), str(path))


def parse_keys(text: str, where: str) -> tuple[bytes, ...]:
    """Parse what such a file holds; `where` goes into the message of the ``ConfigError``."""
    return _parse(text, where, "key", KEY_BYTES, KEY_BYTES, KEYS_MAX)


def parse_psks(text: str, where: str) -> tuple[bytes, ...]:
    """Parse what a file of PSKs holds; else as ``parse_keys``."""
    return _parse(text, where, "PSK", PSK_BYTES_MIN, PSK_BYTES_MAX, PSKS_MAX)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes; write one key per line")
    return content.decode("utf-8", "replace")


def _parse(content: str, where: str, what: str, bytes_min: int, bytes_max: int, count_max: int) -> tuple[bytes, ...]:
    digits = f"{2 * bytes_min}" if bytes_min == bytes_max else f"{2 * bytes_min} to {2 * bytes_max}"
    keys = []
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            if not _HEX.fullmatch(text) or not 2 * bytes_min <= len(text) <= 2 * bytes_max:
                raise ConfigError(f"{where}:{number}: a {what} is {digits} hexadecimal digits (openssl rand -hex 32)")
            keys.append(bytes.fromhex(text))
    if not 1 <= len(keys) <= count_max:
        raise ConfigError(f"{where}: {len(keys)} {what}s, where 1 to {count_max} are allowed")
    return tuple(keys)
