"""Bytes and the words that all protocols share: cursors, varints, layouts, limits, errors, stages.

Nothing here does I/O; every protocol package builds its codec on these pieces.
"""

from pavane.wire.errors import LimitExceeded, LocalProtocolError, ProtocolError, RemoteProtocolError
from pavane.wire.reader import Reader
from pavane.wire.stages import Stage
from pavane.wire.writer import Writer

__all__ = ["LimitExceeded", "LocalProtocolError", "ProtocolError", "Reader", "RemoteProtocolError", "Stage", "Writer"]
