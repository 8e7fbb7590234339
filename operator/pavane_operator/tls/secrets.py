"""The Secrets of a resource's certificates, and what the operator dials with (docs/specs/operator.md 4.1)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography.x509 import ObjectIdentifier

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
    BOTH_ENDS,
    CLIENT_END,
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
from pavane_operator.tls.issue import AUTHORITY_LIVES, Authority, Leaf, Terms, due
from pavane_operator.tls.names import (
    authority_secret,
    certificate_secret,
    client_authority_secret,
    issued_secret,
    issued_stem,
)

FORMER_CERTIFICATE_KEY = "former.crt"
FORMER_KEY_KEY = "former.key"
"""In `{name}-ca`: the authority that is being replaced."""
NOTHING_GIVEN = Certificates()
OWN = "tls"
"""Stem of CERTIFICATE_FILE and KEY_FILE."""
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
    clients: tuple[str, ...] = ()
    """Those that get a certificate of the second authority."""


@dataclass(frozen=True, slots=True)
class _Issuing:
    """An authority, and the Secret with what it signs: a certificate for the names of each stem of files."""

    authority: str
    published: str
    type: str
    wanted: Mapping[str, tuple[str, ...]]
    ends: Sequence[ObjectIdentifier]


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
    spec = resource.spec.tls
    names = tuple(dict.fromkeys((*identity.names, *spec.dns_names)))
    own = _Issuing(
        authority_secret(resource.name), certificate_secret(resource.name, spec), SECRET_TYPE, {OWN: names}, BOTH_ENDS
    )
    issuing = [own]
    if identity.clients:
        # An authority of their own: who has one of these certificates is no pod of the resource, to nobody.
        wanted = {issued_stem(client): (client,) for client in identity.clients}
        theirs = client_authority_secret(resource.name), issued_secret(resource.name)
        issuing.append(_Issuing(*theirs, "Opaque", wanted, CLIENT_END))
    decided = [_issued(resource, children, identity, each, now) for each in issuing]
    plan = Certificates(
        tuple(action for each in decided for action in each.actions),
        min((each.again_at for each in decided if each.again_at is not None), default=None),
    )
    published = _published(children, own)
    leaf, bundle = _pair_in(published, OWN), published.get(AUTHORITIES_FILE, b"")
    credentials = _credentials(leaf, bundle) if certificate_in(leaf) is not None and bundle else None
    return Tls(plan, secured=True, credentials=credentials)


def _issued(
    resource: Resource, children: tuple[Child, ...], identity: Identity, issuing: _Issuing, now: datetime
) -> Certificates:
    authority_child = find(children, "Secret", issuing.authority)
    pairs = _authorities(authority_child)
    published = _published(children, issuing)
    bundle = published.get(AUTHORITIES_FILE, b"")
    duration, before = parse_duration(resource.spec.tls.duration), parse_duration(resource.spec.tls.renew_before)
    seen = [Authority(one, _certificate(pair).not_valid_after_utc) for one, pair in pairs.items()]
    dues = {
        stem: due(seen, _leaf(_pair_in(published, stem), bundle, pairs), Terms(names, duration, before), now)
        for stem, names in issuing.wanted.items()
    }
    signers = {stem: each.signer for stem, each in dues.items() if each.signer is not None}
    again_at = min((each.again_at for each in dues.values() if each.again_at is not None), default=None)
    replaced = any(each.authority for each in dues.values())
    if replaced or all(each.forget for each in dues.values()):
        data = _next_authorities(resource, pairs, duration, now, forget=not replaced)
        action = _put(resource, issuing.authority, SECRET_TYPE, identity, data, authority_child)
        return Certificates((action,), again_at)
    if not signers:
        return Certificates(again_at=again_at)
    ends_at = {authority.id: authority.until for authority in seen}
    data = {name: value for name, value in published.items() if name.rpartition(".")[0] in issuing.wanted}
    for stem, signer in signers.items():
        life = min(duration, ends_at[signer] - now)
        made = new_certificate(pairs[signer], issuing.wanted[stem], now, life, issuing.ends)
        data |= {f"{stem}.crt": made.certificate, f"{stem}.key": made.key}
    data[AUTHORITIES_FILE] = b"".join(pair.certificate for pair in pairs.values())
    present = find(children, "Secret", issuing.published)
    return Certificates((_put(resource, issuing.published, issuing.type, identity, data, present),), again_at)


def _published(children: tuple[Child, ...], issuing: _Issuing) -> dict[str, bytes]:
    child = find(children, "Secret", issuing.published)
    return {} if child is None else _data(child.body)


def _pair_in(published: Mapping[str, bytes], stem: str) -> Pair:
    return Pair(published.get(f"{stem}.crt", b""), published.get(f"{stem}.key", b""))


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
    resource: Resource, pairs: Mapping[str, Pair], duration: timedelta, now: datetime, *, forget: bool
) -> dict[str, bytes]:
    newest = list(pairs.values())[-1] if pairs else None
    if newest is not None and forget:
        return {CERTIFICATE_FILE: newest.certificate, KEY_FILE: newest.key}
    made = new_authority(f"{resource.namespace}/{resource.name}", now, AUTHORITY_LIVES * duration)
    former = {} if newest is None else {FORMER_CERTIFICATE_KEY: newest.certificate, FORMER_KEY_KEY: newest.key}
    return {**former, CERTIFICATE_FILE: made.certificate, KEY_FILE: made.key}


def _put(
    resource: Resource,
    name: str,
    secret_type: str,
    identity: Identity,
    data: Mapping[str, bytes],
    present: Child | None,
) -> CreateChild | ApplyChild:
    body = owned(resource, "v1", "Secret", name, identity.labels)
    body["type"] = secret_type
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
