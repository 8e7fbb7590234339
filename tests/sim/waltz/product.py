"""What of the product a simulation switches on."""

from dataclasses import dataclass
from typing import Any

from pavane.waltz.core.node import Node
from pavane.waltz.core.retention import KEEP_ALL, Policy
from pavane.waltz.storage import Directory
from pavane.waltz.storage.directory import PartitionFiles

SEGMENT_BYTES, SEGMENT_BYTES_TRIMMED = 3000, 1000  # so that logs have several


class Unmarked(Directory):
    """Does not look at the mark of what was acknowledged."""

    def _partition(self, number: int, marked: bool) -> PartitionFiles:
        return super()._partition(number, False)


class Unfenced(Node):
    """Promises to obey a session, and forgets it when it starts again."""

    def _keep_fences(self, messages: Any) -> None:
        pass


@dataclass(frozen=True)
class Product:
    """What of the product is switched on."""

    directory: type[Directory] = Directory
    segment_bytes: int = SEGMENT_BYTES
    policy: Policy = KEEP_ALL
