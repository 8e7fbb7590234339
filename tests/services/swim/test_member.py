"""A few members on real sockets (docs/specs/swim.md 25, rows marked with a dot)."""

import asyncio
import contextlib
import dataclasses
import gc
import os
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from pavane.swim.aio import Adapter
from pavane.swim.config import LAN, SEEDS_MAX, Config, Profile, Start, ViewKind
from pavane.swim.core.outputs import Event, Happened, Own, Send
from pavane.swim.core.staging import CaughtUp
from pavane.swim.errors import ConfigError, MessageError, SwimError
from pavane.swim.keys import read_keys
from pavane.swim.member import EVENTS_MAX, MemberFailedError, SwimMember
from pavane.swim.state.envelope import key_id
from pavane.swim.wire.values import Address, NodeStage, State
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.sim.swim.sizes import figures, sized

# Ten times faster than a LAN's, which shortens tests and changes no rule.
FAST = Profile(period_s=0.1, ack_timeout_s=0.03, gossip_tick_s=0.02, sync_interval_s=1.0)
# For tests in which nobody may be declared dead: quick too, but a stall of five seconds is borne, as on a LAN.
PATIENT = dataclasses.replace(FAST, period_s=0.2, floor_periods=25.0)
KEYS = [bytes([number]) * 32 for number in (1, 2)]


def key_file(path: Path, *keys: bytes) -> Path:
    """Write a key file as an editor does: the new one takes the old one's place."""
    fresh = path.with_suffix(".new")
    fresh.write_text("# the group's keys\n\n" + "".join(f"{key.hex()}\n" for key in keys))
    return fresh.replace(path)


class Group:
    """Members on loopback; the first one is everybody's seed."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self.members: list[SwimMember] = []

    async def start(
        self,
        keys_file: Path | None = None,
        host: str = "127.0.0.1",
        psk_file: Path | None = None,
        **config: Any,
    ) -> SwimMember:
        seeds = [str(member.bound) for member in self.members[:1]]
        settings = {"profile": FAST, **config}
        member = SwimMember(
            Config(**settings),
            (host, 0),
            seeds,
            keys_file=keys_file,
            psk_file=psk_file,
        )
        await self.adopt(member)
        return member

    async def adopt(self, member: SwimMember) -> None:
        """Open a member that a test has made."""
        await self._stack.enter_async_context(member)
        self.members.append(member)

    async def stop(self, member: SwimMember) -> None:
        """End a member without a word, as a crash does."""
        self.members.remove(member)
        await member.__aexit__(None, None, None)

    def agree(self) -> bool:
        ids = {member.info.id for member in self.members}
        return all(
            {peer.id for peer in member.members() if peer.state is State.ALIVE} == ids
            and len(member.members()) == len(ids)
            for member in self.members
        )

    def have_keys(self, key_ids: tuple[bytes, ...]) -> bool:
        return all(member.key_ids == key_ids for member in self.members)


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    async with contextlib.AsyncExitStack() as stack:
        yield Group(stack)


async def first(member: SwimMember, kind: Happened) -> Event:
    """Wait for an event of a kind."""
    async for event in member.events():
        if event.kind is kind:
            return event
    raise AssertionError("the member has ended")


async def test_members_find_each_other_and_notice_who_crashed_and_who_left(group: Group) -> None:
    for _ in range(5):
        await group.start()
    await eventually(group.agree)
    watcher, crashed, leaver = group.members[1], group.members[3], group.members[4]
    dead = asyncio.create_task(first(watcher, Happened.DEAD))
    left = asyncio.create_task(first(watcher, Happened.LEFT))
    await asyncio.sleep(0)
    crashed_id, leaver_id = crashed.info.id, leaver.info.id
    await group.stop(crashed)
    await leaver.leave()
    assert leaver.own is Own.OUT
    group.members.remove(leaver)
    await eventually(group.agree)
    for task, id_ in ((dead, crashed_id), (left, leaver_id)):
        member = (await task).member
        assert member is not None
        assert member.id == id_


async def test_a_ping_tells_the_round_trip_or_that_nothing_came_back(group: Group) -> None:
    member, other = await group.start(), await group.start()
    await eventually(group.agree)
    rtt_s = await member.ping(other.info.id)
    assert rtt_s is not None
    assert 0 < rtt_s < 1
    node = other.info.id
    await group.stop(other)
    assert await member.ping(node) is None
    with pytest.raises(SwimError, match="alive here"):
        await member.ping(4711)


@pytest.mark.parametrize("again", ["127.0.0.1", "127.0.0.2"], ids=["same addresses", "new addresses"])
@pytest.mark.parametrize("config", [{}, {"start": Start.SELF, "rollout": 1}], ids=["without stages", "observers"])
async def test_a_group_whose_members_were_all_killed_comes_back(
    group: Group, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], again: str
) -> None:
    monkeypatch.setattr("pavane.swim.core.staging.ALONE_S", sized(0.3, 5.0))
    profile = sized(FAST, LAN)
    for _ in range(sized(6, 20)):
        await group.start(profile=profile, **config)
    await eventually(group.agree)
    ports = [member.bound.port for member in group.members]
    for member in list(group.members):
        await group.stop(member)
    seeds = [f"{again}:{port}" for port in ports[:2]]
    for port in reversed(ports):  # the seeds come last
        await group.adopt(SwimMember(Config(profile=profile, **config), (again, port), seeds))
    clock = asyncio.get_running_loop().time
    started = clock()
    await eventually(group.agree)
    figures(f"A25 on sockets, {config}, {again}", [clock() - started])
    await eventually(lambda: all(member.staging.stage is NodeStage.READ_WRITE for member in group.members))


async def test_halves_that_were_cut_apart_find_each_other(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.swim.core.dialing.LOST_PAUSE_S", 0.2)
    for _ in range(6):
        await group.start()
    await eventually(group.agree)
    halves = [{member.bound.port for member in group.members[start::2]} for start in (0, 1)]
    send = Adapter._send

    def cut(adapter: Adapter, what: Send) -> None:
        if any(adapter.bound.port in half and what.to.port in half for half in halves):
            send(adapter, what)

    monkeypatch.setattr(Adapter, "_send", cut)
    await eventually(lambda: all(len(member.members()) == 3 for member in group.members))
    monkeypatch.setattr(Adapter, "_send", send)
    await eventually(group.agree)


async def test_who_left_comes_back_in_the_same_process(group: Group) -> None:
    first_member, second = await group.start(), await group.start()
    await second.joined()
    before = second.info.gen
    for _ in range(3):
        await second.leave()
        await eventually(lambda: len(first_member.members()) == 1)
        await second.join()
        await eventually(group.agree)
    assert second.info.gen >= before + 3


async def test_the_seed_may_start_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.swim.core.dialing.WAIT_S", 0.02)
    (port,) = free_ports(1)
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), [f"localhost:{port}"]) as early:
        retry = await first(early, Happened.JOIN_RETRY)
        assert retry.kind is Happened.JOIN_RETRY
        assert early.own is Own.DIALING
        async with SwimMember(Config(profile=FAST), ("127.0.0.1", port)):
            await early.joined()


async def test_a_member_bound_to_every_interface_learns_its_address(group: Group) -> None:
    await group.start()
    second = await group.start(host="0.0.0.0")
    third = await group.start()
    await eventually(group.agree)
    assert str(second.info.address) == f"127.0.0.1:{second.bound.port}"
    assert second.info.address in {member.address for member in third.members()}


async def test_an_ipv6_socket_carries_both_families(group: Group) -> None:
    try:
        await group.start(host="::")
    except OSError:
        pytest.skip("no IPv6 here; enable it in the kernel to run this test")
    port = group.members[0].bound.port
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), [f"127.0.0.1:{port}"]) as four:
        await four.joined()
        async with SwimMember(Config(profile=FAST), ("::1", 0), [f"[::1]:{port}"]) as six:
            await six.joined()


async def test_keys_keep_strangers_out_and_rotate_without_a_death(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.swim.member.HOUSEKEEPING_S", 0.05)
    files = [key_file(tmp_path / f"{number}.keys", KEYS[0]) for number in range(3)]
    for file in files:
        await group.start(keys_file=file)
    await eventually(group.agree)
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), [str(group.members[0].bound)]) as stranger:
        await eventually(lambda: group.members[0].dropped["plaintext"])
        assert stranger.own is Own.DIALING
    for keys in (KEYS, KEYS[::-1], KEYS[1:]):
        for file in files:
            key_file(file, *keys)
        expected = tuple(map(key_id, keys))
        await eventually(partial(group.have_keys, expected))
    await eventually(group.agree)
    assert all(member.counts["deaths"] == 0 for member in group.members)


async def test_a_psk_is_needed_to_join_and_is_rotated(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.swim.member.HOUSEKEEPING_S", 0.05)
    file = key_file(tmp_path / "psk", KEYS[0])
    member = await group.start(psk_file=file, seal=True, keys_file=key_file(tmp_path / "keys", KEYS[0]))
    other = key_file(tmp_path / "other", KEYS[1])
    late = await group.start(psk_file=other, seal=True, keys_file=tmp_path / "keys")
    assert (await first(late, Happened.JOIN_REFUSED)).text == "auth_failed"
    key_file(file, *KEYS)
    await eventually(group.agree)
    assert member.own is Own.MEMBER


async def test_a_key_file_that_breaks_changes_nothing(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pavane.swim.member.HOUSEKEEPING_S", 0.05)
    file = key_file(tmp_path / "group.keys", KEYS[0])
    member = await group.start(keys_file=file)
    before = member.key_ids
    file.write_text("not a key\n")
    await eventually(lambda: "the keys stay as they are" in caplog.text)
    assert member.key_ids == before
    assert "not a key" not in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 keys"),
        ("00\n", ":1: a key is 64"),
        (f"{KEYS[0].hex()}\n" * 9, "9 keys"),
        ("#" * 70_000, "more than 65536"),
    ],
)
def test_a_key_file_must_hold_keys(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_keys(file)


async def test_a_reader_that_is_slow_is_told_what_it_missed(group: Group) -> None:
    member = await group.start()

    async def read() -> list[Event]:
        return [event async for event in member.events()]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for _ in range(EVENTS_MAX + 7):
        member._happened(Event(Happened.ALIVE))
    await group.stop(member)
    seen = await reading
    assert len(seen) == EVENTS_MAX + 1
    assert seen[0] == Event(Happened.MISSED, text="7")


async def test_a_mistake_of_ours_ends_the_member_and_everybody_hears_of_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, other = await group.start(), await group.start()
    await other.joined()
    failing = asyncio.create_task(first(member, Happened.OVER_CAPACITY))
    await asyncio.sleep(0)

    def receive(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(member._core.core, "receive", receive)
    with pytest.raises(MemberFailedError):
        await failing


@pytest.mark.parametrize(
    "seed",
    ["nowhere", "host:", "host:0", "host:x", "host:70000", ":7946", "a..b:7946", f"{'a' * 64}:7946", "a\0b:7946"],
)
def test_a_seed_needs_a_host_that_can_be_and_a_port(seed: str) -> None:
    with pytest.raises(ConfigError, match=r"host:port|no host can have that name"):
        SwimMember(Config(), ("127.0.0.1", 0), [seed])


async def test_a_member_is_used_in_its_context_only() -> None:
    with pytest.raises(SwimError, match="async with"):
        SwimMember(Config(), ("127.0.0.1", 0)).members()
    with pytest.raises(ConfigError, match="capacity 3"):
        async with SwimMember(Config(capacity=3), ("127.0.0.1", 0)):
            pass


async def test_what_cannot_be_read_is_told_once_for_many(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pavane.swim.member.HOUSEKEEPING_S", 0.05)
    member = await group.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(50):
            stranger.sendto(b"\x00garbage", (member.bound.host, member.bound.port))
    await eventually(lambda: member.dropped["bytecode"] == 50)
    await eventually(lambda: "bytecode" in caplog.text)
    told = [record for record in caplog.records if "bytecode" in record.getMessage()]
    assert len(told) < 10


async def test_an_observer_is_promoted_and_a_full_member_drains(group: Group) -> None:
    old = await group.start(rollout=1)
    new = await group.start(start=Start.ORDERED, rollout=2)
    await new.joined()
    assert new.staging.stage is NodeStage.READ_ONLY
    assert not new.promote()
    await eventually(lambda: new.staging.caught_up is CaughtUp.YES)
    assert new.promote()
    await eventually(lambda: {member.rollout for member in old.members()} == {1, 2})
    await old.drain()
    assert old.own is Own.OUT
    group.members.remove(old)
    await eventually(group.agree)
    assert new.counts["deaths"] == 0


async def test_a_generation_takes_over_from_another_while_foreign_members_stay(group: Group) -> None:
    count, profile = sized(4, 20), sized(PATIENT, LAN)
    old = [await group.start(rollout=1, profile=profile) for _ in range(count)]
    foreign = [await group.start(profile=profile) for _ in range(sized(2, 5))]
    await eventually(group.agree)
    new = [await group.start(start=Start.ORDERED, rollout=2, profile=profile) for _ in range(count)]
    await eventually(lambda: all(member.staging.caught_up is CaughtUp.YES for member in new))
    assert all(member.promote() for member in new)
    everybody = [*old, *foreign, *new]
    while old:
        batch, old = old[: count // 4], old[count // 4 :]
        draining = asyncio.gather(*(member.drain() for member in batch))
        everybody.append(await group.start(profile=profile))  # at one of those that leave, which sends it on
        await draining
        await group.members[-1].joined()
        group.members = [member for member in group.members if member not in batch]
        assert sum(member.staging.stage is NodeStage.READ_WRITE for member in group.members) >= count
        await eventually(group.agree)
    assert [member.counts["deaths"] for member in everybody] == [0] * len(everybody)
    wanted = {member.info.id for member in new}
    await eventually(lambda: {one.id for one in foreign[0].members() if one.rollout == 2} == wanted)


async def test_a_message_carries_the_context_of_the_span_that_it_was_sent_in(group: Group) -> None:
    member, other = await group.start(), await group.start()
    await eventually(group.agree)
    heard: list[Event] = []

    async def listen() -> None:
        async for event in other.events():
            if event.kind is Happened.USER:
                heard.append(event)  # noqa: PERF401 - read while it grows

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    for flags in (TraceFlags.SAMPLED, TraceFlags.DEFAULT):
        context = SpanContext(0x0102 << 112, 0x0304 << 32, is_remote=False, trace_flags=TraceFlags(flags))
        with use_span(NonRecordingSpan(context)):
            member.send(b"%d" % flags)
    member.send(b"outside")
    await eventually(lambda: len(heard) == 3)
    traces = {event.data: event.trace for event in heard}
    assert (traces[b"0"], traces[b"outside"]) == (None, None)
    trace = traces[b"1"]
    assert trace is not None
    assert (trace.origin, trace.trace_id[:2], trace.span_id[:4], trace.flags) == (
        member.info.id,
        b"\1\2",
        b"\0\0\3\4",
        1,
    )
    with pytest.raises(MessageError, match="at most"):
        member.send(b"x" * 2000)
    listening.cancel()


async def test_events_count_from_the_call_and_a_reader_that_is_dropped_is_forgotten(group: Group) -> None:
    member = await group.start()
    events = member.events()
    del events
    gc.collect()
    assert len(member._readers) == 0
    events = member.events()
    other = await group.start()
    await other.joined()  # the event comes before anybody reads
    async for event in events:  # in which order the news come is up to the network
        if event.kind is Happened.JOINED:
            break


async def test_members_with_few_slots_are_one_group_that_hears_everything(group: Group) -> None:
    for _ in range(10):
        await group.start(view=ViewKind.PARTIAL, capacity=4)
    await eventually(lambda: all(3 <= len(member.members()) <= 5 for member in group.members))
    teller, *others = group.members
    hearing = [asyncio.create_task(first(member, Happened.USER)) for member in others]
    await asyncio.sleep(0)
    teller.send(b"hello")
    assert {event.data for event in await asyncio.gather(*hearing)} == {b"hello"}


async def test_seeds_that_are_no_names_change_nothing_in_a_running_member(group: Group) -> None:
    member = await group.start()
    with pytest.raises(ConfigError, match="no host can have that name"):
        member.set_seeds(["typo..example:7946"])
    await group.start()
    await eventually(group.agree)


async def test_a_name_with_many_addresses_leaves_room_for_the_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        third, count = {"many": (1, 100), "few": (0, 2)}[host]
        return [(0, 0, 0, "", (f"127.0.{third}.{number}", port)) for number in range(1, count + 1)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), ["many:1", "few:2"]) as member:
        used = member._core.core._dialing._seeds
        assert len(used) == SEEDS_MAX
        assert {str(address) for address in used} >= {"127.0.0.1:2", "127.0.0.2:2"}


async def test_nobody_waits_for_a_member_that_has_ended_or_left(group: Group) -> None:
    member = await group.start()
    waiting = asyncio.create_task(member.joined())
    await asyncio.sleep(0)
    await group.stop(member)
    with pytest.raises(MemberFailedError, match="ended"):
        await waiting
    assert [event async for event in member.events()] == []
    other = await group.start()
    await other.leave()
    with pytest.raises(SwimError, match="it has left"):
        await other.joined()


async def test_a_hook_that_fails_over_a_request_refuses_it(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    def authorize(_: bytes, auth: bytes, *__: object) -> bool:
        return auth.decode() == "granted"  # which fails over what is no UTF-8

    await group.start(authorize=authorize)
    bad = await group.start(credentials=lambda *_: b"\xff\xfe")
    await eventually(lambda: "Config.authorize failed" in caplog.text)
    assert bad.own is Own.DIALING
    await group.stop(bad)
    good = await group.start(credentials=lambda *_: b"granted")
    await good.joined()


async def test_nothing_goes_to_a_whole_network_unless_members_announce_themselves(group: Group) -> None:
    quiet = await group.start()
    loud = await group.start(broadcast_to=Address.parse("127.255.255.255:7946"))
    for member, refused in ((quiet, 1), (loud, 0)):
        before = member.send_errors
        member._core._send(Send(Address.parse("127.255.255.255:7946"), b"?"))
        assert member.send_errors - before == refused


async def test_what_the_system_does_not_take_is_not_piled_up(group: Group) -> None:
    member = await group.start()
    errors = []
    for change in (member._core.pause_writing, member._core.resume_writing):
        change()
        before = member.send_errors
        member._core._send(Send(member.bound, b"?"))
        errors.append(member.send_errors - before)
    assert errors == [1, 0]


async def test_a_member_is_refused_in_a_child_of_its_process_and_stays_in_its_group() -> None:
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0)) as first:
        seed = f"127.0.0.1:{first.bound.port}"
        async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), [seed]) as second:
            await second.joined()
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                try:
                    told = "not refused"
                    try:
                        asyncio.run(second.leave())
                    except SwimError as error:
                        told = str(error)
                    asyncio.run(second.__aexit__(None, None, None))
                    os.write(writer, told.encode())
                finally:
                    os._exit(0)
            os.close(writer)
            told = await asyncio.to_thread(lambda: os.read(reader, 1000).decode())
            os.close(reader)
            await asyncio.to_thread(os.waitpid, child, 0)
            assert "forked" in told
            assert await second.ping(first.info.id) is not None
