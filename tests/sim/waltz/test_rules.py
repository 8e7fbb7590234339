"""What rules of a recovery are for: stories that are rare by chance, and go wrong without (docs/specs/waltz.md 13)."""

from collections.abc import Mapping

import pytest

from pavane.waltz.core import outputs as o
from pavane.waltz.core.node import Node
from pavane.waltz.core.replica import Replica
from pavane.waltz.core.session import StoreSession
from pavane.waltz.state import recovery
from pavane.waltz.state.recovery import NEVER, Info, Member, Plan
from pavane.waltz.storage.directory import PartitionFiles
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.blobs import UNRESOLVED
from tests.sim.waltz.story import Story, record, session_of
from tests.sim.waltz.world import PARTITION

with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["rule", "without it"])


@with_and_without
def test_what_an_attempt_decided_by_a_copy_is_decided_again_without_its_source(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is closed and was cut is stamped at once, so the next attempt does not cut it again (13.4, c)."""
    story = Story()
    first = session_of(1)
    story.go_on(first, first.start(0.0))
    story.go_on(first, first.append(0.0, [record(0)]), lambda send: send.node == "n2")
    second = session_of(2, up=("n0", "n1"))
    assert story.go_on(second, second.start(0.0))[0] == [o.Opened(1, 0)]
    story.go_on(second, second.append(0.0, [record(1)]), lambda send: send.node == "n1")

    classify = recovery.classify

    def forgetful(members: Mapping[str, Member], node: str, info: Info) -> Plan:
        member = members[node]
        closed = member.closing_hwm != UNRESOLVED
        return Plan(truncate_to=member.closing_hwm) if closed else classify(members, node, info)

    if not rule:
        monkeypatch.setattr(recovery, "classify", forgetful)
    # n2 copies both from n0; that decides, and there the attempt ends: nobody has heard of the decision.
    decided = session_of(3, up=("n0", "n2"))
    _, unheard = story.go_on(
        decided, decided.start(0.0), lambda send: isinstance(send.message, s.SetLowWaterMark) and send.message.lwm == 1
    )
    assert {send.node for send in unheard} == {"n0", "n2"}
    again = session_of(3, attempt=1, up=("n1", "n2"))
    story.go_on(again, again.start(0.0))
    assert again.open
    assert (again.hwm == 1) is rule


@with_and_without
def test_a_replica_that_was_stamped_above_the_decision_takes_part(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that never ended may have stamped more than is decided: a newer session may stamp less (10)."""
    story = Story()
    first = session_of(1)
    story.go_on(first, first.start(0.0))
    story.go_on(first, first.append(0.0, [record(0)]))
    stamp = s.SetLowWaterMark(s.Head(1, 0, PARTITION), 5, False)
    assert isinstance(story.answer(o.Send("n2", stamp)), s.Success)

    set_info = Node._set_info

    def strict(self: Node, files: PartitionFiles, session: int, lwm: int) -> None:
        if lwm < files.info.lwm:
            raise OSError("a low-water mark never falls")
        set_info(self, files, session, lwm)

    if not rule:
        monkeypatch.setattr(Node, "_set_info", strict)
    story.go_on(claimed := session_of(2), claimed.start(0.0), lambda send: True)  # the claim of that attempt
    second = session_of(2, attempt=1)
    story.go_on(second, second.start(0.0))
    assert second.open is rule
    assert ("n2" not in second.failures) is rule


@with_and_without
def test_a_new_replica_that_was_absent_brings_nothing_of_an_earlier_life(
    rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is (-1, -1) and not (-1, what was decided): whatever it holds is cut (13.4, 6)."""
    story = Story()
    claimed = session_of(1)
    story.go_on(claimed, claimed.start(0.0), lambda send: send.message.head.session >= 0)  # n2 goes with the owner
    story.files("n2").append([record(0, b"of an earlier life")])
    story.files("n2").sync()
    first = session_of(1, attempt=1, up=("n0", "n1"))
    story.go_on(first, first.start(0.0))
    assert story.go_on(first, first.append(0.0, [record(0)]))[0] == [o.Committed(0)]

    classify, next_members = recovery.classify, recovery.next_members

    def as_the_original(
        members: Mapping[str, Member], assigned: Mapping[str, Replica], clean: set[str], session: int, resolved: int
    ) -> dict[str, Member]:
        after = next_members(members, assigned, clean, session, resolved)
        return {node: Member(NEVER, resolved) if one.session == NEVER else one for node, one in after.items()}

    def trusting(members: Mapping[str, Member], node: str, info: Info) -> Plan:
        member = members.get(node)
        if member is not None and member.session == NEVER:
            return Plan(truncate_to=member.closing_hwm, stamp=True)
        return classify(members, node, info)

    if not rule:
        monkeypatch.setattr(recovery, "next_members", as_the_original)
        monkeypatch.setattr(recovery, "classify", trusting)
    second = session_of(2, up=("n0", "n1"))
    assert story.go_on(second, second.start(0.0))[0] == [o.Opened(2, 0)]
    third = session_of(3)
    assert story.go_on(third, third.start(0.0))[0] == [o.Opened(3, 0)]
    assert (story.files("n2").read(0, 1) == [record(0)]) is rule


@with_and_without
def test_an_old_owner_wins_no_replica_that_lost_its_disk(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who joins late votes only after a metadata write, which an owner that was replaced cannot make (13.2)."""
    story = Story()
    first = session_of(1)
    story.go_on(first, first.start(0.0))
    old = session_of(1, attempt=1, up=("n0", "n1"))
    assert story.go_on(old, old.start(0.0))[0] == [o.Opened(1, -1)]
    new = session_of(2, up=("n1", "n2"))
    assert story.go_on(new, new.start(0.0))[0] == [o.Opened(2, -1)]

    contact = StoreSession._contact

    def trusting(self: StoreSession, replica: Replica) -> None:
        replica.declared = True
        contact(self, replica)

    if not rule:
        monkeypatch.setattr(StoreSession, "_contact", trusting)
    story.wipe("n2")  # with it goes the fence
    story.held_writes = []
    story.go_on(old, old.node_up(0.0, "n2"))
    told, _ = story.go_on(old, old.append(0.0, [record(0)]), lambda send: send.node == "n1")
    assert told == ([] if rule else [o.Committed(0)])  # n0 and n2 would be a quorum
    if rule:
        story.go_on(old, story.write(old, story.held_writes.pop()))
        assert old.ended
