"""How often `self.run` tries again, and when (docs/specs/ambrosia.md 18.8)."""

import sys
from dataclasses import dataclass

RETRY_ATTEMPTS = 10  # by default: with the delays below the last one begins after eight and a half minutes
RETRY_ATTEMPTS_MAX = 1_000_000  # each costs two messages in the log; a flow that should try for ever restarts
RETRY_DELAY_S_MAX = 30 * 86400.0  # a longer one is a decision of the application: `sleep`


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy for ``self.run(Retry(…), function, …)``: what raises is tried again, after growing delays.

    Delays are in seconds. Raises ``ValueError`` or ``TypeError`` for values that cannot be.
    """

    attempts: int = RETRY_ATTEMPTS
    """At most so many, the first one among them."""
    first_s: float = 1.0
    """The delay before the second attempt."""
    factor: float = 2.0
    """How many times longer each further delay is."""
    cap_s: float = 300.0
    """No delay is longer."""
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    """Exceptions that are worth another attempt; all others end the run at once."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise TypeError(f"Retry(attempts={self.attempts!r}): give a whole number")
        if not 1 <= self.attempts <= RETRY_ATTEMPTS_MAX:
            raise ValueError(f"Retry(attempts={self.attempts}): give 1 to RETRY_ATTEMPTS_MAX ({RETRY_ATTEMPTS_MAX})")
        for name in ("first_s", "cap_s"):
            if not 0 <= getattr(self, name) <= RETRY_DELAY_S_MAX:
                text = f"give 0 to RETRY_DELAY_S_MAX ({RETRY_DELAY_S_MAX:.0f}) seconds"
                raise ValueError(f"Retry({name}={getattr(self, name)!r}): {text}")
        if not 1 <= self.factor <= sys.float_info.max:
            raise ValueError(f"Retry(factor={self.factor!r}): give 1 or more")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(each, type) and issubclass(each, Exception) for each in kinds):
            raise TypeError(f"Retry(on={self.on!r}): give classes of exceptions")

    def delay_ms(self, failed: int) -> int | None:
        """Return the delay after so many failed attempts, in milliseconds; ``None`` if that was the last one."""
        if failed >= self.attempts:
            return None
        try:
            delay_s = self.first_s * float(self.factor) ** (failed - 1)
        except OverflowError:
            delay_s = self.cap_s if self.first_s else 0
        return round(1000 * min(delay_s, self.cap_s))
