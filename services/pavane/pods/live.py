"""Settings that change while a pod runs: a file that the kubelet replaces (docs/specs/operator.md 1.4 mark L, 4.1)."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import yaml

LOOK_S = 2.0  # the kubelet itself takes up to a minute to bring a change

_logger = logging.getLogger(__name__)


async def follow(path: Path, apply: Callable[[dict[str, object]], None]) -> None:
    """Give the settings in ``path`` to ``apply`` now and whenever the file changes, for ever.

    ``apply`` raises ``ValueError`` for settings that are unusable. Those, and a file that cannot be read, are logged
    once and leave what was set before in force.
    """
    known: tuple[str, ...] = ()
    while True:
        found = _read(path)
        if found != known:
            known = found
            _take(path, found, apply)
        await asyncio.sleep(LOOK_S)


def _read(path: Path) -> tuple[str, ...]:
    """Return the text, or two words of which the second says why there is none. The file is small and in memory."""
    try:
        return (path.read_text(encoding="utf-8"),)
    except (OSError, UnicodeDecodeError) as error:
        return ("unreadable", str(error))


def _take(path: Path, found: tuple[str, ...], apply: Callable[[dict[str, object]], None]) -> None:
    try:
        if len(found) > 1:
            raise ValueError(found[1])
        values = yaml.safe_load(found[0])
        if not isinstance(values, dict):
            raise ValueError("it must hold a map of settings")
        apply(values)
    except (ValueError, yaml.YAMLError) as error:
        _logger.warning("live settings in %s are not taken: %s", path, error)
