"""How connections between pods and with the operator are encrypted (docs/specs/operator.md 1.2)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import LIST_MAX_ITEMS, NAME_MAX_CHARACTERS, Mark, Model, Name, marked, rule, rules
from pavane_operator.crds.values import Duration

DNS_NAME_PATTERN = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

DnsName = Annotated[str, Field(max_length=NAME_MAX_CHARACTERS, pattern=DNS_NAME_PATTERN)]
"""A DNS name, or all names one label below it: `*.example.org`."""


class TlsMode(StrEnum):
    """Where certificates come from."""

    DISABLED = "Disabled"
    SELF_SIGNED = "SelfSigned"
    SECRET = "Secret"  # noqa: S105 - the name of a mode


class TlsSpec(Model):
    """How connections are encrypted; certificates are renewed without a restart."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.mode == 'Secret') == has(self.secretName)",
                "tls.secretName is required in mode Secret and not allowed in other modes",
            ),
            rule(
                "duration(self.renewBefore) + duration('10s') <= duration(self.duration)",
                "tls.renewBefore must be shorter than tls.duration, by at least 10s",
            ),
            rule(
                "duration(self.renewBefore) >= duration('5m')",
                "tls.renewBefore must be at least 5m, because a renewed certificate reaches pods minutes later",
            ),
        )
    )

    mode: TlsMode = Field(
        default=TlsMode.SELF_SIGNED,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "tls.mode cannot be changed"))),
    )
    """SelfSigned: the operator keeps an authority for this resource. Secret: you provide the certificate. Disabled: no
    encryption, for clients and peers without it. Cannot be changed."""
    secret_name: Name | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "tls.secretName cannot be changed"))),
    )
    """For mode Secret: the Secret with `tls.crt`, `tls.key` and `ca.crt`. Cannot be changed; its contents can."""
    dns_names: list[DnsName] = Field(
        default_factory=list, max_length=LIST_MAX_ITEMS, json_schema_extra=marked(Mark.LIVE)
    )
    """For mode SelfSigned: additional DNS names in the certificate; those of the Services are always included."""
    duration: Duration = Field(default="2160h", json_schema_extra=marked(Mark.LIVE))
    """For mode SelfSigned: how long a certificate is valid."""
    renew_before: Duration = Field(default="360h", json_schema_extra=marked(Mark.LIVE))
    """For mode SelfSigned: how long before it expires a certificate is renewed; at least 5m."""
