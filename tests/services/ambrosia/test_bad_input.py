"""Whatever a peer says costs that peer its stream at most, and every decoder names what is wrong (spec 11.7, 21)."""

import random
from collections.abc import Callable

import pytest

from pavane.ambrosia.core import links
from pavane.ambrosia.state import Phase
from pavane.ambrosia.wire.limits import INPUT_BYTES_MIN
from pavane.ambrosia.wire.links import Channel, Hello
from pavane.ambrosia.wire.messages import Call, RpcType, incoming
from pavane.ambrosia.wire.primitives import zz32
from tests.fuzz.ambrosia_attack import NAME, Victim, attack, decode_any

SEEDS = 300
BYTES_MAX = 400


@pytest.mark.parametrize("attacked", [attack, decode_any], ids=["coordinator", "decoders"])
def test_no_bytes_raise_anything_but_errors_of_ours(attacked: Callable[[bytes], None]) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        attacked(rng.randbytes(rng.randrange(BYTES_MAX)))


def test_after_any_attack_another_peer_is_heard() -> None:
    call = incoming(Call(1, RpcType.FORK, b"heard"))
    for seed in range(SEEDS):
        rng = random.Random(seed)
        victim = Victim()
        victim.accept(Hello("bob", NAME, Channel.DATA, "p", (0, 1), 3))
        victim.accept(Hello("carol", NAME, Channel.DATA, "p", (0, 1), 3))
        victim.carry_out()
        victim.core.received(1, rng.randbytes(rng.randrange(1, BYTES_MAX)))
        victim.carry_out()
        assert 2 in victim.streams
        before = victim.core.next_seq
        victim.core.received(2, call)
        victim.carry_out()
        assert victim.core.phase is Phase.LIVE
        assert victim.core.next_seq > before, "it was logged"


def test_what_many_peers_leave_unfinished_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    part = INPUT_BYTES_MIN
    monkeypatch.setattr(links, "INPUT_TOTAL_BYTES", 3 * part)
    victim = Victim()
    for number in range(1, 6):
        victim.accept(Hello(f"peer{number}", NAME, Channel.CONTROL if number == 1 else Channel.DATA, "p", (0, 1), 3))
        victim.core.received(number, zz32(60 << 20) + bytes(part // 2))  # 60 MiB are to come
        victim.core.received(number, bytes(part // 2))
        victim.carry_out()
    assert sorted(victim.streams) == [4, 5]
    victim.accept(Hello("carol", NAME, Channel.DATA, "p", (0, 1), 3))
    before = victim.core.next_seq
    victim.core.received(6, incoming(Call(1, RpcType.FORK, bytes(3 * part))))
    victim.carry_out()
    assert victim.core.next_seq > before, "a whole message counts no longer"
    assert sorted(victim.streams) == [4, 5, 6]
