"""The Secrets of a resource's certificates, and what the operator dials with (docs/specs/operator.md 4.1)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pavane.compute.certificates import dns_names, expected_name
from pavane.compute.tls import StageCredentials
from pavane.runtime.certificates import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import parse_duration
from pavane_operator.objects.owned import owned
from pavane_operator.plan.children import find
from pavane_operator.plan.model import (
    EXPIRES_SOON,
    ApplyChild,
    Certificates,
    Child,
    CreateChild,
    Manifest,
    Problem,
    Resource,
)
from pavane_operator.tls.certificates import (
    CLOCK_SKEW,
    Pair,
    authorities_in,
    certificate_in,
    fault_in,
    id_of,
    is_signed_by,
    new_authority,
    new_certificate,
)
from pavane_operator.tls.issue import AUTHORITY_LIVES, Authority, Due, Leaf, Terms, due
from pavane_operator.tls.names import authority_secret, certificate_secret

FORMER_CERTIFICATE_KEY = "former.crt"
FORMER_KEY_KEY = "former.key"
"""In `{name}-ca`: the authority that is being replaced."""
NOTHING_GIVEN = Certificates()
SECRET_TYPE = "kubernetes.io/tls"  # noqa: S105 - of Secrets that hold `tls.crt` and `tls.key`


@dataclass(frozen=True, slots=True)
class Tls:
    """What is known of the certificates of one resource."""

    plan: Certificates
    secured: bool
    """Whether its pods speak TLS."""
    credentials: StageCredentials | None = field(default=None, repr=False)
    """What to dial them with; None while that is missing. Never dial a secured pod without."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the kind knows: labels of the Secrets, and the names of the Services."""

    labels: Mapping[str, str]
    names: tuple[str, ...]


def look(
    resource: Resource, children: Iterable[Child], identity: Identity, given: Mapping[str, Any] | None, now: datetime
) -> Tls:
    """What is to be done about the certificates of a resource, and what its pods are dialled with.

    Args:
        resource: The resource.
        children: What belongs to it.
        identity: What its kind adds.
        given: The Secret that the user named, as read last; None = it does not exist.
        now: The present time.
    """
    match resource.spec.tls.mode:
        case TlsMode.DISABLED:
            return Tls(Certificates(), secured=False)
        case TlsMode.SECRET:
            return _given(resource, given, now)
        case TlsMode.SELF_SIGNED:
            return _self_signed(resource, tuple(children), identity, now)


def _given(resource: Resource, given: Mapping[str, Any] | None, now: datetime) -> Tls:
    name = resource.spec.tls.secret_name
    if given is None:
        return _not_ready(f"Secret {name} does not exist: create it with tls.crt, tls.key and ca.crt")
    data = _data(given)
    missing = [key for key in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE) if key not in data]
    if missing:
        return _not_ready(f"Secret {name} lacks {', '.join(missing)}")
    pair = Pair(data[CERTIFICATE_FILE], data[KEY_FILE])
    certificate = certificate_in(pair)
    end = None if certificate is None else certificate.not_valid_after_utc
    looks = (end - EXPIRES_SOON, end) if end is not None else ()
    known = Certificates(again_at=min((at for at in looks if at > now), default=None), expires_at=end)
    fault = fault_in(pair, data[AUTHORITIES_FILE], now)
    if fault is not None:
        return _not_ready(f"Secret {name}: {fault}", known)
    return Tls(known, secured=True, credentials=_credentials(pair, data[AUTHORITIES_FILE]))


def _not_ready(message: str, known: Certificates = NOTHING_GIVEN) -> Tls:
    return Tls(replace(known, problem=Problem("ReferenceNotReady", message)), secured=True)


def _self_signed(resource: Resource, children: tuple[Child, ...], identity: Identity, now: datetime) -> Tls:
    authority_child = find(children, "Secret", authority_secret(resource.name))
    certificate_child = find(children, "Secret", certificate_secret(resource.name, resource.spec.tls))
    pairs = _authorities(authority_child)
    published = {} if certificate_child is None else _data(certificate_child.body)
    leaf = Pair(published.get(CERTIFICATE_FILE, b""), published.get(KEY_FILE, b""))
    bundle = published.get(AUTHORITIES_FILE, b"")
    spec = resource.spec.tls
    terms = Terms(
        names=tuple(dict.fromkeys((*identity.names, *spec.dns_names))),
        duration=parse_duration(spec.duration),
        renew_before=parse_duration(spec.renew_before),
    )
    seen = [Authority(one, _certificate(pair).not_valid_after_utc) for one, pair in pairs.items()]
    decided = due(seen, _leaf(leaf, bundle, pairs), terms, now)
    credentials = _credentials(leaf, bundle) if certificate_in(leaf) is not None and bundle else None
    actions: tuple[CreateChild | ApplyChild, ...] = ()
    if decided.authority or decided.forget:
        data = _next_authorities(resource, pairs, decided, terms, now)
        actions = (_put(resource, authority_secret(resource.name), identity, data, authority_child),)
    elif decided.signer is not None:
        made = new_certificate(pairs[decided.signer], terms.names, now, terms.duration)
        trusted = b"".join(pair.certificate for pair in pairs.values())
        data = {CERTIFICATE_FILE: made.certificate, KEY_FILE: made.key, AUTHORITIES_FILE: trusted}
        name = certificate_secret(resource.name, spec)
        actions = (_put(resource, name, identity, data, certificate_child),)
    return Tls(Certificates(actions, decided.again_at), secured=True, credentials=credentials)


def _authorities(child: Child | None) -> dict[str, Pair]:
    """The authorities that the Secret holds, oldest first, by id; what cannot be read is as good as missing."""
    data = {} if child is None else _data(child.body)
    found = {}
    for certificate_key, key_key in ((FORMER_CERTIFICATE_KEY, FORMER_KEY_KEY), (CERTIFICATE_FILE, KEY_FILE)):
        pair = Pair(data.get(certificate_key, b""), data.get(key_key, b""))
        certificate = certificate_in(pair)
        if certificate is not None:
            found[id_of(certificate)] = pair
    return found


def _certificate(pair: Pair) -> Any:
    certificate = certificate_in(pair)
    assert certificate is not None  # noqa: S101 - only readable pairs are kept
    return certificate


def _leaf(pair: Pair, bundle: bytes, authorities: Mapping[str, Pair]) -> Leaf | None:
    certificate = certificate_in(pair)
    if certificate is None:
        return None
    signers = [one for one, authority in authorities.items() if is_signed_by(certificate, _certificate(authority))]
    return Leaf(
        issuer=signers[0] if signers else "",
        trusted=frozenset(id_of(trusted) for trusted in authorities_in(bundle)),
        names=frozenset(dns_names(certificate)),
        since=certificate.not_valid_before_utc + CLOCK_SKEW,
        until=certificate.not_valid_after_utc,
    )


def _next_authorities(
    resource: Resource, pairs: Mapping[str, Pair], decided: Due, terms: Terms, now: datetime
) -> dict[str, bytes]:
    newest = list(pairs.values())[-1] if pairs else None
    if newest is not None and decided.forget:
        return {CERTIFICATE_FILE: newest.certificate, KEY_FILE: newest.key}
    made = new_authority(f"{resource.namespace}/{resource.name}", now, AUTHORITY_LIVES * terms.duration)
    former = {} if newest is None else {FORMER_CERTIFICATE_KEY: newest.certificate, FORMER_KEY_KEY: newest.key}
    return {**former, CERTIFICATE_FILE: made.certificate, KEY_FILE: made.key}


def _put(
    resource: Resource, name: str, identity: Identity, data: Mapping[str, bytes], present: Child | None
) -> CreateChild | ApplyChild:
    body = owned(resource, "v1", "Secret", name, identity.labels)
    body["type"] = SECRET_TYPE
    body["data"] = {key: base64.b64encode(value).decode() for key, value in data.items()}
    manifest = Manifest.of(body, create_only=present is None)
    return CreateChild(manifest) if present is None else ApplyChild(manifest, present.resource_version)


def _credentials(pair: Pair, authorities: bytes) -> StageCredentials:
    return StageCredentials(authorities, pair.certificate, pair.key, expected_name(_certificate(pair)))


def _data(secret: Mapping[str, Any]) -> dict[str, bytes]:
    found = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
    return found
