"""`spec.rollout.gates`: what a generation must show to get, or to keep, the right to write (operator.md 2.5)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import NAME_MAX_CHARACTERS, Model, Name, ResourceName, Text, rule, rules
from pavane_operator.crds.values import Duration

GATES_MAX_ITEMS = 8
"""Each is asked every few seconds, of every pod; more questions than that are one query."""
GATE_NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
GATE_NAME_MAX_CHARACTERS = 63
PATH_PATTERN = r"^/[-._~!$&'()*+,;=:@%/?A-Za-z0-9]*$"
"""A path with its query: what may stand behind an address, and nothing that could be read as another one."""
PORT_MAX = 65_535

JSON_PATH_PATTERN = r"^\{[$@]?[.\[][^{}]*\}$"
"""One path in braces. Text beside it would be there without an answer, and be bad, where nothing was found."""


class OnFailure(StrEnum):
    """What becomes of an attempt whose gate fails."""

    HOLD = "Hold"
    ABORT = "Abort"
    SWITCH_BACK = "SwitchBack"


class GatePhase(StrEnum):
    """When a gate is asked."""

    CAUGHT_UP = "CaughtUp"
    BAKING = "Baking"


class HttpGate(Model):
    """A GET that each pod of the new generation has to answer well, of a ComputeCluster each replica too. Without
    `jsonPath` a status 2xx is good, 4xx and 5xx are bad, and a redirect, which is not followed, says nothing."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.jsonPath) == (has(self.expect) || has(self.min) || has(self.max))",
                "jsonPath needs expect, min or max, and these need jsonPath",
            )
        )
    )

    port: int = Field(ge=1, le=PORT_MAX)
    """Port of the pods; the operator is let through to it."""
    path: Annotated[str, Field(pattern=PATH_PATTERN, max_length=NAME_MAX_CHARACTERS)]
    """Path, with its query if there is one."""
    json_path: Annotated[Name, Field(pattern=JSON_PATH_PATTERN)] | None = None
    """What to look at in the JSON of the answer: one path in braces, as kubectl writes it, `{.lag}`."""
    expect: Name | None = None
    """The text that must be there."""
    min: float | None = None
    """The least number that is good."""
    max: float | None = None
    """The greatest number that is good."""


class PrometheusGate(Model):
    """A query to the Prometheus that the operator's chart names. Its answer has to be one number; no data, several
    series and NaN say nothing."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("has(self.min) || has(self.max)", "prometheus needs min or max"))
    )

    query: Text
    """In PromQL. `${namespace}`, `${name}` and `${generation}` are those of what is asked about."""
    min: float | None = None
    """The least number that is good."""
    max: float | None = None
    """The greatest number that is good."""


class SqlGate(Model):
    """A SELECT over the views of a ComputeCluster. Its answer has to be one row with one number; no row, several, NULL,
    NaN and an error say nothing."""

    model_config = ConfigDict(json_schema_extra=rules(rule("has(self.min) || has(self.max)", "sql needs min or max")))

    compute: ResourceName
    """Name of the ComputeCluster, in the same namespace."""
    query: Text
    """One SELECT, as REST `/sql` takes it. `${namespace}`, `${name}` and `${generation}` are those of what is asked
    about."""
    min: float | None = None
    """The least number that is good."""
    max: float | None = None
    """The greatest number that is good."""

    @property
    def who(self) -> str:
        """Whom it asks, in words."""
        return f"ComputeCluster {self.compute}"

    def path(self, namespace: str) -> str:
        """Return where REST answers it."""
        return f"api/v1/namespaces/{namespace}/computeclusters/{self.compute}/sql"


class GateSpec(Model):
    """One question; set exactly one of `http`, `prometheus` and `sql`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.http), has(self.prometheus), has(self.sql)].filter(x, x).size() == 1",
                "set exactly one of http, prometheus and sql",
            ),
        )
    )

    name: Annotated[str, Field(pattern=GATE_NAME_PATTERN, max_length=GATE_NAME_MAX_CHARACTERS)]
    """Its name, in status, events and messages."""
    for_: Duration = Field(
        alias="for",
        json_schema_extra=rules(rule("duration(self) <= duration('24h')", "for must be between 0s and 24h")),
    )
    """How long every answer must be good, without interruption, 0s to 24h."""
    on_failure: OnFailure | None = None
    """After three bad answers in a row. Hold, the default, goes on asking. Abort gives the attempt up. SwitchBack does
    so too, and while the new generation bakes the old one takes over again; it needs `bake`."""
    phase: GatePhase | None = None
    """When it is asked: CaughtUp, before the promotion, or Baking, what only a generation that serves can tell; if
    absent, both."""
    http: HttpGate | None = None
    """Asks the pods of the new generation."""
    prometheus: PrometheusGate | None = None
    """Asks Prometheus."""
    sql: SqlGate | None = None
    """Asks the views of a ComputeCluster."""
