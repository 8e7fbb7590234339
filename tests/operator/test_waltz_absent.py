"""What an absent `spec.clients` means is decided once: certificates in new logs, nothing else in those of before."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pavane_operator.crds.common import pod_fields, rollout_id
from pavane_operator.crds.definitions import settled_spec
from pavane_operator.crds.effects import effect
from pavane_operator.crds.status import Generation, GenerationRole, Rollout, State
from pavane_operator.crds.waltzcluster import Authentication, ClientsStatus, WaltzClusterStatus
from pavane_operator.kinds.waltz import kind
from pavane_operator.kinds.waltz.absent import noted, settled
from pavane_operator.kinds.waltz.render import clients
from pavane_operator.plan.model import FINALIZER, Child, Facts, Observed, Plan, Resource
from pavane_operator.plan.planner import plan
from tests.operator.test_render_raft import DEFAULTS, stored
from tests.operator.test_render_waltz import META, READY, RENDERER, resource, revision, shared

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = Child("Secret", "ledger-clients-ca", "uid", "1", {"metadata": {}})
SECURED, OPEN = Authentication.CERTIFICATE, Authentication.NONE


def without_status(**spec: Any) -> Resource:
    return replace(resource(**spec), status=None, finalizers=(FINALIZER,))


def planned(of: Resource, *children: Child) -> Plan:
    """What the operator does, as its reconciler asks for it."""
    known = settled(of, children)
    found = Facts(own_status={"clients": noted(known, children)})
    references = {**READY, "RaftCluster/meta": META}
    return plan(kind(DEFAULTS), known, Observed(fresh=True, children=children, references=references, facts=found), NOW)


def told(of: Resource, *children: Child) -> tuple[Authentication, Authentication]:
    known = noted(settled(of, children), children)
    return known.authentication, known.when_absent


def test_a_new_log_asks_for_certificates_and_notes_it_before_it_makes_anything() -> None:
    first = planned(without_status())
    assert not first.actions
    assert first.status is not None
    assert first.status.rollout is not None
    assert first.status.rollout.state is State.CREATING_NEXT
    assert first.status.dump()["clients"] == {"authentication": "Certificate", "whenAbsent": "Certificate"}
    known = settled(replace(without_status(), status=first.status), ())
    assert clients(known) == ("client",)
    assert first.status.rollout.id == rollout_id("WaltzCluster", known.spec)


def test_it_stays_so_whatever_else_is_lost() -> None:
    status = WaltzClusterStatus(active_generation=1, clients=ClientsStatus(authentication=SECURED, when_absent=SECURED))
    assert told(replace(resource(1), status=status)) == (SECURED, SECURED)
    lost, made = without_status(), revision(resource(1))
    assert told(lost, made, AUTHORITY) == (SECURED, SECURED), "its Secret tells"
    assert told(lost, made) == (OPEN, OPEN), "there was none: it is of before"


def test_a_status_that_is_rebuilt_in_a_rollout_has_it_from_the_beginning() -> None:
    """Else the next look finds a log that has begun and notes nothing, which is one of before."""
    of, made = without_status(), revision(settled(without_status(), ()))
    children = (made, AUTHORITY, *map(stored, RENDERER.generation(settled(of, ()), made)))
    rebuilt = planned(of, *children)
    assert (rebuilt.row, rebuilt.actions) == ("2.3", ())
    assert rebuilt.status is not None
    assert rebuilt.status.dump()["clients"] == {"authentication": "Certificate", "whenAbsent": "Certificate"}
    assert clients(settled(replace(of, status=rebuilt.status), children)) == ("client",)


@pytest.mark.parametrize("number", ["active_generation", "next_generation", "last_generation"])
def test_a_log_of_before_stays_open_to_whoever_comes(number: str) -> None:
    of = replace(resource(), status=WaltzClusterStatus(**{number: 1}))
    assert settled(of, ()) == of
    assert told(of) == (OPEN, OPEN)
    assert told(of, AUTHORITY) == (OPEN, OPEN), "it once had certificates, and its spec took them back"


def test_an_upgrade_rolls_out_nothing_and_notes_what_counts() -> None:
    of, made = resource(1), revision(resource(1))
    serving = Generation(number=1, role=GenerationRole.ACTIVE, id=rollout_id("WaltzCluster", of.spec))
    status = WaltzClusterStatus(
        active_generation=1, last_generation=1, rollout=Rollout(state=State.IDLE), generations=[serving]
    )
    of = replace(of, status=status, finalizers=(FINALIZER,))
    after = planned(of, made)
    assert after.status is not None
    assert after.status.rollout is not None
    assert (after.status.next_generation, after.status.rollout.state) == (None, State.IDLE)
    assert after.status.dump()["clients"] == {"authentication": "None", "whenAbsent": "None"}
    known = settled(replace(of, status=after.status), (made,))
    assert RENDERER.generation(known, made) == RENDERER.generation(of, made)
    assert shared(known) == shared(of)


def test_what_the_spec_says_counts_and_its_absence_means_the_same_as_before() -> None:
    assert told(without_status(clients={"authentication": "None"})) == (OPEN, SECURED)
    status = WaltzClusterStatus(active_generation=1)
    former = replace(resource(1, clients={"authentication": "Certificate"}), status=status)
    assert told(former) == (SECURED, OPEN)
    assert told(without_status(tls={"mode": "Disabled"})) == (OPEN, SECURED), "nobody issues any"


def test_commands_compare_with_what_counts() -> None:
    spec = {"metadata": {"raftClusterRef": {"name": "meta"}}}
    secured = {"metadata": {}, "spec": spec, "status": {"clients": {"whenAbsent": "Certificate"}}}
    made = revision(settled(without_status(), ())).body["data"]["fields"]
    explicit = {"metadata": {}, "spec": spec | {"clients": made["clients"]}}
    assert pod_fields(settled_spec("WaltzCluster", secured)) == pod_fields(settled_spec("WaltzCluster", explicit))
    assert effect("WaltzCluster", secured, explicit) == "this changes it in place; no generation starts"
    other = {"metadata": {}, "spec": spec | {"clients": {"authentication": "None"}}}
    assert effect("WaltzCluster", secured, other) == "this starts a new generation of 2 pods"
