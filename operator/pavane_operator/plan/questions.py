"""What is asked for the gates of a spec, and how answers add up to a verdict (docs/specs/operator.md 2.5)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pavane_operator.crds.base import NAME_MAX_CHARACTERS, TEXT_MAX_CHARACTERS
from pavane_operator.crds.gates import GateSpec
from pavane_operator.crds.status import GateStatus, Verdict
from pavane_operator.crds.values import parse_duration

BAD_MAX = 3
"""So many bad answers in a row are a failure: one may be chance."""
SILENCE_MAX = timedelta(seconds=30)
"""Longer nobody may have asked, as while the operator was stopped, without the time of a gate beginning anew."""
WORST_FIRST = (Verdict.FAILED, Verdict.FAILING, Verdict.INCONCLUSIVE, Verdict.WAITING, Verdict.PASSED)


@dataclass(frozen=True, slots=True)
class Question:
    """One gate, and whom it is asked of; another set of pods is another question."""

    gate: GateSpec
    addresses: tuple[str, ...] = ()
    """Of the pods of the generation, where they are asked."""
    query: str = ""
    """What Prometheus, or who keeps views, is asked."""
    namespace: str = ""
    """Of the views."""


def question(gate: GateSpec, addresses: tuple[str, ...], about: Mapping[str, str]) -> Question:
    """What a gate asks of pods with these addresses, or of Prometheus or views `about` a generation."""
    asked = gate.prometheus or gate.sql
    if asked is None:
        return Question(gate, addresses)
    query = asked.query
    for name, value in about.items():
        query = query.replace(f"${{{name}}}", value)
    return Question(gate, query=query, namespace=about["namespace"] if gate.sql is not None else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said once."""

    good: bool | None
    """None = it says nothing: no answer, no data, no number, or more than one."""
    value: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a gate stands by all its answers till now."""

    verdict: Verdict
    since: datetime
    """Since when the answers are all good, all bad, or all say nothing."""
    at: datetime
    """Of the last answer."""
    answer: Answer
    count: int = 1
    """Answers since then."""


def fold(former: Standing | None, answer: Answer, gate: GateSpec, now: datetime) -> Standing:
    """How a gate stands once one more answer has come; called for **every** answer, so that no bad one goes unseen."""
    goes_on = former is not None and former.answer.good is answer.good and now - former.at <= SILENCE_MAX
    standing = Standing(Verdict.INCONCLUSIVE, now, now, answer)
    if former is not None and goes_on:
        standing = replace(standing, since=former.since, count=former.count + 1)
    if answer.good:
        passed = now - standing.since >= parse_duration(gate.for_)
        return replace(standing, verdict=Verdict.PASSED if passed else Verdict.WAITING)
    if answer.good is None:
        return standing
    return replace(standing, verdict=Verdict.FAILED if standing.count >= BAD_MAX else Verdict.FAILING)


def gate_status(question: Question, standing: Standing | None, stored: GateStatus | None, now: datetime) -> GateStatus:
    """How a gate stands, for the status, where it is `stored` as it stood; what was said long ago counts no more."""
    name, whole = question.gate.name, now.replace(microsecond=0)
    if standing is None:
        told = GateStatus(name=name, verdict=Verdict.WAITING, message="it is being asked", since=whole, at=whole)
        return stored if stored is not None and stored.message == told.message else told
    if now - standing.at > SILENCE_MAX:
        text, last = f"nobody has asked since {standing.at:%H:%M:%S} UTC", standing.at.replace(microsecond=0)
        return GateStatus(name=name, verdict=Verdict.INCONCLUSIVE, message=text, since=last, at=last)
    return GateStatus(
        name=name,
        verdict=standing.verdict,
        value=standing.answer.value[:NAME_MAX_CHARACTERS] or None,
        message=standing.answer.message[:TEXT_MAX_CHARACTERS],
        since=standing.since.replace(microsecond=0),
        at=standing.at.replace(microsecond=0),
    )


def words(gate: GateStatus) -> str:
    """The same in a sentence."""
    found = f"{gate.value}: {gate.message}" if gate.value and gate.message else gate.value or gate.message
    return f"gate {gate.name} is {gate.verdict.lower()} since {gate.since:%H:%M:%S} UTC, {found}"
