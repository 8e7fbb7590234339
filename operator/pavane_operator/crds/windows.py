"""`spec.rollout.windows`: when a generation may be promoted (docs/specs/operator.md 2.5)."""

from typing import Annotated

from pydantic import Field

from pavane_operator.crds.base import Model, Name, rule, rules
from pavane_operator.crds.values import Duration

SCHEDULE_PATTERN = r"^[-*/,0-9A-Za-z]+( [-*/,0-9A-Za-z]+){4}$"
"""Five fields; what they may hold the operator says."""
SCHEDULE_MAX_CHARACTERS = 128
WINDOWS_MAX_ITEMS = 8
"""Each of them is worked out whenever an attempt waits; a list in one schedule says the same as several."""

Cron = Annotated[str, Field(pattern=SCHEDULE_PATTERN, max_length=SCHEDULE_MAX_CHARACTERS)]
"""Five fields, as of cron."""


class Window(Model):
    """A time in which a generation may be promoted, again and again."""

    schedule: Cron
    """When it opens. As of cron: minute, hour, day of the month, month, day of the week; `0 22 * * mon-thu` is at ten
    in the evening of four days."""
    time_zone: Name = "Etc/UTC"
    """Zone of these times, such as `Europe/Berlin`. When the clock changes, a time that is left out counts as an hour
    later, and one that comes twice counts once."""
    duration: Duration = Field(
        json_schema_extra=rules(
            rule(
                "duration(self) >= duration('1m') && duration(self) <= duration('168h')",
                "duration must be between 1m and 168h",
            )
        )
    )
    """How long it is open, 1m to 168h, also beyond midnight. What opens again before its time is over stays open."""
