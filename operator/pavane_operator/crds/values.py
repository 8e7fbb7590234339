"""Values with a syntax: durations and quantities (docs/specs/operator.md 1.1 item 3)."""

import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import Field, PlainSerializer, SerializationInfo, WithJsonSchema

DURATION_MAX_CHARACTERS = 32
"""Room for every unit once with six digits each."""
QUANTITY_MAX_CHARACTERS = 32
"""Longer than any quantity that fits into 64 bits."""
DURATION_MAX_SECONDS = 9_000_000_000
"""About 285 years, within what 64-bit nanoseconds hold; longer ones count as this."""

HTTP_URL_PATTERN = r"^(https?://[^\s/?#]+(/[^\s?#:]*)?)?$"
"""Scheme and host, perhaps a port and a path; or nothing."""
STORE_URL_MAX_CHARACTERS = 1024
STORE_URL_PATTERN = r"^((s3|gs|az)://[^/\s?#]+(/[^\s?#]*)?|file:///[^\s?#]+)$"
"""A place in object storage, or a folder."""
DURATION_PATTERN = r"^([0-9]+(ms|s|m|h))+$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

_MULTIPLES = {
    **{"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> timedelta:
    """The time span that a valid duration names; absurdly long ones are cut to `DURATION_MAX_SECONDS`.

    Raises:
        ValueError: not a duration.
    """
    if re.fullmatch(DURATION_PATTERN, text) is None:
        message = f"{text!r} is not a duration; write for example 30s, 5m or 1h30m"
        raise ValueError(message)
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h)", text))
    return timedelta(seconds=min(seconds, DURATION_MAX_SECONDS))


def parse_quantity(value: int | str) -> Decimal:
    """The number that a valid quantity names.

    Raises:
        ValueError: not a quantity of ours; a server may hold some in other notations, such as `1e3`.
    """
    text = str(value)
    if re.fullmatch(QUANTITY_PATTERN, text) is None:
        message = f"{text!r} is not a quantity; write for example 2Gi or 100m"
        raise ValueError(message)
    number = text.rstrip("mkMGTPEKi")
    return Decimal(number) * _MULTIPLES[text[len(number) :]]


def usual_duration(text: str) -> str:
    """The same time span as every other notation of it is written: in seconds, or else in milliseconds."""
    milliseconds = parse_duration(text) // timedelta(milliseconds=1)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def usual_quantity(value: int | str) -> str:
    """The same quantity as every other notation of it is written: the shortest one."""
    number = Fraction(parse_quantity(value))  # of any size: a Decimal does not divide what has more than 28 digits
    counts = {unit: number / Fraction(multiple) for unit, multiple in _MULTIPLES.items()}
    forms = [f"{count}{unit}" for unit, count in counts.items() if count.denominator == 1]
    return min(forms, key=len, default=str(value))


USUAL = {"notation": "usual"}
"""Context of a dump in which equal values are equal texts; in every other one they stay as the user wrote them."""


def _duration_written(text: str, info: SerializationInfo) -> str:
    return usual_duration(text) if info.context == USUAL else text


def _quantity_written(value: int | str, info: SerializationInfo) -> int | str:
    return usual_quantity(value) if info.context == USUAL else value


_DurationText = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=DURATION_MAX_CHARACTERS)]
Duration = Annotated[_DurationText, PlainSerializer(_duration_written, return_type=_DurationText, when_used="json")]
"""A time span such as `30s` or `1h30m`."""
Quantity = Annotated[
    Annotated[int, Field(strict=True, ge=0)]
    | Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=QUANTITY_MAX_CHARACTERS)],
    PlainSerializer(_quantity_written, when_used="json"),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": QUANTITY_MAX_CHARACTERS,
            "minimum": 0,
        }
    ),
]
"""A Kubernetes quantity such as `2Gi` or `100m`; a plain number counts units."""
StoreUrl = Annotated[str, Field(pattern=STORE_URL_PATTERN, max_length=STORE_URL_MAX_CHARACTERS)]
"""A bucket or container and a path in it, or `file:///path`."""
