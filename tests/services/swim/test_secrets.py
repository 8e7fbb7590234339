"""Tokens, keys and envelopes against the vectors (docs/specs/swim.md 6.8, 15.5)."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pavane.swim.errors import ConfigError
from pavane.swim.state.auth import Psks, label, proof, response
from pavane.swim.state.cookie import Cookies
from pavane.swim.state.envelope import Keyring, ReplayWindow, key_id, mac_key, seal_key
from pavane.swim.wire.messages import decode
from pavane.swim.wire.values import Address, NodeInfo
from pavane.wire import RemoteProtocolError

VECTORS = {row["name"]: row for row in json.loads((Path(__file__).parent / "vectors.json").read_text())["auth"]}
MASTER, OTHER = bytes(range(32)), bytes(range(32, 64))
SALT = bytes(range(0xA0, 0xA8))
SOURCE = Address.parse("10.3.2.1:7946")


def entropy_of(*values: bytes) -> Callable[[int], bytes]:
    source = iter(values)
    return lambda size: next(source).rjust(size, b"\0")


def ring(*keys: bytes, salt: bytes = b"receiver", group: str = "prod") -> Keyring:
    return Keyring(keys, group, entropy_of(salt, b"later"), 4)


def info_of(row: dict[str, Any]) -> NodeInfo:
    return NodeInfo(row["id"], row["gen"], Address.parse(row["addr"]))


def fields(name: str) -> dict[str, Any]:
    found: dict[str, Any] = VECTORS[name]["fields"]
    return found


def test_the_token_is_that_of_the_vector() -> None:
    row = fields("cookie.ipv4")
    cookies = Cookies(row["group"], entropy_of(bytes.fromhex(row["secret_hex"])))
    token = cookies.token(row["ts"], SOURCE, row["id"])
    assert token == row["token"]
    assert all(cookies.valid(token.encode(), at, SOURCE, row["id"]) for at in row["valid_at"])
    assert not any(cookies.valid(token.encode(), at, SOURCE, row["id"]) for at in row["invalid_at"])


@pytest.mark.parametrize(
    ("source", "node"),
    [("10.3.2.1:7946", 322), ("10.3.2.1:7947", 321), ("10.3.2.2:7946", 321)],
)
def test_a_token_is_bound_to_its_asker(source: str, node: int) -> None:
    cookies = Cookies("prod", entropy_of(MASTER))
    token = cookies.token(1735689600, SOURCE, 321).encode()
    assert not cookies.valid(token, 1735689600, Address.parse(source), node)
    assert not Cookies("test", entropy_of(MASTER)).valid(token, 1735689600, SOURCE, 321)


@pytest.mark.parametrize("token", [b"", b"A", b"====", b"\xff\xfe", b"A" * 22, b"gIV0Z2Uy1p2datlkKUjZSh", b"A" * 65000])
def test_what_is_no_token_is_invalid(token: bytes) -> None:
    assert not Cookies("prod", entropy_of(MASTER)).valid(token, 1735689600, SOURCE, 321)


def test_a_token_outlives_one_rotation_of_the_secret() -> None:
    cookies = Cookies("prod", entropy_of(MASTER, OTHER, SALT))
    token = cookies.token(1735689600, SOURCE, 321).encode()
    cookies.rotate()
    assert cookies.valid(token, 1735689601, SOURCE, 321)
    cookies.rotate()
    assert not cookies.valid(token, 1735689602, SOURCE, 321)


def test_keys_are_those_of_the_vectors() -> None:
    assert key_id(MASTER).hex() == VECTORS["key.id"]["hex"]
    assert mac_key(MASTER, SALT, "prod").hex() == VECTORS["key.mac"]["hex"]

    assert seal_key(MASTER, SALT, "prod").hex() == VECTORS["key.seal"]["hex"]


def test_auth_bytes_are_those_of_the_vectors() -> None:
    row = fields("auth.psk")
    psk, token, asker = row["psk"].encode(), row["token"].encode(), info_of(row["node"])
    auth = response(psk, token, asker, row["group"])
    assert auth.hex() == VECTORS["auth.psk"]["hex"]
    assert Psks([OTHER, psk], row["group"]).of(auth, token, asker) == psk
    acker = info_of(fields("auth.ack_proof")["acker"])
    assert proof(psk, auth, acker).hex() == VECTORS["auth.ack_proof"]["hex"]
    assert Psks([OTHER, psk], "prod").proven(proof(psk, auth, acker), auth, acker)
    assert label("prod").hex() == VECTORS["auth.label"]["hex"]


def test_auth_bytes_are_bound_to_everything_that_they_speak_of() -> None:
    asker, psks = NodeInfo(321, 0, SOURCE), Psks([MASTER], "prod")
    auth = psks.auth(b"token", asker)
    assert psks.of(auth, b"token", asker) == MASTER
    for other in (asker._replace(id=322), asker._replace(gen=1), asker._replace(address=Address(SOURCE.ip, 1))):
        assert psks.of(auth, b"token", other) is None
    assert psks.of(auth, b"other", asker) is None
    assert Psks([MASTER], "test").of(auth, b"token", asker) is None
    assert psks.of(b"", b"token", asker) is None
    assert not psks.proven(None, auth, asker)
    assert not psks.proven(proof(OTHER, auth, asker), auth, asker)
    assert not psks.proven(proof(MASTER, b"", asker), auth, asker)


@pytest.mark.parametrize("psks", [[], [b"too short"], [bytes(65)], [bytes([n]) * 16 for n in range(9)]])
def test_psks_that_cannot_be_used_are_refused(psks: list[bytes]) -> None:
    with pytest.raises(ConfigError, match="PSK"):
        Psks(psks, "")


@pytest.mark.parametrize("kind", ["maced", "sealed", "sealed_keyring_install"])
def test_the_envelope_is_that_of_the_vector(kind: str) -> None:
    row = VECTORS[f"envelope.{kind}"]
    inner = bytes.fromhex(row["fields"]["inner_hex"])
    sender = Keyring([MASTER], "prod", entropy_of(SALT), 4, seal=kind != "maced")
    for _ in range(row["fields"]["ctr"]):
        datagram = sender.wrap(inner)
    assert datagram.hex() == row["hex"]
    assert ring(MASTER).open(bytes.fromhex(row["hex"])) == inner
    assert ring(OTHER, MASTER).open(bytes.fromhex(row["hex"])) == inner


@pytest.mark.parametrize(
    "name", [name for name, row in VECTORS.items() if name.startswith("envelope.") and "reason" in row]
)
def test_ill_formed_envelopes_are_dropped_for_their_reason(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        decode(ring(MASTER).open(bytes.fromhex(VECTORS[name]["hex"])))
    assert refused.value.reason == VECTORS[name]["reason"]


def test_the_replay_window_is_that_of_the_vector() -> None:
    row = fields("replay.window")
    window = ReplayWindow()
    verdicts = []
    for counter in row["counters"]:
        verdicts.append("accept" if window.accepts(counter) else "drop")
        if verdicts[-1] == "accept":
            window.add(counter)
    assert verdicts == row["verdicts"]


def test_nothing_is_taken_twice_nor_from_oneself() -> None:
    sender, receiver = ring(MASTER, salt=SALT), ring(MASTER)
    first, second = sender.wrap(b"1"), sender.wrap(b"2")
    assert [receiver.open(datagram) for datagram in (second, first)] == [b"2", b"1"]
    for keyring in (receiver, sender):
        with pytest.raises(RemoteProtocolError, match="replay"):
            keyring.open(first)


@pytest.mark.parametrize("seal", [False, True], ids=["e1", "e0"])
def test_a_forger_neither_moves_a_window_nor_fills_the_table(seal: bool) -> None:
    sender, receiver = Keyring([MASTER], "prod", entropy_of(SALT), 4, seal=seal), ring(MASTER)
    good = sender.wrap(b"1")
    receiver.open(good)
    for _ in range(100):
        forged = bytearray(sender.wrap(b"x"))
        forged[-1] ^= 1
        with pytest.raises(RemoteProtocolError, match="mac"):
            receiver.open(bytes(forged))
    for number in range(100):
        stranger = bytearray(good)
        stranger[5:13] = number.to_bytes(8, "big")
        with pytest.raises(RemoteProtocolError, match="mac"):
            receiver.open(bytes(stranger))
    assert receiver.open(sender.wrap(b"2")) == b"2"
    with pytest.raises(RemoteProtocolError, match="replay"):
        receiver.open(good)


def test_the_least_recent_window_makes_room() -> None:
    receiver = ring(MASTER)
    datagrams = [ring(MASTER, salt=bytes([number]) * 8).wrap(b"1") for number in range(1, 6)]
    assert [receiver.open(datagram) for datagram in datagrams] == [b"1"] * 5
    assert receiver.open(datagrams[0]) == b"1"  # four windows are kept: a limit of the protocol, told in 15.3
    with pytest.raises(RemoteProtocolError, match="replay"):
        receiver.open(datagrams[4])


def test_keys_are_rotated_in_three_steps_without_losing_a_datagram() -> None:
    rings = [ring(MASTER, salt=bytes([number]) * 8) for number in (1, 2)]
    for keys in ((MASTER, OTHER), (OTHER, MASTER), (OTHER,)):
        for changed in rings:
            changed.set_keys(keys)
            for sender, receiver in itertools.permutations(rings):
                assert receiver.open(sender.wrap(b"news")) == b"news"
    assert rings[0].key_ids == (key_id(OTHER),)


def test_what_is_sealed_cannot_be_read_and_both_kinds_share_a_counter() -> None:
    sealing, macing = Keyring([MASTER], "prod", entropy_of(SALT), 4, seal=True), ring(MASTER, salt=SALT)
    assert b"secret" in macing.wrap(b"secret")
    sealed = sealing.wrap(b"secret")
    assert b"secret" not in sealed
    receiver = ring(MASTER)
    assert receiver.open(sealed) == b"secret"
    with pytest.raises(RemoteProtocolError, match="replay"):
        receiver.open(ring(MASTER, salt=SALT).wrap(b"counter 1 again"))
    for code in (0xE0, 0xE1):  # neither passes for the other
        with pytest.raises(RemoteProtocolError, match="mac"):
            ring(MASTER).open(bytes([code ^ 1]) + (sealed if code == 0xE0 else macing.wrap(b"x"))[1:])


@pytest.mark.parametrize("keys", [(), (b"short",), (MASTER, MASTER), tuple(bytes([n]) * 32 for n in range(9))])
def test_a_keyring_that_cannot_be_used_is_refused(keys: tuple[bytes, ...]) -> None:
    with pytest.raises(ConfigError, match="keyring"):
        ring(*keys)
