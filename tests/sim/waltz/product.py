"""What of the product a simulation switches on."""

from dataclasses import dataclass

from pavane.waltz.core.retention import KEEP_ALL, Policy
from pavane.waltz.state.recovery import RULES, Rules

SEGMENT_BYTES, SEGMENT_BYTES_TRIMMED = 3000, 1000  # so that logs have several


@dataclass(frozen=True)
class Product:
    """What of the product is switched on."""

    rules: Rules = RULES
    marks: bool = True
    fences: bool = True
    segment_bytes: int = SEGMENT_BYTES
    policy: Policy = KEEP_ALL
