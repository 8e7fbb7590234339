"""Since when a pod has been within the allowed lag (docs/specs/operator.md 2.4, row D5)."""

from datetime import datetime

NOT_HYDRATED = "NotHydrated"
"""Blocker of a pod that still builds what it is to serve: until then no lag is small, also not 0 of 0."""


def within_lag_since(
    former: datetime | None, *, progress: int | None, target: int | None, allowed_lag: int, now: datetime
) -> datetime | None:
    """Fold one stage report into the clock of its stream; the result goes into `StageView.within_lag_since`.

    The runtime calls it for **every** report, not once per plan, so that no break goes unseen. A new stream starts with
    `former` None, so a disconnect or a restart starts the clock again.
    """
    if progress is None or target is None or target - progress > allowed_lag:
        return None
    return former or now
