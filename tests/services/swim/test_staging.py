"""One core as an observer, a full member of a rollout and a leaver (docs/specs/swim.md 16)."""

import pytest

from pavane.swim.config import Start
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.staging import CaughtUp
from pavane.swim.wire.messages import JoinAck, JoinNak, JoinRedirect, JoinReq, Message, PingRequest, PingResponse
from pavane.swim.wire.payload import Digest, Listed, Page, Payload, StageShown, Suspicion
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import U32_MAX, Address, NodeId, NodeStage, State
from tests.services.swim.lone import Lone, alive, info, only, place

OBSERVER = StageShown(NodeStage.READ_ONLY, 7)


class Watcher:
    """An observer that was admitted by the full member 2, which answers as it is told to."""

    def __init__(self) -> None:
        self.lone = Lone(start=Start.ORDERED, rollout=7)
        self.pages = True  # the walk gets its page
        self.digest: Digest | None = None
        self.lone.join(place(2))
        self.lone.hear(place(2), JoinAck(info(2)))

    @property
    def own_digest(self) -> Digest:
        return self.lone.core._node.members.digest(self.lone.core._node.node)

    def answer(self, to: Address, message: Message) -> Message | None:
        if not isinstance(message, PingRequest) or to != place(2):
            return None
        payload = Payload(seq=message.payload.seq, digest=self.digest)
        if self.pages and message.payload.digest == Digest(0, bytes(8)):
            entries = [Listed(self.lone.core.info, State.ALIVE), Listed(info(2), State.ALIVE)]
            payload.pages = (Page(0, U32_MAX, tuple(entries)),)
        return PingResponse(message.src, message.target, 0, payload)

    def wait(self, seconds: float) -> CaughtUp:
        self.lone.wait(seconds, self.answer)
        return self.lone.core.staging.caught_up


def test_an_observer_is_caught_up_by_a_walk_and_an_equal_digest() -> None:
    watcher = Watcher()
    assert watcher.lone.core.stage is NodeStage.READ_ONLY
    watcher.digest = watcher.own_digest
    assert watcher.wait(5) is CaughtUp.YES
    assert [event.text for event in watcher.lone.happened(Happened.CAUGHT_UP)] == ["yes"]
    status = watcher.lone.core.staging
    assert (status.agreeing, status.wanted, status.progress) == (1, 1, status.target)
    assert watcher.lone.core.promote(watcher.lone.now)
    assert watcher.lone.core.staging.stage is NodeStage.READ_WRITE


def test_without_a_walk_an_equal_digest_is_not_enough() -> None:
    watcher = Watcher()
    watcher.pages, watcher.digest = False, watcher.own_digest
    assert watcher.wait(5) is CaughtUp.NO
    assert not watcher.lone.core.promote(watcher.lone.now)


def test_an_old_digest_does_not_count() -> None:
    watcher = Watcher()
    watcher.digest = watcher.own_digest
    assert watcher.wait(5) is CaughtUp.YES
    watcher.digest = None  # it answers, but shows its table no more
    assert watcher.wait(9) is CaughtUp.YES
    assert watcher.wait(3) is CaughtUp.NO
    status = watcher.lone.core.staging
    assert status.progress < status.target


def test_in_a_group_that_always_changes_an_observer_is_caught_up_approximately() -> None:
    watcher = Watcher()
    watcher.digest = Digest(2, bytes(8))
    assert watcher.wait(20) is CaughtUp.NO
    assert watcher.wait(120) is CaughtUp.APPROXIMATE
    status = watcher.lone.core.staging
    assert status.progress == status.target
    assert watcher.lone.core.promote(watcher.lone.now)


def test_an_observer_shows_its_stage_in_every_ping_and_response() -> None:
    watcher = Watcher()
    lone = watcher.lone
    sent = lone.take()
    lone.wait(3, watcher.answer)
    sent += lone.take()
    answers = lone.hear(place(2), lone.ping(2))
    answers += lone.hear(place(9), lone.ping(9))  # a stranger
    shown = [m.payload.stage for _, m in sent + answers if isinstance(m, PingRequest | PingResponse)]
    assert len(shown) > 4
    assert set(shown) == {OBSERVER}


def test_a_full_member_of_a_rollout_shows_its_stage_until_it_is_acknowledged() -> None:
    lone = Lone(rollout=7)
    lone.join()
    lone.admit(2)
    lone.take()

    def shown() -> list[StageShown | None]:
        return [m.payload.stage for _, m in lone.take() if isinstance(m, PingRequest) and m.target.id == 2]

    lone.wait(2.5)
    assert set(shown()) == {StageShown(NodeStage.READ_WRITE, 7)}
    lone.wait(3, alive)
    lone.take()
    lone.wait(5, alive)
    assert set(shown()) == {None}
    lone.news(2, alive=(info(2, 5),))  # started again: it knows nothing of us
    lone.take()
    lone.wait(1.2)
    assert set(shown()) == {StageShown(NodeStage.READ_WRITE, 7)}


def test_a_member_without_stages_shows_none(lone: Lone) -> None:
    lone.wait(5, alive)
    assert {m.payload.stage for _, m in lone.take() if isinstance(m, PingRequest)} == {None}


def test_an_observer_gets_a_digest_with_each_answer(lone: Lone) -> None:
    _, plain = only(lone.hear(place(2), lone.ping(2)))
    _, told = only(lone.hear(place(2), lone.ping(2, Payload(stage=OBSERVER))))
    assert isinstance(plain, PingResponse)
    assert isinstance(told, PingResponse)
    assert plain.payload.digest is None
    assert told.payload.digest == lone.core._node.members.digest(lone.core._node.node)


def join_by(lone: Lone, node: int) -> Message:
    (_, nak), *_ = lone.hear(place(node), JoinReq(info(node)))
    assert isinstance(nak, JoinNak)
    _, answer = only(lone.hear(place(node), JoinReq(info(node), nak.etag.encode())))
    return answer


def test_who_asks_an_observer_is_sent_to_a_full_member() -> None:
    watcher = Watcher()
    watcher.wait(3)
    assert join_by(watcher.lone, 9) == JoinRedirect(place(2), 7115, Refusal.NOT_ACCEPTING)
    watcher.lone.news(2, stage=OBSERVER)
    assert join_by(watcher.lone, 9) == JoinNak(7115, Refusal.NOT_ACCEPTING)  # no full member is left
    assert 9 not in watcher.lone.sees()


def test_a_leaver_sends_joiners_to_the_latest_rollout_and_probes_nobody(lone: Lone) -> None:
    for node, rollout in ((2, 1), (3, 2), (4, 1)):
        lone.news(node, stage=StageShown(NodeStage.READ_WRITE, rollout))
    lone.core.drain(lone.now)
    answer = join_by(lone, 9)
    assert answer == JoinRedirect(place(3), 7115, Refusal.NOT_ACCEPTING)
    lone.take()
    lone.wait(1.9, alive)
    assert not [m for _, m in lone.take() if isinstance(m, PingRequest)]
    _, response = only(lone.hear(place(2), lone.ping(2)))
    assert isinstance(response, PingResponse)
    assert response.payload.stage == StageShown(NodeStage.DRAINING, 0)
    assert not lone.happened(Happened.DRAINED)
    lone.wait(3, alive)
    assert lone.core.own is Own.OUT
    assert lone.happened(Happened.DRAINED)


def test_a_member_drains_by_itself_when_enough_of_a_later_rollout_are_there() -> None:
    lone = Lone(rollout=3, drain_for=2)
    lone.join()
    lone.admit(2, 3, 4)
    shown = {2: (NodeStage.READ_WRITE, 3), 3: (NodeStage.READ_WRITE, 4), 4: (NodeStage.READ_ONLY, 4)}
    for node, (stage, rollout) in shown.items():
        lone.news(node, stage=StageShown(stage, rollout))
    before = lone.core.stage
    lone.news(4, stage=StageShown(NodeStage.READ_WRITE, 4))
    assert (before, lone.core.stage) == (NodeStage.READ_WRITE, NodeStage.DRAINING)
    lone.wait(5, alive)
    assert lone.core.own is Own.OUT


def test_a_stage_that_a_buried_or_relayed_author_shows_does_not_count(lone: Lone) -> None:
    response = PingResponse(NodeId(1, 10), NodeId(2, 1), 0, Payload(stage=OBSERVER))
    lone.hear(place(3), response)  # from another member's address
    assert {member.stage for member in lone.core.members()} == {NodeStage.READ_WRITE}
    lone.news(2, stage=OBSERVER)
    assert [member.id for member in lone.core.members() if member.stage is NodeStage.READ_ONLY] == [2]


@pytest.mark.parametrize("promoted", [False, True])
def test_a_suspicion_ends_in_death_at_a_full_member_only(promoted: bool) -> None:
    watcher = Watcher()
    lone = watcher.lone
    watcher.wait(2)
    lone.news(2, alive=(info(3), info(4)))
    lone.news(2, suspects=(Suspicion(NodeId(3, 1), 2),))
    watcher.pages = False  # a page that leaves it out would tell that it is dead
    watcher.wait(40)
    assert lone.sees()[3] == (1, "SUSPECT")
    if promoted:
        assert lone.core.promote(lone.now, force=True)
        lone.wait(50, alive)
        assert lone.core._node.members.get(3) is None or lone.sees()[3][1] == "DEAD"
        assert lone.core.counts["deaths"] == 1
    else:
        watcher.wait(50)
        assert lone.core.counts["deaths"] == lone.core.counts["suspicions"] == 0


def test_an_observer_whose_acknowledgement_was_lost_asks_who_tracks_it() -> None:
    lone = Lone(start=Start.ORDERED, rollout=7)
    lone.join(place(2))
    ((_, nak),) = lone.hear(place(3), JoinReq(info(3)))
    assert isinstance(nak, JoinNak)
    answers = lone.hear(place(3), JoinReq(info(3), nak.etag.encode()))
    assert {(to, type(message)) for to, message in answers} == {(place(3), JoinNak), (place(3), JoinReq)}
    lone.hear(place(3), JoinAck(info(3)))
    assert lone.core.own is Own.MEMBER


def test_rollouts_of_another_deployment_fence_and_drain_nobody() -> None:
    def kin(id_: int, _: int) -> bool:
        return id_ == 3

    for of, heard, drained in ((2, 0, []), (3, 9, [Own.LEAVING])):
        lone = Lone(rollout=7, drain_for=1, kin=kin)
        lone.join()
        lone.admit(2, 3)
        lone.hear(place(of), lone.ping(of, Payload(stage=StageShown(NodeStage.READ_WRITE, 9))))
        lone.wait(2.5, alive)
        assert lone.core.staging.rollout_heard == heard
        assert [event.text for event in lone.happened(Happened.OWN_STATE)][2:3] == drained
        assert {member.id: member.rollout for member in lone.core.members()}.get(of, 9) == 9

        observer = Lone(start=Start.SELF, rollout=7, kin=kin)
        observer.join(place(of))
        observer.hear(place(of), JoinAck(info(of)))
        observer.hear(place(of), observer.ping(of, Payload(stage=StageShown(NodeStage.READ_WRITE, 9))))
        assert observer.core.staging.fenced is (of == 3)
