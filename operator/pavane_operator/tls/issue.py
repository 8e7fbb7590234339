"""What has to be issued now: a pure function of what there is, of the terms and of the time.

An authority lives four times as long as a certificate and is replaced halfway, so that whatever it signs ends before it
does. Replacing it takes three steps, each SPREAD after the one before, because a changed Secret reaches pods late:

1. the new authority is trusted beside the old one, which still signs;
2. the new one signs;
3. the old one is forgotten.

At each moment the certificate in use anywhere is signed by an authority that is trusted everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SPREAD = timedelta(minutes=5)
"""After this long every pod has a changed Secret: a kubelet may take its period and its cache's, two minutes."""
BRIDGE_MIN = 2 * SPREAD
"""So long must an authority still live to sign once more: until the new one is known, and until its signature is."""
AUTHORITY_LIVES = 4
"""Life of an authority, in lives of a certificate."""
AUTHORITY_LIVES_LEFT = 2
"""It is replaced when so much is left: one for a certificate that it signs at the last moment, one to do so in."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What `spec.tls` and the resource ask for."""

    names: tuple[str, ...]
    """DNS names that the certificate must hold."""
    duration: timedelta
    renew_before: timedelta


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that the resource has."""

    id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Leaf:
    """The certificate that the resource has, and what it is published with."""

    issuer: str
    """Id of the authority that signed it."""
    trusted: frozenset[str]
    """Ids of the authorities that stand beside it."""
    names: frozenset[str]
    since: datetime
    """When it was issued; also since when `trusted` is so, for they are published together."""
    until: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """What to do now: at most one of the first three."""

    authority: bool = False
    """Make a new authority, and keep the newest of those that there are beside it."""
    forget: bool = False
    """Keep only the newest authority."""
    signer: str | None = None
    """Issue a certificate that this authority signs, and publish all authorities beside it.

    The certificate ends with the authority at the latest.
    """
    again_at: datetime | None = None
    """When to ask again, if nothing changes before."""


def due(authorities: Sequence[Authority], leaf: Leaf | None, terms: Terms, now: datetime) -> Due:
    """What is to be done about one resource now.

    Args:
        authorities: Those that the resource has, oldest first; at most two.
        leaf: Its present certificate; None where there is none that can be read.
        terms: What is asked for.
        now: The present time.
    """
    replaced_at = None if not authorities else authorities[-1].until - AUTHORITY_LIVES_LEFT * terms.duration
    if replaced_at is None or now >= replaced_at:
        return Due(authority=True)
    signer = _signer(authorities, leaf, terms, now)
    if leaf is None:
        return Due(signer=signer)
    spread_at, renewed_at = leaf.since + SPREAD, leaf.until - terms.renew_before
    if len(authorities) > 1 and now < spread_at and _good(leaf, authorities[-2].id, authorities, terms):
        # Even if the old authority could sign nothing that lasts any more: this one lasts until the new one is known.
        if _bridges(leaf, authorities):
            return Due(again_at=spread_at)
        signer = authorities[-2].id if now < renewed_at else signer
    if not _good(leaf, signer, authorities, terms) or now >= renewed_at:
        return Due(signer=signer)
    if len(authorities) > 1 and leaf.issuer == authorities[-1].id and now >= spread_at:
        return Due(forget=True)
    times = [replaced_at, renewed_at, *([spread_at] if len(authorities) > 1 else [])]
    return Due(again_at=min(time for time in times if time > now))


def _signer(authorities: Sequence[Authority], leaf: Leaf | None, terms: Terms, now: datetime) -> str:
    *older, newest = authorities
    if leaf is None or not older:
        return newest.id
    if leaf.issuer == newest.id or (newest.id in leaf.trusted and now >= leaf.since + SPREAD):
        return newest.id
    left = older[-1].until - now
    if left > terms.duration:
        return older[-1].id
    # With a longer duration the old one can sign nothing that lasts. It signs once more, until all know the new one;
    # after a long absence not even that.
    known = newest.id in leaf.trusted and not _bridges(leaf, authorities)
    return older[-1].id if left > BRIDGE_MIN and not known else newest.id


def _bridges(leaf: Leaf, authorities: Sequence[Authority]) -> bool:
    """Whether the certificate only waits until the newest authority is known everywhere: it ends with the old one."""
    *_, old, newest = authorities
    return leaf.issuer == old.id and newest.id in leaf.trusted and leaf.until >= old.until


def _good(leaf: Leaf, signer: str, authorities: Sequence[Authority], terms: Terms) -> bool:
    """Whether the certificate is what would be issued now. More names than needed do no harm until it is renewed."""
    return (
        leaf.issuer == signer
        and leaf.trusted == {authority.id for authority in authorities}
        and leaf.names.issuperset(terms.names)
        and leaf.until - leaf.since <= terms.duration
    )
