"""Single stories of two owners, told step by step; sessions and nodes are the product's (docs/specs/waltz.md 10).

What the simulation leaves to chance is chosen here: which message arrives when. A connection between the two ends may
outlive a storage node that is started again, as behind a proxy or with the original's clients.
"""

from copy import deepcopy

import pytest

from pavane.waltz.core import outputs as o
from pavane.waltz.core import reader
from pavane.waltz.core.connection import Connection
from pavane.waltz.core.reader import Reader
from pavane.waltz.core.session import SLOW_BATCHES, StoreSession
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.sim.waltz.beside import read_beside
from tests.sim.waltz.story import Story, record, session_of
from tests.sim.waltz.world import NODES, PARTITION


@pytest.mark.parametrize("fences", [True, False], ids=["durable fence", "without it"])
def test_a_node_that_starts_again_in_a_recovery_does_not_obey_the_old_owner(fences: bool) -> None:
    story = Story(fences=fences)
    old = session_of(1)
    told, _ = story.go_on(old, old.start(0.0))
    assert told == [o.Opened(0, -1)]

    told, late = story.go_on(old, old.append(0.0, [record(0)]), lambda send: send.node != "n0")
    assert told == []

    # Another owner finds the record on one node of three: nothing that was committed, so it is cut.
    new = session_of(2)
    unstamped = {"n1", "n2"}
    told, stamps = story.go_on(
        new, new.start(0.0), lambda send: isinstance(send.message, s.SetLowWaterMark) and send.node in unstamped
    )
    assert told == []
    assert {send.node for send in stamps} == unstamped

    # A node that has promised to obey the new owner starts again; then what the old one has sent it arrives.
    story.restart("n1")
    message = next(send for send in late if send.node == "n1")
    told = old.response(0.0, "n1", story.answer(message))
    committed = o.Committed(0) in told

    # The new owner goes on, in a second attempt if one of its messages is refused.
    told = []
    for send in stamps:
        told += story.go_on(new, new.response(0.0, send.node, story.answer(send)))[0]
    if not new.open:
        new = session_of(2, attempt=1)
        told += story.go_on(new, new.start(0.0))[0]
    assert new.open, told
    lost = committed and new.hwm < 0
    assert lost is not fences


def test_an_owner_that_looks_while_another_one_opens_the_partition_begins_anew() -> None:
    story = Story(fences=True)
    new = session_of(2)
    _, looks = story.go_on(new, new.start(0.0), lambda _: True)  # there are no metadata yet
    old = session_of(1)
    assert story.go_on(old, old.start(0.0))[0] == [o.Opened(0, -1)]
    told = []
    for send in looks:
        told += story.go_on(new, new.response(0.0, send.node, story.answer(send)))[0]
    [closed] = told
    assert isinstance(closed, o.Closed)
    again = session_of(2, attempt=1)
    assert story.go_on(again, again.start(0.0))[0] == [o.Opened(1, -1)]


def opened_by_two() -> tuple[Story, StoreSession]:
    """A session of n0 and n1, of a partition that has been open before."""
    story = Story(fences=True)
    first = session_of(1)
    story.go_on(first, first.start(0.0))
    session = session_of(2, up=("n0", "n1"))
    told, _ = story.go_on(session, session.start(0.0))
    assert told == [o.Opened(1, -1)]
    return story, session


def commits_without_n1(story: Story, session: StoreSession, txid: int) -> bool:
    told, late = story.go_on(session, session.append(0.0, [record(txid)]), lambda send: send.node == "n1")
    committed = told == [o.Committed(txid)]
    for send in late:
        told += story.go_on(session, session.response(0.0, send.node, story.answer(send)))[0]
    assert told == [o.Committed(txid)]
    return committed


def test_a_node_whose_connection_ends_before_it_votes_joins_the_session_again() -> None:
    story, session = opened_by_two()
    story.held_writes = []
    story.go_on(session, session.node_up(0.0, "n2"))  # it recovers; the metadata do not say so yet
    told, _ = story.go_on(session, session.node_down(0.0, "n2"))
    told += story.go_on(session, session.node_up(0.0, "n2"))[0]
    assert told == []
    assert not commits_without_n1(story, session, 0)

    # The first write is from before it was away. Another owner may have begun since, and n2 may have forgotten it.
    [early] = story.held_writes
    story.go_on(session, story.write(session, early))
    assert not commits_without_n1(story, session, 1)
    [_, again] = story.held_writes
    story.go_on(session, story.write(session, again))
    assert commits_without_n1(story, session, 2)


def test_a_node_that_refuses_at_first_is_asked_again_by_the_session() -> None:
    story, session = opened_by_two()

    def refused(send: o.Send) -> bool:
        return send.node == "n2"

    _, [question] = story.go_on(session, session.node_up(0.0, "n2"), refused)
    refusal = s.Failure(question.message.head, "partition 0 is damaged from transaction 7 on")
    assert story.go_on(session, session.response(0.0, "n2", refusal))[0] == []
    assert not commits_without_n1(story, session, 0)
    due = session.next_due()
    assert due is not None
    story.go_on(session, session.tick(due))
    assert commits_without_n1(story, session, 1)


def test_a_vote_is_void_when_the_node_that_gave_it_has_to_begin_anew() -> None:
    """A voter falls behind, votes on what is undecided, and comes back: it has cut that record meanwhile."""
    story, session = opened_by_two()
    story.go_on(session, session.node_up(0.0, "n2"))
    theirs: list[o.Send] = []

    def append(txid: int, *held: str) -> dict[str, o.Send]:
        told, late = story.go_on(session, session.append(0.0, [record(txid)]), lambda send: send.node in held)
        assert told == ([] if "n1" in held else [o.Committed(txid)])
        theirs.extend(send for send in late if send.node == "n2")
        return {send.node: send for send in late}

    def answered(send: o.Send) -> list[o.Output]:
        return story.go_on(session, session.response(0.0, send.node, story.answer(send)))[0]

    for txid in range(SLOW_BATCHES):
        append(txid, "n2")
    last = append(SLOW_BATCHES, "n1", "n2")
    undecided = append(SLOW_BATCHES + 1, *NODES)
    append(SLOW_BATCHES + 2, *NODES)
    assert answered(last["n1"]) == [o.Committed(SLOW_BATCHES)]  # from here on n2 copies, and has no vote on new ones
    for send in theirs[:-1]:
        assert answered(send) == []  # its vote on the undecided one is the last of these

    told, _ = story.go_on(session, session.node_down(0.0, "n2"))
    told += story.go_on(session, session.node_up(0.0, "n2"))[0]
    told += answered(undecided["n0"])
    assert told == []
    assert answered(undecided["n1"]) == [o.Committed(SLOW_BATCHES + 1)]


def read_by(
    story: Story, order: tuple[str, ...], *, hwm: int = 0, stamps: bool = True
) -> tuple[bytes | str, list[str]]:
    """Return what a server that may not write reads as transaction 0 where its owner says ``hwm``, and whom it asks.

    Nodes that are not in ``order`` do not answer. Without ``stamps`` it does not look who has stamped a node.
    """
    out: list[o.Output] = []
    reader = Reader(PARTITION, out, lambda: "owner:1")
    reader.message(0.0, Connection(1, 5), m.TransactionDataRequest(ReqId(1, 1, PARTITION, 1), 0))
    asked = []
    while True:
        output = out.pop(0)
        match output:
            case o.AskOwner():
                output.answer(0.0, hwm)
            case o.ReadMeta():
                reader.metadata(0.0, output.attempt, story.meta)
            case o.ReadStorage():
                asked.append(output.node)
                session, found = read_beside(story.directories[output.node], output)
                if not stamps:
                    session = 1 << 40
                output.answer(0.0, session, found if output.node in order else None)
            case o.Reply():
                assert isinstance(output.message, m.TransactionDataResponse)
                return output.message.result, asked


def test_a_server_beside_reads_nothing_that_may_not_be_committed() -> None:
    story = Story(fences=True)
    session = session_of(1)
    story.go_on(session, session.start(0.0))
    told, _ = story.go_on(session, session.append(0.0, [record(0)]), lambda send: send.node != "n0")
    assert told == []
    found, asked = read_by(story, NODES, hwm=session.hwm)
    assert "TransactionNotFoundException" in str(found)
    assert asked == []
    assert read_by(story, NODES, hwm=session.hwm + 1) == (record(0).data, ["n0"])  # it was there to be read


def two_of_three_go_on() -> tuple[Story, s.Record]:
    """A log whose owner has left a record on n2 alone, and whose next owner has committed another one without n2."""
    story = Story(fences=True)
    old = session_of(1)
    story.go_on(old, old.start(0.0))
    story.go_on(old, old.append(0.0, [record(0)]), lambda send: send.node != "n2")
    session = session_of(2, up=("n0", "n1"))
    assert story.go_on(session, session.start(0.0))[0] == [o.Opened(1, -1)]
    committed = s.Record.of(0, ReqId(2, 2, PARTITION, 0), 0, b"committed")
    assert story.go_on(session, session.append(0.0, [committed]))[0] == [o.Committed(0)]
    return story, committed


def test_a_server_beside_reads_only_from_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    story, committed = two_of_three_go_on()
    assert read_by(story, NODES) == (committed.data, ["n0"])
    assert "n2" not in read_by(story, ("n2",))[1]

    monkeypatch.setattr(reader, "declared", lambda meta: ["n2", "n0", "n1"])
    assert read_by(story, NODES, stamps=False)[0] == record(0).data


@pytest.mark.parametrize("stamps", [True, False], ids=["stamp", "without it"])
def test_a_server_beside_does_not_read_from_a_disk_that_was_set_back(stamps: bool) -> None:
    story, committed = two_of_three_go_on()
    before = deepcopy(story.disks["n2"])
    session = session_of(3)
    assert story.go_on(session, session.start(0.0))[0] == [o.Opened(2, 0)]
    assert read_by(story, ("n2",)) == (committed.data, ["n0", "n1", "n2"])

    story.disks["n2"] = before
    story.restart("n2")
    stale = read_by(story, ("n2",), stamps=stamps)[0] == record(0).data
    assert stale is not stamps


def test_a_node_that_has_noted_what_it_holds_and_starts_again_is_to_count_in_the_same_session() -> None:
    story = Story()
    first = session_of(1, nodes=("n0", "n1"))
    story.go_on(first, first.start(0.0))
    session = StoreSession(PARTITION, 1, NODES, ("n0", "n1"), attempt=1, switch_from=100.0)
    assert story.go_on(session, session.start(0.0))[0] == [o.Opened(1, -1)]
    story.go_on(session, session.append(0.0, [record(0)]))
    story.go_on(session, session.node_up(0.0, "n2"))
    assert story.files("n2").info.lwm == 0, "it has noted what was committed in this session"

    story.go_on(session, session.node_down(0.0, "n2"))
    story.restart("n2")
    story.go_on(session, session.node_up(0.0, "n2"))
    assert session.joining == {"n2": 0}
    assert story.go_on(session, session.tick(100.0))[0] == [o.Closed("the replicas change")]
