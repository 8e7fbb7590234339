"""What all models of resources share: limits, the marks P, L and C, bounded types (docs/specs/operator.md 1.1)."""

import json
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

NAME_MAX_CHARACTERS = 253
"""Longest string without a limit of its own: that of a Kubernetes object name."""
TEXT_MAX_CHARACTERS = 1024
"""Longest free text; an Event note has the same limit."""
LIST_MAX_ITEMS = 64
"""Longest list without a limit of its own; keeps the cost estimate of CEL rules bounded."""
MAP_MAX_ENTRIES = 64
"""Largest map without a limit of its own; keeps the cost estimate of CEL rules bounded."""
RESOURCE_NAME_MAX_CHARACTERS = 32
"""Longest name of a resource: children append to it and StatefulSet names must not pass 52."""
RESOURCE_NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Names of resources: their Services have them."""
COUNTER_MAX = 2**53
"""Largest counter in JSON that every reader holds exactly; also the largest number of a generation."""

MARK_KEY = "x-pavane-mark"
NO_DEFAULT_KEY = "x-pavane-no-default"
"""Set on fields that others than the creator decide later: the server fills no default in, for whoever creates the
resource would own it then, and each later decision would be a conflict (docs/specs/operator.md 1.3)."""


class Mark(StrEnum):
    """What changing a field of a spec does (docs/specs/operator.md 1.1 item 6)."""

    POD = "P"
    """Pod-affecting: part of the rollout id, so a change rolls out a new generation."""
    LIVE = "L"
    """Applied in place to all running generations."""
    PLACED = "S"
    """Applied in place like `LIVE`; release 0.1.0 counted it as pod-affecting, and its generations have such ids."""
    CONTROL = "C"
    """Steers the operator and touches no pod."""


def marked(mark: Mark, **extra: Any) -> dict[str, Any]:
    """The ``json_schema_extra`` of a field with this mark; `extra` goes into the schema, the mark does not."""
    return {MARK_KEY: mark.value, **extra}


def rule(expression: str, message: str) -> dict[str, str]:
    """One validation rule in CEL; a change that breaks it is refused with the message."""
    return {"rule": expression, "message": message}


def rules(*each: dict[str, str]) -> dict[str, Any]:
    """The schema keys that carry the given validation rules."""
    return {"x-kubernetes-validations": list(each)}


Name = Annotated[str, Field(max_length=NAME_MAX_CHARACTERS)]
ResourceName = Annotated[str, Field(max_length=RESOURCE_NAME_MAX_CHARACTERS, pattern=RESOURCE_NAME_PATTERN)]
Text = Annotated[str, Field(max_length=TEXT_MAX_CHARACTERS)]
Count = Annotated[int, Field(ge=0, le=COUNTER_MAX)]
Time = AwareDatetime
"""A time without a zone cannot be compared with a clock, so it is refused."""


class Model(BaseModel):
    """A frozen object of a schema: camelCase outside, snake_case inside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def read(cls, stored: object) -> Self:
        """The object as the server stores it; accepts exactly what the schema accepts, so nothing is coerced.

        Raises:
            pydantic.ValidationError: names each field that is wrong.
        """
        return cls.model_validate_json(json.dumps(stored), strict=True)
