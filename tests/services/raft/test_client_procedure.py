"""The client's way to the leader, without sockets: silence, negative answers, disconnects (docs/specs/raft.md 11.2)."""

import random
from typing import Any

import pytest

from pavane.raft.client.calls import (
    Call,
    ChangeMembersCall,
    ConfigurationCall,
    EntriesCall,
    StatusCall,
    TransferCall,
    UpdateCall,
)
from pavane.raft.client.procedure import Finished, Procedure
from pavane.raft.errors import Compacted, Expired, Overloaded, Refused, Unreachable, Unsupported
from pavane.raft.wire.decoder import Reply, decode_request
from pavane.raft.wire.entry import encode_entry
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvReply
from pavane.raft.wire.replies import (
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestUpdateReply,
    SnapshotPart,
    UpdateStatus,
)
from pavane.raft.wire.requests import RequestEntries

IDENT = b"s3cr3t"
URLS = {"1": "tcp://10.0.0.1:8047", "2": "tcp://10.0.0.2:8047", "3": "tcp://10.0.0.3:8047"}
PEERS = tuple(URLS.items())
TIMEOUT_S = 0.5
GRACE_S = 0.3
REQID = bytes(range(12))
DONE = RequestUpdateReply(UpdateStatus.DONE, 7)
ACCEPTED = RequestUpdateReply(UpdateStatus.ACCEPTED)


def negative(leader: str | None) -> Reply:
    return RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=leader)


def names_leader(leader: str | None, of: str = "") -> Reply:
    return RequestConfigReply(leader is not None and leader == of, leader, PEERS)


class Network:
    """The procedure with a clock, literal addresses and scripted peers.

    ``sent`` collects (time, peer, type) of everything sent. A peer in ``leaders`` answers ``^`` with the leader named
    there; a peer that is not stays silent.
    """

    def __init__(self, seeds: tuple[str, ...] = tuple(URLS.values()), hedge_after_s: float | None = None) -> None:
        self.now = 100.0
        self.procedure = Procedure(seeds, IDENT, TIMEOUT_S, GRACE_S, random.Random(1), hedge_after_s)
        self.addresses: dict[str, tuple[str, ...]] = {url: (url,) for url in URLS.values()}
        self.leaders: dict[str, str | None] = {}
        self.sent: list[tuple[float, str, str]] = []
        self.messages: list[tuple[str, tuple[Frame, ...]]] = []
        self.finished: list[Finished] = []
        self.connected: frozenset[str] = frozenset()
        self.redialled: list[tuple[float, str]] = []

    def name(self, endpoint: str) -> str:
        return next((name for name, url in URLS.items() if url == endpoint), endpoint)

    def settle(self) -> None:
        while True:
            outputs = self.procedure.outputs()
            if outputs.connect is not None:
                self.connected = outputs.connect
            self.redialled += [(round(self.now - 100, 3), self.name(endpoint)) for endpoint in outputs.redial]
            self.finished += outputs.finished
            for url in outputs.resolve:
                self.procedure.resolved(url, self.addresses.get(url, ()), self.now)
            for endpoint, frames in outputs.send:
                assert endpoint in self.connected
                peer, kind = self.name(endpoint), bytes(frames[1]).decode()
                self.sent.append((round(self.now - 100, 3), peer, kind))
                self.messages.append((peer, frames))
                if kind == "^" and peer in self.leaders:
                    reply = names_leader(self.leaders[peer], of=peer)
                    self.procedure.receive(endpoint, (frames[0], *reply.encode()), self.now)
            if not (outputs.send or outputs.resolve or outputs.finished):
                return

    @property
    def requests(self) -> list[tuple[str, str]]:
        """What was sent beside the question for the members, as (peer, type)."""
        return [(peer, kind) for _, peer, kind in self.sent if kind != "^"]

    def submit(self, call: Call[Any]) -> None:
        self.procedure.submit(call, self.now)
        self.settle()

    def reply(self, peer: str, call: Call[Any], reply: Reply) -> None:
        self.procedure.receive(URLS[peer], (call.id, *reply.encode()), self.now)
        self.settle()

    def connection(self, peer: str, up: bool) -> None:
        self.procedure.connection(URLS[peer], up, self.now)
        self.settle()

    def run(self, seconds: float) -> None:
        """Let time go by, timer by timer."""
        end = self.now + seconds
        while True:
            due = self.procedure.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.procedure.handle_timer(self.now)
            self.settle()
        self.now = end

    def kinds(self, kind: str) -> list[tuple[float, str]]:
        return [(at, peer) for at, peer, sent in self.sent if sent == kind]


def update(number: int = 0, timeout_s: float = 30.0) -> UpdateCall:
    return UpdateCall(bytes(11) + bytes([number]), b"data", timeout_s)


def led_by(leader: str, hedge_after_s: float | None = None) -> Network:
    network = Network(hedge_after_s=hedge_after_s)
    network.leaders = dict.fromkeys(URLS, leader)
    network.submit(update(99))
    network.reply(leader, update(99), DONE)
    network.sent.clear()
    network.messages.clear()
    network.finished.clear()
    return network


def test_start_asks_one_after_the_other_for_500_ms_until_one_names_a_leader() -> None:
    network = Network()
    network.leaders = {"3": "2"}
    network.submit(update())
    network.run(1.2)
    assert network.kinds("^") == [(0.0, "1"), (0.5, "2"), (1.0, "3")]
    assert network.kinds("=") == [(1.0, "2")]


def test_peers_that_refuse_the_connection_are_not_waited_for() -> None:
    network = Network()
    network.leaders = {"3": "3"}
    network.submit(update())
    network.connection("1", up=False)
    network.connection("2", up=False)
    assert network.kinds("^") == [(0.0, "1"), (0.0, "2"), (0.0, "3")]
    assert network.kinds("=") == [(0.0, "3")]


def test_known_peers_become_those_of_the_answer() -> None:
    network = Network(("tcp://service:8047",))
    network.addresses["tcp://service:8047"] = (URLS["2"],)
    network.leaders = {"2": "1"}
    network.submit(update())
    assert network.kinds("=") == [(0.0, "1")]
    assert network.connected == frozenset(URLS.values())


def test_a_seed_name_stands_for_all_its_addresses() -> None:
    network = Network(("tcp://service:8047",))
    network.addresses["tcp://service:8047"] = tuple(URLS.values())
    network.leaders = {"1": None, "2": None, "3": "3"}
    network.submit(update())
    assert [peer for _, peer in network.kinds("^")] == ["1", "2", "3"]
    assert network.kinds("=") == [(0.0, "3")]


def test_nothing_is_asked_before_a_name_has_an_address() -> None:
    network = Network(("tcp://service:8047",))
    network.leaders = dict.fromkeys(URLS, "1")
    network.submit(update())
    network.run(0.2)
    assert network.sent == []
    network.procedure.resolved("tcp://service:8047", (URLS["2"],), network.now)
    network.settle()
    assert network.kinds("=") == [(0.2, "1")]


def test_all_calls_go_to_the_known_leader_at_once() -> None:
    network = led_by("2")
    for number in range(3):
        network.submit(update(number))
    assert network.sent == [(0.0, "2", "=")] * 3


def test_negative_answer_that_names_the_leader_moves_everything_there_at_once() -> None:
    network = led_by("2")
    calls = [update(number) for number in range(3)]
    for call in calls:
        network.submit(call)
    network.sent.clear()
    network.reply("2", calls[0], negative("3"))
    assert network.sent == [(0.0, "3", "=")] * 3
    network.reply("2", calls[1], negative("3"))  # the old leader's other answers change nothing more
    assert len(network.sent) == 3


def test_negative_answer_that_names_an_unknown_peer_asks_who_that_is() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.sent.clear()
    network.leaders["2"] = "3"
    network.reply("2", call, negative("new"))
    assert network.sent == [(0.0, "2", "^"), (0.0, "3", "=")]


def test_negative_answer_without_leader_waits_the_grace_and_asks_the_others_first() -> None:
    network = led_by("2")
    network.leaders = {"1": "1", "2": "2", "3": "1"}
    call = update()
    network.submit(call)
    network.sent.clear()
    network.reply("2", call, negative(None))
    network.run(0.29)
    assert network.sent == []
    network.run(0.02)
    assert network.sent == [(0.3, "3", "^"), (0.3, "1", "=")]


def test_successor_that_is_named_before_it_leads_is_found_as_soon_as_it_does() -> None:
    network = led_by("2")
    network.leaders = dict.fromkeys(URLS)
    call = update()
    network.submit(call)
    network.sent.clear()
    network.reply("2", call, negative("3"))
    network.reply("3", call, negative(None))
    network.leaders = dict.fromkeys(URLS, "3")
    network.run(0.1)
    at, peer = network.kinds("=")[-1]
    assert peer == "3"
    assert at < 0.1


def test_unknown_successor_that_is_named_before_it_leads_is_found_as_soon_as_it_does() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.sent.clear()
    network.leaders["2"] = "3"
    network.reply("2", call, negative("new"))
    network.leaders = dict.fromkeys(URLS)
    network.reply("3", call, negative(None))
    network.leaders = dict.fromkeys(URLS, "3")
    network.run(0.1)
    at, peer = network.kinds("=")[-1]
    assert peer == "3"
    assert 0 < at < 0.1


def test_silence_of_500_ms_begins_a_search_after_the_grace() -> None:
    network = led_by("2")
    network.leaders = {"1": "1", "2": "2", "3": "1"}
    network.submit(update())
    network.sent.clear()
    network.run(0.79)
    assert network.sent == []
    network.run(0.2)
    assert [(peer, kind) for _, peer, kind in network.sent] == [("3", "^"), ("1", "=")]
    assert 0.8 <= network.sent[0][0] <= 0.9


def test_accepted_restarts_the_500_ms() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.sent.clear()
    for _ in range(5):
        network.run(0.4)
        network.reply("2", call, ACCEPTED)
    assert network.requests == []
    network.reply("2", call, DONE)
    assert network.finished == [Finished(call, 7)]


def test_one_lost_request_is_repeated_at_a_leader_that_lives_without_disturbing_the_others() -> None:
    network = led_by("2")
    lost, pending = update(1), update(2)
    network.submit(lost)
    network.submit(pending)
    network.sent.clear()
    for _ in range(3):
        network.run(0.2)
        network.reply("2", pending, ACCEPTED)
    assert [(peer, kind) for _, peer, kind in network.sent] == [("2", "=")]
    assert network.messages[-1][1][0] == lost.id


def test_disconnect_of_the_leader_needs_neither_silence_nor_grace() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.sent.clear()
    network.leaders = {"1": "1", "3": "1"}
    network.connection("2", up=False)
    assert network.sent == [(0.0, "3", "^"), (0.0, "1", "=")]


def test_after_a_disconnect_while_idle_the_next_call_searches_without_grace() -> None:
    network = led_by("2")
    network.leaders = {"1": "1", "3": "1"}
    network.connection("2", up=False)
    network.submit(update())
    assert network.sent == [(0.0, "3", "^"), (0.0, "1", "=")]


def test_followers_that_name_a_dead_leader_are_asked_again_until_they_know_better() -> None:
    network = led_by("2")
    network.submit(update())
    network.sent.clear()
    network.connection("2", up=False)  # 1 and 3 have not noticed and go on to name 2
    network.run(0.5)
    assert network.kinds("=") == []
    network.leaders = {"1": "3", "3": "3"}
    network.run(0.1)
    assert [peer for _, peer in network.kinds("=")] == ["3"]


def test_peers_that_point_at_each_other_are_not_followed_for_ever() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.sent.clear()
    network.leaders = {}
    other = {"2": "3", "3": "2"}
    peer = "2"
    for _ in range(20):
        network.reply(peer, call, negative(other[peer]))
        peer = other[peer]
    assert len(network.sent) <= 4


def test_late_final_answer_of_the_old_leader_counts() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.reply("2", call, negative("3"))
    network.reply("2", call, DONE)
    assert network.finished == [Finished(call, 7)]


def test_one_request_id_over_all_repetitions() -> None:
    network = led_by("2")
    call = update(5)
    network.submit(call)
    network.reply("2", call, negative("3"))
    network.run(3)
    requests = [frames for _, frames in network.messages if frames[1] == b"="]
    assert len(requests) >= 3
    assert {frames for frames in requests} == {(call.id, b"=", IDENT, b"data")}


def test_deadline_ends_a_call_as_unreachable_with_its_id_and_the_peers() -> None:
    network = Network()
    call = UpdateCall(REQID, b"data", 2.0)
    network.submit(call)
    network.run(2.2)
    (finished,) = network.finished
    assert isinstance(finished.error, Unreachable)
    assert finished.error.reqid == REQID
    assert finished.error.peers == tuple(URLS.values())
    assert 2.0 <= finished.error.tried_for_s <= 2.2
    assert network.procedure.next_timer() is None


def test_cancelled_call_is_not_repeated_and_an_idle_client_sleeps() -> None:
    network = Network()
    call = update()
    network.submit(call)
    network.procedure.cancel(call)
    network.sent.clear()
    network.run(5)
    assert network.sent == []
    assert network.procedure.next_timer() is None


@pytest.mark.parametrize("attempts", [1, 2])
def test_expired_tells_whether_an_earlier_attempt_went_out(attempts: int) -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    if attempts == 2:
        network.reply("2", call, negative("3"))
    network.reply("2", call, RequestUpdateReply(UpdateStatus.EXPIRED))
    (finished,) = network.finished
    assert isinstance(finished.error, Expired)
    assert finished.error.sent_before is (attempts == 2)


def test_garbage_instead_of_an_answer_is_ignored() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    for frames in ((call.id,), (call.id, b"\x01", b"\xc1"), (b"unknown", b"\x01"), (b"",)):
        network.procedure.receive(URLS["2"], frames, network.now)
        network.settle()
    assert network.finished == []
    network.reply("2", call, DONE)
    assert network.finished == [Finished(call, 7)]


def test_named_peer_is_asked_even_without_any_leader() -> None:
    network = Network()
    call = StatusCall(b"status", 5.0, URLS["3"])
    network.submit(call)
    assert network.sent == [(0.0, "3", "pv.status")]
    network.reply("3", call, PvReply(0, {"term": 4}))
    assert network.finished == [Finished(call, {"term": 4})]


def test_named_peer_that_is_silent_is_asked_again_and_only_it() -> None:
    network = Network()
    call = StatusCall(b"status", 2.0, URLS["3"])
    network.submit(call)
    network.run(2.2)
    assert {peer for _, peer, _ in network.sent} == {"3"}
    assert len(network.sent) >= 3
    assert isinstance(network.finished[0].error, Unreachable)
    assert network.finished[0].error.peers == (URLS["3"],)


def test_named_peer_with_a_new_address_is_asked_there() -> None:
    network = Network()
    url = "tcp://pod:8047"
    network.addresses[url] = (URLS["1"],)
    network.submit(StatusCall(b"status", 5.0, url))
    network.addresses[url] = (URLS["2"],)
    network.connection("1", up=False)
    assert network.sent == [(0.0, "1", "pv.status"), (0.0, "2", "pv.status")]
    assert URLS["1"] not in network.connected


def test_leader_whose_name_got_a_new_address_is_looked_for() -> None:
    network = Network(("tcp://pod:8047",))
    network.addresses["tcp://pod:8047"] = (URLS["1"],)
    call = ConfigurationCall(b"config", 5.0)
    network.submit(call)
    lone = RequestConfigReply(True, "pod", (("pod", "tcp://pod:8047"),))
    network.procedure.receive(URLS["1"], (network.messages[-1][1][0], *lone.encode()), network.now)
    network.settle()
    assert network.messages[-1][1][0] == b"config"
    network.procedure.resolved("tcp://pod:8047", (URLS["2"],), network.now)
    network.settle()
    assert network.sent[-1] == (0.0, "2", "^")


@pytest.mark.parametrize(
    ("reply", "error"),
    [(PvReply(4, 250), Overloaded), (PvReply(7, 1), Unsupported), (PvReply(18), Refused), (PvReply(6, "no"), Refused)],
)
def test_codes_of_our_servers_become_errors(reply: PvReply, error: type[Exception]) -> None:
    network = led_by("2")
    call = TransferCall(b"transfer", "3", 5.0)
    network.submit(call)
    network.reply("2", call, reply)
    assert isinstance(network.finished[0].error, error)


def test_transfer_that_has_happened_is_recognised_by_the_old_leaders_answer() -> None:
    network = led_by("2")
    call = TransferCall(b"transfer", "3", 5.0)
    network.submit(call)
    network.reply("2", call, PvReply(1, "3"))
    assert network.finished == [Finished(call, "3")]


def test_refused_members_carry_the_servers_words() -> None:
    network = led_by("2")
    call = ChangeMembersCall(REQID, PEERS, 30.0)
    network.submit(call)
    refusal: Value = {"name": "NotCaughtUp", "message": "2 of 3 new members are behind"}
    network.reply("2", call, ConfigUpdateReply(ConfigStatus.ARGUMENT, refusal))
    error = network.finished[0].error
    assert isinstance(error, Refused)
    assert (error.code, error.text) == (2, "NotCaughtUp: 2 of 3 new members are behind")


def entries_reply(status: EntriesStatus, first: int, count: int) -> RequestEntriesReply:
    entries = tuple(encode_entry(REQID, 0, 1, b"%d" % index) for index in range(first, first + count))
    return RequestEntriesReply(status, first + count - 1, entries)


def read(call: EntriesCall) -> list[int]:
    found = [entry.index for batch in call.batches for entry in batch.entries]
    call.batches.clear()
    return found


def last_request(network: Network) -> tuple[str, RequestEntries]:
    peer, frames = network.messages[-1]
    request = decode_request(frames, IDENT)
    assert isinstance(request, RequestEntries)
    return peer, request


def test_stream_ends_with_the_last_message() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 4, None, 30.0)
    network.submit(call)
    assert last_request(network) == ("2", RequestEntries(4))
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 5, 3))
    network.reply("2", call, entries_reply(EntriesStatus.LAST, 8, 2))
    assert read(call) == [5, 6, 7, 8, 9]
    assert network.finished == [Finished(call, None)]


def test_stream_goes_on_behind_its_last_entry_at_the_next_leader() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, 10, 30.0)
    network.submit(call)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 1, 3))
    network.reply("2", call, RequestEntriesReply(EntriesStatus.NOT_LEADER, leader="3"))
    assert last_request(network) == ("3", RequestEntries(3, 7))
    network.reply("3", call, entries_reply(EntriesStatus.LAST, 4, 7))
    assert read(call) == list(range(1, 11))


def test_gap_begins_anew_and_repeated_entries_are_skipped() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, None, 30.0)
    network.submit(call)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 1, 3))
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 6, 2))
    network.run(0.15)
    assert last_request(network) == ("2", RequestEntries(3))
    network.reply("2", call, entries_reply(EntriesStatus.LAST, 2, 6))
    assert read(call) == [1, 2, 3, 4, 5, 6, 7]


def test_acknowledgement_names_the_message_and_not_one_of_an_earlier_stream() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, None, 30.0)
    network.submit(call)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 1, 3))
    first = call.batches[0]
    assert call.acknowledgement(first, IDENT) == RequestEntries(3).encode(IDENT)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 4, 3))
    network.reply("2", call, RequestEntriesReply(EntriesStatus.NOT_LEADER, leader="3"))
    assert call.acknowledgement(call.batches[1], IDENT) is None


def test_reader_that_holds_messages_back_is_no_silence_of_the_server() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, None, 1.0)
    network.submit(call)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 1, 3))
    network.sent.clear()
    network.run(20)
    assert network.requests == []
    assert network.finished == []


def test_leader_behind_the_reader_is_asked_once_more_and_then_believed() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 1000, None, 30.0)
    network.submit(call)
    behind = RequestEntriesReply(EntriesStatus.LAST, 900)
    network.reply("2", call, behind)
    assert network.finished == []
    network.run(0.7)
    assert last_request(network) == ("2", RequestEntries(1000))
    network.reply("2", call, behind)
    assert network.finished == [Finished(call, None)]
    assert read(call) == []


def test_compacted_log_is_an_error_with_the_first_index_left() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, None, 30.0)
    network.submit(call)
    chunk = RequestEntriesReply(EntriesStatus.SNAPSHOT, 40, (b"chunk",), part=SnapshotPart(0, 5, 1))
    network.reply("2", call, chunk)
    error = network.finished[0].error
    assert isinstance(error, Compacted)
    assert error.first == 41
