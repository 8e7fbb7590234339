"""What is issued when, and that everybody can talk at each moment of it: pure, on a clock of the test's own."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane_operator.tls.issue import (
    AUTHORITY_LIVES,
    SPREAD,
    Authority,
    Due,
    Leaf,
    Terms,
    due,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("queue.orders.svc", "*.queue-server-g1.orders.svc")
DAY = timedelta(days=1)
TERMS = Terms(NAMES, duration=90 * DAY, renew_before=15 * DAY)
WRITES_MAX = 10_000


@dataclass
class Model:
    """The Secrets of one resource, and what pods saw of them."""

    terms: Terms
    now: datetime = START
    authorities: list[Authority] = field(default_factory=list)
    leaf: Leaf | None = None
    published: list[Leaf] = field(default_factory=list)
    made: int = 0

    def do(self, what: Due) -> None:
        assert [what.authority, what.forget, what.signer is not None].count(True) <= 1
        if what.authority:
            self.made += 1
            life = AUTHORITY_LIVES * self.terms.duration
            self.authorities = [*self.authorities[-1:], Authority(f"ca-{self.made}", self.now + life)]
        elif what.forget:
            self.authorities = self.authorities[-1:]
        elif what.signer is not None:
            trusted = frozenset(authority.id for authority in self.authorities)
            signer = next(one for one in self.authorities if one.id == what.signer)
            until = min(self.now + self.terms.duration, signer.until)
            self.leaf = Leaf(what.signer, trusted, frozenset(self.terms.names), self.now, until)
            self.published.append(self.leaf)

    def settle(self) -> datetime:
        """Do all that is due now, and return when there is something to do again."""
        for _ in range(10):
            what = due(self.authorities, self.leaf, self.terms, self.now)
            if what.again_at is not None:
                assert what.again_at > self.now
                return what.again_at
            self.do(what)
        raise AssertionError("it never comes to rest")

    def seen_by_pods(self) -> list[Leaf]:
        """What a pod may have: the last one that is older than SPREAD, and all later ones."""
        old = [leaf for leaf in self.published if leaf.since <= self.now - SPREAD]
        return [*old[-1:], *(leaf for leaf in self.published if leaf.since > self.now - SPREAD)]

    def check(self) -> None:
        assert self.leaf is not None
        for seen in self.seen_by_pods():
            assert seen.until > self.now, "a pod shows an expired certificate"
            assert seen.issuer in self.leaf.trusted, "the operator does not trust a pod"
            assert self.leaf.issuer in seen.trusted, "a pod does not trust the operator"


def test_the_first_certificate_takes_an_authority_and_then_a_signature() -> None:
    model = Model(TERMS)
    first = due([], None, TERMS, START)
    assert first.authority
    model.do(first)
    second = due(model.authorities, None, TERMS, START)
    assert second.signer == "ca-1"
    model.do(second)
    assert due(model.authorities, model.leaf, TERMS, START) == Due(again_at=START + 75 * DAY)


spans = st.integers(min_value=1, max_value=60 * 24 * 365).map(lambda minutes: timedelta(minutes=minutes))


@settings(max_examples=60)
@given(renew_before=spans, kept=spans, late=st.lists(st.integers(0, 100), min_size=200, max_size=200))
def test_everybody_can_talk_at_each_moment_of_many_years(
    renew_before: timedelta, kept: timedelta, late: list[int]
) -> None:
    """The operator comes late now and then, but not later than it renews ahead."""
    renew_before += SPREAD
    model = Model(Terms(NAMES, renew_before + kept, renew_before))
    for percent in late:
        again_at = model.settle()
        model.check()
        slack = (renew_before - SPREAD) * percent / 101
        model.now = again_at + min(slack, renew_before - SPREAD)
        model.check()
    assert len(model.published) <= WRITES_MAX


def test_an_authority_is_replaced_in_three_steps() -> None:
    model = Model(TERMS)
    steps = []
    while model.made < 3:
        model.now = model.settle()
        assert model.leaf is not None
        steps.append((len(model.authorities), model.leaf.issuer, len(model.leaf.trusted)))
    around = [step for step in steps if step[1:] != steps[0][1:]]
    assert around[:3] == [(2, "ca-1", 2), (2, "ca-2", 2), (1, "ca-2", 1)]


@pytest.mark.parametrize(
    "changed",
    [
        Terms((*NAMES, "added.example.org"), TERMS.duration, TERMS.renew_before),
        Terms(NAMES, TERMS.duration / 2, TERMS.renew_before),
        Terms(NAMES, TERMS.duration, TERMS.duration - timedelta(seconds=10)),
    ],
    ids=["a name is added", "shorter", "renewed earlier"],
)
def test_changed_terms_lead_to_a_new_certificate(changed: Terms) -> None:
    model = Model(TERMS)
    model.settle()
    model.now += timedelta(minutes=1)
    assert due(model.authorities, model.leaf, changed, model.now).signer == "ca-1"


def test_a_name_that_is_not_needed_any_more_is_no_reason() -> None:
    model = Model(TERMS)
    again_at = model.settle()
    fewer = Terms(NAMES[:1], TERMS.duration, TERMS.renew_before)
    assert due(model.authorities, model.leaf, fewer, START).again_at == again_at


def test_a_longer_life_than_the_authority_has_left_begins_with_a_new_one() -> None:
    model = Model(TERMS)
    model.settle()
    model.terms = Terms(NAMES, 10 * TERMS.duration, TERMS.renew_before)
    model.settle()
    assert model.made == 2
    assert model.leaf is not None
    assert model.leaf.until <= model.authorities[-1].until


def test_an_old_authority_that_could_sign_nothing_that_lasts_any_more_is_waited_with_all_the_same() -> None:
    model = Model(TERMS)
    model.settle()
    model.terms = Terms(NAMES, AUTHORITY_LIVES * TERMS.duration - SPREAD / 2, TERMS.renew_before)
    assert model.settle() == START + SPREAD
    model.now += SPREAD - timedelta(seconds=1)
    assert model.settle() == START + SPREAD
    model.check()


raised = st.tuples(spans, spans, st.integers(0, 1000)).map(lambda drawn: (*drawn[:2], drawn[2] / 1000))


@settings(max_examples=200)
@given(renew_before=spans, kept=spans, changes=st.lists(raised, min_size=1, max_size=6))
def test_everybody_can_talk_while_the_terms_of_a_living_resource_change(
    renew_before: timedelta, kept: timedelta, changes: list[tuple[timedelta, timedelta, float]]
) -> None:
    """A certificate is kept for longer than SPREAD: else the next renewal comes before anybody knows an authority."""
    model = Model(Terms(NAMES, renew_before + kept + 2 * SPREAD, renew_before + SPREAD))
    for before, more, part in changes:
        # Meanwhile the operator does all in time, until somewhere between two things to do.
        for _ in range(10):
            again_at = model.settle()
            model.check()
            model.now = again_at
        again_at = model.settle()
        model.now += (again_at - model.now) * part
        if len(model.authorities) > 1:
            continue  # a third authority pushes the first one out: not while two are there
        model.terms = Terms(NAMES, before + more + 2 * SPREAD, before + SPREAD)
        again_at = model.settle()
        model.check()
        model.now = min(again_at, model.now + SPREAD / 2)
        model.settle()
        model.check()
    for _ in range(10):
        model.now = model.settle()
        model.check()


def test_after_a_long_absence_everything_is_made_anew() -> None:
    model = Model(TERMS)
    model.settle()
    model.now += 1000 * DAY
    model.settle()
    assert model.leaf is not None
    assert model.leaf.issuer == "ca-2"
    assert model.leaf.until == model.now + TERMS.duration


def test_a_certificate_of_an_authority_that_is_gone_is_replaced() -> None:
    model = Model(TERMS)
    model.settle()
    model.authorities = [Authority("other", START + 4 * TERMS.duration)]
    assert due(model.authorities, model.leaf, TERMS, START).signer == "other"
